"""Files that are written whole or not at all, tables in chunks, and text that stays text in a spreadsheet."""

import re

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from sitewise.tables.files import open_table
from sitewise.tables.writing import FORMULA, table_writer, text_for_spreadsheets, whole_file

TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=12)


def write(path, content):
    path.write_bytes(content.encode())
    return path


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_table_is_written_whole_or_not_at_all(tmp_path, suffix):
    path = tmp_path / f"out{suffix}"
    table = pa.table({"id": ["a", "2"], "p": [0.1, 0.9]})

    def stop_midway():
        with table_writer(path, table.schema) as writer:
            writer.write(table)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stop_midway()
    assert list(tmp_path.iterdir()) == []
    with table_writer(path, table.schema) as writer:
        writer.write(table)
        writer.write(table)
    found = pd.read_csv(path, dtype={"id": str}) if suffix == ".csv" else pd.read_parquet(path)
    assert found["id"].tolist() == ["a", "2"] * 2
    assert found["p"].tolist() == [0.1, 0.9] * 2
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_an_old_file_stays_where_writing_fails(tmp_path):
    path = write(tmp_path / "out.html", "old")

    def fill_the_disk():
        with whole_file(path) as part:
            part.write_text("half")
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match=r"could not be written \(No space left on device\); nothing was changed"):
        fill_the_disk()
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["out.html"]


def test_what_a_killed_writer_left_of_a_file_is_removed(tmp_path):
    for name in (".out.html.part-00000000", ".out.html.part-1", ".other.html.part-00000000"):
        write(tmp_path / name, "half")
    with whole_file(tmp_path / "out.html") as part:
        part.write_text("whole")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [
        ".other.html.part-00000000",
        ".out.html.part-1",
        "out.html",
    ]


def test_a_file_has_one_writer_at_a_time(tmp_path):
    def write_twice():
        with whole_file(tmp_path / "out.html") as part:
            part.write_text("first")
            with whole_file(tmp_path / "out.html") as other:
                other.write_text("second")

    with pytest.raises(BlockingIOError, match=r"out\.html could not be written \(another program is writing there"):
        write_twice()
    assert list(tmp_path.iterdir()) == []


FORMULAS = ["=1+2", "=cmd|' /C calc'!A0", "+cmd", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "＝1", "-", "+1-555-0100"]
PLAIN = ["", "a=1", " =1", "-5", "+3.5e7", "-.5", "007", "it's", "p@x", None]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_no_text_becomes_a_formula_in_a_spreadsheet(tmp_path, kind):
    """Ids and labels are somebody's words: in a CSV those that begin like a formula get an apostrophe."""
    table = pa.table({"=id": pa.array([*FORMULAS, *PLAIN], type=kind), "p": [-0.5] * len(FORMULAS + PLAIN)})
    for name in ("out.csv", "out.parquet"):
        with table_writer(tmp_path / name, table.schema) as writer:
            writer.write(table)
    read_table = pd.read_csv(tmp_path / "out.csv", dtype=str, keep_default_na=False)
    assert read_table.columns.tolist() == ["'=id", "p"]
    assert read_table["'=id"].tolist() == [*(f"'{text}" for text in FORMULAS), *PLAIN[:-1], ""]
    assert set(read_table["p"]) == {"-0.5"}
    assert parquet.read_table(tmp_path / "out.parquet").column("=id").to_pylist() == [*FORMULAS, *PLAIN]


@given(st.lists(st.one_of(st.none(), TEXT, TEXT.map("={}".format), st.floats().map(str)), min_size=1, max_size=8))
def test_any_text_is_safe_and_comes_back_without_its_apostrophe(cells):
    safe = text_for_spreadsheets(pa.array(cells, type=pa.string())).to_pylist()
    for before, after in zip(cells, safe, strict=True):
        if before == after:
            assert before is None or not re.match(FORMULA, before) or pd.notna(pd.to_numeric(before, errors="coerce"))
        else:
            assert after == f"'{before}"
            assert re.match(FORMULA, before)


@given(st.lists(TEXT, min_size=1, max_size=8), st.integers(0, 8))
def test_any_names_and_cells_go_through_a_file(tmp_path_factory, cells, cut):
    """Separators, quotes and other signs in the cells, too; the chunks that they were written in leave no trace."""
    folder = tmp_path_factory.mktemp("table")
    table = pa.table({"a": cells, "p": [0.25] * len(cells)})
    for name in ("t.csv", "t.parquet"):
        with table_writer(folder / name, table.schema) as writer:
            for part in (table.slice(0, cut), table.slice(cut)):
                writer.write(part)
        read_back = open_table(folder / name).read(["a"]).column("a")
        expected = table.column("a").combine_chunks()
        assert read_back.to_pylist() == (text_for_spreadsheets(expected) if name == "t.csv" else expected).to_pylist()
