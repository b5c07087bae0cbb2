"""What every way of estimating g hands back, and the choice among several by the likelihood of left-out rows."""

import math
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
NO_CURVATURE = (
    "this g has no curvature to make intervals of: use interval(method='bootstrap'), or estimate it with a prior"
)
NO_RIVAL = 0.003  # a share of the weight that is not worth its trouble
TIE = 1e-3  # log-likelihood units: more than the solvers' tolerance leaves open, less than data can tell apart


@dataclass(frozen=True)
class Hindsight:
    """Post-fit diagnostics: the curvature, and the optimism of the likelihood on its own rows (equation 10)."""

    curvature: Curvature
    optimism: float


def no_curvature() -> Hindsight:
    """Refuse: a posterior has points instead, and a fit by plain EM has none."""
    raise ValueError(NO_CURVATURE)


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
        """What pickle keeps: the post-fit diagnostics instead of the problem that they would be computed from."""
        return vars(self) if self.look_back is no_curvature else {**vars(self), "look_back": self._hindsight}

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


def left_out(fit: Fit) -> float:
    """Left-out log-likelihood, L - O of equation 10."""
    return fit.log_likelihood - fit.optimism


def best(fits: list[Fit]) -> Fit:
    """The fit with the highest left-out likelihood; of equals the one most strongly shrunk, which comes first."""
    top = max(map(left_out, fits))
    return next(fit for fit in fits if left_out(fit) >= top - TIE)


@dataclass(frozen=True)
class Finisher:
    """A fit that is finished lazily, once."""

    fit: Fit
    evidence: Evidence
    finish: Callable[[Fit, Evidence], Fit]

    def __call__(self) -> Fit:
        """Give the finished fit."""
        return self._finished

    @cached_property
    def _finished(self) -> Fit:
        return self.finish(self.fit, self.evidence)


def rivals(fits: list[Fit], evidence: Evidence, finish: Callable[[Fit, Evidence], Fit]) -> tuple[Rival, ...]:
    """Those that left-out rows speak for, weighted by the likelihood they give them (equation 11b)."""
    if len(fits) == 1:
        return ()
    top = max(map(left_out, fits))
    odds = [math.exp(left_out(fit) - top) for fit in fits]
    shares = [value / sum(odds) for value in odds]
    finishers = [Finisher(fit, evidence, finish) for fit in fits]
    return tuple(Rival(*each) for each in zip(fits, shares, finishers, strict=True) if each[1] > NO_RIVAL)
