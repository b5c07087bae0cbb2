"""Which model of g, and how strongly shrunk: decided by the likelihood of unlabeled rows that are left out.

Leaving each row (or group) out is done to first order (equation 10): exact enough to choose by, one fit a candidate,
and the choice depends neither on a seed nor on the order of the rows.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from sitewise.adaptation.cell_problem import find_cells, inside
from sitewise.adaptation.cells import (
    Centre,
    constant_centre,
    fit_constant_cell,
    fit_table_cells,
    fixed_centre,
    tilted_centre,
)
from sitewise.adaptation.evidence import Evidence
from sitewise.adaptation.fit import Fit, Rival
from sitewise.adaptation.linear import (
    additive_problem,
    fit_additive_terms,
    fit_missing_terms,
    start_at,
)
from sitewise.adaptation.network import fit_network_terms
from sitewise.confounders import Categorical
from sitewise.prevalence import AdditivePrevalence, ConstantPrevalence, Prevalence
from sitewise.solvers import EM

RIDGES = (1000.0, 300.0, 100.0, 30.0, 10.0, 3.0, 1.0, 0.3, 0.1)
PRICE = 2.0  # of the optimism, where it is decided whether g depends on z at all
MARGIN = 1.0  # log-likelihood units that a g(z) must be better by than the constant
VANISHED = math.log(1e-4)  # a class this rare may be one that the last fit lost
PSEUDO_COUNTS = (1000.0, 300.0, 100.0, 30.0, 10.0, 3.0, 1.0)
FAR_WORSE = 5.0  # log-likelihood units
NO_RIVAL = 0.003  # a share of the weight that is not worth its trouble
TIE = 1e-3  # log-likelihood units: more than the solvers' tolerance leaves open, less than data can tell apart
MAX_CELLS = 1000
ROWS_A_CELL = 5.0  # on average; in emptier cells a table only repeats its centre


def fit_constant_model(
    evidence: Evidence, prior: Tensor, strength: str | float, solver: str | EM, start: Tensor
) -> Fit:
    """Fit the constant; without a strength it is the maximum-likelihood one."""
    return fit_constant_cell(evidence, prior, 0.0 if isinstance(strength, str) else strength, solver, start)


def fit_table_model(
    evidence: Evidence, constant: Fit, centre: Prevalence | None, strength: str | float, solver: str | EM
) -> Fit:
    """Fit the table at a strength, or at the one that predicts left-out rows best."""
    candidates = table_candidates(evidence, constant, centre, strength, solver)
    return replace(best(candidates), rivals=rivals(candidates, evidence))


def fit_additive_model(
    evidence: Evidence, start: Tensor, centre: Prevalence | None, strength: str | float, solver: str | EM
) -> Fit:
    """Fit the additive model at a strength, or at the one that predicts left-out rows best."""
    candidates = additive_candidates(evidence, start, centre, strength, solver)
    return replace(finish(best(candidates), evidence), rivals=rivals(candidates, evidence))


def fit_any_model(
    evidence: Evidence, constant: Fit, start: Tensor, centre: Prevalence | None, strength: str | float, solver: str | EM
) -> Fit:
    """Choose between the constant, the additive model and, over discrete z with rows enough, the table.

    Whether g depends on z is decided by the stricter criterion, L - 2 O; how strongly and in which form, once it does,
    by the left-out likelihood.
    """
    has_shape = centre is not None and not isinstance(centre, ConstantPrevalence)
    candidates = additive_candidates(evidence, start, centre, strength, solver)
    if can_fill_a_table(evidence):
        candidates += table_candidates(evidence, constant, centre, strength, solver)
    everyone = rivals([*candidates, constant], evidence)
    if not has_shape and max(map(score, candidates)) < score(constant) + MARGIN:
        return replace(constant, rivals=everyone)
    return replace(finish(best(candidates), evidence), rivals=everyone)


def table_candidates(
    evidence: Evidence, constant: Fit, centre: Prevalence | None, strength: str | float, solver: str | EM
) -> list[Fit]:
    """Tables at every strength to choose from, the strongest first."""
    cells = find_cells(evidence)
    aim = centred_cells(evidence, cells, constant, centre)
    strengths = PSEUDO_COUNTS if isinstance(strength, str) else (float(strength),)
    level = inside(constant.prevalence.log_prob(cells[:1])[0].exp())
    return [
        replace(
            fit_table_cells(evidence, cells, aim, value, solver),
            refit=RefitTable(cells, level, centre, value, solver),
        )
        for value in strengths
    ]


@dataclass(frozen=True)
class RefitTable:
    """Estimates a table again from other weights of the rows, and first the constant g that it is shrunk to."""

    cells: Tensor  # (C, V)
    level: Tensor  # (K,) where the constant g sets out
    centre: Prevalence | None
    strength: float
    solver: str | EM

    def __call__(self, drawn: Evidence) -> Prevalence:
        """Estimate it."""
        own = fit_constant_cell(drawn, self.level, 0.0, "auto", self.level)
        aim = centred_cells(drawn, self.cells, own, self.centre)
        return fit_table_cells(drawn, self.cells, aim, self.strength, self.solver).prevalence


def additive_candidates(
    evidence: Evidence, start: Tensor, centre: Prevalence | None, strength: str | float, solver: str | EM
) -> list[Fit]:
    """Additive models at every strength to choose from, the strongest first, each started from the last.

    A class that vanished has no gradient to come back by: then the next one sets out anew. Once one predicts left-out
    rows far worse than another did, weaker shrinkage need not be tried.
    """
    fits: list[Fit] = []
    first = start
    strengths = RIDGES if isinstance(strength, str) else (float(strength),)
    unit = additive_problem(evidence, 1.0, centre)
    for value in strengths:
        problem = replace(unit, penalty=value * unit.penalty)
        fit, start = fit_additive_terms(problem, value, start, solver)
        fits.append(fit)
        if float(fit.prevalence.log_marginal.min()) < VANISHED:  # type: ignore[attr-defined]
            start = first
        if len(strengths) > 1 and left_out(fit) < max(map(left_out, fits)) - FAR_WORSE:
            break
    return fits


def can_fill_a_table(evidence: Evidence) -> bool:
    """Tell whether z is discrete and its cells few and full enough to try a table."""
    assert evidence.schema is not None
    if not all(isinstance(v, Categorical) for v in evidence.schema.variables):
        return False
    n_cells = len(find_cells(evidence))
    return n_cells <= MAX_CELLS and evidence.seen_weight >= ROWS_A_CELL * n_cells


def finish(fit: Fit, evidence: Evidence) -> Fit:
    """Fit what the chosen g says of rows that lack part of z; a table knows that by itself."""
    return fit_missing_terms(fit, evidence) if isinstance(fit.prevalence, AdditivePrevalence) else fit


@dataclass(frozen=True)
class Finisher:
    """A fit that is finished when somebody asks, and once."""

    fit: Fit
    evidence: Evidence

    def __call__(self) -> Fit:
        """Give the finished fit."""
        return self._finished

    @cached_property
    def _finished(self) -> Fit:
        return finish(self.fit, self.evidence)


def fit_network_model(evidence: Evidence, constant: Tensor, solver: str | EM, seed: int) -> Fit:
    """Fit the paper's network."""
    return fit_network_terms(evidence, constant, solver, seed)


