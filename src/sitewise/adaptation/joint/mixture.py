"""The likelihood of unlabeled x as a mixture over cells (z-point, class), with its derivatives (equation 15).

A cell p of the bank is a pair of one of M z-points and one of K classes. Its weight is π_p = P_b(z, y). The density of
row n, relative to the training population, is m_n = Σ_p π_p r_np.

The true r(x,y,z) = P(x|y,z) / P_s(x) has a mean of one over P_s(x) at every (z, y). The mean of a learned r differs
from one. If the mean of a cell is too large, its weight is overestimated at every site. `log_balance` corrects this
(equation 15e).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from sitewise.solvers import newton

STRETCH = 2**20  # entries of r processed at a time, so that they stay in the processor's cache
PRECISE = 2**24  # largest number of entries of r that is kept in double precision; a larger r is in single precision
SAMPLED_ENTRIES = 2**20  # entries of r in a sample of rows for a first guess
LEAST_ROWS = 2048  # smallest size of a sample of rows
CURVED_ENTRIES = 2**26  # entries of r in a sample of rows for the curvature
RIDGE = 0.01  # penalty on log b per row: it determines b if x separates cells completely
LEAST, MOST = 0.25, 2.0  # limits of b, for cells with very few rows
TOLERANCE = 1e-6  # of the balance


@dataclass(frozen=True)
class Mixture:
    """The rows of r over P cells and their weights; each row is divided by its largest entry."""

    ratio: Tensor  # (n, P), single or double precision
    weight: Tensor  # (n,) double
    shift: Tensor  # Σ_n w_n log of the rows' largest entries

    @property
    def total_weight(self) -> float:
        """The weight of all rows."""
        return float(self.weight.sum())

    @property
    def n_cells(self) -> int:
        """The number of cells, P = M K."""
        return self.ratio.shape[1]

    def sums(self, cells: Tensor, *, precise: bool = True) -> tuple[Tensor, Tensor]:
        """Return Σ_n w_n log m_n and its gradient Σ_n w_n r_n / m_n (P,) at weights of the cells, in one pass.

        If `precise` is false, sums have the precision of r. In single precision they take half the time and have about
        six correct digits.
        """
        dtype = torch.float64 if precise else self.ratio.dtype
        point = cells.to(dtype)
        log_likelihood, slope = self.shift.clone(), torch.zeros_like(cells)
        for kept, weight in self.stretches():
            rows = kept.to(dtype)
            density = (rows @ point).double()
            log_likelihood += weight @ density.log()
            slope += (rows.T @ (weight / density).to(rows.dtype)).double()
        return log_likelihood, slope

    def densities(self, cells: Tensor) -> Tensor:
        """Return m_n of every scaled row, (n, Q), at Q sets of weights of the cells (P, Q)."""
        return torch.cat([(rows @ cells.to(rows.dtype)).double() for rows, _ in self.stretches()])

    def information(self, cells: Tensor) -> Tensor:
        """Return Σ_n w_n r_n r_nᵀ / m_n², (P, P): minus the Hessian of the log-likelihood."""
        total, point = cells.new_zeros(len(cells), len(cells)), cells.to(self.ratio.dtype)
        for rows, weight in self.stretches():
            scaled = rows * (weight.sqrt().to(rows.dtype) / (rows @ point))[:, None]
            total += scaled.T @ scaled
        return total

    def sample(self, entries: int = SAMPLED_ENTRIES) -> tuple["Mixture", float]:
        """Return a mixture of evenly spaced rows with about `entries` entries in total, and a factor.

        The factor is the weight of all rows divided by the weight of the returned rows.
        """
        wanted = max(LEAST_ROWS, entries // self.n_cells)
        if len(self.weight) <= wanted:
            return self, 1.0
        chosen = torch.arange(wanted, device=self.weight.device) * len(self.weight) // wanted
        few = Mixture(
            self.ratio[chosen].double() if len(chosen) * self.n_cells <= PRECISE else self.ratio[chosen],
            self.weight[chosen],
            torch.zeros_like(self.shift),
        )
        return few, self.total_weight / max(few.total_weight, 1e-300)

    def stretches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield blocks of rows with their weights."""
        size = max(1, STRETCH // self.n_cells)
        for first in range(0, len(self.weight), size):
            yield self.ratio[first : first + size], self.weight[first : first + size]


def make_mixture(log_joint_ratio: Tensor, weight: Tensor) -> Mixture:
    """Make a mixture from log r (n, M, K).

    If a row has entries of +inf, all other cells are excluded. A row of -inf carries no information.
    """
    flat = log_joint_ratio.reshape(len(log_joint_ratio), -1)
    dtype = torch.float64 if flat.numel() <= PRECISE else torch.float32
    ratio = torch.empty(flat.shape, dtype=dtype, device=flat.device)
    shift = torch.zeros((), dtype=torch.float64, device=flat.device)
    size = max(1, STRETCH // flat.shape[1])
    for first in range(0, len(flat), size):
        rows, own = flat[first : first + size], weight[first : first + size]
        scaled, largest = scale_rows(rows)
        ratio[first : first + size] = scaled
        shift += own @ largest.double()
    return Mixture(ratio, weight, shift)


def scale_rows(log_ratio: Tensor) -> tuple[Tensor, Tensor]:
    """Return r with each row divided by its largest entry, (n, P), and the logs of these entries (0 if infinite)."""
    largest = log_ratio.amax(1)
    shift = torch.where(largest.isfinite(), largest, 0.0)
    certain = (largest == torch.inf)[:, None]
    logs = torch.where(certain, torch.where(log_ratio == torch.inf, 0.0, -torch.inf), log_ratio - shift[:, None])
    silent = (largest == -torch.inf)[:, None]
    return torch.where(silent, 0.0, logs).exp(), shift


def log_balance(log_joint_ratio: Tensor, joint: Tensor, weight: Tensor) -> Tensor:
    """Return log b (M, K), the correction to add to log r (n, M, K); b is h in equation 15e.

    With this correction, the estimate from the population's rows is the population's joint distribution (M, K). Cells
    to which no row can belong, and cells that do not occur in the population, are not changed.
    """
    whole = make_mixture(log_joint_ratio, weight)
    seen = (joint.flatten() > 0) & (whole.ratio.amax(0) > 0)
    mixture = Mixture(whole.ratio[:, seen], whole.weight, whole.shift)
    share = joint.flatten()[seen] / joint.flatten()[seen].sum()
    total, root = mixture.total_weight, share.sqrt()

    def value(point: Tensor) -> Tensor:
        log_b = point[0] / root
        return (mixture.sums(share * log_b.exp())[0] / total - share @ log_b + 0.5 * RIDGE * point[0] @ point[0])[None]

    def derivatives(point: Tensor) -> tuple[Tensor, Tensor]:
        cells = share * (point[0] / root).exp()
        estimated = cells * mixture.sums(cells)[1] / total  # the shares of the cells, as estimated from the rows
        bend = torch.diag(estimated) - cells[:, None] * mixture.information(cells) * cells / total
        hessian = bend / root[:, None] / root + RIDGE * torch.eye(len(root), dtype=root.dtype, device=root.device)
        return ((estimated - share) / root + RIDGE * point[0])[None], hessian[None]

    lower, upper = (math.log(edge) * root[None] for edge in (LEAST, MOST))
    solved = newton(value, derivatives, torch.zeros_like(root)[None], lower=lower, upper=upper, tolerance=TOLERANCE)
    log_b = torch.zeros_like(joint).flatten()
    log_b[seen] = solved.point[0] / root
    return log_b.reshape(joint.shape)
