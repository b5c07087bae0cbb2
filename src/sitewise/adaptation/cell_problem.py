"""The likelihood of free distributions, one for the whole site or one for each cell of z, and how it is climbed.

Concave (equation 8): Newton with its KKT gap, by way of a sample where rows are plenty, or EM as it is written.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from sitewise.adaptation.evidence import Evidence, few_rows
from sitewise.adaptation.fit import CONCAVE_TOLERANCE
from sitewise.adaptation.rows import Moments, Rows, Stream, moments, rough_moments
from sitewise.arrays import distinct_rows, find_rows
from sitewise.solvers import EM, ROUNDING, Solution, em, newton, quasi_newton

ROUGH_TOLERANCE = 1e-4
GPU_ROUNDING = 1e-9  # of likelihoods whose rows' logarithms are rounded
PLENTY = 8  # times the few rows that make a first guess: then it pays to set out from their optimum


@dataclass(frozen=True)
class CellProblem:
    """The likelihood of every cell's distribution, with its derivatives; all cells at once."""

    evidence: Evidence
    placed: Stream[tuple[Rows, Tensor]]  # stretches of rows, and the cells (U,) that their codes are
    pseudo: Tensor  # (C, K)
    rough: bool = False  # one cell only: sums to six digits, in half the time
    _last: dict[str, Moments] = field(default_factory=dict, repr=False)

    @cached_property
    def cell_weight(self) -> Tensor:
        """The weight of the rows in each cell, (C,)."""
        return self._total((place, (rows.cell_weight,)) for rows, place in self.placed)[0]

    @cached_property
    def total(self) -> Tensor:
        """The weight in each cell, pseudo-counts included, (C,)."""
        return self.cell_weight + self.pseudo.sum(1)

    def moments(self, prevalence: Tensor, order: int) -> Moments:
        """Sums over the rows of each cell (equation 7c); the last ones are remembered."""
        last = self._last.get("moments")
        known = last is not None and (order < 2 or last.second is not None)
        if last is not None and known and torch.equal(last.prevalence, prevalence):
            return last
        if self.rough:
            parts = ((place, rough_moments(rows, prevalence)) for rows, place in self.placed)
        else:
            parts = ((place, moments(rows, prevalence[place], order)) for rows, place in self.placed)
        found = Moments(prevalence, self.cell_weight, *self._total((place, m.sums) for place, m in parts))
        self._last["moments"] = found
        return found

    def log_likelihood(self, prevalence: Tensor, order: int = 1) -> Tensor:
        """The penalized log-likelihood of each cell, (C,)."""
        return self.moments(prevalence, order).log_likelihood + torch.xlogy(self.pseudo, prevalence).sum(1)

    def multiplier(self, prevalence: Tensor, order: int = 1) -> Tensor:
        """EM's factor for each class in each cell, (C, K); at most one at the optimum (equation 8)."""
        slope = self.moments(prevalence, order).slope + _safe_divide(self.pseudo, prevalence)
        return slope / self.total[:, None]

    def information(self, prevalence: Tensor) -> Tensor:
        """Minus the second derivative of the penalized log-likelihood in g, (C, K, K)."""
        curvature = self.moments(prevalence, 2).curvature
        return curvature + torch.diag_embed(_safe_divide(self.pseudo, prevalence**2))

    def value(self, prevalence: Tensor, order: int = 2) -> Tensor:
        """-L / N + Σ_y g_y of each cell, (C,), whose optimum over g ≥ 0 sums to one by itself."""
        return prevalence.sum(1) - self.log_likelihood(prevalence, order) / self.total

    def value_and_gradient(self, prevalence: Tensor) -> tuple[Tensor, Tensor]:
        """That and its derivative, (C, K)."""
        return self.value(prevalence, order=1), 1.0 - self.multiplier(prevalence)

    def derivatives(self, prevalence: Tensor) -> tuple[Tensor, Tensor]:
        """Its gradient (C, K) and Hessian (C, K, K)."""
        hessian = self.information(prevalence) / self.total[:, None, None]
        return 1.0 - self.multiplier(prevalence, order=2), hessian

    def gap(self, prevalence: Tensor, order: int = 1) -> Tensor:
        """The KKT gap of each cell, (C,)."""
        return self.multiplier(prevalence, order).amax(1) - 1.0

    def _total(self, parts: Iterable[tuple[Tensor, tuple[Tensor, ...]]]) -> tuple[Tensor, ...]:
        """Add sums over the codes of each stretch up in the cells that these are."""
        n_cells = len(self.pseudo)

        def into_cells() -> Iterator[tuple[Tensor, ...]]:
            for place, sums in parts:
                if n_cells == 1:
                    yield sums
                    continue
                yield tuple(s.new_zeros(n_cells, *s.shape[1:]).index_add_(0, place, s) for s in sums)

        return self.evidence.total(into_cells())


def constant_problem(evidence: Evidence, pseudo: Tensor) -> CellProblem:
    """The whole site as one cell, with pseudo-counts (K,)."""
    whole = torch.zeros(1, dtype=torch.int64, device=evidence.device)
    return CellProblem(evidence, evidence.everything.map(lambda rows: (rows, whole)), pseudo[None])


