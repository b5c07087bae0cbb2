"""Clinical units: closed forms, an independent logistic regression, and laws."""

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import precision_score, roc_curve

from sitewise.evaluation import Ranking
from sitewise.performance import clinical_performance, decision_curve
from sitewise.performance.choice import choose_threshold, net_benefit_threshold
from sitewise.performance.clinical import (
    calibration_in_the_large,
    calibration_line,
    log_odds,
    net_benefit,
    observed_to_expected,
    sensitivity_at,
    treat_all,
)
from sitewise.performance.expected import DrawnRows
from sitewise.performance.others import judged_instead


@pytest.fixture(scope="module")
def scored():
    rng = np.random.default_rng(0)
    x = rng.normal(size=3000)
    y = (rng.random(3000) < expit(0.4 + 0.7 * x)).astype(float)
    return expit(x), y, rng.integers(1, 4, 3000).astype(float)


def drawn(score, belief, n_draws=300, seed=0):
    rng = np.random.default_rng(seed)
    labels = (rng.random((n_draws, len(belief))) < belief).astype(np.int8)
    pairs = [np.stack([1 - p, p], axis=1) for p in (score, belief)]
    return DrawnRows(*pairs, labels, np.ones(len(belief)), pd.DataFrame(index=range(len(belief))))


def test_net_benefit_is_its_formula(scored):
    score, y, weight = scored
    at = np.array([0.1, 0.3, 0.7])
    benefit = net_benefit(y[None], score[:, None] >= at, weight, at)[0]
    for t, value in zip(at, benefit, strict=True):
        called = score >= t
        hits, wrong = (weight * y)[called].sum(), (weight * (1 - y))[called].sum()
        assert value == pytest.approx(hits / weight.sum() - wrong / weight.sum() * t / (1 - t))


def test_treating_all_is_its_formula_and_calling_everybody(scored):
    _, y, weight = scored
    at = np.array([0.05, 0.5, 0.9])
    share = weight @ y / weight.sum()
    benefit = treat_all(y[None], weight, at)[0]
    np.testing.assert_allclose(benefit, share - (1 - share) * at / (1 - at))
    np.testing.assert_allclose(benefit, net_benefit(y[None], np.ones((len(y), 3)), weight, at)[0])


def test_calibration_line_is_a_logistic_regression(scored):
    score, y, weight = scored
    peer = LogisticRegression(C=np.inf, tol=1e-10).fit(log_odds(score)[:, None], y, sample_weight=weight)
    intercept, slope = calibration_line(y[None], score, weight)[0]
    assert intercept == pytest.approx(peer.intercept_[0], abs=1e-4)
    assert slope == pytest.approx(peer.coef_[0, 0], abs=1e-4)


def test_calibration_in_the_large_makes_the_mean_right(scored):
    score, y, weight = scored
    shift = calibration_in_the_large(y[None], score, weight)[0]
    assert weight @ expit(log_odds(score) + shift) == pytest.approx(weight @ y)
    assert observed_to_expected(y[None], score, weight)[0] == pytest.approx(weight @ y / (weight @ score))


def test_a_score_that_is_trusted_is_calibrated(scored):
    score, _, weight = scored
    np.testing.assert_allclose(calibration_line(score[None], score, weight)[0], [0.0, 1.0], atol=1e-8)
    assert calibration_in_the_large(score[None], score, weight)[0] == pytest.approx(0.0, abs=1e-8)


def test_without_events_a_line_is_undefined(scored):
    score, y, weight = scored
    assert np.isnan(calibration_line(0 * y[None], score, weight)).all()
    assert np.isnan(calibration_in_the_large(0 * y[None] + 1, score, weight)).all()


@pytest.mark.parametrize("ties", [False, True])
def test_sensitivity_is_on_the_roc_curve(scored, ties):
    score, y, weight = scored
    score = np.round(score, 1) if ties else score
    wrong, right, _ = roc_curve(y, score, sample_weight=weight, drop_intermediate=False)
    sensitivity = sensitivity_at(y[None], Ranking.of(score), weight, 0.8)[0]
    assert sensitivity == pytest.approx(right[wrong <= 0.2 + 1e-12].max())


def test_expected_units_of_certain_labels_are_those_of_the_labels(scored):
    score, y, _ = scored
    clinical = clinical_performance(drawn(score, y), threshold=0.4)
    for value in clinical.values():
        assert value.low == pytest.approx(value.estimate) == pytest.approx(value.high)
    assert clinical["number_needed_to_evaluate"].estimate == pytest.approx(1 / precision_score(y, score >= 0.4))


def test_intervals_hold_drawn_truths():
    rng = np.random.default_rng(3)
    belief = rng.beta(1, 3, 400)
    score = np.clip(belief * 1.3, 0, 0.99)
    rows = drawn(score, belief)
    held = []
    for seed in range(60):
        y = (np.random.default_rng(100 + seed).random(400) < belief).astype(float)
        truth = clinical_performance(drawn(score, y, n_draws=2))
        expected = clinical_performance(rows)
        held.append([e.low <= truth[k].estimate <= e.high for k, e in expected.items()])
    assert (np.mean(held, axis=0) > 0.85).all()


def test_decisions_alone_have_no_calibration(scored):
    score, y, _ = scored
    rows = judged_instead(drawn(score, y), (0, 1), y_pred=(score > 0.6).astype(int))
    clinical = clinical_performance(rows, threshold=0.2)
    assert clinical["net_benefit"].estimate is not None
    assert clinical["oe_ratio"].estimate is None


def test_decision_curve_is_below_none_and_all_nowhere_for_beliefs(scored):
    score, _, _ = scored
    curve = decision_curve(drawn(score, score, n_draws=50))
    assert (curve["net_benefit"] >= curve[["treat_all", "treat_none"]].max(axis=1) - 1e-12).all()
    assert (curve["net_benefit_low"] <= curve["net_benefit"]).all()
    assert (curve["treat_none"] == 0).all()


def test_the_best_threshold_by_net_benefit_is_that_of_its_odds(scored):
    score, _, _ = scored
    assert net_benefit_threshold(score, score, np.ones_like(score), 0.25) == pytest.approx(0.2)


def test_a_miscalibrated_score_is_cut_where_net_benefit_is_highest():
    belief = np.linspace(0.01, 0.99, 99)
    score = belief**3  # the same order
    weight = np.ones(99)
    threshold = net_benefit_threshold(score, belief, weight, 1.0)
    gains = [((2 * belief - 1) * (score >= at)).sum() for at in score]
    assert ((2 * belief - 1) * (score >= threshold)).sum() == pytest.approx(max(gains))


def test_choosing_by_harm_says_so_and_bad_values_are_refused(scored):
    score, _, _ = scored
    rows = drawn(score, score, n_draws=20)
    choice = choose_threshold(rows, (0, 1), harm_to_benefit=0.25)
    assert choice.threshold == pytest.approx(0.2)
    assert "net benefit" in choice.rule
    with pytest.raises(ValueError, match="harm_to_benefit must be a number above 0, got 0"):
        choose_threshold(rows, (0, 1), harm_to_benefit=0)
    with pytest.raises(ValueError, match="not both"):
        choose_threshold(rows, (0, 1), harm_to_benefit=1, sensitivity=0.9)
    with pytest.raises(ValueError, match="specificity must lie between 0 and 1, got 1"):
        clinical_performance(rows, specificity=1)
    with pytest.raises(ValueError, match="thresholds must be numbers between 0 and 1"):
        decision_curve(rows, [0.0, 0.5])
