"""Logits that are linear in features of z: contrasts that treat all classes alike, and the fit to soft labels.

With K classes the logits are `offset + features @ coefficients @ contrasts.T`, coefficients (D, K-1). The contrasts
are orthonormal, so a ridge penalty on them is the same whichever way the classes are numbered.
"""

import math

import torch
from torch import Tensor

from sitewise.solvers import Solution, lbfgs, newton

NEWTON_LIMIT = 300  # above this many parameters a Hessian a step costs more than it saves


def contrasts(n_classes: int, device: torch.device | None = None) -> Tensor:
    """An orthonormal (K, K-1) basis of the vectors that sum to zero (Helmert's)."""
    columns = torch.zeros(n_classes, n_classes - 1, dtype=torch.float64, device=device)
    for j in range(1, n_classes):
        columns[:j, j - 1] = -1.0 / math.sqrt(j * (j + 1))
        columns[j, j - 1] = j / math.sqrt(j * (j + 1))
    return columns


def assemble(features: Tensor, blocks: Tensor) -> Tensor:
    """Σ_u (φ_u φ_uᵀ) ⊗ block_u as a (P, P) matrix, P = D (K-1), for features (U, D) and blocks (U, K-1, K-1)."""
    n_features, width = features.shape[1], blocks.shape[1]
    matrix = torch.empty(n_features, width, n_features, width, dtype=features.dtype, device=features.device)
    if width > n_features:  # many classes: one product for each feature, not for each pair of classes
        flat = blocks.reshape(len(blocks), -1)
        for d in range(n_features):
            products = (features[:, d : d + 1] * features).T @ flat
            matrix[d] = products.reshape(n_features, width, width).permute(1, 0, 2)
        return matrix.reshape(n_features * width, n_features * width)
    for i in range(width):
        for j in range(i, width):
            matrix[:, i, :, j] = features.T @ (blocks[:, i, j, None] * features)
            if i != j:
                matrix[:, j, :, i] = matrix[:, i, :, j].T
    return matrix.reshape(n_features * width, n_features * width)


def spread(probability: Tensor) -> Tensor:
    """diag(p) - p pᵀ for every row, (n, K, K): the curvature of log-softmax."""
    return torch.diag_embed(probability) - probability[:, :, None] * probability[:, None, :]


def information(features: Tensor, weight: Tensor, probability: Tensor) -> Tensor:
    """What rows of known class tell of the coefficients, (P, P): minus the log-likelihood's second derivative."""
    basis = contrasts(probability.shape[1], probability.device)
    return assemble(features, weight[:, None, None] * (basis.T @ spread(probability) @ basis))


def fit_linear(
    totals: Tensor,
    weight: Tensor,
    features: Tensor,
    penalty: Tensor,
    offset: Tensor,
    *,
    start: Tensor | None = None,
    tolerance: float = 1e-9,
) -> Solution[Tensor]:
    """Fit multinomial logits to soft labels: minimize -Σ_u totals_u·log softmax + ½ Σ penalty·coefficients².

    `totals` (U, K) and `weight` (U,) are added up over equal rows, `penalty` is (D,), `offset` (U, K).
    """
    n_features, n_classes = features.shape[1], totals.shape[1]
    basis = contrasts(n_classes, totals.device)
    scale = weight.sum()
    ridge = penalty[:, None].expand(-1, n_classes - 1).reshape(-1)

    def logits(flat: Tensor) -> Tensor:
        return torch.log_softmax(offset + features @ flat.reshape(n_features, -1) @ basis.T, dim=1)

    def objective(flat: Tensor) -> Tensor:
        return (0.5 * ridge @ flat**2 - (totals * logits(flat)).sum()) / scale

    def gradient(flat: Tensor) -> Tensor:
        residual = weight[:, None] * logits(flat).exp() - totals
        return ((features.T @ residual @ basis).reshape(-1) + ridge * flat) / scale

    if start is None:
        start = torch.zeros(n_features * (n_classes - 1), dtype=totals.dtype, device=totals.device)
    if len(start) > NEWTON_LIMIT:
        return lbfgs(lambda flat: (objective(flat), gradient(flat)), start, tolerance=tolerance)

    def derivatives(points: Tensor) -> tuple[Tensor, Tensor]:
        hessian = information(features, weight, logits(points[0]).exp()) + torch.diag(ridge)
        return gradient(points[0])[None], hessian[None] / scale

    found = newton(lambda points: objective(points[0])[None], derivatives, start[None], tolerance=tolerance)
    return Solution(found.point[0], found.gap, found.converged, found.n_iter, found.trace)
