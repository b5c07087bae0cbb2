"""Figures of an experiment's summary: a comparison of methods, or a metric as a function of a number.

All figures are readable without colour.
"""

import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, NullLocator

from sitewise.arrays import Problems
from sitewise.bench.report.summary import (
    INFORMED_MARK,
    INFORMED_NOTE,
    choose,
    informed_methods,
    left_out,
    seeds_note,
    shown_methods,
)
from sitewise.evaluation import metric_name
from sitewise.report.style import ACCENT, GREY, GRID, INK, STRIPE, in_house_style

Array = np.ndarray[Any, Any]
DRAW_MARKERS = "osD^vP*X"
LINE_MARKERS, DASHES = "sD^vPX*", ("-", "--", ":", "-.")  # 28 different combinations
LINE_COLORS = (INK, "#b35900", "#6b4fa0", GREY, "#5a7d2a")
MEAN, DIFFERENCE = ("mean", "low", "high"), ("difference", "difference_low", "difference_high")
ROW_HEIGHT, DRAW_HEIGHT = 0.27, 0.11  # inches for a method with one draw, and for each further draw
PANEL_WIDTH, DIFFERENCE_WIDTH, GAP_WIDTH, CURVE_WIDTH = 2.7, 2.1, 0.15, 4.2
CHARACTER_WIDTH = 0.085  # inches of a character of a label
SITES_IN_A_ROW = 3  # at most; with more sites, each row of panels has two


