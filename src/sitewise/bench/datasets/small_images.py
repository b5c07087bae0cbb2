"""Two sets of small real images, 64 x 64: skin lesions (isic64) and chest X-rays (cxr64), each at several sites.

A set is a folder with two files. NAME.npz has all JPEG files in one array (`jpeg`) and the position in it at which each
file starts (`offsets`). NAME_meta.csv.gz has a row for each image. An image is decoded on first use and kept in memory.
"""

import os
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sitewise.arrays import Problems
from sitewise.bench.datasets.isic_tables import PLACES
from sitewise.bench.datasets.tables import as_ages, as_levels, as_numbers, as_sexes, read_table
from sitewise.sites import Site, Sites
from sitewise.tables.images import decode_image

Array = np.ndarray[Any, Any]
Folder = str | os.PathLike[str]

SIDE = 64
HELD_OUT = (0.25, 0.25)  # shares of NIH's patients for validation and for the test
ISIC64_TRAINING = ("HAM_rosendahl", "HAM_vidir_modern", "HAM_vidir_molemax")
ISIC64_VALIDATION = "HAM_vienna_dias"
ISIC64_TESTS = ("NY3", "BCN2")
ISIC64_CENTRES = (*ISIC64_TRAINING, ISIC64_VALIDATION)  # the centres of HAM10000
ISIC64_HELD_OUT, ISIC64_SHARE = "held-out lesions", 0.2
CXR64_VALIDATION, CXR64_HOME = "NIH validation", "NIH test"


@dataclass(frozen=True, eq=False)
class SmallImages:
    """A set of small images, with a table of its rows.

    The table has the columns `row` (the number of the image), `site`, `y`, the confounders, `group` and `id`.
    """

    name: str
    folder: Path
    table: pd.DataFrame
    confounders: tuple[str, ...]
    channels: int

    @property
    def sites(self) -> tuple[str, ...]:
        """The names of the sites, sorted."""
        return tuple(sorted(self.table["site"].unique()))

    def site(self, name: str) -> Site:
        """Return a site with its images, uint8 (n, C, 64, 64)."""
        rows = self.table[self.table["site"] == name]
        if not len(rows):
            raise KeyError(f"{self.name} has no site {name!r}; the sites are {', '.join(self.sites)}")
        return Site(
            name,
            X=_pack(self.folder, self.name, self.channels).take(rows["row"].to_numpy()),
            y=rows["y"].to_numpy(),
            Z=rows[list(self.confounders)].reset_index(drop=True),
            groups=rows["group"].to_numpy(dtype=object),
        )

    def site_table(self) -> pd.DataFrame:
        """Return a table with a row for each site: samples, groups, prevalence, share of missing values in each z."""
        by_site = self.table.groupby("site", sort=True)
        summary = pd.DataFrame(
            {"samples": by_site.size(), "groups": by_site["group"].nunique(), "prevalence": by_site["y"].mean()}
        )
        for name in self.confounders:
            summary[f"missing {name}"] = self.table[name].isna().groupby(self.table["site"]).mean()
        return summary


@dataclass(frozen=True)
class SiteRoles:
    """The sites of an experiment by their role; no group has rows in two roles."""

    training: Sites
    validation: Site
    tests: Sites


def load_isic64(folder: Folder) -> SmallImages:
    """Read the table of isic64, small images of skin lesions. `isic64_roles` makes the sites of its experiment.

    A site is a collection of images in the ISIC Archive, or one of the four centres of HAM10000. y is 1 for melanoma. z
    is age, anatomical site (anterior, posterior and lateral torso are one level) and sex. The group of a row is its
    lesion; if this is unknown, its patient; if both are unknown, each image is its own group.

    Parameters
    ----------
    folder : path
        The folder with the table and the images, or the folder that contains it as `isic64`.

    Returns
    -------
    SmallImages
        The set, with its table in `table`. The images are read later, when a site is made.
    """
    path, problems = _meta(folder, "isic64")
    columns = ("isic_id", "env", "y", "dx", "age_approx", "sex", "anatom_site_general", "lesion_id", "patient_id")
    rows = read_table(path, columns, problems)
    table = pd.DataFrame(
        {
            "site": rows["env"],
            "y": as_numbers(rows["y"], path, problems),
            "age": as_ages(rows["age_approx"], path, problems),
            "anatomical_site": as_levels(rows["anatom_site_general"], PLACES, path, problems),
            "sex": as_sexes(rows["sex"], path, problems),
            "group": rows["lesion_id"].fillna(rows["patient_id"]).fillna(rows["isic_id"]),
            "id": rows["isic_id"],
            "dx": rows["dx"],
        }
    )
    return _small("isic64", path, table, ("age", "anatomical_site", "sex"), 3, problems)


