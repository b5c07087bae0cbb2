import json
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

import sitewise as sw
from sitewise.calibration import Calibration
from sitewise.datasets.simulated import SimulatedFamily
from sitewise.evaluation import evaluate
from sitewise.performance import estimate as estimating
from sitewise.performance import expected_performance
from sitewise.performance.choice import choose_threshold
from sitewise.performance.expected import DrawnRows, group_rows, summarize
from sitewise.performance.labels import ResampledCalibration, calibration_directions, draw_labels
from sitewise.prevalence import SitePrior


@pytest.fixture(scope="module")
def site():
    return SimulatedFamily(signal=2.0).site(800, prevalence=[0.7, 0.3], missing=0.1, seed=1)


@pytest.fixture(scope="module")
def estimate(site):
    return sw.estimate_prevalence(site.log_ratio, site.Z)


@pytest.fixture(scope="module")
def expected(site, estimate):
    return expected_performance(site.log_ratio, estimate, site.Z, random_state=0)


def certain(y, n_classes=2):
    return np.where(np.eye(n_classes)[y] > 0, 0.0, -np.inf)


# Draws of g


@pytest.mark.parametrize("n_positive", [0, 3, 200])
def test_where_f_is_certain_a_constant_is_drawn_from_the_beta_posterior(n_positive):
    y = np.arange(1000) < n_positive
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        estimate = sw.estimate_prevalence(certain(y.astype(int)), model="constant")
    drawn = estimate.draws(4000, random_state=0).marginal[:, 1]
    posterior = stats.beta(n_positive + 1, 1000 - n_positive + 1)
    assert stats.kstest(drawn, posterior.cdf).statistic < 0.03


@pytest.mark.parametrize("model", ["constant", "additive", "auto"])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_draws_are_as_wide_as_intervals(model, n_classes):
    family = SimulatedFamily(n_classes=n_classes, signal=2.5)
    site = family.site(1000, seed=2)
    estimate = sw.estimate_prevalence(site.log_ratio, site.Z, model=model)
    drawn = np.stack([np.exp(log_g) for log_g in estimate.draws(300, random_state=1).log_prevalence(site.Z[:40])])
    np.testing.assert_allclose(drawn.sum(axis=2), 1.0)
    low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
    wanted_low, wanted_high = estimate.interval(site.Z[:40])
    ratio = (high - low) / (wanted_high - wanted_low)
    assert 0.8 < np.median(ratio) < 1.2


def test_near_a_bound_coefficients_are_weighed_by_their_likelihood():
    site = SimulatedFamily(signal=2.0).site(1500, prevalence=[0.997, 0.003], seed=3)
    estimate = sw.estimate_prevalence(site.log_ratio, site.Z, model="additive", strength=10.0)
    high = np.quantile(estimate.draws(300, random_state=1).marginal[:, 1], 0.975)
    assert high == pytest.approx(estimate.interval()[1][1], rel=0.5)  # curvature alone has more than twice of it


def test_a_table_is_drawn_cell_by_cell():
    site = SimulatedFamily(n_continuous=0, levels=(2, 2), signal=2.5).site(1500, seed=3)
    estimate = sw.estimate_prevalence(site.log_ratio, site.Z, model="table")
    drawn = np.stack([np.exp(log_g) for log_g in estimate.draws(500, random_state=1).log_prevalence(site.Z[:40])])
    low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
    wanted_low, wanted_high = estimate.interval(site.Z[:40])
    assert 0.8 < np.median((high - low) / (wanted_high - wanted_low)) < 1.2
    blank = next(estimate.draws(1, random_state=1).log_prevalence(site.Z[:1].assign(group0=None, group1=None)))
    np.testing.assert_allclose(np.exp(blank)[0], estimate.draws(1, random_state=1).marginal[0], rtol=1e-6)


def test_rows_without_z_have_the_mean_of_each_draw(site, estimate):
    nothing = pd.DataFrame({"age0": [np.nan], "group0": [None], "group1": [None]})
    draws = estimate.draws(5, random_state=2)
    rows = np.stack([np.exp(log_g)[0] for log_g in draws.log_prevalence(nothing)])
    np.testing.assert_allclose(rows, draws.marginal, rtol=1e-6)


def test_where_f_says_nothing_anything_is_drawn():
    with pytest.warns(UserWarning, match="are not informative about y"):
        estimate = sw.estimate_prevalence(np.zeros((50, 2)))
    drawn = estimate.draws(2000, random_state=0).marginal[:, 1]
    assert stats.kstest(drawn, "uniform").statistic < 0.04


