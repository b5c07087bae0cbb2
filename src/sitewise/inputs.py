"""Inputs x: a tensor, or images on the disk, which threads read in advance."""

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
DEVICE_SHARE = 0.5  # largest share of a GPU's free memory for images; the rest is for training
STRETCH_BYTES = 2**26  # bytes read at a time when all images are read in order
BATCHES_AHEAD = 6
READERS = 4  # threads


@dataclass(frozen=True, eq=False)
class StoredImages:
    """Images (n, C, H, W) of uint8 on the disk, indexed like a tensor.

    `images` is `PackedImages`, or any object with `shape`, `dtype`, indexing by rows, and `take(rows)`, which selects
    rows without reading them. `share` is the largest share of a GPU's free memory that the images may take. `verbose`
    shows a progress bar while images are copied to a GPU; with None the bar is shown on a terminal only.
    """

    images: Any
    share: float = DEVICE_SHARE
    verbose: bool | None = None

    @property
    def shape(self) -> torch.Size:
        """The shape (n, C, H, W)."""
        return torch.Size(self.images.shape)

    @property
    def ndim(self) -> int:
        """The number of axes: rows, channels, height, width."""
        return len(self.shape)

    @property
    def dtype(self) -> torch.dtype:
        """The type of a pixel."""
        return torch.uint8

    def __len__(self) -> int:
        return self.shape[0]

    def numel(self) -> int:
        """Return the number of bytes of all images."""
        return self.shape.numel()

    def is_floating_point(self) -> bool:
        """Return False: pixels are uint8."""
        return False

    def __getitem__(self, rows: Any) -> Tensor:
        """Read some rows into memory."""
        return torch.from_numpy(np.require(self.images[_on_host(rows)], np.uint8, ["C", "W"]))

    def take(self, rows: Any) -> "StoredImages":
        """Select some rows without reading them."""
        return replace(self, images=self.images.take(_on_host(rows)))

    def read(self, rows: Rows, device: torch.device) -> Tensor:
        """Read some rows into page-locked memory for a GPU, or into ordinary memory for a CPU."""
        if device.type != "cuda":
            return self[rows]
        pixels = self.images[_on_host(rows)]
        with torch.cuda.device(device):  # in a new thread the current device is the first GPU
            pinned = torch.empty(pixels.shape, dtype=torch.uint8, pin_memory=True)
        np.copyto(pinned.numpy(), pixels)
        return pinned

    def to(self, device: torch.device | None) -> "Inputs":
        """Copy all images to a GPU if they fit into their share of its memory; otherwise return them unchanged."""
        if device is None or device.type != "cuda" or self.numel() > self.share * _free_memory(device):
            return self
        placed = torch.empty(self.shape, dtype=torch.uint8, device=device)
        places = self._stretches()
        with read_ahead(self, places, device) as read:
            for place in with_bar(places, f"images to {device}", self.verbose):
                placed[place] = read(place)
        return placed

    def digest(self) -> str:
        """Return a hash of the content: the result of `images.digest()` if it exists, else a hash of all bytes."""
        if hasattr(self.images, "digest"):
            return str(self.images.digest())
        digest = hashlib.sha256(f"{tuple(self.shape)}".encode())
        places = self._stretches()
        with read_ahead(self, places, None) as read:
            for place in places:
                digest.update(read(place).numpy().data)
        return digest.hexdigest()

    def _stretches(self) -> list[slice]:
        """Return all rows as slices of about `STRETCH_BYTES` each."""
        step = max(1, STRETCH_BYTES // max(1, self.shape[1:].numel()))
        return [slice(start, start + step) for start in range(0, len(self), step)]


Inputs = Tensor | StoredImages


def is_stored(value: Any) -> bool:
    """Return whether a value is an object for `StoredImages`: images on the disk that can be read in parts."""
    if isinstance(value, np.ndarray | Tensor):
        return False
    return getattr(value, "ndim", 0) == 4 and all(hasattr(value, name) for name in ("shape", "dtype", "take"))


def fingerprint(X: Inputs) -> Tensor | str:
    """Return a value to hash in place of the inputs: the tensor itself, or the hash of stored images."""
    return X if isinstance(X, Tensor) else X.digest()


def take_inputs(X: Inputs, rows: Tensor) -> Inputs:
    """Select some rows; stored images are not read."""
    return X[rows] if isinstance(X, Tensor) else X.take(rows)


class ReadAhead:
    """Reads batches of stored images in threads before they are requested, in the order of `upcoming`.

    At most `BATCHES_AHEAD` batches are kept. An error in a thread is raised when its batch is requested. The threads
    stop at the end of the `with` block, also after an exception.
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
        """Return the next batch on the device; the copy to a GPU does not block this process."""
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
    """Provide a function that returns the rows of a batch.

    Batches of stored images must be requested in the order of `upcoming`. For a tensor, the function only indexes it.
    """
    if isinstance(X, Tensor):
        yield X.__getitem__
        return
    with ReadAhead(X, upcoming, device or torch.device("cpu")) as reader:
        yield reader


def _on_host(rows: Any) -> Any:
    return rows.cpu().numpy() if isinstance(rows, Tensor) else rows


def _alike(rows: Rows, expected: Rows) -> bool:
    """Return whether these are the expected rows.

    If the row numbers are on a GPU, only their count is compared, because comparing values would wait for the GPU.
    """
    if isinstance(rows, slice) or isinstance(expected, slice):
        return rows == expected
    return len(rows) == len(expected) if rows.is_cuda else torch.equal(rows, expected)


def _free_memory(device: torch.device) -> int:
    """Return the free bytes of a GPU, including those that torch has reserved but does not use."""
    free, _ = torch.cuda.mem_get_info(device)
    return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))


def with_bar(places: list[slice], label: str, verbose: bool | None) -> Iterator[slice]:
    """Iterate over slices, with a progress bar if `verbose`; None means a bar on a terminal only."""
    if not (sys.stderr.isatty() if verbose is None else verbose):
        yield from places
        return
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    yield from track(places, label, console=console, transient=console.is_terminal)
