"""log f as a transformer's output, in the container that `set_output` asks for."""

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import (
    check_get_feature_names_out_error,
    check_global_output_transform_pandas,
    check_set_output_transform,
    check_set_output_transform_pandas,
)

import sitewise as sw

CHECKS = (
    check_get_feature_names_out_error,
    check_set_output_transform,
    check_set_output_transform_pandas,
    check_global_output_transform_pandas,
)
MODELS = (sw.GPAClassifier(epochs=1, calibration="none"), sw.PrevalenceAdjuster(LogisticRegression()))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("model", MODELS)
def test_scikit_learns_own_checks_of_output(model, check):
    check(type(model).__name__, model)


@pytest.fixture(scope="module")
def site():
    return sw.SimulatedFamily(seed=0).site(200, seed=1)


@pytest.mark.parametrize("model", MODELS)
def test_log_f_comes_in_the_container_asked_for(site, model):
    frame = pd.DataFrame(site.X, index=np.arange(200) + 1000).add_prefix("x")
    y = np.array(["well", "ill"])[site.y]
    model.fit(frame, y, sample_confounder=site.Z)
    plain = model.transform(frame, sample_confounder=site.Z)
    assert (plain == model.log_ratio(frame, site.Z)).all()
    transformed = model.set_output(transform="pandas").transform(frame, sample_confounder=site.Z)
    assert transformed.columns.tolist() == model.get_feature_names_out().tolist() == ["log_ratio_ill", "log_ratio_well"]
    assert transformed.index.equals(frame.index)
    assert (transformed.to_numpy() == plain).all()
    assert isinstance(model.predict_proba(frame, sample_confounder=site.Z), np.ndarray)
    model.set_output(transform="default")


def test_log_f_at_the_end_of_a_pipeline_with_its_confounders(site):
    with sklearn.config_context(enable_metadata_routing=True):
        model = sw.GPAClassifier(epochs=1, calibration="none")
        model.set_fit_request(sample_confounder=True).set_transform_request(sample_confounder=True)
        chain = make_pipeline(StandardScaler(), model).set_output(transform="pandas")
        chain.fit(site.X, site.y, sample_confounder=site.Z)
        transformed = chain.transform(site.X, sample_confounder=site.Z)
        without = chain.transform(site.X)
    assert transformed.columns.tolist() == ["log_ratio_0", "log_ratio_1"]
    scaled = chain[:-1].transform(site.X).to_numpy()
    with sklearn.config_context(enable_metadata_routing=True), pytest.warns(UserWarning, match="feature names"):
        own = model.log_ratio(scaled, site.Z)
    np.testing.assert_array_equal(transformed, own)
    assert np.abs(transformed - without).to_numpy().max() > 1e-6
