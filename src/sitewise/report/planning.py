"""The figure of a sample-size plan."""

import math
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sitewise.report.style import ACCENT, GREY, GRID, INK, in_house_style

LABELS = {
    "width": "width of the interval of P(y)",
    "kl": "KL(g, estimate)",
    "f1_loss": "F1 lost against knowing g",
}


@in_house_style
def plan_figure(record: dict[str, Any]) -> Figure:
    """Draw the interval's width (by information and by simulation) and simulated losses against the number of rows."""
    points = record["points"]
    simulated = [point for point in points if point["n_simulations"] >= 2]
    shown = ("width", "kl", "f1_loss") if simulated else ("width",)
    figure, axes = plt.subplots(1, len(shown), figsize=(3.6 * len(shown), 3.4), layout="constrained", squeeze=False)
    for axis, name in zip(axes[0], shown, strict=True):
        if name == "width":
            sizes, widths = [point["n"] for point in points], [point["width"] for point in points]
            axis.plot(sizes, widths, "-", color=ACCENT, lw=1.5, label="by information")
        _draw_simulated(axis, simulated, "simulated_width" if name == "width" else name)
        if name == record["target"]:
            axis.axhline(record["wanted"], color=GREY, lw=1, ls="--", label="wanted")
            if record["answer"] is not None:
                axis.axvline(record["answer"], color=GREY, lw=1, ls=":", label=f"{record['answer']:,} rows")
        axis.set(xscale="log", xlabel="unlabeled rows", ylabel=LABELS[name])
        shown_sizes = _spread([point["n"] for point in points])
        axis.set_xticks(shown_sizes, [f"{size:,}" for size in shown_sizes])
        axis.minorticks_off()
        axis.set_ylim(bottom=min(0, axis.get_ylim()[0]))
        axis.grid(color=GRID)
        if name in ("width", record["target"]):
            axis.legend(frameon=False, fontsize=8)
    return figure


def _spread(sizes: list[int]) -> list[int]:
    """Sizes whose labels do not overlap on a logarithmic axis."""
    span = math.log(sizes[-1] / sizes[0]) or 1.0
    kept = sizes[:1]
    for size in sizes[1:]:
        if math.log(size / kept[-1]) > 0.19 * span:
            kept.append(size)
    return kept


def save_plan_figure(figure: Figure, path: Path) -> Path:
    """Write the figure to `path`, and close it; the folder is created if needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return path


def _draw_simulated(axis: Axes, points: list[dict[str, Any]], name: str) -> None:
    if points:
        sizes = [point["n"] for point in points]
        means, errors = [point[name] for point in points], [2 * point[f"{name}_error"] for point in points]
        axis.errorbar(
            sizes, means, yerr=errors, fmt="o", color=INK, ms=4, capsize=3, label="simulated, ± 2 standard errors"
        )
