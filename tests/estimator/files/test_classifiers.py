"""Scikit-learn's part of a saved folder: there without a hand, and nothing of an unknown type is ever made."""

import importlib
import io
import json
import os
import subprocess
import sys
import zipfile
from functools import partial

import numpy as np
import pandas as pd
import pytest
import sklearn
import torch
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import make_column_transformer
from sklearn.ensemble import (
    AdaBoostClassifier,
    BaggingClassifier,
    ExtraTreesClassifier,
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
    StackingClassifier,
    VotingClassifier,
)
from sklearn.exceptions import InconsistentVersionWarning
from sklearn.frozen import FrozenEstimator
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier

import sitewise as sw
from sitewise.artifacts.folders import read_folder, write_folder
from sitewise.estimator.files.classifiers import KNOWN, read_classifier, unknown_types, write_classifier

LR = LogisticRegression()
CLASSIFIERS = [
    LR,
    FrozenEstimator(LR),
    SVC(),
    SGDClassifier(),
    GaussianNB(),
    MLPClassifier(max_iter=5),
    GaussianProcessClassifier(),
    DecisionTreeClassifier(),
    RandomForestClassifier(5),
    ExtraTreesClassifier(5, max_leaf_nodes=4),
    GradientBoostingClassifier(n_estimators=5),
    HistGradientBoostingClassifier(max_iter=5, categorical_features=[4]),
    AdaBoostClassifier(n_estimators=3),
    BaggingClassifier(DecisionTreeClassifier(), 3, max_features=2),
    CalibratedClassifierCV(LR),
    VotingClassifier([("a", LR), ("b", DecisionTreeClassifier())], voting="soft"),
    StackingClassifier([("a", LR), ("b", GaussianNB())], final_estimator=RandomForestClassifier(3)),
]


class Own(LogisticRegression):
    """A classifier that is not scikit-learn's."""


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 5))
    X[:, 4] = rng.integers(0, 4, size=80)
    return X, (X[:, 0] + X[:, 1] ** 2 + rng.normal(size=80) > 1).astype(int)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("classifier", CLASSIFIERS, ids=lambda one: type(one).__name__)
def test_scikit_learns_classifiers_are_known(rows, classifier):
    X, y = rows
    if isinstance(classifier, FrozenEstimator):
        classifier.estimator.fit(X, y)
    classifier.fit(X, y)
    content = write_classifier(classifier)
    assert unknown_types(content) == []
    again = read_classifier(content, ())
    ask = "predict_proba" if hasattr(classifier, "predict_proba") else "decision_function"
    np.testing.assert_array_equal(getattr(again, ask)(X), getattr(classifier, ask)(X))


def test_what_is_known_is_scikit_learns_own():
    """Every name is that of something defined in that very module, so that none is a way to something imported."""
    for name in KNOWN:
        module, _, short = name.rpartition(".")
        attribute = getattr(importlib.import_module(module), short)
        assert attribute.__module__ == module


def test_an_unknown_type_is_refused_by_name_until_it_is_trusted(two, tmp_path):
    model = sw.PrevalenceAdjuster(Own(), rehearsal=None).fit(two.X, two.y)
    model.save(tmp_path / "model")
    name = f"{Own.__module__}.Own"
    with pytest.raises(ValueError, match=rf"not known to be harmless: \['{name}'\].*trusted=.*estimator=") as error:
        sw.load(tmp_path / "model")
    assert str(error.value).startswith("load: ")
    assert f"trusted=['{name}']" in (tmp_path / "model" / "model.md").read_text()
    again = sw.load(tmp_path / "model", trusted=[name])
    assert type(again.estimator_) is Own
    np.testing.assert_array_equal(again.predict_proba(two.X), model.predict_proba(two.X))
    assert sw.load(tmp_path / "model", estimator=model.estimator_).estimator_ is model.estimator_
    with pytest.raises(ValueError, match="KDTree"):
        read_classifier(write_classifier(KNeighborsClassifier(algorithm="kd_tree").fit(two.X, two.y)), ())


