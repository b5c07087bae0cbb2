"""Rows in Dask collections: frames, series or arrays whose partitions hold the same rows.

Dask computes small sums over each partition on the worker that holds it, and adds up the sums. Dask is imported only
after a caller has passed a Dask collection.
"""

import sys
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pandas as pd

from sitewise.arrays import Problems

S = TypeVar("S")
FAN_IN = 16  # number of sums that one task adds up
FAILED = "raised while Dask computed the rows of a partition; its own traceback says which task"
UNEQUAL = (
    "{name} has {own} partition(s), log_ratio has {expected}: give columns of one frame, or repartition them alike"
)
NOT_DASK = "{name} must be a Dask collection with the partitions of log_ratio, got {kind}"


class Partition(NamedTuple):
    """The rows of one partition as given: log f, and the other arguments that have an entry for each row."""

    number: int
    log_ratio: Any
    sample_confounder: Any = None
    y: Any = None
    sample_weight: Any = None
    groups: Any = None

    @property
    def n_rows(self) -> int:
        """The number of rows."""
        return len(self.log_ratio)

    def take(self, rows: np.ndarray[Any, Any]) -> "Partition":
        """Return the partition with only the rows that a boolean mask selects."""

        def some(value: Any) -> Any:
            return value[rows] if value is not None and not isinstance(value, pd.DataFrame) else value

        own = {name: some(value) for name, value in self._asdict().items() if name != "number"}
        frames = {name: value.loc[rows] for name, value in own.items() if isinstance(value, pd.DataFrame)}
        return self._replace(**{**own, **frames})


def is_dask(value: object) -> bool:
    """Return whether a value is a Dask collection; Dask need not be installed."""
    return type(value).__module__.partition(".")[0] in ("dask", "dask_expr")


def columns_of(collection: Any) -> list[Any] | None:
    """Return the columns of a Dask frame; None for an array or a series."""
    return list(collection.columns) if hasattr(collection, "columns") and collection.ndim == 2 else None


class Partitions:
    """Partitions of log f and of the other arguments that have an entry for each row.

    A partition is read on the worker that holds it. `change`, if given, is applied to each partition when it is read.
    """

    def __init__(self, given: dict[str, Any], change: Callable[[Partition], Partition] | None = None) -> None:
        self.given = {name: value for name, value in given.items() if value is not None}
        self.columns = {name: columns_of(value) for name, value in self.given.items()}
        self.change = change

    def __len__(self) -> int:
        return _n_partitions(self.given["log_ratio"])

    @property
    def has_z(self) -> bool:
        """Whether confounders were given."""
        return "sample_confounder" in self.given

    @property
    def example(self) -> Any:
        """One row of zeros: a DataFrame if log f is a frame, otherwise an array."""
        names = self.columns["log_ratio"]
        if names is not None:
            return pd.DataFrame(np.zeros((1, len(names))), columns=names)
        shape = self.given["log_ratio"].shape
        return np.zeros((1, shape[1])) if len(shape) == 2 else np.zeros(1)

    def changed(self, change: Callable[[Partition], Partition]) -> "Partitions":
        """Return the same partitions; `change` is applied to each of them when it is read."""
        return Partitions(self.given, change)

    def without(self, name: str) -> "Partitions":
        """Return the same partitions without one of the arguments."""
        return Partitions({**self.given, name: None}, self.change)

    @cached_property
    def _pieces(self) -> list[tuple[Any, ...]]:
        """The delayed pieces of each partition: one piece for each argument."""
        return list(zip(*(_pieces(value) for value in self.given.values()), strict=True))

    def tasks(self, function: Callable[[Partition], S], first: int = 0, last: int | None = None) -> list[Any]:
        """Return the delayed results of a function of each partition, from `first` to the one before `last`."""
        from dask import delayed

        read = delayed(partial(_read, function, tuple(self.given), self.columns, self.change), pure=False)
        numbers = range(len(self))[first:last]
        return [read(number, *self._pieces[number]) for number in numbers]


def _read(
    function: Callable[[Partition], S],
    names: tuple[str, ...],
    columns: dict[str, list[Any] | None],
    change: Callable[[Partition], Partition] | None,
    number: int,
    *pieces: Any,
) -> S:
    """Read one partition on its worker: put columns into the expected order, check rows, and apply the function."""
    given = _checked(dict(zip(names, pieces, strict=True)), columns, f"partition {number}")
    whole = Partition(number, **given)
    return function(whole if change is None else change(whole))


def _checked(pieces: dict[str, Any], columns: dict[str, list[Any] | None], call: str) -> dict[str, Any]:
    """Return the pieces of one partition with their columns in the order of the frames.

    Raise ValueError if columns are missing, or if the pieces have different numbers of rows.
    """
    problems, checked = Problems(call), dict[str, Any]()
    for name, piece in pieces.items():
        expected = columns[name]
        if expected is not None and list(piece.columns) != expected:
            absent = [column for column in expected if column not in piece.columns]
            if absent or piece.columns.has_duplicates:
                problems.add(f"{name} must have the columns {expected}, got {list(piece.columns)}")
                continue
            piece = piece[expected]
        checked[name] = piece
    first, *others = pieces
    for name in others:
        if first in checked and name in checked and len(checked[name]) != len(checked[first]):
            problems.add(f"{name} has {len(checked[name])} row(s), {first} has {len(checked[first])}")
    problems.raise_if_any()
    return checked


