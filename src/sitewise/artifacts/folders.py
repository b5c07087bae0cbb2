"""Folders of a saved model: `model.json` with checksums of everything, tensors, a card, and other models inside.

A folder is written whole beside its place, made durable, and only then put there. No file can run code: JSON and
safetensors hold data only.
"""

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from sitewise.arrays import Problems, did_you_mean

FORMAT = "sitewise model"
SCHEMA = 1  # raise it when a folder of today could no longer be read
DOCUMENT, TENSORS, CARD = "model.json", "tensors.safetensors", "model.md"
ENTRIES = {"kind", "versions", "files", "inside", "card", "content"}
OWN_CHECKSUM = '"sha256": "{}"'

NO_PATH = "load: there is no folder {path}{meant}"
NO_FOLDER = "load: {path} is a file, expected the folder that save() made{hint}"
NO_MODEL = "load: {path} holds no {document}, so it is no saved model (it holds {found}): give the folder save() made"
UNREADABLE = "load: {path} is truncated or damaged ({error}): copy the folder again, or save the model again"
CHANGED = "load: {path} was changed after it was saved: copy the folder again, or save the model again"
NEWER = (
    "load: {path} was written by a newer sitewise ({version}; its schema is {schema}, this version reads up to "
    "{known}): pip install -U sitewise"
)
OTHER = "load: {path} is not a model of sitewise: its format is {format!r}, expected {expected!r}"
AGAIN = "copy the folder again, or save the model again"
IN_THE_WAY = "save: {path} {what}: choose another path, or move it away; nothing was written"
NOT_WRITTEN = "save: {path} could not be written ({reason}); nothing was changed there"


@dataclass(frozen=True)
class Folder:
    """What a folder holds: its kind, JSON content, tensors by name, card, versions of libraries, folders inside."""

    kind: str
    content: dict[str, Any]
    tensors: dict[str, Tensor]
    card: str
    versions: dict[str, str]
    inside: "dict[str, Folder]" = field(default_factory=dict)


def write_folder(folder: Folder, path: str | os.PathLike[str]) -> None:
    """Write a folder, or leave everything as it was; another saved model at its place is replaced, nothing else is."""
    place = Path(path).resolve()
    _check_place(place)
    suffix = secrets.token_hex(4)
    fresh, aside = (place.with_name(f".{place.name}.{what}-{suffix}") for what in ("part", "old"))
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        fresh.mkdir()
        _write_files(folder, fresh)
        _put_in_place(fresh, place, aside)
    except OSError as error:
        raise OSError(error.errno, NOT_WRITTEN.format(path=place, reason=error.strerror or error)) from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
        if place.exists():
            shutil.rmtree(aside, ignore_errors=True)
    _make_durable(place.parent)


def read_folder(path: str | os.PathLike[str]) -> Folder:
    """Read a folder; whatever is wrong with it is one error that says what to do."""
    place = Path(path)
    _check_readable(place)
    document = _read_document(place / DOCUMENT)
    contents = _read_files(place, document["files"])
    try:
        tensors = safetensors.torch.load(contents[TENSORS])
    except safetensors.SafetensorError as error:
        raise ValueError(UNREADABLE.format(path=place / TENSORS, error=error)) from error
    return Folder(
        kind=document["kind"],
        content=document["content"],
        tensors=tensors,
        card=document["card"],
        versions=document["versions"],
        inside={name: read_folder(place / name) for name in document["inside"]},
    )


def _check_place(place: Path) -> None:
    """Refuse to replace what is not a saved model, or holds something else beside."""
    if not place.exists():
        return
    if not place.is_dir():
        raise FileExistsError(IN_THE_WAY.format(path=place, what="is a file"))
    strange = list(_strange_files(place))
    if strange:
        what = f"holds files that save() did not make ({', '.join(strange[:5])})"
        raise FileExistsError(IN_THE_WAY.format(path=place, what=what))


def _strange_files(folder: Path) -> Iterator[str]:
    """What in a folder does not belong to a saved model; an empty folder has nothing strange."""
    names = sorted(os.listdir(folder))
    ours = {DOCUMENT, TENSORS, CARD} if DOCUMENT in names else set()
    for name in names:
        entry = folder / name
        if entry.is_dir() and not entry.is_symlink() and (entry / DOCUMENT).is_file():
            yield from (f"{name}/{inner}" for inner in _strange_files(entry))
        elif name not in ours:
            yield name


