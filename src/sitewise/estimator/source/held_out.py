"""Held-out labeled rows as calibration sees them."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from sitewise.calibration import Calibration, fit_calibration, resample_calibration
from sitewise.confounders import Confounders
from sitewise.estimator.source.prevalences import RowPrevalence
from sitewise.inputs import Inputs, take_inputs
from sitewise.ratio import LabeledRows

ENOUGH_TO_CALIBRATE = 10  # rows of each class

Score = Callable[
    [Inputs, Tensor], tuple[Tensor, Tensor | None, Tensor | None]
]  # raw log f, features of some rows, their numbers


@dataclass(frozen=True)
class HeldOut:
    """Held-out rows as calibration sees them: raw log f, log g by models that saw none of their labels, y, weights.

    Codes of z, and the features of some of the rows, are kept for the diagnosis of other sites.
    """

    raw_log_ratio: Tensor
    log_prevalence: Tensor
    y: Tensor
    weight: Tensor
    codes: Tensor = field(repr=False)
    features: Tensor | None = field(repr=False)  # (m, D) float32, None where f has none
    feature_rows: Tensor | None = field(repr=False)  # (m,)
    known_codes: Tensor | None = field(default=None, repr=False)  # of z where some is hidden in `codes`
    site: Tensor | None = field(default=None, repr=False)  # (n,) numbers of the sites
    groups: Tensor | None = field(default=None, repr=False)  # (n,) numbers of the groups (patients)

    def shifted(self, shift: Callable[[Tensor], Tensor]) -> "HeldOut":
        """The same rows with something of their codes, (n, K), added to log f."""
        return replace(self, raw_log_ratio=self.raw_log_ratio + shift(self.codes)) if len(self.y) else self

    def balanced(self, log_mean: Callable[[Tensor], Tensor]) -> "HeldOut":
        """The same rows with the mean of f at their codes divided out (equation 18a)."""
        return self.shifted(lambda codes: -log_mean(codes))

    def take(self, rows: Tensor) -> "HeldOut":
        """Some of the rows, as calibration sees them."""
        raw, log_prevalence, y = self.raw_log_ratio[rows], self.log_prevalence[rows], self.y[rows]
        own = (None if part is None else part[rows] for part in (self.known_codes, self.site, self.groups))
        return HeldOut(raw, log_prevalence, y, self.weight[rows], self.codes[rows], None, None, *own)

    def calibrate(self, method: str, n_classes: int) -> Calibration:
        """Fit the calibration asked for, or as much of it as the labels can bear."""
        return calibrate_rows(self.raw_log_ratio, self.log_prevalence, self.y, self.weight, method, n_classes)

    def resample(self, calibration: Calibration, n_resamples: int, seed: int) -> Calibration:
        """The calibration with refits to resamples of these rows (equation 6a)."""
        targets = smoothed_targets(self.y, torch.bincount(self.y, minlength=len(calibration.slope)))
        rows = (self.raw_log_ratio, targets, self.log_prevalence, self.weight)
        return resample_calibration(calibration, *rows, n_resamples=n_resamples, random_state=seed)


def calibrate_rows(
    raw_log_ratio: Tensor, log_prevalence: Tensor, y: Tensor, weight: Tensor, method: str, n_classes: int
) -> Calibration:
    """Fit the calibration asked for to rows, or as much of it as their labels can bear."""
    counts = torch.bincount(y, minlength=n_classes)
    if int(counts.min()) < ENOUGH_TO_CALIBRATE and method in ("vector", "bias_corrected"):
        method = "temperature"
    if len(y) < n_classes * ENOUGH_TO_CALIBRATE or int((counts > 0).sum()) < 2:
        method = "none"
    if method == "none":
        flat = torch.zeros(n_classes, dtype=torch.float64)
        return Calibration("none", flat + 1, flat)
    return fit_calibration(raw_log_ratio, smoothed_targets(y, counts), log_prevalence, weight, method)


def score_held_out(
    rows: LabeledRows,
    prevalence: RowPrevalence,
    schema: Confounders | None,
    score: Score,
    groups: Tensor | None = None,
) -> tuple[HeldOut, HeldOut]:
    """What calibration needs of held-out rows: those with all of z, and all of them with z hidden (equation 6).

    Both are the same where there is no z to hide.
    """

    def scored(codes: Tensor, chosen: Tensor) -> HeldOut:
        y, weight = rows.y[chosen], rows.weight[chosen].double()
        if not len(chosen):
            return HeldOut(weight, weight, y, weight, codes[chosen], weight[:, None].float(), chosen)
        raw, features, feature_rows = score(take_inputs(rows.X, chosen), codes[chosen])
        log_prevalence = prevalence.log_prob(codes)[chosen]
        own = (rows.codes[chosen], rows.site[chosen], None if groups is None else groups[chosen])
        return HeldOut(raw, log_prevalence, y, weight, codes[chosen], features, feature_rows, *own)

    everything = torch.arange(len(rows))
    if schema is None or not len(rows):
        only = scored(rows.codes, everything)
        return only, only
    complete = ~schema.missing(rows.codes).any(dim=1)
    blank = schema.missing_codes().expand_as(rows.codes)
    hidden = torch.where(complete[:, None], blank, rows.codes)
    return scored(rows.codes, everything[complete]), scored(hidden, everything)


def smoothed_targets(y: Tensor, counts: Tensor) -> Tensor:
    """Platt's soft labels: a class with n rows is (n + 1) / (n + 2) certain, which keeps separable data finite."""
    n_classes = len(counts)
    certainty = ((counts + 1) / (counts + 2)).double()[y][:, None]
    return one_hot(y, n_classes).double() * (certainty - (1 - certainty) / (n_classes - 1)) + (1 - certainty) / (
        n_classes - 1
    )
