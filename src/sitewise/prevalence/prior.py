"""What the training sites say about the g of a new one: the prior of its posterior (section 18 of docs/maths.md)."""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from sitewise.confounders import Confounders
from sitewise.posterior import combine
from sitewise.prevalence.base import Prevalence

FREEDOM = 3.0  # degrees of freedom of the level's Student prior: heavy tails, so that rows can outvote it
USUAL_LEVEL = 1.5  # scale of the level between sites, in log-odds
USUAL_FACTOR = 0.7  # standard deviation of the factor on the source's shape: the relation may vanish or flip
USUAL_DEVIATION = 0.3  # standard deviation of a coefficient's deviation between sites, in log-odds
USUAL_SLOPE = 0.3  # standard deviation of the log of f's slope between sites
USUAL_SITES = 1.0  # what these usual sizes are worth, in sites
FACTOR_SITES = 2.0  # and that of the factor: relations flip where levels hardly differ


@dataclass(frozen=True)
class SitePrior:
    """The source's g, how far a new site's may differ from it, and how far a new site's rows are believed.

    Attributes
    ----------
    prevalence : Prevalence
        g of the source, whose centred log is the shape over z.
    level_scale : float
        Scale of the level's Student prior, in log-odds between two classes.
    factor_scale : float
        Standard deviation of the factor on the shape, around one.
    deviation : Tensor or None
        (D,) variances of the coefficients of an additive deviation from the shape; None takes the usual ones.
    slope : float
        How sharp log f still is at an unseen site: a factor on log f, in predictions only.
    slope_scale : float
        Standard deviation of the log of that factor between sites, which labels of a new site tell; zero where f is
        taken as given.
    level_error : float
        Standard deviation of a level estimated at an unseen site beyond its sampling error.
    trusted_rows : float
        The number of rows beyond which more of them tell nothing new; zero where rows are not believed at all.
    wide_trusted_rows : float
        The same where a site is said to differ more than the training sites do (`widened`).
    averaged : bool
        Whether predictions are averaged over the prior where rows are not believed at all; otherwise they are those of
        the model as trained.
    n_source : float
        Labelled rows (or groups) that calibrated f; infinite where f is taken as given.
    missing : float
        The share of a label's information that f does not carry.
    """

    prevalence: Prevalence
    level_scale: float = USUAL_LEVEL
    factor_scale: float = USUAL_FACTOR
    deviation: Tensor | None = field(default=None, repr=False)
    slope: float = 1.0
    slope_scale: float = 0.0
    level_error: float = 0.0
    trusted_rows: float = float("inf")
    wide_trusted_rows: float = float("inf")
    averaged: bool = True
    n_source: float = float("inf")
    missing: float = 1.0
    name: str = "prior"

    @property
    def schema(self) -> Confounders | None:
        """The schema of z, where g depends on it."""
        return getattr(self.prevalence, "schema", None)

    def log_prob(self, codes: Tensor) -> Tensor:
        """log g of the source at rows of codes."""
        return self.prevalence.log_prob(codes)

    def widened(self, level_scale: float) -> "SitePrior":
        """The prior of a site whose level may lie so far from that of the training sites."""
        wide = level_scale > self.level_scale
        trusted = max(self.trusted_rows, self.wide_trusted_rows) if wide else self.trusted_rows
        return replace(self, level_scale=level_scale, trusted_rows=trusted)

    def tempering(self, n_rows: float) -> float:
        """The power in [0, 1] of the likelihood of so many unlabeled rows: f's own error and rehearsed trust (18c)."""
        if not self.trusted_rows:
            return 0.0
        return 1.0 / (1.0 + n_rows * (self.missing / self.n_source + 1.0 / self.trusted_rows))


def missing_information(log_ratio: Tensor, log_prevalence: Tensor, weight: Tensor) -> float:
    """The share of a label's information that f does not carry: E[1 - Σ p²] / E[1 - Σ g²], at most 1 (18b)."""
    unexplained, whole = (
        weight @ (1.0 - at.exp().square().sum(dim=1)) for at in (combine(log_ratio, log_prevalence), log_prevalence)
    )
    return float((unexplained / whole.clamp_min(torch.finfo(whole.dtype).tiny)).clamp(0.0, 1.0))


def student_scale(squares: Tensor, usual: float, *, usual_sites: float = USUAL_SITES) -> float:
    """The scale of Student's distribution that squared deviations (E,) come from, by maximum likelihood.

    `usual` counts as much as `usual_sites` of them.
    """
    variance = usual**2
    for _ in range(200):  # EM for the scale of a scale mixture of normals
        share = (FREEDOM + 1.0) / (FREEDOM + squares / variance)
        after = (usual_sites * usual**2 + float((share * squares).sum())) / (usual_sites + len(squares))
        if abs(after - variance) <= 1e-12 * after:
            break
        variance = after
    return float(after) ** 0.5 if len(squares) else usual
