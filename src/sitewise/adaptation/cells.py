"""g as free distributions: one for the site (constant) or one for each cell of z (table). Concave, certified.

In each cell, with pseudo-counts c_y (rows of known class, the shrinkage), maximize over the simplex
`Σ_n w_n log Σ_y f_ny g_y + Σ_y c_y log g_y` (equation 8). Newton minimizes its negative mean plus Σ_y g_y, whose
optimum sums to one by itself, so that only g ≥ 0 has to be watched.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from sitewise.adaptation.evidence import Evidence
from sitewise.adaptation.fit import CONCAVE_TOLERANCE, Fit
from sitewise.prevalence import ConstantPrevalence, Prevalence, TablePrevalence
from sitewise.prevalence.base import finite
from sitewise.prevalence.linear import spread
from sitewise.prevalence.table import require_discrete
from sitewise.solvers import EM, Solution, em, newton, squarem
from sitewise.uncertainty import CellCurvature, at_least, gram, group_factor, simplex_covariance, sum_by

FREE = 1e-9  # a probability below this is at its bound
DUST = 1e-9  # a class this rare in what cells are shrunk to is absent: rows' worth of it would be pure curvature
BLANK_TOLERANCE = 1e-6  # where blank rows tie the cells together, reached by accelerated EM


@dataclass(frozen=True)
class CellProblem:
    """The likelihood of every cell's distribution, with its derivatives; all cells at once."""

    ratio: Tensor  # (n, K)
    weight: Tensor  # (n,)
    cell: Tensor  # (n,)
    pseudo: Tensor  # (C, K)

    @cached_property
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


@dataclass(frozen=True)
class Centre:
    """What each cell is shrunk to, and how that follows from the site's own rows (`slope` None: it does not)."""

    prevalence: Tensor  # (U, K)
    slope: Tensor | None = None  # (U, K, K) derivative in the site's constant g
    influence: Tensor | None = None  # (n + m, K) of every row on that constant g, blank rows last
    covariance: Tensor | None = None  # (K, K) of that constant g


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
    prevalence = ConstantPrevalence(finite(found.point.log())[0])
    whole = Centre(prior[None])
    return _fit(pooled, problem, found, prevalence, lambda codes: codes.new_ones(len(codes), 1), whole, strength)


def fit_table_cells(evidence: Evidence, centre: Centre, strength: float, solver: str | EM) -> Fit:
    """Estimate a table: each cell has `strength` rows of its centre added to it."""
    assert evidence.schema is not None
    require_discrete(evidence.schema)
    problem = CellProblem(evidence.ratio, evidence.weight, evidence.cell, strength * centre.prevalence)
    start = inside(centre.prevalence)
    found = solve_cells(problem, start, solver)
    if len(evidence.blank_weight):
        found = _share_blank_rows(evidence, problem, 0.99 * found.point + 0.01 * start)
    log_prob = finite(found.point.log())
    table = TablePrevalence(evidence.schema, evidence.codes, log_prob, evidence.cell_weight)
    return _fit(evidence, problem, found, table, table.agreement, centre, strength)


def fixed_centre(evidence: Evidence, level: Tensor) -> Centre:
    """Shrink every cell to a level (K,) that was given and not estimated here."""
    return Centre(without_dust(level).expand(len(evidence.codes), -1))


def constant_centre(evidence: Evidence, constant: Fit) -> Centre:
    """Shrink every cell to the site's constant g."""
    level, influence = constant_influence(evidence, constant)
    whole = torch.eye(len(level), dtype=level.dtype, device=level.device).expand(len(evidence.codes), -1, -1)
    return replace(
        fixed_centre(evidence, level), slope=whole, influence=influence, covariance=constant.curvature.of_mean()
    )


def tilted_centre(evidence: Evidence, constant: Fit, model: Prevalence) -> Centre:
    """Shrink the cells to another g(z), its log-odds all moved alike so that its mean is the site's constant g."""
    level, influence = constant_influence(evidence, constant)
    at_cells = model.log_prob(evidence.codes)
    tilt = torch.zeros_like(level)
    for _ in range(200):  # iterative proportional fitting of the level
        tilt = tilt + level.log() - evidence.mean(torch.softmax(at_cells + tilt, dim=1)).log()
    tilted = torch.softmax(at_cells + tilt, dim=1)
    mean_spread = torch.einsum("u,ukl->kl", evidence.cell_weight / evidence.weight.sum(), spread(tilted))
    slope = spread(tilted) @ torch.linalg.pinv(mean_spread, rtol=FREE, hermitian=True)
    return Centre(without_dust(tilted), slope, influence, constant.curvature.of_mean())


