"""Write files completely or not at all, and tables in chunks."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
from pyarrow import compute as pc
from pyarrow import csv as arrow_csv
from pyarrow import parquet

from sitewise.artifacts.places import put_in_place, sole_writer

SUFFIXES = (".csv", ".parquet")
APOSTROPHE = "'"
FORMULA = "^[=+\\-@\t\r\n＝＋－＠]"  # first characters of a cell that a spreadsheet reads as a formula
NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
NOT_WRITTEN = "{path} could not be written ({reason}); nothing was changed there"


class ChunkWriter(Protocol):
    """A writer of the chunks of a table."""

    def write(self, table: pa.Table) -> None:
        """Add rows."""
        ...


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Provide a temporary path; its file is moved to `path` on success, and removed if an error occurs.

    If several processes write the same file at the same time, one succeeds and the others raise BlockingIOError.
    """
    part = path
    try:
        with sole_writer(path) as part:
            yield part
            put_in_place(part, path)
    except OSError as error:
        if isinstance(error, FileNotFoundError) and error.filename != str(part):
            raise  # an error of the input
        reason = error.strerror or str(error)
        raise OSError(error.errno, NOT_WRITTEN.format(path=path, reason=reason)) from error


@contextmanager
def table_writer(path: Path, schema: pa.Schema) -> Iterator[ChunkWriter]:
    """Provide a writer of a table in chunks, as CSV or Parquet by the suffix; the file is complete or not written."""
    with whole_file(path) as part, _writer(path.suffix.lower(), part, schema) as writer:
        yield writer


def text_for_spreadsheets(cells: Any) -> Any:
    """Prevent formulas in text: a cell that begins like a formula and is not a number gets an apostrophe in front."""
    formulas = pc.match_substring_regex(cells, FORMULA)
    if not pc.any(formulas).as_py():
        return cells
    formulas = pc.and_not(formulas, pc.match_substring_regex(cells, NUMBER))
    before, nothing = (pa.scalar(text, type=cells.type) for text in (APOSTROPHE, ""))
    return pc.if_else(formulas, pc.binary_join_element_wise(before, cells, nothing), cells)


class _CsvWriter:
    """Writer of a CSV whose text is not read as formulas by a spreadsheet; a context manager."""

    def __init__(self, part: Path, schema: pa.Schema) -> None:
        names = text_for_spreadsheets(pa.array(schema.names, type=pa.string())).to_pylist()
        self.schema = pa.schema([field.with_name(name) for field, name in zip(schema, names, strict=True)])
        self.writer = arrow_csv.CSVWriter(part, self.schema)

    def __enter__(self) -> "_CsvWriter":
        return self

    def __exit__(self, *error: object) -> None:
        self.writer.close()

    def write(self, table: pa.Table) -> None:
        columns = [text_for_spreadsheets(c) if is_text(c.type) else c for c in table.itercolumns()]
        self.writer.write(pa.Table.from_arrays(columns, schema=self.schema))


def is_text(kind: pa.DataType) -> bool:
    """Return whether a type is text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _writer(suffix: str, part: Path, schema: pa.Schema) -> Any:
    if suffix == ".csv":
        return _CsvWriter(part, schema)
    texts = [field.name for field in schema if not pa.types.is_floating(field.type)]
    return parquet.ParquetWriter(part, schema, use_dictionary=texts, compression="snappy")
