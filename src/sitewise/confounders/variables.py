"""One variable of Z: it is learned from a column, converts values to codes, and counts the values that it changes.

A continuous variable is mapped to [1, 2], and missing is 0. A categorical variable with L levels has the codes 0..L-1,
and missing is L. So the code of missing is never the code of a value (equation 5).
"""

import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from sitewise.arrays import Problems, as_pandas, numbers_of, plain_array, plain_tensor, refuse_one_shot

Level = str | int | float | bool
N_KNOTS = 5
MANY_VALUES = 2**20  # of one column: enough to place its knots

UNSEEN = "confounder {name!r}: {count} row(s) have level(s) not seen before ({levels}); they count as missing"
ABSENT = "confounder(s) {names} are absent and count as missing"
DATES = "turn them into a number (an age, days since a start) first"
STRANGE = "holds values that are neither numbers nor text"
DATE_KINDS = ("datetime64", "datetime", "date", "timedelta64", "timedelta", "time")
EXTRA = "column(s) {names} are not confounders of this model and are ignored"


@dataclass(frozen=True)
class Notes:
    """The changes made by encoding: clipped values, unseen levels, absent columns and ignored columns."""

    clipped: dict[str, int] = field(default_factory=dict)  # variable -> rows with a clipped value
    unseen: dict[str, int] = field(default_factory=dict)  # variable -> rows with an unseen level
    levels: dict[str, set[str]] = field(default_factory=dict, repr=False)  # variable -> its unseen levels
    absent: tuple[str, ...] = ()  # variables without a column
    extra: tuple[str, ...] = ()  # columns that are ignored

    def add(self, other: "Notes") -> None:
        """Add the counts of further rows with the same columns."""
        for mine, theirs in ((self.clipped, other.clipped), (self.unseen, other.unseen)):
            for name, count in theirs.items():
                mine[name] = mine.get(name, 0) + count
        for name, levels in other.levels.items():
            self.levels[name] = self.levels.get(name, set()) | levels

    def warn(self, stacklevel: int) -> None:
        """Warn about absent columns, ignored columns and unseen levels."""
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
    """A continuous variable: its learned range, and the knots of its splines in code units (1 to 2)."""

    name: str
    low: float
    high: float
    knots: tuple[float, ...]

    @property
    def missing_code(self) -> float:
        """The code of a missing value: 0, which is outside [1, 2]."""
        return 0.0

    @classmethod
    def learn(cls, name: str, values: np.ndarray[Any, Any]) -> "Continuous":
        """Learn the range, and knots at quantiles, from finite values; a constant variable has no knots."""
        low, high = float(values.min()), float(values.max())
        return cls.within(name, low, high, values[:: knot_stride(len(values))])

    @classmethod
    def within(cls, name: str, low: float, high: float, values: np.ndarray[Any, Any]) -> "Continuous":
        """Make a variable with the given range, and with knots at quantiles of the given values."""
        quantiles = np.quantile(_to_unit(values, low, high), np.linspace(0, 1, N_KNOTS))
        knots = [1.0, *quantiles[1:-1].tolist(), 2.0] if high > low else []
        distinct = [k for i, k in enumerate(knots) if i == 0 or k - knots[i - 1] > 1e-6]
        return cls(name, low, high, tuple(distinct))

    def code(self, value: Any) -> float | None:
        """Return the code of a number within the range, or of a missing value; None if `encode` must check it."""
        if value is None or (type(value) is float and value != value):
            return self.missing_code
        if type(value) not in (int, float) or not self.low <= value <= self.high:
            return None
        return float(_to_unit(np.array([value], dtype=np.float64), self.low, self.high)[0])

    def encode(self, column: pd.Series, problems: Problems, notes: Notes) -> np.ndarray[Any, Any]:
        """Map values to [1, 2], clip them to the learned range and count the clipped ones."""
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
    """A categorical variable with fixed levels.

    All other values count as missing. `encode` notes them as unseen levels, unless `others_missing` is true.
    """

    name: str
    levels: tuple[Level, ...]
    others_missing: bool = False

    @property
    def missing_code(self) -> float:
        """The code of a missing value: the number of levels."""
        return float(len(self.levels))

    @classmethod
    def learn(cls, name: str, column: pd.Series) -> "Categorical":
        """Learn the distinct values as levels, in sorted order."""
        levels = [_plain(v) for v in pd.unique(column.dropna())]
        return cls(name, tuple(sorted(set(levels), key=lambda v: (isinstance(v, str), v))))

    def code(self, value: Any) -> float | None:
        """Return the code of a known level, or of a missing value; None if `encode` must check it."""
        if value is None or (type(value) is float and value != value):
            return self.missing_code
        level = _plain(value) if type(value) in (str, int, float, bool) else None
        return float(self.levels.index(level)) if level in self.levels else None

    def encode(self, column: pd.Series, problems: Problems, notes: Notes) -> np.ndarray[Any, Any]:
        """Map levels to 0..L-1; an unseen level counts as missing."""
        if holds_strange_objects(column.dropna()):
            problems.add(f"confounder {self.name!r} {STRANGE}")
            return np.full(len(column), np.nan)
        code_of = {level: code for code, level in enumerate(self.levels)}
        positions, distinct = pd.factorize(column)
        codes = np.array([code_of.get(_plain(v), -1) for v in distinct] + [self.missing_code])[positions]
        unseen = codes < 0
        if unseen.any() and not self.others_missing:
            notes.unseen[self.name] = int(unseen.sum())
            notes.levels[self.name] = {repr(_plain(v)) for v in distinct if _plain(v) not in code_of}
        return np.where(unseen, self.missing_code, codes)


