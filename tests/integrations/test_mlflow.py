"""Models in MLflow, by the real package: saved, logged to SQLite, loaded, with nothing in them that runs."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import sitewise as sw
from sitewise.integrations import mlflow as ours
from sitewise.integrations.frames import FrameModel

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ImportWarning")
mlflow = pytest.importorskip("mlflow.pyfunc", reason="the extra `mlflow` is not installed") and __import__("mlflow")


@pytest.fixture
def store(tmp_path, monkeypatch):
    """An empty store in SQLite; what MLflow had before is set again, its experiment too."""
    before = mlflow.get_tracking_uri()
    monkeypatch.setattr(mlflow.tracking.fluent, "_active_experiment_id", None)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_ID", "0")  # where `set_experiment` keeps it for other processes
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    mlflow.create_experiment("trial", artifact_location=(tmp_path / "artifacts").as_uri())
    mlflow.set_experiment("trial")
    yield tmp_path
    mlflow.set_tracking_uri(before)


@pytest.fixture(scope="module")
def saved(table, tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "model"
    ours.save_model(table.here, path)
    return path


def test_a_saved_model_predicts_the_same(table, saved):
    predicted = mlflow.pyfunc.load_model(str(saved)).predict(table.frame)
    assert list(predicted) == ["p_ill", "p_well", "decision"]
    assert np.abs(predicted[["p_ill", "p_well"]].to_numpy() - table.proba).max() <= 1e-12
    assert (predicted["decision"] == np.where(table.proba[:, 1] >= 0.3, "well", "ill")).all()


def test_columns_in_any_order_confounders_missing_and_whole_numbers(table, saved):
    """What MLflow would refuse by the types of its signature."""
    model = mlflow.pyfunc.load_model(str(saved))
    whole = table.frame.assign(lab0=table.frame["lab0"].round().astype(int), age0=None)
    without = whole[sorted(whole.columns, reverse=True)].drop(columns="age0").assign(other="ignored")
    expected = FrameModel(table.here).predict_proba(whole)
    for frame in (whole, without):
        assert np.abs(model.predict(frame)[["p_ill", "p_well"]].to_numpy() - expected).max() <= 1e-12


def test_the_signature_and_the_metadata_name_the_columns(table, saved):
    record = mlflow.models.Model.load(str(saved))
    assert record.signature.inputs.input_names() == list(table.frame)
    assert record.signature.outputs.input_names() == ["p_ill", "p_well", "decision"]
    columns = {column["name"]: (column["kind"], column["needed"]) for column in record.metadata["sitewise"]["columns"]}
    assert columns["lab0"] == ("number", True)
    assert (columns["age0"], columns["group0"]) == (("number", False), ("category", False))


def test_the_artifact_holds_no_code_and_no_pickle(saved):
    files = {path.name for path in saved.rglob("*") if path.is_file()}
    assert {Path(name).suffix for name in files} <= {"", ".yaml", ".txt", ".json", ".safetensors", ".md"}
    record = mlflow.models.Model.load(str(saved)).flavors["python_function"]
    assert record["loader_module"] == "sitewise.integrations.mlflow"
    assert record["code"] is None


def test_logging_writes_parameters_rehearsal_outcome_and_report(table, store):
    with mlflow.start_run() as run:
        info = ours.log_model(table.here, "site", registered_model_name="risk")
    client = mlflow.MlflowClient()
    logged = client.get_run(run.info.run_id).data
    assert logged.params["epochs"] == "2"
    assert (logged.params["adapt_policy"], logged.params["adapt_rows"]) == ("auto", "60")
    low, middle, high = (logged.metrics[f"prevalence_ill{end}"] for end in ("_low", "", "_high"))
    assert low <= middle <= high
    assert middle == pytest.approx(table.here.prevalence()[0], abs=1e-12)
    assert logged.metrics["held_out_nll"] > 0
    assert logged.tags["sitewise.outcome"] == str(table.here.outcome)
    assert logged.tags["sitewise.rehearsal"] == table.here.model.rehearsal_.sentence
    files = {file.path for file in client.list_artifacts(run.info.run_id, "about_site")}
    assert files == {f"about_site/{name}" for name in ("outcome.json", "rehearsal.json", "report.html", "report.json")}
    place = Path(mlflow.artifacts.download_artifacts(run_id=run.info.run_id, artifact_path="about_site"))
    assert json.loads((place / "outcome.json").read_text())["sentence"] == table.here.outcome.sentence
    assert mlflow.load_table("about_site/rehearsal.json", [run.info.run_id])["site"].tolist() == ["north", "south"]
    assert "<html" in (place / "report.html").read_text()
    for uri in (info.model_uri, "models:/risk/1"):
        again = ours.load_model(uri)
        assert isinstance(again, sw.AdaptedClassifier)
        assert again.outcome.sentence == table.here.outcome.sentence
        predicted = mlflow.pyfunc.load_model(uri).predict(table.frame)
        assert np.abs(predicted["p_ill"] - table.proba[:, 0]).max() <= 1e-12


def test_logging_without_a_run_starts_one_and_ends_it(table, store):
    ours.log_model(table.here.model, report=False)
    assert mlflow.active_run() is None
    (run,) = mlflow.search_runs(output_format="list")
    assert (run.info.status, run.data.params["missing"]) == ("FINISHED", "knockout")


def around(classifier, table):
    model = sw.PrevalenceAdjuster(classifier, rehearsal=None)
    return model.fit(table.X, table.y, sample_confounder=table.Z).adapt(table.X, sample_confounder=table.Z)


def other_models(table):
    """Models that were fitted otherwise than to a table with roles, with their frames and what they say of them."""
    X, Z, y = table.X, table.Z, table.y
    both = pd.concat([X, Z], axis=1)
    network = {"epochs": 1, "missing": "knockout", "rehearsal": None, "device": "cpu"}
    arrays = sw.GPAClassifier(**network).fit(X.to_numpy(), y, sample_confounder=Z)
    frames = sw.GPAClassifier(**network).fit(X, y, sample_confounder=Z)
    by_hand = LogisticRegression().fit(X, y).predict_proba(X)
    probabilities = sw.PrevalenceAdjuster(rehearsal=None).fit(by_hand, y, sample_confounder=Z)
    encode = make_column_transformer((OneHotEncoder(), ["group0"]), (StandardScaler(), [*X, "age0"]))
    pipeline = make_pipeline(encode, sw.GPAClassifier(**network)).fit(both, y)
    at_columns = frames.adapt(both, confounder_columns=list(Z))
    images = np.random.default_rng(0).integers(0, 256, (len(y), 1, 8, 8), dtype=np.uint8)
    pictures = sw.GPAClassifier(backbone="cnn", **network).fit(images, y, sample_confounder=Z)
    named = both.set_axis([f"x{place}" for place in range(X.shape[1])] + list(Z), axis=1)
    yield "arrays", arrays.adapt(X.to_numpy(), Z), named, arrays.adapt(X.to_numpy(), Z).predict_proba(X.to_numpy(), Z)
    yield "frames as trained", frames, both, frames.predict_proba(X, sample_confounder=Z)
    yield "z among the columns", at_columns, both, at_columns.predict_proba(both)
    here = probabilities.adapt(by_hand, Z)
    scores = pd.DataFrame(by_hand, columns=["p_ill", "p_well"]).join(Z)
    yield "probabilities", here, scores, here.predict_proba(by_hand, Z)
    here = around(LogisticRegression(), table)
    yield "a classifier", here, both, here.predict_proba(X, Z)
    here = sw.adapt(pipeline, both)
    yield "a pipeline", here, both, here.predict_proba(both)
    here = pictures.adapt(images, Z)
    yield "images", here, Z.assign(x=[image.tolist() for image in images]), here.predict_proba(images, Z)


def test_models_of_every_kind(table, tmp_path):
    for name, model, frame, expected in other_models(table):
        ours.save_model(model, tmp_path / name)
        predicted = mlflow.pyfunc.load_model(str(tmp_path / name)).predict(frame)
        assert np.abs(predicted[["p_ill", "p_well"]].to_numpy() - expected).max() <= 1e-12, name
        assert predicted["p_ill"].std() > 1e-3, name


def test_images_come_as_bytes_of_files_and_never_by_name(tmp_path):
    Image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    for number in range(24):
        Image.fromarray(rng.integers(0, 256, (9, 9, 3), dtype=np.uint8)).save(tmp_path / f"{number}.png")
    frame = pd.DataFrame({"file": [f"{number}.png" for number in range(24)], "age": rng.normal(60, 9, 24)})
    labeled = frame.assign(y=np.arange(24) % 2)
    roles = sw.Roles("y", confounders=("age",), image="file")
    from sitewise.tables.reader import ImageInput

    reader = sw.TableReader.learn(labeled, roles, image=ImageInput(8, 3))
    rows = reader.read(labeled, root=tmp_path)
    model = sw.GPAClassifier(backbone="cnn", epochs=1, rehearsal=None, missing="knockout", calibration="none")
    model.fit(rows.X, rows.y, sample_confounder=rows.Z).table_reader_ = reader
    ours.save_model(model, tmp_path / "model")
    pyfunc = mlflow.pyfunc.load_model(str(tmp_path / "model"))
    sent = frame.assign(file=[(tmp_path / name).read_bytes() for name in frame["file"]])
    predicted = pyfunc.predict(sent)[["p_0", "p_1"]].to_numpy()
    assert np.abs(predicted - model.predict_proba(rows.X, sample_confounder=rows.Z)).max() <= 1e-12
    with pytest.raises(mlflow.exceptions.MlflowException, match="expected the bytes of an image file"):
        pyfunc.predict(frame)


def test_a_model_that_a_folder_cannot_hold_is_refused_at_once(table, tmp_path):

    network = torch.nn.Linear(table.X.shape[1], 2)
    model = sw.PrevalenceAdjuster(network, rehearsal=None, classes=["ill", "well"])
    model.fit(torch.tensor(table.X.to_numpy(copy=True)).float(), table.y)
    with pytest.raises(ValueError, match="classifier of your own"):
        ours.save_model(model, tmp_path / "model")
    assert not (tmp_path / "model").exists()
    with pytest.raises(TypeError, match="a LogisticRegression cannot be saved"):
        ours.save_model(LogisticRegression(), tmp_path / "model")


def test_mlflow_is_imported_by_nothing_but_a_call():
    code = (
        "import sys, sitewise.cli, sitewise.integrations.mlflow, sitewise.integrations.serving; "
        "print([name for name in ('mlflow', 'fastapi', 'uvicorn', 'sqlalchemy') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_without_mlflow_the_error_says_what_to_install(table, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow.pyfunc", None)
    with pytest.raises(ImportError, match=r'pip install "sitewise\[mlflow\]"'):
        ours.save_model(table.here, tmp_path / "model")


@pytest.mark.filterwarnings("ignore:confounder")
def test_few_rows_are_read_as_many_are(table):
    """Value by value: the bits of the reader of whole tables, for numbers, levels, gaps and what is unusual."""
    from sitewise.tables.few import FEW, read_few

    family = table.labeled.assign(
        smoker=np.where(table.labeled["lab0"] > 0, "yes", "no"),
        dose=table.labeled["lab1"].where(table.labeled.index % 3 > 0),
    )
    family.loc[::5, "smoker"] = None
    roles = sw.Roles("y", "hospital", confounders=("age0", "group0"), features=("lab0", "dose", "smoker"))
    reader = sw.TableReader.learn(family, roles)
    frame = family.drop(columns=["y", "hospital"])[:FEW]
    gaps = frame.assign(dose=np.nan, smoker=None, age0=None)
    for some in (frame, frame[:1], gaps, frame.drop(columns="age0"), frame.assign(smoker="new", lab0=3, group0=None)):
        few, many = read_few(reader, some), reader.read(some, labels="none")
        assert (few[0] == many.X).all()
        schema = sw.Confounders.learn(reader.read(family).Z)
        assert (schema.encode(few[1], quiet=True)[0] == schema.encode(many.Z, quiet=True)[0]).all()
    odd = (frame.assign(lab0="high"), frame.assign(lab0=np.inf), frame.assign(lab0=True), frame.drop(columns="dose"))
    assert [read_few(reader, some) for some in (*odd, family, frame[:0])] == [None] * 6
    assert read_few(reader, frame.drop(columns=["age0", "group0"]))[1] is None


def test_a_trace_predicts_few_rows_to_the_bit_or_not_at_all(table):
    from sitewise.integrations import tracing

    plain, traced = FrameModel(table.here), FrameModel(table.here).trace()
    assert traced.traced is not None
    gaps = table.frame.assign(age0=table.frame["age0"].where(table.frame.index % 2 == 0), group0=None)
    for frame in (table.frame[:1], table.frame[:16], table.frame, gaps[:16], gaps[1:2]):
        assert np.abs(traced.predict_proba(frame) - plain.predict_proba(frame)).max() <= 1e-13
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tracing.AdaptedGraph, "at", lambda graph, x, codes: torch.full((len(x), 2), 0.5).double())
        assert FrameModel(table.here).trace().traced is None


@pytest.mark.parametrize("error", [RuntimeError, TypeError, torch.jit.Error])
def test_a_site_that_torch_cannot_trace_predicts_as_it_is_and_a_mistake_of_ours_is_raised(table, monkeypatch, error):
    from sitewise.integrations import tracing

    def refuse(kind):
        def at(graph, x, codes):
            raise kind("no")

        monkeypatch.setattr(tracing.AdaptedGraph, "at", at)

    refuse(error)
    assert FrameModel(table.here).trace().traced is None
    refuse(KeyError)
    with pytest.raises(KeyError):
        FrameModel(table.here).trace()
