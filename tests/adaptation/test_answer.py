"""An estimate as its caller sees it: g at any z, predictions, intervals, what is printed, and what is refused."""

import pickle

import numpy as np
import pandas as pd
import pytest
import torch

import sitewise as sw

FAMILY = sw.SimulatedFamily(signal=2.5, levels=(2,), n_continuous=1, seed=1)
SITE = FAMILY.site(300, prevalence=[0.7, 0.3], missing=0.1, seed=2)


@pytest.fixture(scope="module", params=["constant", "additive"])
def estimate(request):
    Z = SITE.Z if request.param == "additive" else None
    return sw.estimate_prevalence(SITE.log_ratio, Z, model=request.param, strength=1.0)


def unknown(n_rows):
    Z = SITE.Z.iloc[:n_rows].astype(object)
    Z.iloc[:] = None
    return Z


def test_predictions_are_f_times_g(estimate):
    expected = sw.adjust(SITE.log_ratio, estimate.log_prevalence(SITE.Z))
    np.testing.assert_allclose(estimate.predict_proba(SITE.log_ratio, SITE.Z), expected, atol=1e-12)


def test_a_row_without_z_is_predicted_by_the_marginal(estimate):
    expected = sw.adjust(SITE.log_ratio, np.log(estimate.marginal))
    np.testing.assert_allclose(estimate.predict_proba(SITE.log_ratio), expected, atol=1e-9)
    np.testing.assert_allclose(estimate.predict_proba(SITE.log_ratio, unknown(300)), expected, atol=1e-9)
    np.testing.assert_allclose(np.exp(estimate.log_prevalence(unknown(1)))[0], estimate.marginal, atol=1e-12)


def test_intervals_hold_the_estimate_and_grow_with_their_level(estimate):
    for Z, centre in ((None, estimate.marginal), (SITE.Z, np.exp(estimate.log_prevalence(SITE.Z)))):
        (low, high), (lower, higher) = (estimate.interval(Z, level) for level in (0.5, 0.95))
        assert (lower < low).all()
        assert (low <= centre).all()
        assert (centre <= high).all()
        assert (high < higher).all()
        np.testing.assert_allclose(lower + higher[..., ::-1], 1, atol=1e-6)  # of two classes


def test_more_rows_narrow_the_interval_by_their_root():
    """Four times the rows, so that it is half as wide, up to how the sample turned out."""
    widths = []
    for n_rows in (400, 1600):
        site = FAMILY.site(n_rows, prevalence=[0.7, 0.3], seed=5)
        low, high = sw.estimate_prevalence(site.log_ratio).interval()
        widths.append(float((high - low)[1]))
    assert widths[1] / widths[0] == pytest.approx(0.5, rel=0.15)


def test_a_pickled_estimate_answers_the_same(estimate):
    again = pickle.loads(pickle.dumps(estimate))
    np.testing.assert_array_equal(again.marginal, estimate.marginal)
    np.testing.assert_array_equal(again.interval(SITE.Z), estimate.interval(SITE.Z))
    np.testing.assert_array_equal(again.draws(5, random_state=0).marginal, estimate.draws(5, random_state=0).marginal)


def test_it_prints_every_class_with_its_interval():
    frame = pd.DataFrame(SITE.log_ratio, columns=["<no>", "yes"])
    estimate = sw.estimate_prevalence(frame)
    low, high = estimate.interval()
    line = f"P(yes) = {estimate.marginal['yes']:.4f}, 95% interval {low['yes']:.4f} to {high['yes']:.4f}"
    assert line in repr(estimate)
    assert "&lt;no&gt;" in estimate._repr_html_()


def test_a_class_that_no_row_can_be_of_is_at_its_bound():
    log_ratio = np.c_[SITE.log_ratio, np.full(300, -50.0)]
    estimate = sw.estimate_prevalence(log_ratio)
    assert estimate.at_bound.tolist() == [False, False, True]
    assert 0 < estimate.interval()[1][2] < 0.05  # what the rows allow


def test_refitting_follows_f(estimate):
    assert estimate.can_refit
    codes = torch.zeros(300, 0, dtype=torch.float64)
    if estimate.confounders is not None:
        codes, _ = estimate.confounders.encode(SITE.Z)
    own = estimate.prevalence.log_prob(codes)
    same = estimate.refit(lambda log_ratio, codes: log_ratio).log_prob(codes)
    weaker = estimate.refit(lambda log_ratio, codes: 0.5 * log_ratio).log_prob(codes)
    torch.testing.assert_close(same, own, rtol=0, atol=1e-5)
    assert float((weaker - own).abs().max()) > 0.01


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda e: e.log_prevalence(None), "expected Z with one row for each row of the result, got None"),
        (lambda e: e.interval(level=1.0), "level must lie between 0 and 1, got 1.0"),
        (lambda e: e.interval(method="jackknife"), "method must be one of auto, curvature, bootstrap"),
        (lambda e: e.bootstrap(1), "n_resamples must be a whole number from 2 up, got 1"),
        (lambda e: e.draws(0), "n_draws must be a whole number from 1 up, got 0"),
        (lambda e: e.predict_proba([[0.0, np.nan]]), "NaN"),
    ],
)
def test_what_cannot_be_answered_is_refused(estimate, call, words):
    with pytest.raises(ValueError, match=words):
        call(estimate)
