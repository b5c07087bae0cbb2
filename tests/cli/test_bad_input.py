"""Wrong input, one by one: exit code 2 and one message that says where and what to do. Nothing is left behind."""

import gzip
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sitewise.cli import main


def table(n=40):
    rng = np.random.default_rng(0)
    p = rng.random(n).round(3)
    return pd.DataFrame(
        {
            "hospital": np.arange(n) % 2,
            "y": rng.integers(0, 2, n),
            "age": rng.integers(40, 80, n),
            "bp": rng.normal(120, 9, n).round(1),
            "p0": 1 - p,
            "p1": p,
        }
    )


FIT = ("--target", "y", "--site", "hospital", "--confounder", "age")
FEATURES = (*FIT, "--features", "bp")
PROBA = (*FIT, "--proba", "p0,p1")


@pytest.fixture
def refused(monkeypatch, capsys, tmp_path):
    """What a command says that ends with exit code 2 and leaves the folder as it was."""

    def call(*arguments):
        before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
        monkeypatch.setattr(sys, "argv", ["sitewise", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        said = capsys.readouterr()
        assert end.value.code == 2, said
        assert said.err.startswith("sitewise: ") or "Usage:" in said.err
        assert "Traceback" not in said.err
        assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
        return said.err

    return call


@pytest.fixture
def good(tmp_path):
    path = tmp_path / "good.csv"
    table().to_csv(path, index=False)
    return path


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_no_such_file(refused, good, tmp_path):
    assert "did you mean 'good.csv'?" in refused("fit", tmp_path / "god.csv", *FEATURES, "--out", tmp_path / "m")
    assert "there is no file" in refused("init", tmp_path / "nothing.parquet")
    said = refused("fit", good, "--roles", tmp_path / "no.toml", "--out", tmp_path / "m")
    assert "there is no file" in said


def test_bom_and_semicolons_are_read_when_said(tmp_path, monkeypatch, capsys):
    path = tmp_path / "t.csv"
    path.write_bytes(b"\xef\xbb\xbf" + table().to_csv(index=False, sep=";").encode())
    monkeypatch.setattr(sys, "argv", ["sitewise", "init", str(path), "--separator", ";"])
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code
    assert 'site = "hospital"' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--target", "yy", "--features", "bp"), "no column 'yy'; did you mean 'y'?"),
        (("--target", "y", "--site", "hospitle", "--features", "bp"), "did you mean 'hospital'?"),
        (("--target", "y", "--features", "bp,bpp"), "no column 'bpp'; did you mean 'bp'?"),
        (("--target", "y", "--features", "bp", "--confounder", "agee"), "did you mean 'age'?"),
        (("--features", "bp"), "--target"),
        (("--target", "y", "--features", "bp", "--proba", "p0,p1"), "one kind of input"),
        (("--target", "y", "--features", "bp", "--confounder", "bp"), "'bp' has two roles"),
        (("--target", "y", "--features", "bp", "--categorical", "p0"), "neither a feature nor a confounder"),
        (("--target", "y", "--features", "bp", "--classes", "0,2"), "expected one of 0, 2, got '1'"),
        ((*FEATURES, "--leave-out", "5"), "no rows of the site '5'"),
        ((*FEATURES, "--validation-site", "5"), "'5'"),
        ((*FEATURES, "--backbone", "mpl"), "mlp"),
        (("--target", "y", "--image", "bp"), "cannot be read"),
    ],
)
def test_roles_that_cannot_be(refused, good, tmp_path, options, said):
    assert said in refused("fit", good, *options, "--out", tmp_path / "m")


@pytest.mark.parametrize(
    ("column", "value", "options", "said"),
    [
        ("bp", "high", FEATURES, "column 'bp': expected a number, got 'high' in row 3"),
        ("age", "old", FEATURES, "column 'age': expected a number, got 'old' in row 3"),
        ("y", "l", FEATURES, "column 'y': expected a number as in most rows, got 'l' in row 3"),
        ("y", None, FEATURES, "column 'y': the label is missing in row 3"),
        ("p1", None, PROBA, "column 'p1': expected a probability, got nothing in row 3"),
        ("p1", "NaN", PROBA, "column 'p1': expected a probability, got nothing in row 3"),
        ("p1", 1.5, PROBA, "must lie in [0, 1], got 1.5 in row 3"),
        ("p1", 0.0, PROBA, "must sum to one"),
    ],
)
def test_cells_that_cannot_be(refused, tmp_path, column, value, options, said):
    frame = table().astype({column: object})
    frame.loc[3, column] = value
    path = tmp_path / "t.csv"
    frame.to_csv(path, index=False)
    message = refused("fit", path, *options, "--out", tmp_path / "m")
    assert said in message
    assert str(path) in message


