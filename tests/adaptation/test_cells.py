"""Free distributions: the optimum of a concave likelihood, what shrinkage adds to it, and what cells are shrunk to."""

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.optimize import minimize_scalar

from given import evidence_of
from sitewise.adaptation.cells import (
    constant_centre,
    fit_constant_cell,
    fit_table_cells,
    fixed_centre,
    tilted_centre,
    variance_per_row,
    without_dust,
)
from sitewise.prevalence.base import ConstantPrevalence
from sitewise.prevalence.table import fit_table

HALVES = torch.tensor([0.5, 0.5], dtype=torch.float64)


def site(n_rows=200, seed=0):
    """log f of two classes and wards that they depend on."""
    rng = np.random.default_rng(seed)
    ward = rng.choice(["a", "b", "c"], n_rows)
    y = rng.random(n_rows) < np.select([ward == "a", ward == "b"], [0.2, 0.5], 0.8)
    x = rng.normal(2.0 * y, 1.0)
    return torch.tensor(np.c_[np.zeros(n_rows), 2.0 * x - 2.0]), pd.DataFrame({"ward": ward})


def constant(evidence, strength=0.0, prior=HALVES):
    return fit_constant_cell(evidence, prior, strength, "auto", HALVES)


def share(fit, codes=None):
    return fit.prevalence.log_prob(torch.zeros(1, 0, dtype=torch.float64) if codes is None else codes).exp()[:, 1]


@pytest.mark.parametrize("strength", [0.0, 10.0])
def test_a_constant_g_is_the_maximum_by_another_optimizer(strength):
    log_ratio, _ = site()
    f = torch.softmax(log_ratio, dim=1).numpy()

    def loss(p):
        likelihood = np.log(f[:, 0] * (1 - p) + f[:, 1] * p).sum()
        return -likelihood - strength * (0.3 * np.log(1 - p) + 0.7 * np.log(p))

    theirs = minimize_scalar(loss, bounds=(1e-6, 1 - 1e-6), method="bounded", options={"xatol": 1e-10}).x
    prior = torch.tensor([0.3, 0.7], dtype=torch.float64)
    fit = constant(evidence_of(log_ratio), strength, prior)
    assert float(share(fit)) == pytest.approx(theirs, abs=1e-6)


def test_strength_is_so_many_labeled_rows_of_the_prior():
    log_ratio, _ = site()
    certain = torch.tensor([[0.0, -torch.inf]] * 3 + [[-torch.inf, 0.0]] * 7)
    prior = torch.tensor([0.3, 0.7], dtype=torch.float64)
    shrunk = constant(evidence_of(log_ratio), 10.0, prior)
    labeled = constant(evidence_of(torch.cat([log_ratio, certain])))
    assert float(share(shrunk)) == pytest.approx(float(share(labeled)), abs=1e-7)


def test_a_table_without_shrinkage_is_a_constant_g_for_every_level():
    log_ratio, Z = site()
    evidence = evidence_of(log_ratio, Z)
    cells = torch.arange(3, dtype=torch.float64)[:, None]
    fit = fit_table_cells(evidence, cells, fixed_centre(cells, HALVES), 0.0, "auto")
    for level, found in zip("abc", share(fit, cells), strict=True):
        alone = constant(evidence_of(log_ratio[torch.tensor((Z["ward"] == level).to_numpy())]))
        assert float(found) == pytest.approx(float(share(alone)), abs=1e-6)


def test_a_table_shrunk_ever_more_is_its_centre():
    log_ratio, Z = site()
    evidence = evidence_of(log_ratio, Z)
    cells = torch.arange(3, dtype=torch.float64)[:, None]
    level = torch.tensor([0.35, 0.65], dtype=torch.float64)
    away = [
        float(
            (share(fit_table_cells(evidence, cells, fixed_centre(cells, level), s, "auto"), cells) - 0.65).abs().max()
        )
        for s in (1.0, 30.0, 1e6)
    ]
    assert away[0] > away[1] > away[2]
    assert away[2] < 1e-4


def test_centres_have_the_sites_level():
    log_ratio, Z = site()
    evidence = evidence_of(log_ratio, Z)
    fit = constant(evidence)
    cells = torch.arange(3, dtype=torch.float64)[:, None]
    expected = float(share(fit))
    assert constant_centre(cells, fit).prevalence[:, 1].tolist() == pytest.approx([expected] * 3)
    codes = torch.cat([rows.codes for rows in evidence.rows])
    weight = torch.cat([rows.cell_weight for rows in evidence.rows])
    targets = torch.tensor([[0.9, 0.1], [0.5, 0.5], [0.2, 0.8]], dtype=torch.float64)
    shape = fit_table(targets, cells, torch.ones(3, dtype=torch.float64), evidence.schema)
    tilted = tilted_centre(evidence, cells, fit, shape).prevalence[:, 1]
    at_rows = tilted[codes[:, 0].long()]
    assert float(weight @ at_rows / weight.sum()) == pytest.approx(expected, abs=1e-6)
    odds = torch.logit(tilted) - (shape.log_prob(cells)[:, 1] - shape.log_prob(cells)[:, 0])
    assert float(odds.max() - odds.min()) < 1e-6  # all moved alike


def test_dust_is_absent_and_shares_still_sum_to_one():
    cleaned = without_dust(torch.tensor([[1e-12, 0.25, 0.75]], dtype=torch.float64))
    assert cleaned.tolist() == [[0.0, 0.25, 0.75]]


def test_with_certain_rows_the_variance_is_the_binomials():
    certain = torch.tensor([[0.0, -torch.inf]] * 30 + [[-torch.inf, 0.0]] * 70)
    level = torch.tensor([0.3, 0.7], dtype=torch.float64)
    variance = variance_per_row(evidence_of(certain), level)
    expected = torch.tensor([[0.21, -0.21], [-0.21, 0.21]], dtype=torch.float64)
    torch.testing.assert_close(variance, expected, rtol=1e-6, atol=1e-9)


def test_weights_fit_the_same_g_again():
    log_ratio, _ = site()
    fit = constant(evidence_of(log_ratio))
    twice = fit.refit(evidence_of(torch.cat([log_ratio, log_ratio])))
    assert isinstance(twice, ConstantPrevalence)
    nothing = torch.zeros(1, 0, dtype=torch.float64)
    torch.testing.assert_close(twice.log_prob(nothing), fit.prevalence.log_prob(nothing), rtol=0, atol=1e-6)
