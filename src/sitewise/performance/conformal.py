"""Weighted conformal prediction: sets of classes with a given coverage, from labeled rows weighted to another site.

The score of a labeled row is one minus the probability of its class. The labeled rows are weighted to the site's
P(y, z). A class belongs to a row's set if its score is at most the weighted quantile of these scores (equation 21).
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class PredictionSets:
    """Sets of classes that contain a row's class with a given probability.

    An empty set means that no class is plausible enough. A set of all classes means that none can be excluded.

    Parameters
    ----------
    member : array of shape (n, K)
        Whether each class belongs to each row's set.
    classes : tuple
        The classes, in order.
    coverage : float
        The nominal coverage.
    by_class : bool
        Whether the coverage holds for every class separately, or over all rows.
    effective_rows : float
        The effective number of labeled rows, given their weights.

    Examples
    --------
    >>> sets = here.predict_set(X, coverage=0.9)
    >>> sets.labels[:3]
    """

    member: Array
    classes: tuple[Any, ...]
    coverage: float
    by_class: bool
    effective_rows: float = field(default=float("inf"))

    def __len__(self) -> int:
        return len(self.member)

    @property
    def size(self) -> Array:
        """The number of classes in each row's set, (n,)."""
        return np.asarray(self.member.sum(axis=1))

    @property
    def labels(self) -> list[tuple[Any, ...]]:
        """The sets as tuples of classes."""
        return [tuple(self.classes[k] for k in np.flatnonzero(row)) for row in self.member]


def score_thresholds(
    probability: Array, y: Array, weight: Array, coverage: float, *, by_class: bool = False
) -> tuple[Array, float]:
    """Return the highest score (1 - P) of each class that belongs to a set, (K,), and the effective number of rows.

    `probability` (m, K), `y` (m,) and `weight` (m,) are labeled rows weighted to the site. A new row counts as one more
    of them with an infinite score, so that the coverage holds with few rows too.
    """
    score = 1 - probability[np.arange(len(y)), y]
    n_classes = probability.shape[1]
    if not by_class:
        return np.full(n_classes, _quantile(score, weight, coverage)), _effective(weight)
    by_label = [y == k for k in range(n_classes)]
    effective = min(_effective(weight[rows]) for rows in by_label)
    return np.array([_quantile(score[rows], weight[rows], coverage) for rows in by_label]), effective


def _quantile(score: Array, weight: Array, coverage: float) -> float:
    """Return the smallest score with a weight of `coverage` at or below it; infinity if there is none."""
    total = weight.sum()
    if not total > 0:
        return np.inf
    order = np.argsort(score, kind="stable")
    below = np.cumsum(weight[order]) / (total + total / _effective(weight))
    enough = np.flatnonzero(below >= coverage * (1 - 1e-12))
    return float(score[order[enough[0]]]) if len(enough) else np.inf


def _effective(weight: Array) -> float:
    """Return the effective number of rows (Kish)."""
    squares = (weight**2).sum()
    return float(weight.sum() ** 2 / squares) if squares > 0 else 0.0
