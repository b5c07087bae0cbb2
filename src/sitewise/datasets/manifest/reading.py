"""Manifests from CSV or Parquet files and into them: columns by name, text and labels as they are meant."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sitewise.arrays import Problems, did_you_mean
from sitewise.datasets.manifest.checking import check_links
from sitewise.datasets.manifest.table import BINARY, OWN_COLUMNS, Manifest, check_table
from sitewise.datasets.manifest.wording import ROWS_FROM

Table = str | os.PathLike[str]
SEPARATORS = {"csv": ",", "tsv": "\t"}
MISSING = ("", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "None", "null", "NULL", "<NA>")  # in a text file


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
                f"there is no column {name!r} ({role}){did_you_mean(name, frame.columns)}; the columns are {columns}"
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
    check_table(table, base, tuple(confounders), labels, problems)
    check_links(table, base, problems)
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


def _read_table(file: Path, names: tuple[str, ...], group: str) -> pd.DataFrame:
    """The table as it is; a CSV's columns of names keep their text: a site may be called NA, a patient 007."""
    kind = _kind(file)
    if not file.is_file():
        near = sorted(other.name for other in file.parent.glob("*")) if file.parent.is_dir() else []
        raise FileNotFoundError(f"there is no manifest {file}{did_you_mean(file.name, near)}")
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
