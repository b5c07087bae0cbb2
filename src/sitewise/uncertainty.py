"""Intervals for an estimated g, given f: curvature of the observed likelihood, and its fall where a bound is near.

A curvature knows the covariance of g at rows of z and of its mean over the site; see docs/maths.md, section 11.
"""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

import torch
from torch import Tensor

from sitewise.prevalence.linear import contrasts, spread

NEAR_A_BOUND = 3.0  # standard errors
BISECTIONS = 60


@dataclass(frozen=True)
class LinearCurvature:
    """Covariance of g whose logits are linear in features of z."""

    features: Callable[[Tensor], Tensor]
    log_prob: Callable[[Tensor], Tensor]
    coefficient_covariance: Tensor  # (P, P), P = D (K-1)
    grouped_covariance: Tensor | None  # the same with rows of one group alike
    site_codes: Tensor  # (U, V)
    site_share: Tensor  # (U,)

    def at(self, codes: Tensor) -> Tensor:
        """Covariance of g(z), (n, K, K)."""
        return self._carry(self._jacobian(codes))

    def of_mean(self) -> Tensor:
        """Covariance of the site's mean of g given its rows, (K, K)."""
        return self._carry(self.mean_jacobian())

    def mean_jacobian(self) -> Tensor:
        """Derivative (K, P) of the site's mean of g."""
        design, basis, slope = self._pieces(self.site_codes)
        weighted = torch.einsum("u,ukl,ud->kdl", self.site_share, slope @ basis, design)
        return weighted.reshape(len(weighted), -1)

    def easiest(self, share: Tensor, label: int) -> Tensor:
        """How g at the site's rows (U, K) moves where the mean of `label` rises at the least loss of likelihood."""
        design, basis, slope = self._pieces(self.site_codes)
        step = self.coefficient_covariance @ self.mean_jacobian()[label]
        return ((design @ step.reshape(design.shape[1], -1) @ basis.T)[:, None, :] @ slope)[:, 0]

    def _carry(self, jacobian: Tensor) -> Tensor:
        plain = jacobian @ self.coefficient_covariance @ jacobian.transpose(-1, -2)
        if self.grouped_covariance is None:
            return plain
        return at_least(jacobian @ self.grouped_covariance @ jacobian.transpose(-1, -2), plain)

    def _jacobian(self, codes: Tensor) -> Tensor:
        design, basis, slope = self._pieces(codes)
        return torch.einsum("nkl,nd->nkdl", slope @ basis, design).reshape(len(codes), slope.shape[1], -1)

    def _pieces(self, codes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        probability = self.log_prob(codes).exp()
        return self.features(codes), contrasts(probability.shape[1], codes.device), spread(probability)


@dataclass(frozen=True)
class CellCurvature:
    """Covariance of g that is a free distribution in each cell of z (one cell: a constant g).

    Given the level that cells are shrunk to they are estimated independently; `pull` is how each follows that level.
    """

    covariance: Tensor  # (C, K, K) given the level
    pull: Tensor  # (C, K, K) derivative of a cell's g in the level
    level_covariance: Tensor  # (K, K)
    mean_covariance: Tensor  # (K, K)
    agreement: Callable[[Tensor], Tensor]  # codes (n, V) -> (n, C) weights of the cells a row is averaged over

    def at(self, codes: Tensor) -> Tensor:
        """Covariance of g(z), (n, K, K)."""
        share = self.agreement(codes)
        own = torch.einsum("nc,ckl->nkl", share**2, self.covariance)
        pull = torch.einsum("nc,ckl->nkl", share, self.pull)
        return own + pull @ self.level_covariance @ pull.transpose(1, 2)

    def of_mean(self) -> Tensor:
        """Covariance of the site's mean of g given its rows, (K, K)."""
        return self.mean_covariance

    def easiest(self, share: Tensor, label: int) -> Tensor:
        """How g in the cells (C, K) moves where their mean of `label` rises at the least loss of likelihood."""
        return share[:, None] * self.covariance[:, label]


Curvature = LinearCurvature | CellCurvature


def simplex_covariance(information: Tensor, free: Tensor) -> Tensor:
    """Invert information (C, K, K) about probabilities over free classes, along the directions that keep their sum."""
    n_classes = information.shape[1]
    covariance = torch.zeros_like(information)
    for pattern in torch.unique(free, dim=0):
        classes = pattern.nonzero().flatten()
        if len(classes) < 2:
            continue
        cells = (free == pattern).all(dim=1).nonzero().flatten()
        tangent = torch.zeros(n_classes, len(classes) - 1, dtype=information.dtype, device=information.device)
        tangent[classes] = contrasts(len(classes), information.device)
        inverse = invert_information(tangent.T @ information[cells] @ tangent)
        covariance[cells] = tangent @ inverse @ tangent.T
    return covariance


def invert_information(information: Tensor) -> Tensor:
    """Invert symmetric matrices; a direction the data says nothing about gets a very large variance, never NaN."""
    values, vectors = torch.linalg.eigh(information)
    floor = 1e-12 * values.abs().amax(-1, keepdim=True).clamp_min(1e-12)
    inverse: Tensor = vectors @ (vectors.transpose(-1, -2) / torch.maximum(values, floor)[..., None])
    return inverse


def sum_by(values: Tensor, labels: Tensor) -> Tensor:
    """Add rows (n, ...) up over equal labels (n,), in the order of the sorted labels."""
    distinct, index = torch.unique(labels, return_inverse=True)
    return values.new_zeros(len(distinct), *values.shape[1:]).index_add_(0, index, values)


def gram(rows: Tensor, weight: Tensor, groups: Tensor | None) -> Tensor:
    """Σ_n w_n r_n r_nᵀ of rows (n, P); with groups of their sums, and no variance below the one without groups.

    The sums of G groups that add up to nothing have G - 1 degrees of freedom; one group alone says nothing of how
    groups differ.
    """
    plain = rows.T @ (weight[:, None] * rows)
    factor = group_factor(groups)
    if groups is None or factor == 0.0:
        return plain
    sums = sum_by(weight[:, None] * rows, groups)
    return at_least(factor * sums.T @ sums, plain)


def group_factor(groups: Tensor | None) -> float:
    """G / (G - 1) for G groups, by which sums of squares over few groups are too small; zero where there is but one."""
    n_groups = 0 if groups is None else len(torch.unique(groups))
    return n_groups / (n_groups - 1) if n_groups > 1 else 0.0


def at_least(covariance: Tensor, floor: Tensor) -> Tensor:
    """Raise the variances of `covariance` (..., K, K) to those of `floor`, in every direction."""
    short, directions = torch.linalg.eigh(floor - covariance)
    raised: Tensor = covariance + (directions * short.clamp_min(0.0)[..., None, :]) @ directions.transpose(-1, -2)
    return raised


def normal_interval(probability: Tensor, variance: Tensor, level: float) -> tuple[Tensor, Tensor]:
    """The normal interval on the scale of probabilities, cut off at 0 and 1."""
    error = NormalDist().inv_cdf(0.5 + level / 2) * variance.clamp_min(0).sqrt()
    return (probability - error).clamp_min(0.0), (probability + error).clamp_max(1.0)


def logit_interval(probability: Tensor, variance: Tensor, level: float) -> tuple[Tensor, Tensor]:
    """The normal interval on the log-odds scale, so that it stays inside [0, 1]."""
    inside = (probability * (1 - probability)).clamp_min(1e-300)
    error = NormalDist().inv_cdf(0.5 + level / 2) * variance.clamp_min(0).sqrt() / inside
    odds = torch.logit(probability)
    fixed = (probability <= 0) | (probability >= 1)
    low = torch.where(fixed, probability, torch.sigmoid(odds - error))
    return low, torch.where(fixed, probability, torch.sigmoid(odds + error))


def mirror(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """With two classes (..., 2), let what is said of the one be said of the other as well."""
    if low.shape[-1] != 2:
        return low, high
    return torch.minimum(low, 1 - high.flip(-1)), torch.maximum(high, 1 - low.flip(-1))


def near_a_bound(probability: Tensor, variance: Tensor) -> Tensor:
    """Tell where an estimate is so close to 0 or 1 that curvature alone would mislead."""
    error = variance.clamp_min(0).sqrt().clamp_min(1e-9)  # at the bound itself curvature sees no variance at all
    return torch.minimum(probability, 1 - probability) < NEAR_A_BOUND * error


@dataclass(frozen=True)
class Fall:
    """How far g (U, K) may move before the likelihood falls by more than a χ² quantile.

    `inflation` widens what is allowed where rows come in groups.
    """

    log_likelihood: Callable[[Tensor], Tensor]
    prevalence: Tensor  # (U, K)
    level: float
    inflation: float

    def farthest(self, path: Callable[[float], Tensor]) -> float:
        """The largest amount in [0, 1] that the likelihood allows along a path of g that starts at the estimate."""
        drop = self.inflation * NormalDist().inv_cdf(0.5 + self.level / 2) ** 2 / 2
        best = self.log_likelihood(self.prevalence)

        def allowed(amount: float) -> bool:
            return bool(best - self.log_likelihood(path(amount)) <= drop)

        if allowed(1.0):
            return 1.0
        inside, outside = 0.0, 1.0
        for _ in range(BISECTIONS):
            middle = (inside + outside) / 2
            inside, outside = (middle, outside) if allowed(middle) else (inside, middle)
        return inside

    def mixing(self, share: Tensor, label: int) -> tuple[float, float]:
        """How much of class `label` may be taken out, and how much certainty of it mixed in, where `share` is not 0."""
        moved = (share > 0).to(self.prevalence.dtype)[:, None]
        return (
            self.farthest(lambda amount: take_out(self.prevalence, label, amount * moved)),
            self.farthest(lambda amount: mix_in(self.prevalence, label, amount * moved)),
        )

    def along(self, direction: Tensor, share: Tensor, label: int) -> tuple[Tensor, Tensor]:
        """The lowest and highest mean of class `label` that is allowed along a direction of g, (U, K)."""
        reach = direction / (share @ direction[:, label])  # one unit moves the mean from bound to bound

        def path(amount: float) -> Tensor:
            moved = (self.prevalence + amount * reach).clamp_min(0.0)
            total = moved.sum(1, keepdim=True)
            return torch.where(total > 0, moved / total, self.prevalence)

        down, up = self.farthest(lambda amount: path(-amount)), self.farthest(path)
        return share @ path(-down)[:, label], share @ path(up)[:, label]


def take_out(prevalence: Tensor, label: int, amount: float | Tensor) -> Tensor:
    """Take a share of class `label` out of g (n, K) and scale the rest up."""
    reduced = prevalence.clone()
    reduced[:, label : label + 1] *= 1 - amount
    total = reduced.sum(1, keepdim=True)
    return torch.where(total > 0, reduced / total, prevalence)


def mix_in(prevalence: Tensor, label: int, amount: float | Tensor) -> Tensor:
    """Mix certainty of class `label` into g (n, K)."""
    certain = torch.zeros_like(prevalence)
    certain[:, label] = 1.0
    return prevalence + amount * (certain - prevalence)


def likelihood_interval(
    fall: Fall, share: Tensor, label: int, direction: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The values of the mean (by `share`) of class `label` that the likelihood does not rule out.

    g is moved by mixing the class in and out, the same in all rows with a share in the mean; and, where classes may
    be swapped for each other, along the `direction` (U, K) of least loss that curvature knows.
    """
    out, into = fall.mixing(share, label)
    low = share @ take_out(fall.prevalence, label, out)[:, label]
    high = share @ mix_in(fall.prevalence, label, into)[:, label]
    if direction is None:
        return low, high
    other_low, other_high = fall.along(direction, share, label)
    return torch.minimum(low, other_low), torch.maximum(high, other_high)
