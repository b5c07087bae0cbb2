"""AdaptedClassifier as a scikit-learn citizen: a fitted classifier that is never fitted again."""

from functools import partial

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.base import clone, is_classifier
from sklearn.calibration import CalibrationDisplay, calibration_curve
from sklearn.ensemble import VotingClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.inspection import permutation_importance
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import RocCurveDisplay, accuracy_score, get_scorer, roc_auc_score, roc_curve
from sklearn.model_selection import cross_val_score, cross_validate
from sklearn.utils import estimator_html_repr, get_tags
from sklearn.utils.validation import check_is_fitted

import sitewise as sw

mpl.use("Agg")
FEATURES = list("abcde")
assert_same = partial(np.testing.assert_allclose, rtol=0, atol=1e-12)


@pytest.fixture(scope="module", params=["frame", "array"])
def case(request, two):
    """An adapted classifier whose z stands beside the features in X, with new rows and their z by itself."""
    Z = two.new.Z.select_dtypes("number")
    source = two.Z[Z.columns]
    X = two.X
    together = np.c_[two.new.X, Z]
    columns = list(range(two.X.shape[1], together.shape[1]))
    if request.param == "frame":
        X = pd.DataFrame(X, columns=FEATURES)
        together = pd.concat([pd.DataFrame(two.new.X, columns=FEATURES), Z], axis=1)
        columns = Z.columns.tolist()
    model = sw.PrevalenceAdjuster(LogisticRegression(), rehearsal=None)
    model.fit(X, two.y, sample_domain=two.site, sample_confounder=source)
    here = model.adapt(together, confounder_columns=columns)
    features = together[FEATURES] if request.param == "frame" else two.new.X
    return here, together, np.asarray(two.new.y), features, Z


def test_z_among_the_columns_of_x(case):
    here, together, y, features, Z = case
    apart = here.model.adapt(features, sample_confounder=Z)
    assert_same(here.prevalence(), apart.prevalence())
    expected = apart.predict_proba(features, sample_confounder=Z)
    assert_same(here.predict_proba(together), expected)
    assert_same(here.predict(together), apart.predict(features, Z))
    assert here.score(together, y) == accuracy_score(y, apart.predict(features, Z))
    assert np.abs(expected - apart.predict_proba(features)).max() > 1e-3  # z tells
    hidden = np.full(len(together), np.nan) if Z.shape[1] == 1 else np.full(Z.shape, np.nan)
    assert_same(  # z that is given comes first
        here.predict_proba(together, sample_confounder=hidden), apart.predict_proba(features)
    )
    updated, other = here.update(together[:50]), apart.update(features[:50], Z[:50])
    assert_same(updated.prevalence(), other.prevalence())
    assert_same(updated.predict_proba(together), other.predict_proba(features, Z))
    windows = here.monitor(together, np.arange(len(together)), window=1000)
    pd.testing.assert_frame_equal(windows, apart.monitor(features, np.arange(len(together)), Z, window=1000))


def test_columns_that_are_not_there(case):
    here, together, _, features, _ = case
    wrong = sw.AdaptedClassifier(here.model, here.estimate, here.rows, confounder_columns=["aeg0", 77])
    with pytest.raises(ValueError, match=r"2 problems(.|\n)*'aeg0'(.|\n)*77"):
        wrong.predict_proba(together)
    if isinstance(features, np.ndarray):
        with pytest.raises(ValueError, match=r"fitted with 5: expected these, or these and the 1 columns"):
            here.predict_proba(np.c_[together, together])


def test_a_model_that_reads_z_itself(two, tmp_path):
    """Columns of z that the model was fitted with reach it, also after saving and loading."""
    Z = two.Z.select_dtypes("number")
    frame = pd.concat([pd.DataFrame(two.X, columns=FEATURES), Z], axis=1)
    model = sw.PrevalenceAdjuster(LogisticRegression(max_iter=1000), classifier_sees="xz", rehearsal=None)
    model.fit(frame, two.y, sample_domain=two.site, sample_confounder=Z)
    new = pd.concat([pd.DataFrame(two.new.X, columns=FEATURES), two.new.Z[Z.columns]], axis=1)
    here = model.adapt(new, confounder_columns=Z.columns)
    expected = model.adapt(new, sample_confounder=new[Z.columns]).predict_proba(new, new[Z.columns])
    assert_same(here.predict_proba(new.iloc[:, ::-1]), expected)
    here.save(tmp_path / "site")
    assert_same(sw.load(tmp_path / "site").predict_proba(new), expected)


