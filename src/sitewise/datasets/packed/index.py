"""What a pack says of itself, as JSON: its index, each shard's record; and whether files are still as it says."""

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
PART = ".part."  # what a file is called before it is whole


@dataclass(frozen=True)
class PackIndex:
    """What a pack holds; another value of any of these is another pack, except those of the versions."""

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
        """How many files the rows are in."""
        return -(-self.rows // self.rows_per_shard)

    def shard_rows(self, shard: int) -> range:
        """The rows of one of the shards."""
        start = shard * self.rows_per_shard
        return range(start, min(start + self.rows_per_shard, self.rows))

    def shard_shape(self, shard: int) -> tuple[int, int, int, int]:
        """The shape of its array."""
        return len(self.shard_rows(shard)), self.channels, self.size, self.size


@dataclass(frozen=True)
class Source:
    """The file an image came from, as it was then."""

    id: str
    path: str
    bytes: int
    mtime_ns: int
    sha256: str


@dataclass(frozen=True)
class ShardRecord:
    """One shard's checksum and where its rows came from."""

    sha256: str
    sources: tuple[Source, ...]


@dataclass(frozen=True)
class Change:
    """A row whose source is not what was packed: `what` is missing, size, time, content or not packed."""

    id: str
    path: str
    what: str


def read_index(folder: Path) -> PackIndex | None:
    """The index of a folder, None where it has none."""
    if not (folder / INDEX).is_file():
        return None
    values = _read_json(folder / INDEX)
    try:
        return PackIndex(**values)
    except TypeError as error:
        raise ValueError(f"{folder / INDEX} is no index of packed images ({error})") from error


def read_record(folder: Path, shard: int) -> ShardRecord | None:
    """The record of a shard, None where it is not packed yet."""
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
    """Write a file that is there only when it is whole."""
    part = path.with_name(PART + path.name)
    part.write_text(json.dumps(values), encoding="utf-8")
    os.replace(part, path)


def shard_name(shard: int) -> str:
    """The file of a shard's pixels; its record has the suffix .json."""
    return f"shard-{shard:05d}.npy"


def damage(path: Path, shape: tuple[int, ...]) -> str | None:
    """What is wrong with a shard's file at first sight: its length and its header."""
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
    """How a file differs from the source that was packed, as `Change` names it; None where it does not."""
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
    """The SHA-256 of a file, in hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
