"""Judge the predictions of another model with this model's beliefs about the labels."""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from sitewise.arrays import Problems, did_you_mean, read_matrix
from sitewise.evaluation import SUM_TOLERANCE
from sitewise.performance.expected import DrawnRows
from sitewise.performance.metrics import decide
from sitewise.performance.unlearned import logits_of, unlearned_directions

Array = np.ndarray[Any, Any]


def judged_instead(rows: DrawnRows, classes: tuple[Any, ...], y_pred: Any = None, proba: Any = None) -> DrawnRows:
    """Return the same rows and beliefs with the predictions of another model.

    Parameters
    ----------
    rows : DrawnRows
        The rows of the site.
    classes : tuple
        The classes, in order.
    y_pred : array of shape (n,), optional
        Predicted classes; by default they follow from `proba`.
    proba : array of shape (n, K) or (n,), optional
        Probabilities. With the shape (n,), they are those of the second of two classes. Without `proba`, only decisions
        are judged.

    Returns
    -------
    DrawnRows
        The rows with these predictions.
    """
    if y_pred is None and proba is None:
        return rows
    problems = Problems("expected_performance")
    n_rows = len(rows) if rows.n_site is None else rows.n_site
    probability = None if proba is None else read_proba(proba, classes, n_rows, problems)
    decided = None if y_pred is None else read_decisions(y_pred, classes, n_rows, problems)
    problems.raise_if_any()
    probability, decided = (None if own is None else rows.of_site(own, "rows") for own in (probability, decided))
    return replace(rows, probability=probability, decided=decided, labels=_labels(rows, probability, decided))


def _labels(rows: DrawnRows, probability: Array | None, decided: Array | None) -> Array:
    """Draw labels that include the uncertainty of f along the other model's predictions."""
    if rows.learned is None or rows.probability is None:
        return rows.labels
    n_classes = rows.belief.shape[1]
    known = [np.tile(row, (len(rows), 1)) for row in np.eye(n_classes)]
    known += logits_of(rows.probability, None if decided is None else _as_many(rows.probability, decided), n_classes)
    more = unlearned_directions(logits_of(probability, decided, n_classes), known, rows.learned, rows.weight)
    return rows.learned.draw(more) if more else rows.labels


def _as_many(probability: Array, decided: Array) -> Array:
    """Predict classes by our own probabilities (n, K); with two classes, as many positives as the other model has."""
    count = int((decided == 1).sum())
    if probability.shape[1] > 2 or not count:
        return decide(probability, None if probability.shape[1] > 2 else np.inf)
    return decide(probability, float(np.sort(probability[:, 1])[-count]))


def read_decisions(y_pred: Any, classes: tuple[Any, ...], n_rows: int, problems: Problems) -> Array | None:
    """Read predicted classes as indices 0..K-1."""
    if np.ndim(y_pred) != 1 or len(y_pred) != n_rows:
        problems.add(f"y_pred must hold a class for each of {n_rows} row(s), got shape {np.shape(y_pred)}")
        return None
    given = pd.Series(np.asarray(y_pred.cpu()) if hasattr(y_pred, "cpu") else np.asarray(y_pred))
    index = pd.Index(classes).get_indexer(pd.Index(given))
    unknown = np.flatnonzero(index < 0)
    if len(unknown):
        value, names = given.tolist()[unknown[0]], [str(name) for name in classes]
        problems.add(
            f"y_pred must hold {list(classes)}, not so in {len(unknown)} row(s), "
            f"first {value!r} at row {unknown[0]}{did_you_mean(str(value), names)}"
        )
    return np.asarray(index, dtype=np.int64)


def read_proba(proba: Any, classes: tuple[Any, ...], n_rows: int, problems: Problems) -> Array | None:
    """Read probabilities (n, K); the columns of a DataFrame with class names may be in any order."""
    if isinstance(proba, pd.DataFrame) and set(proba.columns) == set(classes):
        proba = proba[list(classes)]
    if np.ndim(proba) == 1 and len(classes) == 2:
        second = np.asarray(proba.cpu() if hasattr(proba, "cpu") else proba, dtype=np.float64)
        proba = np.stack([1 - second, second], axis=1)
    read = read_matrix(proba, "proba", problems)
    if read is None:
        return None
    matrix = read.cpu().numpy()
    if matrix.shape != (n_rows, len(classes)):
        problems.add(f"proba must have shape {(n_rows, len(classes))}, a column for each class, got {matrix.shape}")
        return None
    total = matrix.sum(axis=1)
    off = np.flatnonzero(((matrix < 0) | (matrix > 1)).any(axis=1) | (np.abs(total - 1) > SUM_TOLERANCE))
    if len(off):
        problems.add(
            f"proba must lie in [0, 1] with rows that sum to one, not so in {len(off)} row(s), "
            f"first {matrix[off[0]].tolist()} at row {off[0]}"
        )
    return matrix
