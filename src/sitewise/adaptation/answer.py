"""The result of an estimation: a site's g, its convergence diagnostics and its intervals."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import cached_property
from html import escape
from numbers import Integral
from typing import Any

import torch
from sklearn.utils import check_random_state
from torch import Tensor

from sitewise.adaptation.bootstrap import NO_REFIT, NOT_IN_MEMORY, DrawnPrevalence, Resamples, bootstrap_fit, rescored
from sitewise.adaptation.draws import Drawn, PrevalenceDraws, draw_fits, draw_refits
from sitewise.adaptation.evidence import Evidence
from sitewise.adaptation.families import FAMILIES, Family
from sitewise.adaptation.fit import Fit, no_curvature
from sitewise.adaptation.rows import Rows
from sitewise.arrays import Container, Problems, distinct_rows, index_of, read_matrix
from sitewise.calibration import Calibration
from sitewise.confounders import Confounders
from sitewise.confounders.variables import Notes
from sitewise.posterior import combine, normalize
from sitewise.prevalence.base import Prevalence, is_constant
from sitewise.uncertainty import (
    Average,
    CellCurvature,
    ConstantFall,
    Fall,
    allowed_drop,
    at_least,
    likelihood_ends,
    logit_interval,
    mirror,
    mix_in,
    mixing,
    near_a_bound,
    normal_interval,
    take_out,
)

METHODS = ("auto", "curvature", "bootstrap")
N_REFITS = 200  # bootstrap refits from which a family without curvature has its intervals and draws
AT_BOUND = 1e-9
NO_Z = (
    "log_prevalence: expected Z with one row for each row of the result, got None; use NaN for missing values, "
    "or use .marginal"
)


@dataclass(frozen=True)
class PrevalenceEstimate:
    """A site's estimated g, with convergence diagnostics and intervals.

    `marginal` (K,) is the estimate of P(Y) at the site: the weighted mean of g over the rows from which g was
    estimated.

    Parameters
    ----------
    model : str
        The family of g; "posterior" if the estimate is the posterior of section 18 of docs/maths.md.
    strength : float
        How strongly g is shrunk: the number of pseudo-rows in each cell of "constant" and "table", or the ridge penalty
        of "additive". NaN for a posterior.
    converged : bool
        Whether the gap is below the solver's tolerance. For a posterior, `converged`, `gap` and `n_iter` are about the
        fit of its deviation.
    gap : float
        How far the estimate is from the optimum: for "constant" and "table", the KKT gap of equation 8; for families
        that are only fitted by EM, the largest change of g in the last iteration; otherwise the largest entry of the
        gradient, divided by the number of rows.
    n_iter : int
        The number of iterations.
    log_likelihood : float
        The observed log-likelihood (equation 7) at the estimate, with f scaled to sum to one in each row.
    trace : list of float
        The penalized log-likelihood at every iteration; for a posterior, `log_likelihood` only.
    notes : Notes
        How many values of z were clipped or unseen, and which columns were absent or ignored.
    prevalence : Prevalence
        The estimated g. Its method `log_prob` returns log g for codes of z.
    confounders : Confounders or None
        The schema of z; None if g was estimated without z.

    Examples
    --------
    >>> estimate = estimate_prevalence(log_ratio, Z)
    >>> estimate.marginal, estimate.interval()
    >>> probabilities = estimate.predict_proba(log_ratio, Z)
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

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields for pickle; cached results are left out and computed again when needed."""
        return {part.name: getattr(self, part.name) for part in fields(self)}

    def __repr__(self) -> str:
        head = f"prevalence by {self.model} g" + ("" if self.converged else " (NOT converged)")
        return "\n".join([head, *(f"  {line}" for line in self._lines)])

    def _repr_html_(self) -> str:
        head = f"<p>prevalence by {escape(self.model)} g{'' if self.converged else ' (NOT converged)'}</p>"
        return f"{head}<ul>{''.join(f'<li>{escape(line)}</li>' for line in self._lines)}</ul>"

    @property
    def _lines(self) -> list[str]:
        """P(class) of every class, with its interval if neither another pass over rows nor a bootstrap is needed."""
        names = range(len(self._mean)) if self._container.columns is None else self._container.columns
        lines = [f"P({name}) = {share:.4f}" for name, share in zip(names, self._mean.tolist(), strict=True)]
        if not (self._evidence.in_memory and self.has_curvature):
            return lines
        bounds = zip(*(bound.tolist() for bound in self._marginal_interval(0.95)), strict=True)
        return [
            f"{line}, 95% interval {low:.4f} to {high:.4f}" for line, (low, high) in zip(lines, bounds, strict=True)
        ]

    @cached_property
    def marginal(self) -> Any:
        """Estimate of P(Y) at the site, (K,)."""
        return self._container.classes(self._mean)

    @cached_property
    def at_bound(self) -> Any:
        """Whether the estimated P(Y) of each class is zero, (K,). `interval()` has upper bounds for these classes."""
        return self._container.classes(self._mean < AT_BOUND)

    def log_prevalence(self, Z: Any) -> Any:
        """Return the estimate of log P(Y|Z).

        Parameters
        ----------
        Z : DataFrame or array of shape (n, V)
            Confounders, NaN where missing.

        Returns
        -------
        array of shape (n, K)
            log P(Y|Z) of each row of Z. For a row with missing values, it is log P(Y) given the known values; for a row
            without known values, it is the log of `marginal`.
        """
        if Z is None:
            raise ValueError(NO_Z)
        return self._container.rows(self.prevalence.log_prob(self._encode(Z)), index_of(Z))

    def interval(
        self,
        Z: Any = None,
        level: float = 0.95,
        *,
        method: str = "auto",
        n_resamples: int = 500,
        calibration: Calibration | None = None,
        random_state: Any = None,
    ) -> tuple[Any, Any]:
        """Compute intervals for P(Y) or P(Y|Z) of the population, one for each class.

        Parameters
        ----------
        Z : DataFrame or array of shape (n, V), optional
            Confounders: for each row of Z, the intervals for P(Y|Z) are computed. If it is not given, the intervals are
            for P(Y).
        level : float
            Confidence level of the intervals.
        method : {"auto", "curvature", "bootstrap"}
            "curvature": for a posterior, quantiles of it. For other estimates, an interval by the curvature of the
            log-likelihood at the estimate, or, if the estimate is near 0 or 1, by the decrease of the log-likelihood;
            intervals for P(Y|Z) include the uncertainty of the choice of the model. "bootstrap": by resamples of the
            rows (see `bootstrap`). "auto": "curvature" if `has_curvature`, otherwise by 200 bootstrap resamples with a
            fixed seed, which are computed once.
        n_resamples : int
            The number of resamples of "bootstrap".
        calibration : Calibration, optional
            The calibration that was applied to `log_ratio`, with resamples of its own. It requires
            `method="bootstrap"`; the intervals then include the uncertainty of the calibration. Without it f is taken
            as given, except that intervals of a posterior include the error of f.
        random_state : int, RandomState or None
            Seed of "bootstrap".

        Returns
        -------
        low : array of shape (K,) or (n, K)
            The lower bounds.
        high : array of shape (K,) or (n, K)
            The upper bounds.
        """
        problems = Problems("interval")
        if not 0 < level < 1:
            problems.add(f"level must lie between 0 and 1, got {level}")
        if method not in METHODS:
            problems.add(f"method must be one of {', '.join(METHODS)}, got {method!r}")
        elif calibration is not None and method != "bootstrap":
            problems.add("a calibration's uncertainty is drawn, not derived: use method='bootstrap'")
        problems.raise_if_any()
        refitted = method == "bootstrap" or (method == "auto" and not self.has_curvature)
        if refitted and self._fit.identified:
            resamples = (
                self._refits
                if method == "auto"
                else self.bootstrap(n_resamples, calibration=calibration, random_state=random_state)
            )
            if Z is None:
                return resamples.interval(level=level)
            codes = self._encode(Z)
            bounds = resamples.interval(lambda g: g.prevalence.log_prob(codes).exp().cpu(), level)
            low, high = (self._container.rows(torch.tensor(bound), index_of(Z)) for bound in bounds)
            return low, high
        if Z is None:
            low, high = self._marginal_interval(level)
            return self._container.classes(low.clamp_min(0.0)), self._container.classes(high.clamp_max(1.0))
        distinct, inverse = distinct_rows(self._encode(Z))
        low, high = self._conditional_interval(distinct, level)
        low, high = low.clamp_min(0.0), high.clamp_max(1.0)
        return self._container.rows(low[inverse], index_of(Z)), self._container.rows(high[inverse], index_of(Z))

    def bootstrap(
        self, n_resamples: int = 500, *, calibration: Calibration | None = None, random_state: Any = None
    ) -> Resamples:
        """Estimate g again from bootstrap resamples of the rows, or of whole groups if groups were given.

        In all resamples, g is estimated with the model and the strength of this estimate. The rows must be in memory
        (see `can_refit`).

        Parameters
        ----------
        n_resamples : int
            The number of resamples.
        calibration : Calibration, optional
            The calibration that was applied to `log_ratio`, with resamples of its own. Each resample of the rows uses
            the next resample of the calibration, so that intervals include the uncertainty of the calibration.
        random_state : int, RandomState or None
            Seed.

        Returns
        -------
        Resamples
            The g of every resample.
        """
        problems = Problems("bootstrap")
        if not (isinstance(n_resamples, Integral) and n_resamples >= 2):
            problems.add(f"n_resamples must be a whole number from 2 up, got {n_resamples!r}")
        if calibration is not None and not (isinstance(calibration, Calibration) and calibration.resamples()):
            problems.add("calibration must carry resamples: fit it by calibrate_log_ratio(..., n_resamples=200)")
        problems.raise_if_any()
        generator = torch.Generator().manual_seed(int(check_random_state(random_state).randint(2**31)))
        resamples = bootstrap_fit(self._evidence, self._fit, int(n_resamples), generator, calibration)
        own = (self._encode, self._container)
        return Resamples(tuple(DrawnPrevalence(model, mean, *own) for model, mean in resamples))

    def draws(self, n_draws: int = 200, *, random_state: Any = None) -> PrevalenceDraws:
        """Draw values of g that represent the uncertainty of the estimate, as `interval` describes it.

        If the estimate is a posterior, g is drawn from it. Otherwise, g is drawn by equation 11c, or, if
        `has_curvature` is false, among the 200 bootstrap resamples of `interval`. f is taken as given, except that
        draws of a posterior include the error of f.

        Parameters
        ----------
        n_draws : int
            The number of draws.
        random_state : int, RandomState or None
            Seed.

        Returns
        -------
        PrevalenceDraws
            The draws, with P(Y) of each draw (`marginal`) and log P(Y|Z) of each draw (`log_prevalence`).
        """
        if not (isinstance(n_draws, Integral) and n_draws >= 1):
            raise ValueError(f"draws: n_draws must be a whole number from 1 up, got {n_draws!r}")
        generator = torch.Generator().manual_seed(int(check_random_state(random_state).randint(2**31)))
        if self.has_curvature or not self._fit.identified:
            parts = draw_fits(self._evidence, self._fit, int(n_draws), generator, _draw)
        else:
            parts = (
                draw_refits([refit.prevalence for refit in self._refits], self._refits.marginal, n_draws, generator),
            )
        return PrevalenceDraws(parts, self._encode, self._container)

    @cached_property
    def _refits(self) -> Resamples:
        """The bootstrap refits, which a family without curvature uses for intervals and draws."""
        return self.bootstrap(N_REFITS, random_state=0)

    def refit(self, change: Callable[[Tensor, Tensor], Tensor]) -> Prevalence:
        """Estimate g again after a change of log f, with the same model of g and the same shrinkage.

        Parameters
        ----------
        change : callable
            Maps log f of rows (n, K) and their codes of z (n, V) to the changed log f (n, K).

        Returns
        -------
        Prevalence
            The new g.
        """
        if not self._evidence.in_memory:
            raise ValueError(NOT_IN_MEMORY)
        if self._fit.refit is None:
            raise ValueError(NO_REFIT.format(model=self.model))
        return self._fit.refit(rescored(self._evidence, change))

    @cached_property
    def can_refit(self) -> bool:
        """Whether `refit` and `bootstrap` are possible: the rows are in memory, and the family can be refitted."""
        return self._evidence.in_memory and self._fit.refit is not None

    def predict_proba(self, log_ratio: Any, Z: Any = None) -> Any:
        """Compute P(y|x,z) of rows by equation 3. If the estimate is a posterior, the result is averaged over it.

        Parameters
        ----------
        log_ratio : array of shape (n, K)
            log f of the rows.
        Z : DataFrame or array of shape (n, V), optional
            The confounders of the rows, if g depends on z. For rows without known values, and if Z is not given, g is
            the site's P(Y).

        Returns
        -------
        array of shape (n, K)
            Probabilities of the classes.
        """
        problems = Problems("predict_proba")
        ratios = read_matrix(log_ratio, "log_ratio", problems, self._evidence.device)
        problems.raise_if_any()
        assert ratios is not None
        codes = ratios.new_zeros(len(ratios), 0)
        if self.confounders is not None:
            codes = (
                self.confounders.missing_codes(ratios.device).expand(len(ratios), -1) if Z is None else self._encode(Z)
            )
        return Container.of(log_ratio).rows(self.average(normalize(ratios), codes))

    def average(self, log_ratio: Tensor, codes: Tensor) -> Tensor:
        """Compute P(y|x,z) as `predict_proba` does, from tensors.

        Parameters
        ----------
        log_ratio : Tensor of shape (n, K)
            log f of the rows, with f scaled to sum to one over the classes of each row.
        codes : Tensor of shape (n, V)
            The confounders of the rows, as `confounders.encode` returns them.

        Returns
        -------
        Tensor of shape (n, K)
            Probabilities of the classes.
        """
        posterior = self._fit.posterior
        if posterior is None:
            return combine(log_ratio, self.prevalence.log_prob(codes)).exp()
        return posterior.points.average(log_ratio, codes, posterior.slope)

    @property
    def allows_for_ratio_error(self) -> bool:
        """Whether the draws of g include the error of f: only draws of a posterior do."""
        return self._fit.posterior is not None

    @property
    def has_curvature(self) -> bool:
        """Whether intervals need no bootstrap: there is a posterior, or the curvature of the likelihood is known."""
        return self._fit.posterior is not None or self._fit.post_fit is not no_curvature

    @property
    def slope(self) -> float:
        """The factor on log f in predictions; 1 if the estimate is not a posterior."""
        return 1.0 if self._fit.posterior is None else self._fit.posterior.slope

    @cached_property
    def _mean(self) -> Tensor:
        if self._fit.posterior is not None:
            return self._fit.posterior.points.mean_log_marginal.exp()
        if is_constant(self.prevalence) or not self._evidence.seen_weight:
            nothing = torch.zeros(1, 0, dtype=torch.float64, device=self._evidence.device)
            return self.prevalence.log_prob(nothing)[0].exp()
        g = self.prevalence
        return self._evidence.mean(lambda codes: g.log_prob(codes).exp())

    def _at(self, codes: Tensor) -> Tensor:
        """The estimated g, (n, K)."""
        return self.prevalence.log_prob(codes).exp()

    def _encode(self, Z: Any) -> Tensor:
        device = self._evidence.device
        if self.confounders is None:
            return torch.zeros(len(Z), 0, dtype=torch.float64, device=device)
        return self.confounders.encode(Z, device)[0]

    @cached_property
    def _site(self) -> Evidence:
        """The rows as this model of g uses them: without z if g is constant."""
        return self._evidence.without_confounders() if is_constant(self.prevalence) else self._evidence

    @property
    def _family(self) -> Family:
        """The family of this g."""
        return FAMILIES[self.prevalence.name]

    @cached_property
    def _mean_variance(self) -> Tensor:
        """The variance of the marginal, (K,) (equation 11)."""
        covariance = self._fit.curvature.of_mean()
        if not is_constant(self.prevalence):
            covariance = covariance + self._sampling_covariance()
        return torch.diagonal(covariance)

    def _sampling_covariance(self) -> Tensor:
        """Return the covariance (K, K) of the site's mean of g due to sampling of z."""
        g, mean = self.prevalence, self._mean

        def away(rows: Rows) -> tuple[Rows, Tensor]:
            return rows, rows.at_rows(g.log_prob(rows.codes).exp() - mean)

        plain, grouped = self._evidence.gram(self._evidence.rows, away)
        return (plain if grouped is None else at_least(grouped, plain)) / self._evidence.seen_weight**2

    def _fall(self, level: float) -> Fall:
        groups = self._evidence.groups
        return Fall(self._site.log_likelihood, self._at, allowed_drop(level, groups.mean_size if groups else 1.0))

    def _marginal_interval(self, level: float) -> tuple[Tensor, Tensor]:
        if self._fit.posterior is not None:
            low, high = self._fit.posterior.interval(level)
            return torch.minimum(low, self._mean), torch.maximum(high, self._mean)
        if not self._fit.identified:
            return torch.zeros_like(self._mean), torch.ones_like(self._mean)
        return self._with_bounds(self._mean, self._mean_variance, self._whole_site, level)

    @cached_property
    def _whole_site(self) -> Average:
        """The mean of g over the site, for intervals."""
        return self._family.whole_site(self._site, self._fit)

    def _variance_at(self, codes: Tensor, probability: Tensor) -> Tensor:
        """Return the variance of g at rows of codes, (n, K), averaged over the candidate fits (equation 11b)."""
        if not self._fit.candidates:
            return torch.diagonal(self._fit.curvature.at(codes), dim1=1, dim2=2)
        partly = self.confounders is not None and bool(self.confounders.missing(codes).any())
        total = torch.zeros_like(probability)
        for candidate in self._fit.candidates:
            fit = candidate.finish() if partly else candidate.fit
            own = torch.diagonal(fit.curvature.at(codes), dim1=1, dim2=2)
            total += candidate.weight * (own + (fit.prevalence.log_prob(codes).exp() - probability) ** 2)
        return total / sum(candidate.weight for candidate in self._fit.candidates)

    def _conditional_interval(self, codes: Tensor, level: float) -> tuple[Tensor, Tensor]:
        probability = self._at(codes)
        if self._fit.posterior is not None:  # the mean of a skew posterior can be outside its quantiles
            low, high = self._fit.posterior.interval_at(codes, level)
            return torch.minimum(low, probability), torch.maximum(high, probability)
        if not self._fit.identified:
            return torch.zeros_like(probability), torch.ones_like(probability)
        variance = self._variance_at(codes, probability)
        low, high = logit_interval(probability, variance, level)
        blank = self._blank(codes)
        if self._family.in_cells:
            close = near_a_bound(probability, variance).any(dim=1) & ~blank
            for row in close.nonzero().flatten().tolist():
                average = self._family.cells_of(self._fit, codes[row : row + 1])
                low[row], high[row] = self._with_bounds(probability[row], variance[row], average, level)
        else:
            self._mix_near_bounds(low, high, probability, variance, level)
        low, high = mirror(low, high)
        if blank.any():
            low[blank], high[blank] = self._marginal_interval(level)
        return low, high

    def _blank(self, codes: Tensor) -> Tensor:
        """Return which rows, (n,), have the marginal as their g."""
        if self.confounders is None or (is_constant(self.prevalence) and not self._fit.candidates):
            return torch.ones(len(codes), dtype=torch.bool, device=codes.device)
        return self.confounders.missing(codes).all(dim=1)

    def _with_bounds(
        self, probability: Tensor, variance: Tensor, average: Average, level: float
    ) -> tuple[Tensor, Tensor]:
        """Return an interval (two (K,)) from curvature, or near 0 and 1 from the decrease of the likelihood."""
        low, high = logit_interval(probability, variance, level)
        near = near_a_bound(probability, variance).nonzero().flatten()
        if len(near) and is_constant(self.prevalence) and len(probability) > 2:
            assert isinstance(self._fit.curvature, CellCurvature)
            site = self._site
            fall = ConstantFall(site.log_likelihoods, site.log_mixings, probability, self._fall(level).drop)
            low[near], high[near] = fall.intervals(near, self._fit.curvature.covariance[0])
            return low, high
        ends = []
        for label in near.tolist():
            direction = average.direction_of(label) if len(probability) > 2 else None
            # With two classes, mixing a class in or out covers all changes; with more, classes can replace each other.
            if direction is not None and not float(average.mean(direction)[label]) > 0:
                direction = None
            ends.append(likelihood_ends(self._fall(level), average.mean, label, average.where, direction))
        if ends:
            possible = torch.cat(ends)[:, near]
            low[near], high[near] = possible.amin(0), possible.amax(0)
        return mirror(low, high)

    def _mix_near_bounds(self, low: Tensor, high: Tensor, probability: Tensor, variance: Tensor, level: float) -> None:
        """Replace, in place, the intervals of rows and classes whose g and marginal are both near a bound.

        An interval in log-odds is not informative there. The new interval covers the normal interval on the probability
        scale, and g(z) with the class mixed in or taken out as far as the likelihood of the marginal allows.
        """
        close = near_a_bound(probability, variance) & near_a_bound(self._mean, self._mean_variance)
        lowest, highest = normal_interval(probability, variance, level)
        for label in close.any(dim=0).nonzero().flatten().tolist():
            out, into = mixing(self._fall(level), label)
            for end in (take_out(probability, label, out), mix_in(probability, label, into)):
                lowest, highest = torch.minimum(lowest, end), torch.maximum(highest, end)
        low[close], high[close] = lowest[close], highest[close]


def _draw(evidence: Evidence, fit: Fit, n_draws: int, generator: torch.Generator) -> Drawn:
    """Draw g around a fit, by the method of its family."""
    return FAMILIES[fit.prevalence.name].draw(evidence, fit, n_draws, generator)


def fit_of(estimate: PrevalenceEstimate) -> Fit:
    """Return the private fit of an estimate (candidates, post-fit diagnostics, posterior), for use by other modules."""
    return estimate._fit


def evidence_of(estimate: PrevalenceEstimate) -> Evidence:
    """Return the rows of an estimate; for other modules."""
    return estimate._evidence
