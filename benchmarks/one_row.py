"""How long a saved site takes for one row, in process: what a service around it adds to a request.

    python benchmarks/one_row.py [--calls 500]

Two sites are adapted, saved and loaded: an adjustment of a logistic regression, and a network; z is two numbers and two
categories. Medians on the clock, and of processor time (which other programs on the machine do not change), from arrays
and from frames.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.linear_model import LogisticRegression

import sitewise as sw

LIMITS = {"arrays": 2.0, "frames": 8.0}  # ms


def sites() -> tuple[pd.DataFrame, np.ndarray, pd.DataFrame, list[str], sw.SimulatedFamily]:
    family = sw.SimulatedFamily(n_continuous=2, levels=(2, 3), seed=0)
    found = [family.site(500, seed=seed) for seed in range(3)]
    X = pd.DataFrame(np.concatenate([site.X for site in found])).add_prefix("x")
    Z = pd.concat([site.Z for site in found], ignore_index=True)
    return X, np.concatenate([site.y for site in found]), Z, list(np.repeat(["a", "b", "c"], 500)), family


def median_ms(call: Callable[[], object], calls: int, clock: Callable[[], float]) -> float:
    taken = []
    for _ in range(calls):
        before = clock()
        call()
        taken.append(clock() - before)
    return 1000 * statistics.median(taken)


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
        for kind, rows in (("arrays", X.to_numpy()), ("frames", X)):
            model.fit(rows, y, sample_domain=hospital, sample_confounder=Z)
            unlabeled = frame if kind == "frames" else new.X
            with tempfile.TemporaryDirectory() as folder:
                model.adapt(unlabeled, sample_confounder=new.Z).save(Path(folder) / "site")
                here = sw.load(Path(folder) / "site")
            x, z = (frame[:1], new.Z[:1]) if kind == "frames" else (new.X[:1], new.Z[:1].to_numpy())

            def call(here: sw.AdaptedClassifier = here, x: object = x, z: object = z) -> object:
                return here.predict_proba(x, sample_confounder=z)

            call()
            wall, processor = (median_ms(call, calls, clock) for clock in (time.perf_counter, time.thread_time))
            limit = LIMITS[kind]
            print(f"{name}, {kind}: {wall:.2f} ms on the clock, {processor:.2f} of processor time (limit {limit:g})")


if __name__ == "__main__":
    main()
