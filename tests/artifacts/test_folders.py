"""Folders of saved models: what is written is read back, damage is named, and nothing is ever half-written."""

import errno
import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from writers import without_exchange

from sitewise.artifacts import folders
from sitewise.artifacts.folders import SCHEMA, Folder, read_folder, write_folder

VERSIONS = {"sitewise": "0.1.0"}


def make(number=0, inside=True):
    inner = {"model": make(number + 100, inside=False)} if inside else {}
    tensors = {"weights": torch.arange(5.0) + number, "few": torch.zeros(0, 3)}
    return Folder("Thing", {"number": number, "text": "ä|\n"}, tensors, f"# Card {number}\n", VERSIONS, inner)


def same(one, other):
    assert (one.kind, one.content, one.card, one.versions) == (other.kind, other.content, other.card, other.versions)
    assert one.tensors.keys() == other.tensors.keys()
    assert all(torch.equal(one.tensors[name], other.tensors[name]) for name in one.tensors)
    assert one.inside.keys() == other.inside.keys()
    for name in one.inside:
        same(one.inside[name], other.inside[name])


def files_below(path):
    return sorted(file for file in path.rglob("*") if file.is_file())


def rewrite(path, change):
    """Change `model.json` as a person would who also corrects its checksum."""
    document = json.loads(path.read_text())
    change(document)
    document["sha256"] = ""
    text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
    digest = hashlib.sha256(text.encode()).hexdigest()
    path.write_text(text.replace('"sha256": ""', f'"sha256": "{digest}"', 1))


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "site"
    write_folder(make(), path)
    return path


def test_a_folder_is_read_as_it_was_written(saved):
    same(read_folder(saved), make())
    same(read_folder(saved / "model"), make(100, inside=False))
    same(read_folder(str(saved) + "/"), make())
    assert (saved / "model.md").read_text() == "# Card 0\n"


def test_two_writings_have_the_same_bytes(saved, tmp_path):
    write_folder(make(), tmp_path / "again")
    for file in files_below(saved):
        assert file.read_bytes() == (tmp_path / "again" / file.relative_to(saved)).read_bytes()


def test_parents_are_made_and_another_model_is_replaced(saved, tmp_path):
    write_folder(make(7), saved)
    same(read_folder(saved), make(7))
    write_folder(make(8, inside=False), saved)
    assert [file.name for file in files_below(saved)] == ["model.json", "model.md", "tensors.safetensors"]
    write_folder(make(9), tmp_path / "a" / "b")
    same(read_folder(tmp_path / "a" / "b"), make(9))
    (tmp_path / "empty").mkdir()
    write_folder(make(9), tmp_path / "empty")
    assert sorted(os.listdir(tmp_path)) == ["a", "empty", "site"]


def test_a_link_to_a_model_stays_a_link(saved, tmp_path):
    (tmp_path / "current").symlink_to(saved)
    write_folder(make(7), tmp_path / "current")
    assert (tmp_path / "current").is_symlink()
    same(read_folder(saved), make(7))


def test_what_is_not_a_saved_model_is_never_replaced(saved, tmp_path):
    (saved / "model" / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"model/notes\.txt"):
        write_folder(make(7), saved)
    same(read_folder(saved), make())
    other = tmp_path / "data"
    other.mkdir()
    (other / "model.md").write_text("somebody's own page")
    with pytest.raises(FileExistsError, match=r"model\.md"):
        write_folder(make(), other)
    with pytest.raises(FileExistsError, match="is a file"):
        write_folder(make(), other / "model.md")
    assert (other / "model.md").read_text() == "somebody's own page"


