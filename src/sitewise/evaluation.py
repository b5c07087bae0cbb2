"""Metrics of probabilities against known labels, with bootstrap intervals, and reliability diagrams.

Every metric is computed for R vectors of row weights at once, given as an (R, n) array. A bootstrap resample is
represented by such a vector: it counts how often each row was drawn.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from sitewise.arrays import Problems, read_column, read_groups, read_labels, read_matrix, read_weight

Array = np.ndarray[Any, Any]
METRIC_NAMES = {
    "accuracy": "accuracy",
    "positive_f1": "positive-class F1",
    "macro_f1": "macro F1",
    "balanced_accuracy": "balanced accuracy",
    "nll": "negative log-likelihood",
    "brier": "Brier score",
    "auroc": "AUROC",
    "auprc": "average precision",
    "ece": "expected calibration error",
}
METRICS = tuple(METRIC_NAMES)
CLINICAL_NAMES = {
    "net_benefit_treat_all": "net benefit of treating all",
    "oe_ratio": "observed to expected ratio",
    "sensitivity_at_specificity": "sensitivity at 90% specificity",
}
SMALLEST_PROBABILITY = 1e-15  # nll stays finite
SUM_TOLERANCE = 1e-3  # of a row's sum, because single and half precision round
ECE_BINS = 15
CHUNK = 2**22  # largest number of weights in memory at a time


def metric_name(metric: str) -> str:
    """Return the name of a metric in words."""
    return (METRIC_NAMES | CLINICAL_NAMES).get(metric, metric.replace("_", " "))


@dataclass(frozen=True)
class Metric:
    """The value of a metric and the bounds of its interval.

    `value` is None if the metric is undefined. `low` and `high` are None if there is no interval.
    """

    value: float | None
    low: float | None = None
    high: float | None = None


def evaluate(
    y: Any,
    probability: Any,
    *,
    classes: Any = None,
    groups: Any = None,
    sample_weight: Any = None,
    level: float = 0.95,
    n_resamples: int = 0,
    random_state: Any = 0,
) -> dict[str, Metric]:
    """Compute metrics of predicted probabilities from known labels, with bootstrap intervals.

    Parameters
    ----------
    y : array of shape (n,)
        Class indices 0..K-1, or values of `classes`.
    probability : array of shape (n, K)
        Predicted probabilities; each row sums to one.
    classes : array of shape (K,), optional
        The values of y in the order of the columns of `probability`.
    groups : array of shape (n,), optional
        The group of each row, for example the patient. All rows of a group are resampled together.
    sample_weight : array of shape (n,), optional
        One weight for each row; a weight of two counts as two rows.
    level : float
        Confidence level of the percentile intervals.
    n_resamples : int
        The number of bootstrap resamples; 0 gives no intervals.
    random_state : int or Generator
        Seed of the bootstrap.

    Returns
    -------
    dict of str to Metric
        For each metric its value, and the bounds `low` and `high` of its interval (None without an interval). The
        metrics are `accuracy`, `positive_f1`, `macro_f1`, `balanced_accuracy`, `nll`, `brier`, `auroc`, `auprc` and
        `ece`.

    Notes
    -----
    `positive_f1` is the F1 of class 1, for K = 2 only. `macro_f1` is the mean F1 over the classes that occur in y or in
    the predictions. For K = 2, `brier` is the mean over rows of (P(y=1) - y)². For K > 2, the squared differences
    between the probability and the indicator of each class are summed over the classes, and `brier` is the mean of
    this sum over rows. `auroc` and `auprc` (average precision) are computed for class 1 if K = 2; for K > 2 they are
    means over the classes, each against the rest. `ece` is the expected calibration error. It uses 15 bins of equal
    weight: bins of P(y=1) for K = 2, and bins of the largest probability for K > 2.

    The predicted class is the most probable one; if several classes are equally probable, the first of them. The value
    of an undefined metric is None, for example of `auroc` if the rows have only one class. A mean over classes leaves
    out classes for which the metric is undefined, and an interval leaves out resamples in which it is undefined. If all
    rows are in one group, there is no interval. The interval of `ece` is biased upwards, because resampling adds noise
    to the observed frequencies.

    Examples
    --------
    >>> metrics = evaluate(y, model.predict_proba(X), n_resamples=1000)
    >>> metrics["auroc"].value, metrics["auroc"].low, metrics["auroc"].high
    """
    problems = Problems("evaluate")
    if not 0 < level < 1:
        problems.add(f"level must lie between 0 and 1, got {level}")
    if n_resamples < 0 or n_resamples != int(n_resamples):
        problems.add(f"n_resamples must be 0, 1, 2, ..., got {n_resamples}")
    indices, matrix = _read(y, probability, classes, problems)
    weight = read_weight(sample_weight, len(matrix), problems).cpu().numpy()
    codes = read_groups(groups, len(matrix), problems)
    problems.raise_if_any()
    units = np.arange(len(matrix)) if codes is None else codes.cpu().numpy()
    scored = _Scored.of(indices, matrix)
    values = scored.metrics(weight[None, :])
    drawn = [scored.metrics(counts * weight) for counts in _resamples(units, int(n_resamples), random_state)]
    tails = [(1 - level) / 2, (1 + level) / 2]
    result = {}
    for name in METRICS:
        value = float(values[name][0])
        samples = np.concatenate([chunk[name] for chunk in drawn]) if drawn else np.empty(0)
        samples = samples[~np.isnan(samples)]
        if np.isnan(value):
            result[name] = Metric(None)
        elif not len(samples):
            result[name] = Metric(value)
        else:
            low, high = np.quantile(samples, tails)
            result[name] = Metric(value, float(low), float(high))
    return result


def reliability(y: Any, probability: Any, n_bins: int = 10) -> pd.DataFrame:
    """Compute the points of a reliability diagram.

    The bins have equal mass, as in `ece`. Rows of equal probability share a bin, and empty bins are left out. For K = 2
    the diagram compares P(y=1) with the frequency of class 1. For K > 2 it compares the largest probability with the
    frequency of correct predictions.

    Parameters
    ----------
    y : array of shape (n,)
        Class indices 0..K-1.
    probability : array of shape (n, K)
        Predicted probabilities; each row sums to one.
    n_bins : int
        The number of bins.

    Returns
    -------
    DataFrame
        The columns `mean_predicted`, `observed` and `count`, one row for each bin.
    """
    problems = Problems("reliability")
    if n_bins < 1:
        problems.add(f"n_bins must be at least 1, got {n_bins}")
    indices, matrix = _read(y, probability, None, problems)
    problems.raise_if_any()
    score, event = _confidence(indices, matrix)
    mass, predicted, observed = equal_mass_bins(Ranking.of(score), score, event, np.ones((1, len(score))), n_bins)
    filled = mass[0] > 0
    count = mass[0, filled]
    return pd.DataFrame(
        {
            "mean_predicted": predicted[0, filled] / count,
            "observed": observed[0, filled] / count,
            "count": np.rint(count).astype(np.int64),
        }
    )


def _read(y: Any, probability: Any, classes: Any, problems: Problems) -> tuple[Array, Array]:
    """Return labels as class indices (n,), and probabilities (n, K). They are valid only if no problem was added."""
    read = read_matrix(probability, "probability", problems)
    if read is None:
        problems.raise_if_any()  # nothing else can be checked without the shape
    assert read is not None
    matrix = read.cpu().numpy()
    outside = np.flatnonzero(((matrix < 0) | (matrix > 1)).any(axis=1))
    unnormalized = np.flatnonzero(np.abs(matrix.sum(axis=1) - 1) > SUM_TOLERANCE)
    if len(outside):
        problems.add(f"probability must lie in [0, 1], not so in {len(outside)} row(s), first at row {outside[0]}")
    elif len(unnormalized):
        first = unnormalized[0]
        problems.add(
            f"the rows of probability must sum to one, not so in {len(unnormalized)} row(s), "
            f"first at row {first} with {matrix[first].sum():g}"
        )
    return _read_known_labels(y, classes, matrix.shape, problems), matrix


def _read_known_labels(y: Any, classes: Any, shape: tuple[int, ...], problems: Problems) -> Array:
    """Return y as class indices 0..K-1; a missing label is a problem."""
    n_rows, n_classes = shape
    if np.ndim(y) != 1:
        problems.add(f"y must have one label a row, got {type(y).__name__} with {np.ndim(y)} dimension(s)")
        return np.zeros(n_rows, dtype=np.int64)
    column = read_column(y, "y", n_rows, problems)
    if column is None:
        return np.zeros(n_rows, dtype=np.int64)
    missing = np.flatnonzero(column.isna().to_numpy())
    if len(missing):
        problems.add(f"y is missing in {len(missing)} row(s), first at row {missing[0]}: leave such rows out")
    if classes is not None:
        names = pd.Index(classes)
        if len(names) != n_classes or not names.is_unique:
            problems.add(f"classes must be {n_classes} different values, one a column, got {names.tolist()}")
            return np.zeros(n_rows, dtype=np.int64)
        indices = names.get_indexer(pd.Index(column))
        strange = np.flatnonzero((indices < 0) & column.notna().to_numpy())
        if len(strange):
            problems.add(f"y must hold {names.tolist()}, got {column.tolist()[strange[0]]!r} at row {strange[0]}")
        column = pd.Series(np.maximum(indices, 0))
    labels = read_labels(column, n_rows, n_classes, problems)
    return np.where(np.isnan(labels), 0, labels).astype(np.int64)


def _resamples(units: Array, n_resamples: int, random_state: Any) -> Iterator[Array]:
    """Draw units (rows or groups) with replacement; yield, in chunks (R, n), how often each row was drawn."""
    n_units = int(units.max()) + 1
    if n_units < 2:
        return
    rng = np.random.default_rng(random_state)
    size = max(1, CHUNK // len(units))
    for start in range(0, n_resamples, size):
        n_now = min(size, n_resamples - start)
        drawn = rng.integers(n_units, size=(n_now, n_units)) + n_units * np.arange(n_now)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=n_now * n_units).reshape(n_now, n_units)
        yield counts[:, units]


@dataclass(frozen=True, eq=False)
class Ranking:
    """The order of rows by a score, and the positions in it at which the runs of equal scores start."""

    order: Array
    starts: Array

    @classmethod
    def of(cls, score: Array) -> "Ranking":
        """Sort rows by a score."""
        order = np.argsort(score, kind="stable")
        ranked = score[order]
        return cls(order, np.flatnonzero(np.concatenate([[True], ranked[1:] != ranked[:-1]])))

    def mass(self, weight: Array) -> Array:
        """Return the sums of weights (R, n) over the runs of equal scores, (R, runs), lowest score first."""
        ordered = weight[:, self.order]
        if len(self.starts) == len(self.order):
            return np.asarray(ordered)
        return np.asarray(np.add.reduceat(ordered, self.starts, axis=1))


@dataclass(frozen=True, eq=False)
class _Scored:
    """Labels, probabilities, and the quantities of all metrics that do not depend on the weights."""

    y: Array
    probability: Array
    scores: list[tuple[Ranking, Array]]  # the ranking and the indicator of each class that has a curve
    confidence: tuple[Ranking, Array, Array]

    @classmethod
    def of(cls, y: Array, probability: Array) -> "_Scored":
        n_classes = probability.shape[1]
        curves = [1] if n_classes == 2 else range(n_classes)
        score, event = _confidence(y, probability)
        return cls(
            y,
            probability,
            [(Ranking.of(probability[:, k]), (y == k).astype(float)) for k in curves],
            (Ranking.of(score), score, event),
        )

    def metrics(self, weight: Array) -> dict[str, Array]:
        """Compute every metric for weights (R, n) of the rows; each is an array (R,), NaN where undefined."""
        n_classes = self.probability.shape[1]
        total = weight.sum(axis=1)
        actual, predicted = np.eye(n_classes)[self.y], np.eye(n_classes)[self.probability.argmax(axis=1)]
        n_actual, n_predicted, n_right = weight @ actual, weight @ predicted, weight @ (actual * predicted)
        f1 = divide(2 * n_right, n_actual + n_predicted)
        own = np.clip(self.probability[np.arange(len(self.y)), self.y], SMALLEST_PROBABILITY, 1)
        squares = ((self.probability - actual) ** 2).sum(axis=1) / (2 if n_classes == 2 else 1)
        areas = [areas_under_curves(ranking, event, weight) for ranking, event in self.scores]
        mass, mean_predicted, observed = equal_mass_bins(*self.confidence, weight, ECE_BINS)
        return {
            "accuracy": divide(n_right.sum(axis=1), total),
            "positive_f1": f1[:, 1] if n_classes == 2 else np.full(len(weight), np.nan),
            "macro_f1": mean_of_defined(f1),
            "balanced_accuracy": mean_of_defined(divide(n_right, n_actual)),
            "nll": divide(weight @ -np.log(own), total),
            "brier": divide(weight @ squares, total),
            "auroc": mean_of_defined(np.stack([roc for roc, _ in areas], axis=1)),
            "auprc": mean_of_defined(np.stack([precision_recall for _, precision_recall in areas], axis=1)),
            "ece": divide(np.abs(mean_predicted - observed).sum(axis=1), mass.sum(axis=1)),
        }


def areas_under_curves(ranking: Ranking, event: Array, weight: Array) -> tuple[Array, Array]:
    """Return AUROC and average precision (equation 16a), each (R,), for weights (R, n).

    The order of rows with equal scores does not matter.
    """
    positive, negative = ranking.mass(weight * event), ranking.mass(weight * (1 - event))
    n_positive, n_negative = positive.sum(axis=1), negative.sum(axis=1)
    below = np.cumsum(negative, axis=1) - negative / 2
    auroc = divide((positive * below).sum(axis=1), n_positive * n_negative)
    hits = np.cumsum(positive[:, ::-1], axis=1)
    flagged = np.cumsum((positive + negative)[:, ::-1], axis=1)
    precision = np.divide(hits, flagged, out=np.zeros_like(hits), where=flagged > 0)
    return auroc, divide((positive[:, ::-1] * precision).sum(axis=1), n_positive)


def _confidence(y: Array, probability: Array) -> tuple[Array, Array]:
    """Return P(y=1) and y for K = 2; otherwise the largest probability, and 1 if its class is right, else 0."""
    if probability.shape[1] == 2:
        return probability[:, 1], y.astype(float)
    return probability.max(axis=1), (probability.argmax(axis=1) == y).astype(float)


def equal_mass_bins(
    ranking: Ranking, score: Array, event: Array, weight: Array, n_bins: int
) -> tuple[Array, Array, Array]:
    """Return mass, sum of scores and sum of events in bins of equal mass, each (R, bins).

    Rows of equal score form a run. A whole run goes into the bin that contains its middle. Therefore, the result does
    not depend on the order of the rows, and a repeated row has the same effect as a row of weight two.
    """
    mass = ranking.mass(weight)
    index = bin_of_runs(mass, n_bins)
    flat = (index + n_bins * np.arange(len(weight))[:, None]).ravel()
    of_runs = (mass, mass * score[ranking.order[ranking.starts]], ranking.mass(weight * event))
    mass, scores, events = (
        np.bincount(flat, values.ravel(), n_bins * len(weight)).reshape(len(weight), n_bins) for values in of_runs
    )
    return mass, scores, events


def bin_of_runs(mass: Array, n_bins: int) -> Array:
    """Return the index of the bin that contains the middle of each run of equal scores, (R, runs)."""
    cumulative = np.cumsum(mass, axis=1)
    total = np.maximum(cumulative[:, -1:], np.finfo(float).tiny)
    return np.asarray(np.minimum(n_bins * (cumulative - mass / 2) / total, n_bins - 1), dtype=np.int64)


def divide(above: Array, below: Array) -> Array:
    """Return the quotient, NaN where the divisor is not positive."""
    return np.asarray(np.divide(above, below, out=np.full(np.shape(above), np.nan), where=below > 0))


def mean_of_defined(values: Array) -> Array:
    """Return the mean of each row over its entries that are not NaN; NaN if all are NaN."""
    defined = ~np.isnan(values)
    return divide(np.where(defined, values, 0).sum(axis=1), defined.sum(axis=1))
