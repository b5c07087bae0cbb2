"""Tables of an experiment's summary and of the methods, in Markdown, CSV or LaTeX, or for the terminal."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, overload

import pandas as pd

from sitewise.bench.report.grids import Cell, Grid, TerminalGrid, write_latex, write_markdown
from sitewise.bench.report.summary import (
    INFORMED_MARK,
    INFORMED_NOTE,
    choose,
    informed_methods,
    left_out,
    seeds_note,
    shown_methods,
    small_is_good,
    without_number,
)
from sitewise.evaluation import metric_name

TextFormat = Literal["markdown", "csv", "latex"]
METHOD_COLUMNS = {
    "name": ("name",),
    "single_site": ("sites", "one"),
    "several_sites": ("sites", "several"),
    "continuous_z": ("z", "continuous"),
    "high_dimensional_z": ("z", "high-dim."),
    "z_at_test": ("at test", "z"),
    "labels_at_test": ("at test", "labels"),
    "given": ("given beforehand",),
    "unlabeled_in_training": ("trains with", "unlabeled"),
    "input": ("input",),
    "without_z": ("without z",),
    "estimates_g": ("estimates g",),
    "cite": ("paper",),
}
METHODS_TITLE = "What each method needs, and how it estimates g = P(y|z) at a new site"
MOST_DIGITS = 6


@overload
def comparison_table(frame: pd.DataFrame, metric: str, format: TextFormat, reference: str | None = None) -> str: ...
@overload
def comparison_table(
    frame: pd.DataFrame, metric: str, format: Literal["terminal"], reference: str | None = None
) -> TerminalGrid: ...
def comparison_table(frame: pd.DataFrame, metric: str, format: str, reference: str | None = None) -> str | TerminalGrid:
    """Return a table of one metric of a summary, with a row for each method and a column for each site and draw.

    A cell has the mean over seeds with its 95% interval, and below it the paired difference to the reference with its
    own interval. The best method of a column is bold. A method that uses information which is not available at a new
    site has a dagger and cannot be bold. Skipped methods are listed below with the reason. CSV is different: it has
    all columns of the summary, unrounded.
    """
    rows = choose(frame, metric)
    return rows.to_csv(index=False) if format == "csv" else _write(_comparison_grid(rows, metric, reference), format)


def scores_table(frame: pd.DataFrame, metrics: Sequence[str], format: TextFormat, reference: str | None = None) -> str:
    """Return a table of several metrics of a summary, with a row for each method.

    There is a column for each site, draw and metric. Cells, bold print, daggers and notes are as in
    `comparison_table`; the number of digits is chosen for each metric.
    """
    grids = [_comparison_grid(choose(frame, metric), metric, reference) for metric in metrics]
    names = list(dict.fromkeys(row[0].text for grid in grids for row in grid.rows))
    by_name = [{row[0].text: row[1:] for row in grid.rows} for grid in grids]
    rows = tuple(
        (
            Cell(name),
            *(
                cell
                for own, grid in zip(by_name, grids, strict=True)
                for cell in own.get(name, (Cell("-"),) * (len(grid.columns) - 1))
            ),
        )
        for name in names
    )
    places = [(", ".join(place), grid.title) for grid in grids for place in grid.columns[1:]]
    return str(
        _write(Grid(", ".join(grid.title for grid in grids), (("method",), *places), rows, grids[0].notes), format)
    )


def methods_table(cards: Mapping[str, Mapping[str, Any]], format: str) -> str | TerminalGrid:
    """Return a table of the cards of the methods (registry key -> fields of the card), with a row for each method."""
    if format == "csv":
        fields = [*METHOD_COLUMNS, "note"]
        raw = [[key, *(card[field] for field in fields)] for key, card in cards.items()]
        return pd.DataFrame(raw, columns=["method", *fields]).to_csv(index=False, na_rep="n/a")
    rows = tuple(
        (Cell(key), *(Cell(_in_words(card[field]), cite=field == "cite") for field in METHOD_COLUMNS))
        for key, card in cards.items()
    )
    notes = tuple(f"{card['name']}: {card['note']}." for card in cards.values() if card["note"])
    return _write(Grid(METHODS_TITLE, (("method",), *METHOD_COLUMNS.values()), rows, notes), format)


def _write(grid: Grid, format: str) -> str | TerminalGrid:
    if format == "terminal":
        return TerminalGrid(grid)
    return {"markdown": write_markdown, "latex": write_latex}[format](grid)


def _in_words(value: Any) -> str:
    return {True: "yes", False: "no", None: "n/a"}[value] if value is None or isinstance(value, bool) else str(value)


def _comparison_grid(rows: pd.DataFrame, metric: str, reference: str | None) -> Grid:
    digits, informed = shown_digits(rows["mean"]), informed_methods(rows)
    places = list(rows[["site", "draw"]].drop_duplicates().itertuples(index=False, name=None))
    by_place = {(row["method"], row["site"], row["draw"]): row for row in rows.to_dict("records")}
    best = {place: _best(by_place, place, metric, digits) for place in places}
    body = []
    for method in shown_methods(rows):
        cells = [Cell(f"{method} {INFORMED_MARK}" if method in informed else method)]
        for place in places:
            row = by_place.get((method, *place))
            cells.append(_comparison_cell(row, digits, best[place]))
        body.append(tuple(cells))
    notes = [f"{seeds_note(rows)}{_second_line(rows, reference)}; bold: the best in its column"]
    if informed & set(shown_methods(rows)):
        notes[0] += f" of those without {INFORMED_MARK}"
        notes.append(f"{INFORMED_MARK} {INFORMED_NOTE}.")
    notes[0] = notes[0][0].upper() + notes[0][1:] + "."
    if without_number(rows):
        notes.append(f"Without a {metric_name(metric)}: {'; '.join(without_number(rows))}.")
    reasons = left_out(rows)
    for reason in dict.fromkeys(reasons.values()):
        methods = "; ".join(method for method, own in reasons.items() if own == reason)
        notes.append(f"Left out ({reason}): {methods}.")
    return Grid(metric_name(metric), (("method",), *places), tuple(body), tuple(notes))


def _second_line(rows: pd.DataFrame, reference: str | None) -> str:
    if rows["difference"].isna().all():
        return ""
    return f"; below each number the method minus {reference or 'the reference'}, paired by seed"


def _comparison_cell(row: Mapping[Any, Any] | None, digits: int, best: str) -> Cell:
    if row is None or math.isnan(row["mean"]):
        return Cell("-")
    below = interval_text(row["difference"], row["difference_low"], row["difference_high"], digits, signed=True)
    bold = not row["told"] and number_text(row["mean"], digits) == best
    return Cell(interval_text(row["mean"], row["low"], row["high"], digits), below, bold)


def _best(by_place: Mapping[Any, Mapping[Any, Any]], place: tuple[Any, ...], metric: str, digits: int) -> str:
    """Return the best number of methods that are no references, as displayed; empty if there is none.

    Methods with the same displayed number are equally good.
    """
    means = [row["mean"] for key, row in by_place.items() if key[1:] == place and not row["told"]]
    means = [mean for mean in means if not math.isnan(mean)]
    return number_text((min if small_is_good(metric) else max)(means), digits) if means else ""


def interval_text(value: float, low: float, high: float, digits: int, *, signed: bool = False) -> str:
    """Return text such as `0.858 (0.843 to 0.873)`; without brackets if there is no interval, empty if no value."""
    if math.isnan(value):
        return ""
    texts = [number_text(number, digits, signed=signed) for number in (value, low, high)]
    return texts[0] if math.isnan(low) or math.isnan(high) else f"{texts[0]} ({texts[1]} to {texts[2]})"


def number_text(value: float, digits: int, *, signed: bool = False) -> str:
    """Return a rounded number as text; a number that is rounded to zero has no sign."""
    text = f"{value:+.{digits}f}" if signed else f"{value:.{digits}f}"
    return text.lstrip("+-") if not math.isnan(value) and float(text) == 0 else text


def shown_digits(values: pd.Series) -> int:
    """Return the number of decimals: 3, or up to 6 so that the median of the absolute values has three digits."""
    sizes = values.abs()[values.abs() > 0]
    if sizes.empty:
        return 3
    return min(MOST_DIGITS, max(3, 2 - math.floor(math.log10(float(sizes.median())))))
