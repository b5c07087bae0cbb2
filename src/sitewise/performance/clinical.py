"""What clinicians ask of a score for two classes: net benefit, calibration, sensitivity at a specificity.

An event is the chance (n,) that a row is of class 1, certain (0 or 1) where it is a label. Everything is computed for R
of them at once, (R, n): the belief gives what is expected, and drawn labels give its interval.
"""

from typing import Any

import numpy as np
from scipy.special import expit

from sitewise.evaluation import SMALLEST_PROBABILITY, Ranking, divide

Array = np.ndarray[Any, Any]
NEWTON_STEPS = 30
CLOSE_ENOUGH = 1e-10  # a Newton step in log-odds below which a line is found
STEEPEST = 1e3  # log-odds at which a line has no finite fit


def log_odds(score: Array) -> Array:
    """The log-odds of probabilities, finite."""
    return np.asarray(
        np.log(np.clip(score, SMALLEST_PROBABILITY, 1)) - np.log(np.clip(1 - score, SMALLEST_PROBABILITY, 1))
    )


def net_benefit(event: Array, called: Array, weight: Array, threshold: Array) -> Array:
    """True positives less false positives times the threshold's odds, per row: (R, T).

    `called` (n, T) tells which rows are treated at each of the thresholds (T,).
    """
    marked = weight[:, None] * called
    hits = event @ marked
    return np.asarray((hits - (marked.sum(axis=0) - hits) * odds(threshold)) / weight.sum())


def treat_all(event: Array, weight: Array, threshold: Array) -> Array:
    """The net benefit of treating everybody, (R, T); that of treating nobody is zero."""
    share = (event @ weight / weight.sum())[:, None]
    return np.asarray(share - (1 - share) * odds(threshold))


def odds(threshold: Array) -> Array:
    """What one false positive costs in true positives where rows are treated from a threshold on."""
    return np.asarray(threshold / (1 - threshold))


def observed_to_expected(event: Array, score: Array, weight: Array) -> Array:
    """Events over the sum of predicted probabilities, (R,)."""
    return divide(event @ weight, np.full(len(event), score @ weight))


def calibration_in_the_large(event: Array, score: Array, weight: Array) -> Array:
    """The intercept a of log-odds(event) = a + log-odds(score), (R,): 0 where the mean prediction is right."""
    return _fit_line(event, log_odds(score), weight, slope=False)[:, 0]


def calibration_line(event: Array, score: Array, weight: Array) -> Array:
    """Intercept and slope of log-odds(event) = a + b log-odds(score), (R, 2): a slope below 1 is over-confident."""
    return _fit_line(event, log_odds(score), weight, slope=True)


def sensitivity_at(event: Array, ranking: Ranking, weight: Array, specificity: float) -> Array:
    """The highest sensitivity among thresholds whose specificity is at least the one wanted, (R,)."""
    positive, negative = ranking.mass(weight * event)[:, ::-1], ranking.mass(weight * (1 - event))[:, ::-1]
    n_positive, n_negative = positive.sum(axis=1), negative.sum(axis=1)
    wrong, hits = np.cumsum(negative, axis=1), np.cumsum(positive, axis=1)
    allowed = wrong <= ((1 - specificity) * n_negative * (1 + 1e-12))[:, None]
    return divide(np.where(allowed, hits, 0.0).max(axis=1), n_positive)


def number_needed_to_evaluate(event: Array, called: Array, weight: Array) -> Array:
    """Rows called positive for each that is, (R,)."""
    marked = weight * called
    return divide(np.full(len(event), marked.sum()), event @ marked)


def _fit_line(event: Array, score: Array, weight: Array, *, slope: bool) -> Array:
    """Logistic regressions of R events on one score by Newton's method, (R, 2); NaN where there is no finite fit."""
    design = np.stack([np.ones_like(score), score], axis=1)[:, : 1 + slope]
    share = weight / weight.sum()
    fixed = 0.0 if slope else score
    goal = (event * share) @ design
    point = np.zeros((len(event), design.shape[1]))
    point[:, 1:] = 1.0
    for _ in range(NEWTON_STEPS):
        probability = expit(point @ design.T + fixed)
        gradient = goal - (probability * share) @ design
        curvature = np.einsum("rn,nd,ne->rde", probability * (1 - probability) * share, design, design, optimize=True)
        curvature += 1e-14 * np.eye(design.shape[1])
        step = np.linalg.solve(curvature, gradient[:, :, None])[:, :, 0]
        point = np.clip(point + np.clip(step, -2.0, 2.0), -STEEPEST, STEEPEST)
        if not len(step) or np.abs(step).max() < CLOSE_ENOUGH:
            break
    total = goal[:, 0]
    undefined = (total <= 0) | (total >= 1 - 1e-15) | (np.abs(step).max(axis=1) > 1e-4)
    return np.where(undefined[:, None], np.nan, np.column_stack([point, np.ones(len(point))])[:, :2])
