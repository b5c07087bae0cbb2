"""g with logits linear in features of z: the additive model, and the last layer of a network for its intervals.

The likelihood is not concave. It is maximized by damped Newton steps from a good start. The gap is the largest entry of
the gradient, divided by the number of rows.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from sitewise.adaptation.evidence import Evidence
from sitewise.adaptation.fit import GRADIENT_TOLERANCE, Fit, PostFit
from sitewise.adaptation.rows import Rows, Stream, moments, scores
from sitewise.posterior import contrasts, softmax_hessian
from sitewise.prevalence.additive import AdditivePrevalence, features, fit_missing_columns, ridge
from sitewise.prevalence.base import Aggregate, Prevalence, finite, is_constant
from sitewise.prevalence.linear import NEWTON_LIMIT, assemble, fit_linear
from sitewise.solvers import EM, Solution, em, lbfgs, newton
from sitewise.uncertainty import LinearCurvature, invert_information

KNOCKOUT = 0.5
KEPT_FEATURES = 2**26  # largest design, in entries, that is kept in memory; a larger one is computed in every pass
ENOUGH = 2**14  # about the largest number of distinct z that is used to fit the terms of missing values


@dataclass(frozen=True)
class DesignRows:
    """A chunk of rows, with D features of its U distinct z, (U, D), and the offset of the logits (U or 1, K)."""

    rows: Rows
    design: Tensor
    offset: Tensor


@dataclass(frozen=True)
class Evaluation:
    """The observed log-likelihood at P flattened coefficients, and its derivatives up to the requested order."""

    flat: Tensor  # (P,)
    log_likelihood: Tensor
    gradient: Tensor | None = None  # (P,)
    information: Tensor | None = None  # (P, P)


@dataclass(frozen=True)
class LinearProblem:
    """The objective: minus the penalized observed log-likelihood per unit of weight.

    It is a function of flattened coefficients (P,), P = D (K-1), for D features of z and K classes.
    """

    evidence: Evidence
    parts: Stream[DesignRows]
    penalty: Tensor  # (D,)
    centre: Prevalence | None = None  # the shrinkage target; its log g is the offset of the logits
    _last: dict[str, Evaluation] = field(default_factory=dict, repr=False)
    _last_total: dict[str, tuple[Tensor, Tensor, Tensor]] = field(default_factory=dict, repr=False)

    @property
    def n_features(self) -> int:
        """The number of features D."""
        return len(self.penalty)

    @property
    def basis(self) -> Tensor:
        """Contrasts between classes, (K, K-1)."""
        return contrasts(self.evidence.n_classes, self.penalty.device)

    @property
    def flat_penalty(self) -> Tensor:
        """The penalty of every coefficient, (P,)."""
        return self.penalty[:, None].expand(-1, self.evidence.n_classes - 1).reshape(-1)

    def prevalence(self, part: DesignRows, flat: Tensor) -> Tensor:
        """Return g at the z of a chunk, (U, K)."""
        return _prevalence(part, flat, self.basis)

    def value(self, flat: Tensor, order: int = 1) -> Tensor:
        """Return the objective; `order` is the highest order of derivative that will be needed at this point."""
        penalty = 0.5 * self.flat_penalty @ flat**2
        return (penalty - self.evaluate(flat, order).log_likelihood) / self.evidence.total_weight

    def gradient(self, flat: Tensor, order: int = 1) -> Tensor:
        """Return the gradient of the objective, (P,)."""
        slope = self.evaluate(flat, order).gradient
        assert slope is not None
        return (self.flat_penalty * flat - slope) / self.evidence.total_weight

    def derivatives(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Return gradient (1, P) and Hessian (1, P, P) of the objective."""
        hessian = self.penalized_information(points[0]) / self.evidence.total_weight
        return self.gradient(points[0], order=2)[None], hessian[None]

    def penalized_information(self, flat: Tensor) -> Tensor:
        """Return minus the Hessian of the penalized log-likelihood, (P, P)."""
        information = self.evaluate(flat, 2).information
        assert information is not None
        return information + torch.diag(self.flat_penalty)

    def evaluate(self, flat: Tensor, order: int) -> Evaluation:
        """Compute the log-likelihood (order 0), its gradient (1) and the information (2); the last result is cached.

        The gradient follows from Fisher's identity. The information is the complete minus the missing information
        (equation 7a). For blank rows, only the part of the information that is never negative is used.
        """
        last = self._last.get("evaluation")
        if last is not None and torch.equal(last.flat, flat) and (order < 2 or last.information is not None):
            return last
        blank = self.evidence.blank_weight > 0
        totals = self.parts.total(partial(_sums, flat=flat, basis=self.basis, order=order, blank=blank))
        log_likelihood, sums = totals[0], list(totals[1 : order + 1])
        if blank:
            mean, jacobian = totals[-2] / self.evidence.seen_weight, totals[-1] / self.evidence.seen_weight
            at_mean = self.evidence.blank_moments(mean, order)
            log_likelihood = log_likelihood + at_mean.log_likelihood[0]
            if order >= 1:
                sums[0] = sums[0] + at_mean.slope[0] @ jacobian
            if order >= 2:
                sums[1] = sums[1] + jacobian.T @ at_mean.curvature[0] @ jacobian
        evaluation = Evaluation(flat, log_likelihood, *sums)
        self._last["evaluation"] = evaluation
        return evaluation

    def over(self, drawn: Evidence) -> "LinearProblem":
        """Return the same problem for the same rows with other weights or another f."""
        pairs = zip(drawn.rows, self.parts, strict=True)
        parts = [DesignRows(rows, part.design, part.offset) for rows, part in pairs]
        return LinearProblem(drawn, Stream(parts), self.penalty, self.centre)

    def score_grams(self, flat: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return Σ_n w_n U_n U_nᵀ of the rows' scores U, (P, P), and its version for groups, as in `Evidence.gram`."""
        groups = self.evidence.groups
        if groups is not None and groups.factor:
            return self.evidence.gram(self.parts, partial(row_scores, flat=flat, basis=self.basis))
        return self.parts.total(partial(_score_gram, flat=flat, basis=self.basis))[0], None

    def total_of_g(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sum of g over rows with z, (K,), and its derivative (K, P); the last result is cached."""
        last = self._last_total.get("of_g")
        if last is not None and torch.equal(last[0], flat):
            return last[1], last[2]
        total, slope = self.parts.total(partial(_total_of_g, flat=flat, basis=self.basis))
        self._last_total["of_g"] = flat, total, slope
        return total, slope


def _prevalence(part: DesignRows, flat: Tensor, basis: Tensor) -> Tensor:
    return torch.softmax(part.offset + part.design @ flat.reshape(part.design.shape[1], -1) @ basis.T, dim=1)


def _sums(part: DesignRows, flat: Tensor, basis: Tensor, order: int, blank: bool) -> tuple[Tensor, ...]:
    """Return the sums over one chunk: log-likelihood, gradient and information; with `blank`, also g and its slope."""
    prevalence = _prevalence(part, flat, basis)
    at = moments(part.rows, prevalence, order)
    sums = [at.log_likelihood.sum()]
    if order >= 1:
        sums.append((part.design.T @ at.logit_slope).reshape(-1))
    if order >= 2:
        sums.append(assemble(part.design, at.logit_information))
    if blank:
        sums += [at.weight @ prevalence, _mean_slope(part, prevalence, basis)]
    return tuple(sums)


def _mean_slope(part: DesignRows, prevalence: Tensor, basis: Tensor) -> Tensor:
    """Return the derivative (K, P) of a chunk's sum of g."""
    weight = part.rows.cell_weight
    slope = torch.einsum("u,ukl,ud->kdl", weight, softmax_hessian(prevalence) @ basis, part.design)
    return slope.reshape(len(slope), -1)


def _total_of_g(part: DesignRows, flat: Tensor, basis: Tensor) -> tuple[Tensor, ...]:
    prevalence = _prevalence(part, flat, basis)
    return part.rows.cell_weight @ prevalence, _mean_slope(part, prevalence, basis)


def _score_gram(part: DesignRows, flat: Tensor, basis: Tensor) -> tuple[Tensor, ...]:
    return (assemble(part.design, moments(part.rows, _prevalence(part, flat, basis), 2).logit_gram),)


def row_scores(part: DesignRows, flat: Tensor, basis: Tensor) -> tuple[Rows, Tensor]:
    """Return a chunk's rows, and the derivative of each row's log-likelihood in the coefficients, (n, P)."""
    prevalence = _prevalence(part, flat, basis)
    relative = scores(part.rows, prevalence) - 1.0
    narrow = (relative * part.rows.at_rows(prevalence)) @ basis
    design = part.rows.at_rows(part.design).expand(len(narrow), -1)
    return part.rows, (design[:, :, None] * narrow[:, None, :]).flatten(1)


def linear_problem(
    evidence: Evidence, feature_map: Callable[[Tensor], Tensor], centre: Prevalence | None, penalty: Tensor
) -> LinearProblem:
    """Set up the problem of a g whose logits are log g of a shrinkage target plus a linear function of features."""
    no_offset = penalty.new_zeros(1, evidence.n_classes)

    def with_features(rows: Rows) -> DesignRows:
        return DesignRows(rows, feature_map(rows.codes), no_offset if centre is None else centre.log_prob(rows.codes))

    keep = evidence.n_rows * len(penalty) <= KEPT_FEATURES
    return LinearProblem(evidence, evidence.rows.map(with_features, keep=keep), penalty, centre)


def additive_problem(evidence: Evidence, strength: float, centre: Prevalence | None) -> LinearProblem:
    """Set up the additive model's problem for one strength of its ridge.

    If the shrinkage target is constant, the level of g is shrunk to it too. If the target depends on z, only the shape
    of g is shrunk to it, and the level is free.
    """
    schema = evidence.schema
    assert schema is not None
    n_features = features(schema.missing_codes(evidence.device)[None], schema).shape[1]
    free_level = centre is None or not is_constant(centre)
    penalty = ridge(strength, n_features, evidence.device, free_level=free_level)
    return linear_problem(evidence, lambda codes: features(codes, schema), centre, penalty)


def solve_linear(problem: LinearProblem, start: Tensor, solver: str | EM) -> Solution[Tensor]:
    """Maximize from `start` (P,) by Newton's method, by L-BFGS (also "auto" with many coefficients), or by EM."""
    if isinstance(solver, EM):
        return _solve_by_em(problem, start, solver)
    if solver == "lbfgs" or (solver == "auto" and len(start) > NEWTON_LIMIT):
        return lbfgs(lambda flat: (problem.value(flat), problem.gradient(flat)), start, tolerance=GRADIENT_TOLERANCE)
    solution = newton(
        lambda points: problem.value(points[0], order=2)[None],
        problem.derivatives,
        start[None],
        tolerance=GRADIENT_TOLERANCE,
        max_iter=200,
    )
    return Solution(solution.point[0], solution.gap[0], solution.converged, solution.n_iter, solution.trace)


def _solve_by_em(problem: LinearProblem, start: Tensor, solver: EM) -> Solution[Tensor]:
    """Run the paper's algorithm 1 with this g: compute responsibilities, and fit the logits to them."""
    evidence = problem.evidence
    parts = list(problem.parts)
    design = torch.cat([part.design for part in parts])
    offset = torch.cat([part.offset.expand(len(part.design), -1) for part in parts])
    share = torch.cat([part.rows.cell_weight for part in parts])[:, None] / evidence.seen_weight
    # The longest stable gradient step; it depends on the curvature of the penalty relative to the likelihood.
    longest = 1.0 / (1.0 + float(problem.penalty.max()) / evidence.total_weight)

    def m_step(totals: Tensor, flat: Tensor) -> Tensor:
        if solver.m_step == "sgd":  # by Fisher's identity, EM's objective and L have the same gradient here
            return flat - min(solver.learning_rate, longest) * problem.gradient(flat)
        return fit_linear(totals, totals.sum(1), design, problem.penalty, offset).point

    def e_step(flat: Tensor) -> Tensor:
        prevalence = [problem.prevalence(part, flat) for part in parts]
        slopes = [moments(part.rows, at, 1).slope for part, at in zip(parts, prevalence, strict=True)]
        every, slope = torch.cat(prevalence), torch.cat(slopes)
        if evidence.blank_weight:
            slope = slope + share * evidence.blank_moments((share * every).sum(0), 1).slope
        return every * slope

    return em(
        start,
        e_step,
        m_step,
        objective=problem.value,
        gap=lambda flat: problem.gradient(flat).abs().max(),
        tolerance=GRADIENT_TOLERANCE,
        max_iter=solver.iterations or 10_000,
    )


def fit_additive_terms(problem: LinearProblem, strength: float, start: Tensor, solver: str | EM) -> tuple[Fit, Tensor]:
    """Estimate an additive g from unlabeled rows; also return its flat coefficients, at which the next fit can start.

    The terms of missing values are fitted later, by `fit_missing_terms`.
    """
    schema = problem.evidence.schema
    assert schema is not None
    solution = solve_linear(problem, start, solver)
    coefficients = solution.point.reshape(problem.n_features, -1) @ problem.basis.T
    total = problem.total_of_g(solution.point)[0]
    marginal = finite((total / problem.evidence.seen_weight).log())
    model = AdditivePrevalence(schema, coefficients, marginal, problem.centre)
    fit = linear_fit(problem, solution, model, model.features, strength)
    return replace(fit, refit=RefitAdditive(model, solution.point, problem.penalty, {"first": problem})), solution.point


@dataclass(frozen=True)
class RefitAdditive:
    """A function that refits an additive g after a change of the rows' weights or of f."""

    model: AdditivePrevalence
    point: Tensor  # (P,) its flat coefficients
    penalty: Tensor  # (D,)
    _problem: dict[str, LinearProblem] = field(default_factory=dict, repr=False)  # its features are used in every draw

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickle without the problem, which is set up again when needed."""
        return {**vars(self), "_problem": {}}

    def __call__(self, drawn: Evidence) -> AdditivePrevalence:
        """Return the refitted g; the fit starts at the original coefficients."""
        if "first" not in self._problem:
            self._problem["first"] = linear_problem(drawn, self.model.features, self.model.centre, self.penalty)
        problem = self._problem["first"].over(drawn)
        flat = solve_linear(problem, self.point, "auto").point
        moved = (flat - self.point).reshape(problem.n_features, -1) @ problem.basis.T
        shifted = replace(self.model, coefficients=self.model.coefficients + moved)
        return replace(shifted, log_marginal=finite(drawn.mean(lambda codes: shifted.log_prob(codes).exp()).log()))


def fit_missing_terms(fit: Fit, evidence: Evidence) -> Fit:
    """Fit the terms of missing values of an additive g to the final responsibilities (equation 9)."""
    unfinished = cast(AdditivePrevalence, fit.prevalence)
    model = fit_missing_columns(unfinished, aggregate_rows(evidence, unfinished), KNOCKOUT)

    def post_fit() -> PostFit:
        assert isinstance(fit.curvature, LinearCurvature)
        return PostFit(replace(fit.curvature, log_prob=model.log_prob), fit.optimism)

    refit = RefitFinished(cast(RefitAdditive, fit.refit), model)
    return replace(fit, prevalence=model, post_fit=post_fit, refit=refit)


@dataclass(frozen=True)
class RefitFinished:
    """A function that refits an additive g, but not the terms of missing values that were fitted last."""

    refit: RefitAdditive
    model: AdditivePrevalence

    def __call__(self, drawn: Evidence) -> AdditivePrevalence:
        """Return the refitted g."""
        again = self.refit(drawn)
        moved = again.coefficients - self.refit.model.coefficients
        return replace(again, coefficients=self.model.coefficients + moved)


def aggregate_rows(evidence: Evidence, model: Prevalence) -> Aggregate:
    """Return soft labels (responsibilities) at the distinct z, or at every n-th of them if there are very many rows."""
    step = 1 + evidence.n_rows // ENOUGH

    def some(rows: Rows) -> tuple[Tensor, Tensor, Tensor]:
        prevalence = model.log_prob(rows.codes).exp()
        totals = (prevalence * moments(rows, prevalence, 1).slope)[::step]
        return rows.codes[::step], rows.cell_weight[::step], totals

    codes, weights, totals = (torch.cat(collected) for collected in zip(*evidence.rows.collect(some), strict=True))
    return Aggregate(codes, torch.arange(len(codes), device=codes.device), weights, totals)


def linear_fit(
    problem: LinearProblem,
    solution: Solution[Tensor],
    model: Prevalence,
    feature_map: Callable[[Tensor], Tensor],
    strength: float,
    tolerance: float = GRADIENT_TOLERANCE,
) -> Fit:
    """Make a fit from the solution of a linear problem."""
    return Fit(
        model,
        log_likelihood=float(problem.evaluate(solution.point, 0).log_likelihood),
        converged=solution.converged,
        gap=float(solution.gap),
        tolerance=tolerance,
        n_iter=solution.n_iter,
        trace=[-problem.evidence.total_weight * float(value) for value in solution.trace],
        strength=strength,
        post_fit=lambda: post_fit_at_linear(problem, solution.point, model, feature_map),
    )


def post_fit_at_linear(
    problem: LinearProblem, flat: Tensor, model: Prevalence, feature_map: Callable[[Tensor], Tensor]
) -> PostFit:
    """Return the post-fit covariance of linear logits, and the optimism."""
    inverse = invert_information(problem.penalized_information(flat))
    plain, by_group = problem.score_grams(flat)
    grouped = None if by_group is None else inverse @ (by_group + torch.diag(problem.flat_penalty)) @ inverse
    optimism = optimism_of(inverse, plain, by_group)
    slope = problem.total_of_g(flat)[1]
    curvature = LinearCurvature(feature_map, model.log_prob, inverse, grouped, slope / problem.evidence.seen_weight)
    return PostFit(curvature, optimism)


def optimism_of(inverse: Tensor, *grams: Tensor | None) -> float:
    """Return O of equation 10 from the inverse penalized information and the outer products of scores.

    If there are outer products of rows and of groups, the larger optimism is returned.
    """
    return max(float((inverse * gram).sum()) for gram in grams if gram is not None)


def start_at(prevalence: Tensor, n_features: int) -> Tensor:
    """Return the flat coefficients of a constant g (K,): all but the intercept are zero."""
    basis = contrasts(len(prevalence), prevalence.device)
    flat = prevalence.new_zeros(n_features, len(prevalence) - 1)
    flat[0] = prevalence.log() @ basis
    return flat.reshape(-1)
