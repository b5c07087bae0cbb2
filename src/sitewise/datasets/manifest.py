"""Manifests: a table with a row for each image, where it lies, its site, target, confounders and group.

A table that cannot be right is refused when it is read, with every problem at once; `check` then opens the images. Rows
are counted from 0, without the header. A group (a patient, a lesion) is never separated: `split_manifest` keeps it in
one part, and `assign_roles` refuses roles that share one.
"""

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pandas as pd

from sitewise.arrays import Problems, read_groups
from sitewise.datasets.images import read_image
from sitewise.sites import Site, Sites

logger = logging.getLogger(__name__)

Array = np.ndarray[Any, Any]
Table = str | os.PathLike[str]

BINARY = (0, 1)
SEPARATORS = {"csv": ",", "tsv": "\t"}
MISSING = ("", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "None", "null", "NULL", "<NA>")  # in a text file
OWN_COLUMNS = ("path", "site", "y", "group", "id")
SHOWN = 10  # of a long list of rows
CHECKED_SIZE = 32  # pixels: all of a file is decoded, little of it kept
ROWS_FROM = "(rows count from 0)"
ONE_CLASS = (
    "site {site!r} has rows of the class {label} only ({rows}): mend the table or leave the site out; where that is "
    "what the site is like, allow_one_class=True accepts it"
)


@dataclass(frozen=True, eq=False)
class Manifest:
    """Images of several sites: a table with a row for each, the folder its paths start from, the confounders' names.

    The table has the columns `path` (text, relative to `root`), `site`, `y` (absent where there are no labels), the
    confounders, `id` and, where known, `group`; further columns go along. `y` is one of `classes`.
    """

    table: pd.DataFrame
    root: Path
    confounders: tuple[str, ...] = ()
    classes: tuple[Any, ...] = BINARY

    def __post_init__(self) -> None:
        problems = Problems(f"manifest {ROWS_FROM}")
        _check_table(self.table, self.root, self.confounders, self.classes, problems)
        problems.raise_if_any()

    def __len__(self) -> int:
        return len(self.table)

    @property
    def sites(self) -> tuple[str, ...]:
        """The sites' names, in order."""
        return tuple(sorted(self.table["site"].astype(str).unique()))

    @property
    def labeled(self) -> bool:
        """Whether the rows have a target."""
        return "y" in self.table

    @property
    def files(self) -> list[Path]:
        """Where each row's image lies."""
        return [self.root / path for path in self.table["path"]]

    def take(self, rows: Any) -> "Manifest":
        """Some of the rows, by a mask or by position."""
        chosen = np.asarray(rows)
        if chosen.dtype == bool and len(chosen) != len(self):
            raise ValueError(f"a mask needs one entry for each of {len(self)} row(s), got {len(chosen)}")
        chosen = chosen if chosen.dtype == bool else chosen.astype(np.int64)
        return replace(self, table=self.table.iloc[chosen].reset_index(drop=True))

    def at(self, *sites: str) -> "Manifest":
        """The rows of some sites; a site that the table does not have is an error."""
        problems = Problems("manifest")
        _check_sites(sites, self, problems)
        problems.raise_if_any()
        return self.take(self.table["site"].isin(sites).to_numpy())

    def groups(self) -> Array:
        """A number for each row, the same for the rows of one group; a row without a group is one by itself."""
        named = self.table["group"] if "group" in self.table else pd.Series([None] * len(self), dtype=object)
        problems = Problems("manifest")
        codes = read_groups(named.reset_index(drop=True), len(self), problems)
        problems.raise_if_any()
        assert codes is not None
        return codes.numpy()

    def site_table(self) -> pd.DataFrame:
        """A row for each site: samples, groups, prevalence (of the second of two classes), share of missing z."""
        table = self.table.reset_index(drop=True).astype({"site": str})
        by_site = table.groupby("site", sort=True)
        summary = pd.DataFrame({"samples": by_site.size()})
        if "group" in table:
            summary["groups"] = pd.Series(self.groups()).groupby(table["site"]).nunique()
        if self.labeled:
            for label in self.classes[1:] if len(self.classes) == 2 else self.classes:
                name = "prevalence" if len(self.classes) == 2 else f"prevalence {label}"
                summary[name] = (table["y"] == label).groupby(table["site"]).mean()
        for name in self.confounders:
            summary[f"missing {name}"] = table[name].isna().groupby(table["site"]).mean()
        return summary


