"""Thresholds on P(y=1) (equation 16b): highest expected F1, a required sensitivity, or highest expected net benefit."""

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def best_f1_threshold(score: Array, truth: Array, weight: Array) -> float:
    """Return the threshold with the highest expected F1 of class 1, by one sort; the highest one in case of ties.

    `score` (n,) is compared with the threshold, `truth` (n,) is the belief P(y=1), `weight` (n,) are row weights. The
    threshold is halfway between two scores, so that rounding does not change a decision.
    """
    values, hits, called = _from_the_top(score, truth, weight)
    f1 = 2 * hits / np.maximum(called + hits[-1], np.finfo(float).tiny)
    best = int(np.argmax(f1 >= f1.max() * (1 - 1e-12)))
    return _below(values, best)


def recall_threshold(score: Array, truth: Array, weight: Array, recall: float) -> float:
    """Return the highest threshold whose expected recall of class 1 is at least `recall`."""
    values, hits, _ = _from_the_top(score, truth, weight)
    enough = hits >= recall * hits[-1] * (1 - 1e-12)
    return _below(values, int(np.argmax(enough)))


def net_benefit_threshold(score: Array, truth: Array, weight: Array, harm_to_benefit: float) -> float:
    """Return the threshold with the highest expected net benefit; a false positive costs `harm_to_benefit` true ones.

    If the scores are the beliefs it is h / (1 + h).
    """
    values, hits, called = _from_the_top(score, truth, weight)
    gain = np.concatenate([[0.0], hits - harm_to_benefit * (called - hits)])  # the first entry calls no row
    plain = harm_to_benefit / (1 + harm_to_benefit)
    best = int(gain.argmax())
    if gain[np.count_nonzero(values >= plain)] >= gain[best] - 1e-12 * weight.sum():
        return plain
    return 1.0 if best == 0 else _below(values, best - 1)


def _from_the_top(score: Array, truth: Array, weight: Array) -> tuple[Array, Array, Array]:
    """Return distinct scores from the highest, and the weight of positives and of rows at or above each."""
    values, index = np.unique(-score, return_inverse=True)
    n_values = len(values)
    hits = np.cumsum(np.bincount(index, weight * truth, n_values))
    return -values, hits, np.cumsum(np.bincount(index, weight, n_values))


def _below(values: Array, last: int) -> float:
    """Return a threshold between the score at `last` and the next lower one."""
    following = values[last + 1] if last + 1 < len(values) else 0.0
    return float((values[last] + following) / 2)
