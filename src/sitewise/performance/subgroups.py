"""Subgroups of a site's rows: how common the classes are, how good predictions, how well calibrated, without labels."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from sitewise.arrays import did_you_mean
from sitewise.performance.clinical import calibration_in_the_large, observed_to_expected
from sitewise.performance.expected import (
    MISSING,
    BelievedRows,
    Expected,
    ExpectedPerformance,
    drawn_truths,
    expected_value,
    group_rows,
    summarize,
)

Array = np.ndarray[Any, Any]
FEWEST = 20  # rows of a subgroup below which nothing is claimed about it
TOO_FEW = "{n} row(s) are too few to say anything: at least {fewest} are needed"
UNTOLD = "the rows do not tell the prevalence of this group: its interval spans {low:.0%} to {high:.0%}"
WIDE = 0.5  # an interval of a prevalence as wide as this tells next to nothing, and nothing else is claimed
CALIBRATION = {"calibration_in_the_large": calibration_in_the_large, "oe_ratio": observed_to_expected}

Bands = Sequence[float] | Mapping[str, Sequence[float]]


@dataclass(frozen=True, eq=False)
class Subgroup:
    """One subgroup of a site's rows.

    Attributes
    ----------
    column, name : str
        Of what it is a group, and which.
    n_rows : int
        How many rows.
    prevalence : dict
        For each class its share among these rows, expected with its interval; empty where rows are too few. Rows whose
        g the site's rows do not tell (f is not identified there) may be of any class at the ends of the interval.
    performance : ExpectedPerformance or None
        What to expect of predictions in this group; None where rows are too few or do not tell the prevalence.
    calibration : dict
        `calibration_in_the_large` and `oe_ratio` to expect, for two classes and probabilities.
    note : str or None
        Why little or nothing is claimed.
    """

    column: str
    name: str
    n_rows: int
    prevalence: dict[Any, Expected]
    performance: ExpectedPerformance | None
    calibration: dict[str, Expected]
    note: str | None

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, ready for JSON."""
        return {
            "column": self.column,
            "name": self.name,
            "rows": self.n_rows,
            "prevalence": {str(name): value._asdict() for name, value in self.prevalence.items()},
            "performance": None if self.performance is None else self.performance.to_dict(),
            "calibration": {name: value._asdict() for name, value in self.calibration.items()},
            "note": self.note,
        }


def subgroups(
    rows: BelievedRows,
    classes: tuple[Any, ...],
    by: Any,
    *,
    bands: Bands | None = None,
    threshold: float | None = None,
    level: float = 0.95,
) -> list[Subgroup]:
    """Every group of rows by the values of columns: levels, bands of a number, and "missing".

    Parameters
    ----------
    rows : BelievedRows
        With the predictions that are judged.
    classes : tuple
        The classes, in order.
    by : str, list of str, Series, DataFrame or array-like of shape (n,)
        Names of confounders, or values of any column in the order of the rows; a frame is taken column by column.
    bands : sequence of float, or dict of them by column, optional
        Edges between bands of a number; its quartiles otherwise.
    threshold, level
        As in `expected_performance`.
    """
    frame = columns_of(rows, by)
    edges = dict.fromkeys(frame, bands) if not isinstance(bands, Mapping) else _known_bands(bands, frame)
    found = []
    for column in frame:
        values = pd.Series(rows.of_site(frame[column].reset_index(drop=True), "subgroups")).reset_index(drop=True)
        groups = _groups(values, edges.get(column), str(column))
        if len(rows) > 1 and all(len(index) == 1 for index in groups.values()):
            raise ValueError(
                f"subgroups: every group of {str(column)!r} has one row: give a column with fewer values, "
                "or bands of a number"
            )
        found += [
            _describe(rows.take(index), classes, str(column), str(name), threshold, level)
            for name, index in groups.items()
        ]
    return found


