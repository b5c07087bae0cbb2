"""Example images of each site with their labels and z, from a collection, a manifest or a pack."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sitewise.arrays import did_you_mean
from sitewise.bench.datasets.catalogue import COLLECTIONS
from sitewise.bench.datasets.digits import colored_site
from sitewise.bench.datasets.mnist import load_digits
from sitewise.bench.datasets.small_images import SmallImages, load_cxr64, load_isic64
from sitewise.datasets.packed import PackedImages
from sitewise.datasets.packed.index import INDEX
from sitewise.tables.images import read_image
from sitewise.tables.manifest import Manifest, read_manifest

Array = np.ndarray[Any, Any]
Folder = str | os.PathLike[str] | None

SMALL_SETS = {"isic64": load_isic64, "cxr64": load_cxr64}
COLORED_DIGITS = "colored_digits"
BETAS = (0.9, 0.7, 0.5, 0.3)  # the paper's sites: two for training, one for validation, one for testing
N_DIGITS = 1000  # rows of each of these sites
SIZE = 224  # pixels of an image that is read from its file
SHOWABLE = (COLORED_DIGITS, *SMALL_SETS, *(name for name, one in COLLECTIONS.items() if one.build is not None))


@dataclass(frozen=True, eq=False)
class Examples:
    """Example images of a site, each uint8 (C, H, W), with their labels and z if there are any.

    `n_rows` and `prevalence` describe the whole site. `positive` is the second class if there are two.
    """

    site: str
    images: tuple[Array, ...]
    labels: tuple[Any, ...] | None = None
    Z: pd.DataFrame | None = None
    n_rows: int = 0
    positive: Any = None
    prevalence: float | None = None


def load_examples(
    source: str,
    folder: Folder = None,
    *,
    n: int = 6,
    seed: int = 0,
    columns: Mapping[str, Any] | None = None,
    packed: Folder = None,
) -> list[Examples]:
    """Choose n images of each site of a source, half of them positive if there are enough.

    `source` is a name in `SHOWABLE`, whose data are in `folder`; or the path of a manifest, whose image paths are
    relative to `folder` and which is read with `columns` as arguments of `read_manifest`; or a folder of packed images,
    which counts as one site. If `packed` is given, images of a manifest or a collection are read from this pack instead
    of from their files.
    """
    if source == COLORED_DIGITS:
        return _of_digits(folder, n, seed)
    if source in SMALL_SETS:
        return _of_small_set(SMALL_SETS[source](_needed(source, folder)), n, seed)
    if source in SHOWABLE:
        build = COLLECTIONS[source].build
        assert build is not None
        return _of_manifest(build(Path(_needed(source, folder))), n, seed, packed)
    if (Path(source) / INDEX).is_file():
        return [_of_pack(PackedImages.open(source), Path(source).name, n, seed)]
    if Path(source).suffix:
        return _of_manifest(read_manifest(source, root=folder, **columns or {}), n, seed, packed)
    raise ValueError(
        f"{source!r} is neither one of {', '.join(SHOWABLE)} nor a manifest nor a folder of packed images"
        f"{did_you_mean(source, SHOWABLE)}"
    )


def choose_rows(is_positive: Array | None, n_rows: int, n: int, seed: int) -> Array:
    """Draw n row numbers: half of the rows are positive if there are enough, and positive rows come first.

    If labels are unknown (`is_positive` is None), any rows are drawn.
    """
    rng = np.random.default_rng(seed)
    if is_positive is None:
        return np.sort(rng.permutation(n_rows)[:n])
    high, low = (rng.permutation(np.flatnonzero(mask)) for mask in (is_positive, ~is_positive))
    n_high = min(len(high), max(n // 2, n - len(low)))
    return np.concatenate([high[:n_high], low[: n - n_high]])


def _of_digits(folder: Folder, n: int, seed: int) -> list[Examples]:
    digits = load_digits(folder)
    sites = [colored_site(digits, N_DIGITS, beta=beta, name=f"β = {beta}", seed=seed) for beta in BETAS]
    return [_chosen(s.name, pd.Series(s.y), s.Z, s.X.__getitem__, (0, 1), n, seed) for s in sites]


def _of_small_set(data: SmallImages, n: int, seed: int) -> list[Examples]:
    def at(name: str) -> Examples:
        table = data.table[data.table["site"] == name]
        z = table[list(data.confounders)]
        return _chosen(name, table["y"], z, lambda r: replace(data, table=table.iloc[r]).site(name).X, (0, 1), n, seed)

    return [at(name) for name in data.sites]


def _of_manifest(manifest: Manifest, n: int, seed: int, packed: Folder) -> list[Examples]:
    images = None if packed is None else PackedImages.open(packed)

    def at(name: str) -> Examples:
        here = manifest.at(name)

        def fetch(rows: Array) -> Any:
            if images is not None:
                return images.by_id(here.table["id"].iloc[rows])
            return [read_image(here.root / path, SIZE) for path in here.table["path"].iloc[rows]]

        z = here.table[list(here.confounders)] if here.confounders else None
        labels = here.table["y"] if here.labeled else None
        return _chosen(name, labels, z, fetch, manifest.classes, n, seed, len(here))

    return [at(name) for name in manifest.sites]


def _of_pack(images: PackedImages, name: str, n: int, seed: int) -> Examples:
    return _chosen(name, None, None, images.take, (), n, seed, len(images))


def _chosen(
    site: str,
    labels: pd.Series | None,
    Z: pd.DataFrame | None,
    fetch: Callable[[Array], Any],
    classes: tuple[Any, ...],
    n: int,
    seed: int,
    n_rows: int | None = None,
) -> Examples:
    """Choose rows by their labels, and read the images of these rows only."""
    total = len(labels) if labels is not None else n_rows or 0
    positive = classes[1] if labels is not None and len(classes) == 2 else None
    is_positive = None if labels is None or positive is None else (labels == positive).to_numpy()
    rows = choose_rows(is_positive, total, n, seed)
    return Examples(
        site,
        images=tuple(np.asarray(fetch(rows))) if len(rows) else (),
        labels=None if labels is None else tuple(labels.iloc[rows].tolist()),
        Z=None if Z is None else Z.iloc[rows].reset_index(drop=True),
        n_rows=total,
        positive=positive,
        prevalence=None if is_positive is None else float(is_positive.mean()),
    )


def _needed(source: str, folder: Folder) -> str | os.PathLike[str]:
    if folder is None:
        raise ValueError(f"{source} is not part of the package: give its folder with --data-dir")
    return folder
