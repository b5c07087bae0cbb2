"""Check whether the estimation converged, and whether other starting points lead to the same optimum."""

import warnings

import torch

from sitewise.adaptation import PrevalenceEstimate, estimate_prevalence
from sitewise.adaptation.families import FAMILIES
from sitewise.diagnosis.result import Finding
from sitewise.diagnosis.samples import TargetSample, evenly

REFIT_ROWS = 2000
LARGEST_DIFFERENCE = 0.02  # of P(Y) between starting points


def check_optimization(target: TargetSample, estimate: PrevalenceEstimate) -> Finding:
    """Check convergence and, if the likelihood may have several optima, P(Y) from other starting points."""
    name = "optimization"
    certified = estimate.model in FAMILIES and FAMILIES[estimate.model].concave
    difference = 0.0 if certified else start_difference(target, estimate)
    details = {"model": estimate.model, "gap": estimate.gap, "n_iter": estimate.n_iter, "start_spread": difference}
    advice = "Use prevalence='auto' or 'constant', or adapt with more rows."
    if not estimate.converged:
        sentence = f"The estimation had not converged after {estimate.n_iter} iterations (gap {estimate.gap:.1e})."
        return Finding(name, "care", difference, LARGEST_DIFFERENCE, sentence, advice, details=details)
    if difference > LARGEST_DIFFERENCE:
        sentence = f"Other starting points lead to a prevalence that differs by {100 * difference:.1f} points."
        return Finding(name, "care", difference, LARGEST_DIFFERENCE, sentence, advice, details=details)
    proven = "the likelihood has one optimum, and its gap certifies it"
    reason = proven if certified else f"other starting points agree within {100 * difference:.2f} points"
    if estimate.model == "posterior":
        reason = "predictions are averaged over the posterior"
    sentence = f"The estimation converged; {reason}."
    return Finding(name, "good", difference, LARGEST_DIFFERENCE, sentence, details=details)


def start_difference(target: TargetSample, estimate: PrevalenceEstimate) -> float:
    """Return the largest difference of P(Y) between fits from several starting points.

    It is 0 without confounders, and for models of g that are slow to fit.
    """
    schema = estimate.confounders
    family = FAMILIES.get(estimate.model)
    if schema is None or family is None or not family.quick:
        return 0.0
    rows = evenly(target.supported.nonzero().flatten(), REFIT_ROWS)
    Z = schema.decode(target.codes[rows])
    n_classes = target.log_ratio.shape[1]
    starts = [None, *(0.1 / n_classes + 0.9 * torch.eye(n_classes, dtype=torch.float64))[:2]]
    marginals = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a fit that does not converge shows in the difference
        for start in starts:
            refit = estimate_prevalence(
                target.log_ratio[rows],
                Z,
                model=estimate.model,
                strength=estimate.strength,
                confounders=schema,
                sample_weight=target.weight[rows],
                start=start,
            )
            marginals.append(torch.as_tensor(refit.marginal))
    values = torch.stack(marginals)
    return float((values.amax(0) - values.amin(0)).max())
