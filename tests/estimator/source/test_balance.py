"""The balance of f: what it makes zero, what is left alone, and that a weak f does no harm where nothing shifts."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict

import sitewise as sw
from sitewise.estimator.source.held_out import calibrate_rows, describe_source, fit_balance
from sitewise.posterior import combine
from sitewise.prevalence.additive import features, fit_additive
from sitewise.rows import HeldOut


def patients(n_rows, seed, rare=-3.5):
    """One in twenty dies; age and sex tell who, and x adds little."""
    rng = np.random.default_rng(seed)
    Z = pd.DataFrame({"age": rng.uniform(30, 90, n_rows), "sex": rng.choice(["m", "f"], n_rows)})
    x = rng.normal(size=(n_rows, 4))
    logit = rare + 0.05 * (Z["age"] - 60) + 0.4 * (Z["sex"] == "m") + 0.5 * x[:, 0]
    y = (rng.random(n_rows) < 1 / (1 + np.exp(-logit))).astype(int)
    return np.c_[x, (Z["age"] - 60) / 20, Z["sex"] == "m"], y, Z


@pytest.fixture(scope="module")
def held():
    """Held-out rows of a weak f that is off by a function of z."""
    X, y, Z = patients(4000, 0)
    schema = sw.Confounders.learn(Z)
    codes = schema.encode(Z)[0]
    score = torch.tensor(0.5 * X[:, 0] + 0.3 * X[:, 4])
    raw = torch.stack([-score / 2, score / 2], dim=1)
    ones = torch.ones(len(y), dtype=torch.float64)
    return schema, HeldOut(
        raw_log_ratio=raw, log_prevalence=torch.zeros_like(raw), y=torch.tensor(y), weight=ones, codes=codes
    )


def unbalance(held, schema, raw, ridge=0.01):
    """Σ Φ (r - g) over the rows, in units of its noise, with g fitted to their labels."""
    targets = torch.nn.functional.one_hot(held.y, 2).double()
    g = fit_additive(targets, held.codes, held.weight, schema, strength=ridge, smoothing=1e-9).log_prob(held.codes)
    wrong = (combine(raw, g).exp() - g.exp())[:, 1:]
    design = features(held.codes, schema)[:, :-1]
    return float(((design.T @ wrong)[:, 0].abs() / ((design * wrong).square().sum(0).sqrt() + 1e-9)).max())


def calibrated(rows, schema):
    """log f by the slope that the labels ask for, given a g fitted to them."""
    targets = torch.nn.functional.one_hot(rows.y, 2).double()
    g = fit_additive(targets, rows.codes, rows.weight, schema, strength=0.01, smoothing=1e-9)
    return calibrate_rows(rows.raw_log_ratio, g.log_prob(rows.codes), rows.y, rows.weight, "vector", 2).apply(
        rows.raw_log_ratio
    )


def test_the_mean_of_f_is_the_same_for_all_classes_at_every_z(held):
    schema, rows = held
    h = fit_balance(rows, schema, 2)
    balanced = rows.shifted(lambda codes: -h.log_mean(codes))
    assert unbalance(rows, schema, calibrated(rows, schema)) > 3
    assert unbalance(rows, schema, calibrated(balanced, schema)) < 0.3


def test_rows_that_lack_z_stay_as_they_are(held):
    schema, rows = held
    h = fit_balance(rows, schema, 2)
    hidden = rows.codes.clone()
    hidden[::2, 0] = schema.variables[0].missing_code
    mean = h.log_mean(hidden)
    assert torch.equal(mean[::2], torch.zeros_like(mean[::2]))
    assert torch.equal(mean[1::2], h.log_mean(rows.codes)[1::2])


def test_few_labels_or_no_z_balance_nothing(held):
    schema, rows = held
    assert fit_balance(rows, None, 2) is None
    assert fit_balance(rows.take(torch.arange(30)), schema, 2) is None


def test_the_prior_counts_what_f_does_not_explain_and_groups_as_one_row_each(held):
    schema, rows = held
    rows = rows.balanced(fit_balance(rows, schema, 2).log_mean)
    targets = torch.nn.functional.one_hot(rows.y, 2).double()
    pooled = fit_additive(targets, rows.codes, rows.weight, schema)
    log_ratio = calibrated(rows, schema)
    description = describe_source(rows, log_ratio, pooled, None)
    assert 0.8 < description.missing < 1
    assert description.n_source == pytest.approx(4000)
    groups = torch.arange(len(rows.y)) // 4
    assert describe_source(replace(rows, groups=groups), log_ratio, pooled, None).n_source == pytest.approx(1000)
    doubled = replace(rows, weight=2 * rows.weight)
    assert describe_source(doubled, log_ratio, pooled, None).n_source == pytest.approx(4000)
    assert describe_source(rows, 20 * log_ratio, pooled, None).missing < description.missing


def test_a_weak_f_does_no_harm_where_nothing_shifts():
    """Without balance and tempering a rare class was found to be several times as common as it is."""
    worse = []
    for seed in range(3):
        (X, y, Z), (X_new, y_new, Z_new) = patients(3000, 10 + seed), patients(3000, 20 + seed)
        classifier = LogisticRegression(max_iter=1000)
        proba = cross_val_predict(classifier, X, y, method="predict_proba")
        unadjusted = classifier.fit(X, y).predict_proba(X_new)
        here = sw.PrevalenceAdjuster().fit(proba, y, sample_confounder=Z).adapt(unadjusted, sample_confounder=Z_new)
        adjusted = here.predict_proba(unadjusted, Z_new)
        nll = [-np.log(p[np.arange(len(y_new)), y_new]).mean() for p in (adjusted, unadjusted)]
        worse.append(nll[0] - nll[1])
        low, high = here.prevalence_interval()
        assert low[1] <= y_new.mean() <= high[1]
    assert max(worse) < 0.02  # what averaging over levels that did not shift costs with an f this weak and one site


def test_no_calibration_leaves_f_as_it_is():
    X, y, Z = patients(1500, 5)
    proba = cross_val_predict(LogisticRegression(max_iter=1000), X, y, method="predict_proba")
    adjuster = sw.PrevalenceAdjuster(classifier_sees="xz").fit(proba, y, sample_confounder=Z)
    plain = sw.PrevalenceAdjuster(calibration="none", classifier_sees="xz").fit(proba, y, sample_confounder=Z)
    bare = adjuster.with_calibration("none")
    np.testing.assert_allclose(bare.log_ratio(proba, Z), plain.log_ratio(proba, Z), atol=1e-9)
    again = bare.with_calibration("vector")
    np.testing.assert_allclose(again.log_ratio(proba, Z), adjuster.log_ratio(proba, Z), atol=1e-6)
