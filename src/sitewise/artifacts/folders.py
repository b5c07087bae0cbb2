"""The folder of a saved model: `model.json` with checksums of all files, tensors, a model card, and nested models.

A folder is written under a temporary name, flushed to the disk and then renamed. Each file is read only once: the bytes
that are checked are also the bytes that are parsed. This holds for nested folders too. No file can run code, because
JSON and safetensors hold data only. The size and depth of a JSON document are checked before it is parsed.
"""

import hashlib
import json
import os
import platform
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import safetensors
import safetensors.torch
import sklearn
import torch
from torch import Tensor

from sitewise.arrays import Problems, brief, did_you_mean
from sitewise.artifacts.places import make_durable, put_in_place, read_unchanged, sole_writer
from sitewise.version import __version__

FORMAT = "sitewise model"
SCHEMA = 1  # to be raised when the format changes so that older versions cannot read it
DOCUMENT, TENSORS, CARD = "model.json", "tensors.safetensors", "model.md"
ENTRIES = {"kind": str, "versions": dict, "files": dict, "inside": list, "card": str, "content": dict}
OWN_CHECKSUM = '"sha256": "{}"'
FILE = {"bytes": int, "sha256": str}
BEGINNING = f'{{\n "format": {json.dumps(FORMAT)}'.encode()  # the first bytes of every saved document
ESCAPED = re.compile(rb"\\.", re.DOTALL)  # an escaped character of a JSON string, perhaps a quote
UNNESTED = bytes(set(range(256)) - set(b'"[]{}'))
NESTING = np.zeros(256, dtype=np.int64)  # the change of depth by each character
NESTING[list(b"[{")], NESTING[list(b"]}")] = 1, -1
MOST_BYTES, DEEPEST = 2**26, 64  # limits of a document; a model of many sites has about 100 kB and 17 levels
MOST_INSIDE = 4  # levels of nested folders; an adapted site has one: its model

NO_PATH = "load: there is no folder {path}{meant}"
NO_FOLDER = "load: {path} is a file, expected the folder that save() made{hint}"
NO_MODEL = "load: {path} holds no {document}, so it is no saved model (it holds {content}): give the folder save() made"
UNREADABLE = "load: {path} is truncated or damaged ({error}): copy the folder again, or save the model again"
CHANGED = "load: {path} was changed after it was saved: copy the folder again, or save the model again"
NEWER = (
    "load: {path} was written by a newer sitewise ({version}; its schema is {schema}, this version reads up to "
    "{known}): pip install -U sitewise"
)
TOO_LONG = "{path} has {count:,} bytes, more than the {most:,} of any saved model"
TOO_DEEP = "{path} is nested more than {most} deep, which no saved model is"
ODD = "load: {path} was made by another program or is damaged ({error}): copy the folder again, or save the model again"
INTERRUPTED = "load: {path} is not there, since saving it was interrupted; loaded what was there before, from {source}"
OTHER = "load: {path} is not a model of sitewise: its format is {format}, expected {expected!r}"
NOT_READ = "load: {path} could not be read ({reason})"
AGAIN = "copy the folder again, or save the model again"
IN_THE_WAY = "save: {path} {what}: choose another path, or move it away; nothing was written"
NOT_WRITTEN = "save: {path} could not be written ({reason}); nothing was changed there"


@dataclass(frozen=True)
class Folder:
    """The parts of a folder: its kind, JSON content, tensors by name, card, library versions and nested folders."""

    kind: str
    content: dict[str, Any]
    tensors: dict[str, Tensor]
    card: str
    versions: dict[str, str]
    inside: "dict[str, Folder]" = field(default_factory=dict)


def write_folder(folder: Folder, path: str | os.PathLike[str]) -> None:
    """Write a folder completely, or change nothing. An existing path is replaced only if it is a saved model.

    While one process writes to a path, other processes that try to write there raise BlockingIOError.
    """
    place = Path(path).resolve()
    try:
        with sole_writer(place) as temporary:
            _check_place(place)
            temporary.mkdir()
            _write_files(folder, temporary)
            put_in_place(temporary, place)
    except OSError as error:
        if error.errno is None:  # raised by `_check_place`
            raise
        raise OSError(error.errno, NOT_WRITTEN.format(path=place, reason=error.strerror or error)) from error


