"""What the caller hands to an estimator, read and checked: inputs, classes, sites, confounders, groups, weights."""

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

from sitewise.arrays import Problems, read_groups, read_weight
from sitewise.confounders import Confounders
from sitewise.inputs import Inputs, StoredImages, is_stored
from sitewise.ratio import LabeledRows
from sitewise.report.wording import NO_SITES

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class TrainingData:
    """Checked training data: rows in order, the names behind their site numbers, classes, schema of z, groups."""

    rows: LabeledRows
    site_names: list[Any]
    classes: Array
    schema: Confounders | None
    groups: Tensor | None
    named: bool = True  # whether the caller named the sites

    def in_order(self, classes: Array) -> "TrainingData":
        """The same rows with classes numbered in this order."""
        place = torch.tensor([classes.tolist().index(label) for label in self.classes.tolist()])
        return replace(self, rows=replace(self.rows, y=place[self.rows.y]), classes=classes)


def read_inputs(estimator: BaseEstimator, X: Any, *, reset: bool) -> Inputs:
    """Read X: a table (n, d), or images (n, C, H, W) or (n, H, W), uint8 or floats.

    Tables go through scikit-learn's own checks, feature names included. Floats stay as precise as they are, and
    packed images on the disk.
    """
    if is_stored(X):
        return _read_stored(estimator, X, reset)
    values = X.detach().cpu().numpy() if isinstance(X, Tensor) else X
    if getattr(values, "ndim", 2) in (3, 4):
        return _read_images(estimator, np.asarray(values), reset)
    if not reset and getattr(estimator, "input_shape_", None):
        expected = estimator.input_shape_
        raise ValueError(f"X must be images of shape {expected} as at fit, got a table of shape {np.shape(values)}")
    table = validate_data(estimator, values, reset=reset, dtype=np.float64)
    if reset:
        estimator.input_shape_ = None
    return torch.tensor(np.ascontiguousarray(table))  # tensors know no negative strides


def _read_images(estimator: BaseEstimator, values: Array, reset: bool) -> Tensor:
    images = values[:, None] if values.ndim == 3 else values
    if images.dtype != np.uint8:
        images = check_array(images, allow_nd=True, dtype=np.float32, input_name="X")
    _check_shape(estimator, images.shape, reset)
    return torch.tensor(np.ascontiguousarray(images))


def _read_stored(estimator: BaseEstimator, images: Any, reset: bool) -> StoredImages:
    if np.dtype(images.dtype) != np.uint8:
        raise ValueError(f"X must hold bytes (uint8) to stay on the disk, got {images.dtype}: give an array of it")
    _check_shape(estimator, images.shape, reset)
    return StoredImages(images, verbose=getattr(estimator, "verbose", None))


def _check_shape(estimator: BaseEstimator, whole: tuple[int, ...], reset: bool) -> None:
    """See that there are images, and that they are like those of the fit."""
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
    """Check everything beside X; one error names all that is wrong."""
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
    kept = (weight > 0).nonzero().flatten()
    rows = LabeledRows(X, torch.tensor(target), weight.float(), site, codes).take(kept)
    if len(torch.unique(rows.y)) < 2:
        problems.add("the rows of positive weight hold one class only: training needs at least two classes")
        problems.raise_if_any()
    if sample_domain is None:
        warnings.warn(NO_SITES, UserWarning, stacklevel=4)
    named = sample_domain is not None
    return TrainingData(rows, names, classes, schema, None if group is None else group[kept], named)


def read_classes(y: Any, problems: Problems) -> tuple[Array, Array]:
    """The sorted classes and every row's class number."""
    labels = column_or_1d(y.cpu().numpy() if isinstance(y, Tensor) else y, warn=True)
    missing = pd.isna(labels)
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


def read_domain(sample_domain: Any, n_rows: int, problems: Problems) -> tuple[list[Any], Tensor]:
    """The sites' names in order and every row's site number; one site where no names are given."""
    if sample_domain is None:
        return ["site"], torch.zeros(n_rows, dtype=torch.int64)
    column = pd.Series(sample_domain.cpu().numpy() if isinstance(sample_domain, Tensor) else sample_domain)
    if len(column) != n_rows:
        problems.add(f"sample_domain has {len(column)} row(s), X has {n_rows}")
    elif column.isna().any():
        first = int(np.flatnonzero(column.isna().to_numpy())[0])
        problems.add(f"sample_domain is missing in {int(column.isna().sum())} row(s), first at row {first}")
    codes, names = pd.factorize(column, sort=True)
    return list(names), torch.tensor(codes, dtype=torch.int64)


def read_partial_labels(y: Any, classes: Array, n_rows: int) -> Array:
    """Class numbers as floats, NaN where a label is missing."""
    column = pd.Series(y.cpu().numpy() if isinstance(y, Tensor) else y)
    if len(column) != n_rows:
        raise ValueError(f"y has {len(column)} row(s), X has {n_rows}")
    number_of = {label: float(number) for number, label in enumerate(classes.tolist())}
    numbers = column.map(number_of).to_numpy(dtype=np.float64)
    strange = np.isnan(numbers) & column.notna().to_numpy()
    if strange.any():
        first = int(np.flatnonzero(strange)[0])
        raise ValueError(
            f"y must hold the classes {classes.tolist()} and NaN or None where unknown, "
            f"got {column.tolist()[first]!r} at row {first}"
        )
    return numbers
