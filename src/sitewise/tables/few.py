"""Read a few rows of a table value by value. For single rows, as in a service, this is faster than Arrow."""

from typing import Any

import numpy as np
import pandas as pd

from sitewise.tables.features import CategoryFeature, Feature, NumberFeature
from sitewise.tables.reader import TableReader
from sitewise.tables.values import LARGEST, Array, spelling

FEW = 16  # rows
ODD = object()  # marks a cell that only the reader of whole tables can read or report


def read_few(reader: TableReader, frame: pd.DataFrame) -> tuple[Array, Array | None] | None:
    """Return X (n, d) and z (n, V) of a few rows, as `TableReader.read` does, with z in the order of the roles.

    z is None if the frame has no column of z. The result is None if there are no rows or more than `FEW`, if the inputs
    are not features, if a feature is absent, if a column name is duplicate, or if a cell needs the
    reader of whole tables (another type than expected, infinite or too large).
    """
    names = frame.columns.tolist()
    place = {name: number for number, name in enumerate(names)}
    if reader.input_kind != "features" or not 0 < len(frame) <= FEW or len(place) < len(names):
        return None
    if any(feature.name not in place for feature in reader.features):
        return None
    rows = frame.to_numpy(dtype=object).tolist()
    X = [[x for f in reader.features for x in _columns(f, row[place[f.name]])] for row in rows]
    Z = _confounders(reader, place, rows)
    if any(cell is ODD for row in (*X, *Z) for cell in row):
        return None
    has_z = any(name in place for name in reader.roles.confounders)
    return np.array(X, dtype=np.float64), np.array(Z, dtype=object) if has_z else None


def _confounders(reader: TableReader, place: dict[Any, int], rows: list[list[Any]]) -> list[list[Any]]:
    """Return the values of z of each row; None where a value or its column is missing."""
    known = [place.get(name) for name in reader.roles.confounders]
    numeric = [name in reader.numeric_confounders for name in reader.roles.confounders]
    return [
        [_value(None if at is None else row[at], is_number) for at, is_number in zip(known, numeric, strict=True)]
        for row in rows
    ]


def _columns(feature: Feature, cell: Any) -> list[Any]:
    """Return the columns of X for one cell, as the transformer of the reader computes them."""
    value = _value(cell, isinstance(feature, NumberFeature))
    if value is ODD:
        return [ODD]
    if isinstance(feature, CategoryFeature):
        kept = (*feature.levels, None) if feature.gaps else feature.levels
        return [float(value == level) for level in kept]
    number = feature.median if value is None else value
    return [(number - feature.mean) / feature.spread, *([float(value is None)] if feature.gaps else [])]


def _value(cell: Any, is_number: bool) -> Any:
    """Return a number or the text of a level; None if it is missing, ODD if it is unusual."""
    if cell is None or (type(cell) is float and cell != cell):
        return None
    if not is_number:
        return spelling(cell) if type(cell) in (str, int, float, bool) else ODD
    return cell if type(cell) in (int, float) and abs(cell) <= LARGEST else ODD
