"""The two samples that a diagnosis compares: held-out labeled rows of the source, and the new site's rows."""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from sitewise.calibration import Calibration


@dataclass(frozen=True)
class SourceSample:
    """Held-out labeled rows: raw log f with the calibration fitted to it, log g of their own sites, classes, codes.

    `features` (k, D) are the representation of the rows `feature_rows` (k,), None where there is none. `tilt` brings
    the rows' mix of z within each class to the new site's where codes hide z from the tests, None leaves it.
    """

    raw_log_ratio: Tensor  # (m, K)
    calibration: Calibration
    log_prevalence: Tensor  # (m, K)
    y: Tensor  # (m,)
    codes: Tensor  # (m, V)
    weight: Tensor  # (m,)
    features: Tensor | None = field(default=None, repr=False)
    feature_rows: Tensor | None = field(default=None, repr=False)
    tilt: Tensor | None = field(default=None, repr=False)  # (m,)

    @property
    def mixed_weight(self) -> Tensor:
        """The weights that tests compare by, (m,)."""
        return self.weight if self.tilt is None else self.weight * self.tilt

    @property
    def log_ratio(self) -> Tensor:
        """Calibrated log f, (m, K)."""
        return self.calibration.apply(self.raw_log_ratio)

    @property
    def counts(self) -> Tensor:
        """Rows of each class, (K,)."""
        return torch.bincount(self.y[self.weight > 0], minlength=self.raw_log_ratio.shape[1])

    def take(self, rows: Tensor) -> "SourceSample":
        """Some rows; their features are left behind."""
        parts = (self.raw_log_ratio, self.log_prevalence, self.y, self.codes, self.weight)
        raw, prior, y, codes, weight = (part[rows] for part in parts)
        tilt = None if self.tilt is None else self.tilt[rows]
        return SourceSample(raw, self.calibration, prior, y, codes, weight, tilt=tilt)


@dataclass(frozen=True)
class TargetSample:
    """The new site's rows: calibrated log f, codes of z, weights.

    `tested` marks those that the tests compare with the source: rows of which as much of z is known as there.
    `supported` marks those where f is identified.
    """

    log_ratio: Tensor  # (n, K)
    codes: Tensor  # (n, V)
    weight: Tensor  # (n,)
    tested: Tensor  # (n,) bool
    supported: Tensor  # (n,) bool
    features: Tensor | None = field(default=None, repr=False)
    feature_rows: Tensor | None = field(default=None, repr=False)

    def take(self, rows: Tensor) -> "TargetSample":
        """Some rows; their features are left behind."""
        parts = (self.log_ratio, self.codes, self.weight, self.tested, self.supported)
        return TargetSample(*(part[rows] for part in parts))

    def without_features(self) -> "TargetSample":
        """The same rows, scores only."""
        return replace(self, features=None, feature_rows=None)


def evenly(rows: Tensor, at_most: int) -> Tensor:
    """Some of these row numbers, spread evenly; all of them where they are few."""
    return rows if len(rows) <= at_most else rows[torch.arange(at_most) * len(rows) // at_most]
