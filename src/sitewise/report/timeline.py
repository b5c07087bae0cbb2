"""A figure of a site over time: prevalence in windows, with its band and the alarms."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from sitewise.arrays import Problems
from sitewise.report.style import ACCENT, GREY, GRID, INK, in_house_style

NEEDED = ("time", "estimate", "low", "high", "alarm", "n")
ALARM = "#a61b1b"
MOST_PANELS = 6


@in_house_style
def timeline_figure(frame: pd.DataFrame, title: str = "") -> Figure:
    """Draw the result of `monitor`: a panel for each of up to six classes, and the numbers of rows below.

    Parameters
    ----------
    frame : DataFrame
        The result of `monitor`, with the columns `time`, `estimate`, `low`, `high`, `alarm`, `n` and, if there are
        several classes, `class`. If there are more than six classes, the most frequent ones are drawn.
    title : str, optional
        The title.

    Returns
    -------
    Figure
        A matplotlib figure.
    """
    problems = Problems("timeline_figure")
    missing = [column for column in NEEDED if column not in frame]
    if missing:
        problems.add(f"the frame needs the columns {', '.join(NEEDED)}; missing: {', '.join(missing)}")
    elif not len(frame):
        problems.add("the frame has no windows")
    problems.raise_if_any()
    parts = {str(name): part for name, part in frame.groupby("class", sort=False)} if "class" in frame else {"": frame}
    shown = sorted(parts, key=lambda name: -parts[name]["estimate"].mean())[:MOST_PANELS]
    names = [name for name in parts if name in shown]
    heights = [3.0] * len(names) + [0.8]
    figure, axes = plt.subplots(
        len(heights), 1, figsize=(8, 0.9 + sum(heights)), sharex=True, height_ratios=heights, layout="constrained"
    )
    for axis, name in zip(axes, names, strict=False):
        _draw_class(axis, parts[name], name)
    _draw_rows(axes[-1], parts[names[0]])
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    if title:
        figure.suptitle(title, parse_math=False)
    return figure


def _draw_class(axis: Axes, part: pd.DataFrame, name: str) -> None:
    """The estimate with its band; alarms are crosses, which are visible without colour."""
    part = part.sort_values("time")
    time, alarm = part["time"].to_numpy(), part["alarm"].to_numpy(dtype=bool)
    if len(part) > 1:
        axis.fill_between(time, part["low"], part["high"], color=ACCENT, alpha=0.18, lw=0, label="interval")
    else:
        axis.vlines(time, part["low"], part["high"], color=ACCENT, lw=6, alpha=0.25, label="interval")
    axis.plot(time, part["estimate"], "o-", color=ACCENT, ms=4, label="estimate, no labels")
    if "p_value" in part and 0 < part["p_value"].isna().sum() < len(part):
        unchecked = part[part["p_value"].isna()]
        axis.plot(
            unchecked["time"], unchecked["estimate"], "o", color=ACCENT, mfc="white", ms=6, label="check cannot tell"
        )
    if alarm.any():
        axis.plot(
            time[alarm], part["estimate"][alarm], "X", color=ALARM, mec="white", ms=11, label="alarm: the check fails"
        )
    top = float(part["high"].max())
    axis.set_ylim(0, min(1.02, max(1.15 * top, 0.01)))
    axis.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=1 if top < 0.05 else 0))
    label = name if len(name) <= 40 else name[:39] + "…"
    axis.set_ylabel(f"P({label})" if label else "prevalence", parse_math=False)
    axis.grid(axis="y", color=GRID)
    axis.spines[["top", "right"]].set_visible(False)


def _draw_rows(axis: Axes, part: pd.DataFrame) -> None:
    """The number of rows of each window."""
    axis.vlines(part["time"], 0, part["n"], color=GREY, lw=5)
    axis.set_ylim(bottom=0)
    axis.set_ylabel("rows", color=INK)
    axis.spines[["top", "right"]].set_visible(False)
    axis.margins(x=0.04)
    if not np.issubdtype(part["time"].to_numpy().dtype, np.number):
        axis.tick_params(axis="x", rotation=20)
