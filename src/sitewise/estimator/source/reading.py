"""Read and check the arguments of an estimator: inputs, classes, sites, confounders, groups, weights; choose rows."""

import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.base import BaseEstimator
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, column_or_1d, validate_data
from torch import Tensor

from sitewise.arrays import (
    Problems,
    as_pandas,
    did_you_mean,
    plain_tensor,
    read_column,
    read_groups,
    read_weight,
    refuse_masked,
)
from sitewise.confounders import Confounders
from sitewise.inputs import Inputs, StoredImages, is_stored
from sitewise.ratio import digest_rows
from sitewise.report.wording import NO_SITES
from sitewise.rows import LabeledRows, SiteRows

Array = np.ndarray[Any, Any]

NOT_NUMBERS = (
    "X must be numbers, column {column!r} holds {value!r} (row {row}): put a ColumnTransformer with a OneHotEncoder in "
    "front, make_pipeline(ColumnTransformer(...), {name}()), which sw.adapt adapts as a whole; or let "
    "sw.TableReader.learn(frame, roles) make numbers of the frame, as the command line does"
)
CROSS_FIT_FOLDS = 5
ABSENT = "confounder_columns names {name!r}, which is not a column of X{meant}; its columns are {known}"
NOT_A_PLACE = "confounder_columns holds {name!r}, but X is an array of {width} columns: give column numbers, from 0"
OTHER_WIDTH = (
    "X has {width} columns; the model was fitted with {fitted}: expected these, or these and the {own} columns of "
    "confounder_columns"
)


@dataclass(frozen=True)
class TrainingData:
    """Checked training data: rows, names of the sites, classes, and the schema of z (None without z)."""

    rows: LabeledRows
    site_names: list[Any]
    classes: Array
    schema: Confounders | None
    named: bool = True  # whether sample_domain was given

    def in_order(self, classes: Array) -> "TrainingData":
        """Return the same rows with the classes numbered in the given order."""
        place = torch.tensor([classes.tolist().index(label) for label in self.classes.tolist()])
        return replace(self, rows=replace(self.rows, y=place[self.rows.y]), classes=classes)


def read_inputs(estimator: BaseEstimator, X: Any, *, reset: bool) -> Inputs:
    """Read X: a table (n, d), or images (n, C, H, W) or (n, H, W) as uint8 or floats.

    Tables are checked by scikit-learn, including their feature names, and returned in double precision. Images are
    returned as uint8 or in single precision; packed images stay on disk.
    """
    if is_stored(X):
        return _read_stored(estimator, X, reset)
    values = without_gaps(X)
    values = values.cpu().numpy() if isinstance(values, Tensor) else values
    if getattr(values, "ndim", 2) in (3, 4):
        return _read_images(estimator, np.asarray(values), reset)
    if not reset and getattr(estimator, "input_shape_", None):
        expected = estimator.input_shape_
        raise ValueError(f"X must be images of shape {expected} as at fit, got a table of shape {np.shape(values)}")
    try:
        table = validate_data(estimator, values, reset=reset, dtype=np.float64)
    except (TypeError, ValueError):
        _refuse_text(type(estimator).__name__, as_pandas(values))
        raise
    if reset:
        estimator.input_shape_ = None
    return torch.tensor(np.ascontiguousarray(table))  # tensors have no negative strides


def without_gaps(X: Any) -> Any:
    """X unchanged; ValueError if entries are masked or X cannot be read as an array."""
    try:
        refuse_masked(X)
        return plain_tensor(X) if isinstance(X, Tensor) else X
    except (TypeError, ValueError) as error:
        raise ValueError(f"X must be an array of numbers without gaps ({error})") from error


def _refuse_text(name: str, table: Any) -> None:
    """Raise ValueError with advice if columns of a DataFrame are not numeric."""
    problems = Problems(name)
    for column in table.columns if isinstance(table, pd.DataFrame) else ():
        numbers = pd.to_numeric(table[column].astype(object), errors="coerce")
        strange = np.flatnonzero(numbers.isna() & table[column].notna())
        if len(strange):
            value = table[column].iloc[int(strange[0])]
            problems.add(NOT_NUMBERS.format(column=column, value=value, row=int(strange[0]), name=name))
    problems.raise_if_any()


