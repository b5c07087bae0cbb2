"""`estimate_prevalence` estimates a new site's prevalence from unlabeled rows; `adjust` predicts with it."""

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from numbers import Real
from typing import Any

import torch
from sklearn.utils import check_random_state
from torch import Tensor

from sitewise.adaptation.answer import PrevalenceEstimate
from sitewise.adaptation.cell_problem import inside
from sitewise.adaptation.cells import fit_constant_cell, variance_per_row
from sitewise.adaptation.evidence import Evidence, read_evidence
from sitewise.adaptation.families import FAMILIES, dropout_problem, finish, solver_problem
from sitewise.adaptation.families.base import Request, constant_level
from sitewise.adaptation.fit import Fit, best, weigh_candidates
from sitewise.adaptation.known import (
    CONTRADICTED,
    Belief,
    contradiction_sentence,
    of_rows,
    read_belief,
    read_known,
    shared_schema,
)
from sitewise.adaptation.partitioned import read_labeled_partitions, read_partitions
from sitewise.adaptation.posterior.fit import fit_posterior
from sitewise.adaptation.posterior.known import Known
from sitewise.adaptation.posterior.labels import KnownLabels, read_labeled
from sitewise.adaptation.rare_levels import without_rare_levels
from sitewise.adaptation.streaming import read_chunks
from sitewise.arrays import (
    Container,
    Problems,
    align_classes,
    did_you_mean,
    read_matrix,
    to_tensor,
    view_matrix,
)
from sitewise.confounders import Confounders
from sitewise.confounders.variables import Notes
from sitewise.partitions import Partitions, as_partitions
from sitewise.posterior import combine, normalize
from sitewise.prevalence.base import ConstantPrevalence, Prevalence, finite, is_constant
from sitewise.solvers import EM
from sitewise.sources import as_chunks, first_chunk

IDENTIFIED = 1e-8  # information per row below which the prevalence is not identified

