"""Kinds of data with image files: the paper's collections and any manifest. Images are packed once."""

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from sitewise.arrays import Problems, did_you_mean
from sitewise.bench.datasets.catalogue import COLLECTIONS
from sitewise.bench.datasets.cxr import BUILDERS, build_cxr
from sitewise.bench.datasets.isic import build_isic
from sitewise.bench.experiments.experiment import TEST, TRAINING, VALIDATION, Experiment, SiteSpec
from sitewise.bench.experiments.populations import Folder, Kind, Options, Population, no_faults
from sitewise.datasets.image_sites import to_site
from sitewise.datasets.packed import PackedImages
from sitewise.datasets.packed.writing import pack
from sitewise.sites import Site
from sitewise.tables.manifest import Manifest, read_manifest
from sitewise.tables.manifest.splitting import assign_sites

SIZE = 224  # pixels of a side, as in the paper
PACKED = "packed"  # the folder of packed images, in the folder of the data
CACHE = "SITEWISE_CACHE"  # the environment variable that names another folder for packed images
COMMON = ("size", "channels", "at_most")
COLUMNS = ("image", "site", "target", "confounders", "group", "id", "classes", "categorical")
NO_VALIDATION = "validation: name its site, as in {site: NY2}"


@dataclass(frozen=True, eq=False)
class ImageCollection:
    """A table of image files, which are packed on first use."""

    kind: str
    manifest: Manifest
    packs: Path
    size: int
    channels: int

    @cached_property
    def name(self) -> str:
        """The kind, the number of rows and a hash of the table, which identify its content."""
        manifest = self.manifest
        columns = ["id", "site", "y", *manifest.confounders, *(("group",) if "group" in manifest.table else ())]
        text = manifest.table[columns].to_csv(index=False)
        return f"{self.kind}, {len(manifest)} images, {hashlib.sha256(text.encode()).hexdigest()[:12]}"

    @cached_property
    def images(self) -> PackedImages:
        """The packed images. They are packed if needed, also after files have changed, by one process at a time."""
        ids = "\n".join(self.manifest.table["id"].astype(str))
        mark = hashlib.sha256(ids.encode()).hexdigest()[:8]
        folder = self.packs / f"{self.kind}-{self.size}x{self.channels}-{mark}"
        with _alone(folder):
            return pack(self.manifest, folder, self.size, channels=self.channels)

    def site(self, name: str, label: str) -> Site:
        """Return the site `name` of the table under the name `label`; y has class numbers, and images stay on disk."""
        number_of = {value: number for number, value in enumerate(self.manifest.classes)}
        whole = to_site(self.manifest, self.images, name)
        return replace(whole, name=label, y=np.array([number_of[value] for value in whole.y.tolist()]))


def join_images(parts: Sequence[Any]) -> Any:
    """Join the inputs of several sites: images of the same pack stay on disk, other inputs become one array."""
    first = parts[0]
    if all(isinstance(part, PackedImages) and part.folder == first.folder for part in parts):
        return replace(first, rows=np.concatenate([part.rows for part in parts]))
    return np.concatenate(parts)


def needed_folder(data: Options, folder: Folder) -> str:
    """Return the folder of the data; if it is None, a ValueError says how to set it."""
    if folder is None:
        raise ValueError(f"{data['kind']} is not part of the package: give its folder with --data-dir or SITEWISE_DATA")
    return folder


def load_isic(data: Options, folder: Folder) -> ImageCollection:
    """Load the paper's ISIC sites from the tables and images in a folder."""
    root = needed_folder(data, folder)
    return _collect(data, build_isic(root, group=data.get("group", "lesion")), root)


def load_cxr(data: Options, folder: Folder) -> ImageCollection:
    """Load the chest X-ray collections; each has its own folder, with its name, in the folder of the data."""
    root = needed_folder(data, folder)
    return _collect({"channels": 1} | data, build_cxr(root, data.get("collections", tuple(BUILDERS))), root)


def load_manifest(data: Options, folder: Folder) -> ImageCollection:
    """Load a user's table of images.

    The path of the table and the image paths in it are relative to `folder`. Without a folder, the image paths are
    relative to the folder of the table.
    """
    file = Path(folder or ".") / data["manifest"]
    columns = {name: data[name] for name in COLUMNS if name in data}
    return _collect(data, read_manifest(file, root=folder, **columns), folder or file.parent)


