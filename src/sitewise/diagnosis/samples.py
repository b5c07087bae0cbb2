"""The two samples that a diagnosis compares: held-out labeled rows of the source, and the new site's rows.

Rows of one group, for example a patient, are not independent. Groups are, so tests use sums over groups.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from sitewise.calibration import Calibration
from sitewise.rows import HeldOut, ScoredRows


def number(groups: Tensor) -> tuple[Tensor, int]:
    """Return the index of every row's group, (n,), and the number of groups."""
    distinct, numbers = torch.unique(groups, return_inverse=True)
    return numbers, len(distinct)


def count(groups: Tensor | None, rows: Tensor) -> int:
    """Return the number of groups of the marked rows (n,); without groups, the number of these rows."""
    return int(rows.sum()) if groups is None else len(torch.unique(groups[rows]))


def several(groups: Tensor | None) -> Tensor | None:
    """Return the groups, or None if there is only one: then no variance between groups can be estimated."""
    return None if groups is None or bool((groups == groups[:1]).all()) else groups


def add_up(rows: Tensor, groups: Tensor | None) -> Tensor:
    """Sum rows (n, M) within G groups, (G, M); without groups, return the rows unchanged."""
    if groups is None:
        return rows
    numbers, n_groups = number(groups)
    return rows.new_zeros(n_groups, rows.shape[1]).index_add_(0, numbers, rows)


def scatter(scores: Tensor, groups: Tensor | None) -> Tensor:
    """Return the covariance (M, M) of the sum over rows of M scores (n, M).

    It is Σ s sᵀ over rows, or Q/(Q-1) Σ S Sᵀ over the sums S of Q groups.
    """
    groups = several(groups)
    sums = add_up(scores, groups)
    product = sums.T @ sums
    return product if groups is None else product * (len(sums) / (len(sums) - 1))


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class SourceSample(HeldOut):
    """Held-out labeled rows with the calibration that was fitted to them.

    `tilt` is used if z is hidden in `codes`: a factor for the weight of each row, so that the rows have the new site's
    distribution of z within each class. None leaves the weights unchanged. Rows of one of the `groups` (patients) are
    not independent. If `groups` is None, all rows are independent.
    """

    calibration: Calibration
    tilt: Tensor | None = None  # (m,)

    @property
    def mixed_weight(self) -> Tensor:
        """The weights of the rows in tests, (m,)."""
        return self.weight if self.tilt is None else self.weight * self.tilt

    @property
    def log_ratio(self) -> Tensor:
        """Calibrated log f, (m, K)."""
        return self.calibration.apply(self.raw_log_ratio)

    @property
    def counts(self) -> Tensor:
        """The number of rows of each class with a weight above zero, (K,)."""
        return torch.bincount(self.y[self.weight > 0], minlength=self.raw_log_ratio.shape[1])

    @property
    def units(self) -> Tensor:
        """The number of groups with rows of each class, (K,); without groups, the number of rows."""
        if self.groups is None:
            return self.counts
        classes = range(self.raw_log_ratio.shape[1])
        return torch.tensor([count(self.groups, (self.y == label) & (self.weight > 0)) for label in classes])

    @property
    def group_counts(self) -> dict[str, int]:
        """The number of groups as a detail of a finding; empty without groups."""
        return {} if self.groups is None else {"held_out_groups": len(torch.unique(self.groups))}


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class TargetSample(ScoredRows):
    """The new site's rows.

    `tested` marks the rows that tests compare with the source. They have all of z or, if z is hidden in the source,
    none of it.
    """

    weight: Tensor = field()
    tested: Tensor  # (n,) bool

    @property
    def n_units(self) -> int:
        """The number of groups; without groups, the number of rows."""
        return count(self.groups, torch.ones_like(self.tested))

    @property
    def group_counts(self) -> dict[str, int]:
        """The number of groups as a detail of a finding; empty without groups."""
        return {} if self.groups is None else {"groups": self.n_units}


def by_groups(source: SourceSample, target: TargetSample) -> str:
    """Return the words " by groups" for texts with a p-value if a sample has groups, otherwise an empty text."""
    return "" if source.groups is None and target.groups is None else " by groups"


def evenly(rows: Tensor, at_most: int) -> Tensor:
    """Return at most `at_most` of these row indices, evenly spaced."""
    return rows if len(rows) <= at_most else rows[torch.arange(at_most) * len(rows) // at_most]
