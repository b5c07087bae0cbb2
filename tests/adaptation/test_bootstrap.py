"""Rows drawn again: spreads that agree with curvature, groups, calibration, any function of g."""

import numpy as np
import pandas as pd
import pytest
import torch

import sitewise as sw
from given import evidence_of
from sitewise.adaptation.bootstrap import Draws


def site(n_rows=1500, seed=0, missing=0.0, **family):
    return sw.SimulatedFamily(signal=2.5, seed=seed, **family).site(
        n_rows, prevalence=[0.75, 0.25], missing=missing, seed=seed + 1
    )


def widths(interval):
    return np.asarray(interval[1]) - np.asarray(interval[0])


@pytest.mark.parametrize("n_classes", [2, 3])
def test_a_batch_of_draws_is_the_same_as_one_after_the_other(n_classes):
    rows = sw.SimulatedFamily(n_classes=n_classes, seed=0).site(300, seed=1)
    estimate = sw.estimate_prevalence(rows.log_ratio, model="constant")
    resamples = estimate.bootstrap(20, random_state=3)
    generator = torch.Generator().manual_seed(int(np.random.RandomState(3).randint(2**31)))
    weights = Draws(evidence_of(rows.log_ratio), generator).weights(20)
    assert (weights.sum(1) == 300).all()
    for drawn, weight in zip(resamples, weights, strict=True):
        alone = sw.estimate_prevalence(rows.log_ratio, model="constant", sample_weight=weight.numpy())
        np.testing.assert_allclose(drawn.marginal, alone.marginal, atol=1e-7)


@pytest.mark.parametrize(
    ("model", "arguments"),
    [("constant", {}), ("additive", {"strength": 1.0}), ("table", {"strength": 5.0})],
)
@pytest.mark.parametrize("missing", [0.0, 0.5])
def test_draws_spread_as_curvature_says(model, arguments, missing):
    rows = site(missing=missing, **({"n_continuous": 0, "levels": (2, 2)} if model == "table" else {}))
    estimate = sw.estimate_prevalence(rows.log_ratio, rows.Z, model=model, **arguments)
    resamples = estimate.bootstrap(100, random_state=0)
    curved, drawn = widths(estimate.interval()), widths(resamples.interval())
    np.testing.assert_allclose(drawn, curved, rtol=0.35)
    points = rows.Z.iloc[:5]
    at_points = widths(estimate.interval(points, method="bootstrap", n_resamples=60, random_state=0))
    np.testing.assert_allclose(np.median(at_points), np.median(widths(estimate.interval(points))), rtol=0.5)


def test_each_draw_of_an_additive_g_is_its_fit_to_those_weights():
    rows = site(400)
    settings = {"model": "additive", "strength": 1.0}
    estimate = sw.estimate_prevalence(rows.log_ratio, rows.Z, **settings)
    drawn = next(iter(estimate.bootstrap(2, random_state=0)))
    generator = torch.Generator().manual_seed(int(np.random.RandomState(0).randint(2**31)))
    weight = Draws(evidence_of(rows.log_ratio, rows.Z), generator).weights(1)[0].numpy()
    alone = sw.estimate_prevalence(
        rows.log_ratio, rows.Z, sample_weight=weight, confounders=estimate.confounders, **settings
    )
    np.testing.assert_allclose(drawn.marginal, alone.marginal, atol=1e-6)
    np.testing.assert_allclose(drawn.log_prevalence(rows.Z), alone.log_prevalence(rows.Z), atol=1e-4)


def test_groups_are_drawn_whole():
    rows = site(300)
    repeat = np.repeat(np.arange(300), 4)
    once = sw.estimate_prevalence(rows.log_ratio, model="constant")
    naive = sw.estimate_prevalence(rows.log_ratio[repeat], model="constant")
    grouped = sw.estimate_prevalence(rows.log_ratio[repeat], model="constant", groups=repeat)
    single, half, whole = (widths(e.bootstrap(400, random_state=0).interval())[1] for e in (once, naive, grouped))
    assert half == pytest.approx(single / 2, rel=0.15)
    assert whole == pytest.approx(single, rel=0.15)


