"""Which model of g, and how strongly shrunk: decided by the likelihood of unlabeled rows that are left out.

Leaving each row (or group) out is done to first order (equation 10): exact enough to choose by, one fit a candidate,
and the choice depends neither on a seed nor on the order of the rows.
"""

import torch
from torch import Tensor

from sitewise.adaptation.cells import fit_constant_cell, fit_table_cells
from sitewise.adaptation.evidence import Evidence
from sitewise.adaptation.fit import Fit
from sitewise.adaptation.linear import additive_problem, fit_additive_terms, fit_missing_terms, start_at
from sitewise.adaptation.network import fit_network_terms
from sitewise.confounders import Categorical
from sitewise.prevalence import AdditivePrevalence, Prevalence
from sitewise.solvers import EM

RIDGES = (1000.0, 300.0, 100.0, 30.0, 10.0, 3.0, 1.0, 0.3, 0.1)
PRICE = 2.0
MARGIN = 1.0  # log-likelihood units that a g(z) must be better by than the constant
PSEUDO_COUNTS = (1000.0, 300.0, 100.0, 30.0, 10.0, 3.0, 1.0)


def fit_constant_model(
    evidence: Evidence, prior: Tensor, strength: str | float, solver: str | EM, start: Tensor
) -> Fit:
    """Fit the constant; without a strength it is the maximum-likelihood one."""
    return fit_constant_cell(evidence, prior, 0.0 if isinstance(strength, str) else strength, solver, start)


def fit_table_model(
    evidence: Evidence, constant: Tensor, centre: Prevalence | None, strength: str | float, solver: str | EM
) -> Fit:
    """Fit the table at a strength, or at the one that predicts left-out rows best."""
    at_cells = centred_cells(evidence, constant, centre)
    strengths = PSEUDO_COUNTS if isinstance(strength, str) else (strength,)
    return best([fit_table_cells(evidence, at_cells, s, solver) for s in strengths])


def fit_additive_model(
    evidence: Evidence, start: Tensor, centre: Prevalence | None, strength: str | float, solver: str | EM
) -> Fit:
    """Fit the additive model at a strength or at the one that predicts left-out rows best, each from the last."""
    strengths = RIDGES if isinstance(strength, str) else (strength,)
    fits = []
    for value in strengths:
        fit, start = fit_additive_terms(evidence, value, centre, start, solver)
        fits.append(fit)
    return fit_missing_terms(best(fits), evidence)


def fit_any_model(
    evidence: Evidence, constant: Fit, start: Tensor, centre: Prevalence | None, strength: str | float, solver: str | EM
) -> Fit:
    """Choose between the constant, the additive model and, over discrete z, the table."""
    candidates = [fit_additive_model(evidence, start, centre, strength, solver)]
    assert evidence.schema is not None
    if all(isinstance(v, Categorical) for v in evidence.schema.variables):
        level = constant.prevalence.log_prob(evidence.codes[:1])[0].exp()
        candidates.append(fit_table_model(evidence, level, centre, strength, solver))
    found = best(candidates)
    return constant if centre is None and score(found) < score(constant) + MARGIN else found


def fit_network_model(evidence: Evidence, constant: Tensor, solver: str | EM, seed: int) -> Fit:
    """Fit the paper's network."""
    return fit_network_terms(evidence, constant, solver, seed)


def score(fit: Fit) -> float:
    """Left-out log-likelihood, the optimism charged once for the fit and once for the choice among many."""
    return fit.log_likelihood - PRICE * fit.optimism


def best(fits: list[Fit]) -> Fit:
    """The fit with the highest score; of equals the one most strongly shrunk, which comes first."""
    return max(fits, key=score)


def starting_coefficients(
    evidence: Evidence, start: Prevalence | None, constant: Tensor, centre: Prevalence | None
) -> Tensor:
    """Where the additive model sets out: an additive g handed over, else the constant one (or the centre itself)."""
    assert evidence.schema is not None
    problem = additive_problem(evidence, 0.0, centre)
    if isinstance(start, AdditivePrevalence) and start.schema == evidence.schema and centre is None:
        return (start.coefficients @ problem.basis).reshape(-1)
    inside = (constant * evidence.total_weight + 1.0 / len(constant)) / (evidence.total_weight + 1.0)
    level = inside if centre is None else torch.full_like(inside, 1.0 / len(inside))
    return start_at(level, problem.design.shape[1])


def centred_cells(evidence: Evidence, constant: Tensor, centre: Prevalence | None) -> Tensor:
    """What each cell of a table is shrunk towards, (U, K): the constant, or the centre tilted to the site's level."""
    if centre is None:
        return constant.expand(len(evidence.codes), -1).contiguous()
    at_cells = centre.log_prob(evidence.codes)
    tilt = torch.zeros_like(constant)
    for _ in range(200):  # iterative proportional fitting of the level
        tilted = torch.softmax(at_cells + tilt, dim=1)
        tilt = tilt + constant.log() - evidence.mean(tilted).log()
    return torch.softmax(at_cells + tilt, dim=1)
