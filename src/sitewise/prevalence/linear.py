"""Multinomial logits that are linear in features of z, and their fit to soft labels.

With K classes and D features, the logits are `offset + features @ coefficients @ contrasts.T`, with coefficients
(D, K-1). The contrasts are orthonormal, so that a ridge penalty does not depend on the order of the classes. U is the
number of distinct z.
"""

import torch
from torch import Tensor

from sitewise.posterior import contrasts, softmax_hessian
from sitewise.solvers import Solution, lbfgs, newton

NEWTON_LIMIT = 300  # parameters; beyond that L-BFGS is faster than Newton


def assemble(features: Tensor, blocks: Tensor) -> Tensor:
    """Return Σ_u (φ_u φ_uᵀ) ⊗ block_u, (P, P) with P = D (K-1), for features φ (U, D) and blocks (U, K-1, K-1)."""
    n_features, width = features.shape[1], blocks.shape[1]
    matrix = torch.empty(n_features, width, n_features, width, dtype=features.dtype, device=features.device)
    if width > n_features:  # many classes: compute one product for each feature instead of each pair of classes
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


def information(features: Tensor, weight: Tensor, probability: Tensor) -> Tensor:
    """Return the information of labeled rows about the P coefficients, (P, P): minus the log-likelihood's Hessian."""
    basis = contrasts(probability.shape[1], probability.device)
    return assemble(features, weight[:, None, None] * (basis.T @ softmax_hessian(probability) @ basis))


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

    `totals` (U, K) and `weight` (U,) are sums of soft labels and weights over rows with equal z. `penalty` is (D,) and
    `offset` (U, K). The solution's point holds the flat coefficients, (D (K-1),).
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

    solution = newton(lambda points: objective(points[0])[None], derivatives, start[None], tolerance=tolerance)
    return Solution(solution.point[0], solution.gap, solution.converged, solution.n_iter, solution.trace)