def read_manifest(
    file: Table,
    *,
    root: Table | None = None,
    image: str = "path",
    site: str = "site",
    target: str | None = "y",
    confounders: Sequence[str] = (),
    group: str | None = None,
    id: str | None = None,
    classes: Sequence[Any] | None = None,
) -> Manifest:
    """Read a manifest from CSV or Parquet; one error names everything that is wrong with it.

    `image`, `site`, `target`, `confounders`, `group` and `id` are the table's own column names. `root` is the folder
    that paths start from and may not leave, the table's own where it is not given. Without `group` and `id` the columns
    of these names are taken where there are any, else every row is a group and its path its id. `target` None reads a
    site without labels; `classes` names the labels where they are not 0 and 1.
    """
    file = Path(file)
    base = file.parent if root is None else Path(root)
    problems = Problems(f"manifest {file} {ROWS_FROM}")
    if not base.is_dir():
        problems.add(f"the root {base} is no folder")
    frame = _read_table(file, names=(image, site, id or "id"), group=group or "group")
    group = group if group is not None or "group" not in frame else "group"
    id = id if id is not None or "id" not in frame else "id"
    wanted = {"image": image, "site": site, "target": target, "group": group, "id": id}
    asked = [(role, name) for role, name in wanted.items() if name is not None]
    for role, name in [*asked, *(("confounders", name) for name in confounders)]:
        if name not in frame:
            columns = ", ".join(map(str, frame.columns))
            problems.add(
                f"there is no column {name!r} ({role}){_meant(name, frame.columns)}; the columns are {columns}"
            )
    problems.raise_if_any()
    labels = BINARY if classes is None else tuple(classes)
    table = pd.DataFrame({"path": _as_text(frame[image]).map(lambda path: _inside(path, base), na_action="ignore")})
    table["site"] = _as_text(frame[site])
    if target is not None:
        table["y"] = _as_labels(frame[target], labels)
    for name in (name for name in confounders if name not in OWN_COLUMNS):
        table[name] = frame[name]
    if group is not None:
        table["group"] = _as_text(frame[group])
    table["id"] = table["path"] if id is None else _as_text(frame[id])
    _check_table(table, base, tuple(confounders), labels, problems)
    _check_links(table, base, problems)
    problems.raise_if_any()
    return Manifest(table, base, tuple(confounders), labels)


def write_manifest(manifest: Manifest, file: Table) -> Path:
    """Write the table as CSV or Parquet (by the file's suffix); `read_manifest` reads it with the same root."""
    file = Path(file)
    kind = _kind(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f".part.{file.name}")
    try:
        if kind == "parquet":
            manifest.table.to_parquet(part, index=False)
        else:
            manifest.table.to_csv(part, sep=SEPARATORS[kind], index=False)
        os.replace(part, file)
    finally:
        part.unlink(missing_ok=True)
    return file


def check(manifest: Manifest, *, images: bool = True, allow_one_class: bool = False, jobs: int | None = None) -> None:
    """Look at the files, in one pass over all of them: one error lists the missing, strayed and unreadable ones.

    With `images` False files have to be there and are not opened. A site with one class only is a problem too: mostly
    a table joined wrongly. `allow_one_class` makes it a note in the log, for sites that are so (ISIC's MA has no
    malignant image, and g stays finite there).
    """
    problems = Problems(f"manifest {ROWS_FROM}")
    for note in notes(manifest):
        if allow_one_class:
            logger.warning(note)
        else:
            problems.add(note)
    there = check_files(manifest, problems)
    if images:
        files = manifest.files
        rows = np.flatnonzero(there)
        with ThreadPoolExecutor(jobs or available_cores()) as pool:
            found = list(pool.map(_why_unreadable, (files[row] for row in rows)))
        add_unreadable(problems, {int(row): why for row, why in zip(rows, found, strict=True) if why is not None})
    problems.raise_if_any()


