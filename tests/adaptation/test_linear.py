"""The likelihood of linear logits without labels: its derivatives, its EM, and the same rows with other weights."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from given import evidence_of
from sitewise.adaptation.linear import additive_problem, row_scores, solve_linear
from sitewise.adaptation.rows import Stream
from sitewise.solvers import EM


def rows_of(n_rows=60, n_classes=3, blank=0, seed=0):
    """Rows with a number and a level; the last ones lack both."""
    rng = np.random.default_rng(seed)
    Z = pd.DataFrame({"age": rng.uniform(20, 90, n_rows), "sex": rng.choice(["f", "m"], n_rows)})
    if blank:
        Z.iloc[-blank:] = None
    log_ratio = torch.tensor(rng.normal(0, 1.5, (n_rows, n_classes)))
    return evidence_of(log_ratio, Z)


def likelihood(problem, flat):
    """L as equation 7 has it, a blank row with the mean of g, in terms that torch differentiates."""
    total, mean = flat.new_zeros(()), flat.new_zeros(problem.evidence.n_classes)
    for part in problem.parts:
        g = problem.prevalence(part, flat)
        total = total + row_sum(part.rows, part.rows.at_rows(g))
        mean = mean + part.rows.cell_weight @ g
    for rows in problem.evidence.blank:
        total = total + row_sum(rows, mean[None] / problem.evidence.seen_weight)
    return total


def row_sum(rows, g):
    f = rows.ratio if rows.ratio.shape[1] > 1 else torch.cat([1 - rows.ratio, 1 + rows.ratio], dim=1) / 2
    return rows.weighted((f * g).sum(1).log()).sum()


def objective(problem, flat):
    penalty = 0.5 * problem.flat_penalty @ flat**2
    return (penalty - likelihood(problem, flat)) / problem.evidence.total_weight


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("blank", [0, 12])
def test_value_and_derivatives_are_those_of_the_likelihood(n_classes, blank):
    problem = additive_problem(rows_of(n_classes=n_classes, blank=blank), 2.0, None)
    flat = torch.linspace(-0.5, 0.5, problem.n_features * (n_classes - 1), dtype=torch.float64, requires_grad=True)
    value = objective(problem, flat)
    (gradient,) = torch.autograd.grad(value, flat)
    here = flat.detach()
    torch.testing.assert_close(problem.value(here), value.detach())
    torch.testing.assert_close(problem.gradient(here), gradient)
    if not blank:  # of blank rows the information takes the part that is never negative
        hessian = torch.autograd.functional.hessian(lambda at: objective(problem, at), here)
        torch.testing.assert_close(problem.derivatives(here[None])[1][0], hessian)


def test_what_is_remembered_belongs_to_its_place():
    problem = additive_problem(rows_of(), 2.0, None)
    first, second = torch.zeros(2, problem.n_features * 2, dtype=torch.float64) + torch.tensor([[0.1], [0.4]])
    values = [float(problem.value(at)) for at in (first, second, first)]
    assert values[0] == values[2] != values[1]


@pytest.mark.parametrize("blank", [0, 12])
def test_newton_and_em_reach_the_same_optimum(blank):
    problem = additive_problem(rows_of(n_rows=80, blank=blank), 5.0, None)
    start = torch.zeros(problem.n_features * 2, dtype=torch.float64)
    solution = solve_linear(problem, start, "auto")
    by_em = solve_linear(problem, start, EM())
    assert solution.converged
    assert float(problem.gradient(solution.point).abs().max()) < 1e-6
    assert float(problem.value(solution.point)) == pytest.approx(float(problem.value(by_em.point)), abs=1e-8)


def test_the_same_rows_with_doubled_weights_are_the_rows_twice():
    evidence = rows_of()
    problem = additive_problem(evidence, 2.0, None)
    doubled = [replace(rows, weight=torch.full((len(rows),), 2.0, dtype=torch.float64)) for rows in evidence.rows]
    drawn = replace(evidence, rows=Stream(doubled), seen_weight=2 * evidence.seen_weight)
    flat = torch.linspace(-1, 1, problem.n_features * 2, dtype=torch.float64)
    again = problem.over(drawn).evaluate(flat, 1)
    torch.testing.assert_close(again.log_likelihood, 2 * problem.evaluate(flat, 1).log_likelihood)
    torch.testing.assert_close(again.gradient, 2 * problem.evaluate(flat, 1).gradient)


def test_scores_of_rows_add_up_to_the_gradient_and_to_the_gram():
    problem = additive_problem(rows_of(n_classes=2), 2.0, None)
    flat = torch.linspace(-1, 1, problem.n_features, dtype=torch.float64)
    scores = torch.cat([row_scores(part, flat, problem.basis)[1] for part in problem.parts])
    torch.testing.assert_close(scores.sum(0), problem.evaluate(flat, 1).gradient)
    torch.testing.assert_close(problem.score_grams(flat)[0], scores.T @ scores)
