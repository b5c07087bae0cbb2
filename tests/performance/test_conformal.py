"""Prediction sets: the rank law, the weights' law, and coverage at simulated sites."""

import numpy as np
import pandas as pd
import pytest

import sitewise as sw
from sitewise.datasets.simulated import SimulatedFamily
from sitewise.performance.conformal import score_thresholds


def scored(n, seed, n_classes=2):
    rng = np.random.default_rng(seed)
    probability = rng.dirichlet(np.ones(n_classes), n)
    y = (rng.random((n, 1)) > np.cumsum(probability, axis=1)[:, :-1]).sum(axis=1)
    return probability, y


def test_even_weights_are_the_usual_rank():
    probability, y = scored(99, seed=0)
    scores = np.sort(1 - probability[np.arange(99), y])
    thresholds, worth = score_thresholds(probability, y, np.ones(99), 0.9)
    assert thresholds[0] == thresholds[1] == scores[int(np.ceil(0.9 * 100)) - 1]
    assert worth == pytest.approx(99)


def test_a_weight_of_two_is_two_rows_where_the_rows_worth_is_large():
    probability, y = scored(2000, seed=1)
    weight = np.where(np.arange(2000) < 1000, 2.0, 1.0)
    twice = np.concatenate([np.arange(1000), np.arange(2000)])
    once, _ = score_thresholds(probability, y, weight, 0.8)
    written, _ = score_thresholds(probability[twice], y[twice], np.ones(3000), 0.8)
    assert once[0] == pytest.approx(written[0], abs=0.01)


def test_too_few_rows_exclude_nothing():
    probability, y = scored(5, seed=2)
    assert np.isinf(score_thresholds(probability, y, np.ones(5), 0.95)[0]).all()
    alone = score_thresholds(probability, np.zeros(5, dtype=int), np.ones(5), 0.5, by_class=True)[0]
    assert np.isfinite(alone[0])
    assert np.isinf(alone[1])


@pytest.mark.parametrize("by_class", [False, True])
def test_coverage_of_rows_like_the_labeled_ones(by_class):
    held = []
    for seed in range(40):
        probability, y = scored(600, seed)
        thresholds, _ = score_thresholds(probability[:300], y[:300], np.ones(300), 0.8, by_class=by_class)
        member = 1 - probability[300:] <= thresholds
        held.append(member[np.arange(300), y[300:]].mean())
    assert np.mean(held) == pytest.approx(0.8, abs=0.02)


@pytest.fixture(scope="module")
def model():
    family = SimulatedFamily(signal=1.5, levels=(2,))
    sites = [
        family.site(500, prevalence=[1 - p, p], dependence=d, seed=i) for i, (p, d) in enumerate([(0.3, 1), (0.6, 0)])
    ]
    Z = pd.concat([s.Z for s in sites], ignore_index=True)
    proba = np.concatenate([sw.adjust(s.log_ratio, np.log([0.6, 0.4])) for s in sites])
    y, domain = np.concatenate([s.y for s in sites]), np.repeat([0, 1], 500)
    fitted = sw.PrevalenceAdjuster(rehearsal=None).fit(proba, y, sample_domain=domain, sample_confounder=Z)
    return family, fitted


def test_sets_cover_at_a_site_with_another_prevalence(model):
    family, fitted = model
    shares = []
    for seed in range(6):
        site = family.site(600, prevalence=[0.9, 0.1], dependence=-1.0, z_shift=0.5, seed=100 + seed)
        proba = sw.adjust(site.log_ratio, np.log([0.6, 0.4]))
        sets = fitted.adapt(proba, site.Z).predict_set(proba, site.Z, coverage=0.9)
        shares.append(sets.member[np.arange(600), site.y].mean())
    assert np.mean(shares) == pytest.approx(0.9, abs=0.035)


def test_more_coverage_is_never_smaller_and_labels_are_the_members(model):
    family, fitted = model
    site = family.site(200, prevalence=[0.7, 0.3], missing=0.2, seed=7)
    proba = sw.adjust(site.log_ratio, np.log([0.6, 0.4]))
    here = fitted.adapt(proba, site.Z)
    less, more = (here.predict_set(proba, site.Z, coverage=c) for c in (0.7, 0.95))
    assert (less.member <= more.member).all()
    assert [len(labels) for labels in more.labels] == more.size.tolist()
    assert len(more) == 200
    assert 0 < more.effective_rows <= 1000


@pytest.mark.parametrize("coverage", [0, 1, -0.1, 1.5])
def test_coverage_without_meaning_is_refused(model, coverage):
    family, fitted = model
    site = family.site(50, seed=8)
    proba = sw.adjust(site.log_ratio, np.log([0.6, 0.4]))
    with pytest.raises(ValueError, match="coverage must lie between 0 and 1"):
        fitted.adapt(proba, site.Z).predict_set(proba, site.Z, coverage=coverage)
