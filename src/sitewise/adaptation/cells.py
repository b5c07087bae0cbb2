"""g as free distributions: one for the site (constant) or one for each cell of z (table).

In each cell the concave function `Σ_n w_n log Σ_y f_ny g_y + Σ_y ν_y log g_y` is maximized over the simplex (equation
8). ν are the pseudo-rows of known class, which shrink g.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import torch
from torch import Tensor

from sitewise.adaptation.cell_problem import (
    CellProblem,
    constant_problem,
    inside,
    solve_cells,
    table_problem,
)
from sitewise.adaptation.evidence import Evidence
from sitewise.adaptation.fit import CONCAVE_TOLERANCE, Fit, PostFit
from sitewise.adaptation.rows import Rows, Stream, scores
from sitewise.posterior import softmax_hessian
from sitewise.prevalence.base import ConstantPrevalence, Prevalence, finite
from sitewise.prevalence.table import TablePrevalence, require_discrete
from sitewise.solvers import EM, Solution, squarem
from sitewise.uncertainty import CellCurvature, at_least, simplex_covariance

FREE = 1e-9  # a probability below this is at its bound
DUST = 1e-9  # smaller shares of a shrinkage target are set to zero: their pseudo-counts would only add curvature
BLANK_TOLERANCE = 1e-6  # of the gap of the accelerated EM, which is used if there are rows without z


@dataclass(frozen=True)
class Centre:
    """The shrinkage target of each of C cells, and its dependence on the constant g fitted to the site's rows.

    Except for `prevalence`, all attributes are None if the target does not depend on this constant g.
    """

    prevalence: Tensor  # (C, K)
    slope: Tensor | None = None  # (C, K, K) derivative of the target in the constant g
    level: Tensor | None = None  # (K,) the constant g
    covariance: Tensor | None = None  # (K, K) of the constant g, as if all rows were independent


def fit_constant_cell(evidence: Evidence, prior: Tensor, strength: float, solver: str | EM, start: Tensor) -> Fit:
    """Estimate a constant g: the whole site is one cell.

    It has `strength` pseudo-rows, which are divided among the classes as in `prior` (K,).
    """
    problem = constant_problem(evidence, strength * prior)
    begin, sample = start[None], problem.sampled(few=True)
    if sample is not None and not isinstance(solver, EM):
        begin = inside(solve_cells(sample, begin, solver).point)
    solution = solve_cells(problem, begin, solver)
    prevalence = ConstantPrevalence(finite(solution.point.log())[0])
    pooled = evidence.without_confounders()
    fit = _fit(pooled, problem, solution, prevalence, one_cell, None, strength)
    return replace(fit, refit=RefitConstant(prior, strength, inside(solution.point[0])), aim=prior)


@dataclass(frozen=True)
class RefitConstant:
    """A function that refits a constant g after a change of the rows' weights or of f."""

    prior: Tensor  # (K,)
    strength: float
    start: Tensor  # (K,)

    def __call__(self, drawn: Evidence) -> Prevalence:
        """Return the refitted g."""
        return fit_constant_cell(drawn, self.prior, self.strength, "auto", self.start).prevalence


def one_cell(codes: Tensor) -> Tensor:
    """Return the weight of the single cell of a constant g for each row, (n, 1): one."""
    return codes.new_ones(len(codes), 1)


def variance_per_row(evidence: Evidence, level: Tensor) -> Tensor:
    """Return the covariance (K, K) of the constant g `level`, times the number of rows; many rows are sampled."""
    whole = constant_problem(evidence, torch.zeros_like(level))
    problem = whole.sampled(few=True) or whole
    return simplex_covariance(problem.information(level[None]), level[None] > FREE)[0] * problem.total[0]


def fit_table_cells(evidence: Evidence, cells: Tensor, centre: Centre, strength: float, solver: str | EM) -> Fit:
    """Estimate a table of g over cells of z, (C, V); each cell is shrunk to its target, `centre`.

    A cell has `strength` pseudo-rows, which are divided among the classes as in its target.
    """
    assert evidence.schema is not None
    require_discrete(evidence.schema)
    problem = table_problem(evidence, cells, strength * centre.prevalence)
    start = inside(centre.prevalence)
    solution = solve_cells(problem, start, solver)
    if evidence.blank_weight:
        solution = _share_blank_rows(evidence, problem, 0.99 * solution.point + 0.01 * start)
    table = TablePrevalence(evidence.schema, cells, finite(solution.point.log()), problem.cell_weight)
    return _fit(evidence, problem, solution, table, table.agreement, centre, strength)


def fixed_centre(cells: Tensor, level: Tensor) -> Centre:
    """Return the shrinkage target of cells that are shrunk to a given constant g (K,)."""
    return Centre(without_dust(level).expand(len(cells), -1))


def constant_centre(cells: Tensor, constant: Fit) -> Centre:
    """Return the shrinkage target of cells that are shrunk to the constant g fitted to the site's rows."""
    level, covariance = level_of(constant)
    whole = torch.eye(len(level), dtype=level.dtype, device=level.device).expand(len(cells), -1, -1)
    return replace(fixed_centre(cells, level), slope=whole, level=level, covariance=covariance)


