"""Label shift from a confusion matrix: class weights of a new site, and correction of noisy labels.

The weights w_j = P_b(y=j) / P_v(y=j) are relative to the labeled sample v of the confusion matrix, never to the
training data: `prior_from_weights` turns them into P_b(y) with the prior of that sample, the column sums of C.
"""

import math
from typing import Any

import numpy as np
import torch
from scipy.optimize import brentq, nnls
from torch import Tensor

RIDGES = 1e-14, 1e8  # relative to the size of C: the unregularized solution, and one that is zero


def hard(probability: Tensor) -> Tensor:
    """The predicted class of each row as a one-hot row, (n, K): 1[k = argmax_j p_j]."""
    return torch.nn.functional.one_hot(probability.argmax(dim=1), probability.shape[1]).to(torch.float64)


def confusion(predicted: Tensor, y: Tensor, weight: Tensor | None = None) -> Tensor:
    """The joint distribution of predicted and true class on held-out labeled rows, (K, K).

    C_ij = Σ_n v_n p_ni 1[y_n = j] / Σ_n v_n estimates P(ŷ=i, y=j), with rows p_n of `hard` predictions or of
    probabilities (soft). Its columns sum to P(y) of the sample, its rows to the mean prediction.
    """
    predicted = predicted.to(torch.float64)
    truth = torch.nn.functional.one_hot(y.long(), predicted.shape[1]).to(predicted)
    weight = predicted.new_ones(len(predicted)) if weight is None else weight.to(predicted)
    return (predicted * weight[:, None]).T @ truth / weight.sum()


def bbse(confusion: Tensor, mean_prediction: Tensor) -> Tensor:
    """Black box shift estimation (lipton2018detecting): w = max(0, C⁻¹ μ), (K,).

    Under label shift the mean prediction of the new site is μ_i = Σ_j P(ŷ=i, y=j) w_j. If C has no inverse (a class
    that never occurs, or is not separated from another), w is the least squares solution of smallest norm.
    """
    inverse: Tensor = torch.linalg.pinv(confusion)
    return (inverse @ mean_prediction).clamp(min=0)


def rlls(
    confusion: Tensor,
    mean_prediction: Tensor,
    n_source: float,
    n_target: float = math.inf,
    *,
    alpha: float = 0.01,
    delta: float = 0.05,
    largest_shift: float | None = None,
) -> Tensor:
    """Regularized learning under label shift (azizzadenesheli2018regularized): w = 1 + γ θ, (K,).

    θ = argmin ‖Cθ - (μ - C1)‖₂ + α Δ ‖θ‖₂ over w ≥ 0, with the bound Δ = 3 (2 l / 3n + √(2 l / n)), l = log(2K/δ), on
    the error of C from its n = `n_source` rows; α = 0.01 and δ = 0.05 are those of the published code. γ is 1, as in
    that code, unless `largest_shift` bounds ‖θ‖ by θ_max. Then γ is 0 (no adaptation) if the `n_target` rows are too
    few, fewer than 1 / (θ_max (σ_min(C) - 1/√n))².
    """
    bound = math.log(2 * len(confusion) / delta)
    strength = alpha * 3 * (2 * bound / (3 * n_source) + math.sqrt(2 * bound / n_source))
    shift = mean_prediction - confusion.sum(dim=1)
    if largest_shift is not None:
        signal = float(torch.linalg.svdvals(confusion).min()) - 1 / math.sqrt(n_source)
        if signal <= 0 or n_target * (largest_shift * signal) ** 2 < 1:
            return torch.ones_like(shift)
    theta = _sum_of_norms(confusion.cpu().numpy(), shift.cpu().numpy(), strength)
    return 1 + torch.as_tensor(theta, dtype=confusion.dtype, device=confusion.device)


def prior_from_weights(weights: Tensor, source_prior: Tensor) -> Tensor:
    """The new site's P_b(y=j) = w_j P_v(y=j) / Σ_k w_k P_v(y=k), (K,), with P_v of the sample behind the weights.

    P_v are the column sums of C, `confusion.sum(dim=0)`; the prior of other data, for example of training, gives
    another result. If all weights are zero where P_v is not, P_v itself is returned.
    """
    joint = weights * source_prior
    return torch.where(joint.sum() > 0, joint / joint.sum(), source_prior / source_prior.sum())


def correct_pseudo_labels(probability_of_pseudo: Tensor, pseudo_given_true: Tensor) -> Tensor:
    """From the probabilities of noisy labels to those of the true labels (eastwood2023spuriosity), (n, K).

    If the noise does not depend on x given y, P(ŷ|x) = Mᵀ P(y|x), M_kj = P(ŷ=j|y=k). This is solved for P(y|x) and
    projected to the simplex. For two classes, with ε_k = M_kk and p = P(ŷ=1|x), the result is
    P(y=1|x) = (p + ε_0 - 1) / (ε_0 + ε_1 - 1), clipped to [0, 1]; labels without information (ε_0 + ε_1 = 1) give ½.
    """
    return project_to_simplex(probability_of_pseudo @ torch.linalg.pinv(pseudo_given_true))


def project_to_simplex(rows: Tensor) -> Tensor:
    """The nearest point of the simplex to each row: max(0, r - t), with the t that makes it sum to one."""
    largest = rows.sort(dim=1, descending=True).values
    count = torch.arange(1, rows.shape[1] + 1, device=rows.device, dtype=rows.dtype)
    level = (largest.cumsum(dim=1) - 1) / count
    n_kept = (largest > level).sum(dim=1, keepdim=True)
    return (rows - level.gather(1, n_kept - 1)).clamp(min=0)


def _sum_of_norms(C: np.ndarray[Any, Any], b: np.ndarray[Any, Any], strength: float) -> np.ndarray[Any, Any]:
    """The minimizer of ‖Cθ - b‖₂ + s‖θ‖₂ over θ ≥ -1.

    It is a ridge solution θ(λ) = argmin ‖Cθ - b‖² + λ‖θ‖² over θ ≥ -1 whose λ satisfies λ‖θ‖ = s‖Cθ - b‖. The left side
    grows faster with λ than the right, so λ is found by bisection; beyond its ends θ is 0 or unregularized.
    """
    n_classes = len(C)

    def solve(log_ridge: float) -> np.ndarray[Any, Any]:
        root = math.exp(log_ridge / 2) * np.eye(n_classes)
        weights, _ = nnls(np.vstack([C, root]), np.concatenate([b + C.sum(axis=1), root.sum(axis=1)]))
        return np.asarray(weights - 1)

    def balance(log_ridge: float) -> float:
        theta = solve(log_ridge)
        return math.exp(log_ridge) * float(np.linalg.norm(theta)) - strength * float(np.linalg.norm(C @ theta - b))

    size = math.log(np.linalg.norm(C) ** 2)
    low, high = (size + math.log(ridge) for ridge in RIDGES)
    if balance(low) >= 0:
        return solve(low)
    if balance(high) <= 0:
        return np.zeros(n_classes)
    return solve(brentq(balance, low, high, xtol=1e-12))
