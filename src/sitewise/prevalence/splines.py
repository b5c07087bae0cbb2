"""The B-spline basis in torch, for any device, with the same values as scikit-learn's SplineTransformer."""

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

DEGREE = 3
Nonzero = tuple[Tensor, list[Tensor]]


def spline_basis(nonzero: Nonzero, n_knots: int) -> Tensor:
    """Return the full basis (n, n_knots + degree - 1), whose rows sum to one, from the result of `nonzero_splines`."""
    place, values = nonzero
    basis = values[0].new_zeros(place.shape[0], n_knots + len(values) - 2)
    columns = place[:, None] + torch.arange(len(values), device=place.device)
    return basis.scatter(1, columns, torch.stack(values, dim=1))


def spline_sum(nonzero: Nonzero, coefficients: Tensor) -> Tensor:
    """Return basis @ coefficients, (n, K), without multiplying by the zeros of the basis."""
    place, values = nonzero
    total = values[0][:, None] * coefficients.index_select(0, place)
    for r in range(1, len(values)):
        total = total + values[r][:, None] * coefficients[r:].index_select(0, place)
    return total


@lru_cache(maxsize=256)
def _windows(knots: tuple[float, ...], degree: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the inner knots (I, 1), and for each interval the 2 degree knots around it. Do not write to them."""
    base = torch.tensor(knots, dtype=dtype, device=device)
    steps = torch.arange(1, degree + 1, dtype=dtype, device=device)
    before = base[0] - steps.flip(0) * (base[1] - base[0])
    after = base[-1] + steps * (base[-1] - base[-2])
    grid = torch.cat([before, base, after])
    return base[1:-1, None], grid[1:-1].unfold(0, 2 * degree, 1).contiguous()


def nonzero_splines(values: Tensor, knots: Sequence[float], degree: int = DEGREE) -> Nonzero:
    """Return the degree + 1 nonzero basis functions at values within the knots, and the index of the first one.

    They are computed by the recursion of Cox and de Boor. The knots are continued beyond both ends at the spacing of
    the outermost pair.
    """
    inner, windows = _windows(tuple(knots), degree, values.dtype, values.device)
    # The number of inner knots up to a value; the last interval includes its end.
    place = (values >= inner).sum(dim=0)
    around = windows.index_select(0, place)  # (n, 2 degree) knots
    below = [values - knot for knot in around[:, :degree].unbind(1)][::-1]
    above = [knot - values for knot in around[:, degree:].unbind(1)]
    splines = [torch.ones_like(values)]
    for d in range(1, degree + 1):
        carried = torch.zeros_like(values)
        for r in range(d):
            share = splines[r] / (above[r] + below[d - 1 - r])
            splines[r] = carried + above[r] * share
            carried = below[d - 1 - r] * share
        splines.append(carried)
    return place, splines
