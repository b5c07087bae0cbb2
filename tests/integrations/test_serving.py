"""Servers that are really started: by `mlflow models serve` and by `sitewise serve`."""

import io
import json
import shutil
import socket
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from integrations.conftest import post, served
from sitewise.cli import main
from sitewise.integrations import mlflow as ours
from sitewise.integrations.frames import FrameModel

pytest.importorskip("mlflow.pyfunc", reason="the extra `mlflow` is not installed")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ImportWarning")

MARK = "from pathlib import Path; Path({place!r}).write_text('code of the artifact ran')"


def as_split(frame):
    data = frame.astype(object).where(frame.notna(), None).to_numpy().tolist()
    return json.dumps({"dataframe_split": {"columns": list(frame), "data": data}}).encode()


def probabilities(answer):
    status, text = answer
    assert status == 200, text
    found = pd.DataFrame(json.loads(text)["predictions"])
    return found[["p_ill", "p_well"]].to_numpy()


@pytest.fixture(scope="module")
def by_mlflow(table, tmp_path_factory):
    """`mlflow models serve` of a model into whose folder code was put, started in that folder."""
    place = tmp_path_factory.mktemp("mlflow")
    ours.save_model(table.here, place / "model")
    mark = place / "ran"
    for name in ("sitecustomize.py", "sitewise.py", "data/sitewise_model/__init__.py", "code/sitewise/__init__.py"):
        (place / "model" / name).parent.mkdir(parents=True, exist_ok=True)
        (place / "model" / name).write_text(MARK.format(place=str(mark)))
    mlflow = shutil.which("mlflow", path=Path(sys.executable).parent)
    command = [mlflow, "models", "serve", "--model-uri", place / "model", "--env-manager", "local", "--port"]
    with served(command, place / "log", cwd=place) as address:
        yield address, mark


@pytest.fixture(scope="module")
def by_us(table, tmp_path_factory):
    place = tmp_path_factory.mktemp("site")
    table.here.save(place / "site")
    with served([sys.executable, "-m", "sitewise", "serve", place / "site", "--port"], place / "log") as address:
        yield address, None


def test_mlflow_serves_what_the_site_says(table, by_mlflow):
    check_answers(table, by_mlflow[0])
    assert not by_mlflow[1].exists(), "the server ran code of the artifact"


def test_sitewise_serves_what_the_site_says(table, by_us):
    check_answers(table, by_us[0])
    csv = table.frame.to_csv(index=False).encode()
    assert np.abs(probabilities(post(by_us[0], csv, "text/csv")) - table.proba).max() <= 1e-12


@pytest.mark.parametrize(
    ("body", "kind"),
    [(b"\n", "text/csv"), (b"PAR1" + 100 * b"?" + b"PAR1", "application/vnd.apache.parquet")],
    ids=["empty CSV", "spoiled Parquet"],
)
def test_an_answer_to_unreadable_rows_has_no_traceback(by_us, body, kind):
    status, text = post(by_us[0], body, kind)
    assert 400 <= status < 500
    assert "Failed to parse input" in json.loads(text)["message"]
    assert "Traceback" not in text
    assert ".py" not in text


def check_answers(table, address):
    for frame, expected in ((table.frame, table.proba), (table.frame[::-1], table.proba[::-1])):
        assert np.abs(probabilities(post(address, as_split(frame))) - expected).max() <= 1e-12
    assert np.abs(probabilities(post(address, as_split(table.frame[:1]))) - table.proba[:1]).max() <= 1e-12
    records = {"dataframe_records": table.frame.astype(object).to_dict(orient="records")}
    assert np.abs(probabilities(post(address, json.dumps(records).encode())) - table.proba).max() <= 1e-12
    packed = io.BytesIO()
    table.frame.to_parquet(packed)
    answer = post(address, packed.getvalue(), "application/vnd.apache.parquet")
    assert np.abs(probabilities(answer) - table.proba).max() <= 1e-12
    without = FrameModel(table.here).predict_proba(table.frame.drop(columns="age0"))
    for gaps in (table.frame.drop(columns="age0"), table.frame.assign(age0=None)):
        assert np.abs(probabilities(post(address, as_split(gaps))) - without).max() <= 1e-12
    assert np.abs(without - table.proba).max() > 1e-6


WRONG = {
    "no such column": lambda frame: frame.drop(columns="lab0"),
    "text for a number": lambda frame: frame.assign(lab1="high"),
    "infinite": lambda frame: frame.assign(lab1=np.inf),
    "a list in a cell": lambda frame: frame.assign(lab1=[[1.0]] * len(frame)),
    "text for an age": lambda frame: frame.assign(age0="old"),
    "no rows": lambda frame: frame[:0],
}


@pytest.mark.parametrize("server", ["by_mlflow", "by_us"])
@pytest.mark.parametrize("wrong", WRONG)
def test_a_bad_request_gets_our_sentence(table, server, wrong, request):
    frame = WRONG[wrong](table.frame[:3])
    with pytest.raises(ValueError, match="table: ") as ours:
        FrameModel(table.here).predict(frame)
    status, text = post(request.getfixturevalue(server)[0], as_split(frame))
    assert status == 400
    assert str(ours.value) in json.loads(text)["message"]


@pytest.mark.parametrize("server", ["by_mlflow", "by_us"])
def test_what_is_no_table_is_refused(server, request):
    address = request.getfixturevalue(server)[0]
    assert post(address, b"{")[0] == 400
    assert post(address, b'{"rows": [1]}')[0] == 400
    assert post(address, b"a", "text/plain")[0] == 415
    status, text = post(address, b'{"instances": "x"}')
    assert status == 400
    assert "Traceback" not in text


def test_a_deep_body_is_refused(by_us):
    status, text = post(by_us[0], b'{"dataframe_split":' + b'{"a":' * 50_000)
    assert status == 400
    assert "nested too deep" in json.loads(text)["message"]


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_busy_port_is_named_before_anything_is_announced(table, tmp_path, monkeypatch, capsys, workers):
    table.here.save(tmp_path / "site")
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        words = ["sitewise", "serve", str(tmp_path / "site"), "--port", str(port), "--workers", workers]
        monkeypatch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit) as end:
            main()
    said = capsys.readouterr()
    assert end.value.code == 2
    assert said.out == ""
    assert len(said.err.splitlines()) == 1
    assert f"cannot listen at 127.0.0.1:{port} (address already in use): choose another --port" in said.err
