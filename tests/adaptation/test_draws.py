"""Draws of g: as wide as the interval, around the estimate, and the same for the same seed."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

import sitewise as sw
from sitewise.adaptation.draws import deal

FAMILY = sw.SimulatedFamily(signal=2.5, levels=(2,), n_continuous=1, seed=1)
SITE = FAMILY.site(400, prevalence=[0.6, 0.4], seed=2)
ONE_LEVEL = pd.DataFrame({"ward": SITE.Z.filter(like="group").iloc[:, 0]})


@pytest.fixture(scope="module", params=["constant", "table", "additive"])
def estimate(request):
    Z = {"constant": None, "table": ONE_LEVEL, "additive": SITE.Z}[request.param]
    return sw.estimate_prevalence(SITE.log_ratio, Z, model=request.param, strength=2.0)


def test_draws_lie_around_the_estimate_as_wide_as_its_interval(estimate):
    """The interval of the population also allows for having seen these z and not others, so it may be wider."""
    draws = estimate.draws(2000, random_state=0).marginal
    low, high = estimate.interval(level=0.9)
    error = draws.std(axis=0) / np.sqrt(2000)
    assert (np.abs(draws.mean(axis=0) - estimate.marginal) < 0.1 * (high - low) + 4 * error).all()
    inside = np.mean((draws > low) & (draws < high), axis=0)
    assert (inside > 0.86).all()
    assert (np.quantile(draws, 0.95, axis=0) - np.quantile(draws, 0.05, axis=0) > 0.7 * (high - low)).all()


def test_every_draw_is_a_distribution_whose_mean_is_its_marginal(estimate):
    draws = estimate.draws(5, random_state=1)
    Z = SITE.Z if estimate.model == "additive" else ONE_LEVEL
    prevalence = np.stack(list(draws.log_prevalence(Z)))
    assert prevalence.shape == (5, 400, 2)
    np.testing.assert_allclose(np.exp(prevalence).sum(axis=2), 1, atol=1e-9)
    np.testing.assert_allclose(np.exp(prevalence).mean(axis=1), draws.marginal, atol=1e-9)


def test_a_seed_repeats_its_draws(estimate):
    first, again, other = (estimate.draws(20, random_state=seed).marginal for seed in (3, 3, 4))
    np.testing.assert_array_equal(first, again)
    assert (first != other).all()
    assert len(estimate.draws(20, random_state=3)) == 20


def test_a_row_without_z_has_the_draws_mean():
    estimate = sw.estimate_prevalence(SITE.log_ratio, SITE.Z, model="additive", strength=2.0)
    draws = estimate.draws(6, random_state=0)
    nothing = SITE.Z.iloc[:1].astype(object)
    nothing.iloc[:] = None
    prevalence = np.concatenate(list(draws.log_prevalence(nothing)))
    np.testing.assert_allclose(np.exp(prevalence), draws.marginal, atol=1e-12)


def test_where_f_says_nothing_every_share_is_as_likely():
    with pytest.warns(UserWarning, match="not identified"):
        estimate = sw.estimate_prevalence(np.zeros((50, 2)))
    share = estimate.draws(4000, random_state=0).marginal[:, 1]
    np.testing.assert_allclose(np.quantile(share, [0.25, 0.5, 0.75]), [0.25, 0.5, 0.75], atol=0.04)


def test_near_a_bound_draws_stay_within_and_lean_away_from_it():
    rare = FAMILY.site(200, prevalence=[0.99, 0.01], seed=3)
    estimate = sw.estimate_prevalence(rare.log_ratio)
    share = estimate.draws(1000, random_state=0).marginal[:, 1]
    assert share.min() >= 0
    assert share.mean() > estimate.marginal[1]


def test_draws_are_dealt_out_by_weight():
    weights = {"a": 6.0, "b": 3.0, "c": 0.0}
    candidates = tuple(SimpleNamespace(weight=weight, finish=name.upper) for name, weight in weights.items())
    dealt = dict(deal(candidates, 9000, torch.Generator().manual_seed(0)))
    assert set(dealt) == {"A", "B"}
    assert sum(dealt.values()) == 9000
    assert dealt["A"] == pytest.approx(6000, abs=4 * np.sqrt(9000 * 2 / 9))