def _read_images(estimator: BaseEstimator, values: Array, reset: bool) -> Tensor:
    images = values[:, None] if values.ndim == 3 else values
    if images.dtype != np.uint8:
        images = check_array(images, allow_nd=True, dtype=np.float32, input_name="X")
    _check_shape(estimator, images.shape, reset)
    return torch.tensor(np.ascontiguousarray(images))


def _read_stored(estimator: BaseEstimator, images: Any, reset: bool) -> StoredImages:
    if np.dtype(images.dtype) != np.uint8:
        raise ValueError(f"X must hold bytes (uint8) to stay on disk, got {images.dtype}: pass it as an array")
    _check_shape(estimator, images.shape, reset)
    return StoredImages(images, verbose=getattr(estimator, "verbose", None))


def _check_shape(estimator: BaseEstimator, whole: tuple[int, ...], reset: bool) -> None:
    """Check that there are images, and that they have the same shape as at fit."""
    if whole[0] == 0:
        raise ValueError("X is empty: at least one image is needed")
    shape = tuple(whole[1:])
    if reset:
        estimator.input_shape_ = shape
        estimator.n_features_in_ = int(np.prod(shape))
    elif estimator.input_shape_ != shape:
        expected = estimator.input_shape_ or f"({estimator.n_features_in_},)"
        raise ValueError(f"X must have inputs of shape {expected} as at fit, got {shape}")


def read_training_data(
    X: Inputs, y: Any, sample_domain: Any, sample_confounder: Any, groups: Any, sample_weight: Any
) -> TrainingData:
    """Read and check all arguments of `fit` except X; one error lists all problems."""
    problems = Problems("fit")
    classes, target = read_classes(y, problems)
    names, site = read_domain(sample_domain, len(X), problems)
    schema, codes = None, torch.zeros(len(X), 0, dtype=torch.float64)
    if sample_confounder is not None:
        try:
            schema = Confounders.learn(sample_confounder)
            codes, _ = schema.encode(sample_confounder)
        except ValueError as error:
            problems.add(str(error))
    if len(target) != len(X):
        problems.add(f"y has {len(target)} row(s), X has {len(X)}")
    if len(codes) != len(X):
        problems.add(f"sample_confounder has {len(codes)} row(s), X has {len(X)}")
    weight = read_weight(sample_weight, len(X), problems)
    group = read_groups(groups, len(X), problems)
    problems.raise_if_any()
    y = torch.tensor(target)
    rows = LabeledRows(X=X, y=y, weight=weight.float(), site=site, codes=codes, groups=group).take(weight > 0)
    if len(torch.unique(rows.y)) < 2:
        problems.add("the rows of positive weight hold one class only: training needs at least two classes")
        problems.raise_if_any()
    if sample_domain is None:
        warnings.warn(NO_SITES, UserWarning, stacklevel=3)
    return TrainingData(rows, names, classes, schema, named=sample_domain is not None)


def read_classes(y: Any, problems: Problems) -> tuple[Array, Array]:
    """Return the sorted classes (K,), and the class number of each row (n,)."""
    labels = column_or_1d(_labels(y), warn=True)
    missing = pd.isna(labels)
    infinite = np.isinf(labels) if labels.dtype.kind == "f" else missing
    if infinite.any() and not missing.any():
        first = int(np.flatnonzero(infinite)[0])
        problems.add(f"y must hold a class for each row, got {labels[first]} at row {first}")
        return np.array([0, 1]), np.zeros(len(labels), dtype=np.int64)
    if not missing.any():
        check_classification_targets(labels)
    else:
        problems.add(f"y is missing in {int(missing.sum())} row(s), first at row {int(np.flatnonzero(missing)[0])}")
        return np.array([0, 1]), np.zeros(len(labels), dtype=np.int64)
    classes, target = np.unique(labels, return_inverse=True)
    if not len(classes):
        problems.add("y is empty: at least one labeled row of each class is needed")
    elif len(classes) < 2:
        problems.add(f"y holds one class only ({classes[0]!r}) at every site: training needs at least two classes")
    return classes, target.astype(np.int64)


