"""Small files that would exhaust the memory of a reader are refused before they are parsed, with a short message."""

import json
import os

import pytest
import torch
from writers import make, rewrite

from patience import no_hang
from sitewise.artifacts import Record, folders
from sitewise.artifacts.folders import Folder, read_folder, write_folder
from sitewise.artifacts.packing import unpack

SHORT = 2000  # characters of a message


@pytest.fixture
def saved(tmp_path):
    write_folder(make(0), tmp_path / "site")
    return tmp_path / "site"


def refuse(path, match):
    with no_hang(), pytest.raises(ValueError, match=match) as caught:
        read_folder(path)
    assert len(str(caught.value)) < SHORT
    return str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, '{"a":' * 100_000, "[" * 500 + "]" * 500, '{"a":' * 200 + "1" + "}" * 200],
    ids=["brackets", "objects", "closed", "closed objects"],
)
@pytest.mark.parametrize("name", ["model.json", "model/model.json"])
def test_deep_documents_are_refused(saved, text, name):
    (saved / name).write_text(text)
    refuse(saved, "nested more than|not what was saved|truncated")


def test_a_deep_document_with_the_right_checksum_is_refused(saved):
    nested = json.loads("[" * 80 + "]" * 80)
    rewrite(saved / "model.json", lambda d: d["content"].update(number=nested))
    refuse(saved, "nested more than")


def test_brackets_in_text_do_not_count(tmp_path):
    folder = Folder("Thing", {"text": '["\\' * 1000}, {}, "[" * 1000, {})
    write_folder(folder, tmp_path / "site")
    assert read_folder(tmp_path / "site").content == folder.content


def test_what_could_not_be_read_is_not_written(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"save: .*nested more than"):
        write_folder(Folder("Thing", {"deep": json.loads("[" * 80 + "]" * 80)}, {}, "", {}), tmp_path / "site")
    monkeypatch.setattr(folders, "MOST_BYTES", 1000)
    with pytest.raises(ValueError, match=r"save: .*bytes"):
        write_folder(Folder("Thing", {"long": "x" * 2000}, {}, "", {}), tmp_path / "site")
    assert os.listdir(tmp_path) == []


def test_a_huge_document_is_not_read(saved, monkeypatch):
    with (saved / "model.json").open("r+b") as file:
        file.truncate(2**40)  # takes no space on the disk
    refuse(saved, "bytes")


def test_a_huge_file_of_tensors_is_not_read(saved):
    with (saved / "tensors.safetensors").open("r+b") as file:
        file.truncate(2**40)
    refuse(saved, "not what was saved")


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.update(inside=5),
        lambda d: d.update(inside=["model", "model"]),
        lambda d: d.update(inside=[["model"]]),
        lambda d: d.update(files=[]),
        lambda d: d["files"].update({"model.md": 7}),
        lambda d: d["files"]["model.md"].pop("bytes"),
        lambda d: d["files"]["model.md"].update(bytes="many"),
        lambda d: d["files"]["model.md"].update(sha256=None),
        lambda d: d.update(content=[]),
        lambda d: d.update(card={"a": 1}),
        lambda d: d.update(kind=["x"]),
        lambda d: d.update(versions="1.0"),
        lambda d: d.update(schema=True),
    ],
)
def test_entries_of_another_type_are_named(saved, change):
    rewrite(saved / "model.json", change)
    refuse(saved, "made by another program or is damaged|its schema is")


@pytest.mark.parametrize("value", ["x" * 10**6, ["x"] * 10**5, {"k" * 10**6: 1}])
def test_messages_stay_short_whatever_is_in_the_file(saved, value):
    for entry in ("format", "schema", "kind"):
        other = json.loads((saved / "model.json").read_text())
        (saved / "model.json").write_text(json.dumps({**other, entry: value}))
        refuse(saved, "sitewise|damaged|changed")
        (saved / "model.json").write_text(json.dumps(other))
    rewrite(saved / "model.json", lambda d: d["files"].update({str(value): {"bytes": 0, "sha256": ""}}))
    refuse(saved, "other files than expected")


@pytest.mark.parametrize("literal", ["NaN", "Infinity", "1" * 5000])
def test_numbers_that_json_does_not_have_are_refused(saved, literal):
    text = (saved / "model.json").read_text().replace('"number": 0', f'"number": {literal}')
    (saved / "model.json").write_text(text)
    refuse(saved, "damaged")


@pytest.mark.parametrize(
    "entry",
    [
        {"$": "tensor", "shape": [10**9, 10**9], "dtype": "float64"},
        {"$": "tensor", "shape": [10**5, 10**5], "dtype": "float64"},
        {"$": "tensor", "shape": [-1], "dtype": "float64"},
        {"$": "tensor", "shape": [2], "dtype": "nn"},
        {"$": "tensor", "shape": "ab", "dtype": "float64"},
        {"$": "array", "dtype": "<U500000000", "shape": [1], "items": ["a"]},
        {"$": "array", "dtype": "(100000,100000)f8", "shape": [1], "items": [1]},
        {"$": "array", "dtype": "M8[s]", "shape": [1], "items": [1]},
        {"$": "array", "dtype": "<f8", "shape": [10**12], "items": [1]},
        {"$": "set", "items": [[1]]},
        {"$": "pairs", "items": [[[1], 2]]},
        {"$": "float", "value": [1]},
        {"$": ["tensor"]},
        {"$": "method", "name": "x", "of": 3},
        {"$": "same", "as": "nowhere"},
        {"$": "record", "of": "Folder", "fields": [1]},
        {"$": "record", "of": ["Folder"], "fields": {}},
    ],
)
def test_entries_that_ask_for_too_much_or_make_no_sense_are_named(entry):
    tensors = {} if entry["$"] != "tensor" else {"part/here": torch.zeros(2)}
    with pytest.raises(ValueError, match="part/here") as caught:
        unpack({"part": {"here": entry}}, tensors, {"Folder": Record(Folder)})
    assert len(str(caught.value)) < SHORT


def test_many_problems_are_listed_in_a_short_message():
    tensors = {f"t{i}" * 50: torch.zeros(1) for i in range(5000)}
    with pytest.raises(ValueError, match="5000 problems") as caught:
        unpack({}, tensors, {})
    assert len(str(caught.value)) < 20_000


def test_folders_nested_without_end_are_refused(tmp_path):
    folder = make(0)
    for _ in range(40):
        folder = Folder("Thing", {}, {}, "", {}, {"m": folder})
    with pytest.raises(ValueError, match="folders inside"):
        write_folder(folder, tmp_path / "site")
    assert os.listdir(tmp_path) == []
