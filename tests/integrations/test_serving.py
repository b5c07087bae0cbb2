"""Servers that are really started: by `mlflow models serve` and by `sitewise serve`."""

import json
import shutil
import sys

import numpy as np
import pandas as pd
import pytest

from integrations.conftest import post, served
from sitewise.integrations import mlflow as ours

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
    command = ["mlflow", "models", "serve", "--model-uri", place / "model", "--env-manager", "local", "--port"]
    command[0] = shutil.which("mlflow", path=str(sys.executable).rpartition("/")[0]) or "mlflow"
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


def check_answers(table, address):
    gaps = table.frame.assign(age0=None)
    records = json.dumps({"dataframe_records": json.loads(table.frame.to_json(orient="records", double_precision=15))})
    for data in (as_split(table.frame), as_split(table.frame[::-1])[::1]):
        expected = table.proba if data == as_split(table.frame) else table.proba[::-1]
        assert np.abs(probabilities(post(address, data)) - expected).max() <= 1e-12
    one = probabilities(post(address, as_split(table.frame[:1])))
    assert np.abs(one - table.proba[:1]).max() <= 1e-12
    assert np.abs(probabilities(post(address, records.encode())) - table.proba).max() <= 1e-9
    assert np.abs(probabilities(post(address, as_split(gaps))) - table.proba).max() > 1e-6


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
    from sitewise.integrations.frames import FrameModel

    frame = WRONG[wrong](table.frame[:3])
    with pytest.raises(ValueError, match=".") as ours:
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
