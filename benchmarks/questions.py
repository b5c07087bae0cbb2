"""Do the intervals of expected metrics hold, do prediction sets cover, and is z found?

    python benchmarks/questions.py run --out benchmarks/questions.jsonl
    python benchmarks/questions.py table benchmarks/questions.jsonl.gz

sites: simulated sites that share P(x|y,z); f is a logistic regression learned at four sites of 300 rows, adapting is
rehearsed there, and each of the sites to come is judged by labels that nobody used. "own" are the adapted model's
predictions, "foreign" those of a logistic regression trained at the first site, with a threshold of 0.3.
confounders: three sites of 2,000 rows and 20 columns, of which none, one or two have another effect at each site.
"""

import argparse
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from records import provenance
from scipy.special import expit
from sitewise.bench.experiments.records import append_record, done_ids, read_records
from sklearn.linear_model import LogisticRegression

import sitewise as sw
from sitewise.datasets.simulated import SimulatedFamily
from sitewise.evaluation import Ranking
from sitewise.performance import Predictions, clinical, score_thresholds

WORLDS, SITES, TABLES = 170, 6, 100
FOREIGN_THRESHOLD, SPECIFICITY = 0.3, 0.9
COVERAGES = (0.8, 0.9)


def world(seed):
    """A model learned at four sites, another one learned at the first, and a function that draws further sites."""
    rng = np.random.default_rng([5, seed])
    family = SimulatedFamily(signal=float(rng.choice([1.0, 1.5, 2.0])), levels=(2,), seed=seed % 50)
    mean, spread = rng.uniform(-2, 0), rng.uniform(0.3, 1.0)

    def site(n, number):
        share = expit(np.clip(rng.normal(mean, spread), -3.5, 1.5))
        moved = {"dependence": float(rng.normal(1, 0.6)), "z_shift": float(rng.normal(0, 0.3))}
        return family.site(n, prevalence=[1 - share, share], seed=1000 * seed + number, **moved)

    source = [site(300, number) for number in range(4)]
    X, y = np.concatenate([s.X for s in source]), np.concatenate([s.y for s in source])
    Z = pd.concat([s.Z for s in source], ignore_index=True)
    model = sw.PrevalenceAdjuster(LogisticRegression(), random_state=0)
    model.fit(X, y, sample_domain=np.repeat(np.arange(4), 300), sample_confounder=Z)
    foreign = LogisticRegression().fit(source[0].X, source[0].y)
    sizes = np.exp(rng.uniform(np.log(300), np.log(1500), SITES)).astype(int)
    return model, foreign, (site(int(n), 100 + number) for number, n in enumerate(sizes))


def observed(y, probability, threshold):
    """Every metric as the labels show it."""
    weight, event = np.ones(len(y)), (y == 1).astype(float)[None]
    found = Predictions.of(probability, threshold).metrics(np.eye(2)[y].T[None], weight)
    values = {name: float(value[0]) for name, value in found.items()}
    score, at = probability[:, 1], np.array([0.5 if threshold is None else threshold])
    called = score >= at[0]
    return values | {
        "net_benefit": float(clinical.net_benefit(event, called[:, None], weight, at)[0, 0]),
        "net_benefit_treat_all": float(clinical.treat_all(event, weight, at)[0, 0]),
        "calibration_in_the_large": float(clinical.calibration_in_the_large(event, score, weight)[0]),
        "calibration_slope": float(clinical.calibration_line(event, score, weight)[0, 1]),
        "oe_ratio": float(clinical.observed_to_expected(event, score, weight)[0]),
        "sensitivity_at_specificity": float(clinical.sensitivity_at(event, Ranking.of(score), weight, SPECIFICITY)[0]),
        "number_needed_to_evaluate": float(clinical.number_needed_to_evaluate(event, called, weight)[0]),
    }


def judged(here, site, foreign):
    """Expected and observed metrics of both models, [estimate, low, high, observed] each, and what the sets hold."""
    own, other = here.predict_proba(site.X, site.Z), foreign.predict_proba(site.X)
    record = {"n": len(site.y), "prevalence": float(site.y.mean())}
    for who, probability, given, threshold in (
        ("own", own, {}, None),
        ("foreign", other, {"proba": other}, FOREIGN_THRESHOLD),
    ):
        seen = observed(site.y, probability, threshold)
        expected = dict(here.expected_performance(**given, threshold=threshold))
        expected |= here.clinical_performance(**given, threshold=threshold, specificity=SPECIFICITY)
        record[who] = {
            name: [round(float(v), 5) for v in (*value, seen[name])]
            for name, value in expected.items()
            if value.estimate is not None and np.isfinite(seen[name])
        }
    held = here.model._telling_rows()[0]
    even = here._probability(here.model._cross_calibrated(held), held.codes).numpy()
    for coverage in COVERAGES:
        for by_class in (False, True):
            sets = here.predict_set(site.X, site.Z, coverage=coverage, by_class=by_class)
            inside = sets.member[np.arange(len(site.y)), site.y]
            thresholds, _ = score_thresholds(even, held.y.numpy(), held.weight.numpy(), coverage, by_class=by_class)
            plain = 1 - own <= thresholds
            record[f"sets_{coverage}_{'class' if by_class else 'all'}"] = {
                "covered": float(inside.mean()),
                "covered_by_class": [
                    float(inside[site.y == k].mean()) if (site.y == k).any() else None for k in (0, 1)
                ],
                "size": float(sets.size.mean()),
                "unweighted_covered": float(plain[np.arange(len(site.y)), site.y].mean()),
                "unweighted_size": float(plain.sum(axis=1).mean()),
            }
    return record


