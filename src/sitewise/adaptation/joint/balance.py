"""Balance r so that its own population gives back the population's joint distribution of (z, y).

r(x,y,z) = P(x|y,z) / P_s(x) has a mean of one over P_s(x) at every (z, y). A learned r does not. Then the weights of
cells whose mean is too large are overestimated at every site (equation 15e).
"""

import math

import torch
from torch import Tensor

from sitewise.adaptation.joint.mixture import Mixture, make_mixture
from sitewise.solvers import newton

RIDGE = 0.01  # on log b, relative to the rows: if x separates cells completely, no factor changes their shares
LEAST, MOST = 0.25, 2.0  # limits of b, for cells with very few rows
TOLERANCE = 1e-6


def log_balance(log_joint_ratio: Tensor, joint: Tensor, weight: Tensor) -> Tensor:
    """Return log b (M, K) to add to log r (n, M, K), so that the population's rows give back its joint (M, K).

    Cells that no row can belong to, or that do not occur in the population, are not changed.
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
        estimated = cells * mixture.sums(cells)[1] / total  # the shares by the rows
        bend = torch.diag(estimated) - cells[:, None] * mixture.information(cells) * cells / total
        hessian = bend / root[:, None] / root + RIDGE * torch.eye(len(root), dtype=root.dtype, device=root.device)
        return ((estimated - share) / root + RIDGE * point[0])[None], hessian[None]

    lower, upper = (math.log(edge) * root[None] for edge in (LEAST, MOST))
    solved = newton(value, derivatives, torch.zeros_like(root)[None], lower=lower, upper=upper, tolerance=TOLERANCE)
    log_b = torch.zeros_like(joint).flatten()
    log_b[seen] = solved.point[0] / root
    return log_b.reshape(joint.shape)