def test_a_column_that_a_model_needs_is_named(refused, good, tmp_path, monkeypatch):
    folder = tmp_path / "model"
    train(monkeypatch, good, folder)
    table().drop(columns="p1").rename(columns={"p0": "P0"}).to_csv(tmp_path / "new.csv", index=False)
    said = refused("adapt", folder, tmp_path / "new.csv", "--out", tmp_path / "site", "--site", "1")
    assert "no column 'p0'; did you mean 'P0'?" in said
    assert "no column 'p1'" in said


NESTED = {
    "list": pa.list_(pa.float64()),
    "struct": pa.struct([("a", pa.int64())]),
    "map": pa.map_(pa.string(), pa.int64()),
    "binary": pa.binary(),
    "fixed binary": pa.binary(2),
    "list of text": pa.list_(pa.string()),
}
CELLS = {
    "list": [1.0],
    "struct": {"a": 1},
    "map": [("a", 1)],
    "binary": b"ab",
    "fixed binary": b"ab",
    "list of text": ["a"],
}


@pytest.mark.parametrize("kind", NESTED)
@pytest.mark.parametrize("column", ["bp", "age", "y", "hospital", "id"])
def test_columns_of_lists_or_bytes_are_named(refused, tmp_path, kind, column):
    """A Parquet file may hold in one cell what is no one value."""
    frame = table().assign(id=range(40))
    odd = pa.array([CELLS[kind]] * 40, type=NESTED[kind])
    rows = pa.Table.from_pandas(frame)
    rows = rows.set_column(rows.column_names.index(column), column, odd)
    pq.write_table(rows, tmp_path / "t.parquet")
    options = (*FEATURES, "--id", "id")
    said = refused("fit", tmp_path / "t.parquet", *options, "--out", tmp_path / "m")
    assert f"column {column!r} holds" in said
    if kind != "binary":
        said = refused("plan", tmp_path / "t.parquet", "--target", "y", "--proba", "p0,p1", "--confounder", column)
        assert f"column {column!r}" in said


def test_a_table_with_a_column_of_lists_is_proposed_without_it(tmp_path, monkeypatch, capsys):
    rows = pa.Table.from_pandas(table()).append_column("scan", pa.array([[1.0]] * 40))
    pq.write_table(rows, tmp_path / "t.parquet")
    run(monkeypatch, "init", tmp_path / "t.parquet")
    assert "scan (" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["list", "binary"])
def test_lists_where_a_model_expects_numbers_are_named(refused, good, tmp_path, monkeypatch, kind):
    train(monkeypatch, good, tmp_path / "model")
    run(monkeypatch, "adapt", tmp_path / "model", good, "--site", "1", "--out", tmp_path / "site", "--quiet")
    rows = pa.Table.from_pandas(table().assign(hospital=1, time=range(40)))
    for column in ("p0", "age", "hospital", "time"):
        odd = rows.set_column(rows.column_names.index(column), column, pa.array([CELLS[kind]] * 40, NESTED[kind]))
        pq.write_table(odd, tmp_path / "new.parquet")
        new = (tmp_path / "new.parquet", "--site", "1") if column == "hospital" else (tmp_path / "new.parquet",)
        named = f"column {column!r} holds"
        if column != "time":
            assert named in refused("adapt", tmp_path / "model", *new, "--out", tmp_path / "other")
            assert named in refused("predict", tmp_path / "site", *new, "--out", tmp_path / "p.csv")
        else:
            assert named in refused("predict", tmp_path / "site", *new, "--id", "time", "--out", tmp_path / "p.csv")
        watching = ("--time", "time", "--window", "20", "--out", tmp_path / "m.png")
        assert named in refused("monitor", tmp_path / "site", *new, *watching)


