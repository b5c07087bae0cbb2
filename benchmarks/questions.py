"""Coverage of the intervals of expected metrics, overall and in subgroups; coverage of prediction sets; search for z.

    python benchmarks/questions.py run --out benchmarks/questions.jsonl --jobs 16
    python benchmarks/questions.py table benchmarks/questions.jsonl.gz

sites: worlds of simulated sites that share P(x|y,z) and differ in P(y), in P(z) and in the dependence of P(y|z) on z.
The model is a logistic regression, trained and rehearsed at three sites of 400 rows (in every other world z is one of
its inputs). Its expected metrics at five new sites are compared with labels that were not used before. "own" are the
predictions of the adapted model; "foreign" are those of a logistic regression trained at the first site, with a
threshold of 0.3. Distributions differ between worlds.
subgroups: one more site of the same world with 4,000 rows, in groups of 100 to 2,000 rows: ranges of a confounder, of
an input, of the adapted model's score, and of a column that is independent of everything else.
confounders: three sites of 2,000 rows and 20 columns; the effect of none, one or two columns differs between sites.
shift: three training sites, and a new site without labels at which the effect of one of ten confounders is different.
speed: seconds of two tasks of users, in one thread.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # a process for each core

import argparse
import sys
import time
import warnings
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from records import provenance
from scipy.special import expit
from sklearn.linear_model import LogisticRegression

import sitewise as sw
from sitewise.bench.experiments.records import append_record, done_ids, read_records
from sitewise.datasets.simulated import SimulatedFamily
from sitewise.evaluation import Ranking
from sitewise.performance import clinical
from sitewise.performance.conformal import score_thresholds
from sitewise.performance.metrics import Predictions

COUNTS = {"sites": 200, "confounders": 300, "shift": 200, "speed": 1}  # numbers of worlds, tables, tables, repetitions
SITES, SOURCES, SOURCE_ROWS = 5, 3, 400
FOREIGN_THRESHOLD, SPECIFICITY = 0.3, 0.9
COVERAGES = (0.8, 0.9)
GROUP_ROWS = np.array([100, 300, 600, 1000, 2000])
GROUP_METRICS = ("accuracy", "positive_f1", "recall", "specificity", "brier", "nll", "auroc", "ece")


class World:
    """A model trained at three sites, a foreign model trained at the first of them, and a source of further sites."""

    def __init__(self, seed):
        self.seed, self.rng = seed, np.random.default_rng([5, seed])
        self.sees_z = bool(seed % 2)
        self.family = SimulatedFamily(signal=float(self.rng.choice([1.0, 1.5, 2.0])), levels=(2,), seed=seed)
        self.mean, self.spread = self.rng.uniform(-2, 0), self.rng.uniform(0.3, 1.0)
        source = [self.site(SOURCE_ROWS, number) for number in range(SOURCES)]
        X, y = np.concatenate([self.inputs(s) for s in source]), np.concatenate([s.y for s in source])
        Z = pd.concat([s.Z for s in source], ignore_index=True)
        sees = "xz" if self.sees_z else "x"
        self.model = sw.PrevalenceAdjuster(LogisticRegression(), classifier_sees=sees, random_state=0)
        self.model.fit(X, y, sample_domain=np.repeat(np.arange(SOURCES), SOURCE_ROWS), sample_confounder=Z)
        self.foreign = LogisticRegression().fit(self.inputs(source[0]), source[0].y)

    def site(self, n, number):
        share = expit(np.clip(self.rng.normal(self.mean, self.spread), -3.5, 1.5))
        moved = {"dependence": float(self.rng.normal(1, 0.6)), "z_shift": float(self.rng.normal(0, 0.3))}
        return self.family.site(n, prevalence=[1 - share, share], seed=1000 * self.seed + number, **moved)

    def inputs(self, site):
        """Return the inputs of the classifiers for the rows of a site."""
        if not self.sees_z:
            return site.X
        age, level = (site.Z["age0"].to_numpy(float) - 55) / 20, site.Z["group0"] == "level 1"
        return np.column_stack([site.X, age, level])

    def adapted(self, site):
        return self.model.adapt(self.inputs(site), site.Z).unchecked()


def observed(y, probability, threshold):
    """Return every metric, computed with labels."""
    weight, event = np.ones(len(y)), (y == 1).astype(float)[None]
    metric_values = Predictions.of(probability, threshold).metrics(np.eye(2)[y].T[None], weight)
    values = {name: float(value[0]) for name, value in metric_values.items()}
    score, at = probability[:, 1], np.array([0.5 if threshold is None else threshold])
    called = score >= at[0]
    return values | {
        "prevalence": float(event.mean()),
        "net_benefit": float(clinical.net_benefit(event, called[:, None], weight, at)[0, 0]),
        "net_benefit_treat_all": float(clinical.treat_all(event, weight, at)[0, 0]),
        "calibration_in_the_large": float(clinical.calibration_in_the_large(event, score, weight)[0]),
        "calibration_slope": float(clinical.calibration_line(event, score, weight)[0, 1]),
        "oe_ratio": float(clinical.observed_to_expected(event, score, weight)[0]),
        "sensitivity_at_specificity": float(clinical.sensitivity_at(event, Ranking.of(score), weight, SPECIFICITY)[0]),
        "number_needed_to_evaluate": float(clinical.number_needed_to_evaluate(event, called, weight)[0]),
    }


def beside(expected, seen):
    """Return [estimate, low, high, observed] of every metric for which both estimate and observed value are defined."""
    return {
        name: [round(float(v), 5) for v in (*value, seen[name])]
        for name, value in expected.items()
        if value.estimate is not None and np.isfinite(seen[name])
    }


def judged(world, site):
    """Return expected and observed metrics of both models at a site, and coverage and size of prediction sets."""
    here, inputs = world.adapted(site), world.inputs(site)
    own, other = here.predict_proba(inputs, site.Z), world.foreign.predict_proba(inputs)
    record = {"n": len(site.y), "sees_z": world.sees_z, "slope": here.estimate.slope}
    for who, probability, given, threshold in (
        ("own", own, {}, None),
        ("foreign", other, {"proba": other}, FOREIGN_THRESHOLD),
    ):
        expected = dict(here.expected_performance(**given, threshold=threshold))
        expected |= here.clinical_performance(**given, threshold=threshold, specificity=SPECIFICITY)
        record[who] = beside(expected, observed(site.y, probability, threshold))
    held, _ = here.weighted_rows
    rows = np.arange(len(site.y))
    for coverage in COVERAGES:
        for by_class in (False, True):
            sets = here.predict_set(inputs, site.Z, coverage=coverage, by_class=by_class)
            inside = sets.member[rows, site.y]
            even = np.ones(len(held.y))
            thresholds, _ = score_thresholds(held.probability, held.y, even, coverage, by_class=by_class)
            plain = 1 - own <= thresholds
            record[f"sets_{coverage}_{'class' if by_class else 'all'}"] = {
                "inside": [int(inside[site.y == k].sum()) for k in (0, 1)],
                "rows": [int((site.y == k).sum()) for k in (0, 1)],
                "size": float(sets.size.mean()),
                "unweighted_inside": [int(plain[rows, site.y][site.y == k].sum()) for k in (0, 1)],
                "unweighted_size": float(plain.sum(axis=1).mean()),
            }
    return record


def in_groups(world, site):
    """Return expected and observed metrics of the adapted model in groups of rows."""
    here, inputs = world.adapted(site), world.inputs(site)
    own = here.predict_proba(inputs, site.Z)
    columns = {
        "confounder": site.Z["age0"],
        "input": site.X[:, 0],
        "score": own[:, 1],
        "noise": world.rng.random(len(own)),
    }
    frame = pd.DataFrame({name: banded(np.asarray(value), world.rng) for name, value in columns.items()})
    groups = []
    for group in here.subgroups(frame):
        index = np.flatnonzero(frame[group.column] == group.name)
        line = {"column": group.column, "n": len(index), "note": group.note}
        if group.performance is not None:
            expected = {name: group.performance[name] for name in GROUP_METRICS} | group.calibration
            expected["prevalence"] = group.prevalence[1]
            line["metrics"] = beside(expected, observed(site.y[index], own[index], None))
        groups.append(line)
    return {"n": len(site.y), "sees_z": world.sees_z, "groups": groups}


def banded(values, rng):
    """Divide numbers into five ranges of 100 to 2,000 rows, in random order of size; return the range of each row."""
    sizes = rng.permutation(GROUP_ROWS)
    place = np.empty(len(values), dtype=np.int64)
    place[np.argsort(values, kind="stable")] = np.repeat(np.arange(len(sizes)), sizes)
    return np.array([f"band {k}" for k in range(len(sizes))])[place]


def sites(seed):
    world = World(seed)
    sizes = np.exp(world.rng.uniform(np.log(300), np.log(1500), SITES)).astype(int)
    for number, n in enumerate(sizes):
        yield (
            f"sites-{seed}-{number}",
            {"part": "sites", "world": seed, **judged(world, world.site(int(n), 100 + number))},
        )
    site = world.site(int(GROUP_ROWS.sum()), 200)
    yield f"subgroups-{seed}", {"part": "subgroups", "world": seed, **in_groups(world, site)}


def draw_columns(rng, n):
    """Draw 20 columns, of which the first five are correlated and five others are binary."""
    X = rng.normal(size=(n, 20))
    X[:, 10:15] = X[:, 10:15] > 0
    X[:, 1:5] = 0.6 * X[:, :1] + 0.8 * X[:, 1:5]
    return X


def confounders(seed):
    """Yield the record of `suggest_confounders` on three labeled sites with 20 columns.

    The effects of some columns differ between the sites, by 1 in log-odds between two of them.
    """
    rng, n_true = np.random.default_rng([6, seed]), seed % 3
    X, site = draw_columns(rng, 6000), np.repeat(np.arange(3), 2000)
    true = rng.choice([0, 1, 5, 10, 12], n_true, replace=False)
    logit = X @ rng.normal(0, 0.4, 20) + rng.normal(0, 0.7, 3)[site]
    for column in true:
        logit = logit + (rng.permutation([-0.5, 0.0, 0.5]))[site] * X[:, column]
    y = (rng.random(6000) < expit(logit)).astype(int)
    frame = pd.DataFrame(X, columns=[f"c{j}" for j in range(20)])
    suggestion = sw.suggest_confounders(frame, y, site, rehearse=False)
    wanted = sorted(f"c{j}" for j in true)
    yield f"confounders-{seed}", {"part": "confounders", "true": wanted, "suggested": suggestion.confounders}


def shift(seed):
    """Yield the record of `shift_by_column` at a site without labels.

    The effect of one of ten confounders at this site differs from that at the training sites.
    """
    rng = np.random.default_rng([7, seed])
    names, effect = [f"c{j}" for j in range(10)], rng.normal(0, 0.4, 10)
    true = int(rng.integers(10))

    def rows(n, level, moved=0.0):
        Z = draw_columns(rng, n)[:, 5:15]
        own = effect.copy()
        own[true] += moved
        y = (rng.random(n) < expit(level + Z @ own)).astype(int)
        return rng.normal(0, 1, (n, 3)) + [1.5, 0, 0] * y[:, None] + 0.5 * Z[:, :3], y, pd.DataFrame(Z, columns=names)

    source = [rows(2000, level) for level in rng.normal(-0.5, 0.5, 3)]
    X, y = (np.concatenate([part[i] for part in source]) for i in (0, 1))
    Z = pd.concat([part[2] for part in source], ignore_index=True)
    model = sw.PrevalenceAdjuster(LogisticRegression(), classifier_sees="xz", rehearsal=None)
    model.fit(np.column_stack([X, Z]), y, sample_domain=np.repeat([0, 1, 2], 2000), sample_confounder=Z)
    new, _, Z_new = rows(2000, rng.normal(-0.5, 0.5), moved=float(rng.choice([-1.0, 1.0])))
    table = model.adapt(np.column_stack([new, Z_new]), Z_new).shift_by_column()
    ranked = list(table.index)
    yield f"shift-{seed}", {"part": "shift", "true": f"c{true}", "first": ranked[0], "rank": ranked.index(f"c{true}")}


def speed(seed):
    """Yield the seconds of two tasks.

    These are all expected metrics of 100,000 rows with five subgroups, and the search for z among 40 columns of 20,000
    rows.
    """
    rng = np.random.default_rng(seed)
    family = SimulatedFamily(levels=(2,))
    source = [family.site(1000, prevalence=[1 - p, p], seed=k) for k, p in enumerate((0.2, 0.3, 0.4))]
    X, y = np.concatenate([s.X for s in source]), np.concatenate([s.y for s in source])
    Z = pd.concat([s.Z for s in source], ignore_index=True)
    model = sw.PrevalenceAdjuster(LogisticRegression(), rehearsal=None)
    model.fit(X, y, sample_domain=np.repeat([0, 1, 2], 1000), sample_confounder=Z)
    new = family.site(100_000, prevalence=[0.85, 0.15], seed=9)
    here = model.adapt(new.X, new.Z).unchecked()
    start, cpu = time.perf_counter(), time.process_time()
    here.expected_performance()
    here.clinical_performance()
    here.decision_curve()
    here.subgroups(pd.Series(rng.integers(0, 5, 100_000), name="ward").astype(str))
    record = {"expected_seconds": time.perf_counter() - start, "expected_cpu_seconds": time.process_time() - cpu}
    frame = pd.DataFrame(rng.normal(size=(20_000, 40)), columns=[f"c{j}" for j in range(40)])
    site = np.repeat(np.arange(5), 4000)
    logit = frame.to_numpy() @ rng.normal(0, 0.3, 40) + 0.3 * (site - 2) * frame["c3"].to_numpy()
    start, cpu = time.perf_counter(), time.process_time()
    suggestion = sw.suggest_confounders(frame, (rng.random(20_000) < expit(logit)).astype(int), site)
    record |= {"suggest_seconds": time.perf_counter() - start, "suggest_cpu_seconds": time.process_time() - cpu}
    yield f"speed-{seed}", {"part": "speed", **record, "suggested": suggestion.confounders}


PARTS = {"sites": sites, "confounders": confounders, "shift": shift, "speed": speed}
LAST = {"sites": "subgroups-{}", "confounders": "confounders-{}", "shift": "shift-{}", "speed": "speed-{}"}


def do(part, seed):
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(PARTS[part](seed))


def run(options):
    """Compute the cases that have no record yet."""
    made = provenance(__file__)
    done = done_ids(options.out, made["fingerprint"])
    cases = [
        (part, seed)
        for part in options.part or COUNTS
        for seed in range(COUNTS[part] if options.count is None else options.count)
        if LAST[part].format(seed) not in done
    ]
    start = time.perf_counter()
    with ProcessPoolExecutor(options.jobs) as pool:
        futures = {pool.submit(do, *case): case for case in cases}
        for number, future in enumerate(as_completed(futures), start=1):
            for name, record in future.result():
                if name not in done:
                    append_record(options.out, {"id": name, **record, **made})
            print(*futures[future], f"{number}/{len(cases)}, {time.perf_counter() - start:.0f} s", file=sys.stderr)


def held_table(lines):
    """Return a Markdown table of bias and coverage, from dicts of metric -> [estimate, low, high, observed]."""
    text = ["| metric | number | bias | 95% interval holds | its mean width |", "|---|---|---|---|---|"]
    for name in dict.fromkeys(name for line in lines for name in line):
        estimate, low, high, seen = np.array([line[name] for line in lines if name in line]).T
        held = np.mean((low - 1e-5 <= seen) & (seen <= high + 1e-5))
        width = f"{np.mean(high - low):.3f}"
        text.append(f"| {name} | {len(seen)} | {np.mean(estimate - seen):+.4f} | {held:.1%} | {width} |")
    return [*text, ""]


def sets_table(records):
    text = [
        "| sets | sites | covered | class 0 | class 1 | size | unweighted: covered | class 0 | class 1 | size |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name in [key for key in records[0] if key.startswith("sets_")]:
        cells = []
        for key in ("", "unweighted_"):
            inside, rows = (np.array([r[name][k] for r in records], dtype=float) for k in (f"{key}inside", "rows"))
            each = [np.mean((inside[:, k] / rows[:, k])[rows[:, k] > 0]) for k in (0, 1)]
            cells += [np.mean(inside.sum(1) / rows.sum(1)), *each, np.mean([r[name][f"{key}size"] for r in records])]
        text.append(f"| {name} | {len(records)} | {' | '.join(f'{cell:.3f}' for cell in cells)} |")
    return [*text, ""]


def subgroup_tables(records):
    groups = [group for r in records for group in r["groups"]]
    text = [
        "| subgroups by | rows | subgroups | no interval given | all metrics | prevalence | O:E (observed/expected) |",
        "|---|---|---|---|---|---|---|",
    ]

    def holds(estimated, names=None):
        lines = [v for g in estimated for name, v in g["metrics"].items() if names is None or name in names]
        return np.mean([low - 1e-5 <= seen <= high + 1e-5 for _, low, high, seen in lines])

    for column in dict.fromkeys(group["column"] for group in groups):
        for n in GROUP_ROWS:
            own = [group for group in groups if group["column"] == column and group["n"] == n]
            estimated = [group for group in own if "metrics" in group]
            cells = [holds(estimated), holds(estimated, {"prevalence"}), holds(estimated, {"oe_ratio"})]
            quiet = f"{1 - len(estimated) / len(own):.1%}"
            text.append(f"| {column} | {n} | {len(own)} | {quiet} | {' | '.join(f'{c:.1%}' for c in cells)} |")
    return [*text, "", *held_table([group["metrics"] for group in groups if "metrics" in group])]


def table(options):
    """Print the tables in Markdown."""
    records = read_records(Path(str(options.file).removesuffix(".gz")))
    by_part = {part: [r for r in records if r["part"] == part] for part in (*COUNTS, "subgroups")}
    text = []
    if by_part["sites"]:
        for who in ("own", "foreign"):
            text += [who, "", *held_table([r[who] for r in by_part["sites"]])]
        text += sets_table(by_part["sites"])
    if by_part["subgroups"]:
        text += subgroup_tables(by_part["subgroups"])
    if by_part["confounders"]:
        head = "| true z | tables | found, nothing else | found | anything wrong |"
        text += [head, "|---|---|---|---|---|"]
        for n_true in (0, 1, 2):
            chosen = [r for r in by_part["confounders"] if len(r["true"]) == n_true]
            exact = np.mean([sorted(r["suggested"]) == r["true"] for r in chosen])
            all_ = np.mean([set(r["true"]) <= set(r["suggested"]) for r in chosen])
            wrong = np.mean([bool(set(r["suggested"]) - set(r["true"])) for r in chosen])
            text.append(f"| {n_true} | {len(chosen)} | {exact:.1%} | {all_:.1%} | {wrong:.1%} |")
        text.append("")
    if by_part["shift"]:
        first = np.mean([r["rank"] == 0 for r in by_part["shift"]])
        text.append(f"shift_by_column: the true column is first in {first:.1%} of {len(by_part['shift'])} sites")
    for r in by_part["speed"]:
        for name in ("expected", "suggest"):
            text.append(f"{name}: {r[f'{name}_seconds']:.1f} s, {r[f'{name}_cpu_seconds']:.1f} s of CPU")
    print("\n".join(text))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    running = commands.add_parser("run", help="do what is not in the file yet")
    running.add_argument("--out", type=Path, default=Path("benchmarks/questions.jsonl"))
    running.add_argument("--part", action="append", choices=COUNTS)
    running.add_argument("--count", type=int, help="worlds or tables of each part, instead of all of them")
    running.add_argument("--jobs", type=int, default=2)
    running.set_defaults(function=run)
    showing = commands.add_parser("table", help="print the tables")
    showing.add_argument("file", type=Path)
    showing.set_defaults(function=table)
    options = parser.parse_args()
    options.function(options)


if __name__ == "__main__":
    main()