def tilted_centre(evidence: Evidence, cells: Tensor, constant: Fit, model: Prevalence) -> Centre:
    """Return the shrinkage target of cells that are shrunk to another g(z), `model`.

    The level of this g(z) is changed so that its mean over the site is the site's constant g.
    """
    level, covariance = level_of(constant)
    at_cells = model.log_prob(cells)
    share = table_problem(evidence, cells, torch.zeros_like(at_cells)).cell_weight / evidence.seen_weight
    tilt = torch.zeros_like(level)
    for _ in range(200):  # iterative proportional fitting of the level
        tilt = tilt + level.log() - (share @ torch.softmax(at_cells + tilt, dim=1)).log()
    tilted = torch.softmax(at_cells + tilt, dim=1)
    mean_hessian = torch.einsum("c,ckl->kl", share, softmax_hessian(tilted))
    slope = softmax_hessian(tilted) @ torch.linalg.pinv(mean_hessian, rtol=FREE, hermitian=True)
    return Centre(without_dust(tilted), slope, level, covariance)


def level_of(constant: Fit) -> tuple[Tensor, Tensor]:
    """Return the constant g (K,) and its covariance (K, K), as if all rows were independent."""
    assert isinstance(constant.curvature, CellCurvature)
    nothing = torch.zeros(1, 0, dtype=torch.float64)
    return constant.prevalence.log_prob(nothing)[0].exp(), constant.curvature.inverse_information[0]


def without_dust(prevalence: Tensor) -> Tensor:
    """Set shares below DUST to zero, and normalize the others to sum to one."""
    kept = torch.where(prevalence < DUST, 0.0, prevalence)
    return kept / kept.sum(-1, keepdim=True)


def _share_blank_rows(evidence: Evidence, problem: CellProblem, start: Tensor) -> Solution[Tensor]:
    """Maximize the likelihood of all rows, including blank rows, whose g is the site's mean; by accelerated EM.

    The E-step distributes each row over the classes, and a blank row over the cells as well.
    """
    share = problem.cell_weight / evidence.seen_weight

    def slope(prevalence: Tensor) -> Tensor:
        """Return the derivative of the penalized log-likelihood in g, (C, K)."""
        pull = evidence.blank_moments(share @ prevalence, 1).slope
        return problem.multiplier(prevalence) * problem.total[:, None] + share[:, None] * pull

    def objective(prevalence: Tensor) -> Tensor:
        blank = evidence.blank_moments(share @ prevalence, 0).log_likelihood
        return -(problem.log_likelihood(prevalence).sum() + blank[0])

    def normalize_cells(prevalence: Tensor) -> Tensor:
        inside = prevalence.clamp_min(1e-300)
        return inside / inside.sum(1, keepdim=True)

    def gap(prevalence: Tensor) -> Tensor:
        pull = slope(prevalence)
        return (pull / (prevalence * pull).sum(1, keepdim=True)).amax(1) - 1.0

    return squarem(
        lambda prevalence: normalize_cells(prevalence * slope(prevalence)),
        normalize_cells(start),
        objective,
        normalize_cells,
        gap,
        tolerance=BLANK_TOLERANCE,
    )


def _fit(
    evidence: Evidence,
    problem: CellProblem,
    solution: Solution[Tensor],
    prevalence: ConstantPrevalence | TablePrevalence,
    agreement: Callable[[Tensor], Tensor],
    centre: Centre | None,
    strength: float,
) -> Fit:
    """Make a fit from the solution of the cells."""
    probability = finite(solution.point.log()).exp()
    log_likelihood = problem.moments(probability, 0).log_likelihood.sum()
    if evidence.blank_weight:
        mean = problem.cell_weight @ probability / evidence.seen_weight
        log_likelihood = log_likelihood + evidence.blank_moments(mean, 0).log_likelihood[0]
    return Fit(
        prevalence,
        log_likelihood=float(log_likelihood),
        converged=solution.converged,
        gap=float(solution.gap.max()),
        tolerance=CONCAVE_TOLERANCE,
        n_iter=solution.n_iter,
        trace=[-float(value) for value in solution.trace],
        strength=strength,
        post_fit=lambda: post_fit_at_cells(evidence, problem, probability, agreement, centre, strength),
        pseudo_counts=problem.pseudo,
    )


