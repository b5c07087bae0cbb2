"""The B-spline basis, in torch so that it runs on any device; the same numbers as scikit-learn's SplineTransformer."""

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

DEGREE = 3
Nonzero = tuple[Tensor, list[Tensor]]


def spline_basis(nonzero: Nonzero, n_knots: int) -> Tensor:
    """The whole basis (n, n_knots + degree - 1), which sums to one, of what `nonzero_splines` gives."""
    place, found = nonzero
    basis = found[0].new_zeros(place.shape[0], n_knots + len(found) - 2)
    columns = place[:, None] + torch.arange(len(found), device=place.device)
    return basis.scatter(1, columns, torch.stack(found, dim=1))


def spline_sum(nonzero: Nonzero, coefficients: Tensor) -> Tensor:
    """The product (n, K) of the basis with coefficients (n_knots + degree - 1, K), without its zeros."""
    place, found = nonzero
    total = found[0][:, None] * coefficients.index_select(0, place)
    for r in range(1, len(found)):
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


def nonzero_splines(values: Tensor, knots: Sequence[float], degree: int = DEGREE) -> Nonzero:
    """Which is the first of the degree + 1 functions that are not zero at values within the knots, and all of them.

    They are those that reach between the two knots around a value, by Cox and de Boor's recursion. The knots are
    continued beyond both ends at the spacing of the outermost pair.
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
