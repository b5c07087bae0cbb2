"""The likelihood of free distributions, one for the whole site or one for each cell of z, and its maximization.

The likelihood is concave (equation 8). It is maximized by Newton's method until the KKT gap is small, or by EM. With
many rows, Newton's method starts at the optimum of a sample.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import torch
from torch import Tensor

from sitewise.adaptation.evidence import Evidence, few_rows
from sitewise.adaptation.fit import CONCAVE_TOLERANCE
from sitewise.adaptation.rows import Rows, Stream, moments, rough_moments
from sitewise.arrays import distinct_rows, find_rows
from sitewise.posterior import Moments, moments_of
from sitewise.solvers import EM, ROUNDING, Solution, em, interior, newton, quasi_newton

ROUGH_TOLERANCE = 1e-4  # of the gap of sums in single precision
GPU_ROUNDING = 1e-9  # relative rounding error of likelihoods on a GPU, whose logarithms are in single precision
PLENTY = 8  # with more than this many times `few_rows`, the optimum of a sample is computed first


@dataclass(frozen=True)
class Cells(ABC):
    """The likelihood of P(y) in each cell of z, with its derivatives, for all C cells at once.

    A subclass provides the weight of each cell and the sums over its rows.
    """

    pseudo: Tensor  # (C, K) pseudo-counts
    _last: dict[str, Moments] = field(default_factory=dict, repr=False, kw_only=True)

    @cached_property
    @abstractmethod
    def cell_weight(self) -> Tensor:
        """The weight of the rows in each cell, (C,)."""

    @abstractmethod
    def _moments(self, prevalence: Tensor, order: int) -> Moments:
        """Compute the sums over the rows of each cell (equation 7c)."""

    @cached_property
    def total(self) -> Tensor:
        """The weight of each cell's rows and pseudo-counts, (C,)."""
        return self.cell_weight + self.pseudo.sum(1)

    def moments(self, prevalence: Tensor, order: int) -> Moments:
        """Return the sums over the rows of each cell (equation 7c); the last result is cached."""
        last = self._last.get("moments")
        known = last is not None and (order < 2 or last.second is not None)
        if last is not None and known and torch.equal(last.prevalence, prevalence):
            return last
        latest = self._last["moments"] = self._moments(prevalence, order)
        return latest

    def sampled(self, *, few: bool = False) -> "CellProblem | None":
        """Return the same problem for a sample of the rows; None if there are few rows or several cells."""
        return None

    def log_likelihood(self, prevalence: Tensor, order: int = 1) -> Tensor:
        """Return the penalized log-likelihood of each cell, (C,)."""
        return self.moments(prevalence, order).log_likelihood + torch.xlogy(self.pseudo, prevalence).sum(1)

    def multiplier(self, prevalence: Tensor, order: int = 1) -> Tensor:
        """Return EM's factor ξ for each class in each cell, (C, K); at the optimum it is at most one (equation 8)."""
        slope = self.moments(prevalence, order).slope + _safe_divide(self.pseudo, prevalence)
        return slope / self.total[:, None]

    def information(self, prevalence: Tensor) -> Tensor:
        """Return minus the second derivative of the penalized log-likelihood in g, (C, K, K)."""
        curvature = self.moments(prevalence, 2).curvature
        return curvature + torch.diag_embed(_safe_divide(self.pseudo, prevalence**2))

    def value(self, prevalence: Tensor, order: int = 2) -> Tensor:
        """Return -L / N + Σ_y g_y of each cell, (C,); the g ≥ 0 that minimizes it sums to one."""
        return prevalence.sum(1) - self.log_likelihood(prevalence, order) / self.total

    def value_and_gradient(self, prevalence: Tensor) -> tuple[Tensor, Tensor]:
        """Return `value` and its gradient, (C, K)."""
        return self.value(prevalence, order=1), 1.0 - self.multiplier(prevalence)

    def derivatives(self, prevalence: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradient (C, K) and the Hessian (C, K, K) of `value`."""
        hessian = self.information(prevalence) / self.total[:, None, None]
        return 1.0 - self.multiplier(prevalence, order=2), hessian

    def gap(self, prevalence: Tensor, order: int = 1) -> Tensor:
        """Return the KKT gap of each cell, (C,)."""
        return self.multiplier(prevalence, order).amax(1) - 1.0


@dataclass(frozen=True)
class CellProblem(Cells):
    """The cells of a site's evidence."""

    evidence: Evidence
    placed: Stream[tuple[Rows, Tensor]]  # chunks of rows, and the cells (U,) of their codes
    rough: bool = False  # with one cell only: compute sums with about six correct digits, in half the time

    @cached_property
    def cell_weight(self) -> Tensor:
        """The weight of the rows in each cell, (C,)."""
        return self.total_of(_cell_weight)[0]

    def _moments(self, prevalence: Tensor, order: int) -> Moments:
        rough = self.rough

        def sums(rows: Rows, place: Tensor) -> tuple[Tensor, ...]:
            return (rough_moments(rows, prevalence, order) if rough else moments(rows, prevalence[place], order)).sums

        return Moments(prevalence, self.cell_weight, *self.total_of(sums))

    def sampled(self, *, few: bool = False) -> "CellProblem | None":
        """Return the problem for a sample of the rows; pseudo-counts are reduced by the same factor as the weight.

        Return None if there are few rows or several cells.
        """
        evidence = self.evidence
        if len(self.pseudo) > 1 or evidence.n_rows < PLENTY * few_rows(evidence.n_classes):
            return None
        sample = evidence.of_sample(few=few)
        return constant_problem(sample, self.pseudo[0] * sample.total_weight / evidence.total_weight)

    def total_of(self, sums: Callable[[Rows, Tensor], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """Add up, for each cell, the sums over the rows of all chunks."""
        return self.placed.total(partial(_into_cells, sums, len(self.pseudo)))


def _into_cells(
    sums: Callable[[Rows, Tensor], tuple[Tensor, ...]], n_cells: int, placed: tuple[Rows, Tensor]
) -> tuple[Tensor, ...]:
    sums_of_cells, place = sums(*placed), placed[1]
    if n_cells == 1:
        return sums_of_cells
    return tuple(s.new_zeros(n_cells, *s.shape[1:]).index_add_(0, place, s) for s in sums_of_cells)


def _cell_weight(rows: Rows, place: Tensor) -> tuple[Tensor, ...]:
    return (rows.cell_weight,)


@dataclass(frozen=True)
class ManyConstants(Cells):
    """B constant g, each treated as a cell: one for each of B sets of row weights, and possibly B versions of f."""

    ratio: Tensor  # (n, J) or (B, n, J), from `to_ratio`
    weights: Tensor  # (B, n)

    @cached_property
    def cell_weight(self) -> Tensor:
        """The sum of each set of weights, (B,)."""
        return self.weights.sum(1)

    def _moments(self, prevalence: Tensor, order: int) -> Moments:
        return moments_of(self.ratio, self.weights, prevalence)


def constant_problem(evidence: Evidence, pseudo: Tensor) -> CellProblem:
    """Return the problem with the whole site as one cell, with pseudo-counts (K,)."""
    whole = torch.zeros(1, dtype=torch.int64, device=evidence.device)
    return CellProblem(pseudo[None], evidence, evidence.everything.map(lambda rows: (rows, whole)))


def table_problem(evidence: Evidence, cells: Tensor, pseudo: Tensor) -> CellProblem:
    """Return the problem with the given cells of z (C, V), with pseudo-counts (C, K)."""
    return CellProblem(pseudo, evidence, evidence.rows.map(lambda rows: (rows, find_rows(rows.codes, cells))))


def find_cells(evidence: Evidence) -> Tensor:
    """Return the distinct z of the site's rows, (C, V)."""
    distinct = torch.cat(evidence.rows.collect(lambda rows: distinct_rows(rows.codes)[0]))
    return distinct_rows(distinct)[0]


def solve_cells(
    problem: Cells, start: Tensor, solver: str | EM, tolerance: float = CONCAVE_TOLERANCE
) -> Solution[Tensor]:
    """Maximize every cell's likelihood; the start (C, K) must lie inside the simplex."""
    if isinstance(solver, EM):
        return em(
            start,
            e_step=problem.multiplier,
            m_step=lambda factor, prevalence: _onto_the_simplex(prevalence * factor.clamp_min(0.0)),
            objective=lambda prevalence: -problem.log_likelihood(prevalence).sum(),
            gap=problem.gap,
            tolerance=tolerance,
            max_iter=solver.iterations or 10_000,
        )
    quick = _solve_for_one_number if start.shape[1] == 2 else _solve_on_the_simplex
    solution = quick(problem, start, tolerance)
    return solution if solution.converged else _solve_from_inside(problem, start, solution, tolerance)


def _solve_from_inside(problem: Cells, start: Tensor, quick: Solution[Tensor], tolerance: float) -> Solution[Tensor]:
    """Maximize by the interior-point method, and return the better result in each cell.

    It is used if the faster solver did not reach the tolerance, for example because classes are absent.
    """
    total, share = problem.total, problem.cell_weight / problem.total

    def look(weights: Tensor) -> tuple[Tensor, Tensor]:  # moments are computed at a g that sums to one
        size = weights.sum(1)
        moments = problem.moments(weights / size[:, None], 2)
        return moments.log_likelihood / total + share * size.log(), moments.slope / (total * size)[:, None]

    def bend(weights: Tensor, _: int) -> Tensor:
        size = weights.sum(1)
        return problem.moments(weights / size[:, None], 2).curvature / (total * size**2)[:, None, None]

    sure = interior(look, bend, start, problem.pseudo / total[:, None], tolerance=tolerance)
    better = sure.gap < quick.gap
    point, gap = torch.where(better[:, None], sure.point, quick.point), torch.where(better, sure.gap, quick.gap)
    trace = [*quick.trace, -problem.log_likelihood(point).sum()]
    return Solution(point, gap, bool((gap <= tolerance).all()), quick.n_iter + sure.n_iter, trace)


def _solve_for_one_number(problem: Cells, start: Tensor, tolerance: float) -> Solution[Tensor]:
    """Maximize over p = g_1 in each cell for two classes, by Newton's method between 0 and 1."""

    def at(p: Tensor) -> Tensor:
        return torch.cat([1.0 - p, p], dim=1)

    def value(p: Tensor) -> Tensor:
        return -problem.log_likelihood(at(p), order=2) / problem.total

    def derivatives(p: Tensor) -> tuple[Tensor, Tensor]:
        moments = problem.moments(at(p), 2)
        assert moments.first is not None
        assert moments.second is not None
        per_class = _safe_divide(problem.pseudo, at(p)), _safe_divide(problem.pseudo, at(p) ** 2)
        slope = moments.first + per_class[0][:, 1:] - per_class[0][:, :1]
        bend = moments.second + per_class[1].sum(1)[:, None, None]
        return -slope / problem.total[:, None], bend / problem.total[:, None, None]

    begin = start[:, 1:]
    solution = newton(
        value,
        derivatives,
        begin,
        gap=lambda p, _: problem.gap(at(p), order=2),
        lower=torch.zeros_like(begin),
        upper=torch.ones_like(begin),
        tolerance=tolerance,
        rounding=GPU_ROUNDING if start.is_cuda else ROUNDING,
    )
    trace = [(problem.total * step).sum() for step in solution.trace]
    return replace(solution, point=at(solution.point), trace=trace)


def _solve_on_the_simplex(problem: Cells, start: Tensor, tolerance: float) -> Solution[Tensor]:
    """Maximize over g ≥ 0 for more than two classes, by Newton's method; with many rows, a sample is used first."""
    solution = _solve_by_way_of_a_sample(problem, start)
    if solution is None or not solution.converged:
        solution = newton(
            problem.value,
            problem.derivatives,
            start if solution is None else solution.point,
            gap=_simplex_gap,
            lower=torch.zeros_like(start),
            retract=_onto_the_simplex,
            tolerance=tolerance,
        )
    trace = [(problem.total * (step - 1.0)).sum() for step in solution.trace]
    return replace(solution, trace=trace)


def _solve_by_way_of_a_sample(problem: Cells, start: Tensor) -> Solution[Tensor] | None:
    """Maximize in two stages with an approximate curvature, which BFGS corrects; return None if there are few rows.

    The first stage uses sums in the precision of f and the curvature of a sample. The second stage uses sums in double
    precision, and the curvature of all rows in the precision of f, computed at the result of the first stage. So few
    passes in double precision are needed.
    """
    few = problem.sampled(few=True)
    if few is None:
        return None
    assert isinstance(problem, CellProblem)
    solution, rough = None, replace(problem, rough=True, _last={})
    for climb, bent, tolerance in ((rough, few, ROUGH_TOLERANCE), (problem, rough, CONCAVE_TOLERANCE)):
        begin = start if solution is None else solution.point
        solution = quasi_newton(
            climb.value_and_gradient,
            begin,
            bent.information(begin) / bent.total[:, None, None],
            gap=_simplex_gap,
            lower=torch.zeros_like(start),
            retract=_onto_the_simplex,
            tolerance=tolerance,
        )
    return solution


def _simplex_gap(_: Tensor, gradient: Tensor) -> Tensor:
    """Return the KKT gap from the gradient of `value`, 1 - ξ (equation 8)."""
    return -gradient.amin(1)


def _onto_the_simplex(prevalence: Tensor) -> Tensor:
    return prevalence / prevalence.sum(1, keepdim=True)


def inside(level: Tensor) -> Tensor:
    """Move a start from the faces of the simplex to its inside, because EM cannot leave a face."""
    return 0.999 * level + 0.001 / level.shape[-1]


def _safe_divide(count: Tensor, probability: Tensor) -> Tensor:
    """Return count / probability, with 0 / 0 = 0."""
    return torch.where(count > 0, count / probability, 0.0)
