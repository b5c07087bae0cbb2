"""What every way of estimating g hands back."""

from dataclasses import dataclass

from sitewise.prevalence import Prevalence
from sitewise.uncertainty import Curvature

CONCAVE_TOLERANCE = 1e-9
GRADIENT_TOLERANCE = 1e-7


@dataclass(frozen=True)
class Fit:
    """An estimated g with its certificate, its curvature, and by how much it flatters its own rows (equation 10)."""

    prevalence: Prevalence
    curvature: Curvature
    log_likelihood: float
    optimism: float
    converged: bool
    gap: float
    tolerance: float
    n_iter: int
    trace: list[float]
    strength: float
    identified: bool = True  # whether f says anything at all
