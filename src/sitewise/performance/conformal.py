"""Weighted conformal prediction: sets of classes with a given coverage, from labeled rows weighted to another site.

The score of a class for a row is one minus its predicted probability. The labeled rows are weighted to the site's
P(y, z). A class belongs to the set of a new row if its score is at most the weighted quantile of the scores that the
labeled rows have for their own class (equation 21).
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class PredictionSets:
    """For each row a set of classes, which contains the true class of the row with a given probability.

    A set is empty if no class is probable enough. It contains all classes if none can be excluded.

    Parameters
    ----------
    member : array of shape (n, K)
        Whether each class belongs to each row's set.
    classes : tuple
        The classes, in order.
    coverage : float
        The nominal coverage: the probability with which a set contains the true class of its row.
    by_class : bool
        Whether the coverage holds for the rows of each true class. Otherwise, it holds on average over all rows.
    effective_rows : float
        The effective number of the labeled rows from which the sets were computed, after these rows were weighted to
        the site's P(y, z). If `by_class`, the smallest such number among the classes.

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
        """The set of each row, as a tuple of classes."""
        return [tuple(self.classes[k] for k in np.flatnonzero(row)) for row in self.member]


def score_thresholds(
    probability: Array, y: Array, weight: Array, coverage: float, *, by_class: bool = False
) -> tuple[Array, float]:
    """Return the score (1 - P) up to which each class belongs to a set, (K,), and the effective number of labeled rows.

    `probability` (m, K), `y` (m,) and `weight` (m,) are labeled rows weighted to the site. The new row counts as one
    more row with an infinite score, so that the coverage also holds if there are few labeled rows.
    """
    score = 1 - probability[np.arange(len(y)), y]
    n_classes = probability.shape[1]
    if not by_class:
        return np.full(n_classes, _quantile(score, weight, coverage)), _effective(weight)
    by_label = [y == k for k in range(n_classes)]
    effective = min(_effective(weight[rows]) for rows in by_label)
    return np.array([_quantile(score[rows], weight[rows], coverage) for rows in by_label]), effective


def _quantile(score: Array, weight: Array, coverage: float) -> float:
    """Return the smallest score for which the rows at or below it have at least the share `coverage` of the weight.

    The total weight includes the new row, whose weight is the other weights' sum divided by their effective number.
    Returns infinity if there is no such score.
    """
    total = weight.sum()
    if not total > 0:
        return np.inf
    order = np.argsort(score, kind="stable")
    below = np.cumsum(weight[order]) / (total + total / _effective(weight))
    enough = np.flatnonzero(below >= coverage * (1 - 1e-12))
    return float(score[order[enough[0]]]) if len(enough) else np.inf


def _effective(weight: Array) -> float:
    """Return the effective number of weighted rows (Kish)."""
    squares = (weight**2).sum()
    return float(weight.sum() ** 2 / squares) if squares > 0 else 0.0
