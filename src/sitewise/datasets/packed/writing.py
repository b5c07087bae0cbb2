"""Pack images: decode and resize all images of a manifest into shards, in several threads; it can be resumed."""

import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np

from sitewise.arrays import Problems
from sitewise.datasets.packed.images import PackedImages
from sitewise.datasets.packed.index import (
    INDEX,
    PART,
    Array,
    Folder,
    PackIndex,
    Source,
    damage,
    read_index,
    read_record,
    sha256_of,
    shard_name,
    what_changed,
    write_json,
)
from sitewise.tables.images import NO_PILLOW, decode_image
from sitewise.tables.manifest import Manifest
from sitewise.tables.manifest.checking import add_unreadable, available_cores, check_files
from sitewise.tables.manifest.table import ROWS_FROM
from sitewise.version import __version__

SHARD_BYTES = 256 * 2**20


def pack(
    manifest: Manifest,
    folder: Folder,
    size: int = 224,
    *,
    channels: int = 3,
    jobs: int | None = None,
    shard_bytes: int = SHARD_BYTES,
    progress: bool | None = None,
) -> PackedImages:
    """Decode and resize all images of a manifest as `read_image` does, write them to a folder, and open the pack.

    A second call continues where the first one stopped. It packs shards again if their source files have changed.

    Parameters
    ----------
    manifest : Manifest
        The images and their ids.
    folder : path
        The folder of the pack.
    size : int
        Height and width of the packed images, in pixels.
    channels : {3, 1}
        3 for RGB, 1 for gray.
    jobs : int, optional
        The number of threads; one for each core by default.
    shard_bytes : int
        The largest size of a shard in bytes. Two shards are held in memory.
    progress : bool, optional
        Whether to show a progress bar; by default only on a terminal.

    Returns
    -------
    PackedImages
        The packed images.
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
                # One thread writes the shard while the others decode the next one.
                writing = pool.submit(_write_shard, folder, shard, pixels, sources) if sources else None
            if writing is not None:
                writing.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    add_unreadable(problems, unreadable)
    if unreadable:
        problems.add("all other shards are packed: fix these files or drop their rows, and pack again")
    problems.raise_if_any()
    return PackedImages.open(folder)


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
        sitewise=__version__,
        pillow=pillow,
    )


def _begin(folder: Path, index: PackIndex) -> None:
    """Make the folder of a new pack, or check that an existing one is the same pack."""
    there = read_index(folder)
    if there is None:
        if folder.is_dir() and any(folder.iterdir()):
            raise ValueError(f"{folder} holds other files and no {INDEX}: pack into a new or empty folder")
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / INDEX, asdict(index))
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
    for unfinished in folder.glob(f"{PART}*"):
        unfinished.unlink()


def _fill(
    pixels: Array,
    manifest: Manifest,
    rows: range,
    pool: ThreadPoolExecutor,
    advance: Callable[[int], None],
    unreadable: dict[int, str],
) -> list[Source]:
    """Decode the rows of a shard into `pixels`; if some cannot be read, add them to `unreadable` and return []."""
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

    results = pool.map(read, range(len(rows)), table["id"].astype(str), table["path"])
    sources = []
    for row, source in zip(rows, results, strict=True):
        advance(1)
        if isinstance(source, str):
            unreadable[row] = source
        else:
            sources.append(source)
    return sources if len(sources) == len(rows) else []


def _write_shard(folder: Path, shard: int, pixels: Array, sources: list[Source]) -> None:
    path = folder / shard_name(shard)
    temporary = path.with_name(PART + path.name)
    with open(temporary, "wb") as file:
        np.save(file, pixels)
    checksum = sha256_of(temporary)
    os.replace(temporary, path)
    columns = {field.name: [getattr(source, field.name) for source in sources] for field in fields(Source)}
    write_json(path.with_suffix(".json"), {"sha256": checksum, "sources": columns})


def _is_done(folder: Path, index: PackIndex, shard: int, manifest: Manifest) -> bool:
    """Return whether a shard is complete and its source files have not changed."""
    record = read_record(folder, shard)
    if record is None or damage(folder / shard_name(shard), index.shard_shape(shard)):
        return False
    rows = index.shard_rows(shard)
    table = manifest.table.iloc[rows.start : rows.stop]
    now = zip(record.sources, table["id"].astype(str), table["path"], strict=True)
    return all(
        source.id == id and source.path == path and what_changed(source, manifest.root / path, by_hash=False) is None
        for source, id, path in now
    )


@contextmanager
def _progress(total: int, shown: bool | None) -> Iterator[Callable[[int], None]]:
    """Show a progress bar with the remaining time; None means on a terminal only."""
    if not (sys.stderr.isatty() if shown is None else shown):
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

    columns = (*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("packing", total=total)
        yield lambda count: bar.advance(task, count)