NOT_IDENTIFIED = (
    "the log-ratios are not informative about y here: the prevalence is not identified, and the estimate is {answer}. "
    "Check that log_ratio comes from an informative model"
)
ALIKE = "the log-ratios hardly separate some classes here: the prevalence of each of them is not identified"
NOT_CONVERGED = "{model} g did not converge in {n_iter} iterations (gap {gap:.1e}, wanted {wanted:.0e}): {advice}"
PRICE = 2.0  # factor on the optimism in the decision whether g depends on z
MARGIN = 1.0  # log-likelihood units by which a g(z) must be better than the constant g


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
    known_prevalence: Any = None,
    dropout: float = 0.0,
) -> PrevalenceEstimate:
    """Estimate a site's prevalence P(Y|Z) from unlabeled rows.

    Parameters
    ----------
    log_ratio : array of shape (n, K), or chunks
        log f(x,z) of the site's rows. Adding a constant to a row does not change the result. Rows that do not fit into
        memory can be given as a memory-mapped array, as `ParquetChunks`, or as any object over which one can iterate
        several times and that yields chunks (log_ratio, Z), where Z may be None. Rows on several machines can be given
        as a Dask DataFrame or array. Then all other arguments with one entry for each row must be Dask collections with
        the same partitions, and the schema of z must come from `confounders` or from a prior.
    sample_confounder : DataFrame or array of shape (n, V), optional
        The confounders z of the rows, NaN where missing.
    model : {"auto", "constant", "table", "additive", "network"}
        The family of g. "auto" chooses it by the likelihood of left-out rows; "network" is the paper's network. If the
        result is a posterior (see `strength`), there are only two forms of g: with "constant", g does not depend on z;
        with all other choices, it is the g of section 18 of docs/maths.md.
    solver : {"auto", "newton", "lbfgs", "em"} or EM
        How the likelihood is maximized. "auto": by the default method of the family. "em": by the paper's algorithms 1
        and 2; an `EM` object stands for the same algorithms with settings. Not every family has every solver.
    strength : float or "auto"
        How strongly g is shrunk: the number of pseudo-rows in each cell of "constant" and "table", or the ridge penalty
        on the coefficients of "additive". With "auto" and a prior, the result is the posterior of section 18 of
        docs/maths.md, unless the solver is EM or the model is "network". In all other cases, "auto" chooses the
        strength by the likelihood of left-out rows, and "constant" is not shrunk.
    prior : array of shape (K,), SitePrior or estimate, optional
        The g to which the estimate is shrunk. It is also the result if f is not informative. It is given in one of
        three ways: as K probabilities (those of a Series are matched by its class labels), as another estimate, or as a
        `SitePrior`, which also has scales learned from the training sites. If the g of the prior depends on z and no
        posterior is computed, "table" and "additive" are shrunk to this g with its level adjusted to the site.
    confounders : Confounders, optional
        The schema of z that was learned in training. By default the schema of the prior or of `start` is used. If
        neither has one, the schema is learned from `sample_confounder`.
    categorical : str, int or sequence of these, optional
        Names or positions of columns to treat as categorical, if the schema is learned.
    y : array of shape (n,), optional
        Known labels as class indices, and NaN where the label is unknown. If the result is a posterior, the labels are
        also used to estimate the level and the slope of log f at this site (see `SitePrior.slope_scale`).
    sample_weight : array of shape (n,), optional
        Frequency weights: a row of weight two counts as two rows.
    groups : array of shape (n,), optional
        The group of each row, for example the patient. Intervals account for the dependence of rows of one group.
    start : array of shape (K,) or estimate, optional
        The g at which the solver starts: K probabilities, or another estimate. By default, EM starts at random as in
        the paper.
    random_state : int, RandomState or None
        Seed of EM's random start, and of the network's initial weights and dropout.
    dropout : float
        Only for "network" with EM: the dropout probability of hidden units in the M-steps. (The paper uses 0.5 for its
        two image collections and no dropout for digits.)
    known_prevalence : float, array, tuple, dict or DataFrame, optional
        The known P(y) of the site, used as data in addition to the rows. It requires that the result is a posterior
        (see `strength`). Possible forms are:

        - K probabilities;
        - with two classes, the probability of the second class, or a tuple `(value, low, high)` of this probability and
          its 95% interval;
        - a dict that maps a class (its index, or the name of its column in `log_ratio`) to a probability or to such a
          tuple;
        - a DataFrame with a row for each stratum of z (see docs/known_labels.md).

    Returns
    -------
    PrevalenceEstimate
        The estimate with its convergence diagnostics and intervals.

    Examples
    --------
    >>> estimate = estimate_prevalence(log_ratio, Z)
    >>> estimate.marginal, estimate.interval()
    >>> probabilities = adjust(log_ratio, estimate.log_prevalence(Z))
    """
    problems = Problems("estimate_prevalence")
    given = _Given.of(log_ratio, sample_confounder, problems, y=y, sample_weight=sample_weight, groups=groups)
    solver = _check_choices(model, solver, strength, dropout, given.Z, confounders, problems)
    matrix = view_matrix(given.example, "log_ratio", problems)
    if matrix is None:
        problems.raise_if_any()
    assert matrix is not None
    container = Container.of(given.example)
    expected = (matrix.shape[1], container.columns, matrix.device, problems)
    prior_belief, start_belief = read_belief(prior, "prior", *expected), read_belief(start, "start", *expected)
    schema = confounders if isinstance(confounders, Confounders) else None
    if given.Z is not None:
        schema = shared_schema(schema, prior_belief, start_belief, problems)
    takes_prior = model not in FAMILIES or FAMILIES[model].takes_prior
    by_posterior = prior_belief is not None and strength == "auto" and not isinstance(solver, EM) and takes_prior
    if known_prevalence is not None and not by_posterior:
        problems.add("known_prevalence needs a prior (and strength='auto'): it is data of the posterior")
    read = partial(given.evidence, matrix, problems, with_labels=not by_posterior)
    evidence, notes = read(schema, categorical)
    if given.Z is not None and model not in ("constant", "table"):
        evidence, notes = _without_rare_levels(evidence, notes, read, strength == "auto", schema is not None)
    seed = int(check_random_state(random_state).randint(2**31))
    if by_posterior:
        assert prior_belief is not None
        labeled = given.labeled(evidence, problems)
        names = range(evidence.n_classes) if container.columns is None else container.columns
        known = read_known(known_prevalence, list(names), evidence.schema, problems, evidence.device)
        problems.raise_if_any()
        fit = _fit_posterior(evidence, prior_belief, model == "constant", labeled, known, problems)
    else:
        fit = _fit(evidence, model, solver, strength, prior_belief, start_belief, seed, dropout)
    if not fit.converged:
        warnings.warn(_not_converged(fit, by_em=isinstance(solver, EM)), stacklevel=2)
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


