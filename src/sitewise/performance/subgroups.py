"""Subgroups of a site's rows: prevalence, expected performance and calibration, without labels."""

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
    DrawnRows,
    Expected,
    ExpectedPerformance,
    drawn_truths,
    expected_value,
    group_rows,
    summarize,
)

Array = np.ndarray[Any, Any]
FEWEST = 20  # rows; smaller subgroups are not estimated
TOO_FEW = "{n} row(s) are too few for an estimate: at least {fewest} are needed"
UNTOLD = "the rows do not determine the prevalence of this group: its interval spans {low:.0%} to {high:.0%}"
WIDE = 0.5  # if the interval of a prevalence is wider than this, performance is not estimated
CALIBRATION = {"calibration_in_the_large": calibration_in_the_large, "oe_ratio": observed_to_expected}

Bands = Sequence[float] | Mapping[str, Sequence[float]]


@dataclass(frozen=True, eq=False)
class Subgroup:
    """The expected performance in one subgroup of a site's rows.

    Parameters
    ----------
    column : str
        The column that defines the groups.
    name : str
        The value of the column in this group, or the range of its values, or "missing".
    n_rows : int
        The number of rows.
    prevalence : dict
        The share of each class among these rows with its interval; empty if there are fewer than 20 rows. Rows at which
        f is not identified (section 12 of docs/maths.md) may be of any class; the interval is wide enough for all these
        cases.
    performance : ExpectedPerformance or None
        The expected performance in this group. None if there are fewer than 20 rows, or if the interval of a share is
        wider than 50 percentage points.
    calibration : dict
        The expected `calibration_in_the_large` and `oe_ratio` (observed to expected cases), each with its interval.
        Empty if `performance` is None, with more than two classes, or without probabilities.
    note : str or None
        The reason why the performance is not estimated; None if it is.

    Examples
    --------
    >>> for group in here.subgroups("sex"):
    ...     print(group.name, group.n_rows, group.prevalence)
    """

    column: str
    name: str
    n_rows: int
    prevalence: dict[Any, Expected]
    performance: ExpectedPerformance | None
    calibration: dict[str, Expected]
    note: str | None

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain numbers for JSON.

        Returns
        -------
        dict
            All fields.
        """
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
    rows: DrawnRows,
    classes: tuple[Any, ...],
    by: Any,
    *,
    bands: Bands | None = None,
    threshold: float | None = None,
    level: float = 0.95,
) -> list[Subgroup]:
    """Estimate prevalence and performance in each group of rows: each level, band of a number, or "missing".

    Parameters
    ----------
    rows : DrawnRows
        Rows with the predictions to judge.
    classes : tuple
        The classes, in order.
    by : str, list of str, Series, DataFrame or array of shape (n,)
        Names of confounders, or the values of any column in the order of the rows. Each column of a DataFrame gives its
        own groups.
    bands : sequence of float, or dict of column to sequence, optional
        Edges of the bands of a number; its quartiles by default.
    threshold : float, optional
        As in `expected_performance`.
    level : float
        Level of the intervals.

    Returns
    -------
    list of Subgroup
        One entry for each group.
    """
    frame = columns_of(rows, by)
    edges = dict.fromkeys(frame, bands) if not isinstance(bands, Mapping) else _known_bands(bands, frame)
    described = []
    for column in frame:
        values = pd.Series(rows.of_site(frame[column].reset_index(drop=True), "subgroups")).reset_index(drop=True)
        groups = _groups(values, edges.get(column), str(column))
        if len(rows) > 1 and all(len(index) == 1 for index in groups.values()):
            raise ValueError(
                f"subgroups: every group of {str(column)!r} has one row: give a column with fewer values, "
                "or bands of a number"
            )
        described += [
            _describe(rows.take(index), classes, str(column), str(name), threshold, level)
            for name, index in groups.items()
        ]
    return described


def columns_of(rows: DrawnRows, by: Any) -> pd.DataFrame:
    """Return the columns to group by, one value for each row: confounders by name, or the given values."""
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
                f"there are {known}; pass the values of other columns"
            )
    return pd.Series(by).to_frame(getattr(by, "name", None) or "group")


def _known_bands(bands: Mapping[str, Sequence[float]], frame: pd.DataFrame) -> dict[Any, Sequence[float] | None]:
    names = [str(name) for name in frame]
    for name in bands:
        if name not in names:
            raise ValueError(f"subgroups: bands of {name!r}{did_you_mean(name, names)}; groups are by {names}")
    return {column: bands.get(str(column)) for column in frame}


def _groups(values: pd.Series, bands: Sequence[float] | None, column: str) -> dict[Any, Array]:
    """Return the positions of the rows of each group, by the group's name."""
    if bands is None:
        return group_rows(values)
    named, order = in_bands(values, bands, column)
    rows = group_rows(named)
    return {name: rows[name] for name in (*order, MISSING) if name in rows}


def in_bands(values: pd.Series, bands: Sequence[float], column: str) -> tuple[pd.Series, list[str]]:
    """Convert a column of numbers to names of bands; return the converted column and the names in order."""
    edges = [float(edge) for edge in bands]
    if not edges or edges != sorted(set(edges)):
        raise ValueError(f"subgroups: bands must be numbers in increasing order, got {list(bands)}")
    if not pd.api.types.is_numeric_dtype(values):
        raise ValueError(f"subgroups: bands are for numbers, {column!r} holds {values.dtype}")
    names = [f"below {edges[0]:g}"]
    names += [f"{low:g} to below {high:g}" for low, high in pairwise(edges)]
    names.append(f"{edges[-1]:g} and above")
    place = np.searchsorted(edges, values.to_numpy(dtype=float, na_value=np.nan), side="right")
    named = pd.Series(np.array(names, dtype=object)[np.minimum(place, len(edges))])
    return named.where(values.notna().to_numpy(), None), names


def _describe(
    rows: DrawnRows, classes: tuple[Any, ...], column: str, name: str, threshold: float | None, level: float
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


def _share(rows: DrawnRows, k: int, level: float) -> Expected:
    """Return the share of class k with its interval.

    The lower end counts no row at which f is not identified as class k, the upper end all of them.
    """
    share = rows.weight / rows.weight.sum()
    identified = np.ones(len(rows), dtype=bool) if rows.identified is None else rows.identified
    drawn = (rows.labels[:, identified] == k) @ share[identified]
    value = expected_value(float(share @ rows.belief[:, k]), drawn, level)
    if identified.all() or value.low is None or value.high is None:
        return value
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return Expected(value.estimate, float(low), float(high + share[~identified].sum()))


def _calibration(rows: DrawnRows, level: float) -> dict[str, Expected]:
    """Return the expected calibration of probabilities of two classes, with intervals from the drawn labels."""
    if rows.probability is None or rows.belief.shape[1] != 2:
        return {}
    score = rows.probability[:, 1]
    calibration = {}
    for name, measure in CALIBRATION.items():
        drawn = [measure(truth[:, 1], score, rows.weight) for truth in drawn_truths(rows.labels, 2)]
        value = measure(rows.belief[None, :, 1], score, rows.weight)[0]
        calibration[name] = expected_value(float(value), np.concatenate(drawn), level)
    return calibration
