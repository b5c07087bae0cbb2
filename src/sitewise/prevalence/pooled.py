"""A hierarchical model of g at the training sites: the g of a typical site, and a variance between sites per variable.

It gives an empirical-Bayes prior of a new site's g (equation 13): the coefficients are normal around those of the
typical site, B, with the variances between sites, τ². Δ_e is the deviation of site e from B.
"""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from sitewise.confounders import Confounders
from sitewise.posterior import contrasts
from sitewise.prevalence.additive import (
    AdditivePrevalence,
    features,
    fit_additive,
    fit_missing_columns,
    missing_features,
)
from sitewise.prevalence.base import SMOOTHING, aggregate, finite, smooth
from sitewise.prevalence.linear import information
from sitewise.prevalence.prior import USUAL_DEVIATION, USUAL_LEVEL, USUAL_SITES, SitePrior, student_scale

RIDGE = 1.0  # on the typical site's coefficients, so that they stay finite if no row determines them
START = 1.0  # initial τ² of every variable
FLOOR = 1e-4  # of τ²: a standard deviation of 0.01 in log-odds between sites is negligible
KNOCKOUT = 0.5
LIMIT = 200
VARIANCE_TOLERANCE = 1e-2  # of the largest derivative of the marginal log-likelihood in log τ²
COEFFICIENT_TOLERANCE = 1e-7  # of the largest entry of the gradient, divided by the number of rows
HALVINGS = 30
ROUNDING = 1e-12

NOT_CONVERGED = (
    "the variance between sites did not converge in {limit} iterations (gap {gap:.1e}, wanted {wanted:.0e}): "
    "leave out confounders with few known values, or merge their rare levels"
)


def pool_sites(targets: Tensor, codes: Tensor, weight: Tensor, site: Tensor, schema: Confounders) -> SitePrior:
    """Fit the typical g and the variances between sites to soft labels (n, K) of rows; `site` (n,) is each row's site.

    Rows of weight zero are ignored.
    """
    seen = weight > 0
    targets, codes, weight, site = targets[seen], codes[seen], weight[seen], site[seen]
    basis = contrasts(targets.shape[1], targets.device)
    owner = owners(schema).to(codes.device)
    sites = [site_rows(targets[site == s], codes[site == s], weight[site == s], schema) for s in torch.unique(site)]
    together = fit_additive(targets, codes, weight, schema, strength=RIDGE)
    start = (together.coefficients @ basis).reshape(-1)
    pool = estimate(
        Pool(
            sites,
            owner.repeat_interleave(basis.shape[1]),
            typical=start,
            deviations=start.new_zeros(len(sites), len(start)),
            variance=start.new_full((len(schema.variables) + 1,), START),
        )
    )
    coefficients = pool.typical.reshape(len(owner), -1) @ basis.T
    typical = complete(AdditivePrevalence(schema, coefficients, together.log_marginal), targets, codes, weight)
    level = (2.0 * pool.variance[0]).reshape(1).expand(len(sites))  # variance of log-odds between two classes
    return SitePrior(
        typical, level_scale=student_scale(level, USUAL_LEVEL), deviation=shrunk(pool.variance[owner], len(sites))
    )


def shrunk(variance: Tensor, n_sites: int) -> Tensor:
    """Shrink variances between sites to the usual variance, which counts as `USUAL_SITES` sites."""
    return (USUAL_SITES * USUAL_DEVIATION**2 + n_sites * variance) / (USUAL_SITES + n_sites)


def owners(schema: Confounders) -> Tensor:
    """Return the index of the τ² of each feature, (D,): 0 for the intercept, j + 1 for all features of variable j."""
    ends = [0, *missing_features(schema)]
    widths = torch.tensor([1, *(end - before for before, end in pairwise(ends))])
    return torch.arange(len(widths)).repeat_interleave(widths)


def complete(model: AdditivePrevalence, targets: Tensor, codes: Tensor, weight: Tensor) -> AdditivePrevalence:
    """Fit the missing columns of the typical g to its own predictions, on rows with parts of z hidden (equation 9).

    They are not fitted to labels, because large sites would then shift the missing columns, but no other coefficients,
    to their own level.
    """
    data = aggregate(targets, codes, weight)
    own = torch.softmax(features(data.codes, model.schema) @ model.coefficients, dim=1)
    data = replace(data, totals=data.weight[:, None] * own)
    marginal = finite((data.totals.sum(0) / data.weight.sum()).log())
    return fit_missing_columns(replace(model, log_marginal=marginal), data, KNOCKOUT)


