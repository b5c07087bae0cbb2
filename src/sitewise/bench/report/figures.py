"""The figures of the demo, drawn from its record. They are readable without colour."""

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from sitewise.evaluation import metric_name
from sitewise.report.style import ACCENT, GREY, GRID, INK, in_house_style

Record = dict[str, Any]


def draw_demo(record: Record, out: Path) -> list[Path]:
    """Draw all figures of a demo into a folder, and return their paths."""
    figures = {
        "prevalence.png": prevalence_figure(record),
        "f1.png": f1_figure(record),
        "reliability.png": reliability_figure(record),
    }
    paths = []
    for name, figure in figures.items():
        paths.append(out / name)
        figure.savefig(paths[-1], dpi=150)
        plt.close(figure)
    return paths


@in_house_style
def prevalence_figure(record: Record) -> Figure:
    """Draw P(y=1|z) of each new site, true and estimated with its interval, and P(y=1|z) of the training sites."""
    figure, axes = plt.subplots(1, len(record["sites"]), figsize=(9, 3.8), sharey=True, layout="constrained")
    for axis, (name, site) in zip(np.atleast_1d(axes), record["sites"].items(), strict=True):
        levels = site["prevalence_given_z"]
        places = np.arange(len(levels))
        for number, values in enumerate(record["training_prevalence"].values()):
            label = "training sites" if number == 0 else None
            axis.plot(places - 0.3 + 0.08 * number, values, "^", color=GREY, ms=7, label=label)
        estimate = np.array([level["estimate"] for level in levels])
        low, high = (np.array([level[bound] for level in levels]) for bound in ("low", "high"))
        axis.errorbar(
            *(places + 0.12, estimate),
            yerr=np.clip([estimate - low, high - estimate], 0, None),
            fmt="o",
            color=ACCENT,
            capsize=5,
            label="estimated here, no labels (95%)",
        )
        axis.plot(places + 0.24, [level["true"] for level in levels], "_", color=INK, ms=22, mew=3, label="true here")
        axis.set_xticks(places, [f"{record['confounder']} = {level['level']}" for level in levels])
        axis.set_xlim(-0.5, len(levels) - 0.5)
        axis.set_title(name)
    first = np.atleast_1d(axes)[0]
    first.set_ylabel("P(y = 1 | z)")
    first.set_ylim(bottom=-0.02)
    handles, labels = first.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    return figure


@in_house_style
def f1_figure(record: Record) -> Figure:
    """Draw F1 of y=1 and macro F1 of every method at each new site, with 95% intervals."""
    sites = record["sites"]
    figure, axes = plt.subplots(1, len(sites), figsize=(9, 3.8), sharey=True, layout="constrained")
    for axis, (name, site) in zip(np.atleast_1d(axes), sites.items(), strict=True):
        methods = list(site["methods"])
        places = np.arange(len(methods))[::-1]
        for shift, marker, metric in ((0.13, "o", "positive_f1"), (-0.13, "s", "macro_f1")):
            rows = [site["methods"][method][metric] for method in methods]
            value = np.array([row["value"] for row in rows])
            error = np.clip([value - [r["low"] for r in rows], [r["high"] for r in rows] - value], 0, None)
            filled = {"mfc": ACCENT if marker == "o" else "white", "color": ACCENT if marker == "o" else INK}
            axis.errorbar(value, places + shift, xerr=error, fmt=marker, capsize=3, label=metric_name(metric), **filled)
        axis.set_yticks(places, methods)
        axis.set_title(name)
        axis.grid(axis="x", color=GRID)
    figure.legend(
        *np.atleast_1d(axes)[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False
    )
    return figure


@in_house_style
def reliability_figure(record: Record) -> Figure:
    """Draw the share of y = 1 against the predicted P(y = 1) at each new site, for ERM and for adapted GPA."""
    sites = record["sites"]
    figure, axes = plt.subplots(1, len(sites), figsize=(9, 4.4), sharey=True, layout="constrained")
    for axis, (name, site) in zip(np.atleast_1d(axes), sites.items(), strict=True):
        axis.plot([0, 1], [0, 1], color=GREY, lw=1)
        for style, (method, bins) in zip(("s--", "o-"), site["reliability"].items(), strict=False):
            color = ACCENT if style == "o-" else INK
            axis.plot(bins["mean_predicted"], bins["observed"], style, color=color, mfc="white", label=method)
        axis.set_title(name)
        axis.set_xlabel("predicted P(y = 1)")
        axis.set_aspect("equal")
    first = np.atleast_1d(axes)[0]
    first.set_ylabel("share with y = 1")
    figure.legend(*first.get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    return figure
