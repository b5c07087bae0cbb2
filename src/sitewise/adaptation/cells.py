"""g as free distributions: one for the site (constant) or one for each cell of z (table). Concave, certified.

In each cell, with pseudo-counts c_y (rows of known class, the shrinkage), maximize over the simplex
`Σ_n w_n log Σ_y f_ny g_y + Σ_y c_y log g_y` (equation 8). Newton minimizes its negative mean plus Σ_y g_y, whose
optimum sums to one by itself, so that only g ≥ 0 has to be watched.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sitewise.adaptation.evidence import Evidence
from sitewise.adaptation.fit import CONCAVE_TOLERANCE, Fit
from sitewise.prevalence import ConstantPrevalence, TablePrevalence
from sitewise.prevalence.base import finite
from sitewise.prevalence.table import require_discrete
from sitewise.solvers import EM, Solution, em, newton, squarem
from sitewise.uncertainty import CellCurvature, simplex_covariance, sum_by

FREE = 1e-9  # a probability below this is at its bound
BLANK_TOLERANCE = 1e-6  # where blank rows tie the cells together, reached by accelerated EM


@dataclass(frozen=True)
class CellProblem:
    """The likelihood of every cell's distribution, with its derivatives; all cells at once."""

    ratio: Tensor  # (n, K)
    weight: Tensor  # (n,)
    cell: Tensor  # (n,)
    pseudo: Tensor  # (C, K)

    @property
    def total(self) -> Tensor:
        """The weight in each cell, pseudo-counts included, (C,)."""
        return self._sum(self.weight) + self.pseudo.sum(1)

    def value(self, prevalence: Tensor) -> Tensor:
        """Minus the mean log-likelihood plus the mass, (C,)."""
        rows = self.weight * (self.ratio * prevalence[self.cell]).sum(1).log()
        prior = torch.xlogy(self.pseudo, prevalence).sum(1)
        return prevalence.sum(1) - (self._sum(rows) + prior) / self.total

    def multiplier(self, prevalence: Tensor) -> Tensor:
        """EM's factor for each class in each cell, (C, K); at most one at the optimum."""
        relative = self.scores(prevalence) * self.weight[:, None]
        return (self._sum(relative) + _safe_divide(self.pseudo, prevalence)) / self.total[:, None]

    def score_gram(self, prevalence: Tensor) -> Tensor:
        """Σ_n w_n s_n s_nᵀ of the rows' scores s = f / Σ_y f_y g_y, (C, K, K)."""
        scores = self.scores(prevalence) * self.weight.sqrt()[:, None]
        if len(self.pseudo) == 1:
            return (scores.T @ scores)[None]
        columns = [self._sum(scores[:, k : k + 1] * scores) for k in range(scores.shape[1])]
        return torch.stack(columns, dim=1)

    def information(self, prevalence: Tensor) -> Tensor:
        """Minus the second derivative of the log-likelihood in g, (C, K, K)."""
        return self.score_gram(prevalence) + torch.diag_embed(_safe_divide(self.pseudo, prevalence**2))

    def derivatives(self, prevalence: Tensor) -> tuple[Tensor, Tensor]:
        """Gradient and Hessian of `value`."""
        return 1.0 - self.multiplier(prevalence), self.information(prevalence) / self.total[:, None, None]

    def totals(self, values: list[Tensor]) -> list[Tensor]:
        """Minus the penalized log-likelihood of all cells together, from every iteration's `value` on the simplex."""
        return [(self.total * (value - 1.0)).sum() for value in values]

    def gap(self, prevalence: Tensor) -> Tensor:
        """The KKT gap of each cell, (C,)."""
        return self.multiplier(prevalence).amax(1) - 1.0

    def scores(self, prevalence: Tensor) -> Tensor:
        """The derivative f / Σ_y f_y g_y of each row's log-likelihood in its g, (n, K)."""
        return self.ratio / (self.ratio * prevalence[self.cell]).sum(1, keepdim=True)

    def _sum(self, values: Tensor) -> Tensor:
        return values.new_zeros(len(self.pseudo), *values.shape[1:]).index_add_(0, self.cell, values)


def solve_cells(problem: CellProblem, start: Tensor, solver: str | EM) -> Solution[Tensor]:
    """Maximize every cell's likelihood from a start inside the simplex."""
    if isinstance(solver, EM):
        found = em(
            start,
            e_step=problem.multiplier,
            m_step=lambda factor, prevalence: prevalence * factor,
            objective=problem.value,
            gap=problem.gap,
            tolerance=CONCAVE_TOLERANCE,
            max_iter=solver.iterations or 10_000,
        )
        return replace(found, trace=problem.totals(found.trace))
    found = newton(
        problem.value,
        problem.derivatives,
        start,
        gap=lambda prevalence, gradient: -gradient.amin(1),
        lower=torch.zeros_like(start),
        retract=lambda prevalence: prevalence / prevalence.sum(1, keepdim=True),
        tolerance=CONCAVE_TOLERANCE,
    )
    return replace(found, trace=problem.totals(found.trace))


