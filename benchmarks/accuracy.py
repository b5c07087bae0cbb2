"""The accuracy of `estimate_prevalence` at simulated sites with known g, and the coverage of its intervals.

    python benchmarks/accuracy.py run --out benchmarks/accuracy.jsonl --jobs 2
    python benchmarks/accuracy.py table benchmarks/accuracy.jsonl
    python benchmarks/accuracy.py figure benchmarks/accuracy.jsonl.gz --out docs/images/accuracy.png

There are three parts. kl: KL(g || estimate) of the default, of a constant g, of the paper's EM with a network and a
line search, and of this EM as the paper describes it (peers_em.py). coverage: 95% intervals of the default, for the
marginal and at five values of z. rare: bias and intervals if a class is rare.
Every site adds one line to the file of records; a site that is already in the file is not computed again.
"""

import argparse
import gzip
import json
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from joblib import Parallel, delayed
from peers_em import published_em
from records import provenance
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

import sitewise as sw

SITES = {"kl": 30, "coverage": 300, "rare": 100}
SIGNALS = {1.0: "weak", 2.5: "strong"}  # f
SHIFTS = {0.0: "none", 0.5: "mild", 1.5: "strong"}  # `dependence`: how much g(z) varies with z
SIZES = {"kl": (200, 500, 1000, 3000, 20_000), "coverage": (1000, 3000), "rare": (3000, 20_000)}
CONFOUNDERS: dict[str, dict[str, Any]] = {"mixed": {}, "discrete": {"n_continuous": 0, "levels": (2, 3)}}
PREVALENCE = 0.2
RARE_PREVALENCES, RARE_SIGNAL, RARE_SHIFTS = (0.002, 0.005, 0.01, 0.02), 3.0, (0.0, 1.0)
METHODS = ("auto", "constant", "network", "published")
N_POINTS = 5
SITE_SEED, POINTS_SEED = 1000, 100_000  # added to the seed of a case, so that all draws have different seeds

COVERAGE_RANGE = (0.92, 0.98)
# Targets for the KL of the default: up to SMALL rows, at most NETWORK_SHARE times the KL of the paper's EM; if g does
# not depend on z, at most FLAT_FACTOR times the KL of a constant g, plus FLAT_SLACK.
NETWORK_SHARE, SMALL = 1 / 4, 1000
FLAT_FACTOR, FLAT_SLACK = 1.25, 0.001
AT_BOUND = 1e-9
FLOOR = float(np.log(1e-12))

Record = dict[str, Any]
Row = dict[str, str]


@dataclass(frozen=True)
class Case:
    """One site of one part; these values identify its line in the records."""

    part: str
    signal: float
    dependence: float
    n: int
    seed: int
    prevalence: float = PREVALENCE
    z: str = "mixed"

    @property
    def cost(self) -> float:
        """The approximate relative computing time; EM with a network is by far the slowest."""
        return self.n * (20 if self.part == "kl" else 1)

    @property
    def family(self) -> sw.SimulatedFamily:
        return sw.SimulatedFamily(seed=self.seed, signal=self.signal, **CONFOUNDERS[self.z])

    @property
    def site_settings(self) -> dict[str, Any]:
        return {"prevalence": [1 - self.prevalence, self.prevalence], "dependence": self.dependence}


def plan(parts: Iterable[str], n_sites: int | None = None, only_n: Iterable[int] | None = None) -> list[Case]:
    """Return all cases of the parts, the slowest first."""
    cases = []
    for part in parts:
        seeds = range(n_sites or SITES[part])
        sizes = [n for n in SIZES[part] if only_n is None or n in only_n]
        if part == "rare":
            grid = product(sizes, seeds, RARE_PREVALENCES, RARE_SHIFTS)
            cases += [Case(part, RARE_SIGNAL, shift, n, seed, prevalence) for n, seed, prevalence, shift in grid]
        else:
            kinds = CONFOUNDERS if part == "coverage" else ("mixed",)
            settings = product(sizes, seeds, SIGNALS, SHIFTS, kinds)
            cases += [Case(part, signal, shift, n, seed, z=z) for n, seed, signal, shift, z in settings]
    return sorted(cases, key=lambda case: -case.cost)


