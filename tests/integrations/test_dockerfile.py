"""The steps of the Dockerfile, run as a script: no image can be built in a test, and none has to be.

Everything that `COPY` names goes into an empty folder. The `RUN` steps run there with the environment of the tests in
place of a new one: `pip install` asks for what is installed already, without the network. The `CMD` starts.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from integrations.conftest import post, served

pytest.importorskip("mlflow.pyfunc", reason="the extra `mlflow` is not installed")
ROOT = Path(__file__).parents[2]
STEPS = [
    tuple(line.split(maxsplit=1))
    for line in (ROOT / "Dockerfile").read_text().splitlines()
    if line and not line.startswith("#")
]


def steps(kind):
    return [words for name, words in STEPS if name == kind]


def test_every_step_is_one_that_this_test_knows():
    known = {"FROM", "ENV", "WORKDIR", "COPY", "RUN", "USER", "EXPOSE", "CMD"}
    assert {name for name, _ in STEPS} == known
    assert steps("FROM") == ["python:3.11-slim"]
    assert STEPS[-1][0] == "CMD"


def test_what_is_copied_is_there_and_is_enough_to_make_the_package(tmp_path):
    """And it is let through by .dockerignore."""
    let_through = [line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().splitlines()[1:]]
    for words in steps("COPY"):
        *sources, target = words.split()
        assert set(sources) <= set(let_through)
        for source in sources:
            place = tmp_path / target / ("" if target == "src" else source)
            copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copy
            copy(ROOT / source, place)
    no_build = "import setuptools.build_meta as b; b.prepare_metadata_for_build_wheel('.')"
    subprocess.run([sys.executable, "-c", no_build], cwd=tmp_path, check=True, capture_output=True)
    (metadata,) = tmp_path.glob("*.dist-info/METADATA")
    assert "Provides-Extra: mlflow" in metadata.read_text()


def test_what_is_installed_is_what_the_tests_run_with(tmp_path):
    """Every `pip install` is satisfied by this environment under the same constraints, without the network."""
    installs = [words for words in steps("RUN") if "pip install" in words]
    assert len(installs) == 1
    for words in installs:
        words = re.sub(r"--(extra-)?index-url \S+", "", words).replace("'.[mlflow,images]'", "sitewise[mlflow,images]")
        command = words.replace(
            "python -m pip install", f"{sys.executable} -m pip install --dry-run --no-index --quiet"
        )
        environment = {**os.environ, "PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": os.devnull, "PIP_NO_INPUT": "1"}
        run = subprocess.run(command, shell=True, cwd=ROOT, env=environment, capture_output=True, text=True)
        assert run.returncode == 0, run.stderr
    others = [words for words in steps("RUN") if "pip install" not in words]
    assert others == ["useradd --create-home service"]
    assert steps("USER") == ["service"]


def test_the_command_serves_a_saved_site(table, tmp_path):
    (words,) = steps("CMD")
    command = json.loads(words)
    assert command[:3] == ["sitewise", "serve", "/site"]
    assert steps("EXPOSE") == [command[-1]]
    table.here.save(tmp_path / "site")
    own = {"/site": str(tmp_path / "site"), "sitewise": str(Path(sys.executable).with_name("sitewise"))}
    command = [own.get(word, word) for word in command[:-1]]
    with served(command, tmp_path / "log") as address:
        data = {"columns": list(table.frame), "data": table.frame.to_numpy(dtype=object).tolist()}
        status, text = post(address, json.dumps({"dataframe_split": data}).encode())
    assert status == 200, text
    found = pd.DataFrame(json.loads(text)["predictions"])[["p_ill", "p_well"]].to_numpy()
    assert np.abs(found - table.proba).max() <= 1e-12
