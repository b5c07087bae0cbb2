"""Held-out labeled rows as calibration sees them."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from sitewise.calibration import Calibration, fit_calibration

ENOUGH_TO_CALIBRATE = 10  # rows of each class


@dataclass(frozen=True)
class HeldOut:
    """Held-out rows as calibration sees them: raw log f, log g by models that saw none of their labels, y, weights."""

    raw_log_ratio: Tensor
    log_prevalence: Tensor
    y: Tensor
    weight: Tensor

    def calibrate(self, method: str) -> Calibration:
        """Fit the calibration asked for, or as much of it as the labels can bear."""
        n_classes = self.raw_log_ratio.shape[1]
        counts = torch.bincount(self.y, minlength=n_classes)
        if int(counts.min()) < ENOUGH_TO_CALIBRATE and method in ("vector", "bias_corrected"):
            method = "temperature"
        if len(self.y) < n_classes * ENOUGH_TO_CALIBRATE or int((counts > 0).sum()) < 2:
            method = "none"
        if method == "none":
            flat = torch.zeros(n_classes, dtype=torch.float64)
            return Calibration("none", flat + 1, flat)
        targets = smoothed_targets(self.y, counts)
        return fit_calibration(self.raw_log_ratio, targets, self.log_prevalence, self.weight, method)


def smoothed_targets(y: Tensor, counts: Tensor) -> Tensor:
    """Platt's soft labels: a class with n rows is (n + 1) / (n + 2) certain, which keeps separable data finite."""
    n_classes = len(counts)
    certainty = ((counts + 1) / (counts + 2)).double()[y][:, None]
    return one_hot(y, n_classes).double() * (certainty - (1 - certainty) / (n_classes - 1)) + (1 - certainty) / (
        n_classes - 1
    )
