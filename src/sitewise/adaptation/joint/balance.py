"""The balance of r: among x of its own population every cell (z-point, class) is as frequent as it is there.

r(x,y,z) = P(x|y,z) / P_s(x) has a mean of one over P_s(x) at every (z, y). A learned one has not: rows of any site then
seem to speak for the cells whose mean is too large, and weights follow (equation 15e).
"""

import math

import torch
from torch import Tensor

from sitewise.adaptation.joint.mixture import Mixture, make_mixture
from sitewise.solvers import newton

RIDGE = 0.01  # of the rows, for log b = 0: where x tells cells apart for certain, no factor changes their shares
LEAST, MOST = 0.25, 2.0  # of b: a cell with next to no rows is not to be known better than that
TOLERANCE = 1e-6


def log_balance(log_joint_ratio: Tensor, joint: Tensor, weight: Tensor) -> Tensor:
    """log b (M, K) to be added to log r (n, M, K), so that rows of the population give its joint (M, K) back.

    Cells that no row can be of, or that the population has not, are left as they are.
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
        found = cells * mixture.sums(cells)[1] / total  # the shares that rows give
        bend = torch.diag(found) - cells[:, None] * mixture.information(cells) * cells / total
        hessian = bend / root[:, None] / root + RIDGE * torch.eye(len(root), dtype=root.dtype, device=root.device)
        return ((found - share) / root + RIDGE * point[0])[None], hessian[None]

    lower, upper = (math.log(edge) * root[None] for edge in (LEAST, MOST))
    solved = newton(value, derivatives, torch.zeros_like(root)[None], lower=lower, upper=upper, tolerance=TOLERANCE)
    found = torch.zeros_like(joint).flatten()
    found[seen] = solved.point[0] / root
    return found.reshape(joint.shape)
