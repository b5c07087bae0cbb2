"""The prior of a new site's g, learned from the training sites (section 18 of docs/maths.md)."""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from sitewise.confounders import Confounders
from sitewise.posterior import combine
from sitewise.prevalence.base import Prevalence

FREEDOM = 3.0  # degrees of freedom of the level's Student prior; the tails are heavy, so that many rows can overrule it
USUAL_LEVEL = 1.5  # default scale of the level between sites, in log-odds
USUAL_FACTOR = 0.7  # default standard deviation of the factor on the source's shape, which may be zero or negative
USUAL_DEVIATION = 0.3  # default standard deviation of a coefficient between sites, in log-odds
USUAL_SLOPE = 0.3  # default scale of the log of f's slope between sites
USUAL_SITES = 1.0  # the number of sites for which a default counts
FACTOR_SITES = 2.0  # the same for the factor: it may be negative even if the levels of sites hardly differ


@dataclass(frozen=True)
class SitePrior:
    """The prior of a new site's g: the source's g, scales of a site's difference from it, and limits of trust in rows.

    The source is the training sites. g of a new site is modeled by three parts (equation 18f of docs/maths.md): the
    *level*, K numbers added to log g at all z; the *shape*, which says how log g of the source depends on z, times a
    *factor*; and a *deviation* from this shape, which is additive in features of z.

    Parameters
    ----------
    prevalence : Prevalence
        g of the source. Its log, centred over the classes, is the shape.
    level_scale : float
        Scale of the Student prior of the level, in log-odds of two classes.
    factor_scale : float
        Standard deviation of the normal prior of the factor, whose mean is one.
    deviation : Tensor of shape (D,), optional
        Prior variances of the coefficients of the deviation, one for each of D features of z; by default 0.3² each.
    slope : float
        The typical calibration slope of log f at sites that training has not seen: predictions use log f times this
        slope. It is not used in the likelihood of unlabeled rows.
    slope_scale : float
        Scale of the Student prior of log(slope at the new site / `slope`). It is used only at a site with labels,
        because only labels inform about its slope. Zero if f is taken as given.
    level_error : float
        Standard deviation, in log-odds of two classes, of the error that an estimated level has at sites that training
        has not seen, in addition to its sampling error.
    trusted_rows : float
        The largest number of rows for which all unlabeled rows of a site together can count. Zero: unlabeled rows are
        not used.
    wide_trusted_rows : float
        The value of `trusted_rows` for a site that may differ more than the training sites do; `widened` puts it in
        place.
    averaged : bool
        Only relevant if unlabeled rows are not used. If true, predictions are averaged over the prior. If false, they
        are those of the model as trained.
    n_source : float
        The effective number of labeled rows (or groups) on which f was calibrated; infinite if f is taken as given.
    missing : float
        The share of a label's information about g that is missing if only x and z are known (equation 18b).
    name : str
        The name of this kind of g, as every g has one.

    Examples
    --------
    >>> prior = pool_prevalence(y, Z, site)      # from the labels and sites of the training rows
    >>> estimate = estimate_prevalence(log_ratio_new, Z_new, prior=prior)
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
        """The schema of z; None if g of the source does not depend on z."""
        return getattr(self.prevalence, "schema", None)

    def log_prob(self, codes: Tensor) -> Tensor:
        """Return log g of the source.

        Parameters
        ----------
        codes : Tensor of shape (n, V)
            Codes of z, as `schema.encode` returns them.

        Returns
        -------
        Tensor of shape (n, K)
            log P(y|z) at the source.
        """
        return self.prevalence.log_prob(codes)

    def widened(self, level_scale: float) -> "SitePrior":
        """Return the prior with another scale of the level.

        Parameters
        ----------
        level_scale : float
            The new scale of the Student prior of the level, in log-odds.

        Returns
        -------
        SitePrior
            The same prior with the new scale. If this scale is larger than that of the original prior, `trusted_rows`
            is raised to `wide_trusted_rows`, unless it is higher already.
        """
        wide = level_scale > self.level_scale
        trusted = max(self.trusted_rows, self.wide_trusted_rows) if wide else self.trusted_rows
        return replace(self, level_scale=level_scale, trusted_rows=trusted)

    def tempering(self, n_rows: float) -> float:
        """Return the exponent to which the likelihood of a site's unlabeled rows is raised (κ of equation 18c).

        It accounts for the error of f and for the limit `trusted_rows`. Rows are taken as independent: with groups, the
        exponent would be smaller.

        Parameters
        ----------
        n_rows : float
            The number of unlabeled rows, or the sum of their weights.

        Returns
        -------
        float
            The exponent, from 0 to 1.
        """
        if not self.trusted_rows:
            return 0.0
        return 1.0 / (1.0 + n_rows * (self.missing / self.n_source + 1.0 / self.trusted_rows))


def missing_information(log_ratio: Tensor, log_prevalence: Tensor, weight: Tensor) -> float:
    """Return the share of a label's information that is missing: E[1 - Σ p²] / E[1 - Σ g²], at most 1 (18b)."""
    unexplained, whole = (
        weight @ (1.0 - at.exp().square().sum(dim=1)) for at in (combine(log_ratio, log_prevalence), log_prevalence)
    )
    return float((unexplained / whole.clamp_min(torch.finfo(whole.dtype).tiny)).clamp(0.0, 1.0))


def student_scale(squares: Tensor, usual: float, *, usual_sites: float = USUAL_SITES) -> float:
    """Estimate the scale of a Student distribution from squared deviations (E,) by maximum likelihood.

    The usual scale `usual` counts as `usual_sites` further deviations.
    """
    variance = usual**2
    for _ in range(200):  # EM for the scale of a scale mixture of normals
        share = (FREEDOM + 1.0) / (FREEDOM + squares / variance)
        after = (usual_sites * usual**2 + float((share * squares).sum())) / (usual_sites + len(squares))
        if abs(after - variance) <= 1e-12 * after:
            break
        variance = after
    return float(after) ** 0.5 if len(squares) else usual