def table_problem(evidence: Evidence, cells: Tensor, pseudo: Tensor) -> CellProblem:
    """Every distinct z as a cell (C, V), with pseudo-counts (C, K)."""
    return CellProblem(evidence, evidence.rows.map(lambda rows: (rows, find_rows(rows.codes, cells))), pseudo)


def find_cells(evidence: Evidence) -> Tensor:
    """The distinct rows of z, (C, V)."""
    found = torch.cat([distinct_rows(rows.codes)[0] for rows in evidence.rows])
    return distinct_rows(found)[0]


def solve_cells(
    problem: CellProblem, start: Tensor, solver: str | EM, tolerance: float = CONCAVE_TOLERANCE
) -> Solution[Tensor]:
    """Maximize every cell's likelihood from a start (C, K) inside the simplex."""
    if isinstance(solver, EM):
        return em(
            start,
            e_step=problem.multiplier,
            m_step=lambda factor, prevalence: prevalence * factor,
            objective=lambda prevalence: -problem.log_likelihood(prevalence).sum(),
            gap=problem.gap,
            tolerance=tolerance,
            max_iter=solver.iterations or 10_000,
        )
    if start.shape[1] == 2:
        return _solve_for_one_number(problem, start, tolerance)
    return _solve_on_the_simplex(problem, start, tolerance)


def _solve_for_one_number(problem: CellProblem, start: Tensor, tolerance: float) -> Solution[Tensor]:
    """Two classes: a number in each cell, p = g_1, by Newton between 0 and 1."""

    def at(p: Tensor) -> Tensor:
        return torch.cat([1.0 - p, p], dim=1)

    def value(p: Tensor) -> Tensor:
        return -problem.log_likelihood(at(p), order=2) / problem.total

    def derivatives(p: Tensor) -> tuple[Tensor, Tensor]:
        found = problem.moments(at(p), 2)
        assert found.first is not None
        assert found.second is not None
        per_class = _safe_divide(problem.pseudo, at(p)), _safe_divide(problem.pseudo, at(p) ** 2)
        slope = found.first + per_class[0][:, 1:] - per_class[0][:, :1]
        bend = found.second + per_class[1].sum(1)[:, None, None]
        return -slope / problem.total[:, None], bend / problem.total[:, None, None]

    begin = start[:, 1:]
    found = newton(
        value,
        derivatives,
        begin,
        gap=lambda p, _: problem.gap(at(p), order=2),
        lower=torch.zeros_like(begin),
        upper=torch.ones_like(begin),
        tolerance=tolerance,
        rounding=GPU_ROUNDING if start.is_cuda else ROUNDING,
    )
    trace = [(problem.total * step).sum() for step in found.trace]
    return replace(found, point=at(found.point), trace=trace)


def _solve_on_the_simplex(problem: CellProblem, start: Tensor, tolerance: float) -> Solution[Tensor]:
    """Several classes: Newton over g ≥ 0, where rows are plenty by way of a sample."""
    found = None if len(start) > 1 else _solve_by_way_of_a_sample(problem, start)
    if found is None or not found.converged:
        found = newton(
            problem.value,
            problem.derivatives,
            start if found is None else found.point,
            gap=_simplex_gap,
            lower=torch.zeros_like(start),
            retract=_onto_the_simplex,
            tolerance=tolerance,
        )
    trace = [(problem.total * (step - 1.0)).sum() for step in found.trace]
    return replace(found, trace=trace)


def _solve_by_way_of_a_sample(problem: CellProblem, start: Tensor) -> Solution[Tensor] | None:
    """Climb by the gradients of all rows and the curvature of a sample: a Hessian of all rows would be dear.

    First roughly, then in full with the curvature where that led to.
    """
    few, sample = sample_problem(problem, few=True), sample_problem(problem)
    if few is None or sample is None:
        return None
    found, rough = None, replace(problem, rough=True, _last={})
    for climb, bent, tolerance in ((rough, few, ROUGH_TOLERANCE), (problem, sample, CONCAVE_TOLERANCE)):
        begin = start if found is None else found.point
        found = quasi_newton(
            climb.value_and_gradient,
            begin,
            bent.information(begin) / bent.total[:, None, None],
            gap=_simplex_gap,
            lower=torch.zeros_like(start),
            retract=_onto_the_simplex,
            tolerance=tolerance,
        )
    return found


def _simplex_gap(_: Tensor, gradient: Tensor) -> Tensor:
    """The KKT gap from the gradient 1 - d of equation 8."""
    return -gradient.amin(1)


def _onto_the_simplex(prevalence: Tensor) -> Tensor:
    return prevalence / prevalence.sum(1, keepdim=True)


def sample_problem(problem: CellProblem, *, few: bool = False) -> CellProblem | None:
    """The same problem for a sample of the rows, with its share of the pseudo-counts; None where rows are not many."""
    sample = problem.evidence.of_sample(few=few)
    if problem.evidence.n_rows < PLENTY * few_rows(problem.evidence.n_classes):
        return None
    return constant_problem(sample, problem.pseudo[0] * sample.total_weight / problem.evidence.total_weight)


def inside(level: Tensor) -> Tensor:
    """Move a start off the simplex's faces, which EM could not leave."""
    return 0.999 * level + 0.001 / level.shape[-1]


def _safe_divide(count: Tensor, probability: Tensor) -> Tensor:
    """count / probability, with 0 / 0 = 0."""
    return torch.where(count > 0, count / probability, 0.0)
