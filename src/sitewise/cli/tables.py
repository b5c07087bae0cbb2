"""Tables that a command is given: read, and their columns found or the spelling meant proposed."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from sitewise.arrays import Problems, did_you_mean

SEPARATORS = {".csv": ",", ".tsv": "\t", ".tab": "\t"}
PARQUET = (".parquet", ".pq")
SUM_TOLERANCE = 1e-3


def read_table(path: Path) -> pd.DataFrame:
    """Read a CSV (also .csv.gz, .tsv) or Parquet file with at least one row."""
    if not path.is_file():
        near = sorted(other.name for other in path.parent.glob("*")) if path.parent.is_dir() else []
        raise FileNotFoundError(f"there is no file {path}{did_you_mean(path.name, near)}")
    suffix = Path(path.name.lower().removesuffix(".gz")).suffix
    if suffix not in SEPARATORS and suffix not in PARQUET:
        raise ValueError(f"{path} must be a CSV (.csv, .tsv) or a Parquet file (.parquet), got {suffix or 'no suffix'}")
    try:
        frame = pd.read_parquet(path) if suffix in PARQUET else pd.read_csv(path, sep=SEPARATORS[suffix])
    except (ValueError, OSError) as error:  # pandas' and pyarrow's own are kinds of these
        raise ValueError(f"{path} cannot be read as a table ({error})") from error
    if not len(frame):
        raise ValueError(f"{path} has no rows")
    return frame


def find_columns(frame: pd.DataFrame, names: Sequence[str], path: Path, problems: Problems) -> bool:
    """Note every column that is not there; tell whether all are."""
    known = [str(name) for name in frame.columns]
    absent = [name for name in names if name not in known]
    for name in absent:
        problems.add(f"{path} has no column {name!r}{did_you_mean(name, known)}; its columns are {', '.join(known)}")
    return not absent


def numbers(frame: pd.DataFrame, names: Sequence[str], path: Path, problems: Problems) -> np.ndarray:
    """Columns of numbers, (n, K); what is no number is noted with its row (counted from 0)."""
    columns = []
    for name in names:
        column = pd.to_numeric(frame[name], errors="coerce")
        strange = np.flatnonzero(~np.isfinite(column.to_numpy(dtype=float, na_value=np.nan)))
        if len(strange):
            value = frame[name].tolist()[strange[0]]
            problems.add(f"{path}, column {name!r}: expected a number, got {value!r} in row {strange[0]}")
        columns.append(column.to_numpy(dtype=float, na_value=np.nan))
    return np.stack(columns, axis=1)


def probabilities(frame: pd.DataFrame, names: Sequence[str], path: Path, problems: Problems) -> np.ndarray:
    """Columns of probabilities whose rows sum to one, (n, K)."""
    before = len(problems.found)
    matrix = numbers(frame, names, path, problems)
    if len(problems.found) > before:
        return matrix
    outside = np.flatnonzero(((matrix < 0) | (matrix > 1)).any(axis=1))
    total = matrix.sum(axis=1)
    unnormalized = np.flatnonzero(np.abs(total - 1) > SUM_TOLERANCE)
    columns = ", ".join(names)
    if len(outside):
        problems.add(f"{path}, columns {columns}: probabilities must lie in [0, 1], not so in row {outside[0]}")
    elif len(unnormalized):
        row = unnormalized[0]
        problems.add(f"{path}, columns {columns}: rows must sum to one, row {row} sums to {total[row]:g}")
    return matrix


def class_numbers(
    column: pd.Series, classes: Sequence[str] | None, n_classes: int, path: Path, problems: Problems
) -> np.ndarray:
    """The class number of every row: by the order given, else by the order of the values."""
    name = column.name
    missing = np.flatnonzero(column.isna().to_numpy())
    if len(missing):
        problems.add(
            f"{path}, column {name!r}: the label is missing in {len(missing)} row(s), first in row {missing[0]}"
        )
    values = sorted(column.dropna().unique(), key=lambda value: (isinstance(value, str), value))
    names = [str(value) for value in values] if classes is None else list(classes)
    if len(names) != n_classes:
        problems.add(
            f"{path}, column {name!r}: there are columns for {n_classes} classes, but {len(names)} of them "
            f"({', '.join(names[:10])}); name all in the columns' order by --classes a,b,..."
        )
        return np.zeros(len(column), dtype=np.int64)
    number_of = {label: number for number, label in enumerate(names)}
    found = (
        column.map(lambda value: number_of.get(str(value), -1), na_action="ignore").fillna(0).to_numpy(dtype=np.int64)
    )
    strange = np.flatnonzero(found < 0)
    if len(strange):
        value = str(column.tolist()[strange[0]])
        problems.add(
            f"{path}, column {name!r}: expected one of {', '.join(names)}, got {value!r} in row {strange[0]}"
            f"{did_you_mean(value, names)}"
        )
    return found
