"""g with logits linear in features of z: the additive model, and a network's last layer for its intervals.

Not concave, so: a good start, Newton steps that never lose ground, and an honest gap (largest gradient entry per row).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sitewise.adaptation.evidence import Evidence
from sitewise.adaptation.fit import GRADIENT_TOLERANCE, Fit
from sitewise.prevalence import AdditivePrevalence, ConstantPrevalence, Prevalence
from sitewise.prevalence.additive import features, fit_missing_columns, ridge
from sitewise.prevalence.base import Aggregate, finite
from sitewise.prevalence.linear import NEWTON_LIMIT, assemble, contrasts, fit_linear, spread
from sitewise.solvers import EM, Solution, em, lbfgs, newton
from sitewise.uncertainty import LinearCurvature, group_factor, invert_information, sum_by

KNOCKOUT = 0.5


@dataclass(frozen=True)
class LinearProblem:
    """Minus the penalized observed log-likelihood per unit of weight, as a function of flat coefficients (P,)."""

    evidence: Evidence
    design: Tensor  # (U, D)
    offset: Tensor  # (U, K)
    penalty: Tensor  # (D,)

    @property
    def basis(self) -> Tensor:
        """Contrasts between classes, (K, K-1)."""
        return contrasts(self.evidence.n_classes, self.design.device)

    @property
    def flat_penalty(self) -> Tensor:
        """The penalty of every coefficient, (P,)."""
        return self.penalty[:, None].expand(-1, self.evidence.n_classes - 1).reshape(-1)

    def prevalence(self, flat: Tensor) -> Tensor:
        """g at the distinct rows of z, (U, K)."""
        return torch.softmax(self.offset + self.design @ flat.reshape(self.design.shape[1], -1) @ self.basis.T, dim=1)

    def value(self, flat: Tensor) -> Tensor:
        """The objective."""
        penalty = 0.5 * self.flat_penalty @ flat**2
        return (penalty - self.evidence.log_likelihood(self.prevalence(flat))) / self.evidence.total_weight

    def gradient(self, flat: Tensor) -> Tensor:
        """By Fisher's identity: responsibilities minus prevalence, summed over rows of one z (equation 7a)."""
        prevalence = self.prevalence(flat)
        weighted = self.evidence.weight[:, None] * self.evidence.responsibilities(prevalence)
        slope = self.evidence.sum_by_cell(weighted) - self.evidence.cell_weight[:, None] * prevalence
        if len(self.evidence.blank_weight):
            pull, _ = self._blank_pull(prevalence)
            slope = slope + (spread(prevalence) @ pull) * self._share[:, None]
        flat_slope = (self.design.T @ slope @ self.basis).reshape(-1)
        return (self.flat_penalty * flat - flat_slope) / self.evidence.total_weight

    def derivatives(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Gradient (1, P) and Hessian (1, P, P); of blank rows' curvature the part that is never negative."""
        information = self.information(points[0]) + torch.diag(self.flat_penalty)
        return self.gradient(points[0])[None], information[None] / self.evidence.total_weight

    def information(self, flat: Tensor) -> Tensor:
        """Minus the second derivative of the observed log-likelihood, (P, P): complete minus missing information."""
        prevalence = self.prevalence(flat)
        responsibility = self.evidence.responsibilities(prevalence)
        complete = self.evidence.cell_weight[:, None, None] * spread(prevalence)
        matrix = self._assemble(complete - self._sum_spread(responsibility))
        if len(self.evidence.blank_weight):
            _, blank_information = self._blank_pull(prevalence)
            jacobian = torch.einsum("u,ukl,ud->kdl", self._share, spread(prevalence) @ self.basis, self.design)
            jacobian = jacobian.reshape(len(jacobian), -1)
            matrix = matrix + jacobian.T @ blank_information @ jacobian
        return matrix

    def score_gram(self, flat: Tensor) -> Tensor:
        """Σ_n w_n s_n s_nᵀ of the rows' scores, (P, P)."""
        residual = self.residual(flat)
        weighted = residual * self.evidence.weight[:, None]
        columns = [self.evidence.sum_by_cell(weighted[:, k : k + 1] * residual) for k in range(residual.shape[1])]
        return self._assemble(torch.stack(columns, dim=1))

    def grouped_gram(self, flat: Tensor) -> Tensor:
        """Σ_G S_G S_Gᵀ of the scores added up over each group, (P, P), made up for few groups."""
        assert self.evidence.groups is not None
        narrow = self.evidence.weight[:, None] * self.residual(flat) @ self.basis
        rows = (self.design[self.evidence.cell][:, :, None] * narrow[:, None, :]).reshape(len(narrow), -1)
        sums = sum_by(rows, self.evidence.groups[: len(narrow)])
        return group_factor(self.evidence.groups) * sums.T @ sums

    def residual(self, flat: Tensor) -> Tensor:
        """Responsibilities minus prevalence, (n, K)."""
        prevalence = self.prevalence(flat)
        return self.evidence.responsibilities(prevalence) - prevalence[self.evidence.cell]

    @property
    def _share(self) -> Tensor:
        return self.evidence.cell_weight / self.evidence.weight.sum()

    def _blank_pull(self, prevalence: Tensor) -> tuple[Tensor, Tensor]:
        """First derivative (K,) and information (K, K) of blank rows' likelihood in the mean of g."""
        relative = self.evidence.blank_ratio / (self.evidence.blank_ratio @ self.evidence.mean(prevalence))[:, None]
        weighted = self.evidence.blank_weight[:, None] * relative
        return weighted.sum(0), relative.T @ weighted

    def _sum_spread(self, responsibility: Tensor) -> Tensor:
        weighted = self.evidence.weight[:, None] * responsibility
        outer = [self.evidence.sum_by_cell(weighted[:, k : k + 1] * responsibility) for k in range(weighted.shape[1])]
        return torch.diag_embed(self.evidence.sum_by_cell(weighted)) - torch.stack(outer, dim=1)

    def _assemble(self, blocks: Tensor) -> Tensor:
        return assemble(self.design, self.basis.T @ blocks @ self.basis)


def additive_problem(evidence: Evidence, strength: float, centre: Prevalence | None) -> LinearProblem:
    """Set up the additive model's problem at one strength of its ridge.

    A centre that is a level is aimed at as it is; of one that depends on z the shape is, and the level stays free.
    """
    assert evidence.schema is not None
    design = features(evidence.codes, evidence.schema)
    offset = evidence.ratio.new_zeros(len(evidence.codes), evidence.n_classes)
    offset = offset if centre is None else centre.log_prob(evidence.codes)
    free_level = not isinstance(centre, ConstantPrevalence)
    penalty = ridge(strength, design.shape[1], design.device, free_level=free_level)
    return LinearProblem(evidence, design, offset, penalty)


def solve_linear(problem: LinearProblem, start: Tensor, solver: str | EM) -> Solution[Tensor]:
    """Climb from `start` (P,) by Newton (LBFGS where there are many coefficients), or by EM as it is written."""
    if isinstance(solver, EM):
        return _solve_by_em(problem, start, solver)
    if solver == "lbfgs" or (solver == "auto" and len(start) > NEWTON_LIMIT):
        return lbfgs(lambda flat: (problem.value(flat), problem.gradient(flat)), start, tolerance=GRADIENT_TOLERANCE)
    found = newton(
        lambda points: problem.value(points[0])[None],
        problem.derivatives,
        start[None],
        tolerance=GRADIENT_TOLERANCE,
        max_iter=200,
    )
    return Solution(found.point[0], found.gap[0], found.converged, found.n_iter, found.trace)


def _solve_by_em(problem: LinearProblem, start: Tensor, solver: EM) -> Solution[Tensor]:
    """Algorithm 1 with this g: responsibilities, then the logits that fit them best."""
    evidence = problem.evidence
    # The penalty's curvature is up to this times the likelihood's: a longer step would overshoot ever further.
    longest = 1.0 / (1.0 + float(problem.penalty.max()) / evidence.total_weight)

    def m_step(totals: Tensor, flat: Tensor) -> Tensor:
        if solver.m_step == "sgd":  # Fisher: Q's gradient here is L's
            return flat - min(solver.learning_rate, longest) * problem.gradient(flat)
        return fit_linear(totals, totals.sum(1), problem.design, problem.penalty, problem.offset).point

    def e_step(flat: Tensor) -> Tensor:
        prevalence = problem.prevalence(flat)
        totals = evidence.sum_by_cell(evidence.weight[:, None] * evidence.responsibilities(prevalence))
        if len(evidence.blank_weight):
            pull, _ = problem._blank_pull(prevalence)
            totals = totals + problem._share[:, None] * prevalence * pull
        return totals

    return em(
        start,
        e_step,
        m_step,
        objective=problem.value,
        gap=lambda flat: problem.gradient(flat).abs().max(),
        tolerance=GRADIENT_TOLERANCE,
        max_iter=solver.iterations or 10_000,
    )


def fit_additive_terms(
    evidence: Evidence, strength: float, centre: Prevalence | None, start: Tensor, solver: str | EM
) -> tuple[Fit, Tensor]:
    """Estimate the additive g from unlabeled rows; also return its flat coefficients, to start the next fit from.

    What it says where z is missing is still to be fitted: see `fit_missing_terms`.
    """
    assert evidence.schema is not None
    schema = evidence.schema
    problem = additive_problem(evidence, strength, centre)
    found = solve_linear(problem, start, solver)
    prevalence = problem.prevalence(found.point)
    coefficients = found.point.reshape(problem.design.shape[1], -1) @ problem.basis.T
    model = AdditivePrevalence(schema, coefficients, finite(evidence.mean(prevalence).log()), centre)
    fit = linear_fit(problem, found, model, lambda codes: features(codes, schema), strength)
    return fit, found.point


def fit_missing_terms(fit: Fit, evidence: Evidence) -> Fit:
    """Fit what an additive g says of rows that lack part of z to the final responsibilities (equation 9)."""
    assert isinstance(fit.prevalence, AdditivePrevalence)
    assert isinstance(fit.curvature, LinearCurvature)
    prevalence = fit.prevalence.log_prob(evidence.codes).exp()
    totals = evidence.sum_by_cell(evidence.weight[:, None] * evidence.responsibilities(prevalence))
    data = Aggregate(evidence.codes, evidence.cell, evidence.cell_weight, totals)
    model = fit_missing_columns(fit.prevalence, data, KNOCKOUT)
    return replace(fit, prevalence=model, curvature=replace(fit.curvature, log_prob=model.log_prob))


def linear_fit(
    problem: LinearProblem,
    found: Solution[Tensor],
    model: Prevalence,
    feature_map: Callable[[Tensor], Tensor],
    strength: float,
    tolerance: float = GRADIENT_TOLERANCE,
) -> Fit:
    """Wrap a solved linear problem up with its curvature and its optimism."""
    evidence = problem.evidence
    penalized = problem.information(found.point) + torch.diag(problem.flat_penalty)
    scores = problem.score_gram(found.point)
    inverse = invert_information(penalized)
    optimism, grouped = float((inverse * scores).sum()), None
    if group_factor(evidence.groups) > 0:
        group_scores = problem.grouped_gram(found.point)
        grouped = inverse @ (group_scores + torch.diag(problem.flat_penalty)) @ inverse
        optimism = max(optimism, float((inverse * group_scores).sum()))
    log_likelihood = float(evidence.log_likelihood(problem.prevalence(found.point)))
    return Fit(
        model,
        LinearCurvature(feature_map, model.log_prob, inverse, grouped, evidence.codes, problem._share),
        log_likelihood,
        optimism=optimism,
        converged=found.converged,
        gap=float(found.gap),
        tolerance=tolerance,
        n_iter=found.n_iter,
        trace=[-evidence.total_weight * float(value) for value in found.trace],
        strength=strength,
    )


def start_at(prevalence: Tensor, n_features: int) -> Tensor:
    """Flat coefficients of a constant g (K,), all features but the level at zero."""
    basis = contrasts(len(prevalence), prevalence.device)
    flat = prevalence.new_zeros(n_features, len(prevalence) - 1)
    flat[0] = prevalence.log() @ basis
    return flat.reshape(-1)
