"""The additive family: logits that are a sum of one term for each variable of z."""

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from sitewise.adaptation.draws import LinearDraws, draw_linear
from sitewise.adaptation.evidence import Evidence
from sitewise.adaptation.families.base import Family, Request
from sitewise.adaptation.fit import Fit, best, left_out, weigh_candidates
from sitewise.adaptation.linear import (
    RefitAdditive,
    RefitFinished,
    additive_problem,
    fit_additive_terms,
    fit_missing_terms,
    start_at,
)
from sitewise.artifacts import Record
from sitewise.confounders import Confounders
from sitewise.prevalence.additive import AdditivePrevalence, fit_additive, missing_features
from sitewise.prevalence.base import is_constant
from sitewise.solvers import EM

RIDGES = (1000.0, 300.0, 100.0, 30.0, 10.0, 3.0, 1.0, 0.3, 0.1)
VANISHED = math.log(1e-4)  # if log P(y) of a class is lower, the fit may have lost this class
FAR_WORSE = 5.0  # loss of left-out log-likelihood beyond which weaker shrinkage is not tried


def _take_refit(refit: RefitAdditive) -> dict[str, Any]:
    return {field.name: getattr(refit, field.name) for field in fields(refit) if field.name != "_problem"}


class Additive(Family):
    """A sum of splines of numbers, effects of categories and effects of missing values, with one ridge penalty."""

    name = "additive"
    solvers = ("auto", "newton", "lbfgs", "em")
    takes_strength = True
    advice = "raise strength, or use model='auto'"
    records: ClassVar[Mapping[str, Record]] = {
        "AdditivePrevalence": Record(AdditivePrevalence, methods=("features", "log_prob")),
        "RefitAdditive": Record(RefitAdditive, _take_refit),
        "RefitFinished": Record(RefitFinished),
    }

    def fit_labels(
        self, targets: Tensor, codes: Tensor, weight: Tensor, schema: Confounders, *, knockout: float, seed: int
    ) -> AdditivePrevalence:
        """Fit by penalized maximum likelihood."""
        return fit_additive(targets, codes, weight, schema, knockout=knockout)

    def fit_rows(self, request: Request) -> Fit:
        """Fit at the given strength, or at the one with the highest left-out likelihood."""
        fits = additive_candidates(request)
        evidence = request.evidence
        return replace(self.finish(best(fits), evidence), candidates=weigh_candidates(fits, evidence, self.finish))

    def candidates(self, request: Request) -> list[Fit]:
        """Return an additive model for every strength."""
        return additive_candidates(request)

    def finish(self, fit: Fit, evidence: Evidence) -> Fit:
        """Fit the missing columns of variables that are never missing here (equation 9)."""
        return fit_missing_terms(fit, evidence)

    def draw(self, evidence: Evidence, fit: Fit, n_draws: int, generator: torch.Generator) -> LinearDraws:
        """Draw coefficients by their curvature; if P(Y) is near 0 or 1, draws are weighted by their likelihood."""
        model = cast(AdditivePrevalence, fit.prevalence)

        def log_likelihood(moved: Tensor) -> Tensor:
            problem = additive_problem(evidence, fit.strength, model.centre)
            point = (model.coefficients @ problem.basis).reshape(-1)
            values = torch.stack([problem.value(point + move, order=0) for move in moved])
            return (problem.value(point, order=0) - values) * evidence.total_weight

        columns = missing_features(model.schema)
        return draw_linear(evidence, fit, n_draws, generator, columns, log_likelihood)


def additive_candidates(request: Request) -> list[Fit]:
    """Return an additive model for every candidate strength, the strongest first.

    Each fit starts from the previous one. But if a class has vanished in the previous fit, its gradient there is zero,
    and the next fit begins at the original start. If the left-out likelihood is far below the best one so far, weaker
    shrinkage is not tried.
    """
    fits: list[Fit] = []
    start = first = starting_coefficients(request)
    ridges = [ridge for ridge in RIDGES if ridge >= request.evidence.weakest_ridge]
    strengths = ridges if isinstance(request.strength, str) else [float(request.strength)]
    unit = additive_problem(request.evidence, 1.0, request.centre)
    for value in strengths:
        problem = replace(unit, penalty=value * unit.penalty)
        fit, start = fit_additive_terms(problem, value, start, request.solver)
        fits.append(fit)
        if float(cast(AdditivePrevalence, fit.prevalence).log_marginal.min()) < VANISHED:
            start = first
        if len(strengths) > 1 and left_out(fit) < max(map(left_out, fits)) - FAR_WORSE:
            break
    return fits


def starting_coefficients(request: Request) -> Tensor:
    """Return the coefficients (P,) at which the fit starts.

    Without a given start, EM starts at random. Otherwise the start is the given g if it is additive, else the constant
    g. If the shrinkage target depends on z, the start is this target, or this target with its level moved to that of
    the constant g, whichever has the higher likelihood.
    """
    evidence, start, centre, constant = request.evidence, request.start, request.centre, request.level
    assert evidence.schema is not None
    problem = additive_problem(evidence, 0.0, centre)
    if isinstance(request.solver, EM) and not request.started:
        n_coefficients = problem.n_features * (evidence.n_classes - 1)
        noise = torch.randn(n_coefficients, generator=torch.Generator().manual_seed(request.seed), dtype=torch.float64)
        return noise.to(evidence.device)
    if start is not None and start.name == "additive" and centre is None:
        additive = cast(AdditivePrevalence, start)
        if additive.centre is None:
            return (additive.coefficients @ problem.basis).reshape(-1)
    level = (constant * evidence.total_weight + 1.0 / len(constant)) / (evidence.total_weight + 1.0)
    if centre is not None and is_constant(centre):
        level = torch.softmax(level.log() - centre.log_prob(level.new_zeros(1, 0))[0], dim=0)
    elif centre is not None:
        moved = level.log() - evidence.mean(lambda codes: centre.log_prob(codes).exp()).log()
        starts = [start_at(at, problem.n_features) for at in (torch.ones_like(level), moved.exp())]
        return min(starts, key=lambda flat: float(problem.value(flat)))
    return start_at(level, problem.n_features)
