"""What must hold for every command that reads a table or writes a file, tried on each of them."""

import os
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.main import get_command

from sitewise.cli import app, main


def table(n=60):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, n)
    p = 1 / (1 + np.exp(1 - 2 * y - rng.normal(size=n)))
    return pd.DataFrame({"hospital": np.arange(n) % 2, "y": y, "age": rng.integers(40, 80, n), "p0": 1 - p, "p1": p})


def leaves(command, path=()):
    """Every command that has no commands below it, with the words that call it."""
    for name, below in getattr(command, "commands", {}).items():
        yield from leaves(below, (*path, name))
    if not hasattr(command, "commands"):
        yield path, command


COMMANDS = {" ".join(path): command for path, command in leaves(get_command(app))}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a table, a model and a site."""
    folder = tmp_path_factory.mktemp("place")
    table().to_csv(folder / "good.csv", index=False)
    roles = ("--target", "y", "--site", "hospital", "--confounder", "age", "--proba", "p0,p1")
    assert run("fit", folder / "good.csv", *roles, "--out", folder / "model", "--quiet") == 0
    assert run("adapt", folder / "model", folder / "good.csv", "--site", "1", "--out", folder / "site", "--quiet") == 0
    return folder


def run(*words):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["sitewise", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            main()
    return end.value.code or 0


@pytest.fixture
def refused(capsys):
    """What a command says that ends with 2 and one message."""

    def call(*words):
        code, said = run(*words), capsys.readouterr().err
        assert code == 2, said
        assert "Traceback" not in said
        assert said.count("sitewise: ") == 1 or "Usage:" in said
        return said

    return call


def calls(place, data, out):
    """Every command that writes to --out, as it would be called."""
    return {
        "init": ("init", data, "--out", out / "roles.toml"),
        "fit": ("fit", data, "--target", "y", "--confounder", "age", "--proba", "p0,p1", "--out", out / "model"),
        "adapt": ("adapt", place / "model", data, "--site", "1", "--out", out / "site"),
        "predict": ("predict", place / "site", data, "--site", "1", "--out", out / "p.csv"),
        "report": ("report", place / "site", "--out", out / "r.html"),
        "export": ("export", place / "site", "--out", out / "m.onnx"),
    }


READERS = ("init", "fit", "adapt", "predict")
WRITERS = (*READERS, "report", "export")
GOOD = table().to_csv(index=False)
FILES = {
    "empty": (b"", "is empty"),
    "header only": (GOOD.splitlines(keepends=True)[0].encode(), "and no rows"),
    "header without its line's end": (GOOD.splitlines()[0].encode(), "and no rows"),
    "semicolons": (GOOD.replace(",", ";").encode(), "separated by ';'"),
    "latin-1": (GOOD.replace("hospital", "hôpital").encode("latin-1"), "--encoding latin-1"),
    "utf-16": (GOOD.encode("utf-16"), "--encoding utf-16"),
    "no text": (b"\x00\x01\x02", "does not hold text"),
    "ragged": (GOOD.encode() + b"1,2\n", "Expected 5 columns, got 2"),
}


@pytest.mark.parametrize("command", READERS)
@pytest.mark.parametrize("name", FILES)
def test_files_that_are_no_table(refused, place, tmp_path, command, name):
    content, expected = FILES[name]
    data = tmp_path / "t.csv"
    data.write_bytes(content)
    said = refused(*calls(place, data, tmp_path)[command])
    assert expected in said
    assert str(data) in said
    assert os.listdir(tmp_path) == ["t.csv"]


@pytest.mark.parametrize("command", READERS)
def test_a_file_that_is_not_there(refused, place, tmp_path, command):
    said = refused(*calls(place, place / "god.csv", tmp_path)[command])
    assert "there is no file" in said
    assert "did you mean 'good.csv'?" in said


@pytest.mark.parametrize("command", ["fit", "adapt", "predict"])
@pytest.mark.parametrize(
    ("column", "value", "expected"),
    [
        ("p1", "", "expected a probability, got nothing in row 3"),
        ("p1", "NaN", "expected a probability, got nothing in row 3"),
        ("p1", "0.123", "must sum to one"),
        ("p1", "-1", "must lie in [0, 1], got -1 in row 3"),
        ("age", "old", "expected a number, got 'old' in row 3"),
        ("age", "=1+1", "expected a number, got '=1+1' in row 3"),
    ],
)
def test_cells_that_cannot_be_meant(refused, place, tmp_path, command, column, value, expected):
    frame = table().astype(object)
    frame.loc[3, column] = value
    frame.to_csv(tmp_path / "t.csv", index=False)
    said = refused(*calls(place, tmp_path / "t.csv", tmp_path)[command])
    assert expected in said
    assert f"column{'s' if 'sum' in expected else ''} '" in said
    assert os.listdir(tmp_path) == ["t.csv"]


def test_a_byte_order_mark_changes_nothing(place, tmp_path):
    (tmp_path / "t.csv").write_bytes(b"\xef\xbb\xbf" + GOOD.encode())
    for name, data in (("p.csv", tmp_path / "t.csv"), ("q.csv", place / "good.csv")):
        assert run("predict", place / "site", data, "--site", "1", "--out", tmp_path / name, "--quiet") == 0
    assert (tmp_path / "p.csv").read_bytes() == (tmp_path / "q.csv").read_bytes()


@pytest.mark.parametrize("command", WRITERS)
def test_what_is_there_stays_unless_forced(refused, place, tmp_path, command):
    words = calls(place, place / "good.csv", tmp_path)[command]
    out = words[-1]
    for target in (out, out / "inside") if command in ("fit", "adapt") else (out,):
        target.mkdir() if target is not out or command in ("fit", "adapt") else target.write_text("mine")
    assert f"{out} exists already: choose another --out, or replace it with --force" in refused(*words)


@pytest.mark.parametrize("command", WRITERS)
def test_a_read_only_folder_is_reported_before_the_work_begins(refused, place, tmp_path, monkeypatch, command):
    monkeypatch.setattr(os, "access", lambda path, mode, **_: not (mode & os.W_OK and Path(path) == tmp_path))
    said = refused(*calls(place, place / "good.csv", tmp_path)[command])
    assert f"the folder {tmp_path} is read-only for you; choose another --out" in said


@pytest.mark.parametrize("command", ["adapt", "predict", "report", "export"])
def test_a_folder_that_is_no_model(refused, place, tmp_path, command):
    folder = tmp_path / "folder"
    folder.mkdir()
    name, _, *rest = calls(place, place / "good.csv", tmp_path)[command]
    assert "holds no model.json" in refused(name, folder, *rest)
    assert "there is no folder" in refused(name, tmp_path / "foldr", *rest)
    assert "is a file" in refused(name, place / "good.csv", *rest)
    assert os.listdir(tmp_path) == ["folder"]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_typo_in_any_flag_proposes_the_flag(refused, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    flags = {flag for option in COMMANDS[command].params for flag in option.opts if flag.startswith("--")}
    for flag in flags:
        typo = flag[:-1] + flag[-2:][::-1] + flag[-1]
        assert typo not in flags
        said = refused(*command.split(), typo)
        assert f"No such option: {typo}" in said
        assert flag in said.replace(typo, "")
    assert not os.listdir(tmp_path)


def test_a_typo_in_a_command_proposes_the_command(refused):
    assert "Did you mean 'adapt'" in refused("adpat")
    assert "Did you mean 'list'" in refused("data", "lst")