def changed(content, change, without=""):
    """A skops file with another schema, or without one of its files."""
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content.numpy().tobytes())) as old, zipfile.ZipFile(made, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if name == "schema.json":
                schema = json.loads(data)
                change(schema)
                data = json.dumps(schema).encode()
            if not without or without not in name:
                new.writestr(name, data)
    return torch.frombuffer(bytearray(made.getvalue()), dtype=torch.uint8)


def damages(content):
    """Files that went wrong, in many ways."""
    yield content[: len(content) // 2]
    yield torch.zeros(10, dtype=torch.uint8)
    yield changed(content, lambda schema: None, without=".npy")
    yield changed(content, lambda schema: None, without="schema")
    yield changed(content, lambda schema: schema.update(protocol=99, __loader__="NewerNode"))
    yield changed(content, lambda schema: schema.pop("__loader__"))
    yield changed(content, lambda schema: schema["content"].clear())


def test_damaged_and_newer_files_are_one_clear_error(rows):
    content = write_classifier(LogisticRegression().fit(*rows))
    for damaged in damages(content):
        with pytest.raises(ValueError, match=r"load: the classifier in this folder is damaged, or .* another version"):
            read_classifier(damaged, ())


def by_scikit_learn(version):
    """A change of a skops file's schema: another scikit-learn wrote it."""

    def change(schema):
        schema["content"]["content"]["_sklearn_version"]["content"] = json.dumps(version)

    return change


def test_a_classifier_of_a_newer_scikit_learn_is_refused_and_of_an_older_one_noted(rows):
    content = write_classifier(LogisticRegression().fit(*rows))
    with pytest.raises(ValueError, match=r"scikit-learn 99\.0, but .* is installed: pip install -U scikit-learn"):
        read_classifier(changed(content, by_scikit_learn("99.0")), ())
    with pytest.warns(InconsistentVersionWarning, match=r"from version 0\.24\.0"):
        read_classifier(changed(content, by_scikit_learn("0.24.0")), ())


@pytest.mark.parametrize("kind", ["site", "pipeline"])
def test_a_folder_whose_skops_file_went_wrong_is_one_error_and_stays_as_it_is(two, tmp_path, kind):
    """Whatever is wrong with it; and a good one takes its place as ever."""
    if kind == "site":
        model = sw.PrevalenceAdjuster(LogisticRegression(), rehearsal=None).fit(two.X, two.y)
        made, place = model.adapt(two.X), "classifier"
    else:
        network = sw.GPAClassifier(epochs=1, device="cpu", rehearsal=None)
        made, place = make_pipeline(StandardScaler(), network).fit(two.X, two.y), "steps"
    sw.save(made, tmp_path / "good")
    good = read_folder(tmp_path / "good")
    holder = good.inside["model"] if kind == "site" else good
    content = holder.tensors[place]
    untrusted = write_classifier(Own().fit(two.X, two.y))
    wrong = [*damages(content), untrusted]
    if kind == "pipeline":
        del wrong[-2]  # without its content it is a list of no steps
    for damaged in wrong:
        holder.tensors[place] = damaged
        holder.content[place]["shape"] = [len(damaged)]
        write_folder(good, tmp_path / "bad")
        before = files_of(tmp_path)
        with pytest.raises(ValueError, match=r"^load: the classifier in this folder [^\n]*$"):
            sw.load(tmp_path / "bad")
        assert files_of(tmp_path) == before
    sw.save(made, tmp_path / "bad")
    np.testing.assert_array_equal(sw.load(tmp_path / "bad").predict_proba(two.X), made.predict_proba(two.X))


def files_of(folder):
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_a_system_call_is_refused_by_name():
    """Wherever it stands in the file."""
    for odd in (FunctionTransformer(os.system), FunctionTransformer(partial(os.system, "true"))):
        content = write_classifier(make_pipeline(odd, LogisticRegression()))
        with pytest.raises(ValueError, match=r"not known to be harmless: \['\w+\.system'\]"):
            read_classifier(content, ())


@pytest.mark.parametrize("kind", [DecisionTreeClassifier, HistGradientBoostingClassifier, RandomForestClassifier])
@pytest.mark.parametrize("field", ["left", "feature", "circle", "width"])
def test_trees_that_lead_astray_are_refused(rows, kind, field):
    classifier = kind().fit(*rows)
    if kind is HistGradientBoostingClassifier:
        nodes = classifier._predictors[0][0].nodes
        if field == "width":
            classifier.n_features_in_ = 1
        else:
            nodes[{"left": "left", "feature": "feature_idx", "circle": "right"}[field]][0] = (
                0 if field == "circle" else 10**6
            )
    else:
        tree = classifier if kind is DecisionTreeClassifier else classifier.estimators_[2]
        state = tree.tree_.__getstate__()
        if field == "width":
            tree.n_features_in_ = 4
        else:
            name, value = {"left": ("left_child", 10**6), "feature": ("feature", 10**6), "circle": ("right_child", 0)}[
                field
            ]
            nodes = state["nodes"].copy()
            nodes[name][0] = value
            tree.tree_.__setstate__({**state, "nodes": nodes})
    with pytest.raises(ValueError, match="point outside of it or use features"):
        read_classifier(write_classifier(classifier), ())


def test_what_skops_cannot_write_stays_outside_with_a_warning(two, tmp_path):
    odd = make_pipeline(FunctionTransformer(lambda X: X), LogisticRegression()).fit(two.X, two.y)
    model = sw.PrevalenceAdjuster(odd, rehearsal=None).fit(two.X, two.y)
    with pytest.warns(UserWarning, match=r"\(Pipeline\) cannot be written by skops.*estimator="):
        model.save(tmp_path / "model")
    with pytest.raises(ValueError, match=r"classifier of your own \(Pipeline\)"):
        sw.load(tmp_path / "model")
    again = sw.load(tmp_path / "model", estimator=odd)
    np.testing.assert_array_equal(again.predict_proba(two.X), model.predict_proba(two.X))


PREDICT = """
import sys, numpy as np, pandas as pd, sitewise as sw
here = sw.load(sys.argv[1])
frame = pd.read_parquet(sys.argv[2])
np.save(sys.argv[3], here.predict_proba(frame.drop(columns="z"), sample_confounder=frame[["z"]]))
"""


@pytest.mark.parametrize("kind", ["pipeline around a network", "adjuster around a pipeline"])
def test_one_folder_predicts_alone_in_a_new_process(tmp_path, kind):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=200), "b": rng.choice(["x", "y", "z"], size=200)})
    frame.loc[::9, "a"] = np.nan
    z = pd.DataFrame({"z": rng.choice(["f", "m"], size=200)})
    y = ((frame["b"] == "x") ^ (rng.random(200) < 0.2)).astype(int)
    front = make_column_transformer(
        (make_pipeline(SimpleImputer(), StandardScaler()), ["a"]), (OneHotEncoder(handle_unknown="ignore"), ["b"])
    )
    if kind == "pipeline around a network":
        last = sw.GPAClassifier(epochs=1, device="cpu", rehearsal=None)
        model = Pipeline([("front", front), ("gpa", last)]).fit(frame, y, gpa__sample_confounder=z)
    else:
        inside = make_pipeline(front, RandomForestClassifier(10, random_state=0))
        model = sw.PrevalenceAdjuster(inside, rehearsal=None).fit(frame, y, sample_confounder=z)
    here = sw.adapt(model, frame, sample_confounder=z)
    sw.save(here, tmp_path / "site")
    frame.assign(z=z["z"]).to_parquet(tmp_path / "rows.parquet")
    arguments = [str(tmp_path / name) for name in ("site", "rows.parquet", "answer.npy")]
    run = subprocess.run([sys.executable, "-c", PREDICT, *arguments], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    expected = here.predict_proba(frame, sample_confounder=z)
    np.testing.assert_allclose(np.load(tmp_path / "answer.npy"), expected, rtol=0, atol=1e-12)
    again = sw.load(tmp_path / "site")
    assert type(again) is type(here)
    sw.save(again, tmp_path / "site")  # in its own place, and once more
    np.testing.assert_array_equal(sw.load(tmp_path / "site").predict_proba(frame, sample_confounder=z), expected)


def test_requests_for_metadata_are_kept(two, tmp_path):
    with sklearn.config_context(enable_metadata_routing=True):
        model = sw.PrevalenceAdjuster(LogisticRegression(), rehearsal=None)
        model.set_fit_request(sample_domain=True, sample_confounder=True).set_score_request(sample_confounder=True)
        model.fit(two.X, two.y, sample_confounder=two.Z)
        model.save(tmp_path / "model")
        again = sw.load(tmp_path / "model")
        for name in ("fit", "score", "predict_proba"):
            asked, kept = (getattr(one.get_metadata_routing(), name).requests for one in (model, again))
            assert [key for key in asked if asked[key]] == [key for key in kept if kept[key]]


def test_a_pipeline_of_something_else_is_not_saved(two, tmp_path):
    with pytest.raises(TypeError, match="a LogisticRegression cannot be saved"):
        sw.save(make_pipeline(StandardScaler(), LogisticRegression()).fit(two.X, two.y), tmp_path / "model")
    assert not (tmp_path / "model").exists()
    network = sw.GPAClassifier(epochs=1, device="cpu", rehearsal=None)
    odd = make_pipeline(FunctionTransformer(lambda X: X), network).fit(two.X[:80], two.y[:80])
    with pytest.warns(UserWarning, match="by skops"), pytest.raises(TypeError, match="save its last step"):
        sw.save(odd, tmp_path / "model")
    assert not (tmp_path / "model").exists()
