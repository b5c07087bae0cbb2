"""Table files: the columns and the rows, in chunks, of CSV and Parquet files. Cells of a CSV are read as text."""

import codecs
import csv
import gzip
import io
import os
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import csv as arrow_csv
from pyarrow import parquet

from sitewise.arrays import Problems, did_you_mean
from sitewise.tables.values import MOST_COLUMNS, Place, find_columns, refuse_kinds, shown

SEPARATORS = {".csv": ",", ".tsv": "\t", ".tab": "\t"}
PARQUET = (".parquet", ".pq")
SHEETS = (".xls", ".ods")
OTHER_SEPARATORS = (";", "\t", "|", ",")
CHUNK_ROWS = 2**18
BLOCK_BYTES = 2**24  # bytes of a CSV that are read at once
WIDE_BOMS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
NAMED = {"\t": "tab", ";": "';'", "|": "'|'", ",": "','"}

NO_FILE = "there is no file {path}{meant}"
OTHER_KIND = "{path} must be a CSV (.csv, .tsv, also .gz) or a Parquet file (.parquet), got {suffix}{hint}"
EMPTY = "{path} is empty: a table needs a header and at least one row"
BLANK = "{path} begins with a blank line: its first line must be the header"
NO_NAME = "{path}: its name is not UTF-8 and cannot be written in messages and records: rename it"
HEADER_ONLY = "{path} has a header ({columns}) and no rows: a row for each sample is needed"
SEPARATED = (
    "{path} has a single column {column!r}: its columns seem to be separated by {found}, not by {separator}; "
    "add --separator {option!r}, or save it again with commas"
)
NOT_UTF8 = (
    "{path} is not UTF-8 text (first in line {line}): save it as UTF-8, or give its encoding, --encoding {encoding}"
)
UNREADABLE = "{path} cannot be read as {kind} ({error})"


