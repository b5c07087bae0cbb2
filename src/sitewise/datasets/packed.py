"""Packed images: decoded and resized once, then read from memory-mapped uint8 shards as fast as they can be copied.

A pack is a folder: `index.json` says what the images are (size, channels, rows), `shard-00000.npy` holds pixels
(rows, C, H, W), and `shard-00000.json` their ids, the size, time and SHA-256 of every source file, and the SHA-256 of
the shard. A shard's JSON is written last and every file is renamed into its place, so a packing that was killed goes on
at the first shard without one.
"""

import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sitewise.arrays import Problems
from sitewise.datasets.images import NO_PILLOW, READING, decode_image
from sitewise.datasets.manifest import ROWS_FROM, SHOWN, Manifest, add_unreadable, available_cores, check_files

Array = np.ndarray[Any, Any]
Folder = str | os.PathLike[str]

FORMAT = "sitewise packed images 1"
INDEX = "index.json"
SHARD_BYTES = 256 * 2**20
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


def pack(
    manifest: Manifest,
    folder: Folder,
    size: int = 224,
    *,
    channels: int = 3,
    jobs: int | None = None,
    shard_bytes: int = SHARD_BYTES,
    progress: bool | None = None,
) -> "PackedImages":
    """Decode and resize every image of a manifest into a folder, as `read_image` does, and open it.

    Run again it goes on where it was stopped, and packs those shards anew whose source files have changed. `jobs`
    threads decode at a time (Pillow lets them run side by side), all cores by default; two shards are held in memory.
    `progress` None shows a bar on a terminal.
    """
    folder = Path(folder)
    index = _plan(manifest, size, channels, jobs, shard_bytes)
    problems = Problems(f"pack {ROWS_FROM}")
    check_files(manifest, problems)
    problems.raise_if_any()
    _begin(folder, index)
    unreadable: dict[int, str] = {}
    pool = ThreadPoolExecutor(jobs or available_cores())
    try:
        with _progress(len(manifest), progress) as advance:
            writing: Future[None] | None = None
            for shard in range(index.n_shards):
                rows = index.shard_rows(shard)
                if _is_done(folder, index, shard, manifest):
                    advance(len(rows))
                    continue
                pixels = np.empty(index.shard_shape(shard), dtype=np.uint8)
                sources = _fill(pixels, manifest, rows, pool, advance, unreadable)
                if writing is not None:
                    writing.result()
                # Written by one of the threads while the others decode the next shard.
                writing = pool.submit(_write_shard, folder, shard, pixels, sources) if sources else None
            if writing is not None:
                writing.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    add_unreadable(problems, unreadable)
    if unreadable:
        problems.add("all other shards are packed: mend these files or drop their rows, and pack again")
    problems.raise_if_any()
    return PackedImages.open(folder)