def test_it_is_a_fitted_classifier(case):
    here, *_ = case
    check_is_fitted(here)
    assert is_classifier(here)
    with pytest.raises(TypeError, match=r"made by adapt\(\).*FrozenEstimator"):
        here.fit(np.zeros((2, 6)), [0, 1])
    tags = get_tags(here)
    assert tags.estimator_type == "classifier"
    assert tags.classifier_tags.multi_class
    assert tags.input_tags.two_d_array
    assert here.classes_.tolist() == [0, 1]
    params = here.get_params()
    assert params["model"] is here.model
    assert params["model__estimator__C"] == 1.0
    assert here.get_params(deep=False).keys() == {
        *("model", "estimate", "rows", "joint", "known_prevalence", "policy", "level_scale", "confounder_columns")
    }
    assert clone(here) is here
    assert not hasattr(clone(here.model), "classes_")


def test_shapes_and_types(case):
    here, together, y, *_ = case
    probability = here.predict_proba(together)
    assert probability.shape == (len(y), 2)
    assert probability.dtype == np.float64
    assert_same(probability.sum(axis=1), 1)
    assert here.predict(together).shape == (len(y),)
    assert set(here.predict(together)) <= set(here.classes_)
    assert_same(here.predict_proba(together[:1]), probability[:1])


def test_displays_draw_the_curves_of_its_probabilities(case):
    here, together, y, features, Z = case
    score = here.model.adapt(features, sample_confounder=Z).predict_proba(features, sample_confounder=Z)[:, 1]
    roc = RocCurveDisplay.from_estimator(here, together, y)
    false_positive, true_positive, _ = roc_curve(y, score)
    assert_same(roc.fpr, false_positive)
    assert_same(roc.tpr, true_positive)
    calibration = CalibrationDisplay.from_estimator(here, together, y, n_bins=7)
    shares, means = calibration_curve(y, score, n_bins=7)
    assert_same(calibration.prob_true, shares)
    assert_same(calibration.prob_pred, means)
    mpl.pyplot.close("all")


def test_permutation_importance(case):
    """Of every column, z among them."""
    here, together, y, *_ = case
    importance = permutation_importance(
        here, together[:600], y[:600], n_repeats=3, random_state=0, scoring="neg_log_loss"
    )
    assert importance.importances_mean.shape == (together.shape[1],)
    assert importance.importances_mean.max() > 0.01
    assert importance.importances_mean[-1] != 0


def test_scorers_and_cross_validation_of_a_frozen_one(case):
    here, together, y, *_ = case
    auc = roc_auc_score(y, here.predict_proba(together)[:, 1])
    assert get_scorer("roc_auc")(here, together, y) == auc
    frozen = FrozenEstimator(here)
    assert_same(frozen.predict_proba(together), here.predict_proba(together))
    scores = cross_val_score(frozen, together, y, cv=4, scoring="roc_auc")
    assert scores.mean() == pytest.approx(auc, abs=0.05)


def test_voting(case):
    here, together, y, *_ = case
    both = VotingClassifier([("one", FrozenEstimator(here)), ("two", FrozenEstimator(here))], voting="soft")
    assert_same(both.fit(together, y).predict_proba(together), here.predict_proba(together))
    blend = VotingClassifier([("here", here), ("lr", LogisticRegression())], voting="soft", weights=[1, 0])
    blend.estimators = [("here", FrozenEstimator(here)), ("lr", LogisticRegression())]
    assert_same(blend.fit(together, y).predict_proba(together), here.predict_proba(together))


def test_routing_of_confounders(two):
    with sklearn.config_context(enable_metadata_routing=True):
        model = sw.PrevalenceAdjuster(LogisticRegression(), rehearsal=None)
        model.fit(two.X, two.y, sample_domain=two.site, sample_confounder=two.Z)
        here = model.adapt(two.new.X, sample_confounder=two.new.Z)
        here.set_predict_proba_request(sample_confounder=True).set_score_request(sample_confounder=True)
        asked = here.get_metadata_routing()
        assert asked.predict_proba.requests["sample_confounder"] is True
        assert asked.score.requests["sample_confounder"] is True
        frozen = FrozenEstimator(here)
        routed = {"sample_confounder": two.new.Z}
        scores = cross_validate(frozen, two.new.X, two.new.y, cv=3, params=routed)["test_score"]
        whole = here.score(two.new.X, two.new.y, sample_confounder=two.new.Z)
        assert scores.mean() == pytest.approx(whole, abs=0.02)
        with pytest.raises(ValueError, match="sample_confounder"):  # of the wrong length: so it arrives
            cross_validate(
                frozen, two.new.X, two.new.y, cv=3, params={"sample_confounder": two.new.Z[:9]}, error_score="raise"
            )


def test_what_is_shown_of_it_is_short(case):
    here, *_ = case
    assert "AdaptedClassifier" in repr(here)
    assert len(estimator_html_repr(here)) < 100_000
