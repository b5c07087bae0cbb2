"""Equations 1, 3 and 7 of docs/maths.md as functions of plain tensors, without I/O and randomness.

Shapes: `log_ratio` and `log_prevalence` are (n, K), or (K,) if they are the same for every row. Solvers and intervals
need only sums over the rows that share one g: the `Moments`. `adaptation/cell_problem.py` solves equation 8 with them.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


def normalize(log_ratio: Tensor) -> Tensor:
    """Fix the free factor of f (equation 1): scale every row so that its ratios sum to one.

    Afterwards, a constant that was added to a row of log f has no effect. In a row with +inf, all classes without +inf
    are excluded. A row that is -inf everywhere carries no information; it is treated as a row of zeros.
    """
    certain = log_ratio == torch.inf
    log_ratio = torch.where(certain.any(-1, keepdim=True), torch.where(certain, 0.0, -torch.inf), log_ratio)
    silent = (log_ratio == -torch.inf).all(-1, keepdim=True)
    return torch.log_softmax(torch.where(silent, 0.0, log_ratio), dim=-1)


def combine(log_ratio: Tensor, log_prevalence: Tensor) -> Tensor:
    """Return log P(y|x,z) (equation 3): the log-softmax of log f + log g.

    If f and g contradict each other (each class has probability zero in one of them), f is used alone, because g is an
    estimate.
    """
    joint = log_ratio + log_prevalence
    contradiction = (joint == -torch.inf).all(-1, keepdim=True)
    return torch.log_softmax(torch.where(contradiction, log_ratio, joint), dim=-1)


def contrasts(n_classes: int, device: torch.device | None = None) -> Tensor:
    """Return an orthonormal basis (K, K-1) of the vectors that sum to zero (Helmert contrasts)."""
    columns = torch.zeros(n_classes, n_classes - 1, dtype=torch.float64, device=device)
    for j in range(1, n_classes):
        columns[:j, j - 1] = -1.0 / math.sqrt(j * (j + 1))
        columns[j, j - 1] = j / math.sqrt(j * (j + 1))
    return columns


def softmax_hessian(probability: Tensor) -> Tensor:
    """Return diag(p) - p pᵀ for every row, (n, K, K): minus the Hessian of log-softmax."""
    return torch.diag_embed(probability) - probability[:, :, None] * probability[:, None, :]


@dataclass(frozen=True)
class Moments:
    """Sums over the rows that share one g, evaluated at that g, with m_n = Σ_y f_ny g_y (equation 7c).

    U is the number of different g; each g has its own rows and its own sums. u_n is f_n / m_n. For two classes it is
    the number (f_n1 - f_n0) / m_n, so that J = 1; otherwise J = K.
    """

    prevalence: Tensor  # (U, K) the g at which the sums were taken
    weight: Tensor  # (U,) Σ w
    log_likelihood: Tensor  # (U,) Σ w log m
    first: Tensor | None = None  # (U, J) Σ w u
    second: Tensor | None = None  # (U, J, J) Σ w u uᵀ

    @property
    def sums(self) -> tuple[Tensor, ...]:
        """The sums that were computed, log-likelihood first."""
        return tuple(total for total in (self.log_likelihood, self.first, self.second) if total is not None)

    @property
    def slope(self) -> Tensor:
        """Σ w f / m, (U, K): the derivative of the log-likelihood with respect to g."""
        assert self.first is not None
        if self.first.shape[1] > 1:
            return self.first
        return self.weight[:, None] + self.first * binary_direction(self.prevalence)

    @property
    def curvature(self) -> Tensor:
        """Σ w f fᵀ / m², (U, K, K): minus the second derivative of the log-likelihood with respect to g."""
        assert self.second is not None
        assert self.first is not None
        if self.first.shape[1] > 1:
            return self.second
        along = binary_direction(self.prevalence)
        cross = (self.first * along)[:, :, None].expand(-1, -1, 2)
        outer = along[:, :, None] * along[:, None, :]
        return self.weight[:, None, None] + cross + cross.transpose(1, 2) + self.second * outer

    @property
    def logit_slope(self) -> Tensor:
        """Σ w (p - g) along the contrasts, (U, K-1): the derivative with respect to the logits of g (equation 7a)."""
        assert self.first is not None
        if self.first.shape[1] == 1:
            return 2**0.5 * self.prevalence.prod(1, keepdim=True) * self.first
        residual = self.prevalence * (self.first - self.weight[:, None])
        return residual @ contrasts(residual.shape[1], residual.device)

    @property
    def logit_information(self) -> Tensor:
        """The observed information about the logits of g along the contrasts, (U, K-1, K-1) (equation 7a)."""
        assert self.first is not None
        assert self.second is not None
        g = self.prevalence
        if self.first.shape[1] == 1:
            both = g.prod(1)[:, None, None]
            lean = (g[:, 1] - g[:, 0])[:, None, None]
            return 2 * both * (lean * self.first[:, :, None] + both * self.second)
        basis = contrasts(g.shape[1], g.device)
        missing = torch.diag_embed(g * self.first) - g[:, :, None] * g[:, None, :] * self.second
        return basis.T @ (self.weight[:, None, None] * softmax_hessian(g) - missing) @ basis

    @property
    def logit_gram(self) -> Tensor:
        """Σ w (p - g)(p - g)ᵀ along the contrasts, (U, K-1, K-1): the outer products of the rows' scores."""
        assert self.first is not None
        assert self.second is not None
        g = self.prevalence
        if self.first.shape[1] == 1:
            return 2 * g.prod(1)[:, None, None] ** 2 * self.second
        basis = contrasts(g.shape[1], g.device)
        ones = self.first[:, :, None].expand_as(self.second)
        centred = self.second - ones - ones.transpose(1, 2) + self.weight[:, None, None]
        return basis.T @ (g[:, :, None] * g[:, None, :] * centred) @ basis


def binary_direction(prevalence: Tensor) -> Tensor:
    """Return (-g_1, g_0), (U, 2). For two classes, f / m = 1 + (-g_1, g_0) (f_1 - f_0) / m."""
    return torch.stack([-prevalence[:, 1], prevalence[:, 0]], dim=1)


def moments_of(ratio: Tensor, weight: Tensor, prevalence: Tensor) -> Moments:
    """Compute the sums over rows (equation 7c) for many g (B, K) at once, each with its own weights (B, n).

    `ratio` is (n, J) if all g share the same rows, otherwise (B, n, J). For more than two classes it is f, with J = K.
    For two classes it is f_1 - f_0, with J = 1 and f_0 + f_1 = 1.
    """

    def add_up(values: Tensor) -> Tensor:
        """Return the sum over n of values (B, n) times `ratio`, (B, J)."""
        return values @ ratio if ratio.ndim == 2 else (values[:, None] @ ratio)[:, 0]

    if ratio.shape[-1] == 1:
        lean = (prevalence[:, 1] - prevalence[:, 0])[:, None]
        mixed = (lean * ratio[..., 0]).add_(1.0).mul_(0.5)
    else:
        mixed = prevalence @ ratio.T if ratio.ndim == 2 else (ratio @ prevalence[:, :, None])[:, :, 0]
    log_likelihood = torch.linalg.vecdot(weight, mixed.log())
    relative = weight / mixed
    first = add_up(relative)
    relative.div_(mixed)
    second = torch.stack([add_up(relative * ratio[..., j]) for j in range(ratio.shape[-1])], dim=1)
    return Moments(prevalence, weight.sum(1), log_likelihood, first, second)
