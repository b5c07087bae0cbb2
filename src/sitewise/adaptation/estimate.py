"""The public door: a new site's prevalence from unlabeled rows, and the adjustment of their scores by it."""

import warnings
from dataclasses import dataclass, field, replace
from functools import cached_property
from numbers import Real
from typing import Any

import torch
from sklearn.utils import check_random_state
from torch import Tensor

from sitewise.adaptation.belief import Belief, read_belief, shared_schema
from sitewise.adaptation.cells import fit_constant_cell, inside
from sitewise.adaptation.evidence import Evidence, read_evidence
from sitewise.adaptation.fit import Fit
from sitewise.adaptation.selection import (
    fit_additive_model,
    fit_any_model,
    fit_constant_model,
    fit_network_model,
    fit_table_model,
    starting_coefficients,
)
from sitewise.arrays import (
    Container,
    Problems,
    align_classes,
    distinct_rows,
    index_of,
    is_chunked,
    join_chunks,
    read_matrix,
    refuse_one_shot,
    to_tensor,
)
from sitewise.confounders import Confounders, Notes
from sitewise.posterior import combine, normalize
from sitewise.prevalence import MODELS, ConstantPrevalence, Prevalence
from sitewise.prevalence.base import finite
from sitewise.solvers import EM
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

SOLVERS = {
    "auto": ("auto", *MODELS),
    "newton": ("auto", "constant", "table", "additive"),
    "lbfgs": ("additive", "network"),
    "em": MODELS,
}
IDENTIFIED = 1e-8  # information per row below which nothing is learned

NOT_IDENTIFIED = (
    "the log-ratios say nothing about y here: the prevalence is not identified, and the answer is {answer}. "
    "Check that log_ratio comes from an informative model"
)
NO_Z = (
    "log_prevalence: expected Z with a row for each answer, got None; pass NaN where nothing is known of a row, "
    "or use .marginal"
)
ALIKE = "the log-ratios hardly tell some classes apart here: how they share their prevalence is not identified"
NOT_CONVERGED = "{model} g did not converge in {n_iter} iterations (gap {gap:.1e}, wanted {wanted:.0e}): {advice}"


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


def estimate_prevalence(
    log_ratio: Any,
    sample_confounder: Any = None,
    *,
    model: str = "auto",
    solver: str | EM = "auto",
    strength: str | float = "auto",
    prior: Any = None,
    confounders: Confounders | None = None,
    categorical: Any = None,
    y: Any = None,
    sample_weight: Any = None,
    groups: Any = None,
    start: Any = None,
    random_state: Any = None,
) -> PrevalenceEstimate:
    """Estimate a site's prevalence P(Y|Z) from unlabeled rows.

    Parameters
    ----------
    log_ratio : (n, K) log f(x,z) of the site's rows, each free up to a constant; or a re-iterable of
        (log_ratio, Z or None) chunks.
    sample_confounder : (n, V) array or DataFrame of confounders, NaN where missing; None if there are none.
    model : "auto" (chosen by held-out likelihood), "constant", "table", "additive" or "network" (the paper's).
    solver : "auto", "newton", "lbfgs", "em" (the paper's algorithms 1 and 2), or `EM(...)` with its settings.
    strength : how strongly g is shrunk towards the prior: rows' worth a cell for "constant" and "table", ridge on the
        log-odds for "additive"; "auto" chooses by held-out likelihood (for "constant": none).
    prior : what shrinkage aims at and what is answered where f says nothing: K probabilities (a Series is matched by
        its class labels), or another estimate, of which "table" and "additive" take the shape and leave the level free.
    confounders : the schema learned at training; None takes that of a prior or start estimate, or else learns one
        from `sample_confounder`.
    categorical : names or positions of columns to take as categorical, where the schema is learned here.
    y : (n,) class indices where a label is known, NaN elsewhere.
    sample_weight : (n,) frequency weights: a row of weight two counts as two rows.
    groups : (n,) patients, say; intervals then allow for rows of one group being alike.
    start : K probabilities or another estimate to start from.
    random_state : seed of the network's and of EM's random start.

    Examples
    --------
    >>> estimate = estimate_prevalence(log_ratio, Z)
    >>> estimate.marginal, estimate.interval()
    >>> probabilities = adjust(log_ratio, estimate.log_prevalence(Z))
    """
    problems = Problems("estimate_prevalence")
    log_ratio, sample_confounder = _gather(log_ratio, sample_confounder, problems)
    solver = _check_choices(model, solver, strength, sample_confounder, confounders, problems)
    matrix = read_matrix(log_ratio, "log_ratio", problems)
    if matrix is None:
        problems.raise_if_any()
    assert matrix is not None
    container = Container.of(log_ratio)
    expected = (matrix.shape[1], container.columns, matrix.device, problems)
    prior_belief, start_belief = read_belief(prior, "prior", *expected), read_belief(start, "start", *expected)
    schema = confounders if isinstance(confounders, Confounders) else None
    if sample_confounder is not None:
        schema = shared_schema(schema, prior_belief, start_belief, problems)
    evidence, notes = read_evidence(
        matrix,
        sample_confounder,
        problems,
        schema=schema,
        categorical=categorical,
        y=y,
        sample_weight=sample_weight,
        groups=groups,
    )
    seed = int(check_random_state(random_state).randint(2**31))
    fit = _fit(evidence, model, solver, strength, prior_belief, start_belief, seed)
    if not fit.converged:
        warnings.warn(_not_converged(fit), stacklevel=2)
    return PrevalenceEstimate(
        model=fit.prevalence.name,
        strength=fit.strength,
        converged=fit.converged,
        gap=fit.gap,
        n_iter=fit.n_iter,
        log_likelihood=fit.log_likelihood,
        trace=fit.trace,
        notes=notes,
        prevalence=fit.prevalence,
        confounders=evidence.schema,
        _fit=fit,
        _evidence=evidence,
        _container=container,
    )


