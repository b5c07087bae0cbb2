"""Numbers at the border: numpy, pandas, polars, torch in, float64 tensors inside, the same container and device out."""

import ctypes
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from torch import Tensor

ONE_SHOT = (
    "{name} is a one-shot iterator ({kind}), but estimation passes over the data several times: "
    "hand over a list of chunks, or an object whose __iter__ starts anew"
)

STRETCH = 2**14  # rows


def did_you_mean(name: object, known: Iterable[object]) -> str:
    """The end of an error about an unknown name: the spelling meant, whatever its case; nothing where none is near."""
    names = {str(other).casefold(): str(other) for other in known}
    near = get_close_matches(str(name).casefold(), names, n=1)
    return f"; did you mean {names[near[0]]!r}?" if near else ""


class Problems:
    """Everything wrong with a call's input, gathered and raised in one error."""

    def __init__(self, call: str) -> None:
        self.call = call
        self.found: list[str] = []

    def add(self, problem: str) -> None:
        """Note one problem and go on looking."""
        self.found.append(problem)

    def raise_if_any(self) -> None:
        """Raise a ValueError that lists every problem noted."""
        if not self.found:
            return
        if len(self.found) == 1:
            raise ValueError(f"{self.call}: {self.found[0]}")
        raise ValueError(f"{self.call}: {len(self.found)} problems\n" + "\n".join(f"  - {p}" for p in self.found))


@dataclass(frozen=True)
class Container:
    """What the caller handed over, so that answers go back in the same kind and on the same device."""

    kind: Literal["numpy", "pandas", "polars", "torch"]
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    index: Any = None
    columns: Any = None

    @classmethod
    def of(cls, value: object) -> "Container":
        """Remember the container of `value`."""
        if isinstance(value, Tensor):
            return cls("torch", value.device)
        if isinstance(value, pd.DataFrame):
            return cls("pandas", index=value.index, columns=value.columns)
        if is_polars(value):
            return cls("polars", columns=getattr(value, "columns", None))
        return cls("numpy")

    def rows(self, tensor: Tensor, index: Any = None) -> Any:
        """Give back an (n, K) tensor; pandas callers get their class names, and `index` or their own row names."""
        if self.kind == "torch":
            return tensor.to(self.device)
        values = tensor.cpu().numpy()
        if self.kind == "numpy":
            return values
        if self.kind == "polars":
            import polars

            return polars.DataFrame(values, schema=self.columns)
        index = self.index if index is None else index
        return pd.DataFrame(
            values, index=index if index is not None and len(index) == len(values) else None, columns=self.columns
        )

    def classes(self, tensor: Tensor) -> Any:
        """Give back a (K,) tensor."""
        if self.kind == "torch":
            return tensor.to(self.device)
        values = tensor.cpu().numpy()
        return pd.Series(values, index=self.columns) if self.kind == "pandas" else values


def is_polars(value: object) -> bool:
    """Whether something is a frame or a column of polars, which need not be installed."""
    return type(value).__module__.partition(".")[0] == "polars"


def as_pandas(value: Any) -> Any:
    """A frame or a column of polars as pandas has it; anything else as it is."""
    return value.to_pandas() if is_polars(value) else value


def to_tensor(value: object, device: torch.device | None = None) -> Tensor:
    """Copy numbers into a float64 tensor; raise TypeError or ValueError where they are not numbers."""
    if isinstance(value, Tensor):
        return value.detach().to(device=device, dtype=torch.float64)
    numbers = np.ascontiguousarray(value, dtype=np.float64)
    return torch.tensor(numbers, device=device)


