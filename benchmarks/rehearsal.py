"""The time of the posterior and of its rehearsal, compared with the same work without them, measured in turns.

    python benchmarks/rehearsal.py --device cuda --out benchmarks/rehearsal.json

network: a CNN on 64-pixel images of four sites, fitted with and without a rehearsal over sites. table: an unfitted
gradient boosting classifier in `PrevalenceAdjuster`, fitted with and without a rehearsal. adapt: adaptation to 100,000
rows with three confounders, continuous and categorical, by the posterior and by maximum likelihood.
"""

import argparse
import json
import statistics
import time
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from records import provenance
from sklearn.ensemble import HistGradientBoostingClassifier

import sitewise as sw

N_SITES = 4


def labeled_sites(rng, n):
    """Draw site, confounders and labels of n rows at each of four sites."""
    site = np.repeat(np.arange(N_SITES), n)
    Z = pd.DataFrame(
        {
            "age": rng.normal(60, 12, len(site)),
            "sex": rng.choice(["f", "m"], len(site)),
            "scanner": rng.choice(["a", "b", "c"], len(site)),
        }
    )
    odds = -1.0 + 0.3 * site + 0.04 * (Z["age"] - 60) + 0.5 * (Z["sex"] == "f")
    y = (rng.random(len(site)) < 1 / (1 + np.exp(-odds.to_numpy()))).astype(int)
    return site.astype(str), Z, y


def network(options):
    rng = np.random.default_rng(0)
    site, Z, y = labeled_sites(rng, 2000)
    X = rng.integers(0, 120, (len(y), 3, 64, 64), dtype=np.uint8)
    X[:, :, 24:40, 24:40] += (40 * y).astype(np.uint8)[:, None, None, None]

    def fit(rehearsal):
        model = sw.GPAClassifier(
            rehearsal=rehearsal, epochs=options.epochs, random_state=0, device=options.device, verbose=False
        )
        return model.fit(X, y, sample_domain=site, sample_confounder=Z)

    return in_turns({"without": lambda: fit(None), "with": lambda: fit("sites")}, options.rounds)


def table(options):
    rng = np.random.default_rng(0)
    site, Z, y = labeled_sites(rng, 5000)
    X = rng.normal(size=(len(y), 20)) + 0.4 * y[:, None]

    def fit(rehearsal):
        adjuster = sw.PrevalenceAdjuster(HistGradientBoostingClassifier(random_state=0), rehearsal=rehearsal)
        return adjuster.fit(X, y, sample_domain=site, sample_confounder=Z)

    return in_turns({"without": lambda: fit(None), "with": lambda: fit("sites")}, options.rounds)


def adapt(options):
    rng = np.random.default_rng(0)
    site, Z, y = labeled_sites(rng, 2000)

    def proba(y):
        odds = rng.normal(size=len(y)) + 2.0 * y - 1.5
        return np.column_stack([1 / (1 + np.exp(odds)), 1 / (1 + np.exp(-odds))])

    adjuster = sw.PrevalenceAdjuster().fit(proba(y), y, site, Z)
    _, Z, y = labeled_sites(rng, 25_000)
    p = proba(y)
    here = adjuster.adapt(p, sample_confounder=Z)
    rows = adjuster.adapt(p, sample_confounder=Z, policy="rows")
    return {
        **in_turns(
            {
                "posterior": lambda: adjuster.adapt(p, sample_confounder=Z),
                "maximum likelihood": lambda: adjuster.adapt(p, sample_confounder=Z, policy="rows"),
            },
            options.rounds,
        ),
        **in_turns(
            {
                "predicting, posterior": lambda: here.predict_proba(p, Z),
                "predicting, maximum likelihood": lambda: rows.predict_proba(p, Z),
            },
            options.rounds,
        ),
    }


def in_turns(works, rounds):
    """Call the functions in turns, and return the median seconds of each; the first turn is not counted."""
    seconds = {name: [] for name in works}
    for turn in range(rounds + 1):
        for name, work in works.items():
            start = time.perf_counter()
            work()
            if turn:
                seconds[name].append(time.perf_counter() - start)
    return {name: round(statistics.median(values), 3) for name, values in seconds.items()}


PARTS = {"network": network, "table": table, "adapt": adapt}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=PARTS, default=list(PARTS))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    record = {"device": torch.cuda.get_device_name() if options.device == "cuda" else "cpu", **provenance(__file__)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for part in options.parts:
            record[part] = PARTS[part](options)
            print(part, record[part], flush=True)
    if options.out is not None:
        options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
