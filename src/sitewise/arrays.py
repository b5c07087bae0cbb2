"""Read the input of a caller, and return results in the same kind of container.

Input may be an object of numpy, pandas, polars or torch. Inside the package it is a tensor, in float64 unless stated
otherwise. Results are returned in the caller's kind of container, on the device of the input.
"""

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
    "give a list of chunks, or an object whose __iter__ starts again"
)

STRETCH = 2**14  # rows of a block in `in_stretches`
LIGHTEST, HEAVIEST = 1e-12, 1e15  # smallest weight relative to the largest; largest weight allowed
SUM_TOLERANCE = 1e-3  # probabilities may be rounded to a few digits
NOT_NUMBERS = {"m": "spans of time", "M": "dates", "c": "complex numbers", "V": "records"}
BRIEF = 200  # characters of quoted text in a message
MOST_PROBLEMS, LONGEST_PROBLEM = 20, 2000  # problems listed in one error; characters of each


def did_you_mean(name: object, known: Iterable[object]) -> str:
    """Return a suggestion that is appended to an error about an unknown name; "" if no known name is similar."""
    names = {str(other).casefold(): str(other) for other in known}
    near = get_close_matches(str(name).casefold(), names, n=1)
    return f"; did you mean {names[near[0]]!r}?" if near else ""


def shortened(value: object) -> str:
    """Return the repr of a value on one line, cut after 80 characters."""
    shown = " ".join(repr(value).split())
    return shown if len(shown) <= 80 else shown[:77] + "..."


def brief(text: object) -> str:
    """Return a text on one line, cut after `BRIEF` characters."""
    line = str(text)
    line = " ".join(line[: 2 * BRIEF].split())
    return line if len(line) <= BRIEF else f"{line[: BRIEF - 1]}…"


class Problems:
    """Collects all problems with the input of a call, so that one error lists all of them."""

    def __init__(self, call: str) -> None:
        self.call = call
        self.messages: list[str] = []

    def add(self, problem: str) -> None:
        """Add one problem to the list."""
        self.messages.append(problem)

    def raise_if_any(self) -> None:
        """Raise a ValueError that lists the collected problems."""
        if not self.messages:
            return
        shown = [p if len(p) <= LONGEST_PROBLEM else f"{p[:LONGEST_PROBLEM]}…" for p in self.messages[:MOST_PROBLEMS]]
        if len(self.messages) == 1:
            raise ValueError(f"{self.call}: {shown[0]}")
        more = f"\n  and {len(self.messages) - len(shown)} more" if len(self.messages) > len(shown) else ""
        listed = "\n".join(f"  - {problem}" for problem in shown)
        raise ValueError(f"{self.call}: {len(self.messages)} problems\n{listed}{more}")


@dataclass(frozen=True)
class Container:
    """The kind of container and the device of the caller's input. Results are returned in the same form."""

    kind: Literal["numpy", "pandas", "polars", "torch"]
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    index: Any = None
    columns: Any = None

    @classmethod
    def of(cls, value: object) -> "Container":
        """Describe the container of `value`."""
        if isinstance(value, Tensor):
            return cls("torch", value.device)
        if isinstance(value, pd.DataFrame):
            return cls("pandas", index=value.index, columns=value.columns)
        if is_polars(value):
            return cls("polars", columns=getattr(value, "columns", None))
        return cls("numpy")

    def rows(self, tensor: Tensor, index: Any = None) -> Any:
        """Convert an (n, K) tensor to the caller's kind of container.

        A DataFrame gets the column names of the input. Its index is `index`, or the index of the input if `index` is
        None; an index of another length is not used.
        """
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
        """Convert a (K,) tensor to a tensor for torch, to a Series for pandas, and to an array for numpy and polars."""
        if self.kind == "torch":
            return tensor.to(self.device)
        values = tensor.cpu().numpy()
        return pd.Series(values, index=self.columns) if self.kind == "pandas" else values


def is_polars(value: object) -> bool:
    """Return whether a value comes from polars, without importing polars."""
    return type(value).__module__.partition(".")[0] == "polars"