def check_files(manifest: Manifest, problems: Problems) -> Array:
    """Note the files that are missing or lead outside the root; tell which rows have one that may be opened."""
    missing = np.array([not file.is_file() for file in manifest.files])
    if missing.any():
        problems.add(f"there is no file for {_rows(missing, manifest.table)}, below {manifest.root}")
    return ~missing & ~_check_links(manifest.table, manifest.root, problems)


def notes(manifest: Manifest) -> list[str]:
    """What need not be wrong but mostly is: sites with rows of one class only."""
    if not manifest.labeled:
        return []
    found = []
    for site, labels in manifest.table["y"].groupby(manifest.table["site"].astype(str)):
        if labels.nunique() == 1:
            found.append(ONE_CLASS.format(site=site, label=labels.iloc[0], rows=len(labels)))
    return found


def split_manifest(manifest: Manifest, shares: Mapping[str, float], seed: int = 0) -> dict[str, Manifest]:
    """Split into named parts by shares that sum to one, with no group in two of them.

    Each site, and within it the groups of each label (the highest among a group's rows), is split by the shares, to
    within a group. The order of the rows does not matter.
    """
    problems = Problems("split_manifest")
    if not shares or min(shares.values()) <= 0 or abs(sum(shares.values()) - 1) > 1e-9:
        problems.add(f"shares must be positive and sum to one, got {dict(shares)}")
    problems.raise_if_any()
    units = _units(manifest)
    rng = np.random.default_rng(seed)
    part_of: dict[str, int] = {}
    cuts = np.cumsum(list(shares.values()))[:-1]
    for _, stratum in units.groupby(["sites", "label"], sort=True):
        mixed = stratum.iloc[rng.permutation(len(stratum))]
        middle = (mixed["rows"].cumsum() - mixed["rows"] / 2) / mixed["rows"].sum()
        # A start at random: else the single group of a small stratum would always go to the same part.
        places = np.searchsorted(cuts, (middle.to_numpy() + rng.random()) % 1, side="right")
        part_of.update(zip(mixed.index, places, strict=True))
    part = _unit_names(manifest).map(part_of).to_numpy()
    for number, name in enumerate(shares):
        if not (part == number).any():
            problems.add(
                f"the part {name!r} ({shares[name]:g}) got no rows: {len(units)} group(s) are too few for these shares"
            )
    problems.raise_if_any()
    return {name: manifest.take(part == number) for number, name in enumerate(shares)}


@dataclass(frozen=True)
class Roles:
    """A manifest's rows by what they are for; `unused` names the sites that have no role."""

    training: Manifest
    validation: Manifest | None
    tests: dict[str, Manifest]
    unused: tuple[str, ...]


