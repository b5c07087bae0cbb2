"""Convert tables to the inputs of a model. The kinds and scales of columns are learned once, on the training table."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from sklearn.compose import ColumnTransformer

from sitewise.arrays import Problems, did_you_mean
from sitewise.artifacts import Record
from sitewise.tables.classes import learn_classes
from sitewise.tables.features import (
    MOST_LEVELS,
    CategoryFeature,
    Feature,
    NumberFeature,
    column_order,
    fitted_transformer,
    holds_numbers,
    learn_features,
    read_values,
    refuse_decimal_commas,
)
from sitewise.tables.images import read_image
from sitewise.tables.manifest.checking import add_unreadable, available_cores
from sitewise.tables.roles import Roles
from sitewise.tables.values import (
    DATES,
    Array,
    Place,
    Rows,
    as_rows,
    find_columns,
    known_text,
    labels,
    levels,
    names,
    numbers,
    plain,
    probabilities,
    refuse_kinds,
    text,
)

DATE = r"^(\d{4}-\d{1,2}-\d{1,2}|\d{1,2}[./]\d{1,2}[./]\d{4})([T ]\d.*)?$"  # as text
TOO_MANY_LEVELS = (
    "{where} has {count} different values of text, which looks like names: leave it out, or add --categorical {name} "
    "if these are categories"
)
NO_CONFOUNDER = "confounder {name!r} is not among the columns and counts as missing in every row"
OTHER_ORDER = (
    "the columns of probabilities, {proba}, seem to be in another order than the classes, {classes}: reorder "
    "them, or give their order with --classes"
)
ANYWHERE = Place()
IGNORED = "column(s) without a role are ignored: {names}"


@dataclass(frozen=True, eq=False)
class ReadRows:
    """Rows of a table in the form that a model reads: X, Z, y, sites and groups."""

    X: Any  # features (n, d), probabilities (n, K), or images (n, C, H, W)
    Z: pd.DataFrame | None
    y: Array | None = None
    site: Array | None = None
    groups: Array | None = None

    def __len__(self) -> int:
        return len(self.X)


@dataclass(frozen=True)
class ImageInput:
    """Settings for reading images: the shorter side is scaled to `size` pixels, and the centre square is kept."""

    size: int = 224
    channels: int = 3


@dataclass(frozen=True)
class TableReader:
    """Turns a table into X, Z, y and sites. Make a reader from the training table with `TableReader.learn`.

    A model that was fitted by `sitewise fit` has its reader as `table_reader_`, and the reader is saved with the model.
    To use a model fitted in Python on the command line, set `model.table_reader_` to its reader before saving.

    Parameters
    ----------
    roles : Roles
        The roles of the columns.
    classes : tuple
        The labels, in the order of their class indices.
    features : tuple of Feature
        The columns of x, with the medians, scales and levels learned from the training table; empty for other inputs.
    numeric_confounders : tuple of str
        The confounders that are read as numbers. All others are read as categories.
    image : ImageInput, optional
        The size and channels of images; None if the inputs are not images.

    Examples
    --------
    >>> reader = TableReader.learn(frame, Roles(target="y", site="hospital", confounders=("age",), features=("bp",)))
    >>> rows = reader.read(frame)
    >>> model = GPAClassifier().fit(rows.X, rows.y, sample_domain=rows.site, sample_confounder=rows.Z)
    >>> new = reader.read(frame_of_a_new_site, labels="none")
    >>> here = model.adapt(new.X, sample_confounder=new.Z)
    """

    roles: Roles
    classes: tuple[Any, ...]
    features: tuple[Feature, ...] = ()
    numeric_confounders: tuple[str, ...] = ()
    image: ImageInput | None = None

    @classmethod
    def learn(
        cls, table: Any, roles: Roles, *, image: ImageInput | None = None, place: Place = ANYWHERE
    ) -> "TableReader":
        """Make a reader from a labeled table.

        The reader learns the classes, which columns hold numbers and which categories, the medians and scales of number
        features, and the levels of category features.

        Parameters
        ----------
        table : DataFrame or Arrow table
            The labeled training table.
        roles : Roles
            The roles of its columns.
        image : ImageInput, optional
            The size and channels of images, if there is an image column.
        place : Place, optional
            The name of the table in error messages.

        Returns
        -------
        TableReader
            The reader of this table and of tables with the same columns.
        """
        rows = as_rows(table)
        problems = Problems("table")
        roles.check(problems)
        if roles.target is None:
            problems.add("name the column of the label, by the role target")
        find_columns(rows.column_names, roles.columns(), place, problems)
        problems.raise_if_any()
        refuse_kinds(rows, [name for _, name in roles.columns()], place, problems)
        problems.raise_if_any()
        assert roles.target is not None
        for name in (n for n in (*roles.features, *roles.confounders) if n not in roles.categorical):
            if _holds_dates(rows, name):
                problems.add(DATES.format(where=place.column(name)))
        problems.raise_if_any()
        classes = learn_classes(rows, roles.target, roles.classes, place, problems)
        order = _order_of(roles, classes, problems)
        features = learn_features(rows, roles.features, roles.categorical, place, problems)
        for name in roles.confounders:
            refuse_decimal_commas(rows, name, place, problems)
        numeric = [n for n in roles.confounders if n not in roles.categorical and holds_numbers(rows, n)]
        for name in (n for n in roles.confounders if n not in (*roles.categorical, *numeric)):
            count = len(levels(rows, name, place, problems).categories)
            if count > MOST_LEVELS:
                problems.add(TOO_MANY_LEVELS.format(where=place.column(name), count=count, name=name))
        problems.raise_if_any()
        return cls(
            replace(roles, proba=order),
            classes,
            features,
            tuple(numeric),
            (image or ImageInput()) if roles.image else None,
        )

    @property
    def input_kind(self) -> str:
        """The kind of input: "features", "image" or "proba"."""
        return "image" if self.image else "proba" if self.roles.proba else "features"

    @cached_property
    def transformer(self) -> ColumnTransformer:
        """The fitted `ColumnTransformer` of scikit-learn that turns the read features into columns of numbers."""
        return fitted_transformer(self.features)

    @property
    def feature_columns(self) -> tuple[str, ...]:
        """The names of the columns of X if the inputs are features; otherwise empty."""
        return tuple(name for feature in self.features for name in feature.columns)

    def columns(self, available: Sequence[str], *, labels: bool) -> list[str]:
        """List the columns of a table that `read` uses.

        These are all input columns, and those columns with other roles that the table has. The target is listed only if
        `labels` is true.

        Parameters
        ----------
        available : sequence of str
            The names of the table's columns.
        labels : bool
            If true, target and site are listed even if the table does not have them.

        Returns
        -------
        list of str
            The names of the columns.
        """
        needed = {"features", "image", "proba"} | ({"target", "site"} if labels else set())
        wanted = [
            name for role, name in self.roles.columns() if role in needed or (name in available and role != "target")
        ]
        return list(dict.fromkeys(wanted))

    def notes(self, available: Sequence[str]) -> list[str]:
        """Return notes about the columns of a table: which confounders it lacks, and which columns are ignored.

        Parameters
        ----------
        available : sequence of str
            The names of the table's columns.

        Returns
        -------
        list of str
            The notes, one sentence each; empty if there is nothing to note.
        """
        absent = [name for name in self.roles.confounders if name not in available]
        own = {name for _, name in self.roles.columns()}
        extra = [name for name in available if name not in own]
        said = [NO_CONFOUNDER.format(name=name) + did_you_mean(name, extra) for name in absent]
        if extra:
            said.append(IGNORED.format(names=", ".join(extra[:12]) + (", ..." if len(extra) > 12 else "")))
        return said

    def read(
        self,
        table: Any,
        *,
        labels: str = "all",
        place: Place = ANYWHERE,
        root: Path | None = None,
        packed: Any = None,
    ) -> ReadRows:
        """Read the rows of a table as X, Z, y, sites and groups.

        If the table has problems, one ValueError lists all of them.

        Parameters
        ----------
        table : DataFrame or Arrow table
            The rows. If the table has no column for a confounder, the confounder is missing in all rows. The column of
            images holds either paths or the bytes of the files.
        labels : {"all", "some", "none"}
            Whether labels and sites are read. "all": every row needs a label and, if `roles.site` is given, a site.
            "some": labels may be missing and are then None; sites are not read. "none": neither labels nor sites are
            read.
        place : Place, optional
            The name of the table in error messages.
        root : path, optional
            The folder to which image paths are relative; by default the working directory.
        packed : PackedImages, optional
            Packed images, which are used instead of the files. They are found by the id of each row, or by its path if
            the table has no column of ids.

        Returns
        -------
        ReadRows
            The rows, with the attributes `X`, `Z`, `y`, `site` and `groups`. What was not read is None.
        """
        rows = as_rows(table)
        problems = Problems("table")
        needed = ("features", "image", "proba", *(("target", "site") if labels == "all" else ()))
        asked = [(role, name) for role, name in self.roles.columns() if role in needed]
        if labels == "some" and self.roles.target:
            asked.append(("target", self.roles.target))
        find_columns(rows.column_names, asked, place, problems)
        problems.raise_if_any()
        used = self.columns(rows.column_names, labels=labels != "none")
        held = [name for name in used if name in rows.column_names and not self._holds_images(rows, name)]
        refuse_kinds(rows, held, place, problems)
        problems.raise_if_any()
        X = self._inputs(rows, place, problems, root, packed)
        Z = self._confounders(rows, place, problems)
        y = self._labels(rows, labels, place, problems)
        site = names(rows, self.roles.site, place, problems) if labels == "all" and self.roles.site else None
        group = self.roles.group
        groups = text(rows, group) if group is not None and group in rows.column_names else None
        problems.raise_if_any()
        if groups is not None:
            groups[groups == ""] = None  # a row without a group is its own group
        return ReadRows(X, Z, y, site, groups)

    def _inputs(self, rows: Rows, place: Place, problems: Problems, root: Path | None, packed: Any) -> Any:
        if self.roles.proba:
            return probabilities(rows, self.roles.proba, place, problems)
        if self.roles.image is None:
            return self._features(rows, place, problems)
        assert self.image is not None
        if self._holds_images(rows, self.roles.image):
            return _read_images(rows.column(self.roles.image).to_pylist(), None, self.image, place, problems)
        paths = text(rows, self.roles.image, place, problems)
        if packed is not None:
            id = self.roles.id if self.roles.id in rows.column_names else None
            return packed.by_id(paths if id is None else text(rows, id))
        return _read_images(paths, root or Path(), self.image, place, problems)

    def _holds_images(self, rows: Rows, name: str) -> bool:
        """Return whether a column is the column of images and holds the bytes of files instead of paths."""
        kind = rows.schema.field(name).type
        return name == self.roles.image and bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))

    def _features(self, rows: Rows, place: Place, problems: Problems) -> Array:
        values = read_values(self.features, rows, place, problems)
        if problems.messages:
            return values
        prepared: Array = self.transformer.transform(values).take(column_order(self.features), axis=1)
        return prepared

    def _confounders(self, rows: Rows, place: Place, problems: Problems) -> pd.DataFrame | None:
        """Return Z with all confounders; those without a column are missing in all rows. None if none has a column."""
        if not any(name in rows.column_names for name in self.roles.confounders):
            return None
        columns: dict[str, Any] = {}
        for name in self.roles.confounders:
            if name not in rows.column_names:
                columns[name] = np.full(rows.num_rows, np.nan)
            elif name in self.numeric_confounders:
                columns[name] = numbers(rows, name, place, problems)
            else:
                columns[name] = levels(rows, name, place, problems)
        return pd.DataFrame(columns, copy=False)

    def _labels(self, rows: Rows, which: str, place: Place, problems: Problems) -> Array | None:
        if which == "none" or self.roles.target is None:
            return None
        return labels(rows, self.roles.target, self.classes, place, problems, partly=which == "some")


def _holds_dates(rows: Rows, name: str) -> bool:
    """Return whether a column holds dates, by its type or because most of its known cells of text are dates."""
    cells = plain(rows.column(name))
    if pa.types.is_temporal(cells.type):
        return True
    if not (pa.types.is_string(cells.type) or pa.types.is_large_string(cells.type)):
        return False
    known = known_text(cells).drop_null()
    return 2 * (pc.sum(pc.match_substring_regex(known, DATE)).as_py() or 0) > len(known)


def _order_of(roles: Roles, classes: tuple[Any, ...], problems: Problems) -> tuple[str, ...]:
    """Return the columns of probabilities in the order of the sorted classes."""
    if not roles.proba:
        return ()
    if len(roles.proba) not in {len(classes), 1 if len(classes) == 2 else len(classes)}:
        problems.add(
            f"there are {len(roles.proba)} column(s) of probabilities ({', '.join(roles.proba)}) and {len(classes)} "
            f"classes ({', '.join(map(str, classes))}): name a column for each class"
        )
        return roles.proba
    if len(roles.proba) == 1:
        return roles.proba
    if not roles.classes:
        named = [[n for n in roles.proba if n.casefold().endswith(str(label).casefold())] for label in classes]
        if all(len(matches) == 1 for matches in named) and [matches[0] for matches in named] != list(roles.proba):
            problems.add(OTHER_ORDER.format(proba=", ".join(roles.proba), classes=", ".join(map(str, classes))))
        return roles.proba
    column_of = dict(zip(roles.classes, roles.proba, strict=True))
    return tuple(column_of[str(label)] for label in classes)


def _read_images(files: Any, root: Path | None, how: ImageInput, place: Place, problems: Problems) -> Array:
    """Decode files in several threads into one array (n, C, size, size).

    `files` are paths below `root`, or the bytes of the files if `root` is None.
    """
    images = np.zeros((len(files), how.channels, how.size, how.size), dtype=np.uint8)

    def read(number: int) -> str | None:
        try:
            file = files[number] or b"" if root is None else root / files[number]
            images[number] = read_image(file, how.size, how.channels)
        except (ValueError, OSError) as error:
            return str(error)
        return None

    if problems.messages:
        return images
    with ThreadPoolExecutor(available_cores()) as pool:
        arrays = enumerate(pool.map(read, range(len(files))))
        add_unreadable(problems, {place.number(row): why for row, why in arrays if why is not None})
    return images


# The classes of this package that may be saved with a model.
RECORDS = {
    "CategoryFeature": Record(CategoryFeature),
    "ImageInput": Record(ImageInput),
    "NumberFeature": Record(NumberFeature),
    "Roles": Record(Roles),
    "TableReader": Record(TableReader),
}