def constant_influence(evidence: Evidence, constant: Fit) -> tuple[Tensor, Tensor]:
    """The constant g (K,), and by how much each row (blank ones last) moves it, (n + m, K)."""
    level = constant.prevalence.log_prob(evidence.codes[:1]).exp()
    pooled = evidence.without_confounders()
    problem = CellProblem(pooled.ratio, pooled.weight, pooled.cell, torch.zeros_like(level))
    inverse = simplex_covariance(problem.information(level), level > FREE)
    return level[0], problem.scores(level) @ inverse[0]


def inside(level: Tensor) -> Tensor:
    """Move a start off the simplex's faces, which EM could not leave."""
    return 0.999 * level + 0.001 / level.shape[-1]


def without_dust(prevalence: Tensor) -> Tensor:
    """Count classes that are all but absent as absent."""
    kept = torch.where(prevalence < DUST, 0.0, prevalence)
    return kept / kept.sum(-1, keepdim=True)


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
    centre: Centre,
    strength: float,
) -> Fit:
    """Wrap solved cells up with their curvature and optimism."""
    probability = finite(found.point.log()).exp()
    free = probability > FREE
    inverse = simplex_covariance(problem.information(probability), free)
    scores = problem.score_gram(probability)
    covariance, optimism = inverse, float((inverse * scores).sum())
    if evidence.groups is not None:
        grouped = _grouped_gram(evidence, problem.scores(probability))
        covariance = at_least(inverse @ grouped @ inverse, inverse)
        optimism = max(optimism, float((inverse * grouped).sum()))
    pull = torch.zeros_like(inverse)
    if centre.slope is not None:
        pull = inverse @ (torch.where(free, strength / probability, 0.0)[:, :, None] * centre.slope)
    level_covariance = torch.zeros_like(inverse[0]) if centre.covariance is None else centre.covariance
    mean_covariance = _mean_covariance(evidence, problem.scores(probability), inverse, pull, centre)
    return Fit(
        prevalence,
        CellCurvature(covariance, pull, level_covariance, mean_covariance, agreement),
        log_likelihood=float(evidence.log_likelihood(probability)),
        optimism=optimism,
        converged=found.converged,
        gap=float(found.gap.max()),
        tolerance=CONCAVE_TOLERANCE,
        n_iter=found.n_iter,
        trace=[-float(value) for value in found.trace],
        strength=strength,
    )


def _mean_covariance(evidence: Evidence, scores: Tensor, inverse: Tensor, pull: Tensor, centre: Centre) -> Tensor:
    """Covariance (K, K) of the site's mean of g, from what each row moves it by (equation 11a).

    A row moves its own cell and, where cells are shrunk to the site's constant g, all the others by way of that. A
    centre that was given counts as rows that were seen: there the inverse information is the covariance.
    """
    share = evidence.cell_weight / evidence.weight.sum()
    as_seen = torch.einsum("c,ckl->kl", share**2, inverse)
    if centre.influence is None and evidence.groups is None:
        return as_seen
    towards = (share[:, None, None] * inverse).unbind(2)  # class by class: (n, K, K) would be too much to hold
    own = torch.stack([(scores * column[evidence.cell]).sum(1) for column in towards], dim=1)
    if centre.influence is None:
        assert evidence.groups is not None
        return at_least(gram(own, evidence.weight, evidence.groups[: len(own)]), as_seen)
    blank = own.new_zeros(len(evidence.blank_weight), own.shape[1])
    moved = torch.cat([own, blank]) + centre.influence @ torch.einsum("c,ckl->lk", share, pull)
    return gram(moved, torch.cat([evidence.weight, evidence.blank_weight]), evidence.groups)


def _grouped_gram(evidence: Evidence, scores: Tensor) -> Tensor:
    """Σ_G S_G S_Gᵀ of the scores added up over each group within each cell, (C, K, K)."""
    assert evidence.groups is not None
    n_cells = len(evidence.codes)
    pair = evidence.groups[: len(scores)] * n_cells + evidence.cell
    sums = sum_by(evidence.weight[:, None] * scores, pair)
    cell = torch.unique(pair) % n_cells
    empty = sums.new_zeros(n_cells, sums.shape[1])
    columns = [empty.index_add(0, cell, sums[:, k : k + 1] * sums) for k in range(sums.shape[1])]
    return group_factor(evidence.groups) * torch.stack(columns, dim=1)


def _safe_divide(count: Tensor, probability: Tensor) -> Tensor:
    """count / probability, with 0 / 0 = 0."""
    return torch.where(count > 0, count / probability, 0.0)
