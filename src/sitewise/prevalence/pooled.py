"""The g of all training sites together: the typical site's, and how far sites lie from it, variable by variable.

An empirical-Bayes prior for a new site's g (equation 13): its coefficients are the typical site's, give or take the
spread between sites.
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

RIDGE = 1.0  # on the typical site's coefficients, so that columns no site speaks of stay finite
START = 1.0  # τ² of every variable at first
FLOOR = 1e-4  # of τ²: log-odds that differ by 0.01 from site to site are as good as the same
KNOCKOUT = 0.5
LIMIT = 200
SPREAD_TOLERANCE = 1e-2  # log-likelihood units that a unit of log τ² may still promise
COEFFICIENT_TOLERANCE = 1e-7  # largest gradient entry per row
HALVINGS = 30
ROUNDING = 1e-12

NOT_CONVERGED = (
    "the spread between sites did not settle in {limit} steps (gap {gap:.1e}, wanted {wanted:.0e}): "
    "leave out confounders of which the sites say little, or join their rare levels"
)


def pool_sites(targets: Tensor, codes: Tensor, weight: Tensor, site: Tensor, schema: Confounders) -> SitePrior:
    """Fit the typical g and its spread to soft labels (n, K) of rows at the sites numbered by `site` (n,).

    Rows of weight zero count for nothing, nor do sites that have no others.
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
            spread=start.new_full((len(schema.variables) + 1,), START),
        )
    )
    coefficients = pool.typical.reshape(len(owner), -1) @ basis.T
    typical = complete(AdditivePrevalence(schema, coefficients, together.log_marginal), targets, codes, weight)
    level = (2.0 * pool.spread[0]).reshape(1).expand(len(sites))  # of log-odds between two classes
    return SitePrior(
        typical, level_scale=student_scale(level, USUAL_LEVEL), deviation=shrunk(pool.spread[owner], len(sites))
    )


def shrunk(variance: Tensor, n_sites: int) -> Tensor:
    """Variances between sites, the usual one counting as much as two sites."""
    return (USUAL_SITES * USUAL_DEVIATION**2 + n_sites * variance) / (USUAL_SITES + n_sites)


def owners(schema: Confounders) -> Tensor:
    """Which spread each feature has, (D,): 0 for the level, j + 1 for all features of variable j."""
    ends = [0, *missing_features(schema)]
    widths = torch.tensor([1, *(end - before for before, end in pairwise(ends))])
    return torch.arange(len(widths)).repeat_interleave(widths)


def complete(model: AdditivePrevalence, targets: Tensor, codes: Tensor, weight: Tensor) -> AdditivePrevalence:
    """Fit what the typical g says where z is missing to what it says itself of the rows that agree (equation 9).

    Their labels would not do: big sites would move the missing columns, and only them, to their own level.
    """
    data = aggregate(targets, codes, weight)
    own = torch.softmax(features(data.codes, model.schema) @ model.coefficients, dim=1)
    data = replace(data, totals=data.weight[:, None] * own)
    marginal = finite((data.totals.sum(0) / data.weight.sum()).log())
    return fit_missing_columns(replace(model, log_marginal=marginal), data, KNOCKOUT)


