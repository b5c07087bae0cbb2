"""Do 95% intervals of P(y) hold it, with an f that was learned?

    python benchmarks/coverage.py run --out benchmarks/coverage.jsonl --jobs 16
    python benchmarks/coverage.py table benchmarks/coverage.jsonl.gz

Three source sites of 600 rows whose levels differ; a logistic regression or a forest of x and z, cross-fitted, in
`PrevalenceAdjuster` with its defaults, or the network of `GPAClassifier` with its defaults; eight new sites of 500 rows
for each relation of y and z: as at the source, none, or reversed; each adapted to with z and without it. Grouped:
rows come from patients of one to five rows that share most of x. A source is drawn and learned anew for every seed.
"""

import argparse
import itertools
import sys
import warnings
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from records import provenance
from scipy.special import expit
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold, cross_val_predict

import sitewise as sw
from sitewise.bench.experiments.records import append_record, done_ids, read_records

CLASSIFIERS = {
    "logistic regression": LogisticRegression,
    "forest": lambda: RandomForestClassifier(200, min_samples_leaf=10, random_state=0),
    "network": None,
}
SOURCES = (-1.2, -0.8, -0.4)
RELATIONS = {"kept": 1.0, "none": 0.0, "turned around": -1.0}
NEW_LEVEL = -1.6
N_SOURCE, N_NEW, N_SITES = 600, 500, 8


def draw(rng, n, level, relation, grouped):
    """x and z, labels and patients; patients of several rows have the same z and y, and most of x in common."""
    patient = np.repeat(np.arange(n), rng.integers(1, 6, n) if grouped else 1)[:n]
    count = patient[-1] + 1
    age, sex = rng.normal(size=count), rng.integers(0, 2, count)
    y = (rng.random(count) < expit(level + relation * (age + 0.5 * sex))).astype(int)
    X = rng.normal(size=(count, 3))
    X[:, 0] += 1.5 * y
    X[:, 1] += 0.8 * age
    X[:, 2] += 0.8 * y * sex
    X = X[patient] + (0.3 * rng.normal(size=(n, 3)) if grouped else 0.0)
    return X, pd.DataFrame({"age": age, "sex": np.where(sex == 1, "f", "m")}).iloc[patient], y[patient], patient


def prevalence(level, relation):
    """P(y=1) of the population, by quadrature over age."""
    at, weight = np.polynomial.hermite_e.hermegauss(60)
    share = np.mean([expit(level + relation * (at + 0.5 * sex)) for sex in (0, 1)], axis=0)
    return float(weight @ share / weight.sum())


def inputs(X, Z):
    return np.column_stack([X, Z["age"], Z["sex"] == "f"])


def fit_adjuster(classifier, X, y, site, Z, patient, grouped):
    """`adapt` of an adjuster around a classifier of x and z."""
    known = inputs(X, Z)
    proba = cross_val_predict(classifier, known, y, groups=patient, cv=GroupKFold(5), method="predict_proba")
    classifier.fit(known, y)
    adjuster = sw.PrevalenceAdjuster().fit(proba, y, site, Z, groups=patient if grouped else None)

    def adapt(X, Z, seen, groups):
        return adjuster.adapt(classifier.predict_proba(inputs(X, Z)), sample_confounder=seen, groups=groups)

    return adapt


def fit_network(seed, X, y, site, Z, patient, grouped):
    """`adapt` of the network of x and z."""
    model = sw.GPAClassifier(random_state=seed, verbose=False, device="cpu")
    model.fit(X, y, sample_domain=site, sample_confounder=Z, groups=patient if grouped else None)
    return lambda X, Z, seen, groups: model.adapt(X, sample_confounder=seen, groups=groups)


def study(case):
    rng, grouped, make = np.random.default_rng(case["seed"]), case["grouped"], CLASSIFIERS[case["classifier"]]
    parts = [draw(rng, N_SOURCE, level, 1.0, grouped) for level in SOURCES]
    X, y = (np.concatenate([part[at] for part in parts]) for at in (0, 2))
    Z, site = pd.concat([part[1] for part in parts]), np.repeat(["a", "b", "c"], N_SOURCE)
    patient = np.concatenate([part[3] + 10_000 * number for number, part in enumerate(parts)])
    source = (X, y, site, Z, patient, grouped)
    adapt = fit_network(case["seed"], *source) if make is None else fit_adjuster(make(), *source)
    lines = []
    for relation, _ in itertools.product(RELATIONS, range(N_SITES)):
        truth = prevalence(NEW_LEVEL, RELATIONS[relation])
        X, Z, y, patient = draw(rng, N_NEW, NEW_LEVEL, RELATIONS[relation], grouped)
        for name, seen in (("with z", Z), ("without z", None)):
            here = adapt(X, Z, seen, patient if grouped else None)
            low, high = here.prevalence_interval()
            line = {"relation": relation, "z": name, "held": bool(low[1] <= truth <= high[1])}
            lines.append({**line, "width": float(high[1] - low[1]), "error": float(here.prevalence()[1] - truth)})
    return lines


def do(case):
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return study(case)


def run(options):
    made = provenance(__file__)
    done = done_ids(options.out, made["fingerprint"])
    cases = {
        f"{name}{', grouped' if grouped else ''} {seed}": {"classifier": name, "grouped": grouped, "seed": seed}
        for name, grouped in itertools.product(options.classifiers, (False, True))
        for seed in range(options.seeds)
    }
    left = {name: case for name, case in cases.items() if name not in done}
    with ProcessPoolExecutor(options.jobs) as pool:
        for (name, case), sites in zip(left.items(), pool.map(do, left.values()), strict=True):
            append_record(options.out, {"id": name, "case": case, "sites": sites, **made})
            print(name, file=sys.stderr)


def table(options):
    lines = [
        {
            "classifier": record["case"]["classifier"],
            "rows": "grouped" if record["case"]["grouped"] else "independent",
            **site,
        }
        for record in read_records(Path(str(options.file).removesuffix(".gz")))
        for site in record["sites"]
    ]
    frame = pd.DataFrame(lines).replace({"relation": {"turned around": "reversed"}})  # the name in records
    grouped = frame.groupby(["classifier", "rows", "z", "relation"], sort=False)
    shown = grouped.agg(
        sites=("held", "size"), covered=("held", "mean"), width=("width", "mean"), error=("error", "mean")
    )
    print(shown.round(3).to_string())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    running = commands.add_parser("run")
    running.add_argument("classifiers", nargs="*", choices=CLASSIFIERS, default=list(CLASSIFIERS))
    running.add_argument("--seeds", type=int, default=125)
    running.add_argument("--jobs", type=int, default=2)
    running.add_argument("--out", type=Path, default=Path("results/coverage.jsonl"))
    running.set_defaults(function=run)
    showing = commands.add_parser("table")
    showing.add_argument("file", type=Path)
    showing.set_defaults(function=table)
    options = parser.parse_args()
    options.function(options)


if __name__ == "__main__":
    main()