def view_tensor(value: object, device: torch.device | None = None) -> Tensor:
    """Numbers as a float32 or float64 tensor, not copied where that can be helped: to be read only."""
    if isinstance(value, Tensor) and value.dtype in (torch.float32, torch.float64):
        return value.detach().to(device=device)
    array = value.to_numpy() if isinstance(value, pd.DataFrame) else value
    if not isinstance(array, np.ndarray) or array.dtype not in (np.float32, np.float64) or min(array.strides) < 0:
        return to_tensor(value, device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch minds that an array cannot be written to; nobody will
        return torch.from_numpy(array).to(device=device)


def read_matrix(value: object, name: str, problems: Problems, device: torch.device | None = None) -> Tensor | None:
    """Read an (n, K) array of logs with n ≥ 1 rows, K ≥ 2 classes and no NaN; None after noting what is wrong."""
    return check_matrix(value, name, problems, to_tensor, device)


def view_matrix(value: object, name: str, problems: Problems, device: torch.device | None = None) -> Tensor | None:
    """The same without a copy where that can be helped, in its own precision: to be read only."""
    return check_matrix(value, name, problems, view_tensor, device)


def check_matrix(
    value: object,
    name: str,
    problems: Problems,
    read: Callable[[object, torch.device | None], Tensor],
    device: torch.device | None,
) -> Tensor | None:
    """Read an array of logs one way or another and note what is wrong with it."""
    try:
        matrix = read(value, device)
    except (TypeError, ValueError) as error:
        problems.add(f"{name} must be an array of numbers, got {type(value).__name__} ({error})")
        return None
    if matrix.ndim != 2:
        problems.add(f"{name} must have shape (rows, classes), got shape {tuple(matrix.shape)}")
        return None
    if matrix.shape[0] == 0:
        problems.add(f"{name} is empty: at least one row is needed")
    if matrix.shape[1] < 2:
        problems.add(f"{name} must have a column for each class, at least two, got {matrix.shape[1]}")
    if not matrix.sum().isnan():  # a look at everything at once; infinities of both signs only cost a second look
        return matrix
    bad = torch.isnan(matrix).any(dim=1).nonzero().flatten().tolist()
    if bad:
        problems.add(f"{name} has NaN in {len(bad)} row(s), first at row {bad[0]}: drop those rows or mend the scores")
    return matrix


def read_weight(value: object, n_rows: int, problems: Problems, device: torch.device | None = None) -> Tensor:
    """Read one non-negative finite weight a row (None: all ones)."""
    ones = torch.ones(n_rows, dtype=torch.float64, device=device)
    if value is None:
        return ones
    try:
        weight = to_tensor(value, device)
    except (TypeError, ValueError) as error:
        problems.add(f"sample_weight must be numbers ({error})")
        return ones
    if weight.shape != (n_rows,):
        problems.add(f"sample_weight must have shape ({n_rows},), one weight a row, got {tuple(weight.shape)}")
        return ones
    if not torch.isfinite(weight).all():
        problems.add("sample_weight must be finite, got NaN or inf")
    elif (weight < 0).any():
        problems.add(f"sample_weight must not be negative, got {float(weight.min()):g}")
    elif n_rows and not (weight > 0).any():
        problems.add("sample_weight is zero everywhere: nothing to learn from")
    return weight


def read_labels(value: object, n_rows: int, n_classes: int, problems: Problems) -> np.ndarray[Any, Any]:
    """Read class indices 0..K-1, NaN where a label is not known, as an (n,) float array."""
    column = read_column(value, "y", n_rows, problems)
    if column is None:
        return np.full(n_rows, np.nan)
    labels = pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    legal = np.isin(labels, np.arange(n_classes)) | column.isna().to_numpy()
    if not legal.all():
        first = int(np.flatnonzero(~legal)[0])
        problems.add(
            f"y must hold class indices 0..{n_classes - 1}, and NaN or None where unknown, "
            f"got {column.tolist()[first]!r} at row {first}"
        )
    return np.asarray(labels)


def read_groups(value: object, n_rows: int, problems: Problems, device: torch.device | None = None) -> Tensor | None:
    """Read one group (a patient, say) a row into numbers 0..G-1; a missing name is a group of its own."""
    if value is None:
        return None
    column = read_column(value, "groups", n_rows, problems)
    if column is None:
        return None
    codes, found = pd.factorize(column)
    alone = codes < 0
    codes = np.where(alone, len(found) + np.cumsum(alone) - 1, codes)
    return torch.tensor(codes, dtype=torch.int64, device=device)


def read_column(value: object, name: str, n_rows: int, problems: Problems) -> pd.Series | None:
    """Read one value a row; None after noting what is wrong."""
    try:
        column = pd.Series(value.detach().cpu().numpy() if isinstance(value, Tensor) else as_pandas(value))
    except (TypeError, ValueError) as error:
        shape = getattr(value, "shape", None)
        came = type(value).__name__ if shape is None else f"shape {tuple(shape)}"
        problems.add(f"{name} must be one column with an entry for each of the {n_rows} row(s), got {came} ({error})")
        return None
    if len(column) != n_rows:
        problems.add(f"{name} must have one entry a row ({n_rows}), got {len(column)}")
        return None
    return column


def index_of(value: object) -> Any:
    """The row names of a pandas object; None for anything else (a list's `index` is a method)."""
    return value.index if isinstance(value, pd.DataFrame | pd.Series) else None


def align_classes(value: Any, columns: Any) -> Any:
    """Put a Series' entries or a DataFrame's columns into the order of `columns`, where both have the same labels."""
    labels = value.index if isinstance(value, pd.Series) else getattr(value, "columns", None)
    if columns is None or labels is None or len(labels) != len(columns) or set(labels) != set(columns):
        return value
    return value[list(columns)]


def distinct_rows(codes: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct rows of an (n, V) tensor and each row's index among them, column by column (fast for many rows)."""
    index = torch.zeros(len(codes), dtype=torch.int64, device=codes.device)
    for column in codes.T:
        _, found = torch.unique(column, return_inverse=True)
        _, index = torch.unique(index * (len(codes) + 1) + found, return_inverse=True)
    n_distinct = int(index.max()) + 1 if len(index) else 0
    first = torch.empty(n_distinct, dtype=torch.int64, device=codes.device)
    first[index] = torch.arange(len(codes), device=codes.device)
    return codes[first], index


def find_rows(rows: Tensor, among: Tensor) -> Tensor:
    """Where each row of an (n, V) tensor stands in another of distinct rows (C, V), -1 where it does not; by a join."""
    both, place = distinct_rows(torch.cat([among, rows]))
    position = torch.full((len(both),), -1, dtype=torch.int64, device=rows.device)
    position[place[: len(among)]] = torch.arange(len(among), device=rows.device)
    return position[place[len(among) :]]


def in_stretches(function: Callable[..., Tensor], *rows: Tensor) -> Tensor:
    """A function of tensors row by row, so many rows at a time that what it makes in between stays in the cache."""
    if len(rows[0]) <= STRETCH:
        return function(*rows)
    return torch.cat([function(*part) for part in zip(*(tensor.split(STRETCH) for tensor in rows), strict=True)])


def refuse_one_shot(value: object, name: str) -> None:
    """Raise TypeError for an iterator that could be read only once."""
    if hasattr(value, "__next__"):
        raise TypeError(ONE_SHOT.format(name=name, kind=type(value).__name__))


def keep_freed_memory() -> None:
    """Let the C library keep large buffers of one step for the next (glibc; elsewhere nothing happens).

    By default it hands them back to the system after every use, and fetching them anew costs a CPU run a quarter of
    its time or more.
    """
    mmap_threshold, trim_threshold = -3, -1  # their numbers in malloc.h
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return
    mallopt(mmap_threshold, 32 * 1024**2)
    mallopt(trim_threshold, 2**31 - 1)
