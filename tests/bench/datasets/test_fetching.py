"""Downloads: only what was asked for, and only with the right hash. The sources here are folders."""

import hashlib
import re
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import sitewise
from sitewise.bench.datasets import fetching
from sitewise.cli import app, main

FILES = {"a.gz": b"first file", "b.gz": b"second file"}
MD5 = {name: hashlib.md5(data, usedforsecurity=False).hexdigest() for name, data in FILES.items()}


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "source"
    folder.mkdir()
    for name, data in FILES.items():
        (folder / name).write_bytes(data)
    return folder


def fetch(source, folder):
    return fetching.fetch_files(f"{source.as_uri()}/", MD5, folder)


def test_files_come_under_their_names_and_are_not_fetched_again(source, tmp_path):
    files = fetch(source, tmp_path / "new" / "here")
    assert {file.name: file.read_bytes() for file in files} == FILES
    (source / "a.gz").unlink()
    assert fetch(source, tmp_path / "new" / "here") == files


def test_a_wrong_hash_leaves_nothing_behind(source, tmp_path):
    (source / "b.gz").write_bytes(b"second fil")
    with pytest.raises(ConnectionError, match=f"b.gz has the wrong content: expected MD5 {MD5['b.gz']}, got"):
        fetch(source, tmp_path / "here")
    assert [file.name for file in (tmp_path / "here").iterdir()] == ["a.gz"]


def test_a_damaged_file_is_replaced_by_a_right_one_only(source, tmp_path):
    (tmp_path / "a.gz").write_bytes(b"damaged")
    assert fetch(source, tmp_path)[0].read_bytes() == FILES["a.gz"]
    (tmp_path / "a.gz").write_bytes(b"damaged")
    (source / "a.gz").write_bytes(b"wrong too")
    with pytest.raises(ConnectionError):
        fetch(source, tmp_path)
    assert (tmp_path / "a.gz").read_bytes() == b"damaged"


def test_a_source_that_does_not_answer(source, tmp_path):
    (source / "b.gz").unlink()
    with pytest.raises(ConnectionError, match=r"b.gz could not be downloaded .*: try again, or download it by hand"):
        fetch(source, tmp_path / "here")


def test_the_command_fetches_mnist_and_nothing_else(source, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(fetching, "MNIST_SOURCE", f"{source.as_uri()}/")
    monkeypatch.setattr(fetching, "MNIST_MD5", MD5)
    arguments = ["data", "get", "mnist", "--out", str(tmp_path / "mnist")]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    assert result.stdout == f"2 files in {tmp_path / 'mnist'}, each with the hash it should have\n"
    (source / "a.gz").write_bytes(b"wrong")
    (tmp_path / "mnist" / "a.gz").unlink()
    assert CliRunner().invoke(app, arguments).exit_code == 1
    for name, said in (("padchest", "has to be downloaded by hand: https://bimcv"), ("mnits", "did you mean 'mnist'")):
        monkeypatch.setattr(sys, "argv", ["sitewise", "data", "get", name, "--out", str(tmp_path)])
        with pytest.raises(SystemExit) as exit:
            main()
        assert exit.value.code == 2
        assert said in capsys.readouterr().err


def test_one_file_of_the_package_opens_connections():
    """Nothing is downloaded unless `data get` asks for it: no other file can."""
    opening = re.compile(r"urllib\.request|urlopen|import requests|import httpx|http\.client|pretrained=True")
    root = Path(sitewise.__file__).parent
    openers = [str(file.relative_to(root)) for file in root.rglob("*.py") if opening.search(file.read_text("utf-8"))]
    assert openers == ["bench/datasets/fetching.py"]
