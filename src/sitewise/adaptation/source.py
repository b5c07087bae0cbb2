"""The source's g as a prior: what a new site's rows count for beside f's own error, and whether they speak against it.

Section 18 of docs/maths.md.
"""

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from sitewise.adaptation.evidence import Evidence
from sitewise.adaptation.fit import Fit, Rival
from sitewise.adaptation.selection import MARGIN, finish, holding_ridge, score
from sitewise.arrays import Problems, read_labels, read_weight
from sitewise.prevalence import AdditivePrevalence, ConstantPrevalence, Prevalence, SourcePrevalence
from sitewise.prevalence.additive import features
from sitewise.prevalence.base import finite
from sitewise.prevalence.source import level_shift


def discounted(source: SourcePrevalence, matrix: Tensor, y: Any, sample_weight: Any) -> Any:
    """Weights of rows as they count beside f's own error; a known label owes nothing to f (equation 18c)."""
    problems = Problems("rows")
    n_rows, n_classes = matrix.shape
    weight = read_weight(sample_weight, n_rows, problems)
    known = torch.zeros(n_rows, dtype=torch.bool)
    if y is not None:
        known = ~torch.tensor(read_labels(y, n_rows, n_classes, problems)).isnan()
    if problems.found:  # said where all rows are read
        return sample_weight
    return torch.where(known, weight, source.discount(float(weight[~known].sum())) * weight)


@dataclass(frozen=True)
class RefitUnchanged:
    """A g that is not estimated stays what it is, whatever the rows."""

    prevalence: Prevalence

    def __call__(self, drawn: Evidence) -> Prevalence:
        """That g."""
        return self.prevalence


def unless_changed(evidence: Evidence, fit: Fit, source: SourcePrevalence, centre: Prevalence, level: Tensor) -> Fit:
    """The source's g as it is, unless the fit, or a plainer rival, predicts left-out rows better at the dearer price.

    A fit whose level no source site is near pays for that, where it is more (equation 18e). The rows' doubt is the
    fit's: intervals and draws are made of the fit that was not believed. `centre` is the source's g as this site reads
    it, and `level` (K,) its mean here, which a constant g is compared with.
    """
    if fit.prevalence.name not in ("constant", "additive"):
        return fit
    kept: Prevalence = ConstantPrevalence(finite(level.log()))
    site = evidence.without_confounders()
    if not isinstance(fit.prevalence, ConstantPrevalence):
        kept, site = as_additive(evidence, centre), evidence
    log_likelihood = site.log_likelihood(lambda codes: kept.log_prob(codes).exp())
    free = evidence.n_classes - 1.0  # the level, at least

    def believable(candidate: Fit) -> bool:
        found, g = level, candidate.prevalence
        if isinstance(g, ConstantPrevalence):
            found = g.log_marginal.exp()
        elif evidence.seen_weight:
            found = evidence.mean(lambda codes: g.log_prob(codes).exp())
        shift = level_shift(evidence.total_weight * found, evidence.total_weight * level)
        once = max(candidate.optimism, free)
        return candidate.log_likelihood - once - max(once, source.surprise(shift)) >= log_likelihood + MARGIN

    if believable(fit):
        return fit
    plain = (rival for rival in fit.rivals if rival.fit.optimism < fit.optimism)
    plainer = max(plain, key=lambda rival: score(rival.fit, free), default=None)
    if plainer is not None and believable(plainer.fit):
        return replace(plainer.finish(), rivals=fit.rivals)
    only = Rival(fit, 1.0, cache(lambda: finish(fit, evidence)))
    return replace(
        fit,
        prevalence=kept,
        log_likelihood=log_likelihood,
        strength=holding_ridge(evidence),
        refit=RefitUnchanged(kept),
        rivals=fit.rivals or (only,),
        doubted=fit,
    )


def as_additive(evidence: Evidence, source: Prevalence) -> AdditivePrevalence:
    """A g as an additive one to which nothing is added; a row without any z has its mean over the site."""
    assert evidence.schema is not None
    n_features = features(evidence.schema.missing_codes(evidence.device)[None], evidence.schema).shape[1]
    mean = evidence.mean(lambda codes: source.log_prob(codes).exp())
    return AdditivePrevalence(evidence.schema, mean.new_zeros(n_features, len(mean)), finite(mean.log()), source)
