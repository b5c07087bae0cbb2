"""Inputs x: a tensor, or images that stay on the disk and are read as they are needed, ahead of whoever needs them."""

import hashlib
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

Rows = Tensor | slice
DEVICE_SHARE = 0.5  # of the memory that is free on a GPU: what images may take there, the rest is for training
STRETCH_BYTES = 2**26  # of those that are read from first to last
BATCHES_AHEAD = 6
READERS = 4  # threads


@dataclass(frozen=True, eq=False)
class StoredImages:
    """Images (n, C, H, W) of bytes on the disk, indexed as a tensor of them would be.

    `images` is `PackedImages`, or anything else with `shape`, `dtype`, rows by `[...]`, and `take(rows)` for some of
    them that stay on the disk. `share` is how much of a GPU's free memory they may take.
    """

    images: Any
    share: float = DEVICE_SHARE
    verbose: bool | None = None

    @property
    def shape(self) -> torch.Size:
        """The shape of all of them."""
        return torch.Size(self.images.shape)

    @property
    def ndim(self) -> int:
        """Four: rows, channels, height, width."""
        return len(self.shape)

    @property
    def dtype(self) -> torch.dtype:
        """Bytes."""
        return torch.uint8

    def __len__(self) -> int:
        return self.shape[0]

    def numel(self) -> int:
        """How many bytes they are."""
        return self.shape.numel()

    def is_floating_point(self) -> bool:
        """They are bytes."""
        return False

    def __getitem__(self, rows: Any) -> Tensor:
        """Read some of them into memory."""
        return torch.from_numpy(np.require(self.images[_on_host(rows)], np.uint8, ["C", "W"]))

    def take(self, rows: Any) -> "StoredImages":
        """Some of them, still on the disk."""
        return replace(self, images=self.images.take(_on_host(rows)))

    def read(self, rows: Rows, device: torch.device) -> Tensor:
        """Read some into memory from which a GPU copies by itself (page-locked), or plain memory for a CPU."""
        if device.type != "cuda":
            return self[rows]
        found = self.images[_on_host(rows)]
        with torch.cuda.device(device):  # a thread begins at the first one
            pinned = torch.empty(found.shape, dtype=torch.uint8, pin_memory=True)
        np.copyto(pinned.numpy(), found)
        return pinned

    def to(self, device: torch.device | None) -> "Inputs":
        """Put them on a GPU where they fit into their share of its memory; otherwise they stay where they are."""
        if device is None or device.type != "cuda" or self.numel() > self.share * _free_memory(device):
            return self
        placed = torch.empty(self.shape, dtype=torch.uint8, device=device)
        places = self._stretches()
        with read_ahead(self, places, device) as read:
            for place in _with_bar(places, f"images to {device}", self.verbose):
                placed[place] = read(place)
        return placed

    def digest(self) -> str:
        """A hash of their content: from the checksums that a pack has of itself, else from every byte."""
        if hasattr(self.images, "digest"):
            return str(self.images.digest())
        found = hashlib.sha256(f"{tuple(self.shape)}".encode())
        places = self._stretches()
        with read_ahead(self, places, None) as read:
            for place in places:
                found.update(read(place).numpy().data)
        return found.hexdigest()

    def _stretches(self) -> list[slice]:
        """All rows, so many at a time as are easily held in memory."""
        step = max(1, STRETCH_BYTES // max(1, self.shape[1:].numel()))
        return [slice(start, start + step) for start in range(0, len(self), step)]


Inputs = Tensor | StoredImages


def is_stored(value: Any) -> bool:
    """Whether these are images on the disk that can be read by and by."""
    if isinstance(value, np.ndarray | Tensor):
        return False
    return getattr(value, "ndim", 0) == 4 and all(hasattr(value, name) for name in ("shape", "dtype", "take"))


def fingerprint(X: Inputs) -> Tensor | str:
    """What tells these inputs from others: themselves, or the checksums of what is stored."""
    return X if isinstance(X, Tensor) else X.digest()


def take_inputs(X: Inputs, rows: Tensor) -> Inputs:
    """Some rows; of stored images without reading them."""
    return X[rows] if isinstance(X, Tensor) else X.take(rows)


class ReadAhead:
    """Stored images batch by batch, read by threads before they are asked for, in the order that was announced.

    Few batches wait at a time. What a reader raises is raised to whoever asks for its batch; the end of the `with`
    block stops the readers, whatever brought it about.
    """

    def __init__(self, images: StoredImages, upcoming: Sequence[Rows], device: torch.device) -> None:
        self._images, self._device = images, device
        self._upcoming = iter(upcoming)
        self._waiting: deque[tuple[Rows, Future[Tensor]]] = deque()
        self._pool = ThreadPoolExecutor(READERS, thread_name_prefix="sitewise read ahead")

    def __enter__(self) -> Self:
        for _ in range(BATCHES_AHEAD):
            self._announce()
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._waiting.clear()

    def __call__(self, rows: Rows) -> Tensor:
        """The next batch, on the device; the GPU copies it while it works, nobody waits for that."""
        expected, future = self._waiting.popleft()
        assert _alike(rows, expected), "batches are asked for in the order that was announced"
        self._announce()
        return future.result().to(self._device, non_blocking=True)

    def _announce(self) -> None:
        rows = next(self._upcoming, None)
        if rows is not None:
            self._waiting.append((rows, self._pool.submit(self._images.read, rows, self._device)))


@contextmanager
def read_ahead(X: Inputs, upcoming: Sequence[Rows], device: torch.device | None) -> Iterator[Callable[[Rows], Tensor]]:
    """A function that gives the announced batches, one after another; a tensor is simply looked up."""
    if isinstance(X, Tensor):
        yield X.__getitem__
        return
    with ReadAhead(X, upcoming, device or torch.device("cpu")) as reader:
        yield reader


def _on_host(rows: Any) -> Any:
    return rows.cpu().numpy() if isinstance(rows, Tensor) else rows


def _alike(rows: Rows, expected: Rows) -> bool:
    """Whether these are the rows expected; on a GPU only their number is compared, for a look would be a wait."""
    if isinstance(rows, slice) or isinstance(expected, slice):
        return rows == expected
    return len(rows) == len(expected) if rows.is_cuda else torch.equal(rows, expected)


def _free_memory(device: torch.device) -> int:
    """Bytes that a GPU has left, those included that torch holds and does not use."""
    free, _ = torch.cuda.mem_get_info(device)
    return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))


def _with_bar(places: list[slice], label: str, verbose: bool | None) -> Iterator[slice]:
    """Go through places with a progress bar on a terminal, without one elsewhere."""
    if not (sys.stderr.isatty() if verbose is None else verbose):
        yield from places
        return
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    yield from track(places, label, console=console, transient=console.is_terminal)