def isic64_roles(data: SmallImages) -> SiteRoles:
    """Return the sites of the experiment with isic64 by their role.

    Training sites are three centres of HAM10000, the validation site is the fourth centre, and test sites are NY3 and
    BCN2. The benign keratoses of NY3 are left out, because all negatives of the training sites are nevi.

    Parameters
    ----------
    data : SmallImages
        The images, as `load_isic64` returns them.

    Returns
    -------
    SiteRoles
        Training, validation and test sites.
    """
    alike = _without_keratoses(data)
    training = Sites(tuple(alike.site(name) for name in ISIC64_TRAINING))
    roles = SiteRoles(training, alike.site(ISIC64_VALIDATION), Sites(tuple(alike.site(n) for n in ISIC64_TESTS)))
    _check_groups("isic64", roles)
    return roles


def isic64_centre_roles(data: SmallImages, left_out: str | None, seed: int = 0) -> SiteRoles:
    """Train at the centres of HAM10000 except `left_out` (None: at all centres); test at `left_out`, NY3 and BCN2.

    For validation, the seed draws a fifth of the melanomas and a fifth of the other lesions of each training centre. A
    lesion that a training centre shares with a test site is not used for training or validation.
    """
    if left_out is not None and left_out not in ISIC64_CENTRES:
        raise ValueError(f"left_out must be one of {', '.join(ISIC64_CENTRES)}, or null, got {left_out!r}")
    trained = [name for name in ISIC64_CENTRES if name != left_out]
    tests = [*ISIC64_TESTS, *([] if left_out is None else [left_out])]
    alike = _without_keratoses(data)
    tested = alike.table["group"][alike.table["site"].isin(tests)]
    leaked = alike.table["site"].isin(trained) & alike.table["group"].isin(tested)
    alike = replace(alike, table=alike.table[~leaked])
    rows = alike.table[alike.table["site"].isin(trained)]
    sick = rows.groupby("group", sort=True).agg(site=("site", "first"), y=("y", "max"))
    rng = np.random.default_rng(seed)
    held: set[str] = set()
    for _, lesions in sick.groupby(["site", "y"], sort=True):
        mixed = rng.permutation(lesions.index.to_numpy(dtype=object))
        held.update(mixed[: round(ISIC64_SHARE * len(mixed))])
    is_held = alike.table["group"].isin(held) & alike.table["site"].isin(trained)
    split = replace(alike, table=alike.table.assign(site=alike.table["site"].mask(is_held, ISIC64_HELD_OUT)))
    roles = SiteRoles(
        training=Sites(tuple(split.site(name) for name in trained)),
        validation=split.site(ISIC64_HELD_OUT),
        tests=Sites(tuple(split.site(name) for name in tests)),
    )
    _check_groups("isic64", roles)
    return roles


def _without_keratoses(data: SmallImages) -> SmallImages:
    """Remove the benign keratoses of NY3, because no training site has any."""
    return replace(data, table=data.table[(data.table["site"] != "NY3") | (data.table["dx"] != "BKL")])


def load_cxr64(folder: Folder) -> SmallImages:
    """Read the table of cxr64, small chest X-rays. `cxr64_roles` makes the sites of its experiment.

    y is 1 for pneumonia, and 0 for "No Finding". Images of NIH with other findings are left out, because no other site
    has such images. z is age, projection and sex; the site GUANGZHOU has neither age nor sex. The group of a row is its
    patient.

    Parameters
    ----------
    folder : path
        The folder with the table and the images, or the folder that contains it as `cxr64`.

    Returns
    -------
    SmallImages
        The set, with its table in `table`. The images are read later, when a site is made.
    """
    path, problems = _meta(folder, "cxr64")
    rows = read_table(path, ("image", "site", "y", "no_finding", "age", "sex", "projection", "patient"), problems)
    table = pd.DataFrame(
        {
            "site": rows["site"],
            "y": as_numbers(rows["y"], path, problems),
            "age": as_ages(rows["age"], path, problems),
            "projection": as_levels(rows["projection"], {"ap": "AP", "pa": "PA"}, path, problems),
            "sex": as_sexes(rows["sex"], path, problems),
            "group": rows["patient"],
            "id": rows["image"],
            "alike": (rows["y"].astype(float) == 1) | (rows["no_finding"].astype(float) == 1),
        }
    )
    small = _small("cxr64", path, table, ("age", "projection", "sex"), 1, problems)
    return replace(small, table=small.table[small.table["alike"]].drop(columns="alike"))


