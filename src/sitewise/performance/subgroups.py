"""Subgroups of a site's rows: how common the classes are, how good predictions, how well calibrated, without labels."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from sitewise.performance.believed_clinical import clinical_performance
from sitewise.performance.expected import (
    MISSING,
    BelievedRows,
    Expected,
    ExpectedPerformance,
    expected_value,
    group_rows,
    summarize,
)

Array = np.ndarray[Any, Any]
FEWEST = 20  # rows of a subgroup below which nothing is claimed about it
TOO_FEW = "{n} row(s) are too few to say anything: at least {fewest} are needed"
UNTOLD = "the rows do not tell the prevalence of this group: its interval spans {low:.0%} to {high:.0%}"
WIDE = 0.5  # an interval of a prevalence as wide as this tells next to nothing


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
        For each class its share among these rows, expected with its interval; empty where rows are too few.
    performance : ExpectedPerformance or None
        What to expect of predictions in this group.
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
    column: str,
    values: pd.Series,
    *,
    bands: Sequence[float] | None = None,
    threshold: float | None = None,
    level: float = 0.95,
) -> list[Subgroup]:
    """Every group of rows by the values of a column (n,): its levels, bands of a number, and "missing".

    `bands` are the edges between bands of a number; its quartiles otherwise.
    """
    values = pd.Series(rows.of_site(values.reset_index(drop=True), "subgroups")).reset_index(drop=True)
    if bands is None:
        groups = group_rows(values)
    else:
        named, order = in_bands(values, bands, column)
        found = group_rows(named)
        groups = {name: found[name] for name in (*order, MISSING) if name in found}
    if len(rows) > 1 and all(len(index) == 1 for index in groups.values()):
        raise ValueError(
            f"subgroups: every group of {column!r} has one row: give a column with fewer values, or bands of a number"
        )
    return [_describe(rows.take(index), classes, column, str(name), threshold, level) for name, index in groups.items()]


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
    share = rows.weight / rows.weight.sum()
    prevalence = {
        label: expected_value(float(share @ rows.belief[:, k]), (rows.labels == k) @ share, level)
        for k, label in enumerate(classes)
    }
    widest = max(prevalence.values(), key=lambda value: (value.high or 0.0) - (value.low or 0.0))
    note: str | None = None
    if widest.low is not None and widest.high is not None and widest.high - widest.low > WIDE:
        note = UNTOLD.format(low=widest.low, high=widest.high)
    calibration = {}
    if len(classes) == 2 and rows.probability is not None:
        at = None if threshold is None or not 0 < threshold < 1 else threshold
        found = clinical_performance(rows, threshold=at, level=level)
        calibration = {key: found[key] for key in ("calibration_in_the_large", "oe_ratio")}
    return Subgroup(column, name, len(rows), prevalence, summarize(rows, classes, threshold, level), calibration, note)