def assign_roles(
    manifest: Manifest,
    *,
    training: Sequence[str],
    validation: str | Sequence[str] | None = None,
    tests: Sequence[str] = (),
) -> Roles:
    """Give whole sites their roles; an absent site, a site in two roles and a group across roles are one error.

    Two test sites may share a group: neither has been trained on. A site without a role is left out and noted.
    """
    held = () if validation is None else (validation,) if isinstance(validation, str) else tuple(validation)
    roles = {"training": tuple(training), "validation": held, "tests": tuple(tests)}
    problems = Problems("assign_roles")
    if not roles["training"]:
        problems.add("training names no site")
    named = [site for sites in roles.values() for site in sites]
    _check_sites(dict.fromkeys(named), manifest, problems)
    for site in sorted({site for site in named if named.count(site) > 1}):
        where = ", ".join(role for role, sites in roles.items() for name in sites if name == site)
        problems.add(f"the site {site!r} has more than one role ({where})")
    role = manifest.table["site"].map({site: role for role, sites in roles.items() for site in sites})
    if "group" in manifest.table:
        known = pd.DataFrame({"group": manifest.table["group"], "role": role}).dropna()
        in_roles = known.drop_duplicates().groupby("group")["role"].agg(sorted)
        across = in_roles[in_roles.map(len) > 1]
        if len(across):
            shown = ", ".join(f"{group!r} ({' and '.join(where)})" for group, where in across.iloc[:SHOWN].items())
            problems.add(
                f"{len(across)} group(s) are in more than one role: {shown}{_more(len(across))}; "
                "leave their rows out of all roles but one"
            )
    problems.raise_if_any()
    unused = tuple(site for site in manifest.sites if site not in named)
    if unused:
        logger.info("sites without a role: %s", ", ".join(unused))
    return Roles(
        training=manifest.at(*roles["training"]),
        validation=manifest.at(*held) if held else None,
        tests={site: manifest.at(site) for site in roles["tests"]},
        unused=unused,
    )


@runtime_checkable
class ImagesById(Protocol):
    """Images that know their ids, as packed ones do."""

    def by_id(self, ids: Iterable[str]) -> Any:
        """The images of some ids, in their order."""
        ...


def to_sites(manifest: Manifest, images: Any) -> Sites:
    """Turn rows and their images into sites: labels, confounders and groups from the table.

    `images` are packed ones, found by id (those of other rows do not matter) and left on the disk, or an array with an
    image for each row.
    """
    return Sites(tuple(to_site(manifest, images, name) for name in manifest.sites))


def to_site(manifest: Manifest, images: Any, name: str | None = None) -> Site:
    """One of the sites; `name` may be left out where there is one."""
    if name is None and len(manifest.sites) > 1:
        raise ValueError(f"name one of the {len(manifest.sites)} sites: {', '.join(manifest.sites)}")
    if not isinstance(images, ImagesById) and len(images) != len(manifest):
        raise ValueError(f"images must be one for each of {len(manifest)} row(s), got {len(images)}")
    chosen = manifest.at(name or manifest.sites[0])
    rows = np.flatnonzero((manifest.table["site"] == chosen.sites[0]).to_numpy())
    labels = chosen.table["y"].to_numpy() if chosen.labeled else None
    return Site(
        chosen.sites[0],
        X=images.by_id(chosen.table["id"]) if isinstance(images, ImagesById) else images[rows],
        y=labels.astype(np.int64) if labels is not None and chosen.classes == BINARY else labels,
        Z=chosen.table[list(chosen.confounders)] if chosen.confounders else None,
        groups=chosen.table["group"].to_numpy() if "group" in chosen.table else None,
    )


def add_unreadable(problems: Problems, why: Mapping[int, str]) -> None:
    """Note the images that could not be read, by row: the first ones with the reason, and how many there are."""
    if why:
        shown = "".join(f"\n      row {row}: {why[row]}" for row in sorted(why)[:SHOWN])
        problems.add(f"{len(why)} image(s) cannot be read:{shown}{_more(len(why), chr(10) + 6 * ' ')}")


def available_cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _why_unreadable(file: Path) -> str | None:
    try:
        read_image(file, CHECKED_SIZE)
    except (ValueError, OSError) as error:
        return str(error)
    return None


