"""Sums over rows against autograd and a brute force."""

import numpy as np
import pytest
import torch

from sitewise.adaptation import rows as module
from sitewise.adaptation.rows import (
    Rows,
    Stream,
    know_labels,
    moments,
    number_sums,
    quick_number_sums,
    rough_moments,
    to_ratio,
)
from sitewise.posterior import contrasts, normalize


def some_rows(n_classes, cells, weighted, n_rows=40, seed=0):
    generator = torch.Generator().manual_seed(seed)
    log_ratio = torch.randn(n_rows, n_classes, generator=generator, dtype=torch.float64) * 2
    cell, n_cells = None, {"one": 1, "each": n_rows, "some": 5}[cells]
    if cells == "some":
        cell = torch.sort(torch.randint(5, (n_rows,), generator=generator)).values
        cell = torch.unique(cell, return_inverse=True)[1]
        n_cells = int(cell.max()) + 1
    weight = torch.rand(n_rows, generator=generator, dtype=torch.float64) if weighted else None
    logits = torch.randn(n_cells, n_classes, generator=generator, dtype=torch.float64)
    codes = torch.zeros(n_cells, 1, dtype=torch.float64)
    return Rows(to_ratio(log_ratio), weight, codes, cell, None), log_ratio, logits


@pytest.mark.parametrize("weighted", [False, True])
def test_rough_sums_and_sums_of_short_parts_are_those_of_all_rows(weighted, monkeypatch):
    """Rounded f: its sums in parts differ by rounding in double precision, the rough ones in single precision."""
    rows, _, logits = some_rows(5, "one", weighted, n_rows=500)
    rows = rows.in_single_precision()
    wide = Rows(rows.ratio.double(), rows.weight, rows.codes, None, None)
    g = torch.softmax(logits, dim=1)
    monkeypatch.setattr(module, "WIDE_STRETCH", 5 * 64)
    for order in (0, 1, 2):
        whole, parts, rough = moments(wide, g, order), moments(rows, g, order), rough_moments(rows, g, max(order, 1))
        assert len(parts.sums) == len(whole.sums) == order + 1
        for expected, exact, near in zip(whole.sums, parts.sums, rough.sums, strict=False):
            scale = float(expected.abs().max())
            assert (exact - expected).abs().max() <= 1e-12 * scale
            assert (near - expected).abs().max() <= 1e-4 * scale
            assert near.dtype == exact.dtype == torch.float64


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("cells", ["one", "each", "some"])
@pytest.mark.parametrize("weighted", [False, True])
def test_moments_are_the_derivatives_of_the_likelihood(n_classes, cells, weighted):
    rows, log_ratio, logits = some_rows(n_classes, cells, weighted)
    f = torch.softmax(log_ratio, dim=1)
    weight = torch.ones(len(f), dtype=torch.float64) if rows.weight is None else rows.weight

    def likelihood(g):
        return (weight * (f * rows.at_rows(g)).sum(1).log()).sum()

    def likelihood_of_contrasts(theta):
        return likelihood(torch.softmax(logits + theta @ contrasts(n_classes).T, dim=1))

    g = torch.softmax(logits, dim=1)
    sums = moments(rows, g, 2)
    torch.testing.assert_close(sums.log_likelihood.sum(), likelihood(g))
    torch.testing.assert_close(sums.weight.sum(), weight.sum())
    torch.testing.assert_close(sums.slope, torch.autograd.functional.jacobian(likelihood, g))
    hessian = torch.autograd.functional.hessian(likelihood, g)
    theta = torch.zeros(len(g), n_classes - 1, dtype=torch.float64)
    logit_hessian = torch.autograd.functional.hessian(likelihood_of_contrasts, theta)
    for u in range(len(g)):
        torch.testing.assert_close(sums.curvature[u], -hessian[u, :, u])
        torch.testing.assert_close(sums.logit_information[u], -logit_hessian[u, :, u])
    slope = torch.autograd.functional.jacobian(likelihood_of_contrasts, theta)
    torch.testing.assert_close(sums.logit_slope, slope)
    residual = f * rows.at_rows(g) / (f * rows.at_rows(g)).sum(1, keepdim=True) - rows.at_rows(g)
    gram = torch.einsum("n,nk,nl->kl", weight, residual, residual)
    basis = contrasts(n_classes)
    torch.testing.assert_close(sums.logit_gram.sum(0), basis.T @ gram @ basis)
    for order in (0, 1):
        torch.testing.assert_close(moments(rows, g, order).log_likelihood, sums.log_likelihood)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_ratios_are_kept_whatever_is_added_to_a_row_and_however_certain_it_is(n_classes):
    log_ratio = np.random.default_rng(0).normal(size=(7, n_classes)) * 3
    log_ratio[1, 0], log_ratio[2, 1], log_ratio[3] = np.inf, -np.inf, -np.inf
    log_ratio[4] += 1e5
    log_ratio = torch.tensor(log_ratio)
    expected = normalize(log_ratio).exp()
    kept = to_ratio(log_ratio)
    if n_classes == 2:
        torch.testing.assert_close(kept[:, 0], expected[:, 1] - expected[:, 0], atol=1e-9, rtol=0)
    else:
        torch.testing.assert_close(kept, expected, atol=1e-9, rtol=0)
    know_labels(kept, torch.tensor([0, 5]), torch.tensor([1, 0]))
    one_hot = torch.nn.functional.one_hot(torch.tensor([1, 0]), n_classes).double()
    shown = kept[[0, 5]] if n_classes > 2 else torch.stack([(1 - kept[[0, 5], 0]) / 2, (1 + kept[[0, 5], 0]) / 2], 1)
    torch.testing.assert_close(shown, one_hot)


@pytest.mark.parametrize("weighted", [False, True])
def test_the_sums_for_a_gpu_lose_nothing_but_digits_of_the_logarithm(weighted):
    generator = torch.Generator().manual_seed(0)
    contrast = torch.tanh(2 * torch.randn(200_000, generator=generator)).float()
    weight = torch.rand(200_000, generator=generator, dtype=torch.float64) if weighted else None
    for prevalence in (0.001, 0.3, 0.99):
        lean = torch.tensor(2 * prevalence - 1, dtype=torch.float64)
        exact, quick = number_sums(contrast, weight, lean), quick_number_sums(contrast, weight, lean)
        torch.testing.assert_close(quick[0], exact[0], rtol=1e-8, atol=0)
        torch.testing.assert_close(quick[1:], exact[1:], rtol=1e-12, atol=0)


def test_a_stream_makes_what_it_keeps_once_and_the_rest_anew():
    made = []
    stream = Stream([1, 2], lambda: iter([3]))
    doubled = stream.map(lambda value: made.append(value) or 2 * value)
    assert [list(doubled), list(doubled)] == [[2, 4, 6]] * 2
    assert made == [1, 2, 3, 3]
    made.clear()
    again = stream.map(lambda value: made.append(value) or 2 * value, keep=False)
    assert [list(again), list(again)] == [[2, 4, 6]] * 2
    assert made == [1, 2, 3] * 2
