"""Maximize a mixture's penalized likelihood: Newton's steps of a primal-dual interior method, certified by the KKT gap.

With pseudo-rows c_p and N their weight and that of the rows, minimize Σ_p w_p - (Σ_n w_n log m_n + Σ_p c_p log w_p) / N
over w > 0 (equation 15a). A cell's slack s_p stands for c_p / (N w_p): with it Newton's steps stay long where weights
are all but zero.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sitewise.adaptation.joint.mixture import CURVED_ENTRIES, Mixture
from sitewise.solvers import ARMIJO, ROUNDING, Solution

STEERING_ENTRIES = 2**22  # of rows whose curvature steers the steps of all: the gap, over all rows, decides
STEERING_ROWS = 16  # for each cell at least
PATIENCE = 30  # iterations before more rows steer
TO_THE_BOUND = 0.99  # of the way to it at most
SHRINK = 0.1  # of the barrier after a long step, down to what the pseudo-rows ask for
LONG_STEP = 0.7
HALVINGS = 30
SINGLE_ROUNDING = 1e-9  # of a likelihood whose rows are in single precision
BARRIER = 0.01  # at first, of the weights
RIDGE = 1e-6  # relative, where rounding spoils a Hessian


@dataclass(frozen=True)
class Point:
    """Where a climb is: weights of the cells, slacks, and what a pass over the rows said there."""

    cells: Tensor
    slack: Tensor
    log_likelihood: Tensor
    slope: Tensor


@dataclass(frozen=True)
class Climb:
    """The problem: a mixture with pseudo-rows (P,)."""

    mixture: Mixture
    pseudo: Tensor

    @property
    def total(self) -> float:
        """N, the weight of rows and pseudo-rows."""
        return self.mixture.total_weight + float(self.pseudo.sum())

    def look(self, cells: Tensor, slack: Tensor) -> Point:
        """Go over the rows once."""
        return Point(cells, slack, *self.mixture.sums(cells))

    def value(self, at: Point, barrier: Tensor) -> Tensor:
        """What is minimized, with a barrier (P,) in the place of the pseudo-rows."""
        return at.cells.sum() - at.log_likelihood / self.total - barrier @ at.cells.log()

    def gap(self, at: Point) -> Tensor:
        """The KKT gap of the penalized problem once the weights are scaled to sum to one (equation 15a)."""
        return at.cells.sum() * ((at.slope + self.pseudo / at.cells) / self.total).max() - 1.0

    def penalized(self, at: Point) -> Tensor:
        """Minus the penalized log-likelihood, likewise scaled."""
        size = at.cells.sum()
        scaled = at.log_likelihood - self.mixture.total_weight * size.log()
        return -(scaled + torch.xlogy(self.pseudo, at.cells / size).sum())


def climb(
    mixture: Mixture, pseudo: Tensor, start: Tensor, *, tolerance: float, max_iter: int = 200
) -> Solution[Tensor]:
    """Find the weights of the cells (P,) with `pseudo` rows (P,) added to them, from a start inside the simplex.

    Every trial point costs one pass over r; where rows are very many, the curvature is that of a sample.
    """
    problem, start = Climb(mixture, pseudo), _inside(start)
    total = problem.total
    curved, scale = mixture.sample(max(STEERING_ENTRIES, STEERING_ROWS * len(start) ** 2))
    least = 1e-3 * tolerance / len(start)  # a barrier for cells without pseudo-rows, too weak to matter
    target = (problem.pseudo / total).clamp_min(least)
    rounding = ROUNDING if mixture.ratio.dtype == torch.float64 else SINGLE_ROUNDING
    barrier = torch.maximum(target, BARRIER * start)
    at = problem.look(start, barrier / start)
    trace, gap = [problem.penalized(at)], problem.gap(at)
    best, best_gap, n_iter = at, gap, 0
    while float(gap) > tolerance and n_iter < max_iter:
        n_iter += 1
        if n_iter == PATIENCE:
            curved, scale = mixture.sample(CURVED_ENTRIES)
        bend = curved.information(at.cells) * (scale / total)
        gradient = 1.0 - at.slope / total - barrier / at.cells
        move = -_solve(bend + torch.diag(at.slack / at.cells), gradient)
        slack_move = barrier / at.cells - at.slack - at.slack / at.cells * move
        slack = at.slack + _reach(at.slack, slack_move) * slack_move
        length, allowed, promised = _reach(at.cells, move), problem.value(at, barrier), ARMIJO * float(gradient @ move)
        allowed = allowed + rounding * allowed.abs().clamp_min(1.0)
        for halving in range(HALVINGS):
            step = length * 0.5**halving
            trial = problem.look(at.cells + step * move, slack)
            if bool(problem.value(trial, barrier) <= allowed + step * promised):
                break
        else:  # rounding leaves nothing to gain
            break
        at = replace(trial, slack=_near(slack, barrier / trial.cells))
        gap = problem.gap(at)
        trace.append(problem.penalized(at))
        if float(gap) < float(best_gap):
            best, best_gap = at, gap
        if step > LONG_STEP:
            barrier = torch.maximum(target, SHRINK * barrier)
    return Solution(best.cells / best.cells.sum(), best_gap, bool(best_gap <= tolerance), n_iter, trace)


def _inside(start: Tensor) -> Tensor:
    """A start off the simplex's faces."""
    cells = start.clamp_min(1e-3 * float(start.mean()))
    return cells / cells.sum()


def _solve(hessian: Tensor, gradient: Tensor) -> Tensor:
    """Newton's direction, scaled by the diagonal first: weights of cells differ by many orders of magnitude."""
    scale = torch.diagonal(hessian).rsqrt()
    scaled = scale[:, None] * hessian * scale
    factor, failed = torch.linalg.cholesky_ex(scaled)
    if int(failed):
        factor = torch.linalg.cholesky(scaled + RIDGE * torch.eye(len(scale), dtype=scale.dtype, device=scale.device))
    return scale * torch.cholesky_solve((scale * gradient)[:, None], factor)[:, 0]


def _reach(values: Tensor, move: Tensor) -> float:
    """How much of a move keeps all values above zero, at most all of it."""
    ratios = torch.where(move < 0, -values / move, torch.inf)
    return min(1.0, TO_THE_BOUND * float(ratios.min()))


def _near(slack: Tensor, central: Tensor) -> Tensor:
    """Slacks no farther from the central path than where Newton's steps are good."""
    return torch.minimum(torch.maximum(slack, 1e-3 * central), 1e3 * central)
