"""The expected performance of predictions on unlabeled rows, with intervals."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from sitewise.arrays import Problems, did_you_mean
from sitewise.performance.metrics import EXPECTED_METRICS, Predictions
from sitewise.performance.unlearned import Learned

Array = np.ndarray[Any, Any]
CHUNK = 2**20  # largest number of entries of drawn labels (one-hot) in memory at a time
N_QUARTILES = 4
MISSING = "missing"


class Expected(NamedTuple):
    """An expected value with the ends of its interval; all three are None if the value is undefined."""

    estimate: float | None
    low: float | None
    high: float | None


class ExpectedCounts(NamedTuple):
    """Expected counts (K, K) with the ends of their intervals: rows are true classes, columns predicted classes."""

    estimate: Array
    low: Array
    high: Array


@dataclass(frozen=True, eq=False)
class DrawnRows:
    """Rows with their predictions, the beliefs P(y|x,z) about their labels, and labels drawn from these beliefs."""

    probability: Array | None  # (n, K) predicted; None if only decisions are known
    belief: Array  # (n, K) P(y|x,z); 0 or 1 if the label is known
    labels: Array  # (B, n) drawn class indices
    weight: Array  # (n,)
    z: pd.DataFrame  # (n, V); V = 0 without confounders
    place: Array | None = None  # (n,) positions among the site's rows; None means all
    n_site: int | None = None  # number of rows of the site
    decided: Array | None = None  # (n,) predicted classes, if they do not follow from the probability
    identified: Array | None = None  # (n,) whether f is identified at the row's z; None means at all rows
    learned: Learned | None = None  # needed to judge predictions of other models; None if not known

    def __len__(self) -> int:
        return len(self.weight)

    def take(self, index: Array) -> "DrawnRows":
        """Select rows by position; `learned` is dropped."""
        columns = (self.probability, self.place, self.decided, self.identified)
        probability, place, decided, identified = (None if column is None else column[index] for column in columns)
        z = self.z.iloc[index].reset_index(drop=True)
        own = (self.belief[index], self.labels[:, index], self.weight[index], z)
        return DrawnRows(probability, *own, place, self.n_site, decided, identified)

    def of_site(self, values: Any, name: str) -> Any:
        """Select the values of these rows, (n, ...), from values of all rows of the site, (N, ...)."""
        wanted = len(self) if self.n_site is None else self.n_site
        if len(values) == wanted and self.place is not None:
            return values[self.place]
        if len(values) != len(self):
            raise ValueError(f"{name}: expected one value for each of {wanted} row(s), got {len(values)}")
        return values


@dataclass(frozen=True, eq=False, repr=False)
class ExpectedPerformance(Mapping[str, Expected]):
    """The expected performance on a site's unlabeled rows: a mapping from the name of a metric to its estimate.

    An estimate is a tuple (estimate, low, high) with the ends of the interval; all three are None if the metric is
    undefined.

    Parameters
    ----------
    metrics : dict of str to Expected
        The estimate of each metric with its interval.
    confusion : ExpectedCounts
        The expected confusion matrix (`estimate`), whose rows are true classes and whose columns are predicted classes,
        with the ends of the interval of each entry (`low`, `high`).
    classes : tuple
        The classes, in order.
    threshold : float or None
        Rows whose probability of the second class is at or above the threshold are called positive. None: the most
        probable class is predicted.
    level : float
        Confidence level of the intervals.
    rows : DrawnRows
        The rows from which the metrics were computed.

    Notes
    -----
    Means over rows (accuracy, brier, nll) are exact expectations under P(y|x,z) at the site. Ratios of counts (F1,
    precision, recall, AUROC, AUPRC) are ratios of expected counts. `ece` is the mean over drawn labels, because the
    calibration error of probabilities against themselves is always zero. An interval is for the value that the labels
    of these rows would show. It includes three uncertainties: that of g, that of the calibration of f, and that of the
    labels given g and f. It does not include a shift of P(x|y,z), which `diagnose` tests. The name "f1" stands for
    positive_f1 with two classes and for macro_f1 with more.

    Examples
    --------
    >>> expected = here.expected_performance()
    >>> expected["accuracy"]                    # (estimate, low, high)
    >>> expected.by("sex")["female"]["recall"]
    """

    metrics: dict[str, Expected]
    confusion: ExpectedCounts
    classes: tuple[Any, ...]
    threshold: float | None
    level: float
    rows: DrawnRows = field(repr=False)

    @property
    def n_rows(self) -> int:
        """The number of rows."""
        return len(self.rows)

    def __getitem__(self, name: str) -> Expected:
        meant = {"f1": "positive_f1" if len(self.classes) == 2 else "macro_f1"}.get(name, name)
        if meant not in self.metrics:
            raise KeyError(f"there is no metric {name!r}{did_you_mean(name, self.metrics)}; there are {list(self)}")
        return self.metrics[meant]

    def __iter__(self) -> Iterator[str]:
        return iter(self.metrics)

    def __len__(self) -> int:
        return len(self.metrics)

    def __repr__(self) -> str:
        rule = "most probable class" if self.threshold is None else f"P({self.classes[1]!r}) >= {self.threshold:.4g}"
        rule = rule if self.rows.decided is None else "decisions as given"
        head = f"expected performance on {self.n_rows:,} rows without labels ({rule}; {self.level:.0%} intervals)"
        lines = [f"  {name:<18}{_shown(value)}" for name, value in self.items()]
        return "\n".join([head, *lines])

    def _repr_html_(self) -> str:
        head, *lines = repr(self).splitlines()
        rows = (line.split(maxsplit=1) for line in lines)
        cells = "".join(f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>" for name, value in rows)
        return f"<p>{escape(head)}</p><table>{cells}</table>"

    def by(self, column: Any) -> "dict[Any, ExpectedPerformance]":
        """Compute the expected performance for each group of rows.

        Parameters
        ----------
        column : str or array of shape (n,)
            The name of a confounder, or one value for each row. Each value is a group, except that a column of numbers
            with more than four distinct values is cut at its quartiles. Rows without a value are the group "missing".

        Returns
        -------
        dict
            The expected performance of each group, by the group's name.
        """
        values = self._column(column)
        groups = group_rows(values)
        return {
            name: summarize(self.rows.take(index), self.classes, self.threshold, self.level)
            for name, index in groups.items()
        }

    @cached_property
    def by_confounder(self) -> "dict[str, dict[Any, ExpectedPerformance]]":
        """The result of `by` for each confounder, by the confounder's name."""
        return {str(name): self.by(name) for name in self.rows.z.columns}

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain numbers for JSON.

        Returns
        -------
        dict
            The number of rows, the classes, threshold, level, metrics and confusion matrix.
        """
        return {
            "n_rows": self.n_rows,
            "classes": [value.item() if isinstance(value, np.generic) else value for value in self.classes],
            "threshold": self.threshold,
            "level": self.level,
            "metrics": {name: value._asdict() for name, value in self.items()},
            "confusion": {name: counts.tolist() for name, counts in self.confusion._asdict().items()},
        }

    def _column(self, column: Any) -> pd.Series:
        if isinstance(column, str):
            if column not in self.rows.z.columns:
                names = [str(name) for name in self.rows.z.columns]
                raise ValueError(
                    f"by: there is no confounder {column!r}{did_you_mean(column, names)}; there are {names}"
                )
            return self.rows.z[column]
        values = pd.Series(column).reset_index(drop=True)
        return pd.Series(self.rows.of_site(values, "by")).reset_index(drop=True)


def group_rows(values: pd.Series) -> dict[Any, Array]:
    """Return the positions of the rows of each group: levels in order, or quartiles of a number, and "missing" last."""
    missing = values.isna().to_numpy()
    known = values[~missing]
    place = np.flatnonzero(~missing)
    numeric = pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values)
    groups: dict[Any, Array] = {}
    if numeric and known.nunique() > N_QUARTILES:
        numbers = known.to_numpy(dtype=float)
        edges = np.unique(np.quantile(numbers, np.linspace(0, 1, N_QUARTILES + 1)))
        index = np.searchsorted(edges[1:-1], numbers, side="left")
        for j, (low, high) in enumerate(pairwise(edges)):
            if (index == j).any():
                groups[f"{low:g} to {high:g}" if j == 0 else f"above {low:g} to {high:g}"] = place[index == j]
    else:
        codes, levels = pd.factorize(known, sort=False)
        order = sorted(range(len(levels)), key=lambda j: (isinstance(levels[j], str), levels[j]))
        groups = {levels[j]: place[codes == j] for j in order}
    if missing.any():
        groups[MISSING] = np.flatnonzero(missing)
    return groups


def summarize(
    rows: DrawnRows, classes: tuple[Any, ...], threshold: float | None = None, level: float = 0.95
) -> ExpectedPerformance:
    """Compute the expected value of every metric on these rows, with an interval from the drawn labels."""
    problems = Problems("expected_performance")
    if not 0 < level < 1:
        problems.add(f"level must lie between 0 and 1, got {level}")
    if threshold is not None and not 0 <= threshold <= 1:
        problems.add(f"threshold must lie in [0, 1], got {threshold}")
    if threshold is not None and len(classes) != 2:
        problems.add(f"a threshold needs two classes, there are {len(classes)}")
    problems.raise_if_any()
    predictions = Predictions.of(rows.probability, threshold, rows.decided, len(classes))
    values = predictions.metrics(rows.belief.T[None], rows.weight)
    drawn: dict[str, list[Array]] = {name: [] for name in EXPECTED_METRICS}
    counts = []
    for truth in drawn_truths(rows.labels, len(classes)):
        for name, measured in predictions.metrics(truth, rows.weight).items():
            drawn[name].append(measured)
        counts.append(predictions.confusion(truth, rows.weight))
    tails = [(1 - level) / 2, (1 + level) / 2]
    metrics = {}
    for name in EXPECTED_METRICS:
        if name == "positive_f1" and len(classes) > 2:
            continue
        samples = np.concatenate(drawn[name])
        samples = samples[~np.isnan(samples)]
        value = float(samples.mean()) if name == "ece" and len(samples) else float(values[name][0])
        metrics[name] = expected_value(value, samples, level)
    estimate = predictions.confusion(rows.belief.T[None], rows.weight)[0]
    low, high = np.quantile(np.concatenate(counts), tails, axis=0)
    confusion = ExpectedCounts(estimate, np.minimum(low, estimate), np.maximum(high, estimate))
    return ExpectedPerformance(metrics, confusion, classes, threshold, level, rows)


def drawn_truths(labels: Array, n_classes: int) -> Iterator[Array]:
    """Yield the drawn labels (B, n) as one-hot arrays (R, K, n), for R of the B draws at a time."""
    size = max(1, CHUNK // (labels.shape[1] * n_classes))
    for start in range(0, len(labels), size):
        yield (labels[start : start + size, None, :] == np.arange(n_classes)[:, None]).astype(np.float64)


def expected_value(value: float, samples: Array, level: float) -> Expected:
    """Return an estimate with the interval of its R draws (R,), widened to contain the estimate.

    Draws of NaN are ignored. All values are None if the estimate is NaN or no draw remains.
    """
    samples = samples[~np.isnan(samples)]
    if np.isnan(value) or not len(samples):
        return Expected(None, None, None)
    low, high = np.quantile(samples, [(1 - level) / 2, (1 + level) / 2])
    return Expected(value, min(float(low), value), max(float(high), value))


def _shown(value: Expected) -> str:
    if value.estimate is None or value.low is None or value.high is None:
        return "undefined"
    return f"{value.estimate:.3f}  [{value.low:.3f}, {value.high:.3f}]"
