"""Test whether the site's rows can be a mixture of the classes.

t(x,z) = f_y / (f_y + Σ_{k≠y} g_k f_k) increases with the likelihood ratio of class y against the mixture of the other
classes. If P(x|y,z) is the same at all sites, the mean of t given z is at least that of rows of the other classes,
whatever the prevalence of class y is. No prevalence explains a smaller mean. The estimated prevalence of class y is
close to zero in this case.
"""

from dataclasses import dataclass

import torch
from scipy.stats import norm
from torch import Tensor

from sitewise.adaptation import PrevalenceEstimate
from sitewise.diagnosis.matching import FEWEST, Matched, match
from sitewise.diagnosis.result import Finding
from sitewise.diagnosis.samples import SourceSample, TargetSample, by_groups

STOP_LEVEL, CARE_LEVEL = 0.01, 0.05
STOP_SHORTFALL = 0.05  # a significant but smaller shortfall means care
ADVICE = (
    "Do not rely on adapted numbers: look for a change of equipment, protocol or patients, or label some rows here."
)
LABEL_SOME = "Check whether that is plausible; if not, label some rows here."
ABSENT = " A class is estimated not to occur at all; a model that is wrong here would give the same estimate."


@dataclass(frozen=True)
class Shortfall:
    """The relative amount by which the mean of t is below that of rows of the other classes, and its p-value."""

    value: float
    p_value: float


def check_mixture(source: SourceSample, target: TargetSample, estimate: PrevalenceEstimate) -> Finding:
    """Test every class with enough rows. If a class is estimated not to occur, the finding is "care" or "stop"."""
    name, absent = "mixture", bool(estimate.at_bound.any())
    noted, advice = (ABSENT, LABEL_SOME) if absent else ("", "")
    tested = {label: _shortfall_of(label, source, target, estimate) for label in range(target.log_ratio.shape[1])}
    shortfalls = {label: shortfall for label, shortfall in tested.items() if shortfall is not None}
    if not shortfalls:
        unit = "rows" if source.groups is None else "groups"
        sentence = (
            f"Not tested: it takes {FEWEST} held-out {unit} of all classes but one, with a mix of z like this site's."
        )
        return Finding(name, "care" if absent else "unknown", None, STOP_LEVEL, sentence + noted, advice)
    label, worst = min(shortfalls.items(), key=lambda item: item[1].p_value)
    p_value = min(1.0, worst.p_value * len(shortfalls))
    details = {"shortfall": worst.value, "class": label, "tested": sorted(shortfalls)}
    details |= source.group_counts | target.group_counts
    by = by_groups(source, target)
    if p_value < CARE_LEVEL:
        severity = "stop" if p_value < STOP_LEVEL and worst.value >= STOP_SHORTFALL else "care"
        sentence = (
            f"The scores of a class here are below those of held-out rows of the other classes "
            f"(by {100 * worst.value:.0f}%, p = {p_value:.2g}{by}): no prevalence explains that, so rows differ from "
            "those in training."
        )
        return Finding(name, severity, p_value, STOP_LEVEL, sentence, ADVICE, p_value, details)
    sentence = f"Rows here can be a mixture of the classes (p = {p_value:.2g}{by})."
    severity = "care" if absent else "good"
    return Finding(name, severity, p_value, STOP_LEVEL, sentence + noted, advice, p_value, details)


def shortfall(matched: Matched, likeness: Tensor, own_likeness: Tensor) -> Shortfall:
    """Compare the means of t over the target (n,) and over the matched source (m,) by a one-sided normal test."""
    difference = matched.compare(own_likeness[:, None], likeness[:, None])
    error = float(difference.covariance[0, 0]) ** 0.5
    expected = float(matched.source_weight @ own_likeness)
    lower = float(difference.mean[0])
    return Shortfall(-lower / expected if expected > 0 else 0.0, float(norm.cdf(lower / error)) if error > 0 else 1.0)


def _shortfall_of(
    label: int, source: SourceSample, target: TargetSample, estimate: PrevalenceEstimate
) -> Shortfall | None:
    here = target.take((target.tested & target.supported & (target.weight > 0)).nonzero().flatten())
    held = source.take(((source.weight > 0) & (source.y != label)).nonzero().flatten())
    if here.n_units < FEWEST:
        return None
    others, own = (_without(estimate.prevalence.log_prob(sample.codes), label) for sample in (here, held))
    kept = [k for k in range(target.log_ratio.shape[1]) if k != label]
    if not bool((torch.bincount(held.y, minlength=len(kept) + 1)[kept] > 0).all()):
        return None
    place = torch.zeros(len(kept) + 1, dtype=torch.long)
    place[kept] = torch.arange(len(kept))
    both = match(
        held.codes,
        place[held.y],
        held.weight,
        here.codes,
        here.weight,
        others[:, kept].exp(),
        own[:, kept].exp(),
        estimate.confounders,
        held.groups,
        here.groups,
    )
    present = both.prevalence.mean(0) > 1 / here.n_units
    if bool((both.effective_rows()[0, present] < FEWEST).any()):
        return None
    return shortfall(both, _likeness(here.log_ratio, others, label), _likeness(held.log_ratio, own, label))


def _without(log_prevalence: Tensor, label: int) -> Tensor:
    """Return log g of the classes other than `label`, renormalized; minus infinity for `label`."""
    others = log_prevalence.clone()
    others[:, label] = -torch.inf
    return torch.log_softmax(others, dim=1)


def _likeness(log_ratio: Tensor, log_prevalence: Tensor, label: int) -> Tensor:
    """Return t of each row, (n,): the probability of the class if it were as frequent as all others together."""
    return torch.sigmoid(log_ratio[:, label] - torch.logsumexp(log_ratio + log_prevalence, dim=1))
