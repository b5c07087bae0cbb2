"""Tables on the disk: what is read right, and what is refused with a word on what to do."""

import gzip

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from sitewise.tables.files import open_table

FRAME = pd.DataFrame({"id": ["007", "=1+2", "a,b"], "age": [50.5, None, 70], "sex": ["f", "m", "f"]})


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.parquet"])
def test_rows_come_back_whatever_the_kind(tmp_path, name):
    path = tmp_path / name
    FRAME.to_parquet(path) if name.endswith("parquet") else FRAME.to_csv(path, index=False)
    table = open_table(path)
    assert table.columns == ("id", "age", "sex")
    assert table.read(["sex", "id"]).to_pydict() == {"sex": ["f", "m", "f"], "id": ["007", "=1+2", "a,b"]}
    assert table.n_rows == (3 if name.endswith("parquet") else None)


def test_chunks_are_the_rows_in_order(tmp_path):
    frame = pd.DataFrame({"x": np.arange(1000), "y": np.arange(1000) * 2})
    frame.to_parquet(tmp_path / "t.parquet")
    chunks = list(open_table(tmp_path / "t.parquet").chunks(["y"], rows=300))
    assert [chunk.num_rows for chunk in chunks] == [300, 300, 300, 100]
    assert pa.Table.from_batches(chunks).column("y").to_pylist() == frame["y"].tolist()


def test_a_long_csv_comes_in_several_chunks(tmp_path, monkeypatch):
    monkeypatch.setattr("sitewise.tables.files.BLOCK_BYTES", 2000)
    frame = pd.DataFrame({"x": np.arange(5000)})
    frame.to_csv(tmp_path / "t.csv", index=False)
    chunks = list(open_table(tmp_path / "t.csv").chunks())
    assert len(chunks) > 5
    assert [int(x) for chunk in chunks for x in chunk.column("x").to_pylist()] == frame["x"].tolist()


def test_quoted_line_breaks_and_quotes_stay_in_their_cells(tmp_path):
    cells = ["a\nb", 'say "x"', " c "]
    pd.DataFrame({"text": cells, "n": [1, 2, 3]}).to_csv(tmp_path / "t.csv", index=False)
    assert open_table(tmp_path / "t.csv").read().column("text").to_pylist() == cells


def test_a_byte_order_mark_is_no_part_of_the_first_name(tmp_path):
    path = write(tmp_path / "t.csv", b"\xef\xbb\xbfid,age\n1,2\n")
    table = open_table(path)
    assert table.columns == ("id", "age")
    assert table.read().to_pydict() == {"id": ["1"], "age": ["2"]}


@pytest.mark.parametrize("before", [1, 9000])
@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
def test_latin_1_is_refused_with_its_line_and_read_when_named(tmp_path, name, before):
    content = ("id,city\n" + "1,Bern\n" * before + "2,Zürich\n").encode("latin-1")
    path = write(tmp_path / name, gzip.compress(content) if name.endswith("gz") else content)
    with pytest.raises(ValueError, match=rf"not UTF-8 text \(first in line {before + 2}\).*--encoding latin-1"):
        open_table(path).read()
    assert open_table(path, encoding="latin-1").read().column("city").to_pylist()[before - 1 :] == ["Bern", "Zürich"]


def test_a_header_in_another_encoding_is_refused_too(tmp_path):
    latin = write(tmp_path / "t.csv", "Größe,y\n1,2\n".encode("latin-1"))
    with pytest.raises(ValueError, match="first in line 1"):
        open_table(latin)
    assert open_table(latin, encoding="latin-1").columns == ("Größe", "y")
    wide = write(tmp_path / "w.csv", "a,b\n1,2\n".encode("utf-16"))
    with pytest.raises(ValueError, match="--encoding utf-16"):
        open_table(wide)
    assert open_table(wide, encoding="utf-16").read().to_pydict() == {"a": ["1"], "b": ["2"]}
    with pytest.raises(ValueError, match="'latim' is not known"):
        open_table(latin, encoding="latim")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"\n", "is empty"),
        (b"a,b\n", r"header \(a, b\) and no rows"),
        (b"a;b;c\n1;2;3\n", "separated by ';', not by ','.*--separator ';'"),
        (b"a\tb\n1\t2\n", "separated by tab"),
        (b"a,a,b\n1,2,3\n", "duplicate column name.*: 'a'"),
        (b"a,b\n1,2\n1,2,3\n", "Expected 2 columns, got 3"),
    ],
)
def test_files_that_are_no_table_are_refused(tmp_path, content, said):
    path = write(tmp_path / "t.csv", content)
    with pytest.raises(ValueError, match=said):
        open_table(path).read()


def test_another_separator_is_read_when_named(tmp_path):
    path = write(tmp_path / "t.csv", "a;b\n1;2\n")
    assert open_table(path, separator=";").read().to_pydict() == {"a": ["1"], "b": ["2"]}
    assert open_table(write(tmp_path / "t.tsv", "a\tb\n1\t2\n")).columns == ("a", "b")


def test_with_a_separator_the_name_may_end_in_anything(tmp_path):
    path = write(tmp_path / "HAM10000_metadata", "a,b\n1,2\n")
    with pytest.raises(ValueError, match="got no suffix"):
        open_table(path)
    assert open_table(path, separator=",").read().to_pydict() == {"a": ["1"], "b": ["2"]}
    with pytest.raises(ValueError, match="save the sheet as CSV"):
        open_table(write(tmp_path / "t.xlsx", "PK"), separator=",")


def test_files_that_are_not_there_or_of_another_kind_are_refused(tmp_path):
    write(tmp_path / "heart.csv", "a,b\n1,2\n")
    with pytest.raises(FileNotFoundError, match=r"did you mean 'heart\.csv'"):
        open_table(tmp_path / "haert.csv")
    with pytest.raises(FileNotFoundError, match="it is a folder"):
        open_table(tmp_path)
    with pytest.raises(ValueError, match="save the sheet as CSV"):
        open_table(write(tmp_path / "t.xlsx", "PK"))
    with pytest.raises(ValueError, match="cannot be read as Parquet"):
        open_table(write(tmp_path / "t.parquet", "no parquet at all"))
    with pytest.raises(ValueError, match="is empty"):
        open_table(write(tmp_path / "e.parquet", ""))
    with pytest.raises(ValueError, match="no column 'agee'; its columns are a, b"):
        open_table(tmp_path / "heart.csv").read(["agee"])


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_the_first_rows_are_the_first_rows(tmp_path, name, monkeypatch):
    monkeypatch.setattr("sitewise.tables.files.BLOCK_BYTES", 500)
    frame = pd.DataFrame({"x": [f"row {number}" for number in range(300)]})
    frame.to_parquet(tmp_path / name) if name.endswith("parquet") else frame.to_csv(tmp_path / name, index=False)
    table = open_table(tmp_path / name)
    for count in (1, 120, 300, 1000):
        assert table.read(at_most=count).column("x").to_pylist() == frame["x"].tolist()[:count]


def test_a_column_has_the_type_it_is_stored_in_and_a_csvs_are_text(tmp_path):
    frame = pd.DataFrame({"n": [1, 2], "level": pd.Categorical(["a", "b"])})
    frame.to_parquet(tmp_path / "t.parquet")
    frame.to_csv(tmp_path / "t.csv", index=False)
    stored, text = open_table(tmp_path / "t.parquet"), open_table(tmp_path / "t.csv")
    assert (stored.type_of("n"), text.type_of("n")) == (pa.int64(), pa.string())
    assert stored.type_of("level") in (pa.string(), pa.large_string())
