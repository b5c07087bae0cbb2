"""`here.update`: rows in two parts give what all rows at once give."""

import warnings

import numpy as np
import pandas as pd
import pytest

from sitewise import GPAClassifier, SimulatedFamily

FAMILY = SimulatedFamily(levels=(2,), n_continuous=1)


@pytest.fixture(scope="module")
def model():
    sites = [FAMILY.site(300, seed=i) for i in range(2)]
    X, y = (np.concatenate([getattr(site, part) for site in sites]) for part in ("X", "y"))
    Z = pd.concat([site.Z for site in sites], ignore_index=True)
    return GPAClassifier(epochs=3, device="cpu", verbose=False, missing="knockout", rehearsal=None).fit(
        X, y, sample_domain=np.repeat(["a", "b"], 300), sample_confounder=Z
    )


@pytest.fixture(scope="module")
def new():
    """600 rows whose z lie within the training range."""
    site = FAMILY.site(700, prevalence=[0.7, 0.3], seed=9, missing=0.1)
    inside = ~((site.Z["age0"] < 25) | (site.Z["age0"] > 85)).to_numpy()
    return site.X[inside][:600], site.Z[inside][:600].reset_index(drop=True), site.y[inside][:600]


def same(one, other):
    np.testing.assert_allclose(one.prevalence(), other.prevalence(), atol=1e-6)
    assert (one.estimate.model, one.estimate.strength) == (other.estimate.model, other.estimate.strength)
    assert one.estimate.log_likelihood == pytest.approx(other.estimate.log_likelihood, abs=1e-5)


def test_two_parts_are_all_rows_at_once(model, new):
    X, Z, _ = new
    first = model.adapt(X[:250], sample_confounder=Z[:250])
    before = first.prevalence()
    joined, whole = first.update(X[250:], Z[250:]), model.adapt(X, sample_confounder=Z)
    same(joined, whole)
    np.testing.assert_allclose(
        joined.predict_proba(X, sample_confounder=Z), whole.predict_proba(X, sample_confounder=Z), atol=1e-5
    )
    np.testing.assert_allclose(joined.prevalence_interval()[0], whole.prevalence_interval()[0], atol=1e-5)
    np.testing.assert_array_equal(first.prevalence(), before)  # the first stays as it is
    assert len(first.rows) == 250
    assert joined.diagnose().verdict in ("adapt", "care", "do not adapt")


def test_labels_weights_and_groups_are_joined(model, new):
    X, Z, y = new
    labels = np.where(np.arange(600) % 5 == 0, y.astype(float), np.nan)
    weight, patient = np.where(np.arange(600) % 3, 1.0, 2.0), np.arange(600) // 2
    first = model.adapt(X[:300], sample_confounder=Z[:300], y=labels[:300], groups=patient[:300])
    joined = first.update(X[300:], Z[300:], groups=patient[300:], sample_weight=weight[300:])
    mixed = np.r_[np.ones(300), weight[300:]]
    known = np.r_[labels[:300], np.full(300, np.nan)]
    whole = model.adapt(X, sample_confounder=Z, y=known, groups=patient, sample_weight=mixed)
    same(joined, whole)
    np.testing.assert_array_equal(joined.rows.groups, whole.rows.groups)
    np.testing.assert_allclose(joined.prevalence_interval()[1], whole.prevalence_interval()[1], atol=1e-5)


def test_groups_of_one_part_only_leave_the_other_rows_alone(model, new):
    X, Z, _ = new
    first = model.adapt(X[:4], sample_confounder=Z[:4], groups=["a", "a", "b", "b"])
    assert first.update(X[4:6], Z[4:6]).rows.groups.tolist() == [0, 0, 1, 1, 2, 3]


@pytest.mark.parametrize("first_knows", [True, False])
def test_one_part_may_lack_z(model, new, first_knows):
    X, Z, _ = new
    parts = [(X[:300], Z[:300] if first_knows else None), (X[300:], None if first_knows else Z[300:])]
    joined = model.adapt(parts[0][0], sample_confounder=parts[0][1]).update(*parts[1])
    hidden = Z.astype(object)
    rows = slice(300, None) if first_knows else slice(None, 300)
    hidden.iloc[rows] = np.nan
    hidden["age0"] = hidden["age0"].astype(float)
    same(joined, model.adapt(X, sample_confounder=hidden))


def test_threshold_and_policy_stay_and_what_was_odd_adds_up(model, new):
    X, Z, _ = new
    odd = Z.copy()
    odd.loc[:3, "age0"] = 150.0
    first = model.adapt(X[:300], sample_confounder=odd[:300], policy="rows", level_scale=2.0)
    first.threshold_ = 0.3
    joined = first.update(X[:10], odd[:10])
    assert (joined.threshold_, joined.policy, joined.level_scale) == (0.3, "rows", 2.0)
    assert joined.estimate.notes.clipped == {"age0": 8}
    assert first.estimate.notes.clipped == {"age0": 4}
    assert joined.rows.feature_rows.tolist() == list(range(310))


def test_unseen_levels_warn(model, new):
    X, Z, _ = new
    first = model.adapt(X[:300], sample_confounder=Z[:300])
    odd = Z[:5].astype({"group0": object})
    odd.loc[0, "group0"] = "new"
    with pytest.warns(UserWarning, match="not seen before"):
        first.update(X[:5], odd)
    with pytest.raises(ValueError, match="sample_weight must have shape"):
        first.update(X[:5], Z[:5], sample_weight=[1.0])


def test_a_broken_window_alarms_and_the_others_do_not(model):
    quarters = [FAMILY.site(500, prevalence=[0.7, 0.3], seed=20 + i) for i in range(4)]
    here = model.adapt(quarters[0].X, sample_confounder=quarters[0].Z)
    X = np.concatenate([q.X for q in quarters])
    X[1000:1500] += np.random.default_rng(0).normal(0, 2, (500, X.shape[1]))  # noise is no change of prevalence
    Z = pd.concat([q.Z for q in quarters], ignore_index=True)
    days = pd.date_range("2025-01-01", periods=2000, freq="4h")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of how little the broken window says
        frame = here.monitor(X, days, Z, window=500)
    assert frame["n"].tolist() == [500] * 4
    assert frame["alarm"].tolist() == [False, False, True, False]
    assert set(frame["class"]) == {1}
    whole = frame.drop(index=2)
    assert whole["estimate"].between(0.2, 0.4).all()