def _labels(y: Any) -> Any:
    """Return y in a form that scikit-learn reads; masked labels become missing values."""
    if isinstance(y, np.ma.MaskedArray):
        return pd.Series(y).to_numpy() if y.ndim == 1 else y
    return plain_tensor(y).cpu().numpy() if isinstance(y, Tensor) else y


def read_domain(sample_domain: Any, n_rows: int, problems: Problems) -> tuple[list[Any], Tensor]:
    """Return the sorted names of the sites, and the site number of each row (n,).

    If `sample_domain` is None, all rows belong to one site.
    """
    if sample_domain is None:
        return ["site"], torch.zeros(n_rows, dtype=torch.int64)
    column = read_column(sample_domain, "sample_domain", n_rows, problems)
    if column is None:
        return ["site"], torch.zeros(n_rows, dtype=torch.int64)
    if column.isna().any():
        first = int(np.flatnonzero(column.isna().to_numpy())[0])
        problems.add(f"sample_domain is missing in {int(column.isna().sum())} row(s), first at row {first}")
    codes, names = pd.factorize(column, sort=True)
    return list(names), torch.tensor(codes, dtype=torch.int64)


def read_partial_labels(y: Any, classes: Array, n_rows: int, problems: Problems) -> Tensor | None:
    """Return class numbers as floats (n,), NaN where a label is missing; None if y is None or cannot be read."""
    column = None if y is None else read_column(y, "y", n_rows, problems)
    if column is None:
        return None
    number_of = {label: float(number) for number, label in enumerate(classes.tolist())}
    numbers = column.map(number_of).to_numpy(dtype=np.float64)
    strange = np.isnan(numbers) & column.notna().to_numpy()
    if strange.any():
        first = int(np.flatnonzero(strange)[0])
        problems.add(
            f"y must hold the classes {classes.tolist()} and NaN or None where unknown, "
            f"got {column.tolist()[first]!r} at row {first}"
        )
    return torch.tensor(numbers)


@dataclass(frozen=True)
class SiteSummary:
    """A training site: its name, its number of rows, and the number of rows of each class."""

    name: Any
    n_rows: int
    class_counts: tuple[int, ...]


@dataclass(frozen=True)
class TrainingSummary:
    """The training data: its sites, and a hash that identifies the data."""

    sites: tuple[SiteSummary, ...]
    fingerprint: str
    named: bool = True  # whether sample_domain was given

    @property
    def n_rows(self) -> int:
        """The number of rows of all sites."""
        return sum(site.n_rows for site in self.sites)


def summarize_training(data: TrainingData) -> TrainingSummary:
    """Count the rows of each class at each site, and compute the fingerprint of the data."""
    rows, n_classes = data.rows, len(data.classes)
    counts = [torch.bincount(rows.y[rows.site == s], minlength=n_classes) for s in range(len(data.site_names))]
    sites = zip(data.site_names, counts, strict=True)
    summaries = (SiteSummary(name, int(count.sum()), tuple(count.tolist())) for name, count in sites)
    return TrainingSummary(tuple(summaries), digest_rows(rows), data.named)


