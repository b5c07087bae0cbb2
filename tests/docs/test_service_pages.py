"""The pages deploying.md and guides/service.md run as printed, with a server that is really started."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from docs.test_examples import DOCS, run_page

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ImportWarning")


@pytest.fixture
def mlflow():
    """The package, whose store is set again afterwards."""
    package = pytest.importorskip("mlflow", reason="the extra `mlflow` is not installed")
    before = package.get_tracking_uri()
    yield package
    package.set_tracking_uri(before)


@pytest.fixture
def processes(monkeypatch):
    """Processes that a page starts, ended with the test."""
    started = []

    class Recorded(subprocess.Popen):
        def __init__(self, *words, **settings):
            super().__init__(*words, **settings)
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Recorded)
    yield started
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.parametrize("name", ["deploying.md", "guides/service.md"])
def test_a_page_about_serving_runs(name, mlflow, processes, tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime", reason="the extra `onnx` is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    text = (DOCS / name).read_text()
    run_page(DOCS / name, text=text.replace("5001", port))