def as_pandas(value: Any) -> Any:
    """Convert a polars frame or series to pandas; return all other values unchanged."""
    return value.to_pandas() if is_polars(value) else value


def plain_tensor(value: Tensor) -> Tensor:
    """Detach a tensor; raise TypeError if it is sparse, nested, quantized or on the meta device."""
    kinds = {
        "on the meta device, without entries": value.is_meta,
        "nested": value.is_nested,
        "quantized": value.is_quantized,
        "sparse": value.layout != torch.strided,
    }
    odd = [kind for kind, is_so in kinds.items() if is_so]
    if odd:
        raise TypeError(f"the tensor is {odd[0]}: pass a dense one of numbers")
    return value.detach()


def plain_array(value: object) -> np.ndarray[Any, Any]:
    """Convert a value to an array, keeping the mask of a masked array or of a list of masked rows."""
    if isinstance(value, list | tuple) and any(isinstance(row, np.ma.MaskedArray) for row in value):
        return np.ma.stack([np.ma.asarray(row) for row in value])
    return np.asanyarray(value.detach().cpu() if isinstance(value, Tensor) else value)


def read_numbers(value: object) -> Tensor | np.ndarray[Any, Any]:
    """Return numbers as a tensor or an array, without a copy if possible.

    Complex numbers, dates, spans of time and records raise TypeError, masked entries ValueError. Text is not checked
    here.
    """
    if isinstance(value, Tensor):
        if value.is_complex():
            raise TypeError("it holds complex numbers, expected real ones")
        return plain_tensor(value)
    array = plain_array(value)
    if array.dtype.kind in NOT_NUMBERS:
        raise TypeError(f"it holds {NOT_NUMBERS[array.dtype.kind]}, expected real numbers")
    if array.dtype.kind == "O" and any(isinstance(entry, np.timedelta64 | np.datetime64) for entry in array.flat):
        raise TypeError("it holds dates or spans of time, expected real numbers")
    refuse_masked(array)
    return np.asarray(array)


def refuse_masked(value: object) -> None:
    """Raise ValueError if a masked array has masked entries, because only the caller knows how to fill them."""
    if isinstance(value, np.ma.MaskedArray) and np.ma.getmaskarray(value).any():
        rows = np.ma.getmaskarray(value).reshape(len(value), -1).any(axis=1) if value.ndim else [True]
        first = int(np.flatnonzero(rows)[0])
        raise ValueError(
            f"it is masked in {int(np.sum(rows))} row(s), first at row {first}: drop those rows or fill them"
        )


def to_tensor(value: object, device: torch.device | None = None) -> Tensor:
    """Convert numbers to a float64 tensor; raise TypeError or ValueError if they are not numbers.

    A float64 tensor that is already on the device is not copied.
    """
    numbers = read_numbers(value)
    if isinstance(numbers, Tensor):
        return numbers.to(device=device, dtype=torch.float64)
    try:
        return torch.tensor(np.ascontiguousarray(numbers, dtype=np.float64), device=device)
    except OverflowError as error:
        raise ValueError(f"a number is too large for double precision: {error}") from error