@dataclass(frozen=True)
class SiteRows:
    """The U distinct values of z at a site: their D features (U, D), weighted soft labels (U, K) and weights (U,)."""

    design: Tensor
    totals: Tensor
    weight: Tensor

    def log_prob(self, flat: Tensor) -> Tensor:
        """Return log g at the distinct z, (U, K), for flattened coefficients (P,), P = D (K-1)."""
        basis = contrasts(self.totals.shape[1], flat.device)
        return torch.log_softmax(self.design @ flat.reshape(self.design.shape[1], -1) @ basis.T, dim=1)

    def derivatives(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        """Return gradient (P,) and Hessian (P, P) of minus the log-likelihood of the labels."""
        probability = self.log_prob(flat).exp()
        residual = self.weight[:, None] * probability - self.totals
        slope = self.design.T @ residual @ contrasts(self.totals.shape[1], flat.device)
        return slope.reshape(-1), information(self.design, self.weight, probability)


def site_rows(targets: Tensor, codes: Tensor, weight: Tensor, schema: Confounders) -> SiteRows:
    """Sum a site's rows over equal z; labels are smoothed, so that log g is finite even if only one class occurs."""
    data = aggregate(smooth(targets, weight, SMOOTHING), codes, weight)
    return SiteRows(features(data.codes, schema), data.totals, data.weight)


@dataclass(frozen=True)
class Pool:
    """The state of the estimation for E sites and V variables, with flattened coefficients (P,), P = D (K-1)."""

    sites: list[SiteRows]
    owner: Tensor  # (P,) index of each coefficient's variance
    typical: Tensor  # (P,) B
    deviations: Tensor  # (E, P) Δ_e
    variance: Tensor  # (V + 1,) τ²

    @property
    def precision(self) -> Tensor:
        """1/τ² of every coefficient, (P,)."""
        return 1.0 / self.variance[self.owner]

    @property
    def ridge(self) -> Tensor:
        """The penalty on every coefficient of B, (P,); zero for the intercept."""
        return torch.where(self.owner == 0, 0.0, RIDGE).to(self.typical)

    @property
    def value(self) -> float:
        """Minus the penalized log-likelihood of B and all Δ_e."""
        fit = sum((rows.totals * rows.log_prob(self.typical + d)).sum() for rows, d in self.pairs())
        penalty = (self.precision * self.deviations**2).sum() + self.ridge @ self.typical**2
        return float(0.5 * penalty - fit)

    def pairs(self) -> Iterator[tuple[SiteRows, Tensor]]:
        """Return an iterator of each site's rows and Δ_e."""
        return zip(self.sites, self.deviations, strict=True)


@dataclass(frozen=True)
class Laplace:
    """Gradients of the log-likelihood of each of E sites, and covariances of Laplace's approximation (equation 13a)."""

    slopes: Tensor  # (E, P) gradients of minus each site's log-likelihood
    covariances: list[Tensor]  # (P, P) V_e|B, the covariance of Δ_e given B
    follows: list[Tensor]  # (P, P) V_e|B J_e: minus the derivative of the best Δ_e in B
    typical_covariance: Tensor  # (P, P) V_B, the covariance of B


def laplace(pool: Pool) -> Laplace:
    """Compute the gradients and covariances of all sites; a site's information about B is (J_e⁻¹ + τ²)⁻¹."""
    slopes, covariances, follows = [], [], []
    typical_information = torch.diag(pool.ridge)
    for rows, deviation in pool.pairs():
        slope, own_information = rows.derivatives(pool.typical + deviation)
        covariance = invert(own_information + torch.diag(pool.precision))
        slopes.append(slope)
        covariances.append(covariance)
        follows.append(covariance @ own_information)
        typical_information = typical_information + follows[-1].T * pool.precision
    typical_covariance = invert((typical_information + typical_information.T) / 2)
    return Laplace(torch.stack(slopes), covariances, follows, typical_covariance)


def estimate(pool: Pool) -> Pool:
    """Update the coefficients and τ² in turn, until the gaps of both are below their tolerances."""
    for _ in range(LIMIT):
        view = laplace(pool)
        settled = coefficient_gap(pool, view) <= COEFFICIENT_TOLERANCE
        pool = move_coefficients(pool, view)
        squares, freedom = deviation_sizes(pool, view)
        gap = variance_gap(pool.variance, squares, freedom)
        if gap > VARIANCE_TOLERANCE:
            pool = replace(pool, variance=next_variance(pool.variance, squares, freedom))
        elif settled:
            return pool
    warnings.warn(NOT_CONVERGED.format(limit=LIMIT, gap=gap, wanted=VARIANCE_TOLERANCE), stacklevel=4)
    return pool


def gradients(pool: Pool, view: Laplace) -> tuple[Tensor, Tensor]:
    """Return the derivatives of the pool's value in B (P,) and in every Δ_e (E, P)."""
    return pool.ridge * pool.typical + view.slopes.sum(0), pool.precision * pool.deviations + view.slopes


def coefficient_gap(pool: Pool, view: Laplace) -> float:
    """Return the largest entry of the gradient, divided by the weight of all rows."""
    typical, deviations = gradients(pool, view)
    largest = torch.maximum(typical.abs().max(), deviations.abs().max())
    return float(largest / sum(rows.weight.sum() for rows in pool.sites))


def move_coefficients(pool: Pool, view: Laplace) -> Pool:
    """Take Newton's step in B and all Δ_e at once; it is halved until the pool's value does not increase."""
    pull, own_pulls = gradients(pool, view)
    for follows, own_pull in zip(view.follows, own_pulls, strict=True):
        pull = pull - follows.T @ own_pull
    step = -view.typical_covariance @ pull
    own_steps = torch.stack(
        [
            -covariance @ own_pull - follows @ step
            for covariance, follows, own_pull in zip(view.covariances, view.follows, own_pulls, strict=True)
        ]
    )
    before = pool.value
    for halvings in range(HALVINGS):
        share = 0.5**halvings
        moved = replace(pool, typical=pool.typical + share * step, deviations=pool.deviations + share * own_steps)
        if moved.value <= before + ROUNDING * abs(before):
            return moved
    return pool


def deviation_sizes(pool: Pool, view: Laplace) -> tuple[Tensor, Tensor]:
    """Return, for each variance, Σ Δ² over sites and coefficients, and its effective degrees of freedom, (V + 1,) each.

    A coefficient of a site has 1 - V_e/τ² degrees of freedom, where V_e is the variance of its Δ_e given the data. It
    includes the uncertainty of B (equation 13a).
    """
    freedom = torch.zeros_like(pool.typical)
    for covariance, follows in zip(view.covariances, view.follows, strict=True):
        left = covariance.diagonal() + ((follows @ view.typical_covariance) * follows).sum(1)
        freedom += 1.0 - left * pool.precision
    none = torch.zeros_like(pool.variance)
    squares = (pool.deviations**2).sum(0)
    return none.index_add(0, pool.owner, squares), none.index_add(0, pool.owner, freedom)


def next_variance(variance: Tensor, squares: Tensor, freedom: Tensor) -> Tensor:
    """Return τ² = Σ Δ² / freedom (equation 13b); a variance about which the data have no information is unchanged."""
    return torch.where(freedom > 1e-9, squares / freedom.clamp_min(1e-9), variance).clamp_min(FLOOR)


def variance_gap(variance: Tensor, squares: Tensor, freedom: Tensor) -> float:
    """Return the gap of equation 13b: the largest derivative of the marginal log-likelihood in log τ².

    A derivative that would lower a variance at its lower limit is ignored.
    """
    slope = 0.5 * (squares / variance - freedom)
    return float(slope.masked_fill((variance <= FLOOR) & (slope < 0), 0.0).abs().max())


def invert(matrix: Tensor) -> Tensor:
    """Return the inverse of a positive definite matrix."""
    return torch.cholesky_inverse(torch.linalg.cholesky(matrix))
