"""Color MNIST in short: full MNIST, the paper's sizes, 30,000 test draws, a few seeds; `make reproduce-quick`.

Prints the mean over seeds of every method's F1 at the paper's test site and at the flipped one, and appends a line for
each run to a file of records. A run that is already in the file is not done again.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np

from sitewise.datasets.digits import load_digits
from sitewise.demo import DemoSize, run_demo

SIZES = {"n_train": 10_000, "n_validation": 500, "n_test": 30_000, "n_resamples": 0}


def run(recipe, seed, data_dir, out):
    start = time.perf_counter()
    record = run_demo(seed=seed, size=DemoSize(recipe=recipe, **SIZES), data_dir=data_dir)
    record |= {"recipe": recipe, "seconds": round(time.perf_counter() - start, 1)}
    with out.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record, ensure_ascii=False) + "\n")
    return record


def summarize(records):
    """Mean and standard error over seeds, by recipe, site and method."""
    for recipe in dict.fromkeys(record["recipe"] for record in records):
        mine = [record for record in records if record["recipe"] == recipe]
        for site in mine[0]["sites"]:
            print(f"\n{recipe}, {site}, {len(mine)} seed(s): positive F1, macro F1, NLL")
            for method in mine[0]["sites"][site]["methods"]:
                rows = [record["sites"][site]["methods"][method] for record in mine]
                shown = []
                for metric in ("positive_f1", "macro_f1", "nll"):
                    values = np.array([row[metric]["value"] for row in rows])
                    error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else float("nan")
                    shown.append(f"{values.mean():.3f} ± {error:.3f}")
                print(f"  {method:<22} " + "  ".join(shown))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipe", action="append", choices=("gpa2024", "default", "augmented"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--data-dir", help="folder with the full MNIST; SITEWISE_DATA otherwise")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/reproduce_quick.jsonl"))
    arguments = parser.parse_args()
    if len(load_digits(arguments.data_dir)) < 70_000:
        parser.error(
            "full MNIST is needed: give --data-dir, or set SITEWISE_DATA, to the folder with its four idx.gz files"
        )
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    records = []
    if arguments.out.exists():
        records = [json.loads(line) for line in arguments.out.read_text(encoding="utf-8").splitlines()]
    for recipe in arguments.recipe or ["gpa2024"]:
        for seed in range(arguments.seeds):
            if any(r["recipe"] == recipe and r["seed"] == seed for r in records):
                continue
            records.append(run(recipe, seed, arguments.data_dir, arguments.out))
            print(f"{recipe}, seed {seed}: {records[-1]['digits']}, {records[-1]['seconds']} s", flush=True)
    summarize(records)


if __name__ == "__main__":
    main()