def _read_table(file: Path, names: tuple[str, ...], group: str) -> pd.DataFrame:
    """The table as it is; a CSV's columns of names keep their text: a site may be called NA, a patient 007."""
    kind = _kind(file)
    if not file.is_file():
        near = sorted(other.name for other in file.parent.glob("*")) if file.parent.is_dir() else []
        raise FileNotFoundError(f"there is no manifest {file}{_meant(file.name, near)}")
    try:
        if kind == "parquet":
            return pd.read_parquet(file)
        separator = SEPARATORS[kind]
        columns = pd.read_csv(file, sep=separator, nrows=0).columns
        return pd.read_csv(
            file,
            sep=separator,
            dtype={name: str for name in columns if name in (*names, group)},
            na_values={name: MISSING for name in columns if name not in names},
            keep_default_na=False,
            low_memory=False,
        )
    except (ValueError, OSError) as error:  # pandas' and pyarrow's own are kinds of these
        raise ValueError(f"manifest {file} cannot be read as {kind} ({error})") from error


def _check_table(
    table: pd.DataFrame, root: Path, confounders: tuple[str, ...], classes: tuple[Any, ...], problems: Problems
) -> None:
    """Note everything that is wrong with a table by itself, without a look at the files."""
    before = len(problems.found)
    for column in ("path", "site", "id"):
        if column not in table:
            problems.add(f"the table has no column {column!r}{_meant(column, table.columns)}")
    for name in confounders:
        if name in OWN_COLUMNS:
            problems.add(f"a confounder must not be called {name!r}: the manifest has that column itself")
        elif name not in table:
            problems.add(f"the table has no column for the confounder {name!r}{_meant(name, table.columns)}")
    for name in sorted({name for name in confounders if confounders.count(name) > 1}):
        problems.add(f"the confounder {name!r} stands twice")
    if len(set(classes)) < max(2, len(classes)):
        problems.add(f"classes must be at least two different labels, got {list(classes)}")
    if not len(table):
        problems.add("the table has no rows")
    if len(problems.found) == before:
        _check_rows(table, root, classes, problems)


def _check_rows(table: pd.DataFrame, root: Path, classes: tuple[Any, ...], problems: Problems) -> None:
    for column in ("path", "site", "id"):
        empty = table[column].isna() | (table[column].astype(str).str.strip() == "")
        if empty.any() and (column == "path" or not table[column].equals(table["path"])):
            problems.add(f"{column} is empty in {_rows(empty, table)}")
    outside = np.array([isinstance(path, str) and _leaves(path) for path in table["path"]])
    if outside.any():
        problems.add(
            f"path leads outside the root {root} in {_rows(outside, table)}: "
            "give a root that holds all images, or mend the paths"
        )
    for column in ("id", "path"):
        twice = table[column].duplicated(keep=False) & table[column].notna() & (table[column] != "")
        if twice.any() and (column == "id" or not table["id"].equals(table["path"])):
            problems.add(f"{column} stands more than once in {_rows(twice, table, column)}: one row for each image")
    if "y" in table:
        strange = ~table["y"].isin(classes)
        if strange.any():
            labels = ", ".join(str(label) for label in classes)
            hint = "; name other labels by classes=" if classes == BINARY else ""
            problems.add(f"y must be one of {labels}, and is not in {_rows(strange, table, 'y')}{hint}")


def _check_links(table: pd.DataFrame, root: Path, problems: Problems) -> Array:
    """Note and tell the rows that lead outside the root by a symbolic link; a folder is looked at once."""
    real_root = os.path.realpath(root)
    stays: dict[str, bool] = {}

    def inside(place: str) -> bool:
        return Path(os.path.realpath(place)).is_relative_to(real_root)

    strayed = np.zeros(len(table), dtype=bool)
    for row, path in enumerate(table["path"]):
        if pd.isna(path) or _leaves(path):
            continue  # noted already
        file = os.path.join(root, path)
        folder = os.path.dirname(file)
        if folder not in stays:
            stays[folder] = inside(folder)
        strayed[row] = not stays[folder] or (os.path.islink(file) and not inside(file))
    if strayed.any():
        problems.add(
            f"path leads outside the root {root} by a symbolic link in {_rows(strayed, table)}: "
            "give a root that holds all images, or put the files themselves there"
        )
    return strayed


