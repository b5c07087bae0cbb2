"""The exported graph says what the model says, at any number of rows and with any part of z missing."""

import copy
import json
import re
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn

import sitewise as sw
from sitewise.adaptation.posterior.points import Points, Posterior
from sitewise.calibration import Calibration
from sitewise.diagnosis import Finding
from sitewise.estimator.files import exporting
from sitewise.estimator.files.exporting import NO_LIBRARY
from sitewise.estimator.files.graph import OWN_ESTIMATOR
from sitewise.estimator.source.regions import Region
from sitewise.posterior import combine
from sitewise.prevalence.additive import AdditivePrevalence, missing_features
from sitewise.prevalence.base import ConstantPrevalence
from sitewise.prevalence.network import NetworkPrevalence, build_network
from sitewise.prevalence.table import TablePrevalence

runtime = pytest.importorskip("onnxruntime", reason="the extra `onnx` is not installed")
pytest.importorskip("onnx", reason="the extra `onnx` is not installed")


@pytest.fixture(scope="module")
def sites():
    family = sw.SimulatedFamily(seed=0)
    training = [family.site(300, name=name, seed=number) for number, name in enumerate(["north", "south"])]
    Z = pd.concat([site.Z for site in training], ignore_index=True)
    X, y = (np.concatenate([getattr(site, part) for site in training]) for part in ("X", "y"))
    return SimpleNamespace(X=X, y=y, Z=Z, names=np.repeat(["north", "south"], 300), new=family.site(200, seed=7))


def with_gaps(Z, seed=0):
    """z of which a third is missing, two levels are new and one number lies far outside."""
    hidden = np.random.default_rng(seed).random(Z.shape) < 1 / 3
    hidden[:20], hidden[20] = False, True
    Z = Z.mask(hidden)
    Z.loc[0, "group0"], Z.loc[1, "group1"] = "a new level", "another"
    if "age0" in Z:
        Z.loc[2, "age0"] = 1e6
    return Z


def as_numbers(Z, confounders):
    """z for the graph, by its own description of it."""
    columns = []
    for variable in confounders:
        column = Z[variable["name"]]
        if "levels" in variable:
            column = column.map({level: float(place) for place, level in enumerate(variable["levels"])})
        columns.append(column.to_numpy(dtype=np.float64, na_value=np.nan))
    return np.stack(columns, axis=1)


def run(path, x, Z=None):
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    metadata = json.loads(session.get_modelmeta().custom_metadata_map["sitewise"])
    feed = {"x": x.astype(metadata["x"]["type"])}
    if Z is not None:
        feed["z"] = as_numbers(Z, metadata["z"])
    return session.run(["probability"], feed)[0], metadata


