"""Every concave problem ends with its certificate, whatever the rows; oracles in plain numpy."""

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import sitewise as sw
from campaign import oracles
from sitewise.adaptation.joint.estimate import climb
from sitewise.adaptation.joint.mixture import make_mixture
from sitewise.solvers import interior

LOGS = st.one_of(st.floats(-60, 60), st.sampled_from([-np.inf, 0.0, -1.0, 5.0]))


def test_fewer_rows_than_classes_reach_the_optimum():
    log_ratio = np.array([[-2.0, -1.0, 5.0], [0.0, 0.0, -4.0]])
    estimate = sw.estimate_prevalence(log_ratio)
    f, ones = oracles.ratios(log_ratio), np.ones(2)
    assert estimate.converged
    assert oracles.optimality_gap(f, estimate.marginal, ones) < 1e-8
    best = oracles.em(f, ones, n_iter=100_000)
    np.testing.assert_allclose(estimate.marginal, best, atol=1e-4)


@pytest.mark.filterwarnings("ignore:the log-ratios")
@given(hnp.arrays(np.float64, st.tuples(st.integers(1, 8), st.integers(2, 8)), elements=LOGS), st.booleans())
def test_any_rows_at_all_reach_the_optimum(log_ratio, shrunk):
    strength = 0.5 if shrunk else 0.0
    estimate = sw.estimate_prevalence(log_ratio, model="constant", strength=strength)
    f, n_classes = oracles.ratios(log_ratio), log_ratio.shape[1]
    if (f.max(axis=1) - f.min(axis=1) >= 1e-12).any():
        pseudo = np.full(n_classes, strength / n_classes) if shrunk else None
        assert estimate.converged
        assert oracles.optimality_gap(f, np.asarray(estimate.marginal), np.ones(len(f)), pseudo) < 1e-6


def test_cells_of_a_table_with_few_rows_reach_the_optimum():
    rng = np.random.default_rng(2)
    log_ratio = rng.normal(0, 5, (24, 6))
    cell = np.arange(24) % 8
    estimate = sw.estimate_prevalence(log_ratio, pd.DataFrame({"z": cell.astype(str)}), model="table", strength=0.0)
    at_rows = np.exp(estimate.log_prevalence(pd.DataFrame({"z": cell.astype(str)})))
    assert estimate.converged
    for c in range(8):
        rows = cell == c
        assert oracles.optimality_gap(oracles.ratios(log_ratio[rows]), at_rows[rows][0], np.ones(3)) < 1e-6


@pytest.mark.parametrize("seed", [7, 13, 48])
@pytest.mark.parametrize("row", [[0.0, -40.0], [0.0, -40.0, -3.0], [0.0, -800.0, 1.0]])
def test_em_stays_on_the_simplex_without_evidence_for_a_class(seed, row):
    estimate = sw.estimate_prevalence([row] * 20, model="constant", solver="em", random_state=seed)
    assert np.isfinite(estimate.marginal).all()
    assert np.isfinite(estimate.gap)
    assert estimate.marginal[np.argmax(row)] == pytest.approx(1.0, abs=1e-6)


def test_rows_without_z_leave_a_table_its_certificate():
    """Where extrapolation all but lost a class, EM took for ever to bring it back."""
    rng = np.random.default_rng(239)
    log_ratio = rng.normal(0, 5, (5, 5))
    Z = pd.DataFrame({"z": ["a", "b", None, "a", None]})
    assert sw.estimate_prevalence(log_ratio, Z, model="table", strength=0.0).converged


def test_a_joint_estimate_is_certified_in_double_precision(monkeypatch):
    """Sums of single-precision rows are rounded by as much as the certificate allows: the last ones are in double."""
    monkeypatch.setattr("sitewise.adaptation.joint.mixture.PRECISE", 1)
    rng = np.random.default_rng(0)
    for seed in range(5):
        log_ratio = torch.tensor(np.random.default_rng(seed).normal(0, 3, (500, 3, 2)))
        mixture = make_mixture(log_ratio, torch.tensor(rng.uniform(0.5, 2, 500)))
        assert mixture.ratio.dtype == torch.float32
        pseudo, even = torch.full((6,), 0.5, dtype=torch.float64), torch.full((6,), 1 / 6, dtype=torch.float64)
        solution = climb(mixture, pseudo, even, tolerance=1e-9)
        assert solution.converged
        r, cells = mixture.ratio.double().numpy(), solution.point.numpy()
        assert oracles.optimality_gap(r, cells, mixture.weight.numpy(), pseudo.numpy()) < 2e-9