def split_validation(data: TrainingData, validation: Any, seed: int) -> tuple[Tensor, Tensor]:
    """Return the indices of the rows to train on and of the rows to hold out.

    If `validation` is a share, it is held out from each class at each site; with groups, whole groups are held out from
    each site. If it is a name, the site with this name is held out. If it is None or 0, no rows are held out.
    """
    everything = torch.arange(len(data.rows))
    if validation is None or (not isinstance(validation, str) and validation == 0):
        return everything, everything[:0]
    if not isinstance(validation, float):
        if validation not in data.site_names:
            raise ValueError(f"validation names the site {validation!r}; the sites are {data.site_names}")
        held = data.rows.site == data.site_names.index(validation)
        if held.all():
            raise ValueError(f"validation={validation!r} is the only site: nothing is left to train on")
        return everything[~held], everything[held]
    if not 0 < validation < 1:
        raise ValueError(f"validation must be a share between 0 and 1, a site's name or None, got {validation}")
    rng = np.random.default_rng(seed)
    stratum = data.rows.site * (int(data.rows.y.max()) + 1) + data.rows.y
    groups = data.rows.groups
    units = everything if groups is None else groups
    held = torch.zeros(len(everything), dtype=torch.bool)
    apart = stratum if groups is None else data.rows.site
    for value in torch.unique(apart):
        inside = apart == value
        names = torch.unique(units[inside]).numpy()
        chosen = rng.permutation(names)[: int(validation * len(names))]
        held |= inside & torch.isin(units, torch.tensor(chosen, dtype=units.dtype))
    # A group with rows at several sites is held out at all sites if it was drawn at one of them.
    if groups is not None:
        held = torch.isin(groups, torch.unique(groups[held]))
    return everything[~held], everything[held]


def folds(rows: SiteRows, seed: int) -> list[Tensor]:
    """Divide the rows at random into at most five folds; return the row numbers of each. Groups are kept whole."""
    units = torch.arange(len(rows)) if rows.groups is None else torch.unique(rows.groups, return_inverse=True)[1]
    n_units = int(units.max()) + 1
    order = torch.tensor(np.random.default_rng(seed).permutation(n_units))
    fold_of_unit = order % min(CROSS_FIT_FOLDS, n_units)
    return [(fold_of_unit[units] == fold).nonzero().flatten() for fold in range(int(fold_of_unit.max()) + 1)]


def evenly(n_rows: int, at_most: int) -> Tensor:
    """Return at most `at_most` row numbers, spread evenly over n rows."""
    return torch.arange(n_rows) if n_rows <= at_most else torch.arange(at_most) * n_rows // at_most


def split_confounders(X: Any, sample_confounder: Any, columns: Any, model: Any) -> tuple[Any, Any]:
    """Return X with the columns of `fit`, and z, which is `sample_confounder` or else the given columns of X.

    Columns of z may also be inputs of the model. If `columns` is None, both arguments are returned unchanged.
    """
    if columns is None:
        return X, sample_confounder
    names = list(columns)
    X = X if hasattr(X, "shape") else np.asarray(X)
    _check_columns(X, names)
    Z = (X[names] if hasattr(X, "columns") else X[:, names]) if sample_confounder is None else sample_confounder
    return _inputs(X, names, model), Z


def _check_columns(X: Any, names: list[Any]) -> None:
    problems = Problems("X")
    is_frame, width = hasattr(X, "columns"), X.shape[1]
    known = list(X.columns) if is_frame else range(width)
    for name in names:
        if name not in known:
            shown = ", ".join(map(str, known))
            message = ABSENT if is_frame else NOT_A_PLACE
            problems.add(message.format(name=name, meant=did_you_mean(name, known), known=shown, width=width))
    problems.raise_if_any()


def _inputs(X: Any, names: list[Any], model: Any) -> Any:
    """Return the columns of X that the model was fitted with.

    They are selected by name if the names are known. Otherwise, their number shows whether the columns of z belong to
    them.
    """
    if hasattr(X, "columns") and hasattr(model, "feature_names_in_"):
        fitted = model.feature_names_in_.tolist()
        return X[fitted] if set(fitted) <= set(X.columns) else X
    width, expected = X.shape[1], getattr(model, "n_features_in_", X.shape[1])
    if width == expected:
        return X
    if width != expected + len(names):
        raise ValueError(OTHER_WIDTH.format(width=width, fitted=expected, own=len(names)))
    if hasattr(X, "columns"):
        return X[[name for name in X.columns if name not in names]]
    return X[:, [place for place in range(width) if place not in names]]
