"""Read cells as numbers, levels or text. Cells that cannot be read are reported with file, column and row."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyarrow import compute as pc

from sitewise.arrays import Problems, as_pandas, brief, did_you_mean

Array = np.ndarray[Any, Any]
Rows = Any  # pa.Table or pa.RecordBatch
MISSING = ("", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "None", "null", "NULL", "<NA>")  # text of missing cells
PROBABILITY_TOLERANCE = 1e-3  # of the sum of a row's probabilities, because stored probabilities are rounded
MOST_SHOWN, MOST_COLUMNS = 8, 30  # largest numbers of values and of columns in a message
TRUTH = ("0", "1"), ("False", "True")
LARGEST = float(np.finfo(np.float32).max)  # networks use single precision

TWICE = "table: duplicate column name(s) {names}: rename them, or keep one of each"
NO_COLUMN = "{source} has no column {name!r}{role}{meant}; its columns are {columns}"
DATES = "{where} holds dates: turn them into a number (an age, days since a start) first"
NO_NUMBER = (
    "{where}: expected a number, got {value!r} in {row}{more}: correct it, leave it empty if it is missing, or fit "
    "the model with this column as categories, --categorical {name}"
)
TOO_LARGE = (
    "{where}: {value:g} in {row}{more} is too large to be a measured value: leave the cell empty if it is missing"
)
NO_ONE_VALUE = "{where} holds {kind}, but a cell must be one number or text: leave the column out, or convert it"
INFINITE = "{where} is infinite in {row}: leave the cell empty if the value is missing"
NO_PROBABILITY = "{where}: expected a probability, got nothing in {row}{more}: drop those rows or correct the scores"
OUTSIDE = "{where}: probabilities must lie in [0, 1], got {value:g} in {row}{more}"
NO_SUM = "{where}: probabilities of a row must sum to one, they sum to {value:g} in {row}{more}"
NO_LABEL = "{where}: the label is missing in {row}{more}: drop those rows"
OTHER_LABEL = "{where}: expected one of {known}, got {value!r} in {row}{more}{meant}"
NO_NAME = "{where} is empty in {row}{more}: every row needs one"


@dataclass(frozen=True, eq=False)
class Place:
    """The origin of rows, for error messages: a file's name, the number of the first row, and which rows were kept.

    Rows are counted from 0, without the header.
    """

    source: str = "the table"
    start: int = 0
    kept: Array | None = None

    def column(self, *names: str) -> str:
        """Return a text that names the source and columns."""
        listed = ", ".join(repr(name) for name in names)
        return f"{self.source}, column{'s' if len(names) > 1 else ''} {listed}"

    def row(self, rows: Array) -> dict[str, str]:
        """Return two texts for a message: `row` names the first of some rows, and `more` counts the others."""
        more = f", and {len(rows) - 1} more like it" if len(rows) > 1 else ""
        first = self.number(int(rows[0]))
        return {"row": f"row {first} (counted from 0, without the header)", "more": more}

    def number(self, row: int) -> int:
        """Return the number of a row in its file."""
        return self.start + (row if self.kept is None else int(self.kept[row]))


def find_columns(available: Sequence[str], asked: Iterable[tuple[str, str]], place: Place, problems: Problems) -> None:
    """Report all wanted columns, given as (role, name), that a table does not have, with similar names."""
    columns = shown(available, MOST_COLUMNS)
    for role, name in asked:
        if name not in available:
            said = {"role": f" ({role})" if role else "", "meant": did_you_mean(name, available)}
            problems.add(NO_COLUMN.format(source=place.source, name=name, columns=columns, **said))


def as_rows(table: Any) -> Rows:
    """Convert a DataFrame to an Arrow table; columns of mixed objects become text. Arrow tables are unchanged."""
    if isinstance(table, pa.Table | pa.RecordBatch):
        _refuse_twice(table.schema.names)
        return table
    table = as_pandas(table)
    if not isinstance(table, pd.DataFrame):
        raise TypeError(f"a table must be a DataFrame or an Arrow table, got {type(table).__name__}")
    _refuse_twice([str(name) for name in table.columns])
    arrays = [_from_pandas(table[name]) for name in table.columns]
    return pa.Table.from_arrays(arrays, names=[str(name) for name in table.columns])


def _refuse_twice(names: Sequence[str]) -> None:
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise ValueError(TWICE.format(names=brief(", ".join(map(repr, twice)))))


def numbers(rows: Rows, name: str, place: Place, problems: Problems) -> Array:
    """Read a column of finite numbers, (n,), NaN where missing."""
    column = plain(rows.column(name))
    if pa.types.is_temporal(column.type):
        problems.add(DATES.format(where=place.column(name)))
        return np.full(len(column), np.nan)
    values = _to_numbers(column)
    if values is None:
        cells = known_text(column).to_pandas()
        values = pd.to_numeric(cells, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan, copy=True)
        strange = np.flatnonzero(np.isnan(values) & cells.notna().to_numpy())
        if len(strange):
            value = cells.iloc[strange[0]]
            problems.add(NO_NUMBER.format(where=place.column(name), value=value, name=name, **place.row(strange)))
    if not np.abs(values.sum()) <= LARGEST:  # one check of all values; NaN only costs a second check
        infinite = np.flatnonzero(np.isinf(values))
        large = np.flatnonzero((np.abs(values) > LARGEST) & np.isfinite(values))
        if len(infinite):
            problems.add(INFINITE.format(where=place.column(name), **place.row(infinite)))
        if len(large):
            problems.add(TOO_LARGE.format(where=place.column(name), value=values[large[0]], **place.row(large)))
    return values


def refuse_kinds(rows: Rows, names: Iterable[str], place: Place, problems: Problems) -> None:
    """Report all columns whose cells are not single values: lists, structures, bytes."""
    for name in dict.fromkeys(names):
        kind = rows.schema.field(name).type
        if not is_one_value(kind):
            problems.add(NO_ONE_VALUE.format(where=place.column(name), kind=brief(kind)))


def is_one_value(kind: pa.DataType) -> bool:
    """Return whether cells of a type are single values: numbers, text, booleans, dates, or dictionaries of these."""
    if pa.types.is_dictionary(kind):
        return is_one_value(kind.value_type)
    number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    return bool(number or text or pa.types.is_boolean(kind) or pa.types.is_temporal(kind) or pa.types.is_null(kind))


def levels(rows: Rows, name: str, place: Place, problems: Problems) -> pd.Categorical:
    """Read a column of categories as text; 1, 1.0 and "1" are the same level."""
    column = plain(rows.column(name))
    if pa.types.is_temporal(column.type):
        problems.add(DATES.format(where=place.column(name)))
    coded = column.dictionary_encode()
    spelled = [spelling(value) for value in coded.dictionary.to_pylist()]
    kept = sorted({text for text in spelled if text is not None})
    number_of = {text: number for number, text in enumerate(kept)}
    translate = np.array([-1 if text is None else number_of[text] for text in spelled] + [-1], dtype=np.int64)
    codes = coded.indices.fill_null(len(spelled)).to_numpy(zero_copy_only=False)
    return pd.Categorical.from_codes(translate[codes], categories=pd.Index(kept, dtype=object))


def text(rows: Rows, name: str, place: Place | None = None, problems: Problems | None = None) -> Array:
    """Read the text of a column unchanged, (n,), "" where missing; with `problems`, an empty cell is a problem."""
    cells = pc.fill_null(_spelled(plain(rows.column(name))), "")
    values: Array = cells.to_numpy(zero_copy_only=False).astype(object)
    if problems is not None and place is not None:
        empty = np.flatnonzero(pc.equal(pc.utf8_trim_whitespace(cells), "").to_numpy(zero_copy_only=False))
        if len(empty):
            problems.add(NO_NAME.format(where=place.column(name), **place.row(empty)))
    return values


def names(rows: Rows, name: str, place: Place | None = None, problems: Problems | None = None) -> Array:
    """Read a column of names, such as sites, without outer spaces; with `problems`, an empty cell is a problem."""
    values = text(rows, name, place, problems)
    distinct, index = np.unique(values, return_inverse=True)
    return np.array([spell_name(value) for value in distinct], dtype=object)[index]


def labels(
    rows: Rows, name: str, classes: Sequence[Any], place: Place, problems: Problems, *, partly: bool = False
) -> Array:
    """Read the class of each row, (n,). If `partly` is true, labels may be missing and are then None."""
    values = levels(rows, name, place, problems)
    spelled = labels_by_text(classes)
    missing = np.flatnonzero(values.codes < 0)
    if len(missing) and not partly:
        problems.add(NO_LABEL.format(where=place.column(name), **place.row(missing)))
    unknown = [number for number, value in enumerate(values.categories) if value not in spelled]
    strange = np.flatnonzero(np.isin(values.codes, unknown))
    if len(strange):
        value = values.categories[values.codes[strange[0]]]
        known = [str(label) for label in classes]
        said = {"known": shown(known), "value": value, "meant": did_you_mean(value, known)}
        problems.add(OTHER_LABEL.format(where=place.column(name), **said, **place.row(strange)))
    meant = np.empty(len(values.categories) + 1, dtype=object)
    meant[:-1] = [spelled.get(value) for value in values.categories]
    chosen = meant[values.codes]
    return chosen if partly or len(missing) or len(strange) else np.array(chosen.tolist())


def labels_by_text(classes: Sequence[Any]) -> dict[str | None, Any]:
    """Return a dict from the text of a cell to its class.

    If the classes are False and True, the texts 0 and 1 also match them. If they are 0 and 1, so do False and True.
    """
    by_text = {spelling(label): label for label in classes}
    for one, other in (TRUTH, TRUTH[::-1]):
        if set(by_text) == set(one):
            return by_text | {text: by_text[meant] for text, meant in zip(other, one, strict=True)}
    return by_text


def probabilities(rows: Rows, columns: Sequence[str], place: Place, problems: Problems) -> Array:
    """Read probabilities (n, K) whose rows sum to one; a single column holds those of the second of two classes."""
    before = len(problems.messages)
    parts = [numbers(rows, name, place, problems) for name in columns]
    where = place.column(*columns)
    if len(problems.messages) > before:
        return np.stack(parts, axis=1)
    for name, part in zip(columns, parts, strict=True):
        if np.isnan(part.sum()):
            missing = np.flatnonzero(np.isnan(part))
            problems.add(NO_PROBABILITY.format(where=place.column(name), **place.row(missing)))
        elif len(part) and (part.min() < 0 or part.max() > 1):
            outside = np.flatnonzero((part < 0) | (part > 1))
            said = {"where": place.column(name), "value": part[outside[0]]}
            problems.add(OUTSIDE.format(**said, **place.row(outside)))
    if len(parts) == 1:
        parts = [1 - parts[0], parts[0]]
    elif len(problems.messages) == before:
        total = np.sum(parts, axis=0)
        wrong = np.flatnonzero(np.abs(total - 1) > PROBABILITY_TOLERANCE)
        if len(wrong):
            problems.add(NO_SUM.format(where=where, value=total[wrong[0]], **place.row(wrong)))
    return np.stack(parts, axis=1)


def plain(column: Any) -> Any:
    """Return a column as one Arrow array without dictionary encoding."""
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(whole, pa.ChunkedArray):  # empty, or too long for one array
        whole = pa.concat_arrays(whole.chunks) if whole.num_chunks else pa.array([], type=whole.type)
    return whole.dictionary_decode() if pa.types.is_dictionary(whole.type) else whole


def known_text(column: Any) -> Any:
    """Return cells as text without outer spaces, null where missing."""
    cells = pc.utf8_trim_whitespace(_spelled(column))
    return pc.if_else(pc.is_in(cells, pa.array(MISSING, type=cells.type)), pa.scalar(None, type=cells.type), cells)


def spelling(value: Any) -> str | None:
    """Return one text for all spellings of a level: 1, 1.0, "1" and " 1 " give "1"; None if missing."""
    if value is None or (isinstance(value, float) and np.isnan(value)):
        return None
    written = str(value).strip()
    if written in MISSING:
        return None
    if written.lower() in ("true", "false"):
        return written.capitalize()
    return spell_name(written)


def spell_name(value: Any) -> str:
    """Return a name as text. 12.0 becomes 12, because missing values turn integers into floats. 007 is unchanged."""
    written = str(value).strip()
    return written[:-2] if written.endswith(".0") and written[:-2].lstrip("-").isdigit() else written


def as_label(written: str) -> Any:
    """Return the class that a text means: an integer if the text is a whole number, otherwise the text."""
    return int(written) if written.lstrip("-").isdigit() and str(int(written)) == written else written


def shown(values: Sequence[str], most: int = MOST_SHOWN) -> str:
    """Return a text with the first `most` values and, if there are more values, the number of those left out."""
    more = f" and {len(values) - most} more" if len(values) > most else ""
    return ", ".join(values[:most]) + more


def _to_numbers(column: Any) -> Array | None:
    """Convert a column to numbers, NaN where missing; return None if a cell is not a number."""
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    if not (pa.types.is_floating(column.type) or pa.types.is_integer(column.type)):
        try:
            decimal = pa.types.is_decimal(column.type)
            column = (column if decimal else known_text(column)).cast(pa.float64())
        except pa.ArrowInvalid:
            return None
    values = column.to_numpy(zero_copy_only=False)
    return np.asarray(values, dtype=np.float64)


def _spelled(column: Any) -> Any:
    """Convert cells of any kind to text."""
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return column
    if pa.types.is_floating(column.type) or pa.types.is_boolean(column.type):
        values = [None if value is None or value != value else spell_name(value) for value in column.to_pylist()]
        return pa.array(values, type=pa.string())
    try:
        return column.cast(pa.string())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return pa.array([None if value is None else str(value) for value in column.to_pylist()], type=pa.string())


def _from_pandas(column: pd.Series) -> Any:
    try:
        return pa.array(column, from_pandas=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return pa.array(column.map(str, na_action="ignore"), type=pa.string(), from_pandas=True)
