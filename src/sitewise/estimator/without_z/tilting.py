"""Held-out rows as they would be with a site's joint of (z, y), for a site whose rows lack z."""

import torch
from torch import Tensor

from sitewise.critic import Bank
from sitewise.diagnosis.groups import add_up
from sitewise.diagnosis.matching import EFFECTIVE, balance, z_features

ENOUGH = 2 * EFFECTIVE  # even rows that the tilted ones of a class are worth
POWERS = (1.0, 0.5, 0.25)


def site_tilt(
    bank: Bank, joint: Tensor, codes: Tensor, y: Tensor, weight: Tensor, groups: Tensor | None = None
) -> Tensor:
    """What to multiply the weights of labeled rows with known z by, (n,), to have a site's joint (M, K) over a bank.

    Within each class the rows get the weights closest to their own with the joint's means of simple features of z; an
    estimated joint is a set of spikes, of which no more than that is sure. A tilt that leaves few rows to compare is
    weakened: x then says little of z, or the joint would not be so far off, and the tilt matters as little. Rows of a
    group count as one.
    """
    own, points = (z_features(part, bank.codes, bank.schema) for part in (codes, bank.codes))
    tilt = torch.ones_like(weight)
    for label in range(joint.shape[1]):
        rows = ((y == label) & (weight > 0)).nonzero().flatten()
        if len(rows):
            goal = joint[:, label].clamp_min(1e-9) @ points
            base = weight[rows] / weight[rows].sum() * goal[0]
            full = balance(own[rows], base, goal) / weight[rows]
            own_groups = None if groups is None else groups[rows]
            strong = (full**p for p in POWERS if _worth(weight[rows] * full**p, own_groups) >= ENOUGH)
            tilt[rows] = next(strong, tilt[rows])
    return tilt


def _worth(weight: Tensor, groups: Tensor | None) -> float:
    """How many even rows, or groups, weighted ones are worth."""
    return float(weight.sum() ** 2 / (add_up(weight[:, None], groups) ** 2).sum().clamp_min(1e-300))
