"""Degenerate but legal input: the right answer, never NaN."""

import numpy as np
import pandas as pd
import pytest

import sitewise as sw
from sitewise.adaptation.estimate import ALIKE, NOT_IDENTIFIED


def check(estimate, Z=None):
    low, high = estimate.interval()
    values = [estimate.marginal, low, high]
    if Z is not None:
        values += [np.exp(estimate.log_prevalence(Z)), *estimate.interval(Z)]
    for value in values:
        value = np.asarray(value)
        assert np.isfinite(value).all()
        assert ((value >= -1e-12) & (value <= 1 + 1e-12)).all()
    assert estimate.marginal.sum() == pytest.approx(1)
    assert (low <= estimate.marginal + 1e-9).all()
    assert (high >= estimate.marginal - 1e-9).all()


def test_one_row():
    estimate = sw.estimate_prevalence([[0.0, 2.0]], [[50.0]])
    check(estimate, [[50.0]])
    assert estimate.marginal[1] == pytest.approx(1)
    low, high = estimate.interval()
    assert low[1] < 0.5
    assert high[1] == pytest.approx(1)


def test_equal_rows():
    estimate = sw.estimate_prevalence(np.tile([0.0, 1.0], (50, 1)), np.tile([30.0, 1.0], (50, 1)))
    check(estimate, [[30.0, 1.0]])
    assert estimate.marginal[1] == pytest.approx(1, abs=1e-9)


def test_an_impossible_class_has_no_prevalence_and_an_upper_bound():
    rng = np.random.default_rng(0)
    log_ratio = np.c_[rng.normal(size=(100, 2)), np.full(100, -np.inf)]
    estimate = sw.estimate_prevalence(log_ratio, rng.uniform(size=(100, 1)))
    check(estimate, rng.uniform(size=(3, 1)))
    assert estimate.marginal[2] < 1e-9
    assert estimate.at_bound.tolist() == [False, False, True]
    # The likelihood of none in a hundred falls by 1.92 at 1 - exp(-1.92 / 100).
    assert estimate.interval()[1][2] == pytest.approx(1 - np.exp(-1.9207 / 100), rel=1e-2)


def test_infinite_log_ratios_are_certainties():
    log_ratio = np.array([[0.0, np.inf], [np.inf, 0.0], [-np.inf, 0.0], [-np.inf, -np.inf]])
    estimate = sw.estimate_prevalence(log_ratio)
    check(estimate)
    assert estimate.marginal[1] == pytest.approx(2 / 3)
    assert np.isfinite(sw.adjust(log_ratio, np.log(estimate.marginal))).all()


@pytest.mark.filterwarnings("ignore")
def test_constant_and_empty_columns():
    family = sw.SimulatedFamily(seed=0)
    site = family.site(300, seed=1)
    Z = site.Z.assign(same=1.5, one="x", empty=np.nan, nothing=None)
    check(sw.estimate_prevalence(site.log_ratio, Z), Z)
    for model in ("constant", "additive", "network"):
        nothing = pd.DataFrame({"empty": [np.nan] * 300})
        estimate = sw.estimate_prevalence(site.log_ratio, nothing, model=model)
        plain = sw.estimate_prevalence(site.log_ratio)
        np.testing.assert_allclose(estimate.marginal, plain.marginal)


def test_a_thousand_levels_and_fifty_confounders():
    rng = np.random.default_rng(0)
    y = rng.random(3000) < 0.3
    log_ratio = np.c_[np.zeros(3000), y + rng.normal(size=3000) - 0.5]
    many = pd.DataFrame({"ward": [f"w{i}" for i in rng.integers(0, 1000, 3000)]})
    with pytest.warns(UserWarning, match="'ward': .* of its 9.. levels have too few"):
        estimate = sw.estimate_prevalence(log_ratio, many)
    check(estimate, many.iloc[:20])
    assert estimate.marginal[1] == pytest.approx(0.3, abs=0.06)
    wide = rng.normal(size=(500, 50))
    check(sw.estimate_prevalence(log_ratio[:500], wide), wide[:3])


def test_rows_of_weight_zero_do_not_exist():
    rng = np.random.default_rng(1)
    log_ratio, Z = rng.normal(size=(40, 2)), rng.uniform(size=(40, 1))
    weight = np.r_[np.ones(30), np.zeros(10)]
    schema = sw.Confounders.learn(Z)
    weighted = sw.estimate_prevalence(log_ratio, Z, sample_weight=weight, confounders=schema)
    dropped = sw.estimate_prevalence(log_ratio[:30], Z[:30], confounders=schema)
    np.testing.assert_allclose(weighted.marginal, dropped.marginal)


def test_where_f_says_nothing_the_answer_is_the_prior_and_a_warning():
    log_ratio, Z = np.full((30, 3), 0.7), np.arange(30.0)[:, None]
    with pytest.warns(UserWarning, match=NOT_IDENTIFIED.split("{")[0]):
        estimate = sw.estimate_prevalence(log_ratio, Z, prior=[0.7, 0.2, 0.1])
    np.testing.assert_allclose(estimate.marginal, [0.7, 0.2, 0.1])
    low, high = estimate.interval()  # the prior's own: it says more than nothing
    assert (low < [0.05, 0.01, 0.01]).all()
    assert (high > [0.95, 0.7, 0.5]).all()
    with pytest.warns(UserWarning, match="uniform"):
        alone = sw.estimate_prevalence(log_ratio)
    np.testing.assert_allclose(alone.marginal, np.full(3, 1 / 3))
    np.testing.assert_allclose(alone.interval(), [np.zeros(3), np.ones(3)], atol=1e-6)


