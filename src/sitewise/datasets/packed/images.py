"""Images of a pack, read from memory-mapped shards when they are needed."""

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
from sitewise.tables.manifest import Manifest
from sitewise.tables.manifest.checking import available_cores
from sitewise.tables.manifest.table import SHOWN


class ShardMaps:
    """The arrays of the shards, memory-mapped on first use. They are not pickled, so each process maps them itself."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.maps: dict[int, Array] = {}

    def __getitem__(self, shard: int) -> Array:
        if shard not in self.maps:
            # A plain array, because indexing an np.memmap takes longer than copying the rows.
            self.maps[shard] = np.asarray(np.load(self.folder / shard_name(shard), mmap_mode="r"))
        return self.maps[shard]

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder, "maps": {}}


@dataclass(frozen=True, eq=False)
class PackedImages:
    """Images of a pack, indexed like an array (n, C, H, W) and read from the disk when they are needed.

    A pack is a folder with images of one size, decoded and stored in a few large arrays (shards). `sitewise data pack`
    makes a pack, and `PackedImages.open` opens it.

    Parameters
    ----------
    folder : Path
        The folder of the pack.
    index : PackIndex
        The size, channels and number of the pack's images, and how they are divided into shards.
    records : tuple of ShardRecord
        The checksum of each shard, and the files that its images were read from.
    rows : array of int
        The positions of these images in the pack.
    shards : ShardMaps
        The memory-mapped shards.

    Examples
    --------
    >>> images = PackedImages.open("packed")
    >>> images[0], images[10:20], images[[5, 3]], images[mask]     # uint8 arrays in memory
    >>> images.take(mask), images.by_id(ids)                       # images on the disk
    """

    folder: Path
    index: PackIndex
    records: tuple[ShardRecord, ...]
    rows: Array
    shards: ShardMaps

    @classmethod
    def open(cls, folder: Folder, *, verify: bool = False) -> "PackedImages":
        """Open a pack.

        Parameters
        ----------
        folder : path
            The folder of the pack.
        verify : bool
            Whether to compare every shard with its checksum, which reads all shards.

        Returns
        -------
        PackedImages
            All images of the pack.
        """
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
        by_shard = [read_record(folder, shard) for shard in range(index.n_shards)]
        if None in by_shard:
            done = sum(record is not None for record in by_shard)
            problems.add(f"packing was not finished, {done} of {len(by_shard)} shard(s) are there: run it again")
        records = tuple(record for record in by_shard if record is not None)
        if len(records) == len(by_shard):
            _check_shards(folder, index, records, verify, problems)
        problems.raise_if_any()
        return cls(folder, index, records, np.arange(index.rows), ShardMaps(folder))

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The shape (n, C, H, W)."""
        return len(self), self.index.channels, self.index.size, self.index.size

    @property
    def ndim(self) -> int:
        """The number of axes: rows, channels, height, width."""
        return 4

    @property
    def dtype(self) -> np.dtype[Any]:
        """The data type of the pixels: uint8."""
        return np.dtype(np.uint8)

    @cached_property
    def ids(self) -> Array:
        """The ids of the images."""
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
        """Select images by position or mask, without reading them.

        Parameters
        ----------
        rows : slice, array of int or array of bool
            Positions of the images, or a mask.

        Returns
        -------
        PackedImages
            The selected images.
        """
        return replace(self, rows=self._chosen(rows))

    def by_id(self, ids: Iterable[str]) -> "PackedImages":
        """Select images by id, without reading them.

        Parameters
        ----------
        ids : iterable of str
            The ids; all must be in the pack.

        Returns
        -------
        PackedImages
            One image for each id, in the order of `ids`.
        """
        wanted = pd.Index(list(ids), dtype=object)
        rows = pd.Index(self.ids).get_indexer(wanted)
        if (rows < 0).any():
            absent = wanted[rows < 0]
            shown = ", ".join(map(repr, absent[:SHOWN])) + (", ..." if len(absent) > SHOWN else "")
            raise ValueError(f"{len(absent)} image(s) are not among those packed in {self.folder}: {shown}")
        return self.take(rows)

    def changed(self, manifest: Manifest, *, by_hash: bool = False) -> list[Change]:
        """Find the rows of a manifest whose image files are not as they were packed.

        Parameters
        ----------
        manifest : Manifest
            The manifest to compare with.
        by_hash : bool
            Whether to compare the content of the files, which reads all files. If false, only their size and
            modification time are compared. Use true if the files were copied after packing, because copies may have
            another modification time.

        Returns
        -------
        list of Change
            The id and path of each row that differs, and the kind of difference (`what`): "missing", "size", "time",
            "content" or "not packed".
        """
        packed = {source.id: source for record in self.records for source in record.sources}
        ids = manifest.table["id"].astype(str)
        with ThreadPoolExecutor(available_cores()) as pool:
            changes = pool.map(
                lambda id, file: what_changed(packed.get(id), file, by_hash), ids.tolist(), manifest.files
            )
            return [
                Change(id, path, what)
                for id, path, what in zip(ids, manifest.table["path"], changes, strict=True)
                if what
            ]

    def digest(self) -> str:
        """Return a hash of these images and their order.

        It is computed from the checksums of the shards; no pixels are read.

        Returns
        -------
        str
            The SHA-256 in hexadecimal digits.
        """
        digest = hashlib.sha256(f"{self.shape} {self.index.rows_per_shard}".encode())
        for shard in np.unique(self.rows // self.index.rows_per_shard).tolist():
            digest.update(f"{shard} {self.records[shard].sha256}".encode())
        digest.update(self.rows.astype("<i8").tobytes())
        return digest.hexdigest()

    def _chosen(self, key: Any) -> Array:
        """Convert an index into these images to rows of the pack."""
        if not isinstance(key, slice):
            key = np.asarray(key)
            key = key if key.dtype == bool else key.astype(np.int64, casting="unsafe" if not key.size else "same_kind")
        return np.asarray(self.rows[key])

    def _copy(self, rows: Array) -> Array:
        images = np.empty((len(rows), *self.shape[1:]), dtype=np.uint8)
        shards, places = np.divmod(rows, self.index.rows_per_shard)
        order = np.argsort(rows, kind="stable")  # the order on the disk
        for row, shard, place in zip(order.tolist(), shards[order].tolist(), places[order].tolist(), strict=True):
            images[row] = self.shards[shard][place]
        return images


def _check_shards(
    folder: Path, index: PackIndex, records: tuple[ShardRecord, ...], verify: bool, problems: Problems
) -> None:
    def problem_of(shard: int) -> str | None:
        path = folder / shard_name(shard)
        problem = damage(path, index.shard_shape(shard))
        if problem is None and len(records[shard].sources) != len(index.shard_rows(shard)):
            path, problem = path.with_suffix(".json"), "is damaged: it does not list the shard's rows"
        if problem is None and verify and sha256_of(path) != records[shard].sha256:
            problem = f"is damaged: its SHA-256 is not {records[shard].sha256}"
        return None if problem is None else f"{path.name} {problem}"

    with ThreadPoolExecutor(available_cores()) as pool:
        damaged = [problem for problem in pool.map(problem_of, range(index.n_shards)) if problem]
    for problem in damaged:
        problems.add(f"{problem}; remove it and pack again, the others are kept")
