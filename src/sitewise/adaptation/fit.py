"""What every way of estimating g hands back."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch import Tensor

from sitewise.adaptation.evidence import Evidence
from sitewise.adaptation.posterior.points import Posterior
from sitewise.prevalence import Prevalence
from sitewise.uncertainty import Curvature

CONCAVE_TOLERANCE = 1e-9
GRADIENT_TOLERANCE = 1e-7


@dataclass(frozen=True)
class Hindsight:
    """What a look back at a fit tells: its curvature, and by how much it flatters its own rows (equation 10)."""

    curvature: Curvature
    optimism: float


@dataclass(frozen=True)
class Fit:
    """An estimated g with its certificate; looking back costs another pass, so that waits until somebody asks."""

    prevalence: Prevalence
    log_likelihood: float
    converged: bool
    gap: float
    tolerance: float
    n_iter: int
    trace: list[float] = field(repr=False)
    strength: float
    look_back: Callable[[], Hindsight] | Hindsight = field(repr=False)  # what computes it, or it
    refit: Callable[[Evidence], Prevalence] | None = field(default=None, repr=False)  # to other weights of the rows
    aim: Tensor | None = field(default=None, repr=False)  # (K,) what a constant g is shrunk to
    pseudo_counts: Tensor | None = field(default=None, repr=False)  # (C, K) rows of known class, of free distributions
    identified: bool = True  # whether f says anything at all
    rivals: "tuple[Rival, ...]" = field(default=(), repr=False)  # whom it was chosen from, itself among them
    posterior: Posterior | None = field(default=None, repr=False)  # where g is a posterior's and not a maximum's

    def __getstate__(self) -> dict[str, Any]:
        """What pickle keeps: the look back itself instead of the problem that it would be computed from."""
        return vars(self) if self.posterior is not None else {**vars(self), "look_back": self._hindsight}

    @cached_property
    def _hindsight(self) -> Hindsight:
        return self.look_back if isinstance(self.look_back, Hindsight) else self.look_back()

    @property
    def curvature(self) -> Curvature:
        """What intervals are made of."""
        return self._hindsight.curvature

    @property
    def optimism(self) -> float:
        """O of equation 10."""
        return self._hindsight.optimism


@dataclass(frozen=True)
class Rival:
    """A fit that might have been chosen, and how much speaks for it among all of them."""

    fit: Fit
    weight: float
    finish: Callable[[], Fit] = field(repr=False)  # the same with what it says of rows that lack part of z
