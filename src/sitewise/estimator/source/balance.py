"""The balance of f: at every z its mean over source rows must be the same for all classes (section 18), and its error.

Of a weak f little is left once g_s(z) is divided out, and an error of g_s is large beside that little: an f out of
balance looks like another prevalence, at the source itself and wherever it goes.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from sitewise.calibration import centre
from sitewise.confounders import Confounders
from sitewise.estimator.source.held_out import ENOUGH_TO_CALIBRATE, HeldOut, calibrate_rows
from sitewise.estimator.source.splitting import evenly
from sitewise.posterior import combine
from sitewise.prevalence import Prevalence, SourcePrevalence, excess_between_sites, missing_information
from sitewise.prevalence.additive import features, ridge
from sitewise.prevalence.linear import contrasts, fit_linear
from sitewise.prevalence.source import level_spread

RIDGE = 0.01
SITE_RIDGE = 1.0  # on how a site's g differs from that of all
LEAST_SLOPE = 0.1  # of log f, below which there is nothing to balance
ROWS = 100_000  # are enough
ROUNDS = 3  # in which the slope of a balanced f and the balance at that slope find each other


@dataclass(frozen=True)
class Balance:
    """log h(z) = Σ of one term for each variable, for rows that have all of z; others are left as they are."""

    schema: Confounders
    coefficients: Tensor  # (D, K), each row sums to zero

    def log_mean(self, codes: Tensor) -> Tensor:
        """log h at rows of codes, (n, K), what is to be taken from log f."""
        lacking = self.schema.missing(codes).any(dim=1, keepdim=True)
        return torch.where(lacking, 0.0, features(codes, self.schema) @ self.coefficients)


def fit_balance(held: HeldOut, schema: Confounders | None, n_classes: int) -> Balance | None:
    """h(z), the mean of f at z among labeled rows (equation 18a); None where too few of them have all of z.

    g and h are fitted to the very same labels, so that their noise, which is much more than f says where f is weak,
    does not count.
    """
    if schema is None or not len(held.y):
        return None
    finite = torch.isfinite(held.raw_log_ratio).all(dim=1).nonzero().flatten()
    rows = finite[evenly(len(finite), ROWS)]
    y, weight, codes, raw = held.y[rows], held.weight[rows], held.codes[rows], centre(held.raw_log_ratio[rows])
    if int(torch.bincount(y, minlength=n_classes).min()) < ENOUGH_TO_CALIBRATE:
        return None
    totals = one_hot(y, n_classes).double() * weight[:, None]
    design, basis = features(codes, schema), contrasts(n_classes)
    penalty = ridge(RIDGE, design.shape[1])

    def fitted(offset: Tensor) -> Tensor:
        return fit_linear(totals, weight, design, penalty, offset).point.reshape(design.shape[1], -1) @ basis.T

    log_g = torch.log_softmax(design @ fitted(torch.zeros_like(raw)), dim=1)
    lacking = torch.zeros(design.shape[1], n_classes, dtype=torch.float64)
    for _ in range(ROUNDS):
        balanced = raw + design @ lacking
        slope = calibrate_rows(balanced, log_g, y, weight, "temperature", n_classes).slope[0]
        if float(slope) < LEAST_SLOPE:
            return None
        lacking = fitted(slope * raw + log_g) / slope
    return Balance(schema, -lacking)


def describe_source(
    held: HeldOut, log_ratio: Tensor, pooled: Prevalence, schema: Confounders | None
) -> SourcePrevalence:
    """The source's g with what held-out rows tell of f's error, in general and between sites (18b, 18d)."""
    log_g = pooled.log_prob(held.codes)
    missing = missing_information(log_ratio, log_g, held.weight)
    between = 0.0
    if held.site is not None and len(torch.unique(held.site)) > 1:
        scores = site_scores(held, log_ratio, log_g, schema)
        n_classes = log_g.shape[1]
        parts = (scores[:, : n_classes - 1], scores)  # the level may differ where all else agrees
        between = max(excess_between_sites(part, held.site, held.weight, missing) for part in parts)
    spread, n_sites = site_levels(held, log_g)
    return SourcePrevalence(pooled, float(min(len(held.y), ROWS)), missing, between, spread, n_sites)


def site_levels(held: HeldOut, log_g: Tensor) -> tuple[float, int]:
    """How far the level differs between sites from what g of all of them says at their z, and how many they are."""
    site = torch.zeros_like(held.y) if held.site is None else torch.unique(held.site, return_inverse=True)[1]
    shape = (int(site.max()) + 1, log_g.shape[1])
    labels = one_hot(held.y, shape[1]).double() * held.weight[:, None]
    counts, expected = (
        log_g.new_zeros(shape).index_add_(0, site, part) for part in (labels, log_g.exp() * held.weight[:, None])
    )
    return level_spread(counts, expected), shape[0]


def site_scores(held: HeldOut, log_ratio: Tensor, log_g: Tensor, schema: Confounders | None) -> Tensor:
    """The derivative of each held-out row's log-likelihood (7a) at its own site's g, (n, P), the level's first."""
    assert held.site is not None
    n_classes = log_g.shape[1]
    basis = contrasts(n_classes)
    design = torch.ones_like(held.weight)[:, None] if schema is None else features(held.codes, schema)
    totals = one_hot(held.y, n_classes).double() * held.weight[:, None]
    penalty = ridge(SITE_RIDGE, design.shape[1])
    found = torch.empty(len(held.y), design.shape[1] * (n_classes - 1), dtype=torch.float64)
    for number in torch.unique(held.site).tolist():
        rows = (held.site == number).nonzero().flatten()
        parts = (totals[rows], held.weight[rows], design[rows], penalty, log_g[rows])
        own = fit_linear(*parts).point.reshape(design.shape[1], -1) @ basis.T
        log_own = torch.log_softmax(log_g[rows] + design[rows] @ own, dim=1)
        wrong = (combine(log_ratio[rows], log_own).exp() - log_own.exp()) @ basis
        found[rows] = (design[rows][:, :, None] * wrong[:, None, :]).flatten(1)
    return found