def test_many_mixtures_at_once_are_each_at_their_own_optimum():
    rng = np.random.default_rng(1)
    f = torch.tensor(rng.dirichlet(np.full(5, 0.3), (4, 7)))  # four mixtures of seven rows

    def look(w):
        mixed = torch.einsum("bnk,bk->bn", f, w)
        return mixed.log().mean(1), (f / mixed[..., None]).mean(1)

    def bend(w, _):
        relative = f / torch.einsum("bnk,bk->bn", f, w)[..., None]
        return torch.einsum("bnk,bnl->bkl", relative, relative) / 7

    solution = interior(look, bend, torch.full((4, 5), 0.2).double(), torch.zeros(4, 5).double(), tolerance=1e-10)
    assert solution.converged
    for b in range(4):
        assert oracles.optimality_gap(f[b].numpy(), solution.point[b].numpy(), np.ones(7)) < 1e-9
    assert all((later <= before + 0.1).all() for before, later in zip(solution.trace, solution.trace[1:], strict=False))


def test_a_posterior_of_several_classes_goes_where_the_rows_are():
    """From the prior's level, rows that contradict it lie far over a plain, on which a mode was never found."""
    rng = np.random.default_rng(4)
    log_ratio, prior = rng.normal(0, 2, (162, 4)), np.array([0.167, 0.001, 0.0002, 0.8318])
    estimate = sw.estimate_prevalence(log_ratio, prior=prior)
    likeliest = sw.estimate_prevalence(log_ratio).marginal
    low, high = estimate.interval()
    assert (high - low > 0.01).all()
    assert ((low <= likeliest) & (likeliest <= high)).all()
    assert ((low <= estimate.marginal) & (estimate.marginal <= high)).all()


@pytest.mark.parametrize("model", ["constant", "table", "joint"])
def test_at_a_corner_what_one_class_may_have_the_others_may_lack(model):
    """Three classes, all rows for the first: where another may have a fifth, the first may have four fifths only."""
    rng = np.random.default_rng(0)
    log_ratio = rng.normal(0, 1, (12, 3)) + np.array([6.0, 0.0, 0.0])
    Z = pd.DataFrame({"z": np.array(["a", "b"])[np.arange(12) % 2]})
    if model == "joint":
        estimate = sw.estimate_joint(log_ratio[:, None, :], strength=0.0)
    else:
        estimate = sw.estimate_prevalence(log_ratio, None if model == "constant" else Z, model=model, strength=0.0)
    bounds = [tuple(map(np.asarray, estimate.interval(level=level))) for level in (0.5, 0.8, 0.95)]
    for low, high in bounds:
        assert high[1:].max() > 0.01
        assert low[0] <= 1 - high[1:].max() + 1e-9
    for (inner_low, inner_high), (outer_low, outer_high) in pairwise(bounds):
        assert (outer_low <= inner_low + 1e-9).all()
        assert (outer_high >= inner_high - 1e-9).all()


def test_at_rows_of_z_an_interval_holds_its_estimate_where_the_posterior_is_skew():
    """A prior that is all but certain, and rows that say nothing against it."""
    rng = np.random.default_rng(0)
    Z = pd.DataFrame({"z": rng.integers(0, 9, 12)})
    estimate = sw.estimate_prevalence(rng.normal(0, 1, (12, 2)), Z, model="additive", prior=[4e-4, 1 - 4e-4])
    low, high = (np.asarray(bound) for bound in estimate.interval(Z))
    g = np.exp(np.asarray(estimate.log_prevalence(Z)))
    assert (low <= g + 1e-12).all()
    assert (high >= g - 1e-12).all()
