"""Speed of `sitewise predict` for stored probabilities, including reading and writing of Parquet files.

    python benchmarks/predict.py [--rows 4000000]

The table has two columns of probabilities, a continuous and a categorical confounder, and an id for each row. The
output is the number of rows per second of wall time, and per second of processor time (which depends less on other
programs on the machine).
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd

import sitewise as sw
from sitewise.cli.predict import Predictions
from sitewise.tables import Roles, TableReader
from sitewise.tables.files import open_table

ROLES = Roles(target="y", site="hospital", confounders=("age", "sex"), proba=("p0", "p1"), id="id")


def make(n: int, prevalence: float, name: str, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    y = rng.random(n) < prevalence
    p = 1 / (1 + np.exp(1.1 - 1.5 * (rng.normal(size=n) + 1.5 * y)))
    columns = {"id": np.arange(n), "hospital": name, "y": y.astype(int), "age": rng.normal(60, 10, n).round(1)}
    return pd.DataFrame(columns | {"sex": rng.choice(["f", "m"], n), "p0": 1 - p, "p1": p})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=4_000_000)
    rows = parser.parse_args().rows
    labeled = pd.concat([make(2000, 0.2, "A", 1), make(2000, 0.5, "B", 2)])
    reader = TableReader.learn(labeled, ROLES)
    source = reader.read(labeled)
    post = sw.PrevalenceAdjuster()
    post.fit(source.X, source.y, sample_domain=source.site, sample_confounder=source.Z)
    new = reader.read(make(2000, 0.1, "C", 3), labels="none")
    here = post.adapt(new.X, sample_confounder=new.Z)
    here.choose_threshold(sensitivity=0.9)
    with tempfile.TemporaryDirectory() as folder:
        path, out = Path(folder) / "rows.parquet", Path(folder) / "predictions.parquet"
        make(rows, 0.1, "C", 4).drop(columns=["y", "hospital"]).to_parquet(path)
        table = open_table(path)
        for _ in range(3):
            wall, processor = time.perf_counter(), time.process_time()
            Predictions(here, reader, table, "id", None, None).write(out, lambda count: None)
            wall, processor = time.perf_counter() - wall, time.process_time() - processor
            rates = (
                f"{rows / wall / 1e6:.2f} million rows/s on the clock, {rows / processor / 1e6:.2f} of processor time"
            )
            print(f"{rows:,} rows in {wall:.2f} s: {rates}", flush=True)


if __name__ == "__main__":
    main()
