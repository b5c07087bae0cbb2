"""The answer of an estimation: a site's g with its certificate, in the caller's container, and its intervals."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from sitewise.adaptation.evidence import Evidence
from sitewise.adaptation.fit import Fit
from sitewise.arrays import (
    Container,
    distinct_rows,
    index_of,
)
from sitewise.confounders import Confounders, Notes
from sitewise.prevalence import ConstantPrevalence, Prevalence
from sitewise.uncertainty import (
    CellCurvature,
    Fall,
    LinearCurvature,
    gram,
    likelihood_interval,
    logit_interval,
    mirror,
    mix_in,
    near_a_bound,
    normal_interval,
    sum_by,
    take_out,
)

NO_Z = (
    "log_prevalence: expected Z with a row for each answer, got None; pass NaN where nothing is known of a row, "
    "or use .marginal"
)


@dataclass(frozen=True)
class PrevalenceEstimate:
    """A site's estimated g, with its certificate and its intervals.

    Attributes
    ----------
    marginal : (K,) estimate of P(Y) at the site, the weighted mean of g over the adaptation rows.
    model, strength : which model of g, and how strongly it is shrunk (rows a cell for "table", ridge for "additive").
    converged, gap, n_iter, trace : the solver's certificate. The gap is the KKT gap for "constant" and "table", the
        largest gradient entry per row otherwise; the trace is the penalized log-likelihood at every iteration.
    log_likelihood : the observed log-likelihood at the estimate, for log-ratios scaled to sum to one in each row.
    notes : how many values of z were clipped or unseen.
    """

    model: str
    strength: float
    converged: bool
    gap: float
    n_iter: int
    log_likelihood: float
    trace: list[float] = field(repr=False)
    notes: Notes = field(repr=False)
    prevalence: Prevalence = field(repr=False)
    confounders: Confounders | None = field(repr=False)
    _fit: Fit = field(repr=False)
    _evidence: Evidence = field(repr=False)
    _container: Container = field(repr=False)

    @cached_property
    def marginal(self) -> Any:
        """Estimate of P(Y) at the site, (K,)."""
        return self._container.classes(self._mean)

    def log_prevalence(self, Z: Any) -> Any:
        """Estimate of log P(Y|Z), (n, K); missing parts of Z are averaged out, all of Z missing gives the marginal."""
        if Z is None:
            raise ValueError(NO_Z)
        return self._container.rows(self.prevalence.log_prob(self._encode(Z)), index_of(Z))

    def interval(self, Z: Any = None, level: float = 0.95) -> tuple[Any, Any]:
        """Pointwise interval for P(Y), two (K,), or for P(Y|Z), two (n, K): of the population, given f."""
        if not 0 < level < 1:
            raise ValueError(f"interval: level must lie between 0 and 1, got {level}")
        if Z is None:
            low, high = self._marginal_interval(level)
            return self._container.classes(low), self._container.classes(high)
        distinct, inverse = distinct_rows(self._encode(Z))
        low, high = self._conditional_interval(distinct, level)
        return self._container.rows(low[inverse], index_of(Z)), self._container.rows(high[inverse], index_of(Z))

    @cached_property
    def _mean(self) -> Tensor:
        if isinstance(self.prevalence, ConstantPrevalence) or not len(self._evidence.weight):
            return self.prevalence.log_prob(self._evidence.ratio.new_zeros(1, 0))[0].exp()
        return self._evidence.mean(self.prevalence.log_prob(self._evidence.codes).exp())

    def _encode(self, Z: Any) -> Tensor:
        device = self._evidence.ratio.device
        if self.confounders is None:
            return torch.zeros(len(Z), 0, dtype=torch.float64, device=device)
        return self.confounders.encode(Z, device)[0]

    @cached_property
    def _site(self) -> Evidence:
        """The evidence as this model of g sees it."""
        is_constant = isinstance(self.prevalence, ConstantPrevalence)
        return self._evidence.without_confounders() if is_constant else self._evidence

    @cached_property
    def _at_rows(self) -> Tensor:
        """The estimated g at the site's distinct rows of z, (U, K)."""
        return self.prevalence.log_prob(self._site.codes).exp()

    @cached_property
    def _mean_variance(self) -> Tensor:
        """The variance of the marginal, (K,)."""
        sampling = _sampling_covariance(self._site, self._at_rows)
        return torch.diagonal(self._fit.curvature.of_mean() + sampling)

    @property
    def _share(self) -> Tensor:
        return self._site.cell_weight / self._site.weight.sum()

    def _fall(self, level: float) -> Fall:
        return Fall(self._site.log_likelihood, self._at_rows, level, _group_inflation(self._evidence))

    def _marginal_interval(self, level: float) -> tuple[Tensor, Tensor]:
        if not self._fit.identified:
            return torch.zeros_like(self._mean), torch.ones_like(self._mean)
        return self._with_bounds(self._mean, self._mean_variance, self._share, level)

    def _conditional_interval(self, codes: Tensor, level: float) -> tuple[Tensor, Tensor]:
        probability = self.prevalence.log_prob(codes).exp()
        if not self._fit.identified:
            return torch.zeros_like(probability), torch.ones_like(probability)
        curvature = self._fit.curvature
        variance = torch.diagonal(curvature.at(codes), dim1=1, dim2=2)
        low, high = logit_interval(probability, variance, level)
        if isinstance(curvature, LinearCurvature):
            self._mix_near_bounds(low, high, probability, variance, level)
            low, high = mirror(low, high)
        blank = self._blank(codes)
        if blank.any():
            low[blank], high[blank] = self._marginal_interval(level)
        if isinstance(curvature, CellCurvature):
            for row in (~blank).nonzero().flatten().tolist():
                share = curvature.agreement(codes[row : row + 1])[0]
                low[row], high[row] = self._with_bounds(probability[row], variance[row], share, level)
        return low, high

    def _blank(self, codes: Tensor) -> Tensor:
        """Tell which rows have the marginal for their g, (n,)."""
        if self.confounders is None or isinstance(self.prevalence, ConstantPrevalence):
            return torch.ones(len(codes), dtype=torch.bool, device=codes.device)
        return self.confounders.missing(codes).all(dim=1)

    def _with_bounds(self, probability: Tensor, variance: Tensor, share: Tensor, level: float) -> tuple[Tensor, Tensor]:
        """Curvature where the estimate is well inside, the likelihood's own fall where a bound is near."""
        low, high = logit_interval(probability, variance, level)
        for label in near_a_bound(probability, variance).nonzero().flatten().tolist():
            # With two classes mixing is all that can happen; among more, some may stand in for each other.
            direction = self._fit.curvature.easiest(share, label) if len(probability) > 2 else None
            if direction is not None and not float(share @ direction[:, label]) > 0:
                direction = None
            low[label], high[label] = likelihood_interval(self._fall(level), share, label, direction)
        return mirror(low, high)

    def _mix_near_bounds(self, low: Tensor, high: Tensor, probability: Tensor, variance: Tensor, level: float) -> None:
        """Widen and narrow, in place, intervals at rows and of classes that are near a bound as the marginal is.

        Log-odds say nothing there: the interval holds what the amount of mixing that the marginal allows makes of g(z),
        and the normal interval on the scale of probabilities.
        """
        close = near_a_bound(probability, variance) & near_a_bound(self._mean, self._mean_variance)
        plain_low, plain_high = normal_interval(probability, variance, level)
        for label in close.any(dim=0).nonzero().flatten().tolist():
            rows = close[:, label]
            out, into = self._fall(level).mixing(self._share, label)
            lowest = torch.minimum(take_out(probability, label, out), plain_low)
            highest = torch.maximum(mix_in(probability, label, into), plain_high)
            low[rows, label], high[rows, label] = lowest[rows, label], highest[rows, label]


def _sampling_covariance(evidence: Evidence, at_rows: Tensor) -> Tensor:
    """Covariance (K, K) of the site's mean of g from having seen these z and not others."""
    deviation = (at_rows - evidence.mean(at_rows))[evidence.cell]
    groups = None if evidence.groups is None else evidence.groups[: len(deviation)]
    return gram(deviation, evidence.weight, groups) / evidence.weight.sum() ** 2


def _group_inflation(evidence: Evidence) -> float:
    """By how much groups of entirely alike rows would widen a variance: their weighted mean size."""
    if evidence.groups is None or len(torch.unique(evidence.groups)) == 1:
        return 1.0
    sizes = sum_by(torch.cat([evidence.weight, evidence.blank_weight]), evidence.groups)
    return max(1.0, float((sizes**2).sum() / sizes.sum()))