def test_where_f_says_nothing_every_interval_is_that_of_the_prior():
    site = sw.SimulatedFamily(seed=0).site(200, seed=1)
    prior = sw.estimate_prevalence(site.log_ratio, site.Z, model="additive")
    with pytest.warns(UserWarning, match="the prior"):
        estimate = sw.estimate_prevalence(np.zeros((200, 2)), site.Z, prior=prior)
    # the mean over the rows is the prior's; at single z it is drawn to the middle, for the factor is not known
    np.testing.assert_allclose(estimate.marginal, prior.marginal, atol=1e-9)
    at, before = (np.diff(g.log_prevalence(site.Z))[:, 0] for g in (estimate, prior))
    assert np.corrcoef(at, before)[0, 1] > 0.95
    assert np.std(at) < np.std(before)
    with pytest.warns(UserWarning, match="the prior"):
        other = sw.estimate_prevalence(np.ones((50, 2)), site.Z[:50], prior=prior)
    for Z, share in ((None, np.asarray(prior.marginal)), (site.Z, np.exp(prior.log_prevalence(site.Z)))):
        low, high = map(np.asarray, estimate.interval(Z))
        assert (low < share).all()
        assert (share < high).all()
        assert (high - low > 0.5).all()
    assert (np.subtract(*other.interval()[::-1]) > 0.5).all()


@pytest.mark.parametrize("strength", [3.0, 300.0])
def test_a_table_of_a_class_that_is_absent(strength):
    """The floor under a class that is absent must not count as rows of it."""
    rng = np.random.default_rng(0)
    group = rng.integers(0, 2, 500)
    y = rng.random(500) < 0.3 + 0.4 * group
    log_ratio = np.c_[np.zeros(500), 2 * rng.normal(2.0 * y) - 2, rng.normal(-4, 0.5, 500)]
    Z = pd.DataFrame({"group": np.where(group == 0, "a", "b")})
    newton = sw.estimate_prevalence(log_ratio, Z, model="table", strength=strength)
    em = sw.estimate_prevalence(log_ratio, Z, model="table", strength=strength, solver="em", random_state=0)
    check(newton, Z.iloc[:5])
    assert newton.converged
    assert newton.marginal[2] < 1e-9
    np.testing.assert_allclose(np.exp(newton.log_prevalence(Z)), np.exp(em.log_prevalence(Z)), atol=1e-6)


@pytest.mark.filterwarnings("ignore")
def test_intervals_of_classes_that_can_replace_each_other_contain_their_total():
    """Moving one of them up by mixing takes from the third class too, which the likelihood forbids long before."""
    q = np.random.default_rng(0).normal(0.3, 1, 300)
    low, high = (estimate := sw.estimate_prevalence(np.c_[q, q, -q])).interval()
    assert low[0] < 1e-3
    assert high[0] == pytest.approx(1 - low[2], abs=0.02)
    assert high[0] < 0.85
    check(estimate)


def test_a_rare_class_has_intervals_at_z_that_say_something():
    site = sw.SimulatedFamily(seed=0, signal=3.0).site(400, prevalence=[0.999, 0.001], seed=6)
    for model in ("additive", "network"):
        estimate = sw.estimate_prevalence(
            site.log_ratio, site.Z, model=model, strength=1.0 if model == "additive" else "auto", random_state=0
        )
        low, high = estimate.interval(site.Z.iloc[:20])
        check(estimate, site.Z.iloc[:20])
        probability = np.exp(estimate.log_prevalence(site.Z.iloc[:20]))
        assert (low <= probability + 1e-9).all()
        assert (probability <= high + 1e-9).all()
        assert high[:, 1].max() < 0.3


def test_classes_that_f_does_not_tell_apart_are_reported():
    rng = np.random.default_rng(0)
    log_ratio = np.repeat(rng.normal(size=(200, 2)), [1, 2], axis=1)
    with pytest.warns(UserWarning, match=ALIKE):
        estimate = sw.estimate_prevalence(log_ratio)
    check(estimate)
    assert estimate.marginal[1] == pytest.approx(estimate.marginal[2], abs=1e-3)


@pytest.mark.parametrize("prevalence", [0.002, 0.02])
def test_rare_classes_are_found_without_bias(prevalence):
    family = sw.SimulatedFamily(signal=3.0, effect=0.0, seed=0)
    estimates = []
    for seed in range(12):
        site = family.site(20_000, prevalence=[1 - prevalence, prevalence], seed=seed)
        estimate = sw.estimate_prevalence(site.log_ratio, model="constant")
        check(estimate)
        assert estimate.gap < 1e-9
        estimates.append(estimate.marginal[1])
    assert abs(np.mean(estimates) - prevalence) < 3 * np.std(estimates) / np.sqrt(12) + 1e-4


@pytest.mark.parametrize("n_classes", [10, 100])
def test_many_classes(n_classes):
    rng = np.random.default_rng(0)
    truth = rng.dirichlet(np.ones(n_classes))
    y = rng.choice(n_classes, 4000, p=truth)
    log_ratio = 4.0 * (4.0 * np.eye(n_classes)[y] + rng.normal(size=(4000, n_classes)))
    estimate = sw.estimate_prevalence(log_ratio)
    assert estimate.gap < 1e-9
    np.testing.assert_allclose(estimate.marginal, np.bincount(y, minlength=n_classes) / 4000, atol=0.01)
