"""Load saved models, and select rows of a table for them."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sitewise.tables import TableReader
    from sitewise.tables.values import Array, Place

NO_ROLES = (
    "{path} does not know the columns of a table (it was saved from Python): set model.table_reader_ = "
    "TableReader.learn(frame, Roles(...)) and save it again, or train it with `sitewise fit`"
)
NO_SITE = "{source} has no rows of the site {name!r}{meant}; its sites are {known}"
SEVERAL_SITES = "{source} holds {count} sites in column {column!r} ({known}): choose one site with --site NAME"


def load_model(path: Path) -> Any:
    """Load a trained model; raise ValueError for an adapted site."""
    import sitewise as sw

    model = sw.load(path)
    if isinstance(model, sw.AdaptedClassifier):
        raise ValueError(f"{path} is an adapted site: give the folder of a model, such as {path / 'model'}")
    return model


def load_site(path: Path) -> Any:
    """Load an adapted site; raise ValueError for a trained model."""
    import sitewise as sw

    here = sw.load(path)
    if not isinstance(here, sw.AdaptedClassifier):
        raise ValueError(f"{path} is a trained model, not an adapted site: run sitewise adapt {path} DATA --out site/")
    return here


def reader_of(model: Any, path: Path) -> "TableReader":
    """Return the model's reader of tables; raise ValueError if it has none."""
    reader: TableReader | None = getattr(model, "table_reader_", None)
    if reader is None:
        raise ValueError(NO_ROLES.format(path=path))
    return reader


def open_pack(folder: Path | None) -> Any:
    """Open packed images; return None if no folder is given."""
    if folder is None:
        return None
    from sitewise.datasets.packed import PackedImages

    return PackedImages.open(folder)


def sites_of(rows: Any, column: str | None, place: "Place") -> "Array | None":
    """Return the site of each row; None if the table has no column of the site."""
    from sitewise.arrays import Problems
    from sitewise.tables.values import names

    if column is None or column not in rows.column_names:
        return None
    problems = Problems("table")
    sites = names(rows, column, place, problems)
    problems.raise_if_any()
    return sites


def take_site(rows: Any, column: str | None, wanted: str | None, place: "Place") -> "tuple[Any, Place]":
    """Return the rows of the wanted site, and their place in the file; all rows if no site is named."""
    import numpy as np

    if wanted is None:
        return rows, place
    sites = sites_of(rows, column, place)
    if sites is None:
        known = "no column of sites is known" if column is None else f"there is no column {column!r}"
        raise ValueError(f"{place.source}: --site {wanted} is given, but {known}")
    kept = np.flatnonzero(sites == wanted)
    return rows.take(kept), replace(place, kept=kept)


def check_site(known: "Iterable[str]", wanted: str | None, column: str | None, source: str) -> None:
    """Raise ValueError if there are several sites and none is chosen, or if the chosen site is unknown."""
    from sitewise.arrays import did_you_mean

    names = sorted(known)
    listed = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
    if wanted is None and len(names) > 1:
        raise ValueError(SEVERAL_SITES.format(source=source, count=len(names), column=column, known=listed))
    if wanted is not None and wanted not in names:
        meant = did_you_mean(wanted, names)
        raise ValueError(NO_SITE.format(source=source, name=wanted, meant=meant, known=listed))