def run_case(case: Case) -> Record:
    torch.set_num_threads(1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = PARTS[case.part](case)
    return asdict(case) | result | {"warnings": sum(issubclass(w.category, UserWarning) for w in caught)}


def divergences(case: Case) -> Record:
    site = case.family.site(case.n, **case.site_settings, seed=SITE_SEED + case.seed)
    estimates, seconds, kl = {}, {}, {}
    for method in METHODS:
        start = time.perf_counter()
        if method == "published":
            log_estimate = published_em(site.log_ratio, site.Z, case.seed)
            seconds[method], kl[method] = (
                short(time.perf_counter() - start),
                divergence(site.log_prevalence, log_estimate),
            )
            continue
        options = {"solver": sw.EM(), "random_state": case.seed} if method == "network" else {}
        with warnings.catch_warnings():
            if method == "network":  # the paper's T limits the rounds, so there is always a convergence warning
                warnings.simplefilter("ignore")
            estimates[method] = sw.estimate_prevalence(site.log_ratio, site.Z, model=method, **options)
        log_estimate = estimates[method].log_prevalence(site.Z)
        seconds[method] = short(time.perf_counter() - start)
        kl[method] = divergence(site.log_prevalence, log_estimate)
    return {"kl": kl, "seconds": seconds, "chosen": estimates["auto"].model}


def divergence(log_truth: Any, log_estimate: Any) -> float | None:
    """Return the mean over rows of KL(g || estimate); smaller estimates and NaN are replaced by 1e-12."""
    floored = np.maximum(np.nan_to_num(log_estimate, nan=FLOOR, neginf=FLOOR), FLOOR)
    return short((np.exp(log_truth) * (log_truth - floored)).sum(1).mean())


def coverage(case: Case) -> Record:
    family = case.family
    site = family.site(case.n, **case.site_settings, seed=SITE_SEED + case.seed)
    estimate = sw.estimate_prevalence(site.log_ratio, site.Z)
    points = family.site(N_POINTS, **case.site_settings, seed=POINTS_SEED + case.seed)
    low, high = (bound[:, 1] for bound in estimate.interval(points.Z))
    truth = np.exp(points.log_prevalence[:, 1])
    return {
        "truth": short(population_prevalence(case)),
        "marginal": with_interval(estimate),
        "points": [int(((low <= truth) & (truth <= high)).sum()), short((high - low).mean())],
        "chosen": estimate.model,
    }


def rare_class(case: Case) -> Record:
    site = case.family.site(case.n, **case.site_settings, seed=SITE_SEED + case.seed)
    estimates = {m: sw.estimate_prevalence(site.log_ratio, site.Z, model=m) for m in ("auto", "constant")}
    marginals = {method: with_interval(estimate) for method, estimate in estimates.items()}
    return {"truth": short(population_prevalence(case)), "marginal": marginals, "chosen": estimates["auto"].model}


PARTS: dict[str, Callable[[Case], Record]] = {"kl": divergences, "coverage": coverage, "rare": rare_class}


def with_interval(estimate: Any) -> list[float | None]:
    """Return the estimate of P(y=1) and the two ends of its interval."""
    return [short(value[1]) for value in (estimate.marginal, *estimate.interval())]


def short(value: float) -> float | None:
    """Round a number to six significant digits; None if it is not finite."""
    return float(f"{value:.6g}") if np.isfinite(value) else None


def population_prevalence(case: Case) -> float:
    """Compute P(y=1) of the site's population, by numerical integration over z.

    The simulator chooses the intercept of a site's g by 4,000 draws of z, so P(y=1) differs slightly from the requested
    prevalence. With strong dependence the difference is about 0.003: a third of a standard error of the estimate from
    3,000 rows.
    """
    family = case.family
    inner = (np.arange(400) + 0.5) / 400
    grid = np.meshgrid(*[inner] * family.n_continuous, *map(np.arange, family.levels), indexing="ij")
    z = np.stack([axis.ravel() for axis in grid], axis=1)
    ages, levels = z[:, : family.n_continuous], z[:, family.n_continuous :].astype(int)
    weight = (ages * (1 - ages)).prod(axis=1)  # continuous z is Beta(2, 2); all levels are equally probable
    values = [*(20 + 70 * ages).T, *([f"level {level}" for level in column] for column in levels.T)]
    Z = pd.DataFrame(dict(zip(family.names, values, strict=True)))
    return float(np.average(np.exp(family.log_prevalence(Z, **case.site_settings)[:, 1]), weights=weight))


def known_case(record: Record) -> Case:
    return Case(**{field.name: record[field.name] for field in fields(Case)})


def read_records(path: Path) -> list[Record]:
    """Read the records of a file; of several records of a case, the last one counts."""
    records = {}
    text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text(encoding="utf-8")
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            record = json.loads(line)
            records[known_case(record)] = record
        except (json.JSONDecodeError, KeyError) as error:
            raise ValueError(
                f"{path}, line {number}: not a record of this study ({error!r}); delete the line"
            ) from None
    return list(records.values())


def run(cases: list[Case], out: Path, n_jobs: int) -> None:
    """Compute the cases that are not in the file yet."""
    made_by = provenance(__file__)
    known = read_records(out) if out.exists() else []
    done = {known_case(record) for record in known if record.get("fingerprint") == made_by["fingerprint"]}
    todo = [case for case in cases if case not in done]
    out.parent.mkdir(parents=True, exist_ok=True)
    columns = (*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
    workers = Parallel(n_jobs=n_jobs, return_as="generator_unordered", batch_size=1)
    with out.open("a", encoding="utf-8") as file, Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("sites", total=len(todo))
        for record in workers(delayed(run_case)(case) for case in todo):
            file.write(json.dumps(record | made_by, allow_nan=False) + "\n")
            file.flush()
            bar.advance(task)


def grouped(records: Iterable[Record], *names: str) -> dict[tuple[Any, ...], list[Record]]:
    """Group records by the values of these settings, in sorted order."""
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        groups.setdefault(tuple(record[name] for name in names), []).append(record)
    return dict(sorted(groups.items()))


def of_part(records: Iterable[Record], part: str) -> list[Record]:
    return [record for record in records if record["part"] == part]


def mean_and_error(values: Iterable[float]) -> tuple[float, float]:
    """Return the mean over sites and its standard error."""
    array = np.asarray(list(values), dtype=float)
    return float(array.mean()), float(array.std(ddof=1) / np.sqrt(len(array))) if len(array) > 1 else float("nan")


def divergence_of(records: Iterable[Record], method: str) -> tuple[float, float]:
    """Return the mean KL and its standard error; the mean is infinite if the KL of a site is."""
    values = [record["kl"][method] for record in records]
    return mean_and_error(values) if None not in values else (float("inf"), float("nan"))


def holds(value: float, interval: list[float | None]) -> bool:
    _, low, high = interval
    return low is not None and high is not None and low <= value <= high


def coverage_of(records: list[Record]) -> dict[str, tuple[float, float]]:
    """Return the coverage of intervals and its standard error.

    "marginal" is for P(y=1) of the population, "points" for g at values of z, and "asked" for the requested P(y=1).
    """
    return {
        "marginal": mean_and_error(holds(record["truth"], record["marginal"]) for record in records),
        "points": mean_and_error(record["points"][0] / N_POINTS for record in records),
        "asked": mean_and_error(holds(record["prevalence"], record["marginal"]) for record in records),
    }


def verdict(reached: bool) -> str:
    return "met" if reached else "NOT met"


def kl_rows(records: Iterable[Record]) -> list[Row]:
    rows = []
    for (signal, shift, n), group in grouped(of_part(records, "kl"), "signal", "dependence", "n").items():
        divergences = {method: divergence_of(group, method) for method in METHODS}
        auto, constant, network, published = (divergences[method][0] for method in METHODS)
        below = auto < constant
        if shift == 0:
            beside_constant = verdict(auto <= FLAT_FACTOR * constant + FLAT_SLACK)
        elif n >= SMALL and SIGNALS[signal] == "strong":
            beside_constant = verdict(below)
        else:
            beside_constant = "(below)" if below else "(not below)"
        rows.append(
            {"f": SIGNALS[signal], "shift of g": SHIFTS[shift], "n": f"{n:,}", "sites": str(len(group))}
            | {method: f"{mean:.4f} ± {error:.4f}" for method, (mean, error) in divergences.items()}
            | {"auto / network": f"{auto / network:.2f}", "auto / published": f"{auto / published:.2f}"}
            | {"vs published": verdict(auto <= NETWORK_SHARE * published if n <= SMALL else auto < published)}
            | {"vs constant": beside_constant}
        )
    return rows


def seconds_rows(records: Iterable[Record]) -> list[Row]:
    rows = []
    for (n,), group in grouped(of_part(records, "kl"), "n").items():
        median = {m: float(np.median([record["seconds"][m] for record in group])) for m in METHODS}
        rows.append({"n": f"{n:,}"} | {method: f"{value:.3f}" for method, value in median.items()})
    return rows


def coverage_rows(records: Iterable[Record]) -> list[Row]:
    """Return rows for each kind of z, f and n: one for each shift, then one for all shifts together."""
    rows = []
    for (z, signal, n), pooled in grouped(of_part(records, "coverage"), "z", "signal", "n").items():
        by_shift = {SHIFTS[shift]: group for (shift,), group in grouped(pooled, "dependence").items()}
        for name, group in [*by_shift.items(), ("**all**", pooled)]:
            covered = coverage_of(group)
            marginal, points, asked = (covered[kind][0] for kind in ("marginal", "points", "asked"))
            low, high = COVERAGE_RANGE
            width = float(np.mean([r["marginal"][2] - r["marginal"][1] for r in group if None not in r["marginal"]]))
            width_at_points = float(np.mean([r["points"][1] for r in group if r["points"][1] is not None]))
            rows.append(
                {"z": z, "f": SIGNALS[signal], "n": f"{n:,}", "shift of g": name, "sites": str(len(group))}
                | {"marginal": f"{marginal:.3f}", "": verdict(low <= marginal <= high), "width": f"{width:.3f}"}
                | {"points": f"{points:.3f}", " ": verdict(low <= points <= high), "width ": f"{width_at_points:.3f}"}
                | {"holds P(y) requested": f"{asked:.3f}"}
            )
    return rows


def rare_rows(records: Iterable[Record]) -> list[Row]:
    rows = []
    groups = grouped(of_part(records, "rare"), "prevalence", "n", "dependence")
    for ((prevalence, n, shift), group), method in product(groups.items(), ("auto", "constant")):
        intervals = [record["marginal"][method] for record in group]
        n_nan = sum(None in interval for interval in intervals)
        finite = [(r["truth"], i) for r, i in zip(group, intervals, strict=True) if None not in i]
        errors = np.array([interval[0] - truth for truth, interval in finite])
        bias, error = mean_and_error(errors)
        spread = error * np.sqrt(len(errors))
        at_bound = float(np.mean([interval[0] < AT_BOUND for _, interval in finite]))
        covered = float(np.mean([holds(r["truth"], i) for r, i in zip(group, intervals, strict=True)]))
        rows.append(
            {"P(y=1)": f"{prevalence:g}", "n": f"{n:,}", "dependence": f"{shift:g}", "g": method}
            | {"sites": str(len(group)), "bias": f"{bias:+.5f}", "sd": f"{spread:.5f}"}
            | {"bias / sd": f"{bias / spread:+.2f}", "bias / se": f"{bias / error:+.2f}"}
            | {"unbiased": verdict(abs(bias) <= 2 * error) if prevalence > 3 * spread else "(P ≤ 3 sd)"}
            | {"at bound": f"{at_bound:.2f}", "NaN": str(n_nan), "interval holds": f"{covered:.2f}"}
        )
    return rows


def markdown(rows: list[Row]) -> str:
    lines = [list(rows[0]), ["---"] * len(rows[0]), *(list(row.values()) for row in rows)]
    return "\n".join("| " + " | ".join(cell.strip() for cell in line) + " |" for line in lines)


def score(rows: list[Row]) -> str:
    cells = Counter(cell for row in rows for cell in row.values())
    n_targets = cells["met"] + cells["NOT met"]
    return f" {cells['met']} of {n_targets} targets met." if n_targets else ""


TABLES: dict[str, tuple[Callable[[Iterable[Record]], list[Row]], str]] = {
    "KL(g || estimate)": (
        kl_rows,
        "Mean over sites of the mean over rows, ± standard error. Targets: against the paper's EM as published at most "
        f"a quarter for n ≤ {SMALL:,} and below it beyond; against the constant at most {FLAT_FACTOR} × it + "
        f"{FLAT_SLACK} where g does not shift, and below it where it does, n ≥ {SMALL:,} and f is strong (in "
        "brackets: no target).",
    ),
    "Seconds a site": (seconds_rows, "Median over the sites above, one thread."),
    "Coverage of 95% intervals": (
        coverage_rows,
        f"Target {COVERAGE_RANGE[0]} to {COVERAGE_RANGE[1]}. The truth is P(y=1) of the site's population; the "
        "last column counts the requested P(y=1), which the simulator meets only approximately.",
    ),
    "Rare classes": (
        rare_rows,
        f"Signal {RARE_SIGNAL:g}. se = sd / √sites. Target: |bias| ≤ 2 se where P(y=1) > 3 sd. A constant g is not the "
        "true model where dependence is not 0.",
    ),
}


def table(records: list[Record]) -> str:
    """Return all tables for which there are records, in Markdown."""
    blocks = []
    for title, (rows_of, note) in TABLES.items():
        rows = rows_of(records)
        if rows:
            blocks.append(f"### {title}\n\n{note}{score(rows)}\n\n{markdown(rows)}\n")
    makers = Counter(
        tuple(str(record[name]) for name in ("sitewise", "torch", "numpy", "commit")) for record in records
    )
    blocks += [
        f"{count:,} records by sitewise {sitewise}, torch {torch_}, numpy {numpy_}, commit {commit_}."
        for (sitewise, torch_, numpy_, commit_), count in makers.items()
    ]
    n_warned = sum(record["warnings"] > 0 for record in records)
    return "\n".join([*blocks, f"Sites at which auto or the constant warned: {n_warned:,}.\n"])


def draw(records: list[Record], out: Path) -> None:
    """Draw KL against n in a panel for each f and shift of g, and coverage below."""
    from matplotlib import pyplot as plt

    import sitewise.bench.report.figures  # noqa: F401  (chooses a backend that needs no screen)

    figure = plt.figure(figsize=(11, 10.5), layout="constrained")
    above, below = figure.subfigures(2, 1, height_ratios=(2.05, 1))
    kl_panels(above, of_part(records, "kl"))
    coverage_panel(below, of_part(records, "coverage"))
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=150)
    plt.close(figure)


def kl_panels(figure: Any, records: list[Record]) -> None:
    from sitewise.bench.report.figures import ACCENT, INK

    styles = {
        "auto": ("o-", ACCENT),
        "constant": ("s:", INK),
        "network": ("^--", "#d55e00"),
        "published": ("v-.", "#cc79a7"),
    }
    names = {"auto": "sitewise", "constant": "constant g", "network": "network, line search", "published": "paper's EM"}
    axes = figure.subplots(len(SIGNALS), len(SHIFTS), sharex=True, sharey=True)
    ends: dict[Any, dict[str, float]] = {}
    for (i, signal), (j, shift) in product(enumerate(SIGNALS), enumerate(SHIFTS)):
        axis = axes[i, j]
        mine = [r for r in records if r["signal"] == signal and r["dependence"] == shift]
        ends[axis] = {}
        for method, (style, color) in styles.items():
            by_n = {n: divergence_of(group, method) for (n,), group in grouped(mine, "n").items()}
            if not by_n:
                continue
            n, (mean, error) = np.array(list(by_n)), np.array(list(by_n.values())).T
            axis.plot(n, mean, style, color=color, ms=5, lw=1.8)
            axis.fill_between(
                n, np.maximum(mean - 2 * error, mean / 10), mean + 2 * error, color=color, alpha=0.12, lw=0
            )
            ends[axis][method] = mean[-1]
        axis.set(xscale="log", yscale="log", xlim=(150, 26_000))
        axis.set_xticks(SIZES["kl"], [f"{n:,}" if n < 1000 else f"{n // 1000}k" for n in SIZES["kl"]])
        axis.minorticks_off()
        axis.grid(color="#e4e4e4", lw=0.7)
        axis.spines[["top", "right"]].set_visible(False)
        axis.set_title(f"{SIGNALS[signal]} f, shift of g: {SHIFTS[shift]}", fontsize=11, color=INK)
    for axis in axes[-1]:
        axis.set_xlabel("unlabeled rows n")
    figure.supylabel("mean KL(g ‖ estimate) over sites, ± 2 standard errors", fontsize=10)
    low, high = np.log(axes[0, 0].get_ylim())
    for axis, last in ends.items():
        heights = spread_out({m: (np.log(value) - low) / (high - low) for m, value in last.items()}, 0.085)
        for method, height in heights.items():
            place = {"xycoords": "axes fraction", "va": "center", "fontsize": 8.5}
            axis.annotate(names[method], (1.02, height), color=styles[method][1], annotation_clip=False, **place)


def spread_out(heights: dict[str, float], gap: float) -> dict[str, float]:
    """Move labels apart until the distance of neighbours is at least `gap`; their order does not change."""
    order = sorted(heights, key=heights.__getitem__)
    placed = np.array([heights[name] for name in order])
    for _ in range(200):
        lack = np.maximum(gap - np.diff(placed), 0) / 2
        placed[:-1] -= lack
        placed[1:] += lack
    return dict(zip(order, placed, strict=True))


def coverage_panel(figure: Any, records: list[Record]) -> None:
    from sitewise.bench.report.figures import ACCENT, GREY, INK

    styles = {"marginal": ("o", ACCENT, -0.2), "points": ("D", "#d55e00", 0.2)}
    axis = figure.subplots()
    low, high = COVERAGE_RANGE
    groups = {key: grouped(pooled, "dependence") for key, pooled in grouped(records, "z", "signal", "n").items()}
    groups = dict(sorted(groups.items(), key=lambda item: (item[0][0] != "mixed", *item[0])))
    axis.axhspan(low, high, color=GREY, alpha=0.18, lw=0)
    axis.hlines(0.95, -0.6, len(groups) - 0.5, color=GREY, lw=1)
    least = 0.9
    for place, by_shift in enumerate(groups.values()):
        pooled = coverage_of([record for group in by_shift.values() for record in group])
        for kind, (marker, color, offset) in styles.items():
            mean, error = pooled[kind]
            axis.errorbar(place + offset, mean, yerr=2 * error, fmt=marker, color=color, ms=8, capsize=3)
            single = [coverage_of(group)[kind][0] for group in by_shift.values()]
            step = place + offset + np.linspace(0.08, 0.2, len(single))
            axis.plot(step, single, marker, color=color, mfc="white", ms=4)
            least = min(least, *single, mean - 2 * error if np.isfinite(error) else mean)
    ticks = [f"{SIGNALS[signal]} f\nn = {n:,}\n{z} z" for z, signal, n in groups]
    axis.set_xticks(range(len(groups)), ticks, fontsize=9)
    axis.set(xlim=(-0.6, len(groups) + 0.35), ylim=(least - 0.01, 1.005), ylabel="share that hold the truth")
    axis.set_title("95% intervals of sitewise: all shifts together ± 2 standard errors; small, left to right: "
                   "none, mild, strong", fontsize=11, color=INK)  # fmt: skip
    axis.spines[["top", "right"]].set_visible(False)
    edge = len(groups) - 0.42
    axis.text(edge, high + 0.001, f"target: {low} to {high}", va="bottom", fontsize=8.5, color="#555555")
    if groups:
        last = coverage_of([record for group in list(groups.values())[-1].values() for record in group])
        span = axis.get_ylim()[1] - axis.get_ylim()[0]
        labels = {"marginal": "the marginal", "points": "at points of z"}
        heights = spread_out({kind: last[kind][0] for kind in styles}, 0.08 * span)
        for kind, height in heights.items():
            axis.text(edge, height, labels[kind], va="center", fontsize=9, color=styles[kind][1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run", help="do the sites that are not in the file yet")
    running.add_argument("--out", type=Path, default=Path("benchmarks/accuracy.jsonl"))
    running.add_argument("--jobs", type=int, default=1, help="processes, one thread each")
    running.add_argument("--part", action="append", choices=tuple(PARTS), help="several may be given; all by default")
    running.add_argument("--sites", type=int, help=f"sites for each setting instead of {SITES}")
    running.add_argument("--only-n", type=lambda text: [int(n) for n in text.split(",")], help="such as 200,500")
    for name, help_ in (("table", "print the tables with their targets"), ("figure", "draw the figure")):
        showing = commands.add_parser(name, help=help_)
        showing.add_argument("file", type=Path)
        if name == "figure":
            showing.add_argument("--out", type=Path, default=Path("docs/images/accuracy.png"))
    arguments = parser.parse_args()
    if arguments.command == "run":
        run(plan(arguments.part or PARTS, arguments.sites, arguments.only_n), arguments.out, arguments.jobs)
    elif arguments.command == "table":
        sys.stdout.write(table(read_records(arguments.file)))
    else:
        draw(read_records(arguments.file), arguments.out)


if __name__ == "__main__":
    main()