def as_partitions(log_ratio: Any, problems: Problems, **others: Any) -> Partitions | None:
    """Return the partitions of log f and the other arguments if log f is a Dask collection; otherwise None."""
    if isinstance(log_ratio, Partitions):
        return log_ratio
    given = {"log_ratio": log_ratio, **{name: value for name, value in others.items() if value is not None}}
    if not is_dask(log_ratio):
        wrong = [name for name, value in given.items() if is_dask(value)]
        problems.messages += [f"{name} is a Dask collection and log_ratio is not: give both as such" for name in wrong]
        return None
    for name, value in given.items():
        if not is_dask(value):
            problems.add(NOT_DASK.format(name=name, kind=type(value).__name__))
        elif _n_partitions(value) != _n_partitions(log_ratio):
            own, expected = _n_partitions(value), _n_partitions(log_ratio)
            problems.add(UNEQUAL.format(name=name, own=own, expected=expected))
    problems.raise_if_any()
    return Partitions(given)


def _n_partitions(collection: Any) -> int:
    return int(collection.npartitions if hasattr(collection, "dtypes") else collection.numblocks[0])


def _pieces(collection: Any) -> Sequence[Any]:
    """Return the partitions of a collection as delayed values; for an array, blocks of whole rows."""
    if hasattr(collection, "numblocks"):
        whole = collection.rechunk({1: -1}) if collection.ndim > 1 and collection.numblocks[1] > 1 else collection
        pieces: list[Any] = whole.to_delayed().ravel().tolist()
        return pieces
    return list(collection.to_delayed())


def compute(tasks: Sequence[Any]) -> list[Any]:
    """Compute delayed values with the current scheduler, and return the results in the same order."""
    import dask

    with _explained():
        return list(dask.compute(*tasks))


def persist(tasks: Sequence[Any]) -> list[Any]:
    """Compute delayed values, leave the results on the workers, and return references to them."""
    import dask

    with _explained():
        return list(dask.persist(*tasks))


def add_tasks(tasks: Sequence[Any], add: Callable[[Any], Any]) -> Any:
    """Return the sum of delayed values; each task adds up at most `FAN_IN` of them."""
    from dask import delayed

    left = list(tasks)
    while len(left) > 1:
        left = [delayed(add, pure=False)(left[start : start + FAN_IN]) for start in range(0, len(left), FAN_IN)]
    return compute(left)[0]


def current_client() -> Any:
    """Return the client of the Dask cluster; None if there is no cluster: this process then computes."""
    distributed = sys.modules.get("distributed")
    try:
        return None if distributed is None else distributed.get_client()
    except ValueError:  # there is no cluster
        return None


class _explained:  # noqa: N801
    """Context manager that adds a note to an error: it was raised for a partition."""

    def __enter__(self) -> None: ...

    def __exit__(self, _: Any, error: BaseException | None, __: Any) -> None:
        if isinstance(error, Exception):
            error.add_note(FAILED)


def map_rows(
    function: Callable[[Any, Any], Any], X: Any, Z: Any, *, columns: Sequence[Any] | None, dtype: Any = float
) -> Any:
    """Apply a function to X and Z in each partition.

    `columns` are the columns of the result; None means that the function returns one value for each row. The result is
    a Dask frame or series if X is a frame, and a Dask array if X is an array.
    """
    problems = Problems("predict")
    if Z is not None and not is_dask(Z):
        problems.add(f"X is a Dask collection and sample_confounder is not ({type(Z).__name__}): give both as such")
    elif Z is not None and _n_partitions(Z) != _n_partitions(X):
        own, expected = _n_partitions(Z), _n_partitions(X)
        problems.add(f"sample_confounder has {own} partition(s), X has {expected}: repartition them alike")
    problems.raise_if_any()
    given = {name: value for name, value in (("X", X), ("sample_confounder", Z)) if value is not None}
    call = partial(_call, function, {name: columns_of(value) for name, value in given.items()}, columns, dtype)
    if hasattr(X, "dtypes"):
        empty = pd.Series(dtype=dtype) if columns is None else pd.DataFrame(columns=list(columns), dtype=dtype)
        return X.map_partitions(call, *list(given.values())[1:], meta=empty, align_dataframes=False)
    import dask.array as da
    from dask import delayed

    pieces = [_pieces(value) for value in given.values()]
    blocks = [delayed(call, pure=False)(*found) for found in zip(*pieces, strict=True)]
    shapes = [(n,) if columns is None else (n, len(columns)) for n in X.chunks[0]]
    found = [da.from_delayed(block, shape, dtype) for block, shape in zip(blocks, shapes, strict=True)]
    return da.concatenate(found, axis=0)


def _call(
    function: Callable[[Any, Any], Any],
    expected: dict[str, list[Any] | None],
    columns: Sequence[Any] | None,
    dtype: Any,
    *pieces: Any,
) -> Any:
    """Apply a function to one partition on its worker; the function is not called for an empty partition."""
    given = _checked(dict(zip(expected, pieces, strict=True)), expected, "a partition")
    X, n_rows = given["X"], len(given["X"])
    shape = (0,) if columns is None else (0, len(columns))
    values = np.asarray(function(X, given.get("sample_confounder"))) if n_rows else np.empty(shape, dtype)
    if not isinstance(X, pd.DataFrame):
        return values
    return pd.Series(values, X.index) if columns is None else pd.DataFrame(values, X.index, list(columns))