def post_fit_at_cells(
    evidence: Evidence,
    problem: CellProblem,
    probability: Tensor,
    agreement: Callable[[Tensor], Tensor],
    centre: Centre | None,
    strength: float,
) -> PostFit:
    """Return the post-fit covariance of the cells' g, `probability` (C, K), and the optimism."""
    free = probability > FREE
    inverse = simplex_covariance(problem.information(probability), free)
    covariance, optimism = inverse, float((inverse * problem.moments(probability, 2).curvature).sum())
    if evidence.groups is not None and evidence.groups.factor:
        grouped = _grouped_gram(problem, probability)
        covariance = at_least(inverse @ grouped @ inverse, inverse)
        optimism = max(optimism, float((inverse * grouped).sum()))
    pull, level_covariance = torch.zeros_like(inverse), torch.zeros_like(inverse[0])
    if centre is not None and centre.slope is not None and centre.covariance is not None:
        pull = inverse @ (torch.where(free, strength / probability, 0.0)[:, :, None] * centre.slope)
        level_covariance = centre.covariance
        optimism += float((pull @ level_covariance * _crossed_scores(problem, probability, centre)).sum())
    of_mean = _mean_covariance(evidence, problem, probability, inverse, pull, centre)
    return PostFit(CellCurvature(covariance, inverse, pull, level_covariance, of_mean, agreement), optimism)


def _crossed_scores(problem: CellProblem, probability: Tensor, centre: Centre) -> Tensor:
    """Return Σ w U U⁰ᵀ over the rows of each cell, (C, K, K).

    U is a row's score in the g of its cell, and U⁰ its score in the constant g to which the cells are shrunk.
    """
    assert centre.level is not None
    level = centre.level[None]

    def crossed(rows: Rows, place: Tensor) -> tuple[Tensor, ...]:
        own, whole = rows.weighted(scores(rows, probability[place])), scores(rows.without_codes(), level)
        return (torch.stack([rows.by_cell(own[:, k : k + 1] * whole) for k in range(own.shape[1])], dim=1),)

    return problem.total_of(crossed)[0]


def _mean_covariance(
    evidence: Evidence, problem: CellProblem, probability: Tensor, inverse: Tensor, pull: Tensor, centre: Centre | None
) -> Tensor:
    """Return the covariance (K, K) of the site's mean of g, from the influence of each row (equation 11a).

    A row influences its own cell. If cells are shrunk to the site's constant g, a row also influences this constant g,
    and through it all cells. If the shrinkage target is given instead and there are no groups, the covariance is the
    inverse information, in which the pseudo-rows count as observed rows.
    """
    share = problem.cell_weight / evidence.seen_weight
    as_seen = torch.einsum("c,ckl->kl", share**2, inverse)
    level = None if centre is None else centre.level
    if level is None and (evidence.groups is None or not evidence.groups.factor):
        return as_seen
    towards = share[:, None, None] * inverse

    def own(placed: tuple[Rows, Tensor]) -> tuple[Rows, Tensor]:
        rows, place = placed
        score = scores(rows, probability[place])
        by_class = (rows.at_rows(towards[place][:, :, k]) for k in range(score.shape[1]))
        return rows, torch.stack([(score * column).sum(1) for column in by_class], dim=1)

    if level is None or centre is None or centre.covariance is None:
        plain, grouped = evidence.gram(problem.placed, own)
        return at_least(plain if grouped is None else at_least(grouped, plain), as_seen)
    carried = centre.covariance @ torch.einsum("c,ckl->lk", share, pull)

    def by_way_of_the_level(placed: tuple[Rows, Tensor | None]) -> tuple[Rows, Tensor]:
        rows, place = placed
        moved = scores(rows.without_codes(), level[None]) @ carried
        return rows, moved if place is None else own((rows, place))[1] + moved

    blank: Stream[tuple[Rows, Tensor | None]] = evidence.blank.map(lambda rows: (rows, None))
    seen = cast("Stream[tuple[Rows, Tensor | None]]", problem.placed)
    plain, grouped = evidence.gram(seen.followed_by(blank), by_way_of_the_level)
    return plain if grouped is None else at_least(grouped, plain)


def _grouped_gram(problem: CellProblem, probability: Tensor) -> Tensor:
    """Return Σ U Uᵀ over groups, times G / (G - 1), (C, K, K); U is a group's sum of scores in a cell."""
    groups = problem.evidence.groups
    assert groups is not None
    return groups.factor * problem.placed.sums(partial(_group_sums, probability))[0]


def _group_sums(probability: Tensor, placed: Iterable[tuple[Rows, Tensor]]) -> tuple[Tensor, ...]:
    n_cells, pairs, sums = len(probability), [], []
    for rows, place in placed:
        assert rows.groups is not None
        pair, index = torch.unique(rows.groups * n_cells + rows.at_rows(place), return_inverse=True)
        score = rows.weighted(scores(rows, probability[place]))
        pairs.append(pair)
        sums.append(score.new_zeros(len(pair), score.shape[1]).index_add_(0, index, score))
    if not pairs:
        return ()
    distinct, index = torch.unique(torch.cat(pairs), return_inverse=True)
    total = torch.cat(sums)
    total = total.new_zeros(len(distinct), total.shape[1]).index_add_(0, index, total)
    empty = total.new_zeros(n_cells, total.shape[1])
    columns = [empty.index_add(0, distinct % n_cells, total[:, k : k + 1] * total) for k in range(total.shape[1])]
    return (torch.stack(columns, dim=1),)