def read_folder(path: str | os.PathLike[str]) -> Folder:
    """Read and check a folder; an error names all problems and says what to do.

    If the folder is replaced while it is read, it is read again. So the result is the old or the new folder, never a
    mix of both.
    """
    place = Path(path)
    try:
        folder, source = read_unchanged(place, _read)
    except OSError as error:
        if error.errno is None:  # raised by `_check_readable`
            raise
        reason = error.strerror or error
        raise OSError(error.errno, NOT_READ.format(path=error.filename or place, reason=reason)) from error
    if source != place:
        warnings.warn(INTERRUPTED.format(path=place, source=source), stacklevel=3)
    return folder


def _read(place: Path) -> Folder:
    _check_readable(place)
    document = place / DOCUMENT
    _check_length(document, document.stat().st_size, "load")
    return _parse(place, document.read_bytes())


def _parse(place: Path, content: bytes, depth: int = 0) -> Folder:
    """Parse a folder, given the bytes of its document. All other files are read and checked against the document."""
    document = _parse_document(place / DOCUMENT, content)
    if depth > MOST_INSIDE:
        raise ValueError(ODD.format(path=place, error=f"more than {MOST_INSIDE} folders inside each other"))
    contents = _read_files(place, document["files"])
    try:
        tensors = safetensors.torch.load(contents[TENSORS])
    except safetensors.SafetensorError as error:
        raise ValueError(UNREADABLE.format(path=place / TENSORS, error=brief(error))) from error
    inside = {name: _parse(place / name, contents[f"{name}/{DOCUMENT}"], depth + 1) for name in document["inside"]}
    entries = {name: document[name] for name in ("kind", "content", "card", "versions")}
    return Folder(**entries, tensors=tensors, inside=inside)


def _check_place(place: Path) -> None:
    """Raise FileExistsError if something other than a saved model is at the path, or if it holds other files too."""
    if not place.exists():
        return
    if not place.is_dir():
        raise FileExistsError(IN_THE_WAY.format(path=place, what="is a file"))
    strange = list(_strange_files(place))
    if strange:
        what = f"holds files that save() did not make ({', '.join(strange[:5])})"
        raise FileExistsError(IN_THE_WAY.format(path=place, what=what))


def _strange_files(folder: Path) -> Iterator[str]:
    """Yield the files of a folder that do not belong to a saved model."""
    ours = {DOCUMENT, TENSORS, CARD} if _is_ours(folder) else set()
    for name in sorted(os.listdir(folder)):
        entry = folder / name
        if entry.is_dir() and not entry.is_symlink() and _is_ours(entry):
            yield from (f"{name}/{inner}" for inner in _strange_files(entry))
        elif name not in ours:
            yield name


def _is_ours(folder: Path) -> bool:
    """Return whether a folder's document begins like a saved model's; other programs use the name `model.json` too."""
    document = folder / DOCUMENT
    if not document.is_file():
        return False
    with document.open("rb") as file:
        return file.read(len(BEGINNING)) == BEGINNING


def _write_files(folder: Folder, place: Path, depth: int = 0) -> bytes:
    """Write all files of a folder, and return the bytes of its `model.json`."""
    if depth > MOST_INSIDE:
        raise ValueError(f"save: more than {MOST_INSIDE} folders inside each other")
    files = {TENSORS: safetensors.torch.save(folder.tensors), CARD: folder.card.encode()}
    for name, content in files.items():
        _write(place / name, content)
    for name, inner in folder.inside.items():
        (place / name).mkdir()
        files[f"{name}/{DOCUMENT}"] = _write_files(inner, place / name, depth + 1)
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
    _check_length(place / DOCUMENT, len(content), "save")
    _check_depth(place / DOCUMENT, content, "save")
    _write(place / DOCUMENT, content)
    make_durable(place)
    return content


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


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
        content = ", ".join(sorted(os.listdir(place))[:5]) or "nothing"
        raise ValueError(NO_MODEL.format(path=place, document=DOCUMENT, content=content))