def confounder_table(seed, n_true):
    """Labeled sites with 20 columns, `n_true` of which have another effect at each site (a log-odd between sites)."""
    rng = np.random.default_rng([6, seed])
    X = rng.normal(size=(6000, 20))
    X[:, 10:15] = X[:, 10:15] > 0
    X[:, 1:5] = 0.6 * X[:, :1] + 0.8 * X[:, 1:5]
    site = np.repeat(np.arange(3), 2000)
    true = rng.choice([0, 1, 5, 10, 12], n_true, replace=False)
    logit = X @ rng.normal(0, 0.4, 20) + rng.normal(0, 0.7, 3)[site]
    for column in true:
        logit = logit + (rng.permutation([-0.5, 0.0, 0.5]))[site] * X[:, column]
    y = (rng.random(6000) < expit(logit)).astype(int)
    frame = pd.DataFrame(X, columns=[f"c{j}" for j in range(20)])
    start = time.perf_counter()
    found = sw.suggest_confounders(frame, y, site, rehearse=False)
    seconds = time.perf_counter() - start
    wanted = sorted(f"c{j}" for j in true)
    return {"true": wanted, "suggested": found.confounders, "seconds": seconds}


def run(out, parts, worlds, tables, first=0):
    """Do what has no record yet."""
    made, done = provenance(), done_ids(out)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for seed in range(tables if "confounders" in parts else 0):
        for n_true in (0, 1, 2):
            name = f"confounders-{n_true}-{seed}"
            if name not in done:
                append_record(
                    out, {"id": name, "part": "confounders", **confounder_table(3 * seed + n_true, n_true), **made}
                )
    for seed in range(first, worlds) if "sites" in parts else ():
        if f"sites-{seed}-{SITES - 1}" in done:
            continue
        model, foreign, sites = world(seed)
        for number, site in enumerate(sites):
            name = f"sites-{seed}-{number}"
            if name not in done:
                record = judged(model.adapt(site.X, site.Z).unchecked(), site, foreign)
                append_record(out, {"id": name, "part": "sites", "world": seed, **record, **made})


def table(records):
    """The tables in Markdown."""
    sites = [r for r in records if r["part"] == "sites"]
    lines = []
    for who in ("own", "foreign"):
        lines += [
            f"{who}",
            "",
            "| metric | sites | bias | 95% interval holds | its mean width |",
            "|---|---|---|---|---|",
        ]
        for name in sites[0][who] if sites else ():
            found = np.array([r[who][name] for r in sites if name in r[who]])
            estimate, low, high, seen = found.T
            held = np.mean((low - 1e-5 <= seen) & (seen <= high + 1e-5))
            width = f"{np.mean(high - low):.3f}"
            lines.append(f"| {name} | {len(found)} | {np.mean(estimate - seen):+.4f} | {held:.1%} | {width} |")
        lines.append("")
    head = "| sets | sites | covered | class 0 | class 1 | size | unweighted: covered | size |"
    lines += [head, "|---|---|---|---|---|---|---|---|"]
    for name in [key for key in sites[0] if key.startswith("sets_")] if sites else ():
        found = [r[name] for r in sites]
        each = [
            np.mean([f["covered_by_class"][k] for f in found if f["covered_by_class"][k] is not None]) for k in (0, 1)
        ]
        cells = [np.mean([f["covered"] for f in found]), *each, np.mean([f["size"] for f in found])]
        cells += [np.mean([f[f"unweighted_{key}"] for f in found]) for key in ("covered", "size")]
        lines.append(f"| {name} | {len(found)} | {' | '.join(f'{cell:.3f}' for cell in cells)} |")
    lines += [
        "",
        "| true z | tables | found, nothing else | found | anything wrong | seconds |",
        "|---|---|---|---|---|---|",
    ]
    for n_true in (0, 1, 2):
        found = [r for r in records if r["part"] == "confounders" and len(r["true"]) == n_true]
        if found:
            exact = np.mean([sorted(r["suggested"]) == r["true"] for r in found])
            all_ = np.mean([set(r["true"]) <= set(r["suggested"]) for r in found])
            wrong = np.mean([bool(set(r["suggested"]) - set(r["true"])) for r in found])
            seconds = np.mean([r["seconds"] for r in found])
            lines.append(f"| {n_true} | {len(found)} | {exact:.1%} | {all_:.1%} | {wrong:.1%} | {seconds:.1f} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run", help="do what is not in the file yet")
    running.add_argument("--out", type=Path, default=Path("benchmarks/questions.jsonl"))
    running.add_argument("--part", action="append", choices=("sites", "confounders"))
    running.add_argument("--worlds", type=int, default=WORLDS)
    running.add_argument("--tables", type=int, default=TABLES)
    running.add_argument("--first", type=int, default=0, help="world to begin with, for several processes")
    showing = commands.add_parser("table", help="print the tables")
    showing.add_argument("file", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "run":
        run(
            arguments.out,
            arguments.part or ("sites", "confounders"),
            arguments.worlds,
            arguments.tables,
            arguments.first,
        )
    else:
        sys.stdout.write(table(read_records(arguments.file)))


if __name__ == "__main__":
    main()
