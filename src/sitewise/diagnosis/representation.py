"""A classifier two-sample test on the network's features, after weighting the source to the site's (y, z)."""

from dataclasses import dataclass
from statistics import NormalDist

import torch
from torch import Tensor

from sitewise.diagnosis.discrepancy import leave_out, quadratic_p_value
from sitewise.diagnosis.matching import Matched

COMPONENTS = 15  # number of principal components of the features
SHRINKAGE = 0.1  # shrinkage of their variances towards the mean variance


@dataclass(frozen=True)
class Representation:
    """The result of the test of features: its p-value, and the AUC of a linear classifier between the samples."""

    p_value: float
    auc: float


def compare_features(matched: Matched, source: Tensor, target: Tensor) -> Representation | None:
    """Test whether a linear discriminant of D features separates matched source rows (m, D) from target rows (n, D).

    The squared separation is a quadratic form of the difference of means, and the p-value is from the distribution of
    this form. So it is valid although the classifier is evaluated on the rows that it was fitted to. Directions along
    which a change of g moves the features are left out, because an error of the estimated g is not a shift of P(x|y,z).
    Returns None if the features are constant.
    """
    everything = torch.cat([source, target]).double()
    deviation = everything.std(dim=0)
    kept = deviation > 1e-6 * deviation.max().clamp_min(1e-12)
    if not kept.any():
        return None
    scaled = (everything - everything.mean(0))[:, kept] / deviation[kept]
    white = scaled @ whitening(matched, scaled[: len(source)], scaled[len(source) :])
    difference = matched.compare(white[: len(source)], white[len(source) :])
    everywhere = torch.ones(len(source), 1, dtype=torch.float64)
    tilts = matched.tilts(white[: len(source)], everywhere)
    out = leave_out(tilts, torch.ones_like(difference.mean))
    separation = float((out @ difference.mean) @ (out @ difference.mean))
    eigenvalues = torch.linalg.eigvalsh(out @ difference.covariance @ out.T)
    beyond_chance = max(0.0, separation - float(eigenvalues.sum()))
    auc = NormalDist().cdf((beyond_chance / 2) ** 0.5)
    return Representation(quadratic_p_value(separation, eigenvalues), auc)


def whitening(matched: Matched, source: Tensor, target: Tensor) -> Tensor:
    """Return a matrix (D, C) that maps D features to C principal components with about unit variance.

    The components are those of the features' residuals given z and class. Before scaling to unit variance, their
    variances are shrunk towards the mean variance, so that components of small variance are not scaled up too much.
    """
    left, own, _ = matched.residuals(source, target)
    covariance = torch.zeros(left.shape[1], left.shape[1], dtype=torch.float64)
    for rows, weight in ((left, matched.source_weight), (own, matched.target_weight)):
        centred = rows - weight @ rows
        covariance += 0.5 * centred.T @ (weight[:, None] * centred)
    values, directions = torch.linalg.eigh(covariance)
    values, directions = values[-COMPONENTS:].clamp_min(0.0), directions[:, -COMPONENTS:]
    steady: Tensor = directions / ((1 - SHRINKAGE) * values + SHRINKAGE * values.mean()).clamp_min(1e-12).sqrt()
    return steady
