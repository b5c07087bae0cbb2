"""Recalibrate probabilities with labels of the same site: only the intercept, or intercept and slope.

Recalibration is cross-fitted: each row is recalibrated by a fit to the rows of the other folds.
"""

from typing import Any

import numpy as np
import torch

from sitewise.calibration.fit import fit_calibration
from sitewise.evaluation import SMALLEST_PROBABILITY
from sitewise.posterior import contrasts
from sitewise.prevalence.linear import fit_linear

Array = np.ndarray[Any, Any]
RECALIBRATIONS = ("intercept", "slope")
FOLDS = 5


def recalibrate(
    probability: Array, y: Array, how: str, *, weight: Array | None = None, units: Array | None = None, seed: int = 0
) -> Array:
    """Recalibrate probabilities (n, K) with labels (n,), cross-fitted in five folds of whole units (patients).

    `how` is "intercept" (one shift for each class on the log scale) or "slope" (also a factor on the log-odds). Returns
    the recalibrated probabilities, (n, K).
    """
    assert how in RECALIBRATIONS
    n_rows = len(y)
    weight = np.ones(n_rows) if weight is None else weight
    units = np.arange(n_rows) if units is None else np.unique(units, return_inverse=True)[1]
    order = np.random.default_rng(seed).permutation(int(units.max()) + 1)
    fold = (order % min(FOLDS, len(order)))[units]
    logits = np.log(np.clip(probability, SMALLEST_PROBABILITY, 1))
    recalibrated = np.empty_like(probability)
    for number in range(int(fold.max()) + 1):
        own, others = fold == number, fold != number
        fit = _fit_intercept if how == "intercept" else _fit_slope
        slope, bias = fit(logits[others], y[others], weight[others])
        shifted = slope * logits[own] + bias
        recalibrated[own] = np.exp(shifted - np.logaddexp.reduce(shifted, axis=1, keepdims=True))
    return recalibrated


def _fit_intercept(logits: Array, y: Array, weight: Array) -> tuple[Array, Array]:
    """Fit one bias for each class, with a small penalty that keeps it finite if a class is absent."""
    n_classes = logits.shape[1]
    if not len(y):
        return np.ones(n_classes), np.zeros(n_classes)
    rows = torch.tensor(weight)
    totals = torch.tensor(np.eye(n_classes)[y] * weight[:, None])
    design, penalty = torch.ones(len(y), 1, dtype=torch.float64), torch.full((1,), 0.25, dtype=torch.float64)
    shift = fit_linear(totals, rows, design, penalty, torch.tensor(logits)).point @ contrasts(n_classes).T
    return np.ones(n_classes), shift.numpy().reshape(-1)


def _fit_slope(logits: Array, y: Array, weight: Array) -> tuple[Array, Array]:
    """Fit one slope and a bias for each class to smoothed labels; only the intercept if a class is absent."""
    n_classes = logits.shape[1]
    if len(np.unique(y)) < n_classes:
        return _fit_intercept(logits, y, weight)
    smoothed = (np.eye(n_classes)[y] * len(y) + 0.5) / (len(y) + 0.5 * n_classes)
    arrays = (logits, smoothed, np.zeros_like(logits), weight)
    raw, targets, level, rows = (torch.tensor(array) for array in arrays)
    fitted = fit_calibration(raw, targets, level, rows, "bias_corrected")
    return fitted.slope.numpy(), fitted.bias.numpy()