def _check_length(path: Path, count: int, call: str) -> None:
    if count > MOST_BYTES:
        raise ValueError(f"{call}: " + TOO_LONG.format(path=path, count=count, most=MOST_BYTES))


def _check_depth(path: Path, content: bytes, call: str) -> None:
    """Check the depth of nesting by counting brackets, before the document is parsed."""
    characters = np.frombuffer(ESCAPED.sub(b"", content).translate(None, UNNESTED), dtype=np.uint8)
    within_text = np.logical_xor.accumulate(characters == ord('"'))
    if NESTING[characters[~within_text]].cumsum().max(initial=0) > DEEPEST:
        raise ValueError(f"{call}: " + TOO_DEEP.format(path=path, most=DEEPEST))


def _parse_document(path: Path, content: bytes) -> dict[str, Any]:
    """Parse `model.json`: check its format and schema, then its own checksum, then its entries."""
    _check_depth(path, content, "load")
    try:
        text = content.decode()
        document = json.loads(text, parse_constant=_no_constant)
    except ValueError as error:
        raise ValueError(UNREADABLE.format(path=path, error=brief(error))) from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        came = document.get("format") if isinstance(document, dict) else type(document).__name__
        raise ValueError(OTHER.format(path=path, format=brief(repr(came)), expected=FORMAT))
    schema = document.get("schema")
    if type(schema) is not int or schema < 1:
        raise ValueError(UNREADABLE.format(path=path, error=f"its schema is {brief(repr(schema))}"))
    if schema > SCHEMA:
        versions = document.get("versions")
        version = brief(versions.get("sitewise", "unknown")) if isinstance(versions, dict) else "unknown"
        raise ValueError(NEWER.format(path=path, version=version, schema=schema, known=SCHEMA))
    bare = text.replace(OWN_CHECKSUM.format(document.get("sha256")), OWN_CHECKSUM.format(""), 1)
    if hashlib.sha256(bare.encode()).hexdigest() != document.get("sha256"):
        raise ValueError(CHANGED.format(path=path))
    _check_entries(path, document)
    return document


def _check_entries(path: Path, document: dict[str, Any]) -> None:
    """Check that a document has all entries, and lists exactly the files that a saved model has."""
    for name, kind in ENTRIES.items():
        if not isinstance(document.get(name), kind):
            came = type(document[name]).__name__ if name in document else "nothing"
            raise ValueError(ODD.format(path=path, error=f"its {name!r} is {came}, expected {kind.__name__}"))
    inside = document["inside"]
    plain = all(isinstance(name, str) and name.isidentifier() for name in inside) and len(set(inside)) == len(inside)
    if not plain or set(document["files"]) != {TENSORS, CARD, *(f"{name}/{DOCUMENT}" for name in inside)}:
        raise ValueError(ODD.format(path=path, error="it names other files than expected"))
    for name, expected in document["files"].items():
        if not isinstance(expected, dict) or {key: type(value) for key, value in expected.items()} != FILE:
            raise ValueError(ODD.format(path=path, error=f"it must give the bytes and the sha256 of {name}"))


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _read_files(place: Path, files: dict[str, dict[str, Any]]) -> dict[str, bytes]:
    """Return the bytes of every file, after checking their size and checksum."""
    problems = Problems("load")
    contents = {}
    for name, expected in files.items():
        path = place / name
        if not path.is_file():
            problems.add(f"{path} is missing: {AGAIN}")
            continue
        count = path.stat().st_size
        if count < expected["bytes"]:
            problems.add(f"{path} is truncated ({count} of {expected['bytes']} bytes): {AGAIN}")
            continue
        contents[name] = path.read_bytes() if count == expected["bytes"] else b""
        if _checksum(contents[name]) != expected:
            problems.add(f"{path} is not what was saved (its checksum differs): {AGAIN}")
    problems.raise_if_any()
    return contents


def versions() -> dict[str, str]:
    """Return the versions of sitewise and of the libraries that its results depend on."""
    return {
        "sitewise": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "scikit-learn": sklearn.__version__,
        "python": platform.python_version(),
    }
