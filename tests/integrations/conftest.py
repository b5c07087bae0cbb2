"""A small site that reads tables, and servers that are really started."""

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import sitewise as sw
from sitewise.tables import Roles

STARTS_IN = 300  # seconds that a server may take on a busy machine


@pytest.fixture(scope="session")
def table():
    """A site fitted to a table of numbers and categories, and new rows of it as a frame."""
    family = sw.SimulatedFamily(n_continuous=1, levels=(2,), seed=0)
    training = [family.site(200, seed=number) for number in range(2)]
    X = pd.DataFrame(np.concatenate([site.X for site in training])).add_prefix("lab")
    Z = pd.concat([site.Z for site in training], ignore_index=True)
    y = np.array(["well", "ill"])[np.concatenate([site.y for site in training])]
    labeled = pd.concat([X, Z], axis=1).assign(y=y, hospital=np.repeat(["north", "south"], 200))
    reader = sw.TableReader.learn(labeled, Roles("y", "hospital", confounders=tuple(Z), features=tuple(X)))
    rows = reader.read(labeled)
    model = sw.GPAClassifier(epochs=2, missing="knockout", device="cpu")
    model.fit(rows.X, rows.y, sample_domain=rows.site, sample_confounder=rows.Z).table_reader_ = reader
    new = family.site(60, seed=7)
    frame = pd.concat([pd.DataFrame(new.X, columns=X.columns), new.Z], axis=1)
    read = reader.read(frame, labels="none")
    here = model.adapt(read.X, sample_confounder=read.Z)
    here.threshold_ = 0.3
    proba = here.predict_proba(read.X, sample_confounder=read.Z)
    return SimpleNamespace(here=here, frame=frame, proba=proba, X=X, Z=Z, y=y, labeled=labeled)


def post(address, data, kind="application/json"):
    """The status and the text of an answer."""
    request = urllib.request.Request(f"{address}/invocations", data=data, headers={"Content-Type": kind})
    try:
        with urllib.request.urlopen(request, timeout=STARTS_IN) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@contextmanager
def served(command, log, **settings):
    """The address of a server that a command starts, which takes the port as its last word; ended afterwards."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    with log.open("w") as said:
        process = subprocess.Popen(
            [*map(str, command), str(port)],
            stdout=said,
            stderr=said,
            env={**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"},
            **settings,
        )
        try:
            address, limit = f"http://127.0.0.1:{port}", time.monotonic() + STARTS_IN
            while not up(address):
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < limit, log.read_text()
                time.sleep(0.2)
            yield address
        finally:
            process.terminate()
            process.wait(STARTS_IN)


def up(address):
    try:
        with urllib.request.urlopen(f"{address}/ping", timeout=STARTS_IN) as answer:
            return answer.status == 200
    except OSError:
        return False
