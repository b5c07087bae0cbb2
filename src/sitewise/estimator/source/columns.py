"""Confounders that are columns of X."""

from typing import Any

import numpy as np

from sitewise.arrays import Problems, did_you_mean

ABSENT = "confounder_columns names {name!r}, which is not a column of X{meant}; its columns are {known}"
NOT_A_PLACE = "confounder_columns holds {name!r}, but X is an array of {width} columns: give column numbers, from 0"
OTHER_WIDTH = (
    "X has {width} columns; the model was fitted with {fitted}: expected these, or these and the {own} columns of "
    "confounder_columns"
)


def split_confounders(X: Any, sample_confounder: Any, columns: Any, model: Any) -> tuple[Any, Any]:
    """X as at `fit`, and z: the given one, or the named columns of X, which the model may also use as inputs."""
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
    """The columns of `fit`: by name if they are known; otherwise all columns, or all except those of z."""
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