@dataclass(frozen=True)
class TableFile:
    """An existing table file whose header was read, as `open_table` returns it.

    `n_rows` is None for a CSV, whose rows are not counted.
    """

    path: Path
    columns: tuple[str, ...]
    separator: str | None  # None: Parquet
    encoding: str = "utf-8"
    n_rows: int | None = None

    def chunks(self, columns: Sequence[str] | None = None, *, rows: int = CHUNK_ROWS) -> Iterator[pa.RecordBatch]:
        """Yield the rows in chunks, with these columns (None: all); raise ValueError if there are no rows.

        `rows` is the largest number of rows of a chunk of a Parquet file.
        """
        wanted = list(self.columns if columns is None else dict.fromkeys(columns))
        self.find(wanted)
        if columns is not None:
            self.refuse_kinds(wanted)
        batches = self._parquet_chunks(wanted, rows) if self.separator is None else self._csv_chunks(wanted)
        n_rows = 0
        try:
            for chunk in batches:
                n_rows += chunk.num_rows
                if chunk.num_rows:
                    yield chunk
        except (UnicodeDecodeError, pa.ArrowException, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # an error of the file system
            raise ValueError(self._why_unreadable(error)) from error
        if n_rows == 0:
            raise ValueError(HEADER_ONLY.format(path=self.path, columns=shown(self.columns, MOST_COLUMNS)))

    def read(self, columns: Sequence[str] | None = None, *, at_most: int | None = None) -> pa.Table:
        """Read these columns (None: all) of all rows, or of the first `at_most` rows, into memory."""
        batches = []
        n_rows = 0
        for chunk in self.chunks(columns):
            batches.append(chunk)
            n_rows += chunk.num_rows
            if at_most is not None and n_rows >= at_most:
                break
        return pa.Table.from_batches(batches).slice(0, at_most)

    def type_of(self, column: str) -> pa.DataType:
        """Return the stored type of a column; for a CSV it is text."""
        if self.separator is not None:
            return pa.string()
        kind = parquet.read_schema(self.path).field(column).type
        return kind.value_type if pa.types.is_dictionary(kind) else kind

    def refuse_kinds(self, columns: Sequence[str]) -> None:
        """Raise one ValueError that lists all columns whose cells are not single values."""
        if self.separator is None:
            problems = Problems("table")
            refuse_kinds(
                parquet.ParquetFile(self.path).schema_arrow.empty_table(), columns, Place(str(self.path)), problems
            )
            problems.raise_if_any()

    def find(self, columns: Sequence[str]) -> None:
        """Raise one ValueError that lists all missing columns, each with a similar name if there is one."""
        problems = Problems("table")
        find_columns(self.columns, [("", name) for name in columns], Place(str(self.path)), problems)
        problems.raise_if_any()

    def _parquet_chunks(self, columns: list[str], rows: int) -> Iterator[pa.RecordBatch]:
        with parquet.ParquetFile(self.path) as file:
            yield from file.iter_batches(rows, columns=columns)

    def _csv_chunks(self, columns: list[str]) -> Iterator[pa.RecordBatch]:
        with pa.input_stream(str(self.path), compression="detect") as stream:
            reader = arrow_csv.open_csv(
                stream,
                read_options=arrow_csv.ReadOptions(block_size=BLOCK_BYTES, encoding=self.encoding),
                parse_options=arrow_csv.ParseOptions(delimiter=self.separator, newlines_in_values=True),
                convert_options=arrow_csv.ConvertOptions(
                    column_types={name: pa.string() for name in columns},
                    include_columns=columns,
                    strings_can_be_null=False,
                ),
            )
            with reader:
                yield from reader

    def _why_unreadable(self, error: Exception) -> str:
        """Return the message for a file that Arrow could not read to its end."""
        if isinstance(error, UnicodeDecodeError) or "UTF8" in str(error):
            return self._not_text()
        if "Empty CSV" in str(error):  # a header without a line end
            return HEADER_ONLY.format(path=self.path, columns=shown(self.columns, MOST_COLUMNS))
        kind = "Parquet" if self.separator is None else "CSV"
        return UNREADABLE.format(path=self.path, kind=kind, error=_short(error))

    def _not_text(self) -> str:
        """Return the message that names the first line that cannot be decoded."""
        with _bytes_of(self.path) as file:
            line = next((number for number, text in enumerate(file, 1) if not _decodes(text, self.encoding)), 1)
        return NOT_UTF8.format(path=self.path, line=line, encoding="latin-1").replace(
            "UTF-8 text", _text(self.encoding)
        )


def open_table(path: str | os.PathLike[str], *, separator: str | None = None, encoding: str | None = None) -> TableFile:
    """Find the kind, header and separator of a CSV or Parquet file; raise ValueError if something is wrong.

    By default, the separator of a CSV is a comma (a tab for .tsv and .tab), and its encoding is UTF-8 with or without a
    byte order mark. If a separator is given, the name of a CSV may have any ending that is not one of a spreadsheet or
    of Parquet. A path that is not a file raises FileNotFoundError.
    """
    place = Path(path)
    check_name(place)
    if not place.is_file():
        near = sorted(other.name for other in place.parent.glob("*")) if place.parent.is_dir() else []
        hint = " (it is a folder)" if place.is_dir() else did_you_mean(place.name, near)
        raise FileNotFoundError(NO_FILE.format(path=place, meant=hint))
    suffix = Path(place.name.lower().removesuffix(".gz")).suffix
    if suffix in PARQUET:
        return _open_parquet(place)
    if suffix not in SEPARATORS and (separator is None or suffix.startswith(SHEETS)):
        hint = ": save the sheet as CSV first" if suffix.startswith(SHEETS) else ""
        raise ValueError(OTHER_KIND.format(path=place, suffix=suffix or "no suffix", hint=hint))
    if encoding is not None:
        _check_encoding(encoding)
    return _open_csv(place, separator or SEPARATORS[suffix], encoding or "utf-8")


def check_name(path: Path) -> None:
    """Raise ValueError for a path that cannot be encoded as UTF-8."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        readable = os.fsencode(path).decode("utf-8", "backslashreplace")
        raise ValueError(NO_NAME.format(path=readable)) from None


def _open_parquet(path: Path) -> TableFile:
    if path.stat().st_size == 0:
        raise ValueError(EMPTY.format(path=path))
    try:
        with parquet.ParquetFile(path) as file:
            names, n_rows = tuple(file.schema_arrow.names), file.metadata.num_rows
    except PermissionError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise ValueError(UNREADABLE.format(path=path, kind="Parquet", error=_short(error))) from error
    _refuse_twice(path, names)
    return TableFile(path, names, None, n_rows=n_rows)


def _open_csv(path: Path, separator: str, encoding: str) -> TableFile:
    if len(separator) != 1:
        raise ValueError(f"--separator must be one character, got {separator!r}")
    try:
        names = _header(path, separator, encoding)
    except UnicodeDecodeError as error:
        raise ValueError(TableFile(path, (), separator, encoding)._not_text()) from error
    except PermissionError:
        raise
    except (OSError, EOFError, zlib.error, csv.Error) as error:
        raise ValueError(UNREADABLE.format(path=path, kind="CSV", error=_short(error))) from error
    if not names:
        raise ValueError(EMPTY.format(path=path))
    separators = [other for other in OTHER_SEPARATORS if other != separator and other in names[0]]
    if len(names) == 1 and separators:
        said = {
            "found": NAMED[separators[0]],
            "option": separators[0],
            "separator": NAMED.get(separator, repr(separator)),
        }
        raise ValueError(SEPARATED.format(path=path, column=names[0][:60], **said))
    _refuse_twice(path, names)
    return TableFile(path, names, separator, encoding)


def _header(path: Path, separator: str, encoding: str) -> tuple[str, ...]:
    """Return the names of a CSV's columns; an empty tuple if the file is empty."""
    with _bytes_of(path) as file:
        head = file.read(1024)
        file.seek(0)
        if head.startswith(WIDE_BOMS) and not encoding.lower().startswith("utf-16"):
            raise ValueError(NOT_UTF8.format(path=path, line=1, encoding="utf-16"))
        if b"\0" in head and not encoding.lower().startswith(("utf-16", "utf-32")):
            raise ValueError(UNREADABLE.format(path=path, kind="CSV", error="it does not hold text"))
        text = io.TextIOWrapper(file, encoding="utf-8-sig" if encoding == "utf-8" else encoding, newline="")
        names = next(csv.reader(text, delimiter=separator), [])
        if not names and any(line.strip() for line in text):
            raise ValueError(BLANK.format(path=path))
    return tuple(names)


def _refuse_twice(path: Path, names: Sequence[str]) -> None:
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise ValueError(f"{path} has duplicate column name(s): {', '.join(map(repr, twice))}; rename them")


def _check_encoding(encoding: str) -> None:
    try:
        b"a".decode(encoding)  # rejects codecs that are not for text
    except UnicodeError:
        return  # the encoding exists, but needs more than one byte for a character
    except LookupError:
        raise ValueError(f"--encoding {encoding!r} is not known; try utf-8, latin-1, cp1252 or utf-16") from None


def _bytes_of(path: Path) -> Any:
    return gzip.open(path, "rb") if path.name.lower().endswith(".gz") else path.open("rb")


def _decodes(text: bytes, encoding: str) -> bool:
    try:
        text.decode(encoding)
    except UnicodeDecodeError:
        return False
    return True


def _text(encoding: str) -> str:
    return f"{encoding.upper()} text"


def _short(error: BaseException) -> str:
    """Return the first line of an error message, shortened."""
    line = str(error).splitlines()[0] if str(error) else type(error).__name__
    return line if len(line) <= 200 else f"{line[:199]}…"