def adjust(log_ratio: Any, log_prevalence: Any) -> Any:
    """Combine log f and log g into probabilities P(y|x,z), equation 3, row by row.

    `log_prevalence` is (n, K), or (K,) where it is the same for every row; pandas objects with the same class labels
    are matched by them.
    """
    problems = Problems("adjust")
    ratios = read_matrix(log_ratio, "log_ratio", problems)
    try:
        aligned = align_classes(log_prevalence, Container.of(log_ratio).columns)
        prior = to_tensor(aligned, None if ratios is None else ratios.device)
    except (TypeError, ValueError) as error:
        problems.add(f"log_prevalence must be numbers ({error})")
        prior = None
    if ratios is not None and prior is not None:
        if prior.shape not in (ratios.shape, ratios.shape[1:]):
            expected = f"{tuple(ratios.shape)} or ({ratios.shape[1]},)"
            problems.add(f"log_prevalence must have shape {expected}, got {tuple(prior.shape)}")
        if prior.isnan().any() or (prior == torch.inf).any():
            problems.add("log_prevalence must hold logs of probabilities, got NaN or +inf")
    problems.raise_if_any()
    assert ratios is not None
    assert prior is not None
    return Container.of(log_ratio).rows(combine(normalize(ratios), prior).exp())


def _gather(log_ratio: Any, Z: Any, problems: Problems) -> tuple[Any, Any]:
    """The log-ratios and confounders of all rows, joined where they come in chunks."""
    refuse_one_shot(log_ratio, "log_ratio")
    refuse_one_shot(Z, "sample_confounder")
    if not is_chunked(log_ratio):
        return log_ratio, Z
    if Z is not None:
        problems.add("a chunked source carries its own Z: leave sample_confounder out")
    return join_chunks(log_ratio)