@dataclass(frozen=True)
class SiteRows:
    """A site's distinct rows of z: features (U, D), weighted soft labels (U, K), weight (U,)."""

    design: Tensor
    totals: Tensor
    weight: Tensor

    def log_prob(self, flat: Tensor) -> Tensor:
        """log g at the distinct rows for flat coefficients (P,), (U, K)."""
        basis = contrasts(self.totals.shape[1], flat.device)
        return torch.log_softmax(self.design @ flat.reshape(self.design.shape[1], -1) @ basis.T, dim=1)

    def derivatives(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        """Slope (P,) and information (P, P): the derivatives of minus the log-likelihood."""
        probability = self.log_prob(flat).exp()
        residual = self.weight[:, None] * probability - self.totals
        slope = self.design.T @ residual @ contrasts(self.totals.shape[1], flat.device)
        return slope.reshape(-1), information(self.design, self.weight, probability)


def site_rows(targets: Tensor, codes: Tensor, weight: Tensor, schema: Confounders) -> SiteRows:
    """Add a site's rows up over equal z, its labels smoothed so that one class alone stays finite."""
    data = aggregate(smooth(targets, weight, SMOOTHING), codes, weight)
    return SiteRows(features(data.codes, schema), data.totals, data.weight)


@dataclass(frozen=True)
class Pool:
    """Where the estimation stands, in flat coefficients (P,), P = D (K-1)."""

    sites: list[SiteRows]
    owner: Tensor  # (P,) which spread each coefficient has
    typical: Tensor  # (P,) B
    deviations: Tensor  # (E, P) Δ_e
    spread: Tensor  # (V + 1,) τ²

    @property
    def precision(self) -> Tensor:
        """1/τ² of every coefficient, (P,)."""
        return 1.0 / self.spread[self.owner]

    @property
    def ridge(self) -> Tensor:
        """The penalty on every coefficient of B, (P,): none on the level."""
        return torch.where(self.owner == 0, 0.0, RIDGE).to(self.typical)

    @property
    def value(self) -> float:
        """Minus the penalized log-likelihood of B and all Δ_e."""
        fit = sum((rows.totals * rows.log_prob(self.typical + d)).sum() for rows, d in self.pairs())
        penalty = (self.precision * self.deviations**2).sum() + self.ridge @ self.typical**2
        return float(0.5 * penalty - fit)

    def pairs(self) -> Iterator[tuple[SiteRows, Tensor]]:
        """Each site's rows with its Δ_e."""
        return zip(self.sites, self.deviations, strict=True)


@dataclass(frozen=True)
class Look:
    """Slope and curvature of the pool's value, site by site, and what Laplace's approximation makes of them (13a)."""

    slopes: Tensor  # (E, P) of minus the site's log-likelihood
    covariances: list[Tensor]  # (P, P) V_e, of Δ_e given B
    follows: list[Tensor]  # (P, P) V_e J_e: where B moves by one, Δ_e moves back by this
    typical_covariance: Tensor  # (P, P) Σ, of B


def look(pool: Pool) -> Look:
    """Take slopes and information J_e of all sites; of B a site tells J_e V_e/τ² = (J_e⁻¹ + τ²)⁻¹."""
    slopes, covariances, follows = [], [], []
    told = torch.diag(pool.ridge)
    for rows, deviation in pool.pairs():
        slope, known = rows.derivatives(pool.typical + deviation)
        covariance = invert(known + torch.diag(pool.precision))
        slopes.append(slope)
        covariances.append(covariance)
        follows.append(covariance @ known)
        told = told + follows[-1].T * pool.precision
    return Look(torch.stack(slopes), covariances, follows, invert((told + told.T) / 2))


def estimate(pool: Pool) -> Pool:
    """Move the coefficients and τ² by turns, until neither has anything to gain."""
    for _ in range(LIMIT):
        view = look(pool)
        settled = coefficient_gap(pool, view) <= COEFFICIENT_TOLERANCE
        pool = move_coefficients(pool, view)
        squares, freedom = deviation_sizes(pool, view)
        gap = spread_gap(pool.spread, squares, freedom)
        if gap > SPREAD_TOLERANCE:
            pool = replace(pool, spread=next_spread(pool.spread, squares, freedom))
        elif settled:
            return pool
    warnings.warn(NOT_CONVERGED.format(limit=LIMIT, gap=gap, wanted=SPREAD_TOLERANCE), stacklevel=4)
    return pool


def gradients(pool: Pool, view: Look) -> tuple[Tensor, Tensor]:
    """The derivative of the pool's value in B (P,) and in every Δ_e (E, P)."""
    return pool.ridge * pool.typical + view.slopes.sum(0), pool.precision * pool.deviations + view.slopes


def coefficient_gap(pool: Pool, view: Look) -> float:
    """The largest entry of the gradient per row."""
    typical, deviations = gradients(pool, view)
    largest = torch.maximum(typical.abs().max(), deviations.abs().max())
    return float(largest / sum(rows.weight.sum() for rows in pool.sites))


def move_coefficients(pool: Pool, view: Look) -> Pool:
    """Take Newton's step in B and all Δ_e at once, halved until it loses no ground."""
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


def deviation_sizes(pool: Pool, view: Look) -> tuple[Tensor, Tensor]:
    """For each spread (V + 1,): Σ Δ² over sites and coefficients, and how many of these the data decide.

    A coefficient counts as 1 - U/τ², U its variance given the data: V_e, and what the uncertainty of B adds to it.
    """
    freedom = torch.zeros_like(pool.typical)
    for covariance, follows in zip(view.covariances, view.follows, strict=True):
        left = covariance.diagonal() + ((follows @ view.typical_covariance) * follows).sum(1)
        freedom += 1.0 - left * pool.precision
    none = torch.zeros_like(pool.spread)
    squares = (pool.deviations**2).sum(0)
    return none.index_add(0, pool.owner, squares), none.index_add(0, pool.owner, freedom)


def next_spread(spread: Tensor, squares: Tensor, freedom: Tensor) -> Tensor:
    """τ² = ΣΔ² / freedom (equation 13b); it stays where the data decide nothing."""
    return torch.where(freedom > 1e-9, squares / freedom.clamp_min(1e-9), spread).clamp_min(FLOOR)


def spread_gap(spread: Tensor, squares: Tensor, freedom: Tensor) -> float:
    """The largest slope of the marginal log-likelihood in log τ²; a spread at its floor may want to fall further."""
    slope = 0.5 * (squares / spread - freedom)
    return float(slope.masked_fill((spread <= FLOOR) & (slope < 0), 0.0).abs().max())


def invert(matrix: Tensor) -> Tensor:
    """The inverse of a positive definite matrix."""
    return torch.cholesky_inverse(torch.linalg.cholesky(matrix))