def test_bad_number_of_draws(estimate):
    with pytest.raises(ValueError, match="n_draws must be a whole number from 1 up, got 0"):
        estimate.draws(0)


# Draws of labels


@pytest.mark.parametrize("n_classes", [2, 3])
def test_labels_are_drawn_with_the_probabilities_trusted(n_classes):
    rng = np.random.default_rng(0)
    log_ratio = rng.normal(size=(5, n_classes))
    log_prevalence = np.log(rng.dirichlet(np.ones(n_classes), 5))
    labels = draw_labels(log_ratio, [log_prevalence] * 20_000, rng)
    share = np.stack([(labels == k).mean(axis=0) for k in range(n_classes)], axis=1)
    np.testing.assert_allclose(share, sw.adjust(log_ratio, log_prevalence), atol=0.015)


def test_known_labels_are_not_drawn():
    known = np.array([1.0, np.nan, 0.0])
    labels = draw_labels(np.zeros((3, 2)), [np.zeros((3, 2))] * 200, np.random.default_rng(0), known=known)
    assert (labels[:, 0] == 1).all()
    assert (labels[:, 2] == 0).all()
    assert 0.3 < labels[:, 1].mean() < 0.7


def test_directions_have_the_spread_of_the_resampled_calibrations():
    # Where g does not answer, log f moves as its calibration does: the directions' variances add up to that.
    rng = np.random.default_rng(3)
    slopes = torch.tensor(1.3 + 0.1 * rng.normal(size=(300, 1))).repeat(1, 2)
    shift = torch.tensor(0.2 * rng.normal(size=300) - (slopes[:, 0].numpy() - 1.3))
    biases = torch.stack([-shift, shift], dim=1)
    calibration = Calibration("vector", slopes.mean(0), biases.mean(0), slopes, biases)
    raw = torch.tensor(rng.normal(size=(7, 2)))
    log_ratio, codes = calibration.apply(raw), torch.zeros(7, 0, dtype=torch.float64)
    part = ResampledCalibration(calibration, lambda at: torch.ones(len(at), dtype=torch.bool))
    flat = torch.zeros(7, 2, dtype=torch.float64)
    directions = calibration_directions(log_ratio, codes, [part], lambda change: lambda at: flat)
    assert len(directions) == 2
    odds = np.stack([d.log_ratio[:, 1] - d.log_ratio[:, 0] for d in directions])
    resampled = torch.stack([other.apply(raw) for other in calibration.resamples()])
    wanted = (resampled[:, :, 1] - resampled[:, :, 0]).var(dim=0)
    np.testing.assert_allclose((odds**2).sum(axis=0), wanted.numpy(), rtol=1e-6)


def test_g_answers_a_moved_calibration():
    # f certain of more positives than before: g must rise with it.
    site = SimulatedFamily(signal=2.0).site(1000, seed=4)
    estimate = sw.estimate_prevalence(site.log_ratio, model="constant")
    moved = estimate.refit(lambda log_ratio, codes: log_ratio + torch.tensor([0.0, 0.5]))
    again = sw.estimate_prevalence(site.log_ratio + np.array([0.0, 0.5]), model="constant")
    np.testing.assert_allclose(moved.log_prob(torch.zeros(1, 0)).exp()[0].numpy(), again.marginal, atol=1e-6)


# What is expected


def test_intervals_hold_estimates_and_wider_levels_hold_narrower(site, estimate, expected):
    narrow = expected_performance(site.log_ratio, estimate, site.Z, random_state=0, level=0.5)
    for name, (value, low, high) in expected.items():
        assert low <= value <= high, name
        assert low <= narrow[name].low <= narrow[name].high <= high, name


def test_with_every_label_known_it_is_the_truth(site, estimate):
    performance = expected_performance(site.log_ratio, estimate, site.Z, y=site.y, random_state=0)
    wanted = evaluate(site.y, sw.adjust(site.log_ratio, estimate.log_prevalence(site.Z)))
    for name, metric in wanted.items():
        np.testing.assert_allclose(performance[name], [metric.value] * 3, err_msg=name)


