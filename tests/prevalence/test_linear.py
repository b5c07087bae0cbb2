"""Linear logits fitted to soft labels: derivatives by automatic differentiation, and scikit-learn's optimum."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from sitewise.posterior import contrasts
from sitewise.prevalence import linear
from sitewise.prevalence.linear import assemble, fit_linear, information


def problem(n_classes, n_features=3, n_rows=60, seed=0):
    """Features, soft labels that a row may have several of, weights and an offset."""
    rng = np.random.default_rng(seed)
    features = torch.tensor(rng.normal(size=(n_rows, n_features)))
    weight = torch.tensor(rng.uniform(0.5, 2, n_rows))
    totals = weight[:, None] * torch.tensor(rng.dirichlet(np.ones(n_classes), n_rows))
    return totals, weight, features, torch.tensor(rng.normal(size=(n_rows, n_classes)))


def negative_log_likelihood(flat, totals, features, offset):
    n_classes = totals.shape[1]
    logits = offset + features @ flat.reshape(features.shape[1], -1) @ contrasts(n_classes, flat.device).T
    return -(totals * torch.log_softmax(logits, dim=1)).sum()


@pytest.mark.parametrize(("n_features", "width"), [(4, 2), (2, 4)], ids=["few classes", "many classes"])
def test_assemble_is_the_sum_of_kronecker_products(n_features, width):
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(7, n_features, generator=generator, dtype=torch.float64)
    blocks = torch.randn(7, width, width, generator=generator, dtype=torch.float64)
    blocks = blocks + blocks.mT
    expected = sum(torch.kron(row[:, None] * row, block) for row, block in zip(features, blocks, strict=True))
    torch.testing.assert_close(assemble(features, blocks), expected)


@pytest.mark.parametrize("n_classes", [2, 3, 6])
def test_the_information_is_the_second_derivative(n_classes):
    totals, weight, features, offset = problem(n_classes)
    flat = torch.linspace(-1, 1, 3 * (n_classes - 1), dtype=torch.float64)
    hessian = torch.autograd.functional.hessian(lambda at: negative_log_likelihood(at, totals, features, offset), flat)
    logits = offset + features @ flat.reshape(3, -1) @ contrasts(n_classes, flat.device).T
    torch.testing.assert_close(information(features, weight, torch.softmax(logits, dim=1)), hessian)


@pytest.mark.parametrize("limit", [300, 0], ids=["Newton", "L-BFGS"])
def test_the_fit_is_scikit_learns(limit, monkeypatch):
    monkeypatch.setattr(linear, "NEWTON_LIMIT", limit)
    totals, weight, features, _ = problem(3)
    penalty = torch.full((3,), 2.0, dtype=torch.float64)
    solution = fit_linear(totals, weight, features, penalty, torch.zeros_like(totals))
    assert solution.converged
    rows, labels = np.tile(features.numpy(), (3, 1)), np.repeat([0, 1, 2], len(features))
    theirs = LogisticRegression(C=1 / 2.0, fit_intercept=False, tol=1e-10, max_iter=10_000)
    theirs.fit(rows, labels, sample_weight=totals.numpy().T.reshape(-1))
    ours = solution.point.reshape(3, 2) @ contrasts(3, totals.device).T
    np.testing.assert_allclose(ours, theirs.coef_.T, atol=1e-5)


def test_the_order_of_the_classes_does_not_matter():
    totals, weight, features, offset = problem(4)
    penalty = torch.tensor([0.0, 1.0, 3.0], dtype=torch.float64)
    order = torch.tensor([2, 0, 3, 1])
    basis = contrasts(4, totals.device)
    ours = fit_linear(totals, weight, features, penalty, offset).point.reshape(3, -1) @ basis.T
    other = fit_linear(totals[:, order], weight, features, penalty, offset[:, order]).point.reshape(3, -1) @ basis.T
    torch.testing.assert_close(other, ours[:, order], rtol=0, atol=1e-7)


def test_the_start_does_not_matter():
    totals, weight, features, offset = problem(3)
    penalty = torch.ones(3, dtype=torch.float64)
    first = fit_linear(totals, weight, features, penalty, offset)
    again = fit_linear(totals, weight, features, penalty, offset, start=torch.full((6,), 3.0, dtype=torch.float64))
    torch.testing.assert_close(again.point, first.point, rtol=0, atol=1e-7)
