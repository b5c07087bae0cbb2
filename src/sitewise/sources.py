"""Rows in chunks: from a file, a memory-mapped array, or any re-iterable object.

A chunk is a pair (log_ratio, Z or None). Estimation passes over the chunks several times and holds a few of them in
memory.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from mmap import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from sitewise.arrays import ONE_SHOT, Problems, refuse_one_shot

Chunk = tuple[Any, Any]
CHUNK_ROWS = 2**20


class ArrayChunks:
    """Rows of arrays that are too large to copy, for example memory-mapped ones, in chunks for `estimate_prevalence`.

    A chunk is a pair (log_ratio, Z or None) of consecutive rows. `estimate_prevalence` uses such chunks by default if
    its `log_ratio` is memory-mapped.

    Parameters
    ----------
    log_ratio : array of shape (n, K)
        log f of the rows.
    sample_confounder : DataFrame or array of shape (n, V), optional
        The confounders of the rows.
    rows : int
        The number of rows of a chunk; the last chunk may have fewer.

    Examples
    --------
    >>> log_ratio = np.load("log_ratio.npy", mmap_mode="r")
    >>> estimate_prevalence(ArrayChunks(log_ratio, Z, rows=1_000_000))
    """

    def __init__(self, log_ratio: Any, sample_confounder: Any = None, *, rows: int = CHUNK_ROWS) -> None:
        problems = Problems("ArrayChunks")
        if np.ndim(log_ratio) != 2:
            problems.add(f"log_ratio must have shape (rows, classes), got shape {np.shape(log_ratio)}")
        elif sample_confounder is not None and len(sample_confounder) != len(log_ratio):
            problems.add(f"sample_confounder has {len(sample_confounder)} row(s), log_ratio has {len(log_ratio)}")
        _check_rows(rows, problems)
        problems.raise_if_any()
        self.log_ratio, self.sample_confounder, self.rows = log_ratio, sample_confounder, rows

    def __iter__(self) -> Iterator[Chunk]:
        return self.chunks_from(0)

    def chunks_from(self, first: int) -> Iterator[Chunk]:
        """Yield the chunks from number `first` on. The earlier chunks are not read.

        Parameters
        ----------
        first : int
            The number of the first chunk to yield, counted from 0.

        Returns
        -------
        iterator of tuple
            Pairs (log_ratio, Z or None).
        """
        for start in range(first * self.rows, len(self.log_ratio), self.rows):
            Z = self.sample_confounder
            place = slice(start, start + self.rows)
            own = None if Z is None else Z.iloc[place] if isinstance(Z, pd.DataFrame | pd.Series) else Z[place]
            yield _mapped_rows(self.log_ratio, place), own


def _mapped_rows(array: Any, place: slice) -> Any:
    """Return a slice of the rows.

    A slice of a memory-mapped file gets a memory map of its own, so that its pages can be released after use.
    """
    whole_file = isinstance(array, np.memmap) and isinstance(array.base, mmap) and array.flags.c_contiguous
    if not whole_file or array.filename is None:
        return array[place]
    start, stop, _ = place.indices(len(array))
    offset = array.offset + start * array.strides[0]
    return np.memmap(array.filename, array.dtype, "r", offset, (stop - start, *array.shape[1:]))


class ParquetChunks:
    """Rows of Parquet files, in chunks for `estimate_prevalence`.

    A chunk is a pair (log_ratio, Z or None) of consecutive rows. The files are not read as a whole.

    Parameters
    ----------
    path : path or list of paths
        A Parquet file, a folder (all its files with the suffix .parquet, in the order of their names), or a list of
        these.
    log_ratio : sequence of str
        The columns with log f, one for each class, in the order of the classes.
    sample_confounder : sequence of str
        The columns with confounders. By default there are none, and Z is None.
    rows : int
        The largest number of rows of a chunk.

    Examples
    --------
    >>> rows = ParquetChunks("site.parquet", ["log_f0", "log_f1"], ["age", "sex"])
    >>> estimate_prevalence(rows)
    """

    def __init__(
        self,
        path: str | Path | Sequence[str | Path],
        log_ratio: Sequence[str],
        sample_confounder: Sequence[str] = (),
        *,
        rows: int = 2**18,
    ) -> None:
        problems = Problems("ParquetChunks")
        self.files = _find_files(path, problems)
        self.log_ratio, self.sample_confounder, self.rows = list(log_ratio), list(sample_confounder), rows
        _check_rows(rows, problems)
        for file in self.files:
            self._check_columns(file, problems)
        problems.raise_if_any()

    def __iter__(self) -> Iterator[Chunk]:
        from pyarrow.parquet import ParquetFile

        for path in self.files:
            with ParquetFile(path) as file:
                for batch in file.iter_batches(self.rows, columns=[*self.log_ratio, *self.sample_confounder]):
                    columns = [_to_numpy(batch.column(name)) for name in self.log_ratio]
                    Z = batch.select(self.sample_confounder).to_pandas() if self.sample_confounder else None
                    yield np.stack(columns, axis=1), Z

    def _check_columns(self, path: Path, problems: Problems) -> None:
        from pyarrow.lib import ArrowInvalid
        from pyarrow.parquet import read_schema

        try:
            names = read_schema(path).names
        except (OSError, ArrowInvalid) as error:
            problems.add(f"{path} cannot be read as Parquet ({error})")
            return
        absent = [name for name in (*self.log_ratio, *self.sample_confounder) if name not in names]
        if absent:
            problems.add(f"{path} has no column {', '.join(map(repr, absent))}; its columns are {', '.join(names)}")


def _to_numpy(column: Any) -> np.ndarray[Any, Any]:
    values = np.asarray(column.to_numpy(zero_copy_only=False))
    return values if values.dtype == np.float32 else values.astype(np.float64)


def _check_rows(rows: int, problems: Problems) -> None:
    if not (isinstance(rows, int) and rows >= 1):
        problems.add(f"rows must be a whole number from 1 up, got {rows!r}")


def _find_files(path: Any, problems: Problems) -> list[Path]:
    listed = [Path(p) for p in path] if isinstance(path, list | tuple) else [Path(path)]
    files: list[Path] = []
    for place in listed:
        named = sorted(place.glob("*.parquet")) if place.is_dir() else [place]
        if place.is_dir() and not named:
            problems.add(f"folder {place} holds no .parquet file")
        missing = [p for p in named if not p.exists()]
        problems.messages += [f"there is no file {p}" for p in missing]
        files += [p for p in named if p.exists()]
    return files


def as_chunks(log_ratio: Any, Z: Any, problems: Problems) -> Iterable[Any] | None:
    """Return the chunked source that `log_ratio` is, or one for a memory-mapped array; None for an array in memory."""
    refuse_one_shot(log_ratio, "log_ratio")
    refuse_one_shot(Z, "sample_confounder")
    if isinstance(log_ratio, np.memmap) and log_ratio.ndim == 2:
        return ArrayChunks(log_ratio, Z)
    if not is_chunked(log_ratio):
        return None
    if Z is not None:
        problems.add("a chunked source carries its own Z: leave sample_confounder out")
    source: Iterable[Any] = log_ratio
    return source


def is_chunked(value: object) -> bool:
    """Return whether a value is an iterable of (log_ratio, Z or None) chunks, and not an array."""
    if isinstance(value, Tensor | np.ndarray | pd.DataFrame | pd.Series) or hasattr(value, "__array__"):
        return False
    if isinstance(value, list | tuple):
        return any(isinstance(c, list | tuple) and len(c) > 0 and getattr(c[0], "ndim", 0) == 2 for c in value)
    return isinstance(value, Iterable) and not isinstance(value, str | bytes | dict)


def chunks_from(source: Iterable[Any], first: int = 0, name: str = "log_ratio") -> Iterator[Chunk]:
    """Yield the chunks from number `first` on; check that all have the same classes and columns."""
    skip = getattr(source, "chunks_from", None)
    chunks = skip(first) if skip is not None else islice(source, first, None)
    example = None
    for position, chunk in enumerate(chunks, first):
        example = chunk if example is None else example
        problem = _chunk_problem(chunk, example)
        if problem:
            raise ValueError(f"chunk {position} of {name}: {problem}")
        yield chunk[0], chunk[1]


def first_chunk(source: Iterable[Any], name: str = "log_ratio") -> Chunk:
    """Return the first chunk; raise an error if there is none, or if the source can be read only once."""
    chunk = next(chunks_from(source, name=name), None)
    if chunk is None:
        raise ValueError(f"{name} is a chunked source without chunks: at least one (log_ratio, Z) chunk is needed")
    if next(iter(source), None) is None or iter(source) is source:
        raise TypeError(ONE_SHOT.format(name=name, kind=type(source).__name__))
    return chunk


def _chunk_problem(chunk: Any, first: Any) -> str | None:
    """Return the problem of a chunk, by itself or compared with the first chunk; None if there is no problem."""
    if not isinstance(chunk, list | tuple) or len(chunk) != 2:
        return f"expected a pair (log_ratio, Z or None), got {type(chunk).__name__}"
    (log_ratio, Z), (first_ratio, first_Z) = chunk, first
    shape, first_shape = np.shape(log_ratio), np.shape(first_ratio)
    if len(shape) != 2:
        return f"log_ratio must have shape (rows, classes), got {tuple(shape)}"
    if shape[1] != first_shape[1]:
        return f"log_ratio has {shape[1]} classes, chunk 0 has {first_shape[1]}"
    if _labels(log_ratio) != _labels(first_ratio):
        return f"log_ratio has the classes {_labels(log_ratio)}, chunk 0 has {_labels(first_ratio)}"
    if (Z is None) != (first_Z is None):
        return "some chunks have confounders and some have None: give all of them, with NaN where unknown"
    if Z is None:
        return None
    if len(Z) != shape[0]:
        return f"Z has {len(Z)} row(s), log_ratio has {shape[0]}"
    if _labels(Z) != _labels(first_Z):
        return f"Z has the columns {_labels(Z)}, chunk 0 has {_labels(first_Z)}"
    return None


def _labels(value: Any) -> list[Any] | int:
    """Return the column names of a DataFrame; for other values, the number of columns."""
    if isinstance(value, pd.DataFrame):
        return value.columns.tolist()
    shape = np.shape(value)
    return shape[1] if len(shape) > 1 else 1
