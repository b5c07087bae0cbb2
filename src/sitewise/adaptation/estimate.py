"""The public door: a new site's prevalence from unlabeled rows, and the adjustment of their scores by it."""

import warnings
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from sklearn.utils import check_random_state
from torch import Tensor

from sitewise.adaptation.cells import fit_constant_cell
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
from sitewise.arrays import Container, Problems, distinct_rows, is_chunked, read_matrix, to_tensor
from sitewise.confounders import Confounders, Notes
from sitewise.posterior import combine, normalize
from sitewise.prevalence import MODELS, ConstantPrevalence, Prevalence
from sitewise.solvers import EM
from sitewise.uncertainty import CellCurvature, likelihood_interval, logit_interval, near_a_bound, sum_by

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

    @property
    def marginal(self) -> Any:
        """Estimate of P(Y) at the site, (K,)."""
        return self._container.classes(self._mean)

    def log_prevalence(self, Z: Any) -> Any:
        """Estimate of log P(Y|Z), (n, K); missing parts of Z are averaged out, all of Z missing gives the marginal."""
        return self._container.rows(self.prevalence.log_prob(self._encode(Z)), getattr(Z, "index", None))

    def interval(self, Z: Any = None, level: float = 0.95) -> tuple[Any, Any]:
        """Pointwise interval for P(Y), two (K,), or for P(Y|Z), two (n, K): of the population, given f."""
        if not 0 < level < 1:
            raise ValueError(f"interval: level must lie between 0 and 1, got {level}")
        if Z is None:
            low, high = self._marginal_interval(level)
            return self._container.classes(low), self._container.classes(high)
        codes = self._encode(Z)
        distinct, inverse = distinct_rows(codes)
        low, high = self._conditional_interval(distinct, level)
        index = getattr(Z, "index", None)
        return self._container.rows(low[inverse], index), self._container.rows(high[inverse], index)

    @property
    def _mean(self) -> Tensor:
        if isinstance(self.prevalence, ConstantPrevalence) or not len(self._evidence.weight):
            return self.prevalence.log_prob(self._evidence.ratio.new_zeros(1, 0))[0].exp()
        return self._evidence.mean(self.prevalence.log_prob(self._evidence.codes).exp())

    def _encode(self, Z: Any) -> Tensor:
        device = self._evidence.ratio.device
        if self.confounders is None:
            return torch.zeros(len(Z), 0, dtype=torch.float64, device=device)
        return self.confounders.encode(Z, device)[0]

    def _marginal_interval(self, level: float) -> tuple[Tensor, Tensor]:
        evidence = self._site
        at_rows = self.prevalence.log_prob(evidence.codes).exp()
        variance = torch.diagonal(self._fit.curvature.of_mean() + _sampling_covariance(evidence, at_rows))
        share = evidence.cell_weight / evidence.weight.sum()
        return self._with_bounds(self._mean, variance, at_rows, share, level)

    def _conditional_interval(self, codes: Tensor, level: float) -> tuple[Tensor, Tensor]:
        probability = self.prevalence.log_prob(codes).exp()
        curvature = self._fit.curvature
        variance = torch.diagonal(curvature.at(codes), dim1=1, dim2=2)
        low, high = logit_interval(probability, variance, level)
        blank = torch.zeros(len(codes), dtype=torch.bool, device=codes.device)
        if self.confounders is not None:
            blank = self.confounders.missing(codes).all(dim=1)
        if isinstance(self.prevalence, ConstantPrevalence):
            blank = torch.ones_like(blank)
        if blank.any():
            low[blank], high[blank] = self._marginal_interval(level)
        if isinstance(curvature, CellCurvature):
            at_rows = self.prevalence.log_prob(self._evidence.codes).exp()
            for row in (~blank).nonzero().flatten().tolist():
                share = curvature.agreement(codes[row : row + 1])[0]
                low[row], high[row] = self._with_bounds(probability[row], variance[row], at_rows, share, level)
        return low, high

    def _with_bounds(
        self, probability: Tensor, variance: Tensor, at_rows: Tensor, share: Tensor, level: float
    ) -> tuple[Tensor, Tensor]:
        """Curvature where the estimate is well inside, the likelihood's own fall where a bound is near."""
        low, high = logit_interval(probability, variance, level)
        inflation = _group_inflation(self._evidence)
        for label in near_a_bound(probability, variance).nonzero().flatten().tolist():
            low[label], high[label] = likelihood_interval(
                self._site.log_likelihood, at_rows, share, label, level, inflation
            )
        return low, high

    @property
    def _site(self) -> Evidence:
        """The evidence as this model of g sees it."""
        return (
            self._evidence.without_confounders() if isinstance(self.prevalence, ConstantPrevalence) else self._evidence
        )


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
    prior : what shrinkage aims at and what is answered where f says nothing: K probabilities, or another estimate.
    confounders : the schema learned at training; None learns one from `sample_confounder`.
    categorical : names or positions of columns to take as categorical.
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
    solver = _check_choices(model, solver, strength, sample_confounder, log_ratio, problems)
    problems.raise_if_any()
    evidence, notes = read_evidence(
        log_ratio,
        sample_confounder,
        confounders=confounders,
        categorical=categorical,
        y=y,
        sample_weight=sample_weight,
        groups=groups,
    )
    prior_level, centre = _read_prevalence(prior, "prior", evidence, problems)
    start_level, start_model = _read_prevalence(start, "start", evidence, problems)
    problems.raise_if_any()
    seed = int(check_random_state(random_state).randint(2**31))
    fit = _fit(evidence, model, solver, strength, prior_level, centre, start_level, start_model, seed)
    first = next(iter(log_ratio))[0] if is_chunked(log_ratio) else log_ratio
    container = Container.of(first)
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

    `log_prevalence` is (n, K), or (K,) where it is the same for every row.
    """
    problems = Problems("adjust")
    ratios = read_matrix(log_ratio, "log_ratio", problems)
    try:
        prior = to_tensor(log_prevalence, None if ratios is None else ratios.device)
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


def _fit(
    evidence: Evidence,
    model: str,
    solver: str | EM,
    strength: str | float,
    prior: Tensor | None,
    centre: Prevalence | None,
    start: Tensor | None,
    start_model: Prevalence | None,
    seed: int,
) -> Fit:
    n_classes = evidence.n_classes
    even = evidence.ratio.new_full((n_classes,), 1.0 / n_classes)
    aim = even if prior is None else prior
    begin = _inside(_random_start(n_classes, seed, even) if isinstance(solver, EM) else aim if start is None else start)
    every_ratio = torch.cat([evidence.ratio, evidence.blank_ratio])
    if bool((every_ratio.amax(1) - every_ratio.amin(1) < 1e-12).all()):
        return _unidentified(evidence, aim, centre, prior is None)
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
        return fit_table_model(evidence, level, centre, strength, solver)
    coefficients = starting_coefficients(evidence, start_model, level if start is None else begin, centre)
    if isinstance(solver, EM):
        noise = torch.randn(len(coefficients), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        coefficients = noise.to(coefficients.device)
    if model == "additive":
        return fit_additive_model(evidence, coefficients, centre, strength, solver)
    return fit_any_model(evidence, constant, coefficients, centre, strength, solver)


def _check_choices(
    model: str, solver: str | EM, strength: str | float, Z: Any, log_ratio: Any, problems: Problems
) -> str | EM:
    if model not in ("auto", *MODELS):
        problems.add(f"model must be one of auto, {', '.join(MODELS)}, got {model!r}")
    elif model in ("table", "additive", "network") and Z is None and not is_chunked(log_ratio):
        problems.add(f"model={model!r} needs sample_confounder; without confounders use model='constant'")
    name = "em" if isinstance(solver, EM) else solver
    if name not in SOLVERS:
        problems.add(f"solver must be one of {', '.join(SOLVERS)} or an EM(...), got {solver!r}")
    elif model in ("auto", *MODELS) and model not in SOLVERS[name]:
        problems.add(f"solver={name!r} goes with model {' or '.join(SOLVERS[name])}, got {model!r}")
    bad_number = not isinstance(strength, str) and not 0 <= strength < float("inf")
    if bad_number or (isinstance(strength, str) and strength != "auto"):
        problems.add(f"strength must be 'auto' or a number from 0 up, got {strength!r}")
    return EM() if name == "em" and isinstance(solver, str) else solver


def _read_prevalence(
    value: Any, name: str, evidence: Evidence, problems: Problems
) -> tuple[Tensor | None, Prevalence | None]:
    """Read a prior or a start: its mean over the site (K,), and the model behind it where it depends on z."""
    if value is None:
        return None, None
    model = value.prevalence if isinstance(value, PrevalenceEstimate) else value
    if isinstance(model, Prevalence):
        if not len(evidence.weight) or isinstance(model, ConstantPrevalence):
            blank = evidence.ratio.new_zeros(1, 0) if evidence.schema is None else evidence.schema.missing_codes()[None]
            return model.log_prob(blank)[0].exp(), None
        return evidence.mean(model.log_prob(evidence.codes).exp()), model
    try:
        level = to_tensor(value, evidence.ratio.device)
    except (TypeError, ValueError) as error:
        problems.add(f"{name} must be K probabilities or an estimate ({error})")
        return None, None
    if level.shape != (evidence.n_classes,) or not bool(
        torch.isfinite(level).all() and (level >= 0).all() and level.sum() > 0
    ):
        problems.add(f"{name} must be {evidence.n_classes} probabilities or an estimate, got {value!r}")
        return None, None
    return level / level.sum(), None


def _inside(level: Tensor) -> Tensor:
    """Move a start off the simplex's faces, which EM could not leave."""
    return 0.999 * level + 0.001 / len(level)


