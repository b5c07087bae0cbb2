"""Read manifests from CSV or Parquet files, and write them."""

import gzip
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sitewise.arrays import Problems
from sitewise.tables.features import holds_numbers
from sitewise.tables.files import PARQUET, SEPARATORS, open_table
from sitewise.tables.manifest.checking import check_links
from sitewise.tables.manifest.table import BINARY, OWN_COLUMNS, ROWS_FROM, Manifest, check_table
from sitewise.tables.roles import Roles
from sitewise.tables.values import Place, Rows, find_columns, labels_by_text, levels, names, numbers, refuse_kinds, text
from sitewise.tables.writing import whole_file

Table = str | os.PathLike[str]


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
    categorical: Sequence[str] = (),
) -> Manifest:
    """Read a manifest, a table with a row for each image, from CSV or Parquet; one error lists all its problems.

    Parameters
    ----------
    file : path
        The table.
    root : path, optional
        The folder to which image paths are relative; every image must be inside it. By default, the folder that
        contains `file`.
    image : str
        The column with the path of each image.
    site : str
        The column with the site of each image.
    target : str or None
        The column with the labels; None for a site without labels.
    confounders : sequence of str
        The columns of z.
    group : str, optional
        The column with the group of each image, for example the patient. None: the column "group" if there is one,
        otherwise each row is its own group.
    id : str, optional
        The column with an identifier of each row. None: the column "id" if there is one, otherwise the path.
    classes : sequence
        The labels, if they are not 0 and 1.
    categorical : sequence of str
        Confounders that hold numbers but are read as categories.

    Returns
    -------
    Manifest
        The checked table; its columns have the names that are listed at `Manifest`.

    Examples
    --------
    >>> manifest = read_manifest("lesions.csv", target="malignant", confounders=["age", "sex"])
    """
    file = Path(file)
    base = file.parent if root is None else Path(root)
    problems = Problems(f"manifest {file} {ROWS_FROM}")
    if not base.is_dir():
        problems.add(f"the root {base} is not a folder")
    table, place = open_table(file), Place(str(file))
    group = group if group is not None or "group" not in table.columns else "group"
    id = id if id is not None or "id" not in table.columns else "id"
    roles = Roles(target, site, tuple(confounders), image=image, group=group, id=id, categorical=tuple(categorical))
    roles.check(problems)
    find_columns(table.columns, roles.columns(), place, problems)
    problems.raise_if_any()
    rows = table.read([name for _, name in roles.columns()])
    refuse_kinds(rows, rows.column_names, place, problems)
    problems.raise_if_any()
    labels = BINARY if classes is None else tuple(classes)
    found = pd.DataFrame({"path": [_inside(path.strip(), base) for path in text(rows, image)]}, dtype=object)
    found["site"] = names(rows, site)
    if target is not None:
        found["y"] = _labels(rows, target, labels, place, problems)
    for name in (name for name in confounders if name not in OWN_COLUMNS):
        categories = name in categorical or not holds_numbers(rows, name)
        found[name] = (_levels if categories else numbers)(rows, name, place, problems)
    if group is not None:
        found["group"] = pd.Series(names(rows, group), dtype=object).replace("", None)
    found["id"] = found["path"] if id is None else names(rows, id)
    check_table(found, base, tuple(confounders), labels, problems)
    check_links(found, base, problems)
    problems.raise_if_any()
    return Manifest(found, base, tuple(confounders), labels)


def write_manifest(manifest: Manifest, file: Table) -> Path:
    """Write the table as CSV or Parquet (by its suffix); `read_manifest` reads it with the same root."""
    file = Path(file)
    name, suffix = file.name.lower(), Path(file.name.lower().removesuffix(".gz")).suffix
    if suffix not in (*SEPARATORS, *PARQUET):
        raise ValueError(f"a manifest is written as .csv, .csv.gz, .tsv or .parquet, got {file}")
    file.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(file) as part:
        if suffix in PARQUET:
            manifest.table.to_parquet(part, index=False)
        else:
            with gzip.open(part, "wb") if name.endswith(".gz") else part.open("wb") as out:
                manifest.table.to_csv(out, sep=SEPARATORS[suffix], index=False)
    return file


def _labels(rows: Rows, name: str, classes: tuple[Any, ...], place: Place, problems: Problems) -> pd.Series:
    """Read the class of each row; an unknown label is unchanged, and a missing label stays missing."""
    class_of = labels_by_text(classes)
    values = _levels(rows, name, place, problems)
    meant = values.map(lambda value: class_of.get(value, value), na_action="ignore")
    return meant.astype(np.int64) if all(isinstance(value, int) for value in meant) else meant


def _levels(rows: Rows, name: str, place: Place, problems: Problems) -> pd.Series:
    return pd.Series(levels(rows, name, place, problems)).astype(object)


def _inside(path: str, root: Path) -> str:
    """Convert a path, which may be absolute or contain "..", to a normalized path relative to the root."""
    if os.path.isabs(path):
        path = os.path.relpath(path, os.path.abspath(root))
    return os.path.normpath(path) if path else path