def _kind(file: Path) -> str:
    name = file.name.lower().removesuffix(".gz")
    for kind in (*SEPARATORS, "parquet"):
        if name.endswith(f".{kind}"):
            return kind
    raise ValueError(f"a manifest is a .csv, .csv.gz, .tsv or .parquet file, got {file}")


def _as_text(column: pd.Series) -> pd.Series:
    """Names as text, missing where missing; 12.0 is 12, since a gap among integers made it so."""

    def text(value: Any) -> str:
        if isinstance(value, float | np.floating) and float(value).is_integer():
            value = int(value)
        return str(value).strip()

    return column.astype(object).map(text, na_action="ignore").astype(object)


def _as_labels(column: pd.Series, classes: tuple[Any, ...]) -> pd.Series:
    """Each value as the class it means ("1", 1.0 and True are 1); what means none stays as it is."""
    class_of = {_spelling(label): label for label in classes}
    labels = column.astype(object).map(lambda value: class_of.get(_spelling(value), value), na_action="ignore")
    return labels.astype(np.int64) if all(isinstance(v, int) for v in labels) else labels


def _spelling(value: Any) -> str:
    if isinstance(value, bool | np.bool_):
        return str(int(value))
    text = str(value).strip()
    try:
        return repr(float(text))
    except ValueError:
        return text


def _inside(path: str, root: Path) -> str:
    """A path relative to the root, also where the table has it absolute or with steps to the side."""
    if os.path.isabs(path):
        path = os.path.relpath(path, os.path.abspath(root))
    return os.path.normpath(path) if path else path


def _leaves(path: str) -> bool:
    """Whether the text of a path leads out of the root."""
    return os.path.isabs(path) or os.path.normpath(path).split(os.sep, 1)[0] == os.pardir


def _unit_names(manifest: Manifest) -> pd.Series:
    """What a split may not separate: a row's group by name, else the row by its id."""
    alone = "row " + manifest.table["id"].astype(str)
    if "group" not in manifest.table:
        return alone
    group = manifest.table["group"]
    return ("group " + group.astype(str)).where(group.notna(), alone)


def _units(manifest: Manifest) -> pd.DataFrame:
    """The groups: their rows, the sites they are at, and the highest label among their rows."""
    number_of = {label: number for number, label in enumerate(manifest.classes)}
    rows = pd.DataFrame({"unit": _unit_names(manifest), "site": manifest.table["site"].astype(str)})
    rows["label"] = manifest.table["y"].map(number_of) if manifest.labeled else 0
    by_unit = rows.groupby("unit", sort=True)
    sites = rows.drop_duplicates(["unit", "site"]).sort_values(["unit", "site"]).groupby("unit")["site"].agg("|".join)
    return pd.DataFrame({"rows": by_unit.size(), "sites": sites, "label": by_unit["label"].max()})


def _check_sites(sites: Iterable[str], manifest: Manifest, problems: Problems) -> None:
    for site in sites:
        if site not in manifest.sites:
            known = ", ".join(manifest.sites)
            problems.add(f"there is no site {site!r} in the table{_meant(site, manifest.sites)}; the sites are {known}")


def _rows(chosen: Any, table: pd.DataFrame, column: str = "path") -> str:
    """Rows by number with what stands there: the first ones and how many."""
    rows = np.flatnonzero(np.asarray(chosen))
    shown = ", ".join(f"row {row} ({table[column].iloc[row]!r})" for row in rows[:SHOWN])
    return f"{len(rows)} row(s): {shown}{_more(len(rows))}"


def _more(count: int, before: str = ", ") -> str:
    return f"{before}and {count - SHOWN} more" if count > SHOWN else ""


def _meant(name: str, known: Iterable[Any]) -> str:
    """Propose the spelling that was meant, whatever its case."""
    names = {str(other).lower(): str(other) for other in known}
    near = get_close_matches(str(name).lower(), names, n=1)
    return f", did you mean {names[near[0]]!r}?" if near else ""