def cxr64_roles(data: SmallImages, seed: int = 0, held_out: tuple[float, float] = HELD_OUT) -> SiteRoles:
    """Return the sites of the experiment with cxr64 by their role.

    Training sites are NIH and NIH_sel. Two parts of the patients of NIH are held out from training: one is the
    validation site, the other a test site. The second test site is GUANGZHOU. The held-out patients are drawn at
    random, the same share of those with pneumonia and of those without. The patients of NIH_sel were selected by
    outcome. They add positive rows to the training, but their prevalence has no meaning, so none of them is used for
    validation or test. Rows of NIH_sel from patients who are held out at NIH are left out.

    Parameters
    ----------
    data : SmallImages
        The images, as `load_cxr64` returns them.
    seed : int
        The seed of the draw of held-out patients.
    held_out : tuple of two floats
        The share of NIH's patients for validation, and that for the test site.

    Returns
    -------
    SiteRoles
        Training, validation and test sites.
    """
    if min(held_out) <= 0 or sum(held_out) >= 1:
        raise ValueError(f"held_out must be two positive shares that leave something to train on, got {held_out}")
    nih = data.table[data.table["site"] == "NIH"]
    sick = nih.groupby("group", sort=True)["y"].max()
    rng = np.random.default_rng(seed)
    part_of: dict[str, str] = {}
    for label in (0, 1):
        mixed = rng.permutation(sick.index[sick == label].to_numpy(dtype=object))
        cuts = np.rint(np.cumsum(held_out) * len(mixed)).astype(int)
        for part, chosen in zip((CXR64_VALIDATION, CXR64_HOME, "NIH"), np.split(mixed, cuts), strict=True):
            part_of.update(dict.fromkeys(chosen, part))
    at_nih = data.table["site"] == "NIH"
    place = data.table["group"].map(part_of)
    elsewhere = ~at_nih & place.isin([CXR64_VALIDATION, CXR64_HOME])
    split = replace(data, table=data.table.assign(site=data.table["site"].mask(at_nih, place))[~elsewhere])
    roles = SiteRoles(
        training=Sites((split.site("NIH"), split.site("NIH_sel"))),
        validation=split.site(CXR64_VALIDATION),
        tests=Sites((split.site(CXR64_HOME), split.site("GUANGZHOU"))),
    )
    _check_groups("cxr64", roles)
    return roles


def _meta(folder: Folder, name: str) -> tuple[Path, Problems]:
    """Return the path of a set's table, in the folder or in its subfolder `name`, and a list for its problems."""
    base = Path(folder)
    for place in (base, base / name):
        files = [place / f"{name}_meta.csv.gz", place / f"{name}.npz"]
        if any(file.is_file() for file in files):
            missing = [str(file) for file in files if not file.is_file()]
            if missing:
                raise FileNotFoundError(f"{name} needs {files[0].name} and {files[1].name}: there is no {missing[0]}")
            return files[0], Problems(f"{name} in {place}")
    raise FileNotFoundError(
        f"no {name} in {base}: expected {name}.npz and {name}_meta.csv.gz there or in {base / name}"
    )


def _small(
    name: str, path: Path, table: pd.DataFrame, confounders: tuple[str, ...], channels: int, problems: Problems
) -> SmallImages:
    """Check the table and its number of images, and make the set."""
    strange = ~table["y"].isin([0, 1])
    if strange.any():
        problems.add(f"{path}, column 'y': expected 0 or 1, {int(strange.sum())} row(s) differ")
    for column in ("site", "group", "id"):
        if table[column].isna().any():
            problems.add(f"{path}: {int(table[column].isna().sum())} row(s) without a {column}")
    n_images = len(_pack(path.parent, name, channels))
    if n_images != len(table):
        problems.add(f"{path} has {len(table)} row(s) and the pack {n_images} image(s): they do not belong together")
    problems.raise_if_any()
    numbered = table.assign(row=np.arange(len(table)), y=table["y"].astype(np.int64))
    return SmallImages(name, path.parent, numbered, confounders, channels)


def _check_groups(name: str, roles: SiteRoles) -> None:
    training = {group for site in roles.training for group in site.groups}
    held = [set(roles.validation.groups), *({*site.groups} for site in roles.tests)]
    seen = training
    for other in held:
        shared = seen & other
        if shared:
            raise ValueError(
                f"{name}: {len(shared)} group(s) are in two roles, such as {min(shared)}: correct its table"
            )
        seen = seen | other


@dataclass(frozen=True, eq=False)
class _Pack:
    """JPEG files in one array, and the images decoded so far."""

    name: str
    jpeg: Array
    offsets: Array
    pixels: Array
    decoded: Array

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def take(self, rows: Array) -> Array:
        for row in rows[~self.decoded[rows]]:
            data = self.jpeg[self.offsets[row] : self.offsets[row + 1]].tobytes()
            image = decode_image(data, f"image {row} of {self.name}", None, self.pixels.shape[1])
            if image.shape != self.pixels.shape[1:]:
                shape = " x ".join(map(str, image.shape[1:]))
                raise ValueError(f"image {row} of {self.name} has {shape} pixels, expected {SIDE} x {SIDE}")
            self.pixels[row] = image
            self.decoded[row] = True
        return np.asarray(self.pixels[rows])


@lru_cache(maxsize=4)
def _pack(folder: Path, name: str, channels: int) -> _Pack:
    with np.load(folder / f"{name}.npz") as pack:
        jpeg, offsets = pack["jpeg"], pack["offsets"]
    n = len(offsets) - 1
    pixels = np.empty((n, channels, SIDE, SIDE), dtype=np.uint8)  # the system allocates memory when a row is written
    return _Pack(name, jpeg, offsets, pixels, np.zeros(n, dtype=bool))
