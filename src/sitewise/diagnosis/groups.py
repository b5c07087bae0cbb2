"""Sums over groups of rows: rows of one group, for example a patient, are not independent, but groups are."""

import torch
from torch import Tensor


def number(groups: Tensor) -> tuple[Tensor, int]:
    """Return every row's group as a number from 0 up, and the number of groups."""
    distinct, numbers = torch.unique(groups, return_inverse=True)
    return numbers, len(distinct)


def count(groups: Tensor | None, rows: Tensor) -> int:
    """Return the number of groups of the marked rows (n,), or of marked rows without groups."""
    return int(rows.sum()) if groups is None else len(torch.unique(groups[rows]))


def several(groups: Tensor | None) -> Tensor | None:
    """Return the groups, or None if there is only one, from which no variance between groups can be estimated."""
    return None if groups is None or bool((groups == groups[:1]).all()) else groups


def add_up(rows: Tensor, groups: Tensor | None) -> Tensor:
    """Sum rows (n, M) within their groups, (G, M); return the rows unchanged without groups."""
    if groups is None:
        return rows
    numbers, n_groups = number(groups)
    return rows.new_zeros(n_groups, rows.shape[1]).index_add_(0, numbers, rows)


def scatter(scores: Tensor, groups: Tensor | None) -> Tensor:
    """Return the covariance (M, M) of a sum of scores (n, M): Σ s sᵀ over rows, or G/(G-1) Σ S Sᵀ over group sums."""
    groups = several(groups)
    sums = add_up(scores, groups)
    product = sums.T @ sums
    return product if groups is None else product * (len(sums) / (len(sums) - 1))
