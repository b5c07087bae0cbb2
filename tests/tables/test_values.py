"""Cells as what they mean: one meaning for every way to write and to store it, and a word on what has none."""

import datetime
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sitewise.arrays import Problems
from sitewise.tables.values import (
    MISSING,
    Place,
    as_label,
    as_rows,
    find_columns,
    labels,
    labels_by_text,
    levels,
    names,
    numbers,
    probabilities,
    refuse_kinds,
    spelling,
    text,
)

HERE = Place("t.csv")
CELLS = st.one_of(st.none(), st.integers(-(10**6), 10**6), st.floats(allow_infinity=False), st.text(max_size=8))


def column(values, kind=None):
    return pa.table({"c": pa.array(values, type=kind)})


def read(function, rows, *more):
    """What a function makes of the column, where nothing is wrong with it."""
    problems = Problems("test")
    values_read = function(rows, "c", *more, HERE, problems)
    problems.raise_if_any()
    return values_read


def known(found):
    return [None if level is None or level != level else level for level in found.astype(object)]


@given(CELLS)
def test_a_spelling_is_spelled_as_it_is(value):
    once = spelling(value)
    assert once is None or spelling(once) == once


@given(st.integers(-(10**12), 10**12))
def test_a_whole_number_is_one_level_however_it_is_written(number):
    assert {spelling(v) for v in (number, str(number), f" {number} ", f"{number}.0", float(number))} == {str(number)}
    assert as_label(str(number)) == number


@pytest.mark.parametrize("written", ["007", "1.50", "1e3", "+1", "- 1", "1.0.0", "1.", "NaN2"])
def test_what_only_looks_like_a_number_keeps_its_text(written):
    """A postcode or a version is a name, and not converted to a number."""
    assert spelling(written) == written
    assert as_label(written) == written


@pytest.mark.parametrize("written", [*MISSING, None, float("nan"), "  ", " NA "])
def test_what_is_missing_is_missing_in_every_kind_of_column(written):
    assert spelling(written) is None
    cell = written if isinstance(written, str) else None
    assert np.isnan(read(numbers, column([cell, "2"]))).tolist() == [True, False]
    assert known(read(levels, column([cell, "2"]))) == [None, "2"]


@given(st.lists(st.one_of(st.none(), st.integers(-99, 99)), min_size=1, max_size=30))
def test_numbers_and_levels_do_not_depend_on_how_a_column_is_stored(values):
    stored = [
        column(values, pa.int64()),
        column([None if v is None else float(v) for v in values], pa.float64()),
        column([None if v is None else str(v) for v in values], pa.string()),
        column([None if v is None else str(v) for v in values], pa.large_string()),
        column([None if v is None else Decimal(v) for v in values], pa.decimal128(9, 0)),
        pa.table({"c": pa.array(["" if v is None else str(v) for v in values]).dictionary_encode()}),
        pa.table({"c": pa.chunked_array([values[:1], values[1:]], type=pa.int32())}),
        as_rows(pd.DataFrame({"c": pd.Series(values, dtype="Int64")})),
        as_rows(pd.DataFrame({"c": pd.Series(values, dtype=object)})),
    ]
    expected = np.array([np.nan if v is None else v for v in values], dtype=float)
    for rows in stored:
        np.testing.assert_array_equal(read(numbers, rows), expected)
        read_back = read(levels, rows)
        assert known(read_back) == [None if v is None else str(v) for v in values]
        assert read_back.categories.tolist() == sorted({str(v) for v in values if v is not None})


def test_a_batch_is_read_as_a_table_is():
    table = column(["1", "b", None])
    (batch,) = table.to_batches()
    assert known(read(levels, batch)) == known(read(levels, table)) == ["1", "b", None]


@pytest.mark.parametrize("kind", [pa.date32(), pa.timestamp("us"), pa.duration("s"), pa.time32("s")])
def test_dates_and_times_are_neither_numbers_nor_levels(kind):
    rows = column([1, 2], pa.int32() if kind.bit_width == 32 else pa.int64())
    rows = pa.table({"c": rows.column("c").cast(kind)})
    for function in (numbers, levels):
        with pytest.raises(ValueError, match=r"t\.csv, column 'c' holds dates: turn them into a number"):
            read(function, rows)


def test_every_bad_cell_is_counted_and_the_first_is_named():
    rows = column(["1", "two", "3", "four", ""])
    with pytest.raises(ValueError, match=r"column 'c': expected a number, got 'two' in row 1 .*, and 1 more like it"):
        read(numbers, rows)
    with pytest.raises(ValueError, match=r"column 'c' is infinite in row 2"):
        read(numbers, column([1.0, 2.0, -np.inf]))
    with pytest.raises(ValueError, match=r"column 'c': 1e\+300 in row 0"):
        read(numbers, column(["1e300", "2"]))