Variable = Continuous | Categorical


def knot_stride(n_values: int) -> int:
    """Return the stride, a power of two, at which a column of `n_values` values is sampled to place its knots."""
    return 1 << max(0, (n_values - 1) // MANY_VALUES).bit_length()


def holds_dates(column: pd.Series) -> bool:
    """Return whether the known values of a column are dates, times or time spans."""
    return pd.api.types.infer_dtype(column, skipna=True) in DATE_KINDS


def holds_strange_objects(known: pd.Series) -> bool:
    """Return whether some values of a column are neither numbers nor text."""
    return known.dtype == object and not all(isinstance(v, Level | np.generic) for v in known)


def _to_unit(values: np.ndarray[Any, Any], low: float, high: float) -> np.ndarray[Any, Any]:
    """Map [low, high] to [1, 2], or to 1.5 if low equals high. Values are halved first to avoid overflow."""
    if high <= low:
        return np.full_like(values, 1.5)
    return 1.0 + (values / 2 - low / 2) / (high / 2 - low / 2)


def _plain(value: Any) -> Level:
    """Convert a level to plain Python, so that 1, 1.0, True and their numpy versions are one level.

    A category of another type (for example, an interval of pd.cut) is represented by its text.
    """
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, Level) else str(value)


def as_frame(Z: object) -> pd.DataFrame:
    """Convert Z to a DataFrame; one-dimensional input is one column."""
    refuse_one_shot(Z, "sample_confounder")
    Z = as_pandas(Z)
    if isinstance(Z, pd.DataFrame):
        return Z
    if isinstance(Z, dict):
        columns = {name: _tensor_values(v) if isinstance(v, Tensor) else v for name, v in Z.items()}
        return _infer_kinds(pd.DataFrame(columns))
    if isinstance(Z, pd.Series):
        return Z.to_frame()
    values = _tensor_values(Z) if isinstance(Z, Tensor) else plain_array(Z)
    if values.dtype.kind in "US" and not isinstance(Z, np.ndarray):
        values = np.asarray(Z, dtype=object)  # a list of mixed values must not become all strings
    if values.ndim == 1:
        values = values[:, None]
    if values.ndim != 2:
        raise ValueError(f"confounders: Z must have shape (rows, variables), got shape {values.shape}")
    return _infer_kinds(pd.DataFrame(values, columns=[f"z{j}" for j in range(values.shape[1])]))


def _tensor_values(Z: Tensor) -> Any:
    try:
        return plain_tensor(Z).cpu().numpy()
    except TypeError as error:
        raise ValueError(f"confounders: Z cannot be read: {error}") from error


