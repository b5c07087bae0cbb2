"""The two samples that a diagnosis compares: held-out labeled rows of the source, and the new site's rows."""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from sitewise.calibration import Calibration
from sitewise.diagnosis.groups import count


@dataclass(frozen=True)
class SourceSample:
    """Held-out labeled rows: raw log f with the calibration fitted to it, log g of their own sites, classes, codes.

    `features` (k, D) are the representation of the rows `feature_rows` (k,), None where there is none. `tilt` brings
    the rows' mix of z within each class to the new site's where codes hide z from the tests, None leaves it. Rows of
    one of the `groups` (patients) are not independent; None takes all rows for independent.
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
    groups: Tensor | None = field(default=None, repr=False)  # (m,) numbers

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

    @property
    def units(self) -> Tensor:
        """Groups that have rows of each class, (K,); rows where there are no groups."""
        if self.groups is None:
            return self.counts
        classes = range(self.raw_log_ratio.shape[1])
        return torch.tensor([count(self.groups, (self.y == label) & (self.weight > 0)) for label in classes])

    @property
    def group_counts(self) -> dict[str, int]:
        """The number of groups as a detail of a finding; nothing where there are none."""
        return {} if self.groups is None else {"held_out_groups": len(torch.unique(self.groups))}

    def take(self, rows: Tensor) -> "SourceSample":
        """Some rows; their features are left behind."""
        parts = (self.raw_log_ratio, self.log_prevalence, self.y, self.codes, self.weight)
        raw, prior, y, codes, weight = (part[rows] for part in parts)
        tilt, groups = (None if part is None else part[rows] for part in (self.tilt, self.groups))
        return SourceSample(raw, self.calibration, prior, y, codes, weight, tilt=tilt, groups=groups)


@dataclass(frozen=True)
class TargetSample:
    """The new site's rows: calibrated log f, codes of z, weights.

    `tested` marks those that the tests compare with the source: rows of which as much of z is known as there.
    `supported` marks those where f is identified. `groups` are as in `SourceSample`.
    """

    log_ratio: Tensor  # (n, K)
    codes: Tensor  # (n, V)
    weight: Tensor  # (n,)
    tested: Tensor  # (n,) bool
    supported: Tensor  # (n,) bool
    features: Tensor | None = field(default=None, repr=False)
    feature_rows: Tensor | None = field(default=None, repr=False)
    groups: Tensor | None = field(default=None, repr=False)  # (n,) numbers

    @property
    def n_units(self) -> int:
        """How many groups there are, or rows where there are no groups."""
        return count(self.groups, torch.ones_like(self.tested))

    @property
    def group_counts(self) -> dict[str, int]:
        """The number of groups as a detail of a finding; nothing where there are none."""
        return {} if self.groups is None else {"groups": self.n_units}

    def take(self, rows: Tensor) -> "TargetSample":
        """Some rows; their features are left behind."""
        parts = (self.log_ratio, self.codes, self.weight, self.tested, self.supported)
        log_ratio, codes, weight, tested, supported = (part[rows] for part in parts)
        groups = None if self.groups is None else self.groups[rows]
        return TargetSample(log_ratio, codes, weight, tested, supported, groups=groups)

    def without_features(self) -> "TargetSample":
        """The same rows, scores only."""
        return replace(self, features=None, feature_rows=None)


def by_groups(source: SourceSample, target: TargetSample) -> str:
    """What to say beside a p-value of both samples."""
    return "" if source.groups is None and target.groups is None else " by groups"


def evenly(rows: Tensor, at_most: int) -> Tensor:
    """Some of these row numbers, spread evenly; all of them where they are few."""
    return rows if len(rows) <= at_most else rows[torch.arange(at_most) * len(rows) // at_most]
