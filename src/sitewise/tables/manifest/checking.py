"""Check a manifest for files that are missing, outside the root or unreadable, and for sites with one class only."""

import logging
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd

from sitewise.arrays import Problems
from sitewise.tables.images import read_image
from sitewise.tables.manifest.table import ROWS_FROM, SHOWN, Array, Manifest, and_more, leaves, name_rows

logger = logging.getLogger(__name__)

CHECKED_SIZE = 32  # pixels to which a decoded image is scaled to save memory
ONE_CLASS = (
    "site {site!r} has rows of the class {label} only ({rows}): correct the table or leave the site out; if it is "
    "true of the site, allow_one_class=True accepts it"
)


def check(manifest: Manifest, *, images: bool = True, allow_one_class: bool = False, jobs: int | None = None) -> None:
    """Check all files in one pass; one error lists those that are missing, outside the root or unreadable.

    If `images` is False, files must exist but are not opened. A site with one class only is also a problem, because its
    cause is often a wrong join of tables. For sites that really have only one class, `allow_one_class=True` turns the
    problem into a log message (ISIC's site MA has no malignant image; g stays finite there).
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
            reasons = list(pool.map(_why_unreadable, (files[row] for row in rows)))
        add_unreadable(problems, {int(row): why for row, why in zip(rows, reasons, strict=True) if why is not None})
    problems.raise_if_any()


def check_files(manifest: Manifest, problems: Problems) -> Array:
    """Report files that are missing or outside the root; return a mask of the rows whose file may be opened."""
    missing = np.array([not file.is_file() for file in manifest.files])
    if missing.any():
        problems.add(f"there is no file for {name_rows(missing, manifest.table)}, below {manifest.root}")
    return ~missing & ~check_links(manifest.table, manifest.root, problems)


def notes(manifest: Manifest) -> list[str]:
    """Return messages about sites whose rows all have the same class, which may be correct or an error of the table."""
    if not manifest.labeled:
        return []
    lines = []
    for site, labels in manifest.table["y"].groupby(manifest.table["site"].astype(str)):
        if labels.nunique() == 1:
            lines.append(ONE_CLASS.format(site=site, label=labels.iloc[0], rows=len(labels)))
    return lines


def check_links(table: pd.DataFrame, root: Path, problems: Problems) -> Array:
    """Report the rows whose path leads outside the root by a symbolic link, and return a mask of them."""
    real_root = os.path.realpath(root)
    stays: dict[str, bool] = {}

    def inside(place: str) -> bool:
        return Path(os.path.realpath(place)).is_relative_to(real_root)

    strayed = np.zeros(len(table), dtype=bool)
    for row, path in enumerate(table["path"]):
        if pd.isna(path) or leaves(path):
            continue  # already reported
        file = os.path.join(root, path)
        folder = os.path.dirname(file)
        if folder not in stays:
            stays[folder] = inside(folder)
        strayed[row] = not stays[folder] or (os.path.islink(file) and not inside(file))
    if strayed.any():
        problems.add(
            f"path leads outside the root {root} by a symbolic link in {name_rows(strayed, table)}: "
            "give a root that holds all images, or put the files themselves there"
        )
    return strayed


def add_unreadable(problems: Problems, why: Mapping[int, str]) -> None:
    """Report images that could not be read, by row: the first ones with the reason, and the number of all."""
    if why:
        shown = "".join(f"\n      row {row}: {why[row]}" for row in sorted(why)[:SHOWN])
        problems.add(f"{len(why)} image(s) cannot be read:{shown}{and_more(len(why), chr(10) + 6 * ' ')}")


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _why_unreadable(file: Path) -> str | None:
    try:
        read_image(file, CHECKED_SIZE)
    except (ValueError, OSError) as error:
        return str(error)
    return None
