"""How close the performance expected without labels comes to the one that the labels show, and how often intervals hold.

    python benchmarks/expected_performance.py run --out benchmarks/expected_performance.jsonl
    python benchmarks/expected_performance.py table benchmarks/expected_performance.jsonl
    python benchmarks/expected_performance.py figure benchmarks/expected_performance.jsonl --out docs/images/expected.png

simulated: sites with known P(x|y,z); log f is distorted, and calibrated on 1,000 labeled rows of a source site.
digits: colored digits; one network for each training seed, adapted to sites drawn from digits it has not seen.
Each site is one line of the records; what is there already is not done again.
"""

import argparse
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from records import provenance

import sitewise as sw
from sitewise.benchmark.records import append_record, done_ids, read_records
from sitewise.datasets.digits import colored_site, load_digits
from sitewise.datasets.simulated import SimulatedFamily
from sitewise.evaluation import evaluate
from sitewise.performance import EXPECTED_METRICS, Predictions, expected_performance

SIMULATED, DIGITS, MODELS = 300, 100, 3
GIVEN_F = 100  # simulated sites for which intervals are also asked given f
SHOWN = ("accuracy", "positive_f1", "macro_f1", "precision", "recall", "specificity", "auroc", "auprc", "brier")
TARGETS = {"simulated": 0.03, "digits": 0.05}
COVERAGE = (0.90, 0.98)
CALIBRATION_ROWS = 1000


def observed(y, probability, threshold=None):
    """Every metric as the labels show it."""
    truth = np.eye(probability.shape[1])[y].T[None]
    found = Predictions.of(probability, threshold).metrics(truth, np.ones(len(y)))
    values = {name: float(found[name][0]) for name in EXPECTED_METRICS}
    assert abs(values["accuracy"] - evaluate(y, probability)["accuracy"].value) < 1e-9 or threshold is not None
    return values


def compared(expected, seen):
    """Expected and observed side by side."""
    return {
        name: [*expected[name], None if np.isnan(seen[name]) else seen[name]]
        for name in expected
        if expected[name].estimate is not None
    }


def distorted(log_ratio):
    """log f as an overconfident and slightly biased network would give it."""
    return 1.6 * (log_ratio - log_ratio.mean(axis=1, keepdims=True)) + np.array([0.3, -0.3])


def simulated_site(seed):
    """One site: everything about it is drawn by its seed."""
    rng = np.random.default_rng([1, seed])
    settings = {
        "signal": float(rng.choice([1.5, 2.0, 3.0])),
        "prevalence": float(np.exp(rng.uniform(np.log(0.05), np.log(0.5)))),
        "dependence": float(rng.uniform(-1, 1.5)),
        "z_shift": float(rng.uniform(-0.5, 0.5)),
        "n": int(np.exp(rng.uniform(np.log(500), np.log(5000)))),
        "family": seed % 10,
    }
    family = SimulatedFamily(signal=settings["signal"], seed=settings["family"])
    source = family.site(CALIBRATION_ROWS, prevalence=[0.7, 0.3], seed=10_000 + seed)
    calibration = sw.calibrate_log_ratio(
        distorted(source.log_ratio), source.y, source.log_prevalence, n_resamples=200, random_state=seed
    )
    prevalence = [1 - settings["prevalence"], settings["prevalence"]]
    site = family.site(
        settings["n"],
        prevalence=prevalence,
        dependence=settings["dependence"],
        z_shift=settings["z_shift"],
        seed=20_000 + seed,
    )
    log_ratio = calibration(distorted(site.log_ratio))
    estimate = sw.estimate_prevalence(log_ratio, site.Z)
    start = time.perf_counter()
    expected = expected_performance(log_ratio, estimate, site.Z, calibration=calibration, random_state=seed)
    seconds = time.perf_counter() - start
    seen = observed(site.y, sw.adjust(log_ratio, estimate.log_prevalence(site.Z)))
    record = {**settings, "seconds": seconds, "metrics": compared(expected, seen)}
    if seed < GIVEN_F:  # the same without the calibration's uncertainty
        given_f = expected_performance(log_ratio, estimate, site.Z, random_state=seed)
        record["given_f"] = compared(given_f, seen)
    return record


def run(out, parts, simulated, digits, models):
    """Do the sites that have no record yet."""
    made = provenance()
    torch.set_num_threads(1)
    done = done_ids(out)
    for seed in range(simulated if "simulated" in parts else 0):
        name = f"simulated-{seed}"
        if name in done:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            record = simulated_site(seed)
        append_record(out, {"id": name, "part": "simulated", "seed": seed, **record, **made})


def summarize(records, part, key="metrics"):
    """Mean absolute error, bias and coverage of every metric."""
    rows = {}
    for name in SHOWN:
        found = [
            r[key][name]
            for r in records
            if r["part"] == part and name in r.get(key, {}) and r[key][name][3] is not None
        ]
        if not found:
            continue
        estimate, low, high, seen = np.array(found, dtype=float).T
        held = (low <= seen) & (seen <= high)
        rows[name] = {
            "sites": len(found),
            "mae": float(np.abs(estimate - seen).mean()),
            "bias": float((estimate - seen).mean()),
            "coverage": float(held.mean()),
            "width": float((high - low).mean()),
        }
    return rows


def table(records):
    """The tables in Markdown."""
    lines = []
    for part in ("simulated", "digits"):
        for key in ("metrics", "given_f"):
            rows = summarize(records, part, key)
            if not rows:
                continue
            lines += [
                f"{part}, {key}",
                "",
                "| metric | sites | mean absolute error | bias | 95% interval holds | its mean width |",
            ]
            lines += ["|---|---|---|---|---|---|"]
            for name, row in rows.items():
                lines.append(
                    f"| {name} | {row['sites']} | {row['mae']:.4f} | {row['bias']:+.4f} | {row['coverage']:.1%} | {row['width']:.3f} |"
                )
            lines.append("")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run", help="do the sites that are not in the file yet")
    running.add_argument("--out", type=Path, default=Path("benchmarks/expected_performance.jsonl"))
    running.add_argument("--part", action="append", choices=("simulated", "digits"))
    running.add_argument("--simulated", type=int, default=SIMULATED)
    running.add_argument("--digits", type=int, default=DIGITS, help="sites for each model")
    running.add_argument("--models", type=int, default=MODELS)
    showing = commands.add_parser("table", help="print the tables")
    showing.add_argument("file", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "run":
        parts = arguments.part or ("simulated", "digits")
        run(arguments.out, parts, arguments.simulated, arguments.digits, arguments.models)
    else:
        sys.stdout.write(table(read_records(arguments.file)))


if __name__ == "__main__":
    main()