@dataclass(frozen=True, eq=False)
class _Given:
    """The caller's rows (an array, chunks or partitions), and the arguments with one entry for each row."""

    example: Any  # log f: the whole array, the first chunk, or an example row of the partitions
    Z: Any
    source: Iterable[Any] | None
    partitions: Partitions | None
    details: dict[str, Any]  # y, sample_weight, groups

    @classmethod
    def of(cls, log_ratio: Any, Z: Any, problems: Problems, **details: Any) -> "_Given":
        """Determine whether the rows are an array, chunks or partitions."""
        partitions = as_partitions(log_ratio, problems, sample_confounder=Z, **details)
        if partitions is not None:
            return cls(partitions.example, partitions.given.get("sample_confounder"), None, partitions, details)
        source = as_chunks(log_ratio, Z, problems)
        example, Z = (log_ratio, Z) if source is None else first_chunk(source)
        return cls(example, Z, source, None, details)

    def evidence(
        self, matrix: Tensor, problems: Problems, schema: Confounders | None, categorical: Any, *, with_labels: bool
    ) -> tuple[Evidence, Notes]:
        """Read and check all rows; without `with_labels`, known labels are left out (a posterior reads them itself)."""
        own = {"schema": schema, "categorical": categorical}
        if self.partitions is not None:
            plain = self.partitions if with_labels else self.partitions.without("y")
            return read_partitions(plain, matrix.shape[1], problems, **own)
        own |= self.details if with_labels else {**self.details, "y": None}
        if self.source is None:
            return read_evidence(matrix, self.Z, problems, **own)
        return read_chunks(self.source, self.Z is not None, matrix.shape[1], matrix.device, problems, **own)

    def labeled(self, evidence: Evidence, problems: Problems) -> KnownLabels | None:
        """Read the rows with known labels."""
        if self.partitions is not None:
            return read_labeled_partitions(self.partitions, evidence)
        chunks = [(self.example, self.Z)] if self.source is None else self.source
        y, weight, groups = (self.details[name] for name in ("y", "sample_weight", "groups"))
        return read_labeled(chunks, y, weight, groups, evidence, problems)


def _without_rare_levels(
    evidence: Evidence, notes: Notes, read: Callable[..., tuple[Evidence, Notes]], judged: bool, fixed: bool
) -> tuple[Evidence, Notes]:
    """Read the rows again if some categories of z have too few rows to learn from; these then count as missing."""
    merged = without_rare_levels(evidence, judged=judged, fixed=fixed)
    if merged.schema is not evidence.schema:
        evidence, notes = read(merged.schema, None)
    return replace(evidence, weakest_ridge=merged.weakest_ridge), notes