def columns_of(rows: BelievedRows, by: Any) -> pd.DataFrame:
    """What rows are grouped by, as a frame with a value for each row: confounders by name, or values as given."""
    if isinstance(by, pd.DataFrame):
        return by
    known = [str(name) for name in rows.z.columns]
    names = [by] if isinstance(by, str) else by
    if isinstance(names, list | tuple) and len(names) and all(isinstance(name, str) for name in names):
        unknown = [name for name in names if name not in known]
        if not unknown:
            return rows.z[list(names)]
        if isinstance(by, str) or len(names) not in (len(rows), rows.n_site):
            raise ValueError(
                f"subgroups: there is no confounder {unknown[0]!r}{did_you_mean(unknown[0], known)}; "
                f"there are {known}; hand over the values of other columns"
            )
    return pd.Series(by).to_frame(getattr(by, "name", None) or "group")


def _known_bands(bands: Mapping[str, Sequence[float]], frame: pd.DataFrame) -> dict[Any, Sequence[float] | None]:
    names = [str(name) for name in frame]
    for name in bands:
        if name not in names:
            raise ValueError(f"subgroups: bands of {name!r}{did_you_mean(name, names)}; groups are by {names}")
    return {column: bands.get(str(column)) for column in frame}


def _groups(values: pd.Series, bands: Sequence[float] | None, column: str) -> dict[Any, Array]:
    """Row numbers of each group."""
    if bands is None:
        return group_rows(values)
    named, order = in_bands(values, bands, column)
    found = group_rows(named)
    return {name: found[name] for name in (*order, MISSING) if name in found}


def in_bands(values: pd.Series, bands: Sequence[float], column: str) -> tuple[pd.Series, list[str]]:
    """A number as names of bands, and these names in order: below the first edge, between, from the last one on."""
    edges = [float(edge) for edge in bands]
    if not edges or edges != sorted(set(edges)):
        raise ValueError(f"subgroups: bands must be numbers in increasing order, got {list(bands)}")
    if not pd.api.types.is_numeric_dtype(values):
        raise ValueError(f"subgroups: bands are for numbers, {column!r} holds {values.dtype}")
    names = [f"below {edges[0]:g}"]
    names += [f"{low:g} to below {high:g}" for low, high in pairwise(edges)]
    names.append(f"{edges[-1]:g} and above")
    place = np.searchsorted(edges, values.to_numpy(dtype=float, na_value=np.nan), side="right")
    found = pd.Series(np.array(names, dtype=object)[np.minimum(place, len(edges))])
    return found.where(values.notna().to_numpy(), None), names


def _describe(
    rows: BelievedRows, classes: tuple[Any, ...], column: str, name: str, threshold: float | None, level: float
) -> Subgroup:
    if len(rows) < FEWEST:
        return Subgroup(column, name, len(rows), {}, None, {}, TOO_FEW.format(n=len(rows), fewest=FEWEST))
    prevalence = {label: _share(rows, k, level) for k, label in enumerate(classes)}
    widest = max(prevalence.values(), key=lambda value: (value.high or 0.0) - (value.low or 0.0))
    assert widest.low is not None
    assert widest.high is not None
    if widest.high - widest.low > WIDE:
        note = UNTOLD.format(low=widest.low, high=widest.high)
        return Subgroup(column, name, len(rows), prevalence, None, {}, note)
    performance = summarize(rows, classes, threshold, level)
    return Subgroup(column, name, len(rows), prevalence, performance, _calibration(rows, level), None)


def _share(rows: BelievedRows, k: int, level: float) -> Expected:
    """How common a class is among these rows; where g is not told, it may be nobody's or everybody's class."""
    share = rows.weight / rows.weight.sum()
    told = np.ones(len(rows), dtype=bool) if rows.told is None else rows.told
    drawn = (rows.labels[:, told] == k) @ share[told]
    value = expected_value(float(share @ rows.belief[:, k]), drawn, level)
    if told.all() or value.low is None or value.high is None:
        return value
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return Expected(value.estimate, float(low), float(high + share[~told].sum()))


def _calibration(rows: BelievedRows, level: float) -> dict[str, Expected]:
    """Calibration of probabilities of two classes, as the draws of the labels have it."""
    if rows.probability is None or rows.belief.shape[1] != 2:
        return {}
    score = rows.probability[:, 1]
    found = {}
    for name, measure in CALIBRATION.items():
        drawn = [measure(truth[:, 1], score, rows.weight) for truth in drawn_truths(rows.labels, 2)]
        value = measure(rows.belief[None, :, 1], score, rows.weight)[0]
        found[name] = expected_value(float(value), np.concatenate(drawn), level)
    return found
