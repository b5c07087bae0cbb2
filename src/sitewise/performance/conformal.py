"""Sets of classes with a wanted coverage, from labeled rows weighted to another site (weighted conformal prediction).

A row scores one less the probability of its class. Of labeled rows whose weights bring them to the site's P(y, z), the
weighted quantile of the scores is the threshold below which a class belongs to a row's set (equation 21).
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class PredictionSets:
    """Sets of classes that hold a row's class with a wanted probability.

    Attributes
    ----------
    member : ndarray of shape (n, K)
        Whether each class belongs to each row's set.
    classes : tuple
        The classes, in order.
    coverage : float
        The wanted coverage.
    by_class : bool
        Whether it is wanted of every class by itself, or over all rows.
    effective_rows : float
        How many evenly weighted rows the weighted labeled rows behind the thresholds are worth.

    An empty set says that no class is plausible enough, one with all classes that nothing can be excluded.
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
        """How many classes each row's set has, (n,)."""
        return np.asarray(self.member.sum(axis=1))

    @property
    def labels(self) -> list[tuple[Any, ...]]:
        """The sets as tuples of classes."""
        return [tuple(self.classes[k] for k in np.flatnonzero(row)) for row in self.member]


def score_thresholds(
    probability: Array, y: Array, weight: Array, coverage: float, *, by_class: bool = False
) -> tuple[Array, float]:
    """The highest score (1 - P) of each class that still belongs to a set, (K,), and the rows the weights are worth.

    `probability` (m, K), `y` (m,) and `weight` (m,) are labeled rows brought to the site. The row to come counts as one
    more of them, with a score beyond all others, so that coverage holds for few rows too.
    """
    score = 1 - probability[np.arange(len(y)), y]
    n_classes = probability.shape[1]
    if not by_class:
        return np.full(n_classes, _quantile(score, weight, coverage)), _worth(weight)
    parts = [y == k for k in range(n_classes)]
    worth = min(_worth(weight[part]) for part in parts)
    return np.array([_quantile(score[part], weight[part], coverage) for part in parts]), worth


def _quantile(score: Array, weight: Array, coverage: float) -> float:
    """The least score with so much weight at or below it; infinity where the row to come leaves too little."""
    total = weight.sum()
    if not total > 0:
        return np.inf
    order = np.argsort(score, kind="stable")
    below = np.cumsum(weight[order]) / (total + total / _worth(weight))
    enough = np.flatnonzero(below >= coverage * (1 - 1e-12))
    return float(score[order[enough[0]]]) if len(enough) else np.inf


def _worth(weight: Array) -> float:
    """How many even rows weighted ones are worth."""
    squares = (weight**2).sum()
    return float(weight.sum() ** 2 / squares) if squares > 0 else 0.0