def _write_files(folder: Folder, place: Path) -> bytes:
    """Write everything and give back the content of `model.json`."""
    files = {TENSORS: safetensors.torch.save(folder.tensors), CARD: folder.card.encode()}
    for name, content in files.items():
        _write(place / name, content)
    for name, inner in folder.inside.items():
        (place / name).mkdir()
        files[f"{name}/{DOCUMENT}"] = _write_files(inner, place / name)
    document = {
        "format": FORMAT,
        "schema": SCHEMA,
        "kind": folder.kind,
        "sha256": "",
        "versions": folder.versions,
        "files": {name: _checksum(content) for name, content in files.items()},
        "inside": list(folder.inside),
        "card": folder.card,
        "content": folder.content,
    }
    text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    digest = hashlib.sha256(text.encode()).hexdigest()
    content = text.replace(OWN_CHECKSUM.format(""), OWN_CHECKSUM.format(digest), 1).encode()
    _write(place / DOCUMENT, content)
    _make_durable(place)
    return content


def _put_in_place(fresh: Path, place: Path, aside: Path) -> None:
    """Rename; where the second of two renames does not happen, the first is taken back."""
    if not place.exists():
        fresh.rename(place)
    else:
        try:
            place.rename(aside)
            fresh.rename(place)
        except BaseException:
            if aside.exists() and not place.exists():
                aside.rename(place)
            raise


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _make_durable(folder: Path) -> None:
    """Wait until the entries of a folder are on the disk."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _checksum(content: bytes) -> dict[str, Any]:
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def _check_readable(place: Path) -> None:
    if not place.exists():
        siblings = [entry.name for entry in place.parent.iterdir()] if place.parent.is_dir() else []
        raise FileNotFoundError(NO_PATH.format(path=place, meant=did_you_mean(place.name, siblings)))
    if not place.is_dir():
        hint = f": give {place.parent}" if place.name == DOCUMENT else ""
        raise ValueError(NO_FOLDER.format(path=place, hint=hint))
    if not (place / DOCUMENT).is_file():
        found = ", ".join(sorted(os.listdir(place))[:5]) or "nothing"
        raise ValueError(NO_MODEL.format(path=place, document=DOCUMENT, found=found))


def _read_document(path: Path) -> dict[str, Any]:
    """Read `model.json`: its format and schema first, then its own checksum."""
    try:
        text = path.read_bytes().decode()
        document = json.loads(text)
    except ValueError as error:
        raise ValueError(UNREADABLE.format(path=path, error=error)) from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        came = document.get("format") if isinstance(document, dict) else type(document).__name__
        raise ValueError(OTHER.format(path=path, format=came, expected=FORMAT))
    schema = document.get("schema")
    if not isinstance(schema, int) or schema < 1:
        raise ValueError(UNREADABLE.format(path=path, error=f"its schema is {schema!r}"))
    if schema > SCHEMA:
        versions = document.get("versions")
        version = versions.get("sitewise", "unknown") if isinstance(versions, dict) else "unknown"
        raise ValueError(NEWER.format(path=path, version=version, schema=schema, known=SCHEMA))
    bare = text.replace(OWN_CHECKSUM.format(document.get("sha256")), OWN_CHECKSUM.format(""), 1)
    if hashlib.sha256(bare.encode()).hexdigest() != document.get("sha256"):
        raise ValueError(CHANGED.format(path=path))
    inside = document.get("inside", [])
    expected = {TENSORS, CARD, *(f"{name}/{DOCUMENT}" for name in inside)}
    plain = all(str(name).isidentifier() for name in inside)
    if not plain or ENTRIES - set(document) or set(document["files"]) != expected:
        raise ValueError(UNREADABLE.format(path=path, error="it lacks entries, or names other files than expected"))
    return document


def _read_files(place: Path, files: dict[str, dict[str, Any]]) -> dict[str, bytes]:
    """The bytes of every file, all of them checked; what is loaded is what was checked."""
    problems = Problems("load")
    contents = {}
    for name, expected in files.items():
        path = place / name
        if not path.is_file():
            problems.add(f"{path} is missing: {AGAIN}")
            continue
        contents[name] = path.read_bytes()
        found = _checksum(contents[name])
        if found["bytes"] < expected["bytes"]:
            problems.add(f"{path} is truncated ({found['bytes']} of {expected['bytes']} bytes): {AGAIN}")
        elif found != expected:
            problems.add(f"{path} is not what was saved (its checksum differs): {AGAIN}")
    problems.raise_if_any()
    return contents