def prepare_images(collection: ImageCollection, experiment: Experiment) -> None:
    """Check that each site exists and has one role, and that no group has rows in two roles; then pack the images."""
    problems = Problems(f"sites of {experiment.name}")
    sites = collection.manifest.sites
    if "site" not in experiment.validation.options:
        problems.add(NO_VALIDATION)
    specs = (*experiment.training, experiment.validation, *experiment.tests)
    for name in dict.fromkeys(site_name(spec) for spec in specs if spec.name != VALIDATION or "site" in spec.options):
        if name not in sites:
            problems.add(_absent(collection, name))
    problems.raise_if_any()
    assign_sites(
        collection.manifest,
        training=[site_name(spec) for spec in experiment.training],
        validation=site_name(experiment.validation),
        tests=[site_name(spec) for spec in experiment.tests],
    )
    assert len(collection.images) == len(collection.manifest)


def site_name(spec: SiteSpec) -> str:
    """Return the name of a site in the table: the option `site`, or by default its name in the experiment."""
    return str(spec.options.get("site", spec.name))


def image_population(
    data: Options, name: str, options: Options, collection: ImageCollection, rng: np.random.Generator
) -> Population:
    """Return the population of a real site; each draw is all of its images."""
    site = collection.site(str(options.get("site", name)), name)
    shares = np.bincount(site.y, minlength=len(collection.manifest.classes)) / len(site)
    return Population(lambda n, seed: site, shares, None)


def image_faults(data: Options) -> list[str]:
    """Return the problems of the options that all kinds of image data have."""
    faults = []
    for name in ("size", "at_most"):
        value = data.get(name, 1)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            faults.append(f"{name} must be a whole number of at least 1, got {value!r}")
    if data.get("channels", 1) not in (1, 3):
        faults.append(f"channels must be 1 (gray) or 3 (RGB), got {data['channels']!r}")
    return faults


def manifest_faults(data: Options) -> list[str]:
    """Return the problems of the options of a manifest; the file itself is not read."""
    faults = image_faults(data)
    if not isinstance(data.get("manifest"), str):
        faults.append(f"manifest must name a CSV or Parquet file, got {data.get('manifest')!r}")
    for name in ("image", "site", "target", "group", "id"):
        if not isinstance(data.get(name, ""), str):
            faults.append(f"{name} must name a column, got {data[name]!r}")
    for name in ("confounders", "classes", "categorical"):
        if not isinstance(data.get(name, []), list):
            faults.append(f"{name} must be a list, as in [age, sex], got {data[name]!r}")
        elif any(isinstance(value, bool) for value in data.get(name, [])):
            faults.append(f"{name} has true or false, as YAML reads yes and no: put the words in quotes")
    return faults


def _collect(data: Options, manifest: Manifest, root: str | Path) -> ImageCollection:
    packs = Path(os.environ.get(CACHE) or Path(root) / PACKED)
    kept = manifest if "at_most" not in data else _at_most(manifest, data["at_most"])
    return ImageCollection(data["kind"], kept, packs, data.get("size", SIZE), data.get("channels", 3))


def _at_most(manifest: Manifest, n_rows: int) -> Manifest:
    """Keep at most `n_rows` rows of each site, chosen by a hash of their ids, in the order of the table."""
    mixed = manifest.table["id"].map(lambda id: int(hashlib.sha256(str(id).encode()).hexdigest()[:12], 16))
    return manifest.take((mixed.groupby(manifest.table["site"]).rank() <= n_rows).to_numpy())


def _absent(collection: ImageCollection, name: str) -> str:
    known = collection.manifest.sites
    reasons = COLLECTIONS[collection.kind].reasons if collection.kind in COLLECTIONS else {}
    reason = reasons.get(name, f"the sites are {', '.join(known)}")
    return f"there is no site {name!r}{did_you_mean(name, known)}; {reason}"


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold a lock within the block; other processes that pack into this folder wait for it."""
    lock = FileLock(folder.with_name(f".{folder.name}.lock"))
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except OSError as error:
        raise ValueError(
            f"packed images cannot be written to {folder.parent} ({error.strerror}): "
            f"name another folder by the environment variable {CACHE}"
        ) from error
    try:
        yield
    finally:
        lock.release()


def _image_kind(
    data: tuple[str, ...],
    load: Callable[[Options, Folder], ImageCollection],
    data_faults: Callable[[Options], list[str]] = image_faults,
) -> Kind:
    return Kind(
        data=(*COMMON, *data),
        site=("site",),
        faults=no_faults,
        populate=image_population,
        load=load,
        split=lambda collection, seed: dict.fromkeys((TRAINING, VALIDATION, TEST), collection),
        real=True,
        data_faults=data_faults,
        prepare=prepare_images,
    )


IMAGE_KINDS: dict[str, Kind] = {
    "isic": _image_kind(("group",), load_isic),
    "cxr": _image_kind(("collections",), load_cxr),
    "manifest": _image_kind(("manifest", *COLUMNS), load_manifest, manifest_faults),
}
