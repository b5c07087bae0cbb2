"""Files that are written whole or not at all, and tables that are written a chunk at a time."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
from pyarrow import csv as arrow_csv
from pyarrow import parquet

SUFFIXES = (".csv", ".parquet")
NOT_WRITTEN = "{path} could not be written ({reason}); nothing was changed there"


class ChunkWriter(Protocol):
    """What takes the chunks of a table."""

    def write(self, table: pa.Table) -> None:
        """Add rows."""
        ...


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A place to write to that becomes `path` when all went well, and leaves no trace otherwise."""
    part = path.with_name(f".{path.name}.part-{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield part
        os.replace(part, path)
    except OSError as error:
        if isinstance(error, FileNotFoundError) and error.filename != str(part):
            raise  # of what was to be read
        reason = error.strerror or str(error)
        raise OSError(error.errno, NOT_WRITTEN.format(path=path, reason=reason)) from error
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def table_writer(path: Path, schema: pa.Schema) -> Iterator[ChunkWriter]:
    """Write a table chunk by chunk, CSV or Parquet by its suffix; whole or not at all."""
    with whole_file(path) as part, _writer(path.suffix.lower(), part, schema) as writer:
        yield writer


def _writer(suffix: str, part: Path, schema: pa.Schema) -> Any:
    if suffix == ".csv":
        return arrow_csv.CSVWriter(part, schema)
    texts = [field.name for field in schema if not pa.types.is_floating(field.type)]
    return parquet.ParquetWriter(part, schema, use_dictionary=texts, compression="snappy")