def _random_start(n_classes: int, seed: int, like: Tensor) -> Tensor:
    logits = torch.randn(n_classes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.softmax(logits, dim=0).to(like.device)


def _unidentified(evidence: Evidence, aim: Tensor, centre: Prevalence | None, is_even: bool) -> Fit:
    warnings.warn(
        NOT_IDENTIFIED.format(answer="uniform, for want of a prior" if is_even else "the prior"), stacklevel=4
    )
    flat = fit_constant_cell(evidence, aim, 0.0, "auto", aim)
    prevalence = ConstantPrevalence(aim.clamp_min(1e-12).log()) if centre is None else centre
    return replace(flat, prevalence=prevalence)


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
    if evidence.groups is None:
        return deviation.T @ (evidence.weight[:, None] * deviation) / evidence.weight.sum() ** 2
    by_group = sum_by(evidence.weight[:, None] * deviation, evidence.groups[: len(deviation)])
    return by_group.T @ by_group / evidence.weight.sum() ** 2


def _group_inflation(evidence: Evidence) -> float:
    """By how much groups of entirely alike rows would widen a variance: their weighted mean size."""
    if evidence.groups is None:
        return 1.0
    sizes = sum_by(torch.cat([evidence.weight, evidence.blank_weight]), evidence.groups)
    return float((sizes**2).sum() / sizes.sum())