def prevalences(schema, codes):
    """One g of every kind over z, and those that are shrunk to others."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    levels = torch.log_softmax(draw(2), 0)
    coefficients = draw(missing_features(schema)[-1] + 1, 2)
    cells = torch.unique(codes, dim=0)[::2]
    table = TablePrevalence(schema, cells, torch.log_softmax(draw(len(cells), 2), 1), torch.arange(len(cells)).double())
    return {
        "constant": ConstantPrevalence(levels),
        "table": table,
        "additive": AdditivePrevalence(schema, coefficients, levels),
        "network": NetworkPrevalence(schema, build_network(schema, 2, seed=1), levels),
        "additive around a table": AdditivePrevalence(schema, coefficients, levels, table),
    }


def estimates(schema, codes):
    """Estimates of every kind of g, and posteriors around each of them."""
    generator = torch.Generator().manual_seed(1)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def estimate(g):
        def average(log_ratio, codes):
            return combine(log_ratio, g.log_prob(codes)).exp()

        return SimpleNamespace(prevalence=g, average=average, _fit=SimpleNamespace(posterior=None))

    def posterior(source, deviation):
        level = draw(8)[:, None] * torch.tensor([-0.5, 0.5])
        own = draw(8, missing_features(schema)[-1] + 1, 2) if deviation else None
        marginal, weight = torch.log_softmax(draw(8, 2), 1), torch.softmax(draw(8), 0)
        points = Points(source, 0.3 * draw(2), 1 + draw(8), level, own, weight, marginal, schema)
        kept = Posterior(points, marginal.exp(), 0.7, 1.0)

        def average(log_ratio, codes):
            return points.average(log_ratio, codes, kept.slope)

        return SimpleNamespace(prevalence=points, average=average, _fit=SimpleNamespace(posterior=kept))

    single = prevalences(schema, codes)
    around = {f"posterior around {name}": posterior(g, name != "network") for name, g in single.items()}
    return {name: estimate(g) for name, g in single.items()} | around


@pytest.fixture(scope="module")
def here(sites):
    model = sw.GPAClassifier(missing="knockout", epochs=10, rehearsal=None)
    model.fit(sites.X, sites.y, sample_domain=sites.names, sample_confounder=sites.Z)
    slope, bias = torch.tensor([0.7, 1.3]).double(), torch.tensor([0.4, -0.4]).double()
    model.calibrations_ = (Calibration("vector", slope, bias), Calibration("vector", slope.flip(0), -bias))
    return model.adapt(sites.new.X, sample_confounder=sites.new.Z)


KINDS = ["constant", "table", "additive", "network", "additive around a table"]


@pytest.mark.parametrize("name", [*KINDS, *(f"posterior around {kind}" for kind in KINDS)])
@pytest.mark.filterwarnings("ignore:confounder")
def test_graph_and_model_agree_for_every_g(sites, here, tmp_path, name):
    schema = here.model.confounders_
    site = here.unchecked()
    site.estimate = estimates(schema, here.rows.codes)[name]
    Z = with_gaps(sites.new.Z)
    path = site.export_onnx(tmp_path / "site.onnx")
    ours = site.predict_proba(sites.new.X, Z)
    assert ours.std(axis=0).min() > 0.01
    for rows in (slice(0, 1), slice(0, 200)):
        exported, _ = run(path, sites.new.X[rows], Z.iloc[rows])
        assert np.abs(exported - ours[rows]).max() <= 1e-5
    exact, _ = run(site.export_onnx(tmp_path / "double.onnx", dtype="float64"), sites.new.X, Z)
    assert np.abs(exact - ours).max() <= 1e-9


def test_graph_says_what_goes_in_and_out(sites, tmp_path):
    frame = pd.DataFrame(sites.X, columns=[f"lab {j}" for j in range(sites.X.shape[1])])
    model = sw.GPAClassifier(epochs=1, calibration="none").fit(
        frame, np.array(["well", "ill"])[sites.y], sample_confounder=sites.Z
    )
    here = model.adapt(frame, sample_confounder=sites.Z)
    here.threshold_, here.site_name = 0.25, "West"
    _, metadata = run(here.export_onnx(tmp_path / "new folder" / "site.onnx"), sites.X, sites.Z)
    assert (metadata["x"]["columns"], metadata["x"]["type"]) == (list(frame), "float32")
    assert [variable["name"] for variable in metadata["z"]] == list(sites.Z)
    assert (metadata["classes"], metadata["threshold"], metadata["site"]) == (["ill", "well"], 0.25, "West")


def test_images_as_bytes_or_floats(tmp_path):
    rng = np.random.default_rng(0)
    images, y, age = rng.integers(0, 256, (120, 1, 12, 12), dtype=np.uint8), np.arange(120) % 3, rng.normal(size=120)
    model = sw.GPAClassifier(backbone="cnn", calibration="none", epochs=1).fit(
        images, y, sample_confounder=pd.DataFrame({"age": age})
    )
    here = model.adapt(images, sample_confounder=pd.DataFrame({"age": age}))
    Z = pd.DataFrame({"age": np.where(np.arange(120) < 9, np.nan, age)})
    ours = here.predict_proba(images, Z)
    for x, dtype in ((images, "auto"), (images / 255, "float32")):
        exported, _ = run(here.export_onnx(tmp_path / "site.onnx", dtype=dtype), x, Z)
        assert np.abs(exported - ours).max() <= 1e-5


def test_without_confounders_there_is_no_z(sites, tmp_path):
    here = sw.GPAClassifier(epochs=1, calibration="none").fit(sites.X, sites.y).adapt(sites.new.X)
    path = here.export_onnx(tmp_path / "site.onnx")
    assert [part.name for part in runtime.InferenceSession(path).get_inputs()] == ["x"]
    assert np.abs(run(path, sites.new.X)[0] - here.predict_proba(sites.new.X)).max() <= 1e-5


@pytest.mark.parametrize("sees", ["x", "xz"])
@pytest.mark.parametrize("prevalence", ["table", "additive"])
@pytest.mark.filterwarnings("ignore:confounder")
def test_adjustment_of_probabilities(sites, tmp_path, sees, prevalence):
    names = ["group0", "group1"] if prevalence == "table" else list(sites.Z)
    classifier = LogisticRegression().fit(sites.X[::2], sites.y[::2])
    post = sw.PrevalenceAdjuster(prevalence=prevalence, classifier_sees=sees)
    post.fit(classifier.predict_proba(sites.X), sites.y, sample_confounder=sites.Z[names])
    proba = classifier.predict_proba(sites.new.X)
    here = post.adapt(proba, sample_confounder=sites.new.Z[names])
    Z = with_gaps(sites.new.Z[names])
    exported, metadata = run(here.export_onnx(tmp_path / "site.onnx"), proba, Z)
    assert metadata["x"]["meaning"] == "probabilities"
    assert np.abs(exported - here.predict_proba(proba, Z)).max() <= 1e-5


@pytest.mark.filterwarnings("ignore:confounder")
def test_the_joint_model_of_rows_without_z(sites, tmp_path):
    """Rows without z, with a part of it and with all of it, of a site adapted without z."""
    model = sw.GPAClassifier(missing="joint", epochs=4, rehearsal=None)
    model.fit(sites.X, sites.y, sample_domain=sites.names, sample_confounder=sites.Z)
    joint = model.adapt(sites.new.X)
    knockout = copy.copy(joint)
    knockout.joint = None
    Z = with_gaps(sites.new.Z)
    hidden = Z.isna().any(axis=1).to_numpy()
    ours = joint.predict_proba(sites.new.X, Z)
    assert np.abs(ours - knockout.predict_proba(sites.new.X, Z))[hidden].max() > 1e-3
    for dtype, tolerance in (("float32", 1e-5), ("float64", 1e-7)):  # f reads z in single precision
        path = joint.export_onnx(tmp_path / f"{dtype}.onnx", dtype=dtype)
        for rows in (slice(0, 1), slice(0, 200)):
            exported, _ = run(path, sites.new.X[rows], Z.iloc[rows])
            assert np.abs(exported - ours[rows]).max() <= tolerance


def test_the_joint_model_of_images(tmp_path):
    """The critic reads every layer of the backbone."""
    rng = np.random.default_rng(0)
    y, age = np.arange(200) % 2, rng.normal(60, 9, 200)
    images = rng.integers(0, 100, (200, 1, 12, 12), dtype=np.uint8) + (60 * y[:, None, None, None]).astype(np.uint8)
    Z = pd.DataFrame({"age": age})
    model = sw.GPAClassifier(backbone="cnn", missing="joint", epochs=2, rehearsal=None)
    here = model.fit(images, y, sample_confounder=Z).adapt(images)
    Z = pd.DataFrame({"age": np.where(np.arange(200) % 2, np.nan, age)})
    exported, _ = run(here.export_onnx(tmp_path / "site.onnx"), images, Z)
    assert np.abs(exported - here.predict_proba(images, Z)).max() <= 1e-5


@pytest.mark.filterwarnings("ignore:confounder")
def test_the_joint_model_of_a_classifier_of_pairs(sites, tmp_path):
    points = pd.DataFrame({"group0": ["level 0", "level 1"]})
    pair = 2 * sites.Z["group0"].map({"level 0": 0, "level 1": 1}).to_numpy() + sites.y
    classifier = LogisticRegression().fit(sites.X[::2], pair[::2])
    proba, new = classifier.predict_proba(sites.X), classifier.predict_proba(sites.new.X)
    post = sw.PrevalenceAdjuster(joint=points, missing="joint", classes=[0, 1], rehearsal=None)
    here = post.fit(proba, sites.y, sample_domain=sites.names, sample_confounder=sites.Z[["group0"]]).adapt(new)
    Z = sites.new.Z[["group0"]].mask(np.arange(200)[:, None] % 3 == 0)
    exported, metadata = run(here.export_onnx(tmp_path / "site.onnx", dtype="float64"), new, Z)
    assert metadata["x"]["shape"] == ["rows", 4]
    assert np.abs(exported - here.predict_proba(new, Z)).max() <= 1e-9
    assert exported[::3].std() > 1e-3


@pytest.mark.filterwarnings("ignore:confounder")
@pytest.mark.filterwarnings("ignore:at group")
def test_policies_and_regions_where_the_training_g_is_kept(sites, here, tmp_path):
    model = copy.copy(here.model)
    model.unsupported_ = (Region(1, 0.0, 0), Region(2, 2.0, 1))
    here = model.adapt_log_ratio(model.log_ratio(sites.new.X, sites.new.Z), sites.new.Z)
    here = here.unchecked()
    here.estimate = estimates(model.confounders_, here.rows.codes)["additive"]
    Z = with_gaps(sites.new.Z)
    seen = []
    broken = Finding("stability", "stop", 0.0, 0.01, "Broken.", details={"gap": 0.9})
    for policy, findings in (("auto", ()), ("auto", (broken,)), ("as trained", ())):
        here = here.with_checks(findings)
        here.policy = policy
        exported, metadata = run(here.export_onnx(tmp_path / f"{len(seen)}.onnx"), sites.new.X, Z)
        assert metadata["outcome"] == str(here.outcome)
        assert np.abs(exported - here.predict_proba(sites.new.X.astype(np.float32), Z)).max() <= 1e-5
        seen.append(exported)
    assert min(np.abs(seen[0] - other).max() for other in seen[1:]) > 1e-3


class Folded(nn.Module):
    """A network whose output depends on how many rows come at once."""

    def forward(self, x):
        return x / len(x)


def test_what_cannot_be_exported_says_why(sites, here, tmp_path, monkeypatch):
    here = copy.copy(here)
    path = tmp_path / "site.onnx"
    with pytest.raises(ValueError, match=r"got 'flaot32'.*float32"):
        here.export_onnx(path, dtype="flaot32")
    with pytest.raises(ValueError, match="'uint8' is for images"):
        here.export_onnx(path, dtype="uint8")
    wrapped = sw.PrevalenceAdjuster(LogisticRegression()).fit(sites.X, sites.y).adapt(sites.new.X)
    with pytest.raises(ValueError, match=re.escape(OWN_ESTIMATOR.format(name="LogisticRegression"))):
        wrapped.export_onnx(path)
    folded = sw.GPAClassifier(backbone=Folded(), calibration="none", epochs=1).fit(sites.X, sites.y).adapt(sites.new.X)
    with pytest.raises(ValueError, match="must not depend on the number of rows"):
        folded.export_onnx(path)
    monkeypatch.setattr(exporting.importlib, "import_module", lambda name: __import__("no_such_" + name))
    with pytest.raises(ImportError) as caught:
        folded.export_onnx(path)
    assert str(caught.value) == NO_LIBRARY.format(error="No module named 'no_such_onnx'")
    assert not list(tmp_path.iterdir())


def test_a_very_rare_class_does_not_hide_a_wrong_graph():
    assert exporting.same_probabilities(np.array([[1.0, 1e-12]]), np.array([[1.0, 1.0001e-12]]))
    assert not exporting.same_probabilities(np.array([[1.0, 1e-12]]), np.array([[1.0, 3e-12]]))