def test_kinds_that_are_no_cells_are_refused_all_at_once():
    rows = pa.table({"a": [[1]], "b": [{"x": 1}], "c": [b"x"], "d": [1], "e": pa.array(["x"]).dictionary_encode()})
    problems = Problems("test")
    refuse_kinds(rows, rows.column_names, HERE, problems)
    assert [said.split(" holds ")[0] for said in problems.messages] == [f"t.csv, column '{name}'" for name in "abc"]


def test_names_keep_their_text_and_lose_only_what_storage_added():
    assert names(column([12.0, None, 7.0]), "c").tolist() == ["12", "", "7"]
    assert names(column([" Oslo ", "007", "NA"]), "c").tolist() == ["Oslo", "007", "NA"]
    assert text(column([1.5, float("nan"), None]), "c").tolist() == ["1.5", "", ""]
    day = datetime.date(2020, 2, 29)
    assert text(column([day]), "c").tolist() == ["2020-02-29"]
    with pytest.raises(ValueError, match=r"column 'c' is empty in row 1 .*, and 1 more like it: every row needs one"):
        read(names, column(["a", " ", None]))


@pytest.mark.parametrize("classes", [(0, 1), ("False", "True")])
@pytest.mark.parametrize("written", [[0, 1], ["0.0", "1.0"], [False, True], ["false", "TRUE"]])
def test_truth_and_zero_or_one_are_the_same_labels(classes, written):
    assert read(labels, column(written), classes).tolist() == list(classes)


def test_truth_is_no_other_label():
    """Of other classes False and True are none, and 0 and 1 of three classes are numbers."""
    assert set(labels_by_text((0, 1, 2))) == {"0", "1", "2"}
    with pytest.raises(ValueError, match="expected one of no, yes, got 'True' in row 0"):
        read(labels, column([True]), ("no", "yes"))


def test_an_unknown_label_says_which_was_meant():
    with pytest.raises(ValueError, match=r"expected one of benign, malignant, got 'malignat' in row 1 .*'malignant'"):
        read(labels, column(["benign", "malignat"]), ("benign", "malignant"))
    partly = labels(column(["1", None, "0"]), "c", (0, 1), HERE, Problems("test"), partly=True)
    assert partly.tolist() == [1, None, 0]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_one_column_of_probabilities_is_the_second_class(values):
    problems = Problems("test")
    read_back = probabilities(column(values), ["c"], HERE, problems)
    problems.raise_if_any()
    np.testing.assert_array_equal(read_back[:, 1], values)
    np.testing.assert_allclose(read_back.sum(axis=1), 1, rtol=0, atol=1e-15)


def test_absent_columns_are_named_with_their_role_and_the_spelling_meant():
    problems = Problems("test")
    find_columns(("age", "Sex", "y"), [("confounders", "sex"), ("", "agee"), ("target", "y")], HERE, problems)
    assert problems.messages == [
        "t.csv has no column 'sex' (confounders); did you mean 'Sex'?; its columns are age, Sex, y",
        "t.csv has no column 'agee'; did you mean 'age'?; its columns are age, Sex, y",
    ]
    many = Problems("test")
    find_columns([f"c{i}" for i in range(40)], [("", "x")], HERE, many)
    assert many.messages[0].endswith("c29 and 10 more")


def test_a_table_is_a_frame_or_arrows():
    with pytest.raises(TypeError, match="a table must be a DataFrame or an Arrow table, got ndarray"):
        as_rows(np.zeros((2, 2)))
    mixed = pd.DataFrame({0: [1, "a", None], "when": [datetime.date(2020, 1, 1), "later", None]})
    assert as_rows(mixed).to_pydict() == {"0": ["1", "a", None], "when": ["2020-01-01", "later", None]}


@pytest.mark.parametrize("kind", ["pandas", "arrow"])
def test_columns_of_one_name_are_refused(kind):
    """They were a `KeyError` from deep inside, and `sitewise serve` answered with its traceback."""
    table = pd.DataFrame([[1.0, 2.0, 3.0]], columns=["a", "b", "a"])
    given = table if kind == "pandas" else pa.Table.from_arrays([pa.array([1.0])] * 3, names=list(table.columns))
    with pytest.raises(ValueError, match=r"table: duplicate column name\(s\) 'a': rename them"):
        as_rows(given)
