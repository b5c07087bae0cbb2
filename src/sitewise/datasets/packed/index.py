"""The JSON files of a pack, which are its index and a record for each shard, and checks of files against them."""

import hashlib
import json
import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from sitewise.tables.images import READING

Array = np.ndarray[Any, Any]
Folder = str | os.PathLike[str]
FORMAT = "sitewise packed images 1"
INDEX = "index.json"
PART = ".part."  # prefix of a file that is not complete yet


@dataclass(frozen=True)
class PackIndex:
    """The content of a pack. Packs are the same if all fields except the versions of sitewise and Pillow are equal."""

    size: int
    channels: int
    rows: int
    rows_per_shard: int
    ids_sha256: str
    reading: int = READING
    format: str = FORMAT
    sitewise: str = ""
    pillow: str = ""

    @property
    def n_shards(self) -> int:
        """The number of shards."""
        return -(-self.rows // self.rows_per_shard)

    def shard_rows(self, shard: int) -> range:
        """Return the rows of a shard."""
        start = shard * self.rows_per_shard
        return range(start, min(start + self.rows_per_shard, self.rows))

    def shard_shape(self, shard: int) -> tuple[int, int, int, int]:
        """Return the shape of a shard's array."""
        return len(self.shard_rows(shard)), self.channels, self.size, self.size


@dataclass(frozen=True)
class Source:
    """The source file of an image, in its state when it was packed."""

    id: str
    path: str
    bytes: int
    mtime_ns: int
    sha256: str


@dataclass(frozen=True)
class ShardRecord:
    """A shard's checksum and the source files of its rows."""

    sha256: str
    sources: tuple[Source, ...]


@dataclass(frozen=True)
class Change:
    """A row whose source file differs from the packed one.

    `what` is the difference: "missing", "size", "time", "content" or "not packed".
    """

    id: str
    path: str
    what: str


def read_index(folder: Path) -> PackIndex | None:
    """Read the index of a folder; return None if it has none."""
    if not (folder / INDEX).is_file():
        return None
    values = _read_json(folder / INDEX)
    try:
        return PackIndex(**values)
    except TypeError as error:
        raise ValueError(f"{folder / INDEX} is no index of packed images ({error})") from error


def read_record(folder: Path, shard: int) -> ShardRecord | None:
    """Read the record of a shard; return None if it is not packed yet."""
    path = (folder / shard_name(shard)).with_suffix(".json")
    if not path.is_file():
        return None
    values = _read_json(path)
    try:
        columns = values["sources"]
        rows = zip(*(columns[field.name] for field in fields(Source)), strict=True)
        return ShardRecord(values["sha256"], tuple(Source(*row) for row in rows))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is damaged ({error}): remove it and pack again") from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}): remove it and pack again") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path} is damaged (no JSON object): remove it and pack again")
    return values


def write_json(path: Path, values: dict[str, Any]) -> None:
    """Write a JSON file under a temporary name, then rename it."""
    temporary = path.with_name(PART + path.name)
    temporary.write_text(json.dumps(values), encoding="utf-8")
    os.replace(temporary, path)


def shard_name(shard: int) -> str:
    """Return the file name of a shard's pixels; its record has the suffix .json."""
    return f"shard-{shard:05d}.npy"


def damage(path: Path, shape: tuple[int, ...]) -> str | None:
    """Return the problem with the header or length of a shard's file; None if there is none."""
    if not path.is_file():
        return "is missing"
    try:
        array = np.load(path, mmap_mode="r")
    except (ValueError, OSError, EOFError) as error:
        return f"is damaged ({error})"
    if array.shape != shape or array.dtype != np.uint8:
        return f"is damaged: expected uint8 {shape}, got {array.dtype} {array.shape}"
    return None


def what_changed(source: Source | None, file: Path, by_hash: bool) -> str | None:
    """Return the difference between a file and the packed source, as in `Change.what`; None if there is none."""
    if source is None:
        return "not packed"
    try:
        status = file.stat()
        if status.st_size != source.bytes:
            return "size"
        if by_hash:
            return None if sha256_of(file) == source.sha256 else "content"
    except OSError:
        return "missing"
    return None if status.st_mtime_ns == source.mtime_ns else "time"


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
