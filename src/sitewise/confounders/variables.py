"""One variable of Z: how its values become codes, and what was odd about them.

A continuous variable is mapped to [1, 2] and missing is 0; a categorical variable with L levels has the codes 0..L-1
and missing is L. The code of missing is thus outside the range of every value (equation 5).
"""

import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from sitewise.arrays import Problems, numbers_of

Level = str | int | float | bool
N_KNOTS = 5
MANY_VALUES = 2**20  # of one column; its knots need no more

UNSEEN = "confounder {name!r}: {count} row(s) have level(s) not seen before ({levels}); they count as missing"
ABSENT = "confounder(s) {names} are absent and count as missing"
DATES = "turn them into a number (an age, days since a start) first"
STRANGE = "holds values that are neither numbers nor text"
DATE_KINDS = ("datetime64", "datetime", "date", "timedelta64", "timedelta", "time")
EXTRA = "column(s) {names} are not confounders of this model and are ignored"


@dataclass(frozen=True)
class Notes:
    """What happened while encoding: rows clipped and with unseen levels by variable, columns absent and ignored."""

    clipped: dict[str, int] = field(default_factory=dict)
    unseen: dict[str, int] = field(default_factory=dict)
    levels: dict[str, set[str]] = field(default_factory=dict, repr=False)  # the unseen ones
    absent: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()

    def add(self, other: "Notes") -> None:
        """Count what happened to further rows with the same columns."""
        for mine, theirs in ((self.clipped, other.clipped), (self.unseen, other.unseen)):
            for name, count in theirs.items():
                mine[name] = mine.get(name, 0) + count
        for name, levels in other.levels.items():
            self.levels[name] = self.levels.get(name, set()) | levels

    def warn(self, stacklevel: int) -> None:
        """Warn of columns absent and ignored, and of levels not seen before."""
        if self.absent:
            warnings.warn(ABSENT.format(names=list(self.absent)), stacklevel=stacklevel)
        if self.extra:
            warnings.warn(EXTRA.format(names=list(self.extra)), stacklevel=stacklevel)
        for name, count in self.unseen.items():
            levels = sorted(self.levels[name])
            shown = ", ".join(levels[:5]) + (", ..." if len(levels) > 5 else "")
            warnings.warn(UNSEEN.format(name=name, count=count, levels=shown), stacklevel=stacklevel)


@dataclass(frozen=True)
class Continuous:
    """A number, with the range it was learned on and the knots of its splines (in code units, from 1 to 2)."""

    name: str
    low: float
    high: float
    knots: tuple[float, ...]

    @property
    def missing_code(self) -> float:
        """Zero, outside [1, 2]."""
        return 0.0

    @classmethod
    def learn(cls, name: str, values: np.ndarray[Any, Any]) -> "Continuous":
        """Take the range and quantile knots of finite values; a variable that never varies has no knots."""
        low, high = float(values.min()), float(values.max())
        return cls.within(name, low, high, values[:: knot_stride(len(values))])

    @classmethod
    def within(cls, name: str, low: float, high: float, values: np.ndarray[Any, Any]) -> "Continuous":
        """Take a range as it is, and the knots of some of the values in it."""
        quantiles = np.quantile(_to_unit(values, low, high), np.linspace(0, 1, N_KNOTS))
        knots = [1.0, *quantiles[1:-1].tolist(), 2.0] if high > low else []
        distinct = [k for i, k in enumerate(knots) if i == 0 or k - knots[i - 1] > 1e-6]
        return cls(name, low, high, tuple(distinct))

    def code(self, value: Any) -> float | None:
        """The code of a number, or of a missing one; None for anything that `encode` has to look at."""
        if value is None or (type(value) is float and value != value):
            return self.missing_code
        if type(value) not in (int, float) or not self.low <= value <= self.high:
            return None
        return float(_to_unit(np.array([value], dtype=np.float64), self.low, self.high)[0])

    def encode(self, column: pd.Series, problems: Problems, notes: Notes) -> np.ndarray[Any, Any]:
        """Map values to [1, 2], counting those clipped at the learned range."""
        if holds_dates(column):
            problems.add(f"confounder {self.name!r} is continuous, but holds dates here: {DATES}")
            return np.full(len(column), np.nan)
        numbers = numbers_of(column)
        strange = np.isnan(numbers) & column.notna().to_numpy()
        if strange.any():
            first = int(np.flatnonzero(strange)[0])
            problems.add(f"confounder {self.name!r} is continuous, but row {first} holds {column.iloc[first]!r}")
            return numbers
        clipped = int(((numbers < self.low) | (numbers > self.high)).sum())
        if clipped:
            notes.clipped[self.name] = clipped
        codes = _to_unit(np.clip(numbers, self.low, self.high), self.low, self.high)
        return np.where(np.isnan(numbers), self.missing_code, codes)