@pytest.mark.parametrize("encoding", ["base64", "rot13", "hex", "zlib", "bz2", "uu", "quopri"])
def test_an_encoding_that_is_none_of_text_is_refused(refused, good, tmp_path, encoding):
    said = refused("fit", good, *FEATURES, "--encoding", encoding, "--out", tmp_path / "m")
    assert f"--encoding {encoding!r} is not known; try utf-8" in said


@pytest.mark.parametrize("width", ["1e-300", "1e-320", "1e-30", "0", "-1", "nan", "inf"])
def test_a_width_that_no_site_reaches(refused, good, monkeypatch, capsys, width):
    arguments = ("plan", good, "--target", "y", "--proba", "p0,p1", "--width", width, "--simulations", "0")
    monkeypatch.setattr(sys, "argv", ["sitewise", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        main()
    said = capsys.readouterr()
    assert end.value.code in (0, None, 2), said
    assert "Traceback" not in said.err


@pytest.mark.parametrize("cut", [40, 200, -4, -1])
@pytest.mark.parametrize("command", ["fit", "adapt", "predict"])
def test_a_truncated_gzip_is_the_fault_of_what_is_read(refused, good, tmp_path, monkeypatch, cut, command):
    train(monkeypatch, good, tmp_path / "model")
    run(monkeypatch, "adapt", tmp_path / "model", good, "--site", "1", "--out", tmp_path / "site", "--quiet")
    short = write(tmp_path / "t.csv.gz", gzip.compress(good.read_bytes())[:cut])
    said = {
        "fit": lambda: refused("fit", short, *PROBA, "--out", tmp_path / "m"),
        "adapt": lambda: refused("adapt", tmp_path / "model", short, "--site", "1", "--out", tmp_path / "s"),
        "predict": lambda: refused("predict", tmp_path / "site", short, "--site", "1", "--out", tmp_path / "p.csv"),
    }[command]()
    assert f"{short} cannot be read as CSV" in said
    assert "could not be written" not in said


def test_a_parquet_file_with_damaged_pages_is_named(refused, good, tmp_path, monkeypatch):
    train(monkeypatch, good, tmp_path / "model")
    run(monkeypatch, "adapt", tmp_path / "model", good, "--site", "1", "--out", tmp_path / "site", "--quiet")
    path = tmp_path / "t.parquet"
    table(4000).to_parquet(path, compression="snappy")
    content = bytearray(path.read_bytes())
    content[100:3000] = bytes(2900)
    path.write_bytes(content)
    said = refused("predict", tmp_path / "site", path, "--site", "1", "--out", tmp_path / "p.csv")
    assert f"{path} cannot be read as Parquet" in said


def test_a_blank_first_line_is_no_empty_file(refused, good, tmp_path):
    path = write(tmp_path / "t.csv", "\n\n" + good.read_text())
    assert "begins with a blank line" in refused("fit", path, *FEATURES, "--out", tmp_path / "m")
    path = write(tmp_path / "t.csv", "\n\n\n")
    assert "is empty" in refused("fit", path, *FEATURES, "--out", tmp_path / "m")


@pytest.mark.parametrize("column", ["bp", "age"])
def test_a_number_beyond_all_measures_is_named(refused, good, tmp_path, monkeypatch, column):
    frame = table().astype({column: float})
    frame.loc[3, column] = 1e308
    frame.to_csv(tmp_path / "t.csv", index=False)
    said = refused("fit", tmp_path / "t.csv", *FEATURES, "--out", tmp_path / "m")
    assert f"column {column!r}: 1e+308 in row 3" in said
    assert "too large" in said


def test_a_file_name_that_is_not_utf_8(refused, good, tmp_path):
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/t\xff.csv"))
    path.write_bytes(good.read_bytes())
    said = refused("fit", path, *FEATURES, "--out", tmp_path / "m")
    assert "its name is not UTF-8" in said
    path.unlink()
    out = Path(os.fsdecode(os.fsencode(tmp_path) + b"/t\xff"))
    assert "its name is not UTF-8" in refused("fit", good, *FEATURES, "--out", out)


@pytest.mark.parametrize(
    "error", [RuntimeError("a\nb"), KeyError("x"), RecursionError(), MemoryError(), ZeroDivisionError("0")]
)
def test_a_failure_of_ours_is_one_sentence_and_exit_code_1(good, tmp_path, monkeypatch, capsys, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr("sitewise.tables.files.open_table", fail)
    monkeypatch.setattr(sys, "argv", ["sitewise", "fit", str(good), *FEATURES, "--out", str(tmp_path / "m")])
    with pytest.raises(SystemExit) as end:
        main()
    said = capsys.readouterr().err
    assert end.value.code == 1
    assert type(error).__name__ in said
    assert "Please report it" in said
    assert len(said.splitlines()) == 1
    monkeypatch.setenv("SITEWISE_TRACEBACK", "1")
    with pytest.raises(SystemExit):
        main()
    assert "Traceback" in capsys.readouterr().err


def test_folders_that_are_no_model(refused, good, tmp_path, monkeypatch):
    folder = tmp_path / "folder"
    folder.mkdir()
    write(folder / "notes.txt", "x")
    for command in ("adapt", "predict"):
        out = tmp_path / ("site" if command == "adapt" else "p.csv")
        assert "holds no model.json" in refused(command, folder, good, "--out", out)
        assert "there is no folder" in refused(command, tmp_path / "foldr", good, "--out", out)
    assert "is a file" in refused("report", good, "--out", tmp_path / "r.html")
    train(monkeypatch, good, tmp_path / "model")
    said = refused("predict", tmp_path / "model", good, "--out", tmp_path / "p.csv")
    assert "sitewise adapt" in said
    assert "sitewise adapt" in refused("report", tmp_path / "model", "--out", tmp_path / "r.html")


def test_nothing_that_exists_is_replaced_unless_forced(refused, good, tmp_path, monkeypatch, capsys):
    model = tmp_path / "model"
    model.mkdir()
    write(model / "diary.txt", "mine")
    assert "--force" in refused("fit", good, *PROBA, "--out", model)
    assert "diary.txt" in refused("fit", good, *PROBA, "--out", model, "--force")
    roles = write(tmp_path / "roles.toml", "old")
    assert "--force" in refused("init", good, "--out", roles)
    run(monkeypatch, "init", good, "--out", roles, "--force")
    assert 'target = "y"' in roles.read_text()
    curve = write(tmp_path / "curve.png", "old")
    planned = ("plan", good, "--target", "y", "--proba", "p0,p1", "--width", "0.3", "--simulations", "0")
    assert "--force" in refused(*planned, "--out", curve)
    run(monkeypatch, *planned, "--out", curve, "--force")
    assert curve.read_bytes().startswith(b"\x89PNG")
    assert "must end in .csv or .parquet" in refused("predict", model, good, "--out", tmp_path / "p.xlsx")
    assert "is the input table" in refused("predict", model, good, "--out", good, "--force")
    assert "which is a file" in refused("fit", good, *PROBA, "--out", good / "model")


def test_a_full_disk_is_said_and_leaves_nothing(refused, good, tmp_path, monkeypatch):
    model, site = tmp_path / "model", tmp_path / "site"
    train(monkeypatch, good, model)
    run(monkeypatch, "adapt", model, good, "--site", "1", "--out", site, "--quiet")

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.replace", full)  # every output is written beside its path, and then moved there
    for arguments in (
        ("fit", good, *PROBA, "--out", tmp_path / "other"),
        ("adapt", model, good, "--site", "1", "--out", tmp_path / "other"),
        ("predict", site, good, "--site", "1", "--out", tmp_path / "p.csv"),
        ("report", site, "--out", tmp_path / "r.html"),
        ("export", site, "--out", tmp_path / "m.onnx"),
        ("init", good, "--out", tmp_path / "r.toml"),
    ):
        said = refused(*arguments)
        assert "could not be written (No space left on device); nothing was changed" in said


def test_help_is_quick_because_nothing_heavy_is_imported():
    code = (
        "import sys; from typer.testing import CliRunner; from sitewise.cli import app; "
        "assert CliRunner().invoke(app, ['--help']).exit_code == 0; "
        "print(sorted({'torch', 'pandas', 'numpy', 'sklearn', 'scipy', 'pyarrow', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["sitewise", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code


def train(monkeypatch, data, folder):
    run(monkeypatch, "fit", data, *PROBA, "--out", folder, "--quiet")