class ShardMaps:
    """The shards' arrays, mapped into memory when first needed; another process maps them itself."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.maps: dict[int, Array] = {}

    def __getitem__(self, shard: int) -> Array:
        if shard not in self.maps:
            # As a plain array: taking rows of a np.memmap costs more than the rows.
            self.maps[shard] = np.asarray(np.load(self.folder / _shard_name(shard), mmap_mode="r"))
        return self.maps[shard]

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder, "maps": {}}


@dataclass(frozen=True, eq=False)
class PackedImages:
    """Images in a pack: indexed as an array (n, C, H, W), read from the disk as they are asked for.

    Examples
    --------
    >>> images = PackedImages.open("packed")
    >>> images[0], images[10:20], images[[5, 3]], images[mask]     # uint8 arrays, in memory
    >>> images.take(mask), images.by_id(ids)                       # still on the disk
    """

    folder: Path
    index: PackIndex
    records: tuple[ShardRecord, ...]
    rows: Array  # of the pack, in the order of these images
    shards: ShardMaps

    @classmethod
    def open(cls, folder: Folder, *, verify: bool = False) -> "PackedImages":
        """Open a pack; `verify` compares every shard with its checksum (reads all of it)."""
        folder = Path(folder)
        index = _read_index(folder)
        if index is None:
            raise FileNotFoundError(
                f"{folder} is no folder of packed images: it has no {INDEX}; make one with: sitewise data pack"
            )
        problems = Problems(f"packed images {folder}")
        if index.format != FORMAT:
            problems.add(f"this version reads {FORMAT!r}, the folder has {index.format!r}: pack the images anew")
            problems.raise_if_any()
        found = [_read_record(folder, shard) for shard in range(index.n_shards)]
        if None in found:
            done = sum(record is not None for record in found)
            problems.add(f"packing was not finished, {done} of {len(found)} shard(s) are there: run it again")
        records = tuple(record for record in found if record is not None)
        if len(records) == len(found):
            _check_shards(folder, index, records, verify, problems)
        problems.raise_if_any()
        return cls(folder, index, records, np.arange(index.rows), ShardMaps(folder))

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The shape of all these images as an array."""
        return len(self), self.index.channels, self.index.size, self.index.size

    @property
    def ndim(self) -> int:
        """Four: rows, channels, height, width."""
        return 4

    @property
    def dtype(self) -> np.dtype[Any]:
        """Bytes."""
        return np.dtype(np.uint8)

    @cached_property
    def ids(self) -> Array:
        """The images' ids."""
        everything = [source.id for record in self.records for source in record.sources]
        return np.array(everything, dtype=object)[self.rows]

    def __getitem__(self, key: Any) -> Array:
        chosen = self._chosen(key)
        images = self._copy(np.atleast_1d(chosen))
        return images if chosen.ndim else np.asarray(images[0])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ValueError("packed images are on the disk: an array of them is always a copy")
        return self._copy(self.rows).astype(dtype or np.uint8, copy=False)

    def take(self, rows: Any) -> "PackedImages":
        """Some of the images, by position or mask, without reading them."""
        return replace(self, rows=self._chosen(rows))

    def by_id(self, ids: Iterable[str]) -> "PackedImages":
        """The images of some ids, in their order, without reading them."""
        wanted = pd.Index(list(ids), dtype=object)
        rows = pd.Index(self.ids).get_indexer(wanted)
        if (rows < 0).any():
            absent = wanted[rows < 0]
            shown = ", ".join(map(repr, absent[:SHOWN])) + (", ..." if len(absent) > SHOWN else "")
            raise ValueError(f"{len(absent)} image(s) are not among those packed in {self.folder}: {shown}")
        return self.take(rows)

    def changed(self, manifest: Manifest, *, by_hash: bool = False) -> list[Change]:
        """The rows of a manifest whose files are not those that were packed.

        By size and time of change; `by_hash` reads the files and goes by their content alone, for data that was copied.
        """
        packed = {source.id: source for record in self.records for source in record.sources}
        ids = manifest.table["id"].astype(str)
        with ThreadPoolExecutor(available_cores()) as pool:
            found = pool.map(
                lambda id, file: _what_changed(packed.get(id), file, by_hash), ids.tolist(), manifest.files
            )
            return [
                Change(id, path, what)
                for id, path, what in zip(ids, manifest.table["path"], found, strict=True)
                if what
            ]

    def _chosen(self, key: Any) -> Array:
        """Rows of the pack by an index of these images."""
        if not isinstance(key, slice):
            key = np.asarray(key)
            key = key if key.dtype == bool else key.astype(np.int64, casting="unsafe" if not key.size else "same_kind")
        return np.asarray(self.rows[key])

    def _copy(self, rows: Array) -> Array:
        images = np.empty((len(rows), *self.shape[1:]), dtype=np.uint8)
        shards, places = np.divmod(rows, self.index.rows_per_shard)
        order = np.argsort(rows, kind="stable")  # as they lie on the disk
        for row, shard, place in zip(order.tolist(), shards[order].tolist(), places[order].tolist(), strict=True):
            images[row] = self.shards[shard][place]
        return images