def fit_constant_cell(evidence: Evidence, prior: Tensor, strength: float, solver: str | EM, start: Tensor) -> Fit:
    """Estimate a constant g: the whole site is one cell, with `strength` rows of `prior` (K,) added to it."""
    pooled = evidence.without_confounders()
    problem = CellProblem(pooled.ratio, pooled.weight, pooled.cell, strength * prior[None])
    found = solve_cells(problem, start[None], solver)
    log_prob = finite(found.point.log())
    prevalence = ConstantPrevalence(log_prob[0])
    return _fit(pooled, problem, found, prevalence, lambda codes: codes.new_ones(len(codes), 1), strength)


def fit_table_cells(evidence: Evidence, centre: Tensor, strength: float, solver: str | EM) -> Fit:
    """Estimate a table: each cell has `strength` rows of its `centre` (U, K) added to it."""
    assert evidence.schema is not None
    require_discrete(evidence.schema)
    problem = CellProblem(evidence.ratio, evidence.weight, evidence.cell, strength * centre)
    found = solve_cells(problem, centre, solver)
    if len(evidence.blank_weight):
        found = _share_blank_rows(evidence, problem, 0.99 * found.point + 0.01 * centre)
    log_prob = finite(found.point.log())
    table = TablePrevalence(evidence.schema, evidence.codes, log_prob, evidence.cell_weight)
    return _fit(evidence, problem, found, table, table.agreement, strength)


def _share_blank_rows(evidence: Evidence, problem: CellProblem, start: Tensor) -> Solution[Tensor]:
    """Let rows without z speak through the site's mean: EM over classes and, for those rows, cells; accelerated."""
    share = evidence.cell_weight[:, None] / evidence.weight.sum()

    def slope(prevalence: Tensor) -> Tensor:
        """The derivative of the penalized log-likelihood in g, (C, K)."""
        relative = evidence.blank_ratio / (evidence.blank_ratio @ evidence.mean(prevalence))[:, None]
        pull = evidence.blank_weight @ relative
        return problem.multiplier(prevalence) * problem.total[:, None] + share * pull

    def normalize_cells(prevalence: Tensor) -> Tensor:
        inside = prevalence.clamp_min(1e-300)
        return inside / inside.sum(1, keepdim=True)

    def gap(prevalence: Tensor) -> Tensor:
        pull = slope(prevalence)
        return (pull / (prevalence * pull).sum(1, keepdim=True)).amax(1) - 1.0

    return squarem(
        lambda prevalence: normalize_cells(prevalence * slope(prevalence)),
        normalize_cells(start),
        lambda prevalence: _objective(problem, evidence, prevalence),
        normalize_cells,
        gap,
        tolerance=BLANK_TOLERANCE,
    )


def _objective(problem: CellProblem, evidence: Evidence, prevalence: Tensor) -> Tensor:
    """Minus the penalized log-likelihood of all rows, blank ones too."""
    return -evidence.log_likelihood(prevalence) - torch.xlogy(problem.pseudo, prevalence).sum()


def _fit(
    evidence: Evidence,
    problem: CellProblem,
    found: Solution[Tensor],
    prevalence: ConstantPrevalence | TablePrevalence,
    agreement: Callable[[Tensor], Tensor],
    strength: float,
) -> Fit:
    """Wrap solved cells up with their curvature and optimism."""
    probability = finite(found.point.log()).exp()
    inverse = simplex_covariance(problem.information(probability), probability > FREE)
    share = evidence.cell_weight / evidence.weight.sum()
    curvature = _curvature(evidence, problem, probability, inverse, share, agreement)
    return Fit(
        prevalence,
        curvature,
        log_likelihood=float(evidence.log_likelihood(probability)),
        optimism=float((inverse * problem.score_gram(probability)).sum()),
        converged=found.converged,
        gap=float(found.gap.max()),
        tolerance=CONCAVE_TOLERANCE,
        n_iter=found.n_iter,
        trace=[-float(value) for value in found.trace],
        strength=strength,
    )


def _curvature(
    evidence: Evidence,
    problem: CellProblem,
    probability: Tensor,
    inverse: Tensor,
    share: Tensor,
    agreement: Callable[[Tensor], Tensor],
) -> CellCurvature:
    """The inverse information; where rows come in groups, with the spread of the groups' scores in its middle."""
    if evidence.groups is None:
        return CellCurvature(inverse, torch.einsum("c,ckl->kl", share**2, inverse), agreement)
    groups = evidence.groups[: len(evidence.weight)]
    scores = problem.scores(probability) * evidence.weight[:, None]
    influence = torch.einsum("nk,nkl->nl", scores, inverse[evidence.cell])
    pair = groups * len(evidence.codes) + evidence.cell
    by_pair = sum_by(influence, pair)
    cell_of_pair = torch.unique(pair) % len(evidence.codes)
    covariance = torch.zeros_like(inverse).index_add_(0, cell_of_pair, by_pair[:, :, None] * by_pair[:, None, :])
    by_group = sum_by(influence * share[evidence.cell, None], groups)
    return CellCurvature(covariance, by_group.T @ by_group, agreement)


def _safe_divide(count: Tensor, probability: Tensor) -> Tensor:
    """count / probability, with 0 / 0 = 0."""
    return torch.where(count > 0, count / probability, 0.0)