def _infer_kinds(frame: pd.DataFrame) -> pd.DataFrame:
    """Convert object columns of numbers to numeric columns; pd.NA would prevent this and is replaced by None."""
    frame = frame.copy()
    for name in [c for c in frame.columns if frame[c].dtype == object]:
        frame[name] = frame[name].mask(frame[name].isna(), None)
    return frame.infer_objects()


def resolve_columns(
    categorical: str | int | Iterable[str | int] | None, columns: pd.Index, problems: Problems
) -> set[Any]:
    """Return the names of the columns to treat as categorical, given one or several names or positions."""
    forced = set()
    names: Any = () if categorical is None else categorical
    for name in [names] if isinstance(names, str | Integral) else names:
        if name in columns:
            forced.add(name)
        elif isinstance(name, Integral) and 0 <= int(name) < len(columns):
            forced.add(columns[int(name)])
        else:
            problems.add(f"categorical names {name!r}, which is not a column of Z ({', '.join(map(str, columns))})")
    return forced


def learn_variable(name: str, column: pd.Series, forced: bool, problems: Problems) -> Variable | None:
    """Decide a column's kind and learn its levels or its range."""
    refuse_infinite(column, name, problems)
    dtype = column.dtype
    known = column.dropna()
    numeric = pd.api.types.is_numeric_dtype(dtype) and not pd.api.types.is_bool_dtype(dtype)
    if holds_dates(column):
        problems.add(f"confounder {name!r} holds dates: {DATES}")
        return None
    if pd.api.types.is_complex_dtype(dtype):
        problems.add(f"confounder {name!r} holds complex numbers: split it into real columns first")
        return None
    if holds_strange_objects(known):
        problems.add(f"confounder {name!r} {STRANGE}")
        return None
    if numeric and not forced and len(known):
        values = known.to_numpy(dtype=np.float64)
        if not np.isfinite(values).all():
            return None
        distinct = np.unique(values)
        if len(distinct) > 2 or (distinct != np.round(distinct)).any():
            return Continuous.learn(name, values)
    return Categorical.learn(name, known)


def refuse_infinite(column: pd.Series, name: str, problems: Problems) -> None:
    """Add a problem if a column has infinite values."""
    if pd.api.types.is_complex_dtype(column.dtype):
        return
    numbers = pd.Series(numbers_of(column)) if column.dtype == object else column
    if pd.api.types.is_float_dtype(numbers.dtype):
        infinite = np.isinf(numbers.to_numpy(dtype=np.float64, na_value=np.nan))
        if infinite.any():
            first = int(np.flatnonzero(infinite)[0])
            problems.add(
                f"confounder {name!r} is infinite in {infinite.sum()} row(s), first at row {first}: use NaN for missing"
            )


class ColumnDigest:
    """A summary of a long column, from which its variable is learned: range and sampled values, or all levels."""

    def __init__(self) -> None:
        self.n_known = 0
        self.stride = 1
        self.parts: list[pd.Series] = []
        self.low, self.high = np.inf, -np.inf

    def add(self, column: pd.Series) -> None:
        """Add more rows of the column: every `stride`-th known number, or the distinct values of other kinds."""
        known = column.dropna()
        if not pd.api.types.is_numeric_dtype(column.dtype) or pd.api.types.is_bool_dtype(column.dtype):
            self.parts.append(known.drop_duplicates())
            self.parts = [self.column().drop_duplicates()]
            return
        if len(known):
            self.low, self.high = min(self.low, float(known.min())), max(self.high, float(known.max()))
        self.parts.append(known.iloc[-self.n_known % self.stride :: self.stride])
        self.n_known += len(known)
        wanted = knot_stride(self.n_known)
        if wanted > self.stride:
            self.parts = [self.column().iloc[:: wanted // self.stride]]
            self.stride = wanted

    def column(self) -> pd.Series:
        """Return the kept values."""
        filled = [part for part in self.parts if len(part)]
        return pd.concat(filled) if filled else self.parts[0]

    def with_range(self, variable: Variable) -> Variable:
        """Return the variable learned from the kept values, with the range of all values."""
        if isinstance(variable, Categorical):
            return variable
        values = self.column().to_numpy(dtype=np.float64)
        return Continuous.within(variable.name, self.low, self.high, values)
