"""Images of a pack, read from its memory-mapped shards as they are asked for."""

import hashlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sitewise.arrays import Problems
from sitewise.datasets.packed.index import (
    FORMAT,
    INDEX,
    Array,
    Change,
    Folder,
    PackIndex,
    ShardRecord,
    damage,
    read_index,
    read_record,
    sha256_of,
    shard_name,
    what_changed,
)
from sitewise.tables.manifest import SHOWN, Manifest, available_cores


class ShardMaps:
    """The shards' arrays, mapped into memory when first needed; another process maps them itself."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.maps: dict[int, Array] = {}

    def __getitem__(self, shard: int) -> Array:
        if shard not in self.maps:
            # As a plain array: taking rows of a np.memmap costs more than the rows.
            self.maps[shard] = np.asarray(np.load(self.folder / shard_name(shard), mmap_mode="r"))
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
        index = read_index(folder)
        if index is None:
            raise FileNotFoundError(
                f"{folder} is no folder of packed images: it has no {INDEX}; make one with: sitewise data pack"
            )
        problems = Problems(f"packed images {folder}")
        if index.format != FORMAT:
            problems.add(f"this version reads {FORMAT!r}, the folder has {index.format!r}: pack the images anew")
            problems.raise_if_any()
        found = [read_record(folder, shard) for shard in range(index.n_shards)]
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
            found = pool.map(lambda id, file: what_changed(packed.get(id), file, by_hash), ids.tolist(), manifest.files)
            return [
                Change(id, path, what)
                for id, path, what in zip(ids, manifest.table["path"], found, strict=True)
                if what
            ]

    def digest(self) -> str:
        """A hash of these images in their order, from the shards' checksums: no pixel is read."""
        found = hashlib.sha256(f"{self.shape} {self.index.rows_per_shard}".encode())
        for shard in np.unique(self.rows // self.index.rows_per_shard).tolist():
            found.update(f"{shard} {self.records[shard].sha256}".encode())
        found.update(self.rows.astype("<i8").tobytes())
        return found.hexdigest()

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


def _check_shards(
    folder: Path, index: PackIndex, records: tuple[ShardRecord, ...], verify: bool, problems: Problems
) -> None:
    def wrong_with(shard: int) -> str | None:
        path = folder / shard_name(shard)
        found = damage(path, index.shard_shape(shard))
        if found is None and len(records[shard].sources) != len(index.shard_rows(shard)):
            path, found = path.with_suffix(".json"), "is damaged: it does not list the shard's rows"
        if found is None and verify and sha256_of(path) != records[shard].sha256:
            found = f"is damaged: its SHA-256 is not {records[shard].sha256}"
        return None if found is None else f"{path.name} {found}"

    with ThreadPoolExecutor(available_cores()) as pool:
        damaged = [found for found in pool.map(wrong_with, range(index.n_shards)) if found]
    for found in damaged:
        problems.add(f"{found}; remove it and pack again, the others are kept")
