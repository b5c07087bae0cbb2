"""`here.diagnose()` and the fallback, with a small trained model."""

import json
import warnings

import numpy as np
import pandas as pd
import pytest

import sitewise as sw

SETTINGS = {"epochs": 5, "batch_size": 128, "device": "cpu", "verbose": False}


@pytest.fixture(scope="module")
def family():
    return sw.SimulatedFamily(seed=3, signal=2.5)


@pytest.fixture(scope="module")
def data(family):
    sites = [
        family.site(1500, dependence=d, name=n, seed=s) for s, (n, d) in enumerate([("north", 1.0), ("south", 0.3)])
    ]
    return {
        "X": np.concatenate([s.X for s in sites]),
        "y": np.concatenate([s.y for s in sites]),
        "sample_domain": np.repeat(["north", "south"], 1500),
        "sample_confounder": pd.concat([s.Z for s in sites], ignore_index=True),
    }


@pytest.fixture(scope="module")
def model(data):
    return sw.GPAClassifier(validation=0.4, **SETTINGS).fit(**data)


@pytest.fixture(scope="module")
def site(family):
    return family.site(800, prevalence=[0.7, 0.3], dependence=0.3, seed=9)


def shifted(site):
    return site.X + np.r_[1.5, np.zeros(site.X.shape[1] - 1)]


def test_a_site_like_the_others_can_be_adapted_to(model, site):
    found = model.adapt(site.X, sample_confounder=site.Z).diagnose()
    assert found.verdict == "adapt"
    assert found["representation"].p_value is not None
    json.dumps(found.to_dict())


def test_the_fallback_predicts_where_adapting_is_not_supported(model, site):
    X = shifted(site)
    adapted = model.adapt(X, sample_confounder=site.Z)
    assert adapted.in_use == "adapted"
    assert adapted.diagnose().verdict == "do not adapt"
    pooled = model.adapt(X, sample_confounder=site.Z, fallback="pooled")
    assert pooled.in_use == "pooled"
    assert "prevalence of all training rows" in pooled.diagnose().sentence
    plain = model.predict_proba(X, sample_confounder=site.Z)
    np.testing.assert_allclose(pooled.predict_proba(X, sample_confounder=site.Z), plain)
    np.testing.assert_allclose(pooled.prevalence(), adapted.prevalence())  # what was estimated stays what it is
    adapted.fallback = "marginal"
    log_ratio = model.log_ratio(X, site.Z)
    constant = sw.estimate_prevalence(log_ratio, model="constant").marginal
    expected = sw.adjust(log_ratio, np.log(constant))
    np.testing.assert_allclose(adapted.predict_proba(X, sample_confounder=site.Z), expected, atol=1e-6)


def test_a_fallback_is_not_used_where_adapting_is_fine(model, site):
    with_one = model.adapt(site.X, sample_confounder=site.Z, fallback="pooled")
    without = model.adapt(site.X, sample_confounder=site.Z)
    assert with_one.in_use == "adapted"
    expected = without.predict_proba(site.X, sample_confounder=site.Z)
    np.testing.assert_array_equal(with_one.predict_proba(site.X, sample_confounder=site.Z), expected)


def test_an_unknown_fallback_is_refused_with_the_spelling_meant(model, site):
    with pytest.raises(ValueError, match="did you mean 'pooled'"):
        model.adapt(site.X, sample_confounder=site.Z, fallback="poled")


def test_log_ratios_alone_leave_the_representation_unchecked(model, site):
    found = model.adapt_log_ratio(model.log_ratio(site.X, site.Z), site.Z).diagnose()
    assert found["representation"].severity == "unknown"
    assert found["stability"].p_value is not None


def test_without_z_the_hidden_rows_are_compared(model, site):
    found = model.adapt(site.X).diagnose()
    assert found["stability"].details["rows"] == 800
    assert found["coverage of z"].severity == "care"


def test_a_site_of_one_row_is_diagnosed(model, site):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = model.adapt(site.X[:1], sample_confounder=site.Z.iloc[:1]).diagnose()
    assert found.verdict == "do not adapt"
    assert found["stability"].p_value is None


def test_nothing_held_out_and_no_confounders(data, site):
    model = sw.GPAClassifier(validation=None, **SETTINGS).fit(data["X"], data["y"])
    found = model.adapt(site.X).diagnose()
    assert found.verdict == "care"
    assert "Not tested" in found["stability"].sentence
    assert found["positivity"].severity == "good"


def test_the_same_site_gets_the_same_answer(model, site):
    first, second = (model.adapt(site.X, sample_confounder=site.Z).diagnose() for _ in range(2))
    assert first == second
