"""The schema of Z: which variables there are, how a value becomes a code, and what missing looks like.

A continuous variable is mapped to [1, 2] and missing is 0; a categorical variable with L levels has the codes 0..L-1
and missing is L. The code of missing is thus outside the range of every value (equation 5).
"""

import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from sitewise.arrays import Problems, refuse_one_shot

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
        return cls.within(name, low, high, values[:: _stride(len(values))])

    @classmethod
    def within(cls, name: str, low: float, high: float, values: np.ndarray[Any, Any]) -> "Continuous":
        """Take a range as it is, and the knots of some of the values in it."""
        quantiles = np.quantile(_to_unit(values, low, high), np.linspace(0, 1, N_KNOTS))
        knots = [1.0, *quantiles[1:-1].tolist(), 2.0] if high > low else []
        distinct = [k for i, k in enumerate(knots) if i == 0 or k - knots[i - 1] > 1e-6]
        return cls(name, low, high, tuple(distinct))

    def encode(self, column: pd.Series, problems: Problems, notes: "Notes") -> np.ndarray[Any, Any]:
        """Map values to [1, 2], counting those clipped at the learned range."""
        if _holds_dates(column):
            problems.add(f"confounder {self.name!r} is continuous, but holds dates here: {DATES}")
            return np.full(len(column), np.nan)
        numbers = pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
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
    """One of a frozen tuple of levels."""

    name: str
    levels: tuple[Level, ...]

    @property
    def missing_code(self) -> float:
        """One past the last level's code."""
        return float(len(self.levels))

    @classmethod
    def learn(cls, name: str, column: pd.Series) -> "Categorical":
        """Take the distinct values, in order."""
        levels = [_plain(v) for v in pd.unique(column.dropna())]
        return cls(name, tuple(sorted(set(levels), key=lambda v: (isinstance(v, str), v))))

    def encode(self, column: pd.Series, problems: Problems, notes: "Notes") -> np.ndarray[Any, Any]:
        """Map levels to 0..L-1; a level not seen before counts as missing."""
        if _holds_strange_objects(column.dropna()):
            problems.add(f"confounder {self.name!r} {STRANGE}")
            return np.full(len(column), np.nan)
        code_of = {level: code for code, level in enumerate(self.levels)}
        found, distinct = pd.factorize(column)
        codes = np.array([code_of.get(_plain(v), -1) for v in distinct] + [self.missing_code])[found]
        unseen = codes < 0
        if unseen.any():
            notes.unseen[self.name] = int(unseen.sum())
            notes.levels[self.name] = {repr(_plain(v)) for v in distinct if _plain(v) not in code_of}
        return np.where(unseen, self.missing_code, codes)