def view_tensor(value: object, device: torch.device | None = None) -> Tensor:
    """Return numbers as a float32 or float64 tensor, without a copy if possible. Do not write to the result."""
    if isinstance(value, Tensor) and value.dtype in (torch.float32, torch.float64):
        return plain_tensor(value).to(device=device)
    array = value.to_numpy() if isinstance(value, pd.DataFrame) else value
    refuse_masked(array)
    if not isinstance(array, np.ndarray) or array.dtype not in (np.float32, np.float64) or min(array.strides) < 0:
        return to_tensor(array, device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns about read-only arrays; this tensor is never written to
        return torch.from_numpy(array).to(device=device)


def read_matrix(value: object, name: str, problems: Problems, device: torch.device | None = None) -> Tensor | None:
    """Read an (n, K) array of logarithms with n ≥ 1, K ≥ 2 and no NaN as float64.

    Violations are added to `problems`. The result is None if the value is not a matrix of numbers.
    """
    return check_matrix(value, name, problems, to_tensor, device)


def view_matrix(value: object, name: str, problems: Problems, device: torch.device | None = None) -> Tensor | None:
    """Read a matrix like `read_matrix`, but keep float32 and float64 as they are, without a copy if possible."""
    return check_matrix(value, name, problems, view_tensor, device)


def check_matrix(
    value: object,
    name: str,
    problems: Problems,
    read: Callable[[object, torch.device | None], Tensor],
    device: torch.device | None,
) -> Tensor | None:
    """Read an array of logarithms with the function `read`, and add its problems to `problems`."""
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
    if not matrix.sum().isnan():  # a fast test; infinities of both signs also give NaN and are sorted out below
        return matrix
    bad = torch.isnan(matrix).any(dim=1).nonzero().flatten().tolist()
    if bad:
        problems.add(f"{name} has NaN in {len(bad)} row(s), first at row {bad[0]}: drop those rows or fix the scores")
    return matrix


def read_weight(value: object, n_rows: int, problems: Problems, device: torch.device | None = None) -> Tensor:
    """Read one finite, non-negative weight for each row, (n,) in float64; None gives all rows weight one."""
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
    else:
        _check_range(weight, problems)
    return weight


def _check_range(weight: Tensor, problems: Problems) -> None:
    """Check that the weights are not too large, too small or too different to be summed in double precision."""
    heaviest, lightest = float(weight.max()), float(weight[weight > 0].min()) if len(weight) else 1.0
    if len(weight) and not LIGHTEST <= heaviest <= HEAVIEST:
        problems.add(
            f"sample_weight counts rows, and the heaviest must lie between {LIGHTEST:g} and {HEAVIEST:g}, got "
            f"{heaviest:g}: divide all weights by their mean"
        )
    elif lightest < LIGHTEST * heaviest:
        problems.add(
            f"sample_weight spans {lightest:g} to {heaviest:g}: beside the heaviest, weights below {LIGHTEST:g} of it "
            "vanish in double precision; set them to zero"
        )


def read_labels(value: object, n_rows: int, n_classes: int, problems: Problems) -> np.ndarray[Any, Any]:
    """Read class indices 0..K-1 as an (n,) float array, NaN where a label is unknown."""
    column = read_column(value, "y", n_rows, problems)
    if column is None:
        return np.full(n_rows, np.nan)
    labels = numbers_of(column)
    legal = np.isin(labels, np.arange(n_classes)) | column.isna().to_numpy()
    if not legal.all():
        first = int(np.flatnonzero(~legal)[0])
        problems.add(
            f"y must hold class indices 0..{n_classes - 1}, and NaN or None where unknown, "
            f"got {column.tolist()[first]!r} at row {first}"
        )
    return np.asarray(labels)


def numbers_of(column: pd.Series) -> np.ndarray[Any, Any]:
    """Convert a column to numbers: NaN where an entry is not a number, inf where it exceeds double precision."""
    try:
        numbers = pd.to_numeric(column, errors="coerce")
    except OverflowError:
        numbers = column.map(_as_float)
    return np.asarray(numbers.to_numpy(dtype=np.float64, na_value=np.nan))


def _as_float(value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]
    except OverflowError:
        return np.inf
    except (TypeError, ValueError):
        return np.nan


def read_groups(value: object, n_rows: int, problems: Problems, device: torch.device | None = None) -> Tensor | None:
    """Read the group (for example, the patient) of each row as numbers 0..G-1, (n,).

    A row whose group is missing is a group of its own.
    """
    if value is None:
        return None
    column = read_column(value, "groups", n_rows, problems)
    if column is None:
        return None
    codes, names = pd.factorize(column)
    alone = codes < 0
    codes = np.where(alone, len(names) + np.cumsum(alone) - 1, codes)
    return torch.tensor(codes, dtype=torch.int64, device=device)


def read_column(value: object, name: str, n_rows: int, problems: Problems) -> pd.Series | None:
    """Read one value for each row as a Series; add a problem and return None if that is not possible."""
    try:
        column = pd.Series(plain_tensor(value).cpu().numpy() if isinstance(value, Tensor) else as_pandas(value))
    except (TypeError, ValueError, OverflowError) as error:
        shape = getattr(value, "shape", None)
        came = type(value).__name__ if shape is None else f"shape {tuple(shape)}"
        problems.add(f"{name} must be one column with an entry for each of the {n_rows} row(s), got {came} ({error})")
        return None
    if len(column) != n_rows:
        problems.add(f"{name} must have one entry a row ({n_rows}), got {len(column)}")
        return None
    if column.dtype == object:
        odd = next((row for row, entry in enumerate(column) if type(entry).__hash__ is None), None)
        if odd is not None:
            kind = type(column.iloc[odd]).__name__
            problems.add(f"{name} must have one name or number a row, got a {kind} at row {odd}")
            return None
    return column


def read_probability_vector(value: object, n_classes: int, device: torch.device | None = None) -> Tensor:
    """Read K probabilities and scale their sum to exactly one.

    Raise ValueError or TypeError if they are not K probabilities whose sum lies within `SUM_TOLERANCE` of one.
    """
    level = to_tensor(value, device)
    if level.shape != (n_classes,):
        raise ValueError(f"its shape is {tuple(level.shape)}")
    if not bool(torch.isfinite(level).all() and (level >= 0).all()):
        raise ValueError("some are negative or not finite")
    total = float(level.sum())
    if abs(total - 1.0) > SUM_TOLERANCE:
        raise ValueError(f"they sum to {total:.6g}, not to one")
    return level / total


def index_of(value: object) -> Any:
    """Return the index of a pandas object; None for other values (the `index` of a list is a method)."""
    return value.index if isinstance(value, pd.DataFrame | pd.Series) else None


def align_classes(value: Any, columns: Any) -> Any:
    """Put the entries of a Series or the columns of a DataFrame into the order of `columns`.

    A value whose labels are not the same as those in `columns` is returned unchanged.
    """
    labels = value.index if isinstance(value, pd.Series) else getattr(value, "columns", None)
    if columns is None or labels is None or len(labels) != len(columns) or set(labels) != set(columns):
        return value
    return value[list(columns)]


def distinct_rows(codes: Tensor) -> tuple[Tensor, Tensor]:
    """Return the distinct rows of an (n, V) tensor, and for each row its index among them, (n,); fast for many rows."""
    index = torch.zeros(len(codes), dtype=torch.int64, device=codes.device)
    for column in codes.T:
        _, value_index = torch.unique(column, return_inverse=True)
        _, index = torch.unique(index * (len(codes) + 1) + value_index, return_inverse=True)
    n_distinct = int(index.max()) + 1 if len(index) else 0
    first = torch.empty(n_distinct, dtype=torch.int64, device=codes.device)
    first[index] = torch.arange(len(codes), device=codes.device)
    return codes[first], index


def find_rows(rows: Tensor, among: Tensor) -> Tensor:
    """Return the position of each row (n, V) in a tensor of distinct rows (C, V), or -1 if it is not there."""
    both, place = distinct_rows(torch.cat([among, rows]))
    position = torch.full((len(both),), -1, dtype=torch.int64, device=rows.device)
    position[place[: len(among)]] = torch.arange(len(among), device=rows.device)
    return position[place[len(among) :]]


def in_stretches(function: Callable[..., Tensor], *rows: Tensor) -> Tensor:
    """Apply a row-wise function to blocks of rows, so that its intermediate results stay in the processor's cache."""
    if len(rows[0]) <= STRETCH:
        return function(*rows)
    return torch.cat([function(*block) for block in zip(*(tensor.split(STRETCH) for tensor in rows), strict=True)])


def refuse_one_shot(value: object, name: str) -> None:
    """Raise TypeError for an iterator that can be read only once."""
    if hasattr(value, "__next__"):
        raise TypeError(ONE_SHOT.format(name=name, kind=type(value).__name__))


def keep_freed_memory() -> None:
    """Let glibc keep large freed buffers for reuse; other C libraries are not changed.

    By default, glibc returns such buffers to the system after every use. Allocating them again can take a quarter or
    more of the time of a run on a CPU.
    """
    mmap_threshold, trim_threshold = -3, -1  # their numbers in malloc.h
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return
    mallopt(mmap_threshold, 32 * 1024**2)
    mallopt(trim_threshold, 2**31 - 1)
