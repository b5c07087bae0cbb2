"""Performance expected without labels, compared with the performance measured with labels: error and coverage.

    python benchmarks/expected_performance.py run --out benchmarks/expected_performance.jsonl
    python benchmarks/expected_performance.py table benchmarks/expected_performance.jsonl
    python benchmarks/expected_performance.py figure benchmarks/expected_performance.jsonl

simulated: sites with known P(x|y,z); log f is distorted, and calibrated on 1,000 labeled rows of a source site.
digits: colored digits; one network for each training seed, adapted to sites drawn from digits it has not seen. It is
calibrated on a validation site (digits), or on a held-out share of the rows of every site (digits_share).
Each site is one line of the records; a site that has a record is not computed again.
"""

import argparse
import sys
import time
import warnings
from itertools import product
from pathlib import Path

import numpy as np
import torch
from digit_sites import Pool, random_joint, trained_model
from matplotlib import pyplot as plt
from records import provenance

import sitewise as sw
from sitewise.bench.experiments.records import append_record, done_ids, read_records
from sitewise.datasets.simulated import SimulatedFamily
from sitewise.evaluation import evaluate
from sitewise.performance import expected_performance
from sitewise.performance.metrics import EXPECTED_METRICS, Predictions
from sitewise.report.style import ACCENT, GREY, INK, in_house_style

SIMULATED, DIGITS, MODELS = 300, 100, 3
VALIDATION = {"digits": "validation", "digits_share": 0.2}  # what f is calibrated on: a site of its own, or a share
LABELS = {
    "simulated": "simulated sites",
    "digits": "digits, calibrated on a validation site",
    "digits_share": "digits, calibrated on a share of each site",
}
GIVEN_F = 100  # number of simulated sites for which intervals are also computed with f taken as known
SHOWN = ("accuracy", "positive_f1", "macro_f1", "precision", "recall", "specificity", "auroc", "auprc", "brier")
CALIBRATION_ROWS = 1000


def observed(y, probability, threshold=None):
    """Return every metric, computed with labels."""
    truth = np.eye(probability.shape[1])[y].T[None]
    metric_values = Predictions.of(probability, threshold).metrics(truth, np.ones(len(y)))
    values = {name: float(metric_values[name][0]) for name in EXPECTED_METRICS}
    assert abs(values["accuracy"] - evaluate(y, probability)["accuracy"].value) < 1e-9 or threshold is not None
    return values


def compared(expected, seen):
    """Return for each metric the estimate with its interval, and the observed value (None if it is undefined)."""
    return {
        name: [*expected[name], None if np.isnan(seen[name]) else seen[name]]
        for name in expected
        if expected[name].estimate is not None
    }


def distorted(log_ratio):
    """Return log f with the errors of an overconfident and slightly biased network."""
    return 1.6 * (log_ratio - log_ratio.mean(axis=1, keepdims=True)) + np.array([0.3, -0.3])


def simulated_site(seed):
    """Return the record of one simulated site; all its properties are drawn by the seed."""
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
    if seed < GIVEN_F:  # the same intervals without the uncertainty of the calibration
        given_f = expected_performance(log_ratio, estimate, site.Z, random_state=seed)
        record["given_f"] = compared(given_f, seen)
    return record


def digits_site(model, pool, seed):
    """Return the record of one site of digits.

    Rows are classified by the most probable class, and also by the threshold with the highest expected F1.
    """
    rng = np.random.default_rng([2, seed])
    n, joint = int(np.exp(rng.uniform(np.log(500), np.log(5000)))), random_joint(rng)
    log_ratio, Z, y = pool.site(n, joint, rng)
    here = model.adapt_log_ratio(log_ratio, Z).unchecked()
    start = time.perf_counter()
    expected = here.expected_performance()
    seconds = time.perf_counter() - start
    probability = here.adjust(log_ratio, Z)
    choice = here.choose_threshold()
    return {
        "n": n,
        "prevalence": float(joint[1].sum()),
        "seconds": seconds,
        "metrics": compared(expected, observed(y, probability)),
        "threshold": choice.threshold,
        "at_threshold": compared(choice.performance, observed(y, probability, choice.threshold)),
    }


