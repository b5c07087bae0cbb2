"""Which family of g, and how strongly shrunk: decided by the likelihood of unlabeled rows that are left out.

Leaving each row (or group) out is done to first order (equation 10): exact enough to choose by, one fit a candidate,
and the choice depends neither on a seed nor on the order of the rows.
"""

from dataclasses import replace

from sitewise.adaptation.families import FAMILIES, Request, finish
from sitewise.adaptation.fit import Fit, best, rivals
from sitewise.prevalence.base import is_constant

PRICE = 2.0  # of the optimism, where it is decided whether g depends on z at all
MARGIN = 1.0  # log-likelihood units that a g(z) must be better by than the constant


def fit_any_model(request: Request) -> Fit:
    """Choose between the constant g and the candidates of every family: additive and, where rows fill it, the table.

    Whether g depends on z is decided by the stricter criterion, L - 2 O; how strongly and in which form, once it does,
    by the left-out likelihood.
    """
    constant = request.constant
    assert constant is not None
    has_shape = request.centre is not None and not is_constant(request.centre)
    candidates = [fit for family in FAMILIES.values() for fit in family.candidates(request)]

    everyone = rivals([*candidates, constant], request.evidence, finish)
    if not has_shape and max(map(score, candidates)) < score(constant) + MARGIN:
        return replace(constant, rivals=everyone)
    return replace(finish(best(candidates), request.evidence), rivals=everyone)


def score(fit: Fit) -> float:
    """Left-out log-likelihood, the optimism charged once for the fit and once for the choice among many."""
    return fit.log_likelihood - PRICE * fit.optimism
