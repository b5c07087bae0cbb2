"""Maximize a mixture's penalized likelihood (equation 15a): interior Newton steps, certified by the KKT gap."""

from functools import cache

import torch
from torch import Tensor

from sitewise.adaptation.joint.mixture import CURVED_ENTRIES, Mixture
from sitewise.solvers import ROUNDING, Solution, interior

STEERING_ENTRIES = 2**22  # of rows whose curvature steers the steps of all: the gap, over all rows, decides
STEERING_ROWS = 16  # for each cell at least
PATIENCE = 30  # iterations before more rows steer
SINGLE_ROUNDING = 1e-9  # of a likelihood that is summed in single precision
ROUGHLY = 1e-4  # the gap to which sums in single precision lead for certain; from there on they are in double


def climb(
    mixture: Mixture, pseudo: Tensor, start: Tensor, *, tolerance: float, max_iter: int = 200
) -> Solution[Tensor]:
    """Find the weights of the cells (P,) with `pseudo` rows (P,) added to them, from a start inside the simplex.

    Every trial point costs one pass over r; where rows are very many, the curvature is that of a sample. Where r is
    kept in single precision, so are the sums of the first steps, but never those that certify the last one.
    """
    total = mixture.total_weight + float(pseudo.sum())
    few_entries = max(STEERING_ENTRIES, STEERING_ROWS * len(start) ** 2)
    sample = cache(mixture.sample)

    def bend(cells: Tensor, n_iter: int) -> Tensor:
        few, scale = sample(few_entries if n_iter < PATIENCE else CURVED_ENTRIES)
        return (few.information(cells[0]) * (scale / total))[None]

    def solve(begin: Tensor, *, precise: bool, tolerance: float) -> Solution[Tensor]:
        def look(cells: Tensor) -> tuple[Tensor, Tensor]:
            log_likelihood, slope = mixture.sums(cells[0], precise=precise)
            return (log_likelihood / total)[None], (slope / total)[None]

        found = interior(
            look,
            bend,
            begin[None],
            pseudo[None] / total,
            tolerance=tolerance,
            max_iter=max_iter,
            rounding=ROUNDING if precise else SINGLE_ROUNDING,
        )
        trace = [total * value[0] for value in found.trace]
        return Solution(found.point[0], found.gap[0], found.converged, found.n_iter, trace)

    if mixture.ratio.dtype == torch.float64:
        return solve(start, precise=True, tolerance=tolerance)
    rough = solve(start, precise=False, tolerance=max(tolerance, ROUGHLY))
    exact = solve(rough.point, precise=True, tolerance=tolerance)
    return Solution(
        exact.point, exact.gap, exact.converged, rough.n_iter + exact.n_iter, [*rough.trace, *exact.trace[1:]]
    )