def _plan(manifest: Manifest, size: int, channels: int, jobs: int | None, shard_bytes: int) -> PackIndex:
    problems = Problems("pack")
    if size < 1:
        problems.add(f"size must be at least one pixel, got {size}")
    if channels not in (1, 3):
        problems.add(f"channels must be 1 (gray) or 3 (RGB), got {channels}")
    if jobs is not None and jobs < 1:
        problems.add(f"jobs must be at least one thread, got {jobs}")
    if shard_bytes < 1:
        problems.add(f"shard_bytes must be positive, got {shard_bytes}")
    problems.raise_if_any()
    try:
        pillow = version("pillow")
    except PackageNotFoundError as error:
        raise ImportError(NO_PILLOW) from error
    ids = json.dumps(manifest.table["id"].astype(str).tolist())
    return PackIndex(
        size=size,
        channels=channels,
        rows=len(manifest),
        rows_per_shard=max(1, shard_bytes // (channels * size * size)),
        ids_sha256=hashlib.sha256(ids.encode()).hexdigest(),
        sitewise=version("sitewise"),
        pillow=pillow,
    )


def _begin(folder: Path, index: PackIndex) -> None:
    """Make the folder of a new pack, or see that the one there is the same pack."""
    there = _read_index(folder)
    if there is None:
        if folder.is_dir() and any(folder.iterdir()):
            raise ValueError(f"{folder} holds other files and no {INDEX}: pack into a new or empty folder")
        folder.mkdir(parents=True, exist_ok=True)
        _write_json(folder / INDEX, asdict(index))
        return
    names = [field.name for field in fields(PackIndex) if field.name not in ("sitewise", "pillow")]
    other = [name for name in names if getattr(there, name) != getattr(index, name)]
    if other:
        shown = {"ids_sha256": "the images or their order", "rows_per_shard": "shard_bytes"}
        differences = ", ".join(
            shown[name] if name in shown else f"{name} ({getattr(there, name)} there, {getattr(index, name)} asked for)"
            for name in other
        )
        raise ValueError(
            f"{folder} holds another pack: it differs in {differences}: choose another folder or remove it"
        )
    for part in folder.glob(f"{PART}*"):
        part.unlink()


def _fill(
    pixels: Array,
    manifest: Manifest,
    rows: range,
    pool: ThreadPoolExecutor,
    advance: Callable[[int], None],
    unreadable: dict[int, str],
) -> list[Source]:
    """Decode the rows of a shard into it; no sources where one of them could not be read, which is noted."""
    table = manifest.table.iloc[rows.start : rows.stop]

    def read(place: int, id: str, path: str) -> Source | str:
        try:
            with open(manifest.root / path, "rb") as file:
                status = os.fstat(file.fileno())
                data = file.read()
            pixels[place] = decode_image(data, path, pixels.shape[-1], pixels.shape[1])
        except (ValueError, OSError) as error:
            return str(error)
        return Source(id, path, len(data), status.st_mtime_ns, hashlib.sha256(data).hexdigest())

    found = pool.map(read, range(len(rows)), table["id"].astype(str), table["path"])
    sources = []
    for row, source in zip(rows, found, strict=True):
        advance(1)
        if isinstance(source, str):
            unreadable[row] = source
        else:
            sources.append(source)
    return sources if len(sources) == len(rows) else []


def _write_shard(folder: Path, shard: int, pixels: Array, sources: list[Source]) -> None:
    path = folder / _shard_name(shard)
    part = path.with_name(PART + path.name)
    with open(part, "wb") as file:
        np.save(file, pixels)
    checksum = _sha256(part)
    os.replace(part, path)
    columns = {field.name: [getattr(source, field.name) for source in sources] for field in fields(Source)}
    _write_json(path.with_suffix(".json"), {"sha256": checksum, "sources": columns})


def _is_done(folder: Path, index: PackIndex, shard: int, manifest: Manifest) -> bool:
    """Whether a shard is there, whole, and made of the files as they are now."""
    record = _read_record(folder, shard)
    if record is None or _damage(folder / _shard_name(shard), index.shard_shape(shard)):
        return False
    rows = index.shard_rows(shard)
    table = manifest.table.iloc[rows.start : rows.stop]
    now = zip(record.sources, table["id"].astype(str), table["path"], strict=True)
    return all(
        source.id == id and source.path == path and _what_changed(source, manifest.root / path, by_hash=False) is None
        for source, id, path in now
    )


def _what_changed(source: Source | None, file: Path, by_hash: bool) -> str | None:
    if source is None:
        return "not packed"
    try:
        status = file.stat()
        if status.st_size != source.bytes:
            return "size"
        if by_hash:
            return None if _sha256(file) == source.sha256 else "content"
    except OSError:
        return "missing"
    return None if status.st_mtime_ns == source.mtime_ns else "time"


def _check_shards(
    folder: Path, index: PackIndex, records: tuple[ShardRecord, ...], verify: bool, problems: Problems
) -> None:
    def damage(shard: int) -> str | None:
        path = folder / _shard_name(shard)
        found = _damage(path, index.shard_shape(shard))
        if found is None and len(records[shard].sources) != len(index.shard_rows(shard)):
            path, found = path.with_suffix(".json"), "is damaged: it does not list the shard's rows"
        if found is None and verify and _sha256(path) != records[shard].sha256:
            found = f"is damaged: its SHA-256 is not {records[shard].sha256}"
        return None if found is None else f"{path.name} {found}"

    with ThreadPoolExecutor(available_cores()) as pool:
        damaged = [found for found in pool.map(damage, range(index.n_shards)) if found]
    for found in damaged:
        problems.add(f"{found}; remove it and pack again, the others are kept")


def _read_index(folder: Path) -> PackIndex | None:
    if not (folder / INDEX).is_file():
        return None
    values = _read_json(folder / INDEX)
    try:
        return PackIndex(**values)
    except TypeError as error:
        raise ValueError(f"{folder / INDEX} is no index of packed images ({error})") from error


def _read_record(folder: Path, shard: int) -> ShardRecord | None:
    path = (folder / _shard_name(shard)).with_suffix(".json")
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


def _write_json(path: Path, values: dict[str, Any]) -> None:
    part = path.with_name(PART + path.name)
    part.write_text(json.dumps(values), encoding="utf-8")
    os.replace(part, path)


def _shard_name(shard: int) -> str:
    return f"shard-{shard:05d}.npy"


def _damage(path: Path, shape: tuple[int, ...]) -> str | None:
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


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _progress(total: int, shown: bool | None) -> Iterator[Callable[[int], None]]:
    """A progress bar with the time left on a terminal, nothing elsewhere."""
    if not (sys.stderr.isatty() if shown is None else shown):
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

    columns = (*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("packing", total=total)
        yield lambda count: bar.advance(task, count)