def adjust(log_ratio: Any, log_prevalence: Any) -> Any:
    """Compute P(y|x,z) of each row from log f and log g (equation 3).

    Parameters
    ----------
    log_ratio : array of shape (n, K)
        log f of the rows.
    log_prevalence : array of shape (n, K) or (K,)
        log g of each row, or one log g for all rows. If both arguments are pandas objects with the same class labels,
        the classes are matched by these labels, otherwise by position.

    Returns
    -------
    array of shape (n, K)
        The probabilities of the classes, as the same type of array and on the same device as `log_ratio`.

    Examples
    --------
    >>> estimate = estimate_prevalence(log_ratio, Z)
    >>> probabilities = adjust(log_ratio, estimate.log_prevalence(Z))
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


def _fit_posterior(
    evidence: Evidence,
    prior: Belief,
    constant: bool,
    labeled: KnownLabels | None,
    known: Known | None,
    problems: Problems,
) -> Fit:
    known = None if known is None else of_rows(known, evidence, problems)
    problems.raise_if_any()
    if labeled is None and known is None and evidence.says_nothing():
        warnings.warn(NOT_IDENTIFIED.format(answer="the prior"), stacklevel=3)
    if constant:
        evidence = evidence.without_confounders()
        labeled = None if labeled is None else labeled.without_confounders()
    fit = fit_posterior(evidence, prior.prior(), labeled, known)
    assert fit.posterior is not None
    against = fit.posterior.against
    if against is not None and against.p_value < CONTRADICTED:
        warnings.warn(contradiction_sentence(against), stacklevel=3)
    return fit


def _fit(
    evidence: Evidence,
    model: str,
    solver: str | EM,
    strength: str | float,
    prior: Belief | None,
    start: Belief | None,
    seed: int,
    dropout: float,
) -> Fit:
    n_classes = evidence.n_classes
    even = torch.full((n_classes,), 1.0 / n_classes, dtype=torch.float64, device=evidence.device)
    aim = even if prior is None else prior.level_at(evidence)
    centre = None if prior is None else prior.centre_at(evidence)
    first = aim if start is None else start.level_at(evidence)
    by_em = isinstance(solver, EM)
    begin = inside(_random_start(n_classes, seed, even) if by_em and start is None else first)
    if by_em and start is not None and bool((first > 0).all()):
        begin = first  # EM can leave every point except those on the faces of the simplex
    if evidence.says_nothing():
        return _unidentified(evidence, aim, centre)
    start_model = None if start is None else start.model
    request = Request(evidence, strength, solver, aim, centre, begin, start_model, seed, started=start is not None)
    if model == "constant" or not evidence.seen_weight:
        fit = FAMILIES["constant"].fit_rows(request)
        _warn_if_alike(evidence, fit)
        return fit
    constant = fit_constant_cell(evidence, even, 0.0, "auto", begin)
    _warn_if_alike(evidence, constant)
    request = replace(request, constant=constant)
    return fit_any_model(request) if model == "auto" else FAMILIES[model].with_dropout(dropout).fit_rows(request)


def _check_choices(
    model: str,
    solver: str | EM,
    strength: str | float,
    dropout: float,
    Z: Any,
    confounders: Any,
    problems: Problems,
) -> str | EM:
    """Check that the choices exist and are compatible; return the solver, with "em" replaced by `EM()`."""
    models = ("auto", *FAMILIES)
    if model not in models:
        problems.add(f"model must be one of {', '.join(models)}, got {model!r}{did_you_mean(model, models)}")
    elif model != "auto" and FAMILIES[model].needs_z and Z is None:
        problems.add(f"model={model!r} needs sample_confounder; without confounders use model='constant'")
    for wrong in (solver_problem(model, solver), dropout_problem(model, dropout, "dropout")):
        if wrong is not None:
            problems.add(wrong)
    is_number = isinstance(strength, Real) and 0 <= strength < float("inf")
    if strength != "auto" and not is_number:
        problems.add(f"strength must be 'auto' or a number from 0 up, got {strength!r}")
    elif strength not in ("auto", 0) and model in FAMILIES and not FAMILIES[model].takes_strength:
        able = ", ".join(name for name, family in FAMILIES.items() if family.takes_strength)
        problems.add(
            f"model={model!r} is not shrunk with a given strength, got {strength!r}: use 'auto' or one of {able}"
        )
    if confounders is not None and not isinstance(confounders, Confounders):
        came = type(confounders).__name__
        problems.add(f"confounders must be a schema, such as Confounders.learn(Z) or estimate.confounders, got {came}")
    return EM() if solver == "em" else solver


def _random_start(n_classes: int, seed: int, like: Tensor) -> Tensor:
    logits = torch.randn(n_classes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.softmax(logits, dim=0).to(like.device)


def _unidentified(evidence: Evidence, aim: Tensor, centre: Prevalence | None) -> Fit:
    answer = "uniform, as there is no prior" if centre is None else "the prior"
    warnings.warn(NOT_IDENTIFIED.format(answer=answer), stacklevel=4)
    flat = fit_constant_cell(evidence, aim, 0.0, "auto", aim)
    prevalence = ConstantPrevalence(finite(aim.log())) if centre is None else centre
    return replace(flat, prevalence=prevalence, identified=False)


def _warn_if_alike(evidence: Evidence, constant: Fit) -> None:
    """Warn if the rows have almost no information about the shares of some classes."""
    per_row = variance_per_row(evidence, constant_level(constant))
    if float(torch.linalg.eigvalsh(per_row).max()) > 1.0 / IDENTIFIED:
        warnings.warn(ALIKE, stacklevel=4)


def _not_converged(fit: Fit, *, by_em: bool) -> str:
    name = fit.prevalence.name
    family = FAMILIES["additive" if fit.posterior is not None else name]  # a posterior's deviation is additive
    advice = "use solver='auto'" if by_em and family.concave else family.advice
    return NOT_CONVERGED.format(model=name, n_iter=fit.n_iter, gap=fit.gap, wanted=fit.tolerance, advice=advice)


def fit_any_model(request: Request) -> Fit:
    """Choose between the constant g and the candidates of all families: additive models, and tables with enough rows.

    The stricter criterion L - 2 O decides whether g depends on z. If it does, the left-out likelihood L - O decides on
    form and strength. If the shrinkage target depends on z, the constant g is not chosen.
    """
    constant = request.constant
    assert constant is not None
    has_shape = request.centre is not None and not is_constant(request.centre)
    candidates = [fit for family in FAMILIES.values() for fit in family.candidates(request)]

    everyone = weigh_candidates([*candidates, constant], request.evidence, finish)
    if not has_shape and max(map(score, candidates)) < score(constant) + MARGIN:
        return replace(constant, candidates=everyone)
    return replace(finish(best(candidates), request.evidence), candidates=everyone)


def score(fit: Fit) -> float:
    """Return L - 2 O: the optimism is subtracted once for the fit and once for the choice among many candidates."""
    return fit.log_likelihood - PRICE * fit.optimism
