"""Features as a network reads them, the scikit-learn way: missing values, categories, scaling, in plain numbers.

A number is imputed by its median and scaled to mean 0 and spread 1 (`SimpleImputer`, `StandardScaler`); a category
becomes a column for each level, all zero for a level not seen before (`OneHotEncoder`). A column that had gaps in
training has one more, which tells where (`MissingIndicator`).
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow as pa
from pyarrow import compute as pc

from sitewise.arrays import Problems
from sitewise.tables.values import Array, Place, Rows, known_text, levels, numbers, plain

MOST_LEVELS = 100  # of a feature; more look like names
MOSTLY = 0.5  # from this share of numbers on, text among them is a slip

NO_VALUES = "{where} has no value at all: leave it out"
DECIMAL_COMMAS = "{where} holds numbers with decimal commas, such as {value!r}: write them with a point"
DECIMAL_COMMA = r"^[+-]?\d+,\d+$"
TOO_MANY = "{where} has {count} different values of text, which looks like names or notes: leave it out"


@dataclass(frozen=True)
class NumberFeature:
    """A number: what stands for a missing one, mean and spread after that, and whether a column tells of gaps."""

    name: str
    median: float
    mean: float
    spread: float
    gaps: bool

    @classmethod
    def learn(cls, name: str, values: Array) -> "NumberFeature":
        """Take them from values (n,) of which some are known."""
        missing = np.isnan(values)
        median = float(np.median(values[~missing]))
        filled = np.where(missing, median, values)
        spread = float(filled.std())
        return cls(name, median, float(filled.mean()), spread if spread > 0 else 1.0, bool(missing.any()))

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of what `encode` gives."""
        return (self.name, f"{self.name} missing") if self.gaps else (self.name,)

    def encode(self, rows: Rows, place: Place, problems: Problems) -> Array:
        """(n, 1), or (n, 2) with the column of gaps."""
        values = numbers(rows, self.name, place, problems)
        missing = np.isnan(values)
        scaled = (np.where(missing, self.median, values) - self.mean) / self.spread
        return np.stack([scaled, missing], axis=1) if self.gaps else scaled[:, None]


@dataclass(frozen=True)
class CategoryFeature:
    """One of some levels, by their text."""

    name: str
    levels: tuple[str, ...]
    gaps: bool

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of what `encode` gives."""
        known = tuple(f"{self.name}={level}" for level in self.levels)
        return (*known, f"{self.name} missing") if self.gaps else known

    def encode(self, rows: Rows, place: Place, problems: Problems) -> Array:
        """(n, L), or (n, L + 1) with the column of gaps; all zero for a level not seen before."""
        found = levels(rows, self.name, place, problems)
        missing, unseen = len(self.levels), len(self.levels) + 1
        code_of = {level: code for code, level in enumerate(self.levels)}
        translate = np.array([*(code_of.get(value, unseen) for value in found.categories), missing])
        hot: Array = np.eye(len(self.levels) + 2)[translate[found.codes]]
        return hot[:, : len(self.columns)]


Feature = NumberFeature | CategoryFeature


def learn_feature(rows: Rows, name: str, categorical: bool, place: Place, problems: Problems) -> Feature | None:
    """A column's kind, then what is needed of it; None after noting what is wrong."""
    if refuse_decimal_commas(rows, name, place, problems):
        return None
    if categorical or not holds_numbers(rows, name):
        found = levels(rows, name, place, problems)
        if not len(found.categories):
            problems.add(NO_VALUES.format(where=place.column(name)))
            return None
        if len(found.categories) > MOST_LEVELS and not categorical:
            problems.add(TOO_MANY.format(where=place.column(name), count=len(found.categories)))
            return None
        return CategoryFeature(name, tuple(found.categories), bool((found.codes < 0).any()))
    before = len(problems.found)
    values = numbers(rows, name, place, problems)
    if len(problems.found) > before:
        return None
    if np.isnan(values).all():
        problems.add(NO_VALUES.format(where=place.column(name)))
        return None
    return NumberFeature.learn(name, values)


def refuse_decimal_commas(rows: Rows, name: str, place: Place, problems: Problems) -> bool:
    """Note a column whose numbers are written with commas: as text each would be a category."""
    cells = plain(rows.column(name))
    if not (pa.types.is_string(cells.type) or pa.types.is_large_string(cells.type)):
        return False
    known = known_text(cells).drop_null()
    found = known.filter(pc.match_substring_regex(known, DECIMAL_COMMA))
    if 2 * len(found) <= len(known):
        return False
    problems.add(DECIMAL_COMMAS.format(where=place.column(name), value=found[0].as_py()))
    return True


def holds_numbers(rows: Rows, name: str) -> bool:
    """Whether a column is meant to hold numbers: by its type, or because most of its text reads as numbers."""
    column = plain(rows.column(name))
    kind = column.type
    if pa.types.is_boolean(kind):
        return False
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return True
    if pa.types.is_temporal(kind):
        return True  # to be refused as dates
    cells = known_text(column).drop_null()
    counted = cells.value_counts()
    values, counts = counted.field(0).to_pandas(), counted.field(1).to_numpy()
    readable = pd.to_numeric(values, errors="coerce").notna().to_numpy()
    return len(cells) == 0 or float(counts[readable].sum()) > MOSTLY * float(counts.sum())
