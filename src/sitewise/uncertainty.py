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
    site_codes: Tensor  # (U, V)
    site_share: Tensor  # (U,)

    def at(self, codes: Tensor) -> Tensor:
        """Covariance of g(z), (n, K, K)."""
        jacobian = self._jacobian(codes)
        return jacobian @ self.coefficient_covariance @ jacobian.transpose(1, 2)

    def of_mean(self) -> Tensor:
        """Covariance of the site's mean of g given its rows, (K, K)."""
        jacobian = self.mean_jacobian()
        return jacobian @ self.coefficient_covariance @ jacobian.T

    def mean_jacobian(self) -> Tensor:
        """Derivative (K, P) of the site's mean of g."""
        design, basis, slope = self._pieces(self.site_codes)
        weighted = torch.einsum("u,ukl,ud->kdl", self.site_share, slope @ basis, design)
        return weighted.reshape(len(weighted), -1)

    def _jacobian(self, codes: Tensor) -> Tensor:
        design, basis, slope = self._pieces(codes)
        return torch.einsum("nkl,nd->nkdl", slope @ basis, design).reshape(len(codes), slope.shape[1], -1)

    def _pieces(self, codes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        probability = self.log_prob(codes).exp()
        return self.features(codes), contrasts(probability.shape[1], codes.device), spread(probability)


@dataclass(frozen=True)
class CellCurvature:
    """Covariance of g that is a free distribution in each cell of z (one cell: a constant g)."""

    covariance: Tensor  # (C, K, K)
    mean_covariance: Tensor  # (K, K)
    agreement: Callable[[Tensor], Tensor]  # codes (n, V) -> (n, C) weights of the cells a row is averaged over

    def at(self, codes: Tensor) -> Tensor:
        """Covariance of g(z), (n, K, K): cells are estimated independently."""
        return torch.einsum("nc,ckl->nkl", self.agreement(codes) ** 2, self.covariance)

    def of_mean(self) -> Tensor:
        """Covariance of the site's mean of g given its rows, (K, K)."""
        return self.mean_covariance


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


def logit_interval(probability: Tensor, variance: Tensor, level: float) -> tuple[Tensor, Tensor]:
    """The normal interval on the log-odds scale, so that it stays inside [0, 1]."""
    inside = (probability * (1 - probability)).clamp_min(1e-300)
    error = NormalDist().inv_cdf(0.5 + level / 2) * variance.clamp_min(0).sqrt() / inside
    odds = torch.logit(probability)
    fixed = (probability <= 0) | (probability >= 1)
    low = torch.where(fixed, probability, torch.sigmoid(odds - error))
    return low, torch.where(fixed, probability, torch.sigmoid(odds + error))


def near_a_bound(probability: Tensor, variance: Tensor) -> Tensor:
    """Tell where an estimate is so close to 0 or 1 that curvature alone would mislead."""
    error = variance.clamp_min(0).sqrt().clamp_min(1e-9)  # at the bound itself curvature sees no variance at all
    return torch.minimum(probability, 1 - probability) < NEAR_A_BOUND * error


def likelihood_interval(
    log_likelihood: Callable[[Tensor], Tensor],
    prevalence: Tensor,
    share: Tensor,
    label: int,
    level: float,
    inflation: float,
) -> tuple[Tensor, Tensor]:
    """The values of the mean of class `label` that the likelihood does not rule out (its fall against a χ² quantile).

    `prevalence` (U, K) is moved up by mixing certainty of the class in, and down by taking a share of the class out,
    the same in all rows with a `share` in the mean. `inflation` widens the interval where rows come in groups.
    """
    drop = inflation * NormalDist().inv_cdf(0.5 + level / 2) ** 2 / 2
    best = log_likelihood(prevalence)
    certain = torch.zeros_like(prevalence)
    certain[:, label] = 1.0
    moved = (share > 0).to(prevalence.dtype)[:, None]

    def up(amount: float) -> Tensor:
        return prevalence + amount * moved * (certain - prevalence)

    def down(amount: float) -> Tensor:
        reduced = prevalence - amount * moved * prevalence * certain
        total = reduced.sum(1, keepdim=True)
        return torch.where(total > 0, reduced / total, prevalence)

    def farthest(path: Callable[[float], Tensor]) -> Tensor:
        inside, outside = 0.0, 1.0
        if best - log_likelihood(path(1.0)) <= drop:
            inside = 1.0
        else:
            for _ in range(BISECTIONS):
                middle = (inside + outside) / 2
                if best - log_likelihood(path(middle)) <= drop:
                    inside = middle
                else:
                    outside = middle
        return share @ path(inside)[:, label]

    return farthest(down), farthest(up)
