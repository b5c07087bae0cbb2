"""The B-spline basis, in torch so that it runs on any device; the same numbers as scikit-learn's SplineTransformer."""

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

DEGREE = 3


def spline_basis(values: Tensor, knots: Sequence[float], degree: int = DEGREE) -> Tensor:
    """Evaluate the (n, len(knots) + degree - 1) basis at values within the knots; it sums to one.

    The knots are continued beyond both ends at the spacing of the outermost pair.
    """
    place, found = _not_zero(values, knots, degree)
    basis = values.new_zeros(values.shape[0], len(knots) + degree - 1)
    columns = place[:, None] + torch.arange(degree + 1, device=values.device)
    return basis.scatter(1, columns, torch.stack(found, dim=1))


def spline_sum(values: Tensor, knots: Sequence[float], coefficients: Tensor, degree: int = DEGREE) -> Tensor:
    """The product (n, K) of the basis with coefficients (len(knots) + degree - 1, K), without its zeros."""
    place, found = _not_zero(values, knots, degree)
    total = found[0][:, None] * coefficients.index_select(0, place)
    for r in range(1, degree + 1):
        total = total + found[r][:, None] * coefficients[r:].index_select(0, place)
    return total


@lru_cache(maxsize=256)
def _windows(knots: tuple[float, ...], degree: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """The inner knots (I, 1), and for each interval the 2 degree knots around it, to be read only."""
    base = torch.tensor(knots, dtype=dtype, device=device)
    steps = torch.arange(1, degree + 1, dtype=dtype, device=device)
    before = base[0] - steps.flip(0) * (base[1] - base[0])
    after = base[-1] + steps * (base[-1] - base[-2])
    grid = torch.cat([before, base, after])
    return base[1:-1, None], grid[1:-1].unfold(0, 2 * degree, 1).contiguous()


def _not_zero(values: Tensor, knots: Sequence[float], degree: int) -> tuple[Tensor, list[Tensor]]:
    """The degree + 1 functions that are not zero at a value, by Cox and de Boor's recursion, and which is the first.

    They are those that reach between the two knots around it.
    """
    inner, windows = _windows(tuple(knots), degree, values.dtype, values.device)
    # How many inner knots a value has reached; the last interval is closed, so that the maximum has a value.
    place = (values >= inner).sum(dim=0)
    around = windows.index_select(0, place)  # (n, 2 degree) knots
    below = [values - knot for knot in around[:, :degree].unbind(1)][::-1]
    above = [knot - values for knot in around[:, degree:].unbind(1)]
    found = [torch.ones_like(values)]
    for d in range(1, degree + 1):
        carried = torch.zeros_like(values)
        for r in range(d):
            share = found[r] / (above[r] + below[d - 1 - r])
            found[r] = carried + above[r] * share
            carried = below[d - 1 - r] * share
        found.append(carried)
    return place, found