@in_house_style
def comparison_figure(frame: pd.DataFrame, metric: str, reference: str, *, title: str = "") -> Figure:
    """Draw the means of all methods with 95% intervals, in a panel for each test site.

    A second panel for each site shows the paired differences to the reference, if the summary has them. Draws have
    different markers. The reference has heavier lines and a vertical line at its mean. Methods that use information
    which is not available at a new site have hollow markers and a dagger.
    """
    rows = choose(frame, metric)
    methods, informed = shown_methods(rows), informed_methods(rows)
    sites, draws = (list(rows[column].unique()) for column in ("site", "draw"))
    paired = bool(rows["difference"].notna().any())
    limits = {
        (site, columns): _limits(rows[rows["site"] == site], columns)
        for site in sites
        for columns in (MEAN, DIFFERENCE)[: 1 + paired]
    }
    notes = _notes(rows, informed, cut=any(limit.cut for limit in limits.values()))
    notes += [f"draw: {draws[0]}"] if len(draws) == 1 else []
    widths = [PANEL_WIDTH, DIFFERENCE_WIDTH if paired else 0.01, GAP_WIDTH]
    across = len(sites) if len(sites) <= SITES_IN_A_ROW else 2
    n_rows = -(-len(sites) // across)
    width = CHARACTER_WIDTH * _longest(methods) + across * sum(widths) + 0.4
    panel_height = 0.8 + len(methods) * (ROW_HEIGHT + DRAW_HEIGHT * (len(draws) - 1))
    figure, grid = plt.subplots(
        n_rows,
        across * len(widths),
        figsize=(width, 0.5 + n_rows * panel_height + 0.18 * _n_lines(notes, width)),
        width_ratios=widths * across,
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    panels = grid.reshape(n_rows * across, len(widths))
    for unused in panels[len(sites) :].flat:
        unused.remove()
    for site, axes in zip(sites, panels, strict=False):
        here = rows[rows["site"] == site]
        for unused in axes[2 if paired else 1 :]:
            unused.remove()
        for axis, columns in zip(axes, (MEAN, DIFFERENCE)[: 1 + paired], strict=False):
            axis.set_xlim(limits[site, columns].low, limits[site, columns].high)
            _panel(axis, here, columns, methods, draws, informed, reference)
        axes[0].set_title(site, loc="left")
        axes[0].set_xlabel(metric_name(metric))
        _reference_line(axes[0], here[here["method"] == reference])
        if paired:
            axes[1].axvline(0, color=ACCENT, lw=1)
            axes[1].set_xlabel(f"minus {_label(reference, set())}, paired")
    grid[0, 0].set_yticks(range(len(methods)), [_label(method, informed) for method in methods])
    grid[0, 0].set_ylim(len(methods) - 0.5, -0.5)
    if reference in methods:
        for first in grid[:, 0]:
            first.get_yticklabels()[methods.index(reference)].set_fontweight("bold")
    _finish(figure, title, notes, _draw_handles(draws))
    return figure


@dataclass(frozen=True)
class _Limits:
    """The ends of an axis, and whether the axis cuts off a part of an interval."""

    low: float
    high: float
    cut: bool


def _limits(rows: pd.DataFrame, columns: tuple[str, str, str]) -> _Limits:
    """Return limits that contain all points, and their intervals up to half the range of the points at each end.

    With two seeds, an interval extends by thirteen standard errors to each side; without this rule, the differences
    between points would not be visible.
    """
    values, lows, highs = (rows[column].dropna().to_numpy(dtype=float) for column in columns)
    if columns == DIFFERENCE:
        values = np.append(values, 0.0)  # the difference of the reference to itself
    if not len(values):
        return _Limits(0.0, 1.0, cut=False)
    least, most = values.min(), values.max()
    low, high = min(least, lows.min(initial=least)), max(most, highs.max(initial=most))
    room = (most - least) / 2 or max(most - low, high - most)
    shown = max(low, least - room), min(high, most + room)
    margin = 0.05 * (shown[1] - shown[0]) or 0.05
    return _Limits(shown[0] - margin, shown[1] + margin, cut=low < shown[0] - margin or high > shown[1] + margin)


def _panel(
    axis: Axes,
    here: pd.DataFrame,
    columns: tuple[str, str, str],
    methods: list[str],
    draws: list[str],
    informed: set[str],
    reference: str,
) -> None:
    """Draw the means or the differences of all methods at one site."""
    _stripes(axis, len(methods), n_ticks=5 if columns == MEAN else 4)
    for place, method in enumerate(methods):
        _points(axis, here[here["method"] == method], columns, place, draws, method in informed, method == reference)


def _points(
    axis: Axes,
    own: pd.DataFrame,
    columns: tuple[str, str, str],
    place: float,
    draws: list[str],
    informed: bool,
    is_reference: bool,
) -> None:
    """Draw the points of one method at one site: a point for each draw, one below the other."""
    color = ACCENT if is_reference else INK
    offsets = (np.arange(len(draws)) - (len(draws) - 1) / 2) * 0.7 / max(len(draws), 2)
    for row in own.to_dict("records"):
        value, low, high = (float(row[column]) for column in columns)
        if np.isnan(value):
            continue
        number = draws.index(row["draw"])
        axis.errorbar(
            [value],
            [place + offsets[number]],
            xerr=_lengths(np.array([value]), np.array([low]), np.array([high])),
            fmt=DRAW_MARKERS[number % len(DRAW_MARKERS)],
            color=color,
            mfc="white" if informed else color,
            ms=5.5,
            capsize=2.5,
            lw=1.6 if is_reference else 1.1,
            zorder=3,
        )


def _stripes(axis: Axes, n_rows: int, n_ticks: int) -> None:
    for row in range(0, n_rows, 2):
        axis.axhspan(row - 0.5, row + 0.5, color=STRIPE, zorder=0)
    axis.grid(axis="x", color=GRID, zorder=1)
    axis.set_axisbelow(True)
    axis.tick_params(axis="y", length=0)
    axis.xaxis.set_major_locator(MaxNLocator(n_ticks, steps=[1, 2, 5, 10], min_n_ticks=2))
    axis.spines[["top", "right", "left"]].set_visible(False)


def _reference_line(axis: Axes, own: pd.DataFrame) -> None:
    """Draw a vertical line at the mean of the reference, if it has exactly one."""
    means = own["mean"].dropna()
    if len(means) == 1:
        axis.axvline(float(means.iloc[0]), color=ACCENT, lw=1, zorder=2)


def _draw_handles(draws: list[str]) -> list[Line2D]:
    if len(draws) == 1:
        return []
    return [
        Line2D([], [], color=INK, marker=DRAW_MARKERS[number % len(DRAW_MARKERS)], ls="", label=draw)
        for number, draw in enumerate(draws)
    ]


@in_house_style
def curve_figure(
    frame: pd.DataFrame,
    metric: str,
    x: Mapping[str, float],
    *,
    over: Literal["draw", "site"],
    label: str,
    log: bool = False,
    reference: str = "",
    title: str = "",
) -> Figure:
    """Draw a metric with 95% intervals as a function of a number of each draw or site, with a line for each method.

    Lines differ in markers and dashes. Methods that use information which is not available at a new site have hollow
    markers. The points of different methods are slightly shifted, so that their intervals do not overlap.

    Parameters
    ----------
    frame : DataFrame
        The summary.
    metric : str
        One of its metrics.
    x : dict of str to float
        The number of each draw or test site, by name; draws or sites without a number are not drawn.
    over : {"draw", "site"}
        Whether the names in `x` are draws or test sites. With "draw" there is a panel for each test site, with "site" a
        panel for each draw.
    label : str
        The label of the x-axis.
    log : bool
        Whether the x-axis is logarithmic.
    reference : str, optional
        The method with a heavier line.
    title : str, optional
        The title above the panels.

    Returns
    -------
    Figure
        A matplotlib figure.
    """
    rows = choose(frame, metric)
    rows = rows[rows[over].isin(list(x))]
    _check_numbers(x, rows, over, log)
    methods, informed = shown_methods(rows), informed_methods(rows)
    column = "site" if over == "draw" else "draw"
    panels = {panel: rows[rows[column] == panel] for panel in rows[column].unique()}
    limits = {panel: _limits(here, MEAN) for panel, here in panels.items()}
    notes = _notes(rows, informed, cut=any(limit.cut for limit in limits.values()))
    width = len(panels) * CURVE_WIDTH + CHARACTER_WIDTH * _longest(methods) + 0.9
    height = max(3.6, 0.21 * len(methods) + 1) + 0.18 * _n_lines(notes, width)
    figure, grid = plt.subplots(
        1, len(panels), figsize=(width, height), sharex=True, squeeze=False, layout="constrained"
    )
    places = _beside(np.array(sorted(set(x.values())), dtype=float), len(methods), log)
    handles = []
    for axis, (panel, here) in zip(grid[0], panels.items(), strict=True):
        handles = [
            _curve(axis, here[here["method"] == method], {name: places[x[name]][number] for name in x}, over, look)
            for number, (method, look) in enumerate(_looks(methods, informed, reference).items())
        ]
        axis.set_title(panel if over == "draw" else f"draw: {panel}", loc="left")
        axis.set_ylim(limits[panel].low, limits[panel].high)
        axis.set_xlabel(label)
        axis.grid(color=GRID)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
        if log:
            axis.set_xscale("log")
        axis.xaxis.set_minor_locator(NullLocator())
        axis.set_xticks(*_ticks(places, log, CURVE_WIDTH))
    grid[0, 0].set_ylabel(metric_name(metric))
    figure.legend(handles=handles, loc="outside right upper", frameon=False)
    _finish(figure, title, notes, [])
    return figure


def _check_numbers(x: Mapping[str, float], rows: pd.DataFrame, over: str, log: bool) -> None:
    problems = Problems("curve_figure")
    if rows.empty:
        problems.add(f"no {over} of the summary has a number to draw it at; numbers were given for: {', '.join(x)}")
    low = [f"{name!r} has {value:g}" for name, value in x.items() if log and value <= 0]
    if low:
        problems.add(f"a logarithmic axis needs numbers above 0, but {', '.join(low)}")
    problems.raise_if_any()


def _beside(numbers: Array, n_lines: int, log: bool) -> dict[float, Array]:
    """Return the shifted positions of the lines' points for each number, within a third of the smallest gap."""
    scale = np.log(numbers) if log else numbers
    gap = min((high - low for low, high in pairwise(scale)), default=0.0)
    offsets = (np.arange(n_lines) - (n_lines - 1) / 2) / max(n_lines, 6) * gap / 3
    return {
        float(number): np.exp(at + offsets) if log else at + offsets for number, at in zip(numbers, scale, strict=True)
    }


def _ticks(places: Mapping[float, Array], log: bool, width: float) -> tuple[list[float], list[str]]:
    """Return positions and texts of the ticks: the numbers, without those whose text would overlap the text before."""
    numbers = list(places)
    scale = np.log(numbers) if log else np.array(numbers)
    inches = (scale - scale[0]) / max(scale[-1] - scale[0], 1e-12) * 0.85 * width
    shown: list[float] = []
    texts: list[str] = []
    end = -np.inf
    for number, at in zip(numbers, inches, strict=True):
        text = f"{number:,.10g}"
        half = CHARACTER_WIDTH * len(text) / 2
        if at - half > end:
            shown.append(number)
            texts.append(text)
            end = at + half + CHARACTER_WIDTH
    return shown, texts


def _looks(methods: list[str], informed: set[str], reference: str) -> dict[str, dict[str, Any]]:
    """Return the style of each method's line: heavier for the reference, hollow markers for `informed` methods."""
    looks: dict[str, dict[str, Any]] = {}
    number = 0
    for method in methods:
        if method == reference:
            look = {"marker": "o", "ls": "-", "color": ACCENT, "lw": 2.4, "ms": 7, "zorder": 4}
        else:
            marker, dashes, color = (cycle[number % len(cycle)] for cycle in (LINE_MARKERS, DASHES, LINE_COLORS))
            look = {"marker": marker, "ls": dashes, "color": color, "lw": 1.2, "ms": 5}
            number += 1
        look["mfc"] = "white" if method in informed else look["color"]
        looks[method] = {**look, "label": _label(method, informed)}
    return looks


def _curve(axis: Axes, own: pd.DataFrame, at: Mapping[str, float], over: str, look: dict[str, Any]) -> Line2D:
    """Draw the line of one method in one panel, and return its handle for the legend."""
    own = own[own["mean"].notna()]
    own = own.assign(at=own[over].map(at)).sort_values("at")
    value, low, high = (own[column].to_numpy(dtype=float) for column in ("mean", "low", "high"))
    axis.errorbar(own["at"], value, yerr=_lengths(value, low, high), capsize=2, elinewidth=0.9, **look)
    return Line2D([], [], **look)


def _lengths(value: Array, low: Array, high: Array) -> Array:
    """Return the lengths of intervals below and above the value, for matplotlib; zero if there is no interval."""
    return np.asarray(np.clip(np.nan_to_num([value - low, high - value]), 0, None))


def _label(method: str, informed: set[str]) -> str:
    """Return the displayed name of a method, with superscripts as in `ERM^Z`, and a dagger for `informed` methods."""
    name = re.sub(r"\^(\w+)", r"$^{\\mathrm{\1}}$", method.replace("$", r"\$"))
    return f"{name} {INFORMED_MARK}" if method in informed else name


def _longest(methods: list[str]) -> int:
    """Return the number of characters of the longest label."""
    return max((len(method) + 2 for method in methods), default=0)


def _notes(rows: pd.DataFrame, informed: set[str], *, cut: bool) -> list[str]:
    """Return the notes below the figure: seeds and intervals, the dagger, and methods that were left out."""
    notes = [seeds_note(rows) + ("; intervals without an end go beyond the figure" if cut else "")]
    if informed & set(shown_methods(rows)):
        notes.append(f"{INFORMED_MARK} {INFORMED_NOTE}")
    without = [method for method in left_out(rows) if method not in shown_methods(rows)]
    return [*notes, f"left out: {'; '.join(without)}"] if without else notes


def _wrapped(notes: list[str], width: float) -> str:
    return "\n".join("\n".join(textwrap.wrap(note, max(30, int(width / 0.075)))) for note in notes)


def _n_lines(notes: list[str], width: float) -> int:
    return _wrapped(notes, width).count("\n") + 1


def _finish(figure: Figure, title: str, notes: list[str], handles: list[Line2D]) -> None:
    """Place the title above the panels, and the legend of markers and the notes below."""
    if title:
        figure.suptitle(title, x=0.01, ha="left", fontsize=12)
    legend = figure.legend(
        handles=handles,
        title=_wrapped(notes, figure.get_figwidth()),
        loc="outside lower left",
        ncols=max(1, len(handles)),
        frameon=False,
        alignment="left",
    )
    legend.get_title().set(fontsize=8.5, color=INK)


def save_figure(figure: Figure, path: Path) -> Path:
    """Write a figure in the format of the file's suffix, close it, and return the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return path