def run(out, parts, simulated, digits, models, folder, data_dir):
    """Compute the sites that have no record yet."""
    made = provenance(__file__)
    torch.set_num_threads(1)
    done = done_ids(out, made["fingerprint"])
    warnings.simplefilter("ignore")
    for seed in range(simulated if "simulated" in parts else 0):
        name = f"simulated-{seed}"
        if name not in done:
            append_record(out, {"id": name, "part": "simulated", "seed": seed, **simulated_site(seed), **made})
    for part, number in product([part for part in VALIDATION if part in parts], range(models)):
        names = {f"{part}-{number}-{site}": number * digits + site for site in range(digits)}
        if done.issuperset(names):
            continue
        model = trained_model(number, folder, data_dir, VALIDATION[part])
        pool = Pool.of(model, number, data_dir)
        for name, seed in names.items():
            if name not in done:
                record = digits_site(model, pool, seed)
                append_record(out, {"id": name, "part": part, "model": number, "seed": seed, **record, **made})


def summarize(records, part, key="metrics"):
    """Return mean absolute error, bias, coverage and mean interval width of every metric."""
    rows = {}
    for name in SHOWN:
        values = [
            r[key][name]
            for r in records
            if r["part"] == part and name in r.get(key, {}) and r[key][name][3] is not None
        ]
        if not values:
            continue
        estimate, low, high, seen = np.array(values, dtype=float).T
        held = (low <= seen) & (seen <= high)
        rows[name] = {
            "sites": len(values),
            "mae": float(np.abs(estimate - seen).mean()),
            "bias": float((estimate - seen).mean()),
            "coverage": float(held.mean()),
            "width": float((high - low).mean()),
        }
    return rows


def table(records):
    """Return the tables in Markdown."""
    lines = []
    for part in LABELS:
        for key in ("metrics", "given_f", "at_threshold"):
            rows = summarize(records, part, key)
            if not rows:
                continue
            head = "| metric | sites | mean absolute error | bias | 95% interval holds | its mean width |"
            lines += [f"{part}, {key}", "", head, "|---|---|---|---|---|---|"]
            for name, row in rows.items():
                cells = (row["sites"], f"{row['mae']:.4f}", f"{row['bias']:+.4f}", f"{row['coverage']:.1%}")
                lines.append(f"| {name} | {' | '.join(map(str, cells))} | {row['width']:.3f} |")
            lines.append("")
    return "\n".join(lines) + "\n"


@in_house_style
def figure(records):
    """Draw expected against observed F1 and accuracy, with a point for each site."""
    drawn, axes = plt.subplots(1, 2, figsize=(8, 4.4), layout="constrained")
    for axis, name in zip(axes, ("positive_f1", "accuracy"), strict=True):
        for (part, label), marker, colour in zip(LABELS.items(), "o^x", (ACCENT, INK, GREY), strict=True):
            values = [r["metrics"][name] for r in records if r["part"] == part]
            estimate, _, _, seen = np.array(values, dtype=float).reshape(-1, 4).T
            axis.plot(seen, estimate, marker, color=colour, ms=3.5, mfc="none", alpha=0.7, label=label)
        low = axis.get_xlim()[0]
        axis.plot([low, 1], [low, 1], color=GREY, lw=1)
        axis.set(xlabel=f"{name} as labels show it", ylabel="expected, without labels", aspect="equal")
    drawn.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    return drawn


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run", help="do the sites that are not in the file yet")
    running.add_argument("--out", type=Path, default=Path("benchmarks/expected_performance.jsonl"))
    running.add_argument("--part", action="append", choices=LABELS)
    running.add_argument("--simulated", type=int, default=SIMULATED)
    running.add_argument("--digits", type=int, default=DIGITS, help="sites for each model")
    running.add_argument("--models", type=int, default=MODELS)
    running.add_argument("--trained", type=Path, default=Path("results/trust"), help="folder of trained models")
    running.add_argument("--data-dir", help="folder with the full MNIST; the 5,000 embedded digits otherwise")
    for name, help_ in (("table", "print the tables"), ("figure", "draw the figure")):
        showing = commands.add_parser(name, help=help_)
        showing.add_argument("file", type=Path)
        if name == "figure":
            showing.add_argument("--out", type=Path, default=Path("docs/images/expected_performance.png"))
    arguments = parser.parse_args()
    if arguments.command == "run":
        parts = arguments.part or LABELS
        sizes = (arguments.simulated, arguments.digits, arguments.models)
        run(arguments.out, parts, *sizes, arguments.trained, arguments.data_dir)
    elif arguments.command == "table":
        sys.stdout.write(table(read_records(arguments.file)))
    else:
        figure(read_records(arguments.file)).savefig(arguments.out, dpi=110)


if __name__ == "__main__":
    main()
