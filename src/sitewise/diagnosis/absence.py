"""Whether rows are less like a class than they could be if it were merely absent.

t(x,z) = f_y / (f_y + Σ_{k≠y} g_k f_k) grows with the likelihood ratio of class y against the mixture of the others.
Where P(x|y,z) is stable, its mean given z is at least that of rows of the other classes, whatever the prevalence of
class y. A smaller mean has no prevalence that explains it; estimation then says that the class does not occur.
"""

from dataclasses import dataclass

import numpy as np
import torch
from scipy.stats import norm
from torch import Tensor

from sitewise.adaptation import PrevalenceEstimate
from sitewise.diagnosis.matching import FEWEST, Matched, match
from sitewise.diagnosis.result import Finding
from sitewise.diagnosis.samples import SourceSample, TargetSample

STOP_LEVEL = 0.01
STOP_SHORTFALL = 0.05  # a sure but smaller one asks for care
ADVICE = "Do not rely on adapted numbers: look for a change of scanner, protocol or patients, or label some rows here."
LABEL_SOME = "Ask whether that can be; if not, label some rows here."


@dataclass(frozen=True)
class Shortfall:
    """By what share the mean of t lies below that of rows of the other classes, and the chance of that by accident."""

    value: float
    p_value: float


def check_absence(source: SourceSample, target: TargetSample, estimate: PrevalenceEstimate) -> Finding:
    """Test every class that is estimated not to occur here."""
    name = "absent classes"
    absent = np.flatnonzero(np.asarray(estimate.at_bound)).tolist()
    if not absent:
        return Finding(name, "good", None, STOP_LEVEL, "Every class is estimated to occur here.")
    tested = {label: _shortfall_of(label, source, target, estimate) for label in absent}
    found = {label: shortfall for label, shortfall in tested.items() if shortfall is not None}
    if not found:
        sentence = "A class is estimated not to occur here; too few held-out rows to say whether rows look like that."
        return Finding(name, "care", None, STOP_LEVEL, sentence, LABEL_SOME)
    worst = min(found.values(), key=lambda shortfall: shortfall.p_value)
    p_value = min(1.0, worst.p_value * len(found))
    details = {"shortfall": worst.value, "classes": [int(label) for label in found]}
    if p_value < STOP_LEVEL:
        severity = "stop" if worst.value >= STOP_SHORTFALL else "care"
        sentence = (
            f"Rows here are less like a class than where it does not occur at all (by {100 * worst.value:.0f}%, "
            f"p = {p_value:.2g}): no prevalence explains that, images or patients differ from those in training."
        )
        return Finding(name, severity, p_value, STOP_LEVEL, sentence, ADVICE, p_value, details)
    sentence = (
        f"A class is estimated not to occur here, and rows look like that (p = {p_value:.2g}); "
        "so they might where a model is off."
    )
    return Finding(name, "care", p_value, STOP_LEVEL, sentence, LABEL_SOME, p_value, details)


def shortfall(matched: Matched, likeness: Tensor, own_likeness: Tensor) -> Shortfall:
    """Compare means of t of the target (n,) and the matched source (m,) by a one-sided normal test."""
    difference = matched.compare(own_likeness[:, None], likeness[:, None])
    spread = float(difference.covariance[0, 0]) ** 0.5
    expected = float(matched.source_weight @ own_likeness)
    lower = float(difference.mean[0])
    return Shortfall(-lower / expected if expected > 0 else 0.0, float(norm.cdf(lower / spread)) if spread > 0 else 1.0)


def _shortfall_of(
    label: int, source: SourceSample, target: TargetSample, estimate: PrevalenceEstimate
) -> Shortfall | None:
    here = target.take((target.tested & target.supported & (target.weight > 0)).nonzero().flatten())
    held = source.take((source.weight > 0).nonzero().flatten())
    if len(here.weight) < FEWEST or not bool((held.counts > 0).all()):
        return None
    own, others = (estimate.prevalence.log_prob(sample.codes) for sample in (held, here))
    both = match(
        held.codes,
        held.y,
        held.mixed_weight,
        here.codes,
        here.weight,
        others.exp(),
        own.exp(),
        estimate.confounders,
    )
    present = both.prevalence.mean(0) > 1 / len(here.weight)
    if bool((both.effective_rows()[0, present] < FEWEST).any()):
        return None
    return shortfall(both, _likeness(here.log_ratio, others, label), _likeness(held.log_ratio, own, label))


def _likeness(log_ratio: Tensor, log_prevalence: Tensor, label: int) -> Tensor:
    """t of each row: as if class y were as frequent as all others together."""
    mixed = log_ratio + log_prevalence
    mixed[:, label] = -torch.inf
    return torch.sigmoid(log_ratio[:, label] - torch.logsumexp(mixed, dim=1))
