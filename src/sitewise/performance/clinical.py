"""Clinical measures of a score for two classes: net benefit, calibration, sensitivity at a specificity.

`event` (R, n) holds R versions of the labels: the probability that each row is of class 1, which is 0 or 1 if the label
is known or drawn. A measure is computed for all R versions at once. The probabilities P(y|x,z) of the labels give its
expected value, and drawn labels give its interval. T is the number of thresholds.
"""

from typing import Any

import numpy as np
from scipy.special import expit

from sitewise.evaluation import SMALLEST_PROBABILITY, Ranking, divide

Array = np.ndarray[Any, Any]
NEWTON_STEPS = 30
CLOSE_ENOUGH = 1e-10  # size of a Newton step, in log-odds, at which the fit has converged
STEEPEST = 1e3  # largest coefficient, in log-odds


def log_odds(score: Array) -> Array:
    """Return the log-odds of probabilities, clipped to be finite."""
    return np.asarray(
        np.log(np.clip(score, SMALLEST_PROBABILITY, 1)) - np.log(np.clip(1 - score, SMALLEST_PROBABILITY, 1))
    )


def net_benefit(event: Array, called: Array, weight: Array, threshold: Array) -> Array:
    """Return the net benefit per row, (R, T): true positives minus false positives times the odds of the threshold.

    `event` (R, n) has R versions of the labels. `called` (n, T) marks the rows that are treated at each of the T
    thresholds.
    """
    marked = weight[:, None] * called
    hits = event @ marked
    return np.asarray((hits - (marked.sum(axis=0) - hits) * odds(threshold)) / weight.sum())


def treat_all(event: Array, weight: Array, threshold: Array) -> Array:
    """Return the net benefit of treating all rows, (R, T), for R versions of the labels and T thresholds.

    The net benefit of treating no rows is zero.
    """
    share = (event @ weight / weight.sum())[:, None]
    return np.asarray(share - (1 - share) * odds(threshold))


def odds(threshold: Array) -> Array:
    """Return the odds of a threshold: the harm of a false positive relative to the benefit of a true positive."""
    return np.asarray(threshold / (1 - threshold))


def observed_to_expected(event: Array, score: Array, weight: Array) -> Array:
    """Return the number of events divided by the sum of predicted probabilities, (R,), for R versions of the labels."""
    return divide(event @ weight, np.full(len(event), score @ weight))


def calibration_in_the_large(event: Array, score: Array, weight: Array) -> Array:
    """Return calibration-in-the-large, (R,), for R versions of the labels.

    It is the intercept a of log-odds(event) = a + log-odds(score); 0 is ideal.
    """
    return _fit_line(event, log_odds(score), weight, slope=False)[:, 0]


def calibration_line(event: Array, score: Array, weight: Array) -> Array:
    """Return intercept a and slope b of log-odds(event) = a + b log-odds(score), (R, 2), for R versions of the labels.

    b < 1 means overconfidence.
    """
    return _fit_line(event, log_odds(score), weight, slope=True)


def sensitivity_at(event: Array, ranking: Ranking, weight: Array, specificity: float) -> Array:
    """Return the highest sensitivity among the thresholds whose specificity is at least `specificity`.

    The result (R,) has a value for each of R versions of the labels.
    """
    positive, negative = ranking.mass(weight * event)[:, ::-1], ranking.mass(weight * (1 - event))[:, ::-1]
    n_positive, n_negative = positive.sum(axis=1), negative.sum(axis=1)
    wrong, hits = np.cumsum(negative, axis=1), np.cumsum(positive, axis=1)
    allowed = wrong <= ((1 - specificity) * n_negative * (1 + 1e-12))[:, None]
    return divide(np.where(allowed, hits, 0.0).max(axis=1), n_positive)


def number_needed_to_evaluate(event: Array, called: Array, weight: Array) -> Array:
    """Return the number of rows called positive for each true positive, (R,), for R versions of the labels."""
    marked = weight * called
    return divide(np.full(len(event), marked.sum()), event @ marked)


def _fit_line(event: Array, score: Array, weight: Array, *, slope: bool) -> Array:
    """Fit a logistic regression of each of R events on one score by Newton's method.

    Returns intercept and slope, (R, 2), or NaN if there is no finite fit. Without `slope`, the slope is fixed at 1.
    """
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