Variable = Continuous | Categorical


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
class Confounders:
    """The frozen schema of Z. `learn` it once; it travels to every other site."""

    variables: tuple[Variable, ...]

    @classmethod
    def learn(cls, Z: object, categorical: str | int | Iterable[str | int] | None = None) -> "Confounders":
        """Infer kinds, levels, ranges and knots from Z.

        Strings, objects, categories, booleans and at most two distinct integers are categorical, every other number is
        continuous; `categorical` names (or numbers) further columns to take as categorical.
        """
        problems = Problems("confounders")
        frame = _as_frame(Z)
        if frame.shape[1] == 0 or frame.shape[0] == 0:
            problems.add(f"Z needs at least one row and one column, got shape {frame.shape}")
        forced = _named(categorical, frame.columns, problems)
        for name in frame.columns[frame.columns.duplicated()]:
            problems.add(f"column {name!r} stands twice in Z")
        problems.raise_if_any()
        variables = [_learn_variable(str(c), frame[c], c in forced, problems) for c in frame.columns]
        problems.raise_if_any()
        return cls(tuple(v for v in variables if v is not None))

    @classmethod
    def learn_in_chunks(
        cls, chunks: Iterable[object], categorical: str | int | Iterable[str | int] | None = None
    ) -> "Confounders":
        """Learn the same from rows that come in chunks, with bounded memory."""
        problems = Problems("confounders")
        digests: dict[Any, ColumnDigest] = {}
        for Z in chunks:
            frame = _as_frame(Z)
            for name in frame.columns:
                _refuse_inf(frame[name], str(name), problems)
                digests.setdefault(name, ColumnDigest()).add(frame[name])
            problems.raise_if_any()
        forced = _named(categorical, pd.Index(list(digests)), problems)
        variables = [
            _learn_variable(str(name), digest.column(), name in forced, problems) for name, digest in digests.items()
        ]
        problems.raise_if_any()
        ranged = [
            digest.with_range(variable)
            for digest, variable in zip(digests.values(), variables, strict=True)
            if variable
        ]
        return cls(tuple(ranged))

    @property
    def names(self) -> tuple[str, ...]:
        """The variables' names, in order."""
        return tuple(v.name for v in self.variables)

    def encode(self, Z: object, device: torch.device | None = None, *, quiet: bool = False) -> tuple[Tensor, Notes]:
        """Turn Z into an (n, V) tensor of codes, and say what was clipped, unseen, absent or ignored.

        A DataFrame is matched by column name, an array by position and exact width. `quiet` leaves the warnings to the
        caller, who has the notes.
        """
        problems = Problems("confounders")
        frame, absent, extra = self._match(Z, problems)
        problems.raise_if_any()
        notes = Notes(absent=absent, extra=extra)
        codes = np.empty((len(frame), len(self.variables)))
        for j, variable in enumerate(self.variables):
            if variable.name in absent:
                codes[:, j] = variable.missing_code
                continue
            column = frame[variable.name]
            _refuse_inf(column, variable.name, problems)
            codes[:, j] = variable.encode(column, problems, notes)
        problems.raise_if_any()
        if not quiet:
            notes.warn(stacklevel=4)
        return torch.tensor(codes, device=device), notes

    def decode(self, codes: Tensor) -> pd.DataFrame:
        """The values behind codes (n, V): numbers (within the learned range), levels, missing where missing."""
        columns: dict[str, Any] = {}
        for column, variable in zip(codes.cpu().numpy().T, self.variables, strict=True):
            if isinstance(variable, Categorical):
                levels = np.array([*variable.levels, None], dtype=object)
                columns[variable.name] = levels[column.astype(np.int64)]
            else:
                values = variable.low + 2 * ((column - 1.0) * (variable.high / 2 - variable.low / 2))  # none overflows
                columns[variable.name] = np.where(
                    column == variable.missing_code, np.nan, np.clip(values, variable.low, variable.high)
                )
        return pd.DataFrame(columns, index=range(len(codes)))

    def missing_codes(self, device: torch.device | None = None) -> Tensor:
        """The (V,) codes of a row of which nothing is known."""
        return torch.tensor([v.missing_code for v in self.variables], dtype=torch.float64, device=device)

    def missing(self, codes: Tensor) -> Tensor:
        """Tell which entries are missing, (n, V)."""
        return codes == self.missing_codes(codes.device)

    def knock_out(self, codes: Tensor, mask: Tensor) -> Tensor:
        """Replace the entries where `mask` is true by "missing"; whoever sees the result sees the same mask."""
        return torch.where(mask, self.missing_codes(codes.device).to(codes.dtype), codes)

    def inputs(self, codes: Tensor) -> Tensor:
        """What a network reads: a value and a missing flag for a number, one column a level and one for missing else.

        The last column of a variable's block is its missing column: zero wherever the variable is known.
        """
        blocks = []
        for j, variable in enumerate(self.variables):
            column = codes[:, j]
            if isinstance(variable, Categorical):
                blocks.append(torch.nn.functional.one_hot(column.long(), len(variable.levels) + 1).to(codes.dtype))
            else:
                blocks.append(torch.stack([column, (column == variable.missing_code).to(codes.dtype)], dim=1))
        return torch.cat(blocks, dim=1)

    def missing_columns(self) -> list[int]:
        """Where `inputs` keeps the missing column of each variable."""
        widths = [len(v.levels) + 1 if isinstance(v, Categorical) else 2 for v in self.variables]
        return (np.cumsum(widths) - 1).tolist()  # type: ignore[no-any-return]

    def _match(self, Z: object, problems: Problems) -> tuple[pd.DataFrame, tuple[str, ...], tuple[str, ...]]:
        frame = _as_frame(Z)
        if not isinstance(Z, pd.DataFrame | dict):
            if frame.shape[1] != len(self.names):
                problems.add(
                    f"Z must have {len(self.names)} column(s) ({', '.join(self.names)}), got {frame.shape[1]}: "
                    "an array is matched by position; use a DataFrame to leave columns out"
                )
                return frame, (), ()
            return frame.set_axis(list(self.names), axis=1), (), ()
        frame = frame.set_axis([str(c) for c in frame.columns], axis=1)
        for name in frame.columns[frame.columns.duplicated()]:
            problems.add(f"column {name!r} stands twice in Z")
        absent = tuple(n for n in self.names if n not in frame.columns)
        extra = tuple(c for c in frame.columns if c not in self.names)
        if len(absent) == len(self.names):
            problems.add(f"Z has none of the confounders {list(self.names)}; its columns are {list(frame.columns)}")
            return frame, absent, extra
        return frame, absent, extra