@dataclass(frozen=True)
class Categorical:
    """One of a frozen tuple of levels; others count as missing, without a warning where that is on purpose."""

    name: str
    levels: tuple[Level, ...]
    others_missing: bool = False

    @property
    def missing_code(self) -> float:
        """One past the last level's code."""
        return float(len(self.levels))

    @classmethod
    def learn(cls, name: str, column: pd.Series) -> "Categorical":
        """Take the distinct values, in order."""
        levels = [_plain(v) for v in pd.unique(column.dropna())]
        return cls(name, tuple(sorted(set(levels), key=lambda v: (isinstance(v, str), v))))

    def code(self, value: Any) -> float | None:
        """The code of a level that was seen, or of a missing one; None for anything that `encode` has to look at."""
        if value is None or (type(value) is float and value != value):
            return self.missing_code
        level = _plain(value) if type(value) in (str, int, float, bool) else None
        return float(self.levels.index(level)) if level in self.levels else None

    def encode(self, column: pd.Series, problems: Problems, notes: Notes) -> np.ndarray[Any, Any]:
        """Map levels to 0..L-1; a level not seen before counts as missing."""
        if holds_strange_objects(column.dropna()):
            problems.add(f"confounder {self.name!r} {STRANGE}")
            return np.full(len(column), np.nan)
        code_of = {level: code for code, level in enumerate(self.levels)}
        found, distinct = pd.factorize(column)
        codes = np.array([code_of.get(_plain(v), -1) for v in distinct] + [self.missing_code])[found]
        unseen = codes < 0
        if unseen.any() and not self.others_missing:
            notes.unseen[self.name] = int(unseen.sum())
            notes.levels[self.name] = {repr(_plain(v)) for v in distinct if _plain(v) not in code_of}
        return np.where(unseen, self.missing_code, codes)


Variable = Continuous | Categorical


def knot_stride(n_values: int) -> int:
    """Which share of a long column decides its knots: every n-th value, by powers of two."""
    return 1 << max(0, (n_values - 1) // MANY_VALUES).bit_length()


def holds_dates(column: pd.Series) -> bool:
    """Whether its known values are dates, times or spans of time."""
    return pd.api.types.infer_dtype(column, skipna=True) in DATE_KINDS


def holds_strange_objects(known: pd.Series) -> bool:
    """Whether some of its values are neither numbers nor text."""
    return known.dtype == object and not all(isinstance(v, Level | np.generic) for v in known)


def _to_unit(values: np.ndarray[Any, Any], low: float, high: float) -> np.ndarray[Any, Any]:
    """Map [low, high] to [1, 2]; halves keep the largest floats from overflowing. A single point maps to 1.5."""
    if high <= low:
        return np.full_like(values, 1.5)
    return 1.0 + (values / 2 - low / 2) / (high / 2 - low / 2)


def _plain(value: Any) -> Level:
    """A level as plain Python: 1, 1.0, True and numpy's versions of them are the same level.

    A category that is none of these (an interval of pd.cut, say) goes by its text.
    """
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, Level) else str(value)
