"""Rows of one group (a patient, say) are not independent: groups are, and what varies between them counts."""

import torch
from torch import Tensor


def number(groups: Tensor) -> tuple[Tensor, int]:
    """Every row's group as a number from 0 up, and how many groups there are."""
    found, numbers = torch.unique(groups, return_inverse=True)
    return numbers, len(found)


def count(groups: Tensor | None, rows: Tensor) -> int:
    """How many groups the marked rows (n,) belong to; how many rows are marked where there are no groups."""
    return int(rows.sum()) if groups is None else len(torch.unique(groups[rows]))


def several(groups: Tensor | None) -> Tensor | None:
    """The groups; None where all rows are of one, which cannot show how groups differ."""
    return None if groups is None or bool((groups == groups[:1]).all()) else groups


def add_up(rows: Tensor, groups: Tensor | None) -> Tensor:
    """Rows (n, M) added up within their groups, (G, M); the rows themselves where there are none."""
    if groups is None:
        return rows
    numbers, n_groups = number(groups)
    return rows.new_zeros(n_groups, rows.shape[1]).index_add_(0, numbers, rows)


def scatter(scores: Tensor, groups: Tensor | None) -> Tensor:
    """The covariance (M, M) of a sum of scores (n, M): Σ s sᵀ over rows, or G/(G-1) Σ S Sᵀ over sums of groups."""
    groups = several(groups)
    sums = add_up(scores, groups)
    product = sums.T @ sums
    return product if groups is None else product * (len(sums) / (len(sums) - 1))