class ColumnDigest:
    """What is to be known of a long column to learn its variable: its range, and some of its values or all levels."""

    def __init__(self) -> None:
        self.n_known = 0
        self.stride = 1
        self.parts: list[pd.Series] = []
        self.low, self.high = np.inf, -np.inf

    def add(self, column: pd.Series) -> None:
        """Take more of the column in: of numbers every `stride`-th known one, of anything else the distinct ones."""
        known = column.dropna()
        if not pd.api.types.is_numeric_dtype(column.dtype) or pd.api.types.is_bool_dtype(column.dtype):
            self.parts.append(known.drop_duplicates())
            self.parts = [self.column().drop_duplicates()]
            return
        if len(known):
            self.low, self.high = min(self.low, float(known.min())), max(self.high, float(known.max()))
        self.parts.append(known.iloc[-self.n_known % self.stride :: self.stride])
        self.n_known += len(known)
        wanted = _stride(self.n_known)
        if wanted > self.stride:
            self.parts = [self.column().iloc[:: wanted // self.stride]]
            self.stride = wanted

    def column(self) -> pd.Series:
        """The values taken in."""
        filled = [part for part in self.parts if len(part)]
        return pd.concat(filled) if filled else self.parts[0]

    def with_range(self, variable: Variable) -> Variable:
        """The variable learned from them, with the range of all values."""
        if isinstance(variable, Categorical):
            return variable
        values = self.column().to_numpy(dtype=np.float64)
        return Continuous.within(variable.name, self.low, self.high, values)


def _stride(n_values: int) -> int:
    """Which share of a long column decides its knots: every so-manieth value, by powers of two."""
    return 1 << max(0, (n_values - 1) // MANY_VALUES).bit_length()


def _as_frame(Z: object) -> pd.DataFrame:
    """Read Z as a table of columns; one-dimensional input is one column."""
    refuse_one_shot(Z, "sample_confounder")
    if isinstance(Z, pd.DataFrame):
        return Z
    if isinstance(Z, dict):
        return _infer_kinds(pd.DataFrame(Z))
    if isinstance(Z, pd.Series):
        return Z.to_frame()
    values = Z.detach().cpu().numpy() if isinstance(Z, Tensor) else np.asarray(Z)
    if values.dtype.kind in "US" and not isinstance(Z, np.ndarray):
        values = np.asarray(Z, dtype=object)  # a list of mixed values must not become all strings
    if values.ndim == 1:
        values = values[:, None]
    if values.ndim != 2:
        raise ValueError(f"confounders: Z must have shape (rows, variables), got shape {values.shape}")
    return _infer_kinds(pd.DataFrame(values, columns=[f"z{j}" for j in range(values.shape[1])]))


def _infer_kinds(frame: pd.DataFrame) -> pd.DataFrame:
    """Let object columns that hold numbers be numbers; pd.NA among them would hide that, None does not."""
    frame = frame.copy()
    for name in [c for c in frame.columns if frame[c].dtype == object]:
        frame[name] = frame[name].mask(frame[name].isna(), None)
    return frame.infer_objects()


def _named(categorical: str | int | Iterable[str | int] | None, columns: pd.Index, problems: Problems) -> set[Any]:
    """Resolve the names or positions of columns to take as categorical; one of them may stand alone."""
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


def _learn_variable(name: str, column: pd.Series, forced: bool, problems: Problems) -> Variable | None:
    """Decide a column's kind and learn its levels or its range."""
    _refuse_inf(column, name, problems)
    dtype = column.dtype
    known = column.dropna()
    numeric = pd.api.types.is_numeric_dtype(dtype) and not pd.api.types.is_bool_dtype(dtype)
    if _holds_dates(column):
        problems.add(f"confounder {name!r} holds dates: {DATES}")
        return None
    if pd.api.types.is_complex_dtype(dtype):
        problems.add(f"confounder {name!r} holds complex numbers: split it into real columns first")
        return None
    if _holds_strange_objects(known):
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


def _holds_dates(column: pd.Series) -> bool:
    return pd.api.types.infer_dtype(column, skipna=True) in DATE_KINDS


def _holds_strange_objects(known: pd.Series) -> bool:
    return known.dtype == object and not all(isinstance(v, Level | np.generic) for v in known)


def _refuse_inf(column: pd.Series, name: str, problems: Problems) -> None:
    if pd.api.types.is_complex_dtype(column.dtype):
        return
    numbers = pd.to_numeric(column, errors="coerce") if column.dtype == object else column
    if pd.api.types.is_float_dtype(numbers.dtype):
        infinite = np.isinf(numbers.to_numpy(dtype=np.float64, na_value=np.nan))
        if infinite.any():
            first = int(np.flatnonzero(infinite)[0])
            problems.add(
                f"confounder {name!r} is infinite in {infinite.sum()} row(s), first at row {first}: use NaN for missing"
            )


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


def mask_patterns(n_variables: int, knockout: float) -> list[tuple[Tensor, float]]:
    """Proper, non-empty sets of knocked-out variables with their probabilities (equation 5).

    Up to six variables every set is listed; beyond, a fixed draw of 64 stands for them. The empty set leaves a row as
    it is and the full set is the marginal: both are treated exactly elsewhere.
    """
    if n_variables > 6:
        drawn = np.random.default_rng(0).random((64, n_variables)) < knockout
        return [(torch.tensor(mask), 1 / 64) for mask in drawn if mask.any() and not mask.all()]
    patterns = []
    for bits in range(1, 2**n_variables - 1):
        mask = torch.tensor([bool(bits >> j & 1) for j in range(n_variables)])
        n_out = int(mask.sum())
        patterns.append((mask, knockout**n_out * (1 - knockout) ** (n_variables - n_out)))
    return patterns
