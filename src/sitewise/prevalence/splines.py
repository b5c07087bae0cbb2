"""The B-spline basis, in torch so that it runs on any device; the same numbers as scikit-learn's SplineTransformer."""

from collections.abc import Sequence

import torch
from torch import Tensor

DEGREE = 3


def spline_basis(values: Tensor, knots: Sequence[float], degree: int = DEGREE) -> Tensor:
    """Evaluate the (n, len(knots) + degree - 1) basis at values within the knots, by Cox and de Boor's recursion.

    The knots are continued beyond both ends at the spacing of the outermost pair; the basis sums to one.
    """
    base = torch.tensor(knots, dtype=values.dtype, device=values.device)
    steps = torch.arange(1, degree + 1, dtype=values.dtype, device=values.device)
    before = base[0] - steps.flip(0) * (base[1] - base[0])
    after = base[-1] + steps * (base[-1] - base[-2])
    grid = torch.cat([before, base, after])
    x = values[:, None]
    # The last base interval is closed, so that the maximum has a value.
    at_end, last = x == base[-1], torch.arange(len(grid) - 1, device=values.device) == degree + len(knots) - 2
    inside = ((x >= grid[:-1]) & (x < grid[1:]) & ~at_end) | (at_end & last)
    basis = inside.to(values.dtype)
    for d in range(1, degree + 1):
        rising = (x - grid[: -d - 1]) / (grid[d:-1] - grid[: -d - 1])
        falling = (grid[d + 1 :] - x) / (grid[d + 1 :] - grid[1:-d])
        basis = rising * basis[:, :-1] + falling * basis[:, 1:]
    return basis