def score(fit: Fit) -> float:
    """Left-out log-likelihood, the optimism charged once for the fit and once for the choice among many."""
    return fit.log_likelihood - PRICE * fit.optimism


def left_out(fit: Fit) -> float:
    """Left-out log-likelihood, L - O of equation 10."""
    return fit.log_likelihood - fit.optimism


def best(fits: list[Fit]) -> Fit:
    """The fit with the highest left-out likelihood; of equals the one most strongly shrunk, which comes first."""
    top = max(map(left_out, fits))
    return next(fit for fit in fits if left_out(fit) >= top - TIE)


def rivals(fits: list[Fit], evidence: Evidence) -> tuple[Rival, ...]:
    """Those that left-out rows speak for, weighted by the likelihood they give them (equation 11b)."""
    if len(fits) == 1:
        return ()
    top = max(map(left_out, fits))
    odds = [math.exp(left_out(fit) - top) for fit in fits]
    shares = [value / sum(odds) for value in odds]
    return tuple(Rival(fit, w, Finisher(fit, evidence)) for fit, w in zip(fits, shares, strict=True) if w > NO_RIVAL)


def starting_coefficients(
    evidence: Evidence, start: Prevalence | None, constant: Tensor, centre: Prevalence | None
) -> Tensor:
    """Where the additive model sets out: an additive g handed over, else the constant one.

    From a centre that depends on z as it is, or moved to the level of the constant one, whichever is likelier.
    """
    assert evidence.schema is not None
    problem = additive_problem(evidence, 0.0, centre)
    if isinstance(start, AdditivePrevalence) and start.centre is None and centre is None:
        return (start.coefficients @ problem.basis).reshape(-1)
    level = (constant * evidence.total_weight + 1.0 / len(constant)) / (evidence.total_weight + 1.0)
    if isinstance(centre, ConstantPrevalence):
        level = torch.softmax(level.log() - centre.log_marginal, dim=0)
    elif centre is not None:
        moved = level.log() - evidence.mean(lambda codes: centre.log_prob(codes).exp()).log()
        starts = [start_at(at, problem.n_features) for at in (torch.ones_like(level), moved.exp())]
        return min(starts, key=lambda flat: float(problem.value(flat)))
    return start_at(level, problem.n_features)


def centred_cells(evidence: Evidence, cells: Tensor, constant: Fit, centre: Prevalence | None) -> Centre:
    """What each cell of a table is shrunk to: the constant, a level given, or a g(z) tilted to the site's level."""
    if centre is None:
        return constant_centre(cells, constant)
    if isinstance(centre, ConstantPrevalence):
        return fixed_centre(cells, centre.log_marginal.exp())
    return tilted_centre(evidence, cells, constant, centre)
