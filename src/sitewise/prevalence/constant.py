"""g that does not depend on z: the site's marginal prevalence, algorithm 2's target."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from sitewise.prevalence.base import SMOOTHING, finite, smooth


@dataclass(frozen=True)
class ConstantPrevalence:
    """log g(z) = log P(y) for every z."""

    log_marginal: Tensor  # (K,)
    name: str = "constant"
    is_constant: ClassVar[bool] = True

    def log_prob(self, codes: Tensor) -> Tensor:
        """Return the marginal for every row."""
        return self.log_marginal.expand(codes.shape[0], -1)  # a number of rows that a trace can follow


def fit_constant(targets: Tensor, weight: Tensor, *, smoothing: float = SMOOTHING) -> ConstantPrevalence:
    """Fit to soft labels (n, K): their weighted mean."""
    mean = weight @ smooth(targets, weight, smoothing) / weight.sum()
    return ConstantPrevalence(finite(mean.log()))
