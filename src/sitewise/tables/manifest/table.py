"""The manifest, and all checks of its table that do not need the files."""

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sitewise.arrays import Problems, did_you_mean, read_groups

Array = np.ndarray[Any, Any]
SHOWN = 10  # entries of a long list
ROWS_FROM = "(rows count from 0)"
BINARY = (0, 1)
OWN_COLUMNS = ("path", "site", "y", "group", "id")


@dataclass(frozen=True, eq=False)
class Manifest:
    """Images of several sites: a table with a row for each image, the root folder, and the names of the confounders.

    The table has the columns `path` (text, relative to `root`), `site`, `y` (absent if there are no labels), the
    confounders, `id` and, if known, `group`; other columns are kept.

    Parameters
    ----------
    table : DataFrame
        A row for each image.
    root : Path
        The folder to which the paths are relative.
    confounders : tuple of str
        The columns of z.
    classes : tuple
        The labels that `y` may have.

    Examples
    --------
    >>> manifest = read_manifest("lesions.csv", target="malignant", confounders=["age", "sex"])
    >>> manifest.sites, manifest.site_table()
    """

    table: pd.DataFrame
    root: Path
    confounders: tuple[str, ...] = ()
    classes: tuple[Any, ...] = BINARY

    def __post_init__(self) -> None:
        problems = Problems(f"manifest {ROWS_FROM}")
        check_table(self.table, self.root, self.confounders, self.classes, problems)
        problems.raise_if_any()

    def __len__(self) -> int:
        return len(self.table)

    @property
    def sites(self) -> tuple[str, ...]:
        """The names of the sites, sorted."""
        return tuple(sorted(self.table["site"].astype(str).unique()))

    @property
    def labeled(self) -> bool:
        """Whether the images have labels: whether the table has the column `y`."""
        return "y" in self.table

    @property
    def files(self) -> list[Path]:
        """The path of each row's image."""
        return [self.root / path for path in self.table["path"]]

    def take(self, rows: Any) -> "Manifest":
        """Take some of the rows.

        Parameters
        ----------
        rows : array-like
            A boolean mask with one entry for each row, or the positions of the rows.

        Returns
        -------
        Manifest
            A manifest with these rows only.
        """
        chosen = np.asarray(rows)
        if chosen.dtype == bool and len(chosen) != len(self):
            raise ValueError(f"a mask needs one entry for each of {len(self)} row(s), got {len(chosen)}")
        chosen = chosen if chosen.dtype == bool else chosen.astype(np.int64)
        return replace(self, table=self.table.iloc[chosen].reset_index(drop=True))

    def at(self, *sites: str) -> "Manifest":
        """Take the rows of some sites; an unknown site raises ValueError.

        Parameters
        ----------
        *sites : str
            The names of the sites.

        Returns
        -------
        Manifest
            A manifest with the rows of these sites only.
        """
        problems = Problems("manifest")
        check_sites(sites, self, problems)
        problems.raise_if_any()
        return self.take(self.table["site"].isin(sites).to_numpy())

    def groups(self) -> Array:
        """Return a group number for each row, (n,); a row without a group is its own group."""
        named = self.table["group"] if "group" in self.table else pd.Series([None] * len(self), dtype=object)
        problems = Problems("manifest")
        codes = read_groups(named.reset_index(drop=True), len(self), problems)
        problems.raise_if_any()
        assert codes is not None
        return codes.numpy()

    def site_table(self) -> pd.DataFrame:
        """Describe the sites.

        Returns
        -------
        DataFrame
            A row for each site: the number of images (`samples`), the number of groups if groups are known, the
            prevalence if there are labels (with two classes that of the second class, otherwise that of every class),
            and the share of missing values of each confounder.
        """
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


def check_table(
    table: pd.DataFrame, root: Path, confounders: tuple[str, ...], classes: tuple[Any, ...], problems: Problems
) -> None:
    """Report all problems of a table that can be found without the files."""
    before = len(problems.messages)
    for column in ("path", "site", "id"):
        if column not in table:
            problems.add(f"the table has no column {column!r}{did_you_mean(column, table.columns)}")
    for name in confounders:
        if name in OWN_COLUMNS:
            problems.add(f"a confounder must not be called {name!r}: the manifest has that column itself")
        elif name not in table:
            problems.add(f"the table has no column for the confounder {name!r}{did_you_mean(name, table.columns)}")
    for name in sorted({name for name in confounders if confounders.count(name) > 1}):
        problems.add(f"duplicate confounder {name!r}")
    if len(set(classes)) < max(2, len(classes)):
        problems.add(f"classes must be at least two different labels, got {list(classes)}")
    if not len(table):
        problems.add("the table has no rows")
    if len(problems.messages) == before:
        _check_rows(table, root, classes, problems)


def _check_rows(table: pd.DataFrame, root: Path, classes: tuple[Any, ...], problems: Problems) -> None:
    for column in ("path", "site", "id"):
        empty = table[column].isna() | (table[column].astype(str).str.strip() == "")
        if empty.any() and (column == "path" or not table[column].equals(table["path"])):
            problems.add(f"{column} is empty in {name_rows(empty, table)}")
    outside = np.array([isinstance(path, str) and leaves(path) for path in table["path"]])
    if outside.any():
        problems.add(
            f"path leads outside the root {root} in {name_rows(outside, table)}: "
            "give a root that holds all images, or correct the paths"
        )
    for column in ("id", "path"):
        twice = table[column].duplicated(keep=False) & table[column].notna() & (table[column] != "")
        if twice.any() and (column == "id" or not table["id"].equals(table["path"])):
            problems.add(f"duplicate {column} in {name_rows(twice, table, column)}: one row for each image")
    if "y" in table:
        strange = ~table["y"].isin(classes)
        if strange.any():
            labels = ", ".join(str(label) for label in classes)
            hint = "; name other labels by classes=" if classes == BINARY else ""
            problems.add(f"y must be one of {labels}; it is not in {name_rows(strange, table, 'y')}{hint}")


def leaves(path: str) -> bool:
    """Return whether a path leads outside the root, judged by its text."""
    return os.path.isabs(path) or os.path.normpath(path).split(os.sep, 1)[0] == os.pardir


def check_sites(sites: Iterable[str], manifest: Manifest, problems: Problems) -> None:
    """Report sites that a manifest does not have."""
    for site in sites:
        if site not in manifest.sites:
            known = ", ".join(manifest.sites)
            problems.add(
                f"there is no site {site!r} in the table{did_you_mean(site, manifest.sites)}; the sites are {known}"
            )


def name_rows(chosen: Any, table: pd.DataFrame, column: str = "path") -> str:
    """Return a text with the number of chosen rows, and the row numbers and values of the first of them."""
    rows = np.flatnonzero(np.asarray(chosen))
    shown = ", ".join(f"row {row} ({table[column].iloc[row]!r})" for row in rows[:SHOWN])
    return f"{len(rows)} row(s): {shown}{and_more(len(rows))}"


def and_more(count: int, before: str = ", ") -> str:
    """Return the text after the first `SHOWN` entries of a list: the number of entries that are left out, if any."""
    return f"{before}and {count - SHOWN} more" if count > SHOWN else ""
