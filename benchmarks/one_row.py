"""Time that a saved site takes to predict one row, without the overhead of a service.

    python benchmarks/one_row.py [--calls 500]

Two sites are adapted, saved and loaded: an adjusted logistic regression, and a network. z has two continuous and two
categorical variables. Rows are passed as arrays, as data frames, and as tables. A table is a data frame of numbers and
categories that the model's reader prepares first, as in `sitewise predict`. The output has the medians of wall time and
of processor time, and the first decile of processor time. The limits are for a machine without other work; otherwise
even the first decile is larger.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.linear_model import LogisticRegression

import sitewise as sw
from sitewise.tables import Roles

LIMITS = {"arrays": 2.0, "frames": 8.0, "tables": 8.0}  # ms
TARGET, SITE = "y", "hospital"


def sites() -> tuple[pd.DataFrame, np.ndarray, pd.DataFrame, list[str], sw.SimulatedFamily]:
    family = sw.SimulatedFamily(n_continuous=2, levels=(2, 3), seed=0)
    sites = [family.site(500, seed=seed) for seed in range(3)]
    X = pd.DataFrame(np.concatenate([site.X for site in sites])).add_prefix("x")
    Z = pd.concat([site.Z for site in sites], ignore_index=True)
    return X, np.concatenate([site.y for site in sites]), Z, list(np.repeat(["a", "b", "c"], 500)), family


def milliseconds(call: Callable[[], object], calls: int, clock: Callable[[], float]) -> list[float]:
    taken = []
    for _ in range(calls):
        before = clock()
        call()
        taken.append(1000 * (clock() - before))
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=500)
    calls = parser.parse_args().calls
    X, y, Z, hospital, family = sites()
    new = family.site(500, prevalence=[0.8, 0.2], seed=9)
    frame = pd.DataFrame(new.X, columns=X.columns)
    models = {
        "logistic regression": sw.PrevalenceAdjuster(LogisticRegression(), rehearsal=None),
        "network": sw.GPAClassifier(epochs=2, device="cpu", rehearsal=None),
    }
    for name, model in models.items():
        for kind, limit in LIMITS.items():
            call = one_row(kind, model, (X, y, Z, hospital), frame, new.Z)
            call()
            wall, processor = (milliseconds(call, calls, clock) for clock in (time.perf_counter, time.thread_time))
            said = (
                f"{statistics.median(wall):.2f} ms on the clock (limit {limit:g}), {statistics.median(processor):.2f}"
            )
            print(f"{name}, {kind}: {said} of processor time, {statistics.quantiles(processor, n=10)[0]:.2f} at best")


def one_row(kind: str, model: Any, source: tuple[Any, ...], X: pd.DataFrame, Z: pd.DataFrame) -> Callable[[], object]:
    """Return a function that predicts the first of the new rows at a site that was saved and loaded."""
    rows, y, labeled_z, hospital = source
    if kind == "tables":
        roles = Roles(TARGET, SITE, confounders=tuple(Z), features=tuple(X))
        labeled = pd.concat([rows, labeled_z], axis=1).assign(**{TARGET: y, SITE: hospital})
        reader = sw.TableReader.learn(labeled, roles)
        read = reader.read(labeled)
        model.fit(read.X, read.y, sample_domain=read.site, sample_confounder=read.Z).table_reader_ = reader
        new = reader.read(pd.concat([X, Z], axis=1), labels="none")
        unlabeled, at = new.X, new.Z
    else:
        model.fit(rows if kind == "frames" else rows.to_numpy(), y, sample_domain=hospital, sample_confounder=labeled_z)
        unlabeled, at = X if kind == "frames" else X.to_numpy(), Z
    with tempfile.TemporaryDirectory() as folder:
        model.adapt(unlabeled, sample_confounder=at).save(Path(folder) / "site")
        here = sw.load(Path(folder) / "site")
    if kind == "tables":
        reader, row = here.model.table_reader_, pd.concat([X, Z], axis=1)[:1]

        def call() -> object:
            read = reader.read(row, labels="none")
            return here.predict_proba(read.X, sample_confounder=read.Z)

        return call
    x, z = (X[:1], Z[:1]) if kind == "frames" else (X.to_numpy()[:1], Z[:1].to_numpy())
    return lambda: here.predict_proba(x, sample_confounder=z)


if __name__ == "__main__":
    main()