def test_every_flipped_bit_is_noticed(saved):
    for file in files_below(saved):
        content = file.read_bytes()
        for place in range(0, len(content), max(1, len(content) // 150)):
            damaged = bytearray(content)
            damaged[place] ^= 1 << place % 8
            file.write_bytes(damaged)
            with pytest.raises(ValueError, match=r"again|sitewise"):
                read_folder(saved)
        file.write_bytes(content)
    same(read_folder(saved), make())


def test_every_truncated_file_is_noticed(saved):
    for file in files_below(saved):
        content = file.read_bytes()
        for length in (0, 1, len(content) // 2, len(content) - 1):
            file.write_bytes(content[:length])
            with pytest.raises(ValueError, match=r"truncated"):
                read_folder(saved)
        file.write_bytes(content)


def test_every_missing_file_is_named_and_all_at_once(saved):
    for file in files_below(saved):
        content = file.read_bytes()
        file.unlink()
        with pytest.raises(ValueError, match=file.name):
            read_folder(saved)
        file.write_bytes(content)
    (saved / "model.md").unlink()
    (saved / "tensors.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match="2 problems") as caught:
        read_folder(saved)
    assert "model.md is missing" in str(caught.value)
    assert "tensors.safetensors is truncated (0 of" in str(caught.value)


def test_a_newer_schema_says_what_to_install(saved):
    rewrite(saved / "model.json", lambda d: d.update(schema=SCHEMA + 1, versions={"sitewise": "9.1"}))
    with pytest.raises(ValueError, match=r"newer sitewise \(9.1; its schema is 2.*pip install -U sitewise"):
        read_folder(saved)
    for odd in (0, "1", None):
        rewrite(saved / "model.json", lambda d, odd=odd: d.update(schema=odd))
        with pytest.raises(ValueError, match="its schema is"):
            read_folder(saved)


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d["inside"].append("../site"),
        lambda d: d["inside"].clear(),
        lambda d: d["files"].update({"../../secret": {"bytes": 0, "sha256": ""}}),
    ],
)
def test_other_files_than_expected_are_not_looked_at(saved, change):
    rewrite(saved / "model.json", change)
    with pytest.raises(ValueError, match="names other files than expected"):
        read_folder(saved)


def test_something_else_is_called_what_it_is(saved, tmp_path):
    with pytest.raises(FileNotFoundError, match="did you mean 'site'"):
        read_folder(tmp_path / "sites")
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        read_folder(tmp_path / "no" / "where")
    with pytest.raises(ValueError, match=f"is a file.*give {saved}"):
        read_folder(saved / "model.json")
    with pytest.raises(ValueError, match=r"holds no model.json.*\(it holds site\)"):
        read_folder(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    for text, word in (('{"weights": 1}', "format is None"), ("[1]", "format is 'list'"), ("\xff", "truncated")):
        (other / "model.json").write_text(text, encoding="latin-1")
        with pytest.raises(ValueError, match=word):
            read_folder(other)


class Stop(KeyboardInterrupt):
    """Somebody presses Ctrl-C."""


@pytest.mark.parametrize("exchanging", [True, False])
@pytest.mark.parametrize(
    ("owner", "call"), [(os, "fsync"), (Path, "rename"), (Path, "replace"), (Path, "mkdir"), (os, "fsencode")]
)
@pytest.mark.parametrize("error", [Stop(), OSError(errno.ENOSPC, "No space left on device")])
@pytest.mark.parametrize("replace", [True, False])
def test_whatever_interrupts_nothing_is_half_written(tmp_path, monkeypatch, owner, call, exchanging, error, replace):
    """Fail at the first, second, ... call of something until a writing gets through (`fsencode`: at the exchange)."""
    place = tmp_path / "site"
    if not exchanging:
        without_exchange(monkeypatch)
    original = getattr(owner, call)
    for allowed in range(100):
        if replace:
            write_folder(make(), place)
        left = [allowed]

        def failing(*arguments, left=left, **options):
            left[0] -= 1
            if left[0] == -1:  # once: taking back must work
                raise error
            return original(*arguments, **options)

        with monkeypatch.context() as patch, suppress(Stop, OSError):
            patch.setattr(owner, call, failing)
            write_folder(make(1), place)
        if left[0] >= 0:
            break
        if call == "fsync" and place.exists() and read_folder(place).content["number"] == 1:
            continue  # the new one was in its place, whole, and only not yet said to be durable
        if replace:
            same(read_folder(place), make())
        assert os.listdir(tmp_path) == (["site"] if replace else [])
    used = {"rename": replace and not exchanging, "replace": not replace, "fsencode": replace and exchanging}
    assert used.get(call, True) <= allowed < 99
    same(read_folder(place), make(1))
    assert os.listdir(tmp_path) == ["site"]


def test_a_full_disk_and_a_forbidden_folder_say_so(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(folders.os, "fsync", full)
        with pytest.raises(OSError, match=r"could not be written.*No space left.*nothing was changed"):
            write_folder(make(), tmp_path / "site")

    def forbidden(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "mkdir", forbidden)
        with pytest.raises(PermissionError, match=r"could not be written.*Permission denied"):
            write_folder(make(), tmp_path / "site")
    assert os.listdir(tmp_path) == []


def test_a_file_that_the_system_cannot_read_is_named(tmp_path):
    (tmp_path / "model.json").symlink_to("/proc/self/mem")  # whose first page nobody can read
    with pytest.raises(OSError, match=r"load: .* could not be read \(Input/output error\)"):
        read_folder(tmp_path)
