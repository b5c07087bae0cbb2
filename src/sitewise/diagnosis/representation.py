"""A classifier two-sample test on the network's features, with the (y, z) mix of the source matched to the site's."""

from dataclasses import dataclass
from statistics import NormalDist

import torch
from torch import Tensor

from sitewise.diagnosis.discrepancy import leave_out, quadratic_p_value
from sitewise.diagnosis.matching import Matched

COMPONENTS = 15  # principal ones of the features
SHRINKAGE = 0.1  # of their variances towards the mean


@dataclass(frozen=True)
class Representation:
    """The test of the features: its p-value, and how well a linear classifier tells the samples apart (½: not)."""

    p_value: float
    auc: float


def compare_features(matched: Matched, source: Tensor, target: Tensor) -> Representation | None:
    """Let the linear discriminant of matched source rows (m, D) and target rows (n, D) tell the two samples apart.

    Its squared separation is a quadratic form of the difference of means, so the p-value allows for a classifier that
    is tried on the rows it was fitted to. Directions along which a change of g moves the features are left out: an
    error of the estimated g is no shift. None where the features never vary.
    """
    everything = torch.cat([source, target]).double()
    spread = everything.std(dim=0)
    kept = spread > 1e-6 * spread.max().clamp_min(1e-12)
    if not kept.any():
        return None
    scaled = (everything - everything.mean(0))[:, kept] / spread[kept]
    parts = scaled[: len(source)], scaled[len(source) :]
    white = scaled @ whitening(matched, *parts)
    found = matched.compare(white[: len(source)], white[len(source) :])
    everywhere = torch.ones(len(source), 1, dtype=torch.float64)
    tilts = matched.tilts(white[: len(source)], everywhere)
    out = leave_out(tilts, torch.ones_like(found.mean))
    separation = float((out @ found.mean) @ (out @ found.mean))
    eigenvalues = torch.linalg.eigvalsh(out @ found.covariance @ out.T)
    beyond_chance = max(0.0, separation - float(eigenvalues.sum()))
    auc = NormalDist().cdf((beyond_chance / 2) ** 0.5)
    return Representation(quadratic_p_value(separation, eigenvalues), auc)


def whitening(matched: Matched, source: Tensor, target: Tensor) -> Tensor:
    """The (D, C) map to principal components of what z and class leave unsaid of features, each of unit variance."""
    left, own, _ = matched.residuals(source, target)
    covariance = torch.zeros(left.shape[1], left.shape[1], dtype=torch.float64)
    for rows, weight in ((left, matched.source_weight), (own, matched.target_weight)):
        centred = rows - weight @ rows
        covariance += 0.5 * centred.T @ (weight[:, None] * centred)
    values, directions = torch.linalg.eigh(covariance)
    values, directions = values[-COMPONENTS:].clamp_min(0.0), directions[:, -COMPONENTS:]
    steady: Tensor = directions / ((1 - SHRINKAGE) * values + SHRINKAGE * values.mean()).clamp_min(1e-12).sqrt()
    return steady