def test_expected_matches_what_labels_show_over_many_sites():
    family = SimulatedFamily(signal=2.0, n_continuous=0, levels=(2,))
    errors, held = [], []
    for seed in range(15):
        site = family.site(500, prevalence=[0.75, 0.25], seed=seed)
        estimate = sw.estimate_prevalence(site.log_ratio, model="constant")
        performance = expected_performance(site.log_ratio, estimate, random_state=seed, n_draws=200)["f1"]
        seen = evaluate(site.y, sw.adjust(site.log_ratio, np.log(estimate.marginal)))["positive_f1"].value
        errors.append(performance.estimate - seen)
        held.append(performance.low <= seen <= performance.high)
    assert np.abs(errors).mean() < 0.04
    assert np.mean(held) >= 0.8


def test_a_calibration_in_doubt_widens_intervals():
    family = SimulatedFamily(signal=2.0)
    source, site = family.site(150, seed=5), family.site(1500, seed=6)
    calibration = sw.calibrate_log_ratio(
        source.log_ratio, source.y, source.log_prevalence, n_resamples=50, random_state=0
    )
    log_ratio = calibration(site.log_ratio)
    estimate = sw.estimate_prevalence(log_ratio, site.Z, model="constant")
    given_f = expected_performance(log_ratio, estimate, site.Z, random_state=0)["brier"]
    whole = expected_performance(log_ratio, estimate, site.Z, calibration=calibration, random_state=0)["brier"]
    assert whole.high - whole.low > 1.3 * (given_f.high - given_f.low)
    assert whole.estimate == pytest.approx(given_f.estimate)


def test_groups_add_up_to_the_whole(expected):
    for column in ("age0", "group1"):
        groups = expected.by(column)
        assert "missing" in groups
        np.testing.assert_allclose(sum(g.confusion.estimate for g in groups.values()), expected.confusion.estimate)
        assert sum(g.n_rows for g in groups.values()) == expected.n_rows
    assert list(expected.by("group1"))[:3] == ["level 0", "level 1", "level 2"]
    assert list(expected.by_confounder) == ["age0", "group0", "group1"]
    by_hand = expected.by(np.arange(expected.n_rows) % 2)
    assert list(by_hand) == [0, 1]


def test_numbers_are_cut_at_quartiles():
    groups = group_rows(pd.Series([5.0, 1, 2, np.nan, 3, 4, 6, 7, 80]))
    assert list(groups) == ["1 to 2.75", "above 2.75 to 4.5", "above 4.5 to 6.25", "above 6.25 to 80", "missing"]
    np.testing.assert_array_equal(groups["1 to 2.75"], [1, 2])
    assert list(group_rows(pd.Series([3, 1, 3, 2]))) == [1, 2, 3]
    assert list(group_rows(pd.Series([True, False]))) == [False, True]


def test_it_reads_as_a_mapping_and_as_text(expected):
    assert set(expected) == set(expected.to_dict()["metrics"])
    assert expected["f1"] == expected["positive_f1"]
    assert "positive_f1" in repr(expected)
    json.dumps(expected.to_dict(), allow_nan=False)
    with pytest.raises(KeyError, match="did you mean 'accuracy'"):
        expected["acuracy"]
    with pytest.raises(ValueError, match="did you mean 'age0'"):
        expected.by("age1")
    with pytest.raises(ValueError, match="one value for each of 800 row"):
        expected.by([1, 2])


def test_many_classes():
    site = SimulatedFamily(n_classes=3, signal=2.0).site(400, seed=7)
    estimate = sw.estimate_prevalence(site.log_ratio, site.Z)
    performance = expected_performance(site.log_ratio, estimate, site.Z, classes=["a", "b", "c"], random_state=0)
    assert "positive_f1" not in performance
    assert performance["f1"] == performance["macro_f1"]
    assert performance.confusion.estimate.sum() == pytest.approx(400)
    with pytest.raises(ValueError, match="a threshold needs two classes, there are 3"):
        expected_performance(site.log_ratio, estimate, site.Z, threshold=0.3)


def test_a_large_site_is_represented_by_some_rows(site, estimate, monkeypatch):
    monkeypatch.setattr(estimating, "MOST_ROWS", 200)
    performance = expected_performance(
        site.log_ratio, estimate, site.Z, y=np.where(site.y == 1, 1, np.nan), random_state=0
    )
    assert performance.n_rows == 200
    assert performance.rows.labels.shape[1] == len(performance.rows.z) == 200


def test_one_row():
    estimate = sw.estimate_prevalence(np.array([[0.0, 1.0], [1.0, 0.0]] * 15), model="constant")
    performance = expected_performance([[0.0, 1.0]], estimate, random_state=0)
    assert performance["auroc"] == (None, None, None)  # one row never has two classes
    assert performance["accuracy"].low == 0.0


