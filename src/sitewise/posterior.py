"""The mathematics: equations 1, 3 and 7 of docs/maths.md on plain tensors. No I/O, no randomness, no device.

Shapes: `log_ratio` and `log_prevalence` are (n, K), or (K,) where they are the same for every row. What solvers and
intervals ask of the rows are `Moments`, sums over those that share one g; equation 8 is solved with them in
`adaptation/cell_problem.py`.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


def normalize(log_ratio: Tensor) -> Tensor:
    """Fix the free factor of f (equation 1): scale every row so that its ratios sum to one.

    A constant added to a row thus changes nothing. A row with +inf is certain of those classes; a row of -inf
    only says nothing at all, for it is the row of zeros with -inf added.
    """
    certain = log_ratio == torch.inf
    log_ratio = torch.where(certain.any(-1, keepdim=True), torch.where(certain, 0.0, -torch.inf), log_ratio)
    silent = (log_ratio == -torch.inf).all(-1, keepdim=True)
    return torch.log_softmax(torch.where(silent, 0.0, log_ratio), dim=-1)


def combine(log_ratio: Tensor, log_prevalence: Tensor) -> Tensor:
    """Log P(y|x,z), equation 3: log-softmax of log f + log g.

    Where f and g contradict each other (each class impossible to one of them) f decides: g is an estimate.
    """
    joint = log_ratio + log_prevalence
    contradiction = (joint == -torch.inf).all(-1, keepdim=True)
    return torch.log_softmax(torch.where(contradiction, log_ratio, joint), dim=-1)


def contrasts(n_classes: int, device: torch.device | None = None) -> Tensor:
    """An orthonormal (K, K-1) basis of the vectors that sum to zero (Helmert's)."""
    columns = torch.zeros(n_classes, n_classes - 1, dtype=torch.float64, device=device)
    for j in range(1, n_classes):
        columns[:j, j - 1] = -1.0 / math.sqrt(j * (j + 1))
        columns[j, j - 1] = j / math.sqrt(j * (j + 1))
    return columns


def spread(probability: Tensor) -> Tensor:
    """diag(p) - p pᵀ for every row, (n, K, K): the curvature of log-softmax."""
    return torch.diag_embed(probability) - probability[:, :, None] * probability[:, None, :]


@dataclass(frozen=True)
class Moments:
    """Sums over rows of one z at some g, with m_n = Σ_y f_ny g_y (equation 7c).

    u_n is f_n / m_n, and of two classes (f_n1 - f_n0) / m_n: then all sums are of numbers, not of vectors.
    """

    prevalence: Tensor  # (U, K) where they were taken
    weight: Tensor  # (U,) Σ w
    log_likelihood: Tensor  # (U,) Σ w log m
    first: Tensor | None = None  # (U, J) Σ w u
    second: Tensor | None = None  # (U, J, J) Σ w u uᵀ

    @property
    def sums(self) -> tuple[Tensor, ...]:
        """Those there are, log-likelihood first."""
        return tuple(part for part in (self.log_likelihood, self.first, self.second) if part is not None)

    @property
    def slope(self) -> Tensor:
        """Σ w f / m, (U, K): the derivative of the log-likelihood in g."""
        assert self.first is not None
        if self.first.shape[1] > 1:
            return self.first
        return self.weight[:, None] + self.first * binary_direction(self.prevalence)

    @property
    def curvature(self) -> Tensor:
        """Σ w f fᵀ / m², (U, K, K): minus its second derivative."""
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
        """Σ w (p - g) along the contrasts, (U, K-1): the derivative in the logits of g (equation 7a)."""
        assert self.first is not None
        if self.first.shape[1] == 1:
            return 2**0.5 * self.prevalence.prod(1, keepdim=True) * self.first
        residual = self.prevalence * (self.first - self.weight[:, None])
        return residual @ contrasts(residual.shape[1], residual.device)

    @property
    def logit_information(self) -> Tensor:
        """Minus the second derivative in the logits of g, along the contrasts, (U, K-1, K-1) (equation 7a)."""
        assert self.first is not None
        assert self.second is not None
        g = self.prevalence
        if self.first.shape[1] == 1:
            both = g.prod(1)[:, None, None]
            lean = (g[:, 1] - g[:, 0])[:, None, None]
            return 2 * both * (lean * self.first[:, :, None] + both * self.second)
        basis = contrasts(g.shape[1], g.device)
        missing = torch.diag_embed(g * self.first) - g[:, :, None] * g[:, None, :] * self.second
        return basis.T @ (self.weight[:, None, None] * spread(g) - missing) @ basis

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
    """(-g_1, g_0): of two classes f / m = 1 + (-g_1, g_0) (f_1 - f_0) / m."""
    return torch.stack([-prevalence[:, 1], prevalence[:, 0]], dim=1)


def moments_of(ratio: Tensor, weight: Tensor, prevalence: Tensor) -> Moments:
    """Sums over rows (equation 7c) for many g (B, K) at once, each with weights (B, n) of its own.

    `ratio` is (n, J) where the rows are the same for all, or (B, n, J).
    """

    def add_up(values: Tensor) -> Tensor:
        """Σ_n of values (B, n) times f, (B, J)."""
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
