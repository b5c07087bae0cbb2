"""Learn variables from the columns of a table: the kind of each, with its levels or its range."""

from collections.abc import Iterable
from numbers import Integral
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from sitewise.arrays import Problems, as_pandas, numbers_of, plain_array, plain_tensor, refuse_one_shot
from sitewise.confounders.variables import (
    DATES,
    STRANGE,
    Categorical,
    Continuous,
    Variable,
    holds_dates,
    holds_strange_objects,
    knot_stride,
)


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
    """Convert object columns of numbers to numeric ones; pd.NA would prevent that, so it becomes None."""
    frame = frame.copy()
    for name in [c for c in frame.columns if frame[c].dtype == object]:
        frame[name] = frame[name].mask(frame[name].isna(), None)
    return frame.infer_objects()


def resolve_columns(
    categorical: str | int | Iterable[str | int] | None, columns: pd.Index, problems: Problems
) -> set[Any]:
    """Resolve the names or positions of columns to treat as categorical; a single one need not be in a list."""
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
    """A summary of a long column, enough to learn its variable: its range, and a sample of values or all levels."""

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
        """Return the values that were kept."""
        filled = [part for part in self.parts if len(part)]
        return pd.concat(filled) if filled else self.parts[0]

    def with_range(self, variable: Variable) -> Variable:
        """Return the variable learned from the kept values, with the range of all values."""
        if isinstance(variable, Categorical):
            return variable
        values = self.column().to_numpy(dtype=np.float64)
        return Continuous.within(variable.name, self.low, self.high, values)