def test_any_function_of_g_has_an_interval():
    rows = site(2000)
    estimate = sw.estimate_prevalence(rows.log_ratio, rows.Z, model="additive", strength=3.0)
    points = rows.Z.iloc[:2]

    def difference(g):
        risk = np.exp(g.log_prevalence(points))[:, 1]
        return risk[0] - risk[1]

    low, high = estimate.bootstrap(80, random_state=0).interval(difference)
    assert low < difference(estimate) < high
    ratio = estimate.bootstrap(80, random_state=0).interval(lambda g: g.marginal[1] / g.marginal[0])
    marginal = estimate.bootstrap(80, random_state=0).interval()
    np.testing.assert_allclose(ratio[0], marginal[0][1] / marginal[1][0], rtol=0.02)


def test_a_seed_repeats_and_containers_come_back():
    rows = site(300)
    frame = pd.DataFrame(rows.log_ratio, columns=["healthy", "ill"])
    estimate = sw.estimate_prevalence(frame, rows.Z)
    first, again = (estimate.interval(method="bootstrap", n_resamples=20, random_state=1) for _ in range(2))
    pd.testing.assert_series_equal(first[0], again[0])
    assert first[0].index.tolist() == ["healthy", "ill"]
    low, high = estimate.interval(rows.Z.iloc[:3], method="bootstrap", n_resamples=20, random_state=1)
    assert low.index.equals(rows.Z.index[:3])
    assert (low <= high).all(axis=None)


def test_the_calibration_adds_its_own_uncertainty():
    """A calibration from few rows is the larger part of what is not known."""
    family = sw.SimulatedFamily(signal=2.0, effect=0.0, seed=0)
    source, target = family.site(80, seed=1), family.site(4000, prevalence=[0.8, 0.2], seed=2)
    prior = np.log([0.5, 0.5])
    raw_source, raw_target = 0.3 * source.log_ratio, 0.3 * target.log_ratio  # far from calibrated
    calibration = sw.calibrate_log_ratio(raw_source, source.y, prior, n_resamples=60, random_state=0)
    estimate = sw.estimate_prevalence(calibration(raw_target), model="constant")
    given_f, in_all = (
        widths(estimate.interval(method="bootstrap", n_resamples=60, calibration=c, random_state=0))[1]
        for c in (None, calibration)
    )
    assert in_all > 2 * given_f
    # As if every calibration had been applied by hand.
    by_hand = [sw.estimate_prevalence(c(raw_target)).marginal[1] for c in calibration.resamples()]
    assert in_all == pytest.approx(3.92 * np.hypot(np.std(by_hand), given_f / 3.92), rel=0.35)


@pytest.mark.filterwarnings("ignore:network g did not converge")
def test_what_cannot_be_drawn_is_said():
    rows = site(200)
    estimate = sw.estimate_prevalence(rows.log_ratio, rows.Z)
    with pytest.raises(ValueError, match="whole number from 2 up, got 1"):
        estimate.bootstrap(1)
    plain = sw.calibrate_log_ratio(rows.log_ratio, rows.y, np.log([0.5, 0.5]))
    with pytest.raises(ValueError, match="must carry resamples"):
        estimate.bootstrap(10, calibration=plain)
    with pytest.raises(ValueError, match="2 problems"):
        estimate.interval(level=95, method="jackknife")
    with pytest.raises(ValueError, match="use method='bootstrap'"):
        estimate.interval(calibration=plain)
    with pytest.raises(ValueError, match="level must lie"):
        estimate.bootstrap(10).interval(level=0)
    network = sw.estimate_prevalence(rows.log_ratio, rows.Z, model="network", random_state=0)
    with pytest.raises(ValueError, match="network g is not bootstrapped"):
        network.bootstrap(10)


def test_rows_that_are_not_at_hand_are_not_drawn(monkeypatch):
    monkeypatch.setattr("sitewise.adaptation.streaming.KEPT_BYTES", 0)
    log_ratio = site(200).log_ratio
    streamed = sw.estimate_prevalence([(log_ratio[:120], None), (log_ratio[120:], None)])
    assert not streamed.can_refit
    with pytest.raises(ValueError, match="all rows in memory"):
        streamed.bootstrap(2)
