"""The result of a fit of g, and the choice among candidate fits by the likelihood of left-out rows."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch import Tensor

from sitewise.adaptation.evidence import Evidence
from sitewise.adaptation.posterior.points import Posterior
from sitewise.prevalence.base import Prevalence
from sitewise.uncertainty import Curvature

CONCAVE_TOLERANCE = 1e-9
GRADIENT_TOLERANCE = 1e-7
NO_CURVATURE = "this g has no curvature for intervals: use interval(method='bootstrap'), or estimate it with a prior"
NEGLIGIBLE = 0.003  # share of the weight below which a candidate is dropped
TIE = 1e-3  # log-likelihood units: more than the error of the solvers, less than data can distinguish


@dataclass(frozen=True)
class PostFit:
    """Post-fit diagnostics: the curvature, and the optimism of the log-likelihood (equation 10)."""

    curvature: Curvature
    optimism: float


def no_curvature() -> PostFit:
    """Raise ValueError; stands in place of the diagnostics of a posterior or of a fit by plain EM, which have none."""
    raise ValueError(NO_CURVATURE)


@dataclass(frozen=True)
class Fit:
    """An estimated g with convergence diagnostics; post-fit diagnostics are computed lazily."""

    prevalence: Prevalence
    log_likelihood: float
    converged: bool
    gap: float
    tolerance: float
    n_iter: int
    trace: list[float] = field(repr=False)
    strength: float
    post_fit: Callable[[], PostFit] | PostFit = field(repr=False)  # the diagnostics, or a function that computes them
    refit: Callable[[Evidence], Prevalence] | None = field(default=None, repr=False)  # to changed weights or f
    aim: Tensor | None = field(default=None, repr=False)  # (K,) shrinkage target of a constant g
    pseudo_counts: Tensor | None = field(default=None, repr=False)  # (C, K) pseudo-rows in each of a table's C cells
    identified: bool = True  # whether f is informative
    candidates: "tuple[Candidate, ...]" = field(default=(), repr=False)  # all candidate fits, including this one
    posterior: Posterior | None = field(default=None, repr=False)  # None if g maximizes the (penalized) likelihood

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickle, with the diagnostics in place of the function that computes them."""
        return vars(self) if self.post_fit is no_curvature else {**vars(self), "post_fit": self.diagnostics}

    @cached_property
    def diagnostics(self) -> PostFit:
        """The post-fit diagnostics; they are computed on first use."""
        return self.post_fit if isinstance(self.post_fit, PostFit) else self.post_fit()

    @property
    def curvature(self) -> Curvature:
        """The post-fit curvature, from which intervals are computed."""
        return self.diagnostics.curvature

    @property
    def optimism(self) -> float:
        """The optimism O of equation 10."""
        return self.diagnostics.optimism


@dataclass(frozen=True)
class Candidate:
    """A candidate fit, and its weight among all candidates."""

    fit: Fit
    weight: float
    finish: Callable[[], Fit] = field(repr=False)  # returns the fit after fitting g of rows with missing values


def left_out(fit: Fit) -> float:
    """Return the estimated left-out log-likelihood, L - O of equation 10."""
    return fit.log_likelihood - fit.optimism


def best(fits: list[Fit]) -> Fit:
    """Return the fit with the highest left-out likelihood; in a tie, the first one, which is shrunk most."""
    top = max(map(left_out, fits))
    return next(fit for fit in fits if left_out(fit) >= top - TIE)


@dataclass(frozen=True)
class Finisher:
    """A function that finishes a fit on first use: it fits the g of rows with missing values."""

    fit: Fit
    evidence: Evidence
    finish: Callable[[Fit, Evidence], Fit]

    def __call__(self) -> Fit:
        """Return the finished fit."""
        return self._finished

    @cached_property
    def _finished(self) -> Fit:
        return self.finish(self.fit, self.evidence)


def weigh_candidates(
    fits: list[Fit], evidence: Evidence, finish: Callable[[Fit, Evidence], Fit]
) -> tuple[Candidate, ...]:
    """Return the candidates with weights by their left-out likelihood (equation 11b).

    Candidates with a negligible weight are dropped. If there is one fit only, the tuple is empty.
    """
    if len(fits) == 1:
        return ()
    top = max(map(left_out, fits))
    odds = [math.exp(left_out(fit) - top) for fit in fits]
    shares = [value / sum(odds) for value in odds]
    finishers = [Finisher(fit, evidence, finish) for fit in fits]
    return tuple(Candidate(*each) for each in zip(fits, shares, finishers, strict=True) if each[1] > NEGLIGIBLE)
