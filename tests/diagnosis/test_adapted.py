"""`here.diagnose()` and the fallback, with a small trained model."""

import json
import warnings

import numpy as np
import pandas as pd
import pytest

import sitewise as sw
from sitewise.artifacts.packing import pack, unpack
from sitewise.estimator.at_site.diagnosing import check_site
from sitewise.estimator.files.saving import RECORDS

SETTINGS = {"epochs": 5, "batch_size": 128, "device": "cpu", "verbose": False, "rehearsal": None}


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
    diagnosis = model.adapt(site.X, sample_confounder=site.Z).diagnose()
    assert diagnosis.verdict != "do not adapt"  # two training sites: the rows are trusted in part
    assert diagnosis["representation"].p_value is not None
    json.dumps(diagnosis.to_dict())


def test_where_a_check_fails_predictions_are_as_trained(model, site):
    X = shifted(site)
    here = model.adapt(X, sample_confounder=site.Z)
    diagnosis = here.diagnose()
    assert (here.outcome, here.outcome.reason, diagnosis.verdict) == ("as trained", "check", "do not adapt")
    assert str(diagnosis).startswith(here.outcome.sentence)
    plain = model.predict_proba(X, sample_confounder=site.Z)
    np.testing.assert_allclose(here.prevalence(), plain.mean(axis=0), atol=1e-6)
    rows = model.adapt(X, sample_confounder=site.Z, policy="rows")
    assert (rows.outcome, rows.diagnose().verdict) == ("adapted", "do not adapt")
    assert abs(rows.prevalence() - plain.mean(axis=0)).max() > 0.01
    unchanged = model.adapt(X, sample_confounder=site.Z, policy="as trained")
    np.testing.assert_array_equal(unchanged.predict_proba(X, sample_confounder=site.Z), plain)


def test_the_old_name_of_the_policy_warns_and_what_was_unsafe_is_gone(model, site):
    expected = model.adapt(site.X, sample_confounder=site.Z).predict_proba(site.X, sample_confounder=site.Z)
    with pytest.warns(DeprecationWarning, match="policy='auto'"):
        old = model.adapt(site.X, sample_confounder=site.Z, fallback="pooled")
    np.testing.assert_array_equal(old.predict_proba(site.X, sample_confounder=site.Z), expected)
    with pytest.raises(ValueError, match="'marginal' was removed"):
        model.adapt(site.X, sample_confounder=site.Z, fallback="marginal")
    with pytest.raises(ValueError, match="did you mean 'pooled'"):
        model.adapt(site.X, sample_confounder=site.Z, fallback="poled")


def test_log_ratios_alone_leave_the_representation_unchecked(model, site):
    diagnosis = model.adapt_log_ratio(model.log_ratio(site.X, site.Z), site.Z).diagnose()
    assert diagnosis["representation"].severity == "unknown"
    assert diagnosis["stability"].p_value is not None


def test_without_z_the_hidden_rows_are_compared(model, site):
    diagnosis = model.adapt(site.X).diagnose()
    assert diagnosis["stability"].details["rows"] == 800
    assert diagnosis["coverage of z"].severity == "care"


def test_a_site_of_one_row_is_diagnosed(model, site):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        diagnosis = model.adapt(site.X[:1], sample_confounder=site.Z.iloc[:1]).diagnose()
    assert diagnosis.verdict == "care"
    assert diagnosis["stability"].p_value is None


def test_nothing_held_out_and_no_confounders(data, site):
    model = sw.GPAClassifier(validation=None, **SETTINGS).fit(data["X"], data["y"])
    diagnosis = model.adapt(site.X).diagnose()
    assert diagnosis.verdict == "care"
    assert "Not tested" in diagnosis["stability"].sentence
    assert diagnosis["positivity"].severity == "good"


def test_the_same_site_gets_the_same_answer(model, site):
    first, second = (model.adapt(site.X, sample_confounder=site.Z).diagnose() for _ in range(2))
    assert first == second


@pytest.fixture(scope="module")
def of_patients(data):
    """A model with groups of patients, by name; one of the names is missing."""
    patients = np.array([f"patient {i // 2}" for i in range(3000)], dtype=object)
    patients[5] = None
    return sw.GPAClassifier(validation=0.4, missing="knockout", **SETTINGS | {"epochs": 2}).fit(**data, groups=patients)


def test_groups_of_training_rows_reach_the_diagnosis(of_patients, site):
    complete, hidden = of_patients.held_out_
    assert len(complete.groups) == len(complete.y)
    assert len(hidden.groups) == len(hidden.y)
    diagnosis = of_patients.adapt(site.X, sample_confounder=site.Z, groups=np.arange(800) // 2).diagnose()
    n_held_out = len(complete.groups.unique())
    assert n_held_out < 0.6 * len(complete.y)
    assert diagnosis["stability"].details["held_out_groups"] == n_held_out
    assert diagnosis["stability"].details["groups"] == 400
    without_z = of_patients.adapt(site.X, groups=np.arange(800) // 2).diagnose()
    assert without_z["stability"].details["held_out_groups"] == len(hidden.groups.unique())
    ungrouped = of_patients.adapt(site.X, sample_confounder=site.Z).diagnose()
    assert "groups" not in ungrouped["stability"].details
    assert ungrouped["calibration"].details["held_out_groups"] == n_held_out


def test_groups_are_saved_and_a_folder_without_them_loads(of_patients, site, tmp_path):
    here = of_patients.adapt(site.X, sample_confounder=site.Z, groups=np.arange(800) // 2)
    here.save(tmp_path / "site")
    again = sw.load(tmp_path / "site")
    assert again.diagnose() == here.diagnose()
    assert check_site(again) == check_site(here) == here.checks
    tree, tensors = pack({"held": of_patients.held_out_[0]}, RECORDS)
    del tree["held"]["fields"]["groups"], tensors["held/groups"]
    assert unpack(tree, tensors, RECORDS)["held"].groups is None


def test_calibrating_with_patients_of_ones_own(data, family):
    model = sw.GPAClassifier(missing="knockout", **SETTINGS | {"epochs": 1}).fit(**data)
    own = family.site(400, seed=11)
    patients = np.array([f"patient {i // 4}" for i in range(400)], dtype=object)
    patients[:8] = None  # each by itself
    model.calibrate(own.X, own.y, sample_confounder=own.Z, groups=patients)
    assert len(model.held_out_[1].groups.unique()) == 98 + 8
    with pytest.raises(ValueError, match="groups must have one entry a row"):
        model.calibrate(own.X, own.y, sample_confounder=own.Z, groups=patients[:7])


def test_an_adjuster_keeps_its_groups(family):
    source = family.site(600, seed=12)
    p = np.exp(source.log_ratio + source.log_prevalence)
    adjuster = sw.PrevalenceAdjuster().fit(
        p / p.sum(1, keepdims=True), source.y, sample_confounder=source.Z, groups=np.arange(600) // 3
    )
    assert len(adjuster.held_out_[0].groups.unique()) == 200
