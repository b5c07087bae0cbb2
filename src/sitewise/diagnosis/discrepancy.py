"""The test of a difference of means, without the directions that a change of g explains."""

import torch
from scipy.stats import chi2, ncx2
from torch import Tensor


def leave_out(directions: Tensor, metric: Tensor) -> Tensor:
    """Return the matrix (M, M) that removes P directions (M, P) from a vector (M,), for M compared means.

    It is the projection in the diagonal metric `metric` (M,).
    """
    scaled = metric.sqrt()[:, None] * directions
    norms = scaled.norm(dim=0)
    scaled = scaled[:, norms > 1e-12] / norms[norms > 1e-12]
    basis, values, _ = torch.linalg.svd(scaled, full_matrices=False)
    basis = basis[:, values > 1e-6 * values.max()] if len(values) else basis
    projection = torch.eye(len(metric), dtype=torch.float64) - basis @ basis.T
    remover: Tensor = projection * (metric.sqrt() / metric.sqrt()[:, None])
    return remover


def quadratic_p_value(statistic: float, eigenvalues: Tensor) -> float:
    """Return P(Σ λ_i χ²_i > statistic) for independent χ² variables with one degree of freedom each.

    The sum is approximated by a noncentral χ² with the same first three or four cumulants (Liu, Tang and Zhang 2009).
    """
    values = eigenvalues.clamp_min(0.0)
    c1, c2, c3, c4 = (float((values**power).sum()) for power in (1, 2, 3, 4))
    if c2 <= 0:
        return 1.0
    skew, kurtosis = c3 / c2**1.5, c4 / c2**2
    standard = (statistic - c1) / (2 * c2) ** 0.5
    if skew**2 > kurtosis:
        a = 1 / (skew - (skew**2 - kurtosis) ** 0.5)
        shift = skew * a**3 - a**2
        degrees = a**2 - 2 * shift
    else:
        a, shift, degrees = 1 / skew, 0.0, 1 / skew**2
    place = standard * (2**0.5) * a + degrees + shift
    return float(ncx2.sf(place, degrees, shift) if shift > 0 else chi2.sf(place, degrees))