def test_all_mistakes_at_once(site, estimate):
    with pytest.raises(ValueError, match="2 problems") as error:
        expected_performance(
            site.log_ratio,
            estimate,
            site.Z,
            classes=["only"],
            calibration=sw.calibrate_log_ratio(site.log_ratio, site.y, site.log_prevalence),
        )
    assert "calibration must carry resamples" in str(error.value)
    with pytest.raises(ValueError, match="level must lie between 0 and 1"):
        expected_performance(site.log_ratio, estimate, site.Z, level=95)
    with pytest.raises(ValueError, match=r"threshold must lie in \[0, 1\], got 3"):
        expected_performance(site.log_ratio, estimate, site.Z, threshold=3)


# Thresholds


def test_a_threshold_is_the_best_of_all_and_costs_are_said(expected):
    choice = choose_threshold(expected.rows, expected.classes)
    others = [summarize(expected.rows, expected.classes, t)["f1"].estimate for t in np.linspace(0.05, 0.95, 10)]
    assert choice.performance["f1"].estimate >= max(others) - 1e-12
    assert choice.costs["called_positive"].estimate == pytest.approx(choice.n_called / expected.n_rows)
    assert "highest expected F1" in str(choice)
    json.dumps(choice.to_dict(), allow_nan=False)


@pytest.mark.parametrize("wanted", [0.5, 0.9, 1.0])
def test_a_wanted_sensitivity_is_met(expected, wanted):
    choice = choose_threshold(expected.rows, expected.classes, sensitivity=wanted)
    assert choice.performance["recall"].estimate >= wanted - 1e-9
    stricter = summarize(expected.rows, expected.classes, min(1.0, choice.threshold + 0.02))
    assert wanted == 1.0 or stricter["recall"].estimate < choice.performance["recall"].estimate


def test_impossible_sensitivities_are_refused(expected):
    with pytest.raises(ValueError, match="sensitivity must lie above 0 and at most at 1, got 95"):
        choose_threshold(expected.rows, expected.classes, sensitivity=95)


def test_weights_count_rows_twice():
    rng = np.random.default_rng(8)
    p = rng.dirichlet([1, 1], 20)
    labels = (rng.random((50, 20)) < p[:, 1]).astype(np.int8)
    rows = DrawnRows(p, p, labels, np.full(20, 2.0), pd.DataFrame(index=range(20)))
    twice = DrawnRows(
        np.tile(p, (2, 1)), np.tile(p, (2, 1)), np.tile(labels, 2), np.ones(40), pd.DataFrame(index=range(40))
    )
    for name, value in summarize(rows, (0, 1)).items():
        np.testing.assert_allclose(value, summarize(twice, (0, 1))[name], err_msg=name)


# Values behind codes


def test_decoding_gives_back_what_was_encoded(site):
    schema = sw.Confounders.learn(site.Z)
    codes = schema.encode(site.Z)[0]
    decoded = schema.decode(codes)
    np.testing.assert_allclose(decoded["age0"], site.Z["age0"])
    pd.testing.assert_series_equal(decoded["group1"], site.Z["group1"], check_dtype=False)
    torch.testing.assert_close(schema.encode(decoded)[0], codes)


@pytest.mark.parametrize("move", [-0.1, 0.1])
def test_a_posterior_moves_with_f_about_as_a_new_estimate_does(move):
    family = SimulatedFamily(signal=2.0)
    source = sw.estimate_prevalence(family.site(2000, seed=1).log_ratio, family.site(2000, seed=1).Z, model="additive")
    prior = SitePrior(source.prevalence)
    site = family.site(1500, prevalence=[0.7, 0.3], seed=2)
    shift = np.array([0.0, move])

    def estimate(log_ratio):
        return sw.estimate_prevalence(log_ratio, site.Z, prior=prior, confounders=source.confounders)

    def odds(g, at):
        share = np.exp(np.asarray(g.log_prob(at))).mean(axis=0)
        return np.log(share[1] / share[0])

    before, after = estimate(site.log_ratio), estimate(site.log_ratio + shift)
    codes = source.confounders.encode(site.Z)[0]
    refitted = before.refit(lambda log_ratio, codes: log_ratio + torch.tensor(shift))
    wanted = odds(after.prevalence, codes) - odds(before.prevalence, codes)
    assert odds(refitted, codes) - odds(before.prevalence, codes) == pytest.approx(wanted, rel=0.5)
