"""Label shift from a confusion matrix C: class weights of a new site b, and correction of noisy labels.

The weights w_j = P_b(y=j) / P_v(y=j) are relative to the labeled sample v from which C was computed, and not to the
training data. `prior_from_weights` computes P_b(y) from w and the prior of that sample, the column sums of C.
"""

import math
from typing import Any

import numpy as np
import torch
from scipy.optimize import brentq, nnls
from torch import Tensor

RIDGES = 1e-14, 1e8  # relative to the squared norm of C: practically no regularization, and a solution of zero


def hard(probability: Tensor) -> Tensor:
    """Return the predicted class of each row as a one-hot row, (n, K): 1[k = argmax_j p_j]."""
    return torch.nn.functional.one_hot(probability.argmax(dim=1), probability.shape[1]).to(torch.float64)


def confusion(predicted: Tensor, y: Tensor, weight: Tensor | None = None) -> Tensor:
    """Estimate the joint distribution C of predicted and true class on held-out labeled rows, (K, K).

    C_ij = Σ_n v_n p_ni 1[y_n = j] / Σ_n v_n estimates P(ŷ=i, y=j). v_n is the weight of row n, and p_n is its one-hot
    prediction (`hard`) or its probabilities (soft). The column sums of C are P(y) of the sample; its row sums are the
    mean prediction.
    """
    predicted = predicted.to(torch.float64)
    truth = torch.nn.functional.one_hot(y.long(), predicted.shape[1]).to(predicted)
    weight = predicted.new_ones(len(predicted)) if weight is None else weight.to(predicted)
    return (predicted * weight[:, None]).T @ truth / weight.sum()


def bbse(confusion: Tensor, mean_prediction: Tensor) -> Tensor:
    """Return the class weights w = max(0, C⁻¹ μ), (K,), of black box shift estimation (lipton2018detecting).

    C_ij = P(ŷ=i, y=j) is the `confusion` of labeled rows (K, K), and μ the mean prediction at the new site (K,). Under
    label shift, μ = C w, where w_j is P(y=j) at the new site divided by that of the labeled rows. C has no inverse if a
    class never occurs or is not separated from another class. Then w is the least squares solution of smallest norm,
    clipped at 0.
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
    """Return the class weights w = 1 + γ θ, (K,), of regularized learning (azizzadenesheli2018regularized).

    C and μ are those of `bbse`. θ = argmin ‖Cθ - (μ - C1)‖₂ + α Δ ‖θ‖₂ over 1 + θ ≥ 0.
    Δ = 3 (2 l / 3n + √(2 l / n)) with l = log(2K/δ) bounds the error of C, which is estimated from n = `n_source` rows.
    α = 0.01 and δ = 0.05 are the values of the published code. γ is 1, as in that code, with one exception: if
    `largest_shift` gives a bound θ_max of ‖θ‖, γ is 0 (no adaptation) when σ_min(C) ≤ 1/√n, or when `n_target` is less
    than 1 / (θ_max (σ_min(C) - 1/√n))².
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
    """Return the new site's P_b(y=j) = w_j P_v(y=j) / Σ_k w_k P_v(y=k), (K,).

    P_v must be the prior of the labeled sample from which the weights were computed: the column sums of C,
    `confusion.sum(dim=0)`. If all products w_k P_v(y=k) are zero, P_v is returned, scaled to sum to one.
    """
    joint = weights * source_prior
    return torch.where(joint.sum() > 0, joint / joint.sum(), source_prior / source_prior.sum())


def correct_pseudo_labels(probability_of_pseudo: Tensor, pseudo_given_true: Tensor) -> Tensor:
    """Return the probabilities of the true labels y, given those of noisy labels ŷ (eastwood2023spuriosity), (n, K).

    If the noise does not depend on x given y, P(ŷ|x) = Mᵀ P(y|x) with M_kj = P(ŷ=j|y=k). This equation is solved for
    P(y|x), and the solution is projected to the simplex. For two classes, with ε_k = M_kk and p = P(ŷ=1|x), the result
    is P(y=1|x) = (p + ε_0 - 1) / (ε_0 + ε_1 - 1), clipped to [0, 1]. If ŷ has no information (ε_0 + ε_1 = 1), the
    result is ½.
    """
    return project_to_simplex(probability_of_pseudo @ torch.linalg.pinv(pseudo_given_true))


def project_to_simplex(rows: Tensor) -> Tensor:
    """Return for each row r the nearest point of the simplex, max(0, r - t), with t such that the point sums to one."""
    largest = rows.sort(dim=1, descending=True).values
    count = torch.arange(1, rows.shape[1] + 1, device=rows.device, dtype=rows.dtype)
    level = (largest.cumsum(dim=1) - 1) / count
    n_kept = (largest > level).sum(dim=1, keepdim=True)
    return (rows - level.gather(1, n_kept - 1)).clamp(min=0)


def _sum_of_norms(C: np.ndarray[Any, Any], b: np.ndarray[Any, Any], strength: float) -> np.ndarray[Any, Any]:
    """Return the minimizer of ‖Cθ - b‖₂ + s‖θ‖₂ over θ ≥ -1; s is `strength`.

    It is the ridge solution θ(λ) = argmin ‖Cθ - b‖² + λ‖θ‖² over θ ≥ -1 whose λ satisfies λ‖θ‖ = s‖Cθ - b‖. The left
    side grows faster with λ than the right side, so λ is found by bracketed root finding. If λ is below the bracket
    (`RIDGES`), θ is unregularized; if it is above, θ is 0.
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