def _fit(
    evidence: Evidence,
    model: str,
    solver: str | EM,
    strength: str | float,
    prior: Belief | None,
    start: Belief | None,
    seed: int,
) -> Fit:
    n_classes = evidence.n_classes
    even = evidence.ratio.new_full((n_classes,), 1.0 / n_classes)
    aim = even if prior is None else prior.level_at(evidence)
    centre = None if prior is None else prior.centre_at(evidence)
    first = aim if start is None else start.level_at(evidence)
    begin = inside(_random_start(n_classes, seed, even) if isinstance(solver, EM) else first)
    every_ratio = torch.cat([evidence.ratio, evidence.blank_ratio])
    if bool((every_ratio.amax(1) - every_ratio.amin(1) < 1e-12).all()):
        return _unidentified(evidence, aim, centre)
    if model == "constant" or not len(evidence.weight):
        fit = fit_constant_model(evidence, aim, strength, solver, begin)
        _warn_if_alike(evidence, fit)
        return fit
    constant = fit_constant_cell(evidence, even, 0.0, "auto", begin)
    _warn_if_alike(evidence, constant)
    level = constant.prevalence.log_prob(evidence.codes[:1])[0].exp()
    if model == "network":
        return fit_network_model(evidence, level if start is None else begin, solver, seed)
    if model == "table":
        return fit_table_model(evidence, constant, centre, strength, solver)
    start_model = None if start is None else start.model
    coefficients = starting_coefficients(evidence, start_model, level if start is None else begin, centre)
    if isinstance(solver, EM):
        noise = torch.randn(len(coefficients), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        coefficients = noise.to(coefficients.device)
    if model == "additive":
        return fit_additive_model(evidence, coefficients, centre, strength, solver)
    return fit_any_model(evidence, constant, coefficients, centre, strength, solver)


def _check_choices(
    model: str, solver: str | EM, strength: str | float, Z: Any, confounders: Any, problems: Problems
) -> str | EM:
    """Note choices that do not exist or do not go together; return the solver with its settings."""
    if model not in ("auto", *MODELS):
        problems.add(f"model must be one of auto, {', '.join(MODELS)}, got {model!r}")
    elif model in ("table", "additive", "network") and Z is None:
        problems.add(f"model={model!r} needs sample_confounder; without confounders use model='constant'")
    name = "em" if isinstance(solver, EM) else solver
    if name not in SOLVERS:
        problems.add(f"solver must be one of {', '.join(SOLVERS)} or an EM(...), got {solver!r}")
    elif model in ("auto", *MODELS) and model not in SOLVERS[name]:
        problems.add(f"solver={name!r} goes with model {' or '.join(SOLVERS[name])}, got {model!r}")
    is_number = isinstance(strength, Real) and 0 <= strength < float("inf")
    if strength != "auto" and not is_number:
        problems.add(f"strength must be 'auto' or a number from 0 up, got {strength!r}")
    if confounders is not None and not isinstance(confounders, Confounders):
        came = type(confounders).__name__
        problems.add(f"confounders must be a schema, such as Confounders.learn(Z) or estimate.confounders, got {came}")
    return EM() if name == "em" and isinstance(solver, str) else solver


def _random_start(n_classes: int, seed: int, like: Tensor) -> Tensor:
    logits = torch.randn(n_classes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.softmax(logits, dim=0).to(like.device)


def _unidentified(evidence: Evidence, aim: Tensor, centre: Prevalence | None) -> Fit:
    answer = "uniform, for want of a prior" if centre is None else "the prior"
    warnings.warn(NOT_IDENTIFIED.format(answer=answer), stacklevel=4)
    flat = fit_constant_cell(evidence, aim, 0.0, "auto", aim)
    prevalence = ConstantPrevalence(finite(aim.log())) if centre is None else centre
    return replace(flat, prevalence=prevalence, identified=False)


def _warn_if_alike(evidence: Evidence, fit: Fit) -> None:
    """Warn where information about the share of some classes is next to nothing."""
    covariance = fit.curvature.of_mean()
    if float(torch.linalg.eigvalsh(covariance).max()) * evidence.total_weight > 1.0 / IDENTIFIED:
        warnings.warn(ALIKE, stacklevel=4)


def _not_converged(fit: Fit) -> str:
    advice = {
        "network": "its T is a limit, not a success: raise EM(iterations=...), or use model='auto'",
        "additive": "raise strength, or use model='auto'",
    }.get(fit.prevalence.name, "use solver='auto'")
    name = fit.prevalence.name
    return NOT_CONVERGED.format(model=name, n_iter=fit.n_iter, gap=fit.gap, wanted=fit.tolerance, advice=advice)


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
