"""PrevalenceAdjuster as a scikit-learn citizen."""

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils.estimator_checks import parametrize_with_checks

import sitewise as sw

ESTIMATORS = [
    sw.PrevalenceAdjuster(LogisticRegression()),
    sw.PrevalenceAdjuster(DecisionTreeClassifier(max_depth=4, random_state=0)),
]


@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks(ESTIMATORS)
def test_scikit_learns_checks(estimator, check):
    """Around an estimator, none is expected to fail; without one X is probabilities, which the checks do not have."""
    check(estimator)


@pytest.fixture
def routing():
    with sklearn.config_context(enable_metadata_routing=True):
        yield


def routed(estimator):
    """An adjuster that asks for site and confounders in fitting, and for confounders in scoring."""
    adjuster = sw.PrevalenceAdjuster(estimator, prevalence="constant", classifier_sees="xz", rehearsal=None)
    adjuster.set_fit_request(sample_domain=True, sample_confounder=True)
    return adjuster.set_score_request(sample_domain=False, sample_confounder=True)


@pytest.mark.usefixtures("routing")
def test_cross_validation_routes_site_and_confounders(two):
    asked = {"sample_domain": two.site, "sample_confounder": two.Z}
    adjuster = routed(LogisticRegression())
    scores = cross_val_score(adjuster, two.X, two.y, cv=3, params=asked)
    assert scores.mean() > 0.8
    with pytest.raises(ValueError, match="sample_confounder"):  # of the wrong length: so it arrives
        cross_val_score(
            adjuster, two.X, two.y, cv=3, params={**asked, "sample_confounder": two.Z[:9]}, error_score="raise"
        )


@pytest.mark.usefixtures("routing")
def test_grid_search_over_a_pipeline_reaches_the_estimator_inside(two):
    pipeline = Pipeline([("scale", StandardScaler()), ("adjust", routed(LogisticRegression()))])
    grid = {"adjust__estimator__C": [1e-4, 1.0], "adjust__calibration": ["none", "vector"]}
    search = GridSearchCV(pipeline, grid, cv=2, refit=True)
    search.fit(two.X[::3], two.y[::3], sample_domain=two.site[::3], sample_confounder=two.Z[::3].reset_index(drop=True))
    adjuster = search.best_estimator_["adjust"]
    assert search.best_params_["adjust__estimator__C"] == adjuster.estimator_.C
    assert len(set(search.cv_results_["mean_test_score"])) > 1  # the settings tell
    assert adjuster.sites_ == ["north", "south", "west"]
    scaled = search.best_estimator_[:-1].transform(two.new.X)
    here = adjuster.adapt(scaled, sample_confounder=two.new.Z)
    assert np.abs(here.prevalence() - [0.75, 0.25]).max() < 0.1


def test_clones(two):
    """A clone of an adjuster around a fitted estimator fits it anew; a frozen one is kept."""
    fitted = LogisticRegression().fit(two.X, two.y)
    adjuster = sw.PrevalenceAdjuster(fitted, classes=[0, 1], random_state=3)
    assert clone(adjuster).get_params(deep=False).keys() == adjuster.get_params(deep=False).keys()
    assert not hasattr(clone(adjuster).estimator, "coef_")
    assert clone(sw.PrevalenceAdjuster(FrozenEstimator(fitted))).estimator.coef_ is not None
    assert adjuster.get_params()["estimator__C"] == 1.0


def test_feature_names_and_tags(two):
    frame = pd.DataFrame(two.X, columns=list("abcde"))
    adjuster = sw.PrevalenceAdjuster(LogisticRegression()).fit(frame, two.y)
    assert adjuster.feature_names_in_.tolist() == list("abcde")
    assert adjuster.n_features_in_ == 5
    with pytest.raises(ValueError, match="feature names"):
        adjuster.predict_proba(frame.rename(columns={"a": "z"}))
    tags = sklearn.utils.get_tags(adjuster)
    assert tags.estimator_type == "classifier"
    assert tags.input_tags.sparse
    assert not tags.classifier_tags.multi_label
    stored = sw.PrevalenceAdjuster().fit(adjuster.estimator_.predict_proba(frame), two.y)
    assert stored.n_features_in_ == 2
