"""The demo over ten seeds.

    python benchmarks/demo.py run --out benchmarks/demo.jsonl
    python benchmarks/demo.py table benchmarks/demo.jsonl.gz
    python benchmarks/demo.py figure benchmarks/demo.jsonl.gz --out docs/images

Its settings were chosen with seeds 100 and above; the record has seeds 20 to 29, none of which was run before.
"""

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from records import provenance

from sitewise.bench.demo import run_demo
from sitewise.bench.experiments.records import append_record, done_ids, read_records
from sitewise.report.style import ACCENT, GRID, INK, in_house_style

KEPT = ("true_prevalence", "outcome", "methods", "prevalence_given_z")
MEANS = ("prevalence", "adapted", "nll_as_trained", "nll_adapted")
SEEDS = range(20, 30)


def one_seed(seed):
    torch.set_num_threads(1)
    record = run_demo(seed=seed, n_jobs=1).record
    return record | {"sites": {name: {key: site[key] for key in KEPT} for name, site in record["sites"].items()}}


def run(options):
    made = provenance(__file__)
    done = done_ids(options.out, made["fingerprint"])
    seeds = [seed for seed in SEEDS if f"seed {seed}" not in done]
    with ProcessPoolExecutor(options.jobs) as pool:
        for seed, record in zip(seeds, pool.map(one_seed, seeds), strict=True):
            append_record(options.out, {"id": f"seed {seed}", **record, **made})
            print(f"seed {seed}", file=sys.stderr)


def tables(records):
    """Markdown: F1 and log loss by method, how often intervals hold P(y=1), and the rehearsal."""
    lines = ["| site | method | positive F1 | macro F1 | NLL | GPA's F1 is higher in | interval holds P(y=1) |"]
    lines.append("|---|---|---|---|---|---|---|")
    for name in records[0]["sites"]:
        sites = [record["sites"][name] for record in records]
        f1 = {method: metric(sites, method, "positive_f1") for method in sites[0]["methods"]}
        for method in f1:
            means = [metric(sites, method, which).mean() for which in ("positive_f1", "macro_f1", "nll")]
            ahead = "" if method == "GPA" else f"{(f1['GPA'] > f1[method]).sum()} of {len(sites)}"
            estimates = [(site["methods"][method]["prevalence"], site["true_prevalence"]) for site in sites]
            held = [one["low"] <= truth <= one["high"] for one, truth in estimates if one is not None]
            shown = f"{sum(held)} of {len(held)}" if held else ""
            cells = [name, method, *(f"{mean:.3f}" for mean in means), ahead, shown]
            lines.append("| " + " | ".join(cells) + " |")
    lines += ["", "| site left out | P(y=1) | estimated | interval holds it | log loss as trained | adapted |"]
    lines.append("|---|---|---|---|---|---|")
    rehearsed = [record["rehearsal"]["sites"] for record in records]
    for name in records[0]["training_prevalence"]:
        own = [site for sites in rehearsed for site in sites if site["site"] == name]
        held = sum(site["low"] <= site["prevalence"] <= site["high"] for site in own)
        true, estimated, *losses = (np.mean([site[key] for site in own]) for key in MEANS)
        cells = [name, f"{true:.3f}", f"{estimated:.3f}", f"{held} of {len(own)}", *(f"{loss:.3f}" for loss in losses)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


@in_house_style
def figure(records):
    """F1 of every method at both sites: a point for each seed, a line at the mean."""
    names, methods = list(records[0]["sites"]), list(records[0]["sites"]["rare site"]["methods"])
    drawn, axes = plt.subplots(1, len(names), figsize=(9, 3.6), sharey=True, layout="constrained")
    for axis, name in zip(axes, names, strict=True):
        for place, method in enumerate(methods):
            f1 = metric([record["sites"][name] for record in records], method, "positive_f1")
            color = ACCENT if method == "GPA" else INK
            axis.plot(f1, np.full(len(f1), place), "o", color=color, mfc="none", ms=5, alpha=0.6)
            axis.plot([f1.mean()], [place], "|", color=color, ms=18, mew=3)
            axis.text(1.02, place, f"{f1.mean():.3f}", color=color, va="center", transform=axis.get_yaxis_transform())
        axis.set_title(name)
        axis.set_xlabel("F1 of y = 1")
        axis.grid(axis="x", color=GRID)
    axes[0].set_yticks(range(len(methods)), methods)
    axes[0].get_yticklabels()[methods.index("GPA")].set_fontweight("bold")
    axes[0].set_ylim(len(methods) - 0.4, -0.6)
    return drawn


def draw(options):
    options.out.mkdir(parents=True, exist_ok=True)
    figure(read_records(records_of(options.file))).savefig(options.out / "demo_f1.png", dpi=150)


def records_of(file):
    return Path(str(file).removesuffix(".gz"))


def metric(sites, method, name):
    return np.array([site["methods"][method][name]["value"] for site in sites])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    running = commands.add_parser("run")
    running.add_argument("--jobs", type=int, default=2)
    running.add_argument("--out", type=Path, default=Path("results/demo.jsonl"))
    running.set_defaults(function=run)
    showing = commands.add_parser("table")
    showing.add_argument("file", type=Path)
    showing.set_defaults(function=lambda options: print(tables(read_records(records_of(options.file)))))
    drawing = commands.add_parser("figure")
    drawing.add_argument("file", type=Path)
    drawing.add_argument("--out", type=Path, default=Path("results"))
    drawing.set_defaults(function=draw)
    options = parser.parse_args()
    options.function(options)


if __name__ == "__main__":
    main()
