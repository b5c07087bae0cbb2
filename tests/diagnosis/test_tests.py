"""The two tests of the assumption: laws, false alarms, power."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import kstest
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.metrics import roc_auc_score

from sitewise.calibration.fit import centre
from sitewise.diagnosis.diagnose import diagnose_site, matched, run_tests
from sitewise.diagnosis.representation import compare_features
from sitewise.diagnosis.stability import compare_log_ratios, make_strata


def stability(held, site, estimate, log_ratio=None, shown=None):
    both = matched(held, site, estimate)
    strata = make_strata(held.codes, site.codes, estimate.confounders)
    own = held.log_ratio if shown is None else shown
    here = site.log_ratio if log_ratio is None else log_ratio
    return compare_log_ratios(both, centre(own), centre(here), *strata)


def test_p_values_are_spread_evenly_where_the_assumption_holds(draw_samples):
    results = [run_tests(*draw_samples(seed, n=400, m=1000)) for seed in range(30)]
    for p_values in zip(*((a.p_value, b.p_value) for a, b in results), strict=True):
        assert kstest(p_values, "uniform").pvalue > 0.005
        assert np.mean(np.array(p_values) < 0.05) <= 0.15


def test_a_shifted_feature_is_seen_by_both(draw_samples):
    results = [run_tests(*draw_samples(seed, n=1500, m=1500, move=1.0, signal=3.0)) for seed in range(4)]
    assert all(a.p_value < 0.01 and b.p_value < 1e-6 and b.auc > 0.6 for a, b in results)


def test_an_increasing_change_of_scale_changes_nothing(draw_samples):
    held, site, estimate = draw_samples(1)
    before = stability(held, site, estimate)
    after = stability(held, site, estimate, 3 * site.log_ratio, 3 * held.log_ratio)
    assert after.p_value == pytest.approx(before.p_value, rel=1e-9)
    assert after.gap == pytest.approx(before.gap, rel=1e-9)


def test_an_error_of_g_is_no_shift(draw_samples):
    """g tilted by half a unit of log-odds, far beyond its error: what a change of g explains is left out."""
    held, site, estimate = draw_samples(2, n=1500, m=1500, signal=3.0)
    wrong = replace(estimate, prevalence=Tilted(estimate.prevalence, torch.tensor([0.25, -0.25]).double()))
    assert stability(held, site, wrong).p_value > 0.05
    assert run_tests(held, site, wrong)[1].p_value > 0.01


class Tilted:
    """Another g."""

    name = "tilted"

    def __init__(self, prevalence, tilt):
        self.prevalence, self.tilt = prevalence, tilt

    def log_prob(self, codes):
        return torch.log_softmax(self.prevalence.log_prob(codes) + self.tilt, dim=1)


def test_the_order_of_classes_does_not_matter(draw_samples):
    held, site, estimate = draw_samples(3, n_classes=3)
    order = torch.tensor([2, 0, 1])
    position = torch.argsort(order)
    calibrated, here = held.log_ratio[:, order], site.log_ratio[:, order]
    flipped = replace(held, raw_log_ratio=held.raw_log_ratio[:, order], y=position[held.y])
    turned = replace(estimate, prevalence=Permuted(estimate.prevalence, order))
    before, after = stability(held, site, estimate), stability(flipped, site, turned, here, calibrated)
    assert after.p_value == pytest.approx(before.p_value, rel=1e-6)


class Permuted:
    """g with its classes in another order."""

    name = "permuted"

    def __init__(self, prevalence, order):
        self.prevalence, self.order = prevalence, order

    def log_prob(self, codes):
        return self.prevalence.log_prob(codes)[:, self.order]


def test_the_auc_is_that_of_the_best_line(draw_samples):
    """Against scikit-learn's discriminant of what class does not move: one feature follows y, another is shifted."""
    rng = np.random.default_rng(0)
    held, site, estimate = draw_samples(6, n=1500, m=1500)
    features = [torch.tensor(rng.normal(size=(1500, 4))) for _ in range(2)]
    here = rng.random(1500) < estimate.prevalence.log_prob(site.codes).exp()[:, 1].numpy()
    features[0][:, 0] += 3 * held.y
    features[1][:, 0] += 3 * torch.tensor(here)
    features[1][:, 2] += 0.8
    comparison = compare_features(matched(held, site, estimate), *features)
    both, which = np.concatenate(features)[:, 1:], np.repeat([0, 1], 1500)
    scores = LinearDiscriminantAnalysis().fit(both, which).decision_function(both)
    assert comparison.auc == pytest.approx(roc_auc_score(which, scores), abs=0.02)


def test_levels_that_only_one_sample_has_are_left_out(draw_samples):
    held, site, estimate = draw_samples(4)
    few = held.codes[:, 1] == 0
    held = replace(held.take(few.nonzero().flatten()), features=None)
    site = replace(site, features=None)
    tests, _ = run_tests(held, site, estimate)
    shared, _ = run_tests(held, site.take((site.codes[:, 1] == 0).nonzero().flatten()), estimate)
    assert tests.p_value == pytest.approx(shared.p_value, rel=1e-9)
    assert tests.gap == pytest.approx(shared.gap, rel=1e-9)


def test_certainties_are_compared_as_what_is_almost_certain(draw_samples):
    held, site, estimate = draw_samples(5)
    p_values = []
    for least in (-torch.inf, -60.0):
        log_ratio = site.log_ratio.clone()
        log_ratio[:5, 0] = least
        p_values.append(diagnose_site(held, replace(site, log_ratio=log_ratio), estimate)["stability"].p_value)
    assert p_values[0] == pytest.approx(p_values[1], rel=1e-9)
