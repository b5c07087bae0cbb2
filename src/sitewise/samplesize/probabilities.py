"""Log-ratios from any classifier's probabilities on labeled rows, calibrated on these very rows."""

from typing import Any

import numpy as np
import torch
from torch.nn.functional import one_hot

from sitewise.calibration import calibrate_log_ratio
from sitewise.confounders import Confounders
from sitewise.prevalence import fit_additive, fit_constant

Array = np.ndarray[Any, Any]
SMALLEST = 1e-12
ENOUGH_TO_CALIBRATE = 10  # rows of each class
SEES = ("x", "xz")


def log_ratio_from_probability(probability: Array, y: Array, Z: Any = None, classifier_sees: str = "x") -> Array:
    """log f of labeled rows from a classifier's P(y|x) or P(y|x,z) at their own site, (m, K) of both.

    The prevalence among the rows, given z where the classifier sees z, is divided out; then f is calibrated, by one
    slope where some class has fewer than ten rows.
    """
    n_classes = probability.shape[1]
    targets = one_hot(torch.tensor(np.asarray(y, dtype=np.int64)), n_classes).double()
    weight = torch.ones(len(targets), dtype=torch.float64)
    if Z is None or classifier_sees == "x":
        log_prevalence = fit_constant(targets, weight).log_prob(torch.zeros(len(targets), 0)).numpy()
    else:
        schema = Confounders.learn(Z)
        codes = schema.encode(Z, quiet=True)[0]
        log_prevalence = fit_additive(targets, codes, weight, schema).log_prob(codes).numpy()
    raw_log_ratio = np.log(np.maximum(probability, SMALLEST)) - log_prevalence
    counts = np.bincount(y, minlength=n_classes)
    method = "vector" if counts.min() >= ENOUGH_TO_CALIBRATE else "temperature"
    calibration = calibrate_log_ratio(raw_log_ratio, y, log_prevalence, method=method)
    return np.asarray(calibration(raw_log_ratio))
