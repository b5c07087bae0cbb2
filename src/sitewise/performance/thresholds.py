"""Where to cut P(y=1) (equation 16b).

The highest expected F1, the least that a required sensitivity allows, or the highest expected net benefit.
"""

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def best_f1_threshold(score: Array, truth: Array, weight: Array) -> float:
    """The threshold with the highest expected F1 of class 1 among all there are, by one sort.

    `score` (n,) is what is cut, `truth` (n,) is P(y=1) as it is believed, `weight` (n,) counts rows. Of equals the
    highest threshold; halfway between two scores, so that rounding moves nobody across.
    """
    values, hits, called = _from_the_top(score, truth, weight)
    f1 = 2 * hits / np.maximum(called + hits[-1], np.finfo(float).tiny)
    best = int(np.argmax(f1 >= f1.max() * (1 - 1e-12)))
    return _below(values, best)


def recall_threshold(score: Array, truth: Array, weight: Array, recall: float) -> float:
    """The highest threshold whose expected recall of class 1 is at least `recall`: it calls the fewest positive."""
    values, hits, _ = _from_the_top(score, truth, weight)
    enough = hits >= recall * hits[-1] * (1 - 1e-12)
    return _below(values, int(np.argmax(enough)))


def net_benefit_threshold(score: Array, truth: Array, weight: Array, harm_to_benefit: float) -> float:
    """The threshold with the highest expected net benefit, a false positive costing `harm_to_benefit` true positives.

    Where the scores are the beliefs it is h / (1 + h).
    """
    values, hits, called = _from_the_top(score, truth, weight)
    gain = np.concatenate([[0.0], hits - harm_to_benefit * (called - hits)])  # nobody is called, first
    plain = harm_to_benefit / (1 + harm_to_benefit)
    best = int(gain.argmax())
    if gain[np.count_nonzero(values >= plain)] >= gain[best] - 1e-12 * weight.sum():
        return plain
    return 1.0 if best == 0 else _below(values, best - 1)


def _from_the_top(score: Array, truth: Array, weight: Array) -> tuple[Array, Array, Array]:
    """Distinct scores from the highest, and the positives and rows (by weight) that are at or above each."""
    values, index = np.unique(-score, return_inverse=True)
    n_values = len(values)
    hits = np.cumsum(np.bincount(index, weight * truth, n_values))
    return -values, hits, np.cumsum(np.bincount(index, weight, n_values))


def _below(values: Array, last: int) -> float:
    """A threshold that the scores up to the `last` of them reach and the next does not."""
    following = values[last + 1] if last + 1 < len(values) else 0.0
    return float((values[last] + following) / 2)
