"""Evaluation by labels: scikit-learn's numbers, cross-fitted recalibration, intervals by patient."""

import json

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit
from sklearn import metrics as peers

import sitewise as sw
from sitewise.datasets.simulated import SimulatedFamily
from sitewise.performance.evaluated import resampled_weights
from sitewise.performance.recalibration import recalibrate
from sitewise.report.page.evaluation import render_evaluation


@pytest.fixture(scope="module")
def family():
    return SimulatedFamily(signal=2.0, levels=(2,))


def outputs(site):
    return sw.adjust(site.log_ratio, np.log([0.6, 0.4]))


@pytest.fixture(scope="module")
def site(family):
    return family.site(400, prevalence=[0.8, 0.2], seed=9)


@pytest.fixture(scope="module")
def here(family, site):
    sites = [family.site(250, prevalence=[1 - p, p], name=str(p), seed=i) for i, p in enumerate((0.3, 0.5))]
    Z = pd.concat([s.Z for s in sites], ignore_index=True)
    y, domain = np.concatenate([s.y for s in sites]), np.repeat([0, 1], 250)
    model = sw.PrevalenceAdjuster(rehearsal=None)
    model.fit(np.concatenate([outputs(s) for s in sites]), y, sample_domain=domain, sample_confounder=Z)
    return model.adapt(outputs(site), site.Z)


@pytest.fixture(scope="module")
def evaluation(here, site):
    return here.evaluate(outputs(site), site.y, site.Z, n_resamples=30)


def test_all_labels_give_the_metrics_of_scikit_learn(here, site, evaluation):
    probability = here.predict_proba(outputs(site), site.Z)
    called = here.predict(outputs(site), site.Z)
    values = evaluation.table["value"].xs("adapted", level="model")
    assert values["accuracy"] == pytest.approx(peers.accuracy_score(site.y, called))
    assert values["positive_f1"] == pytest.approx(peers.f1_score(site.y, called))
    assert values["auroc"] == pytest.approx(peers.roc_auc_score(site.y, probability[:, 1]))
    assert values["auprc"] == pytest.approx(peers.average_precision_score(site.y, probability[:, 1]))
    assert values["brier"] == pytest.approx(peers.brier_score_loss(site.y, probability[:, 1]))
    assert values["nll"] == pytest.approx(peers.log_loss(site.y, probability))
    trained = here.model.predict_proba(outputs(site), sample_confounder=site.Z)
    as_trained = evaluation.table["value"].xs("as trained", level="model")
    assert as_trained["brier"] == pytest.approx(peers.brier_score_loss(site.y, trained[:, 1]))


def test_what_was_expected_did_not_see_the_labels(here, site, evaluation):
    other = here.evaluate(outputs(site), 1 - site.y, site.Z, n_resamples=2)
    assert other.expected.to_dict() == evaluation.expected.to_dict()
    assert evaluation.expected["accuracy"] == here.expected_performance()["accuracy"]
    assert evaluation.held["held"].sum() > other.held["held"].sum()


def test_rows_without_labels_are_left_out(here, site):
    few = np.where(np.arange(400) < 100, site.y, np.nan)
    metrics = here.evaluate(outputs(site), few, site.Z, n_resamples=5)
    alone = here.evaluate(outputs(site)[:100], site.y[:100], site.Z[:100], n_resamples=5)
    pd.testing.assert_frame_equal(metrics.table, alone.table)
    assert metrics.n_rows == 100


def test_groups_widen_intervals(here, site, evaluation):
    # Rows written four times, as one group, say no more than rows written once.
    four = np.repeat(np.arange(400), 4)
    metrics = here.evaluate(
        outputs(site)[four], site.y[four], site.Z.iloc[four].reset_index(drop=True), groups=four, n_resamples=30
    )
    own, once = metrics.table.loc[("brier", "adapted")], evaluation.table.loc[("brier", "adapted")]
    assert own["value"] == pytest.approx(once["value"])
    assert own["high"] - own["low"] == pytest.approx(once["high"] - once["low"], rel=1e-6)
    assert metrics.n_groups == 400


def test_bad_input_is_refused(here, site):
    with pytest.raises(ValueError, match=r"y must have one entry a row \(400\), got 3"):
        here.evaluate(outputs(site), [0, 1, 0], site.Z)
    with pytest.raises(ValueError, match="at least two rows with labels are needed, got 0"):
        here.evaluate(outputs(site), np.full(400, np.nan), site.Z)
    with pytest.raises(ValueError, match="y must hold the classes"):
        here.evaluate(outputs(site), np.full(400, 7), site.Z)


def test_the_page_and_its_numbers_are_plain(evaluation):
    content = json.loads(json.dumps(evaluation.to_dict(), allow_nan=False))
    page = render_evaluation(content, "West <b>")
    assert "West &lt;b&gt;" in page
    assert "Decision curve" in page
    assert page.count("<svg") >= 5


def test_recalibration_finds_a_shift_and_a_slope():
    rng = np.random.default_rng(0)
    logit = rng.normal(size=20_000)
    y = (rng.random(20_000) < expit(1 + 0.5 * logit)).astype(int)
    plain = np.stack([1 - expit(logit), expit(logit)], axis=1)
    level, both = (recalibrate(plain, y, how)[:, 1] for how in ("intercept", "slope"))
    assert level.mean() == pytest.approx(y.mean(), abs=0.01)
    np.testing.assert_allclose(both, expit(1 + 0.5 * logit), atol=0.02)
    losses = [peers.log_loss(y, p) for p in (plain[:, 1], level, both)]
    assert losses[0] > losses[1] > losses[2]


def test_a_row_does_not_recalibrate_itself():
    rng = np.random.default_rng(1)
    p = rng.beta(2, 2, 50)
    plain, y = np.stack([1 - p, p], axis=1), (rng.random(50) < p).astype(int)
    before = recalibrate(plain, y, "slope", units=np.arange(50))
    changed = y.copy()
    changed[7] = 1 - y[7]
    after = recalibrate(plain, changed, "slope", units=np.arange(50))
    assert after[7] == pytest.approx(before[7])
    assert not np.allclose(after, before)


@pytest.mark.parametrize("how", ["intercept", "slope"])
def test_one_class_only_stays_finite(how):
    recalibrated = recalibrate(np.full((30, 3), 1 / 3), np.zeros(30, dtype=int), how)
    assert np.isfinite(recalibrated).all()
    np.testing.assert_allclose(recalibrated.sum(axis=1), 1.0)


def test_one_group_has_no_resamples():
    assert list(resampled_weights(np.zeros(5, dtype=int), 10, 0)) == []
