"""Held-out labeled rows: log f of them, its balance and calibration, and what they say about the source for a prior.

In the order of a fit: `score_held_out`, `fit_balance`, `calibrate`, `describe_source`.

Balance (section 18): at each z the mean of f over source rows must be the same for all classes. If f carries little
information, errors of g_s(z) are large compared with it. An unbalanced f looks like another prevalence, at the source
and at any other site.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from sitewise.calibration import Calibration
from sitewise.calibration.fit import centre, fit_calibration, resample_calibration
from sitewise.confounders import Confounders
from sitewise.estimator.source.prevalences import RowPrevalence
from sitewise.estimator.source.reading import evenly
from sitewise.inputs import Inputs
from sitewise.posterior import contrasts
from sitewise.prevalence import SitePrior
from sitewise.prevalence.additive import features, ridge
from sitewise.prevalence.base import Prevalence
from sitewise.prevalence.linear import fit_linear
from sitewise.prevalence.prior import missing_information
from sitewise.rows import HeldOut, LabeledRows

ENOUGH_TO_CALIBRATE = 10  # rows of each class

Score = Callable[
    [Inputs, Tensor], tuple[Tensor, Tensor | None, Tensor | None]
]  # raw log f, features of some rows, numbers of these rows
ROWS = 100_000  # the most rows used
RIDGE = 0.01
LEAST_SLOPE = 0.1  # slope of log f below which nothing is balanced
ROUNDS = 3  # alternating steps: the slope of the balanced f, and the balance at that slope


def score_held_out(
    rows: LabeledRows, prevalence: RowPrevalence, schema: Confounders | None, score: Score
) -> tuple[HeldOut, HeldOut]:
    """The held-out rows for calibration: those with all of z, and all of them with z hidden (equation 6).

    Both are the same if there is no z.
    """

    def scored(codes: Tensor, chosen: Tensor) -> HeldOut:
        part, at = rows.take(chosen), codes[chosen]
        own = replace(part, weight=part.weight.double(), codes=at)
        if not len(chosen):
            nothing = dict.fromkeys(("raw_log_ratio", "log_prevalence"), own.weight)
            blank = {"features": own.weight[:, None].float(), "feature_rows": chosen, "site": None, "groups": None}
            return own.extended(HeldOut, **nothing, **blank)
        raw, features, feature_rows = score(part.X, at)
        log_prevalence = prevalence.log_prob(codes)[chosen]
        scores = {"raw_log_ratio": raw, "log_prevalence": log_prevalence, "features": features}
        return own.extended(HeldOut, **scores, feature_rows=feature_rows, known_codes=part.codes)

    everything = torch.arange(len(rows))
    if schema is None or not len(rows):
        only = scored(rows.codes, everything)
        return only, only
    complete = ~schema.missing(rows.codes).any(dim=1)
    blank = schema.missing_codes().expand_as(rows.codes)
    hidden = torch.where(complete[:, None], blank, rows.codes)
    return scored(rows.codes, everything[complete]), scored(hidden, everything)


@dataclass(frozen=True)
class Balance:
    """log h(z), a sum of one term for each variable, for rows with all of z; other rows are not changed."""

    schema: Confounders
    coefficients: Tensor  # (D, K), each row sums to zero

    def log_mean(self, codes: Tensor) -> Tensor:
        """log h at codes, (n, K), to be subtracted from log f."""
        lacking = self.schema.missing(codes).any(dim=1, keepdim=True)
        return torch.where(lacking, 0.0, features(codes, self.schema) @ self.coefficients)


def fit_balance(held: HeldOut, schema: Confounders | None, n_classes: int) -> Balance | None:
    """h(z), the mean of f at z among labeled rows (equation 18a); None if too few rows have all of z.

    g and h are fitted to the same labels, so that their common noise cancels. It is large compared with a weak f.
    """
    if schema is None or not len(held):
        return None
    finite = torch.isfinite(held.raw_log_ratio).all(dim=1).nonzero().flatten()
    rows = finite[evenly(len(finite), ROWS)]
    y, weight, codes, raw = held.y[rows], held.weight[rows], held.codes[rows], centre(held.raw_log_ratio[rows])
    if int(torch.bincount(y, minlength=n_classes).min()) < ENOUGH_TO_CALIBRATE:
        return None
    totals = one_hot(y, n_classes).double() * weight[:, None]
    design, basis = features(codes, schema), contrasts(n_classes)
    penalty = ridge(RIDGE, design.shape[1])

    def fitted(offset: Tensor) -> Tensor:
        return fit_linear(totals, weight, design, penalty, offset).point.reshape(design.shape[1], -1) @ basis.T

    log_g = torch.log_softmax(design @ fitted(torch.zeros_like(raw)), dim=1)
    lacking = torch.zeros(design.shape[1], n_classes, dtype=torch.float64)
    for _ in range(ROUNDS):
        balanced = raw + design @ lacking
        slope = calibrate_rows(balanced, log_g, y, weight, "temperature", n_classes).slope[0]
        if float(slope) < LEAST_SLOPE:
            return None
        lacking = fitted(slope * raw + log_g) / slope
    return Balance(schema, -lacking)


def calibrate(held: HeldOut, method: str, n_classes: int) -> Calibration:
    """Fit the chosen calibration to held-out rows, or a simpler one if there are too few labels."""
    return calibrate_rows(held.raw_log_ratio, held.log_prevalence, held.y, held.weight, method, n_classes)


def calibrate_rows(
    raw_log_ratio: Tensor, log_prevalence: Tensor, y: Tensor, weight: Tensor, method: str, n_classes: int
) -> Calibration:
    """Fit the chosen calibration to rows, or a simpler one if there are too few labels."""
    counts = torch.bincount(y, minlength=n_classes)
    if int(counts.min()) < ENOUGH_TO_CALIBRATE and method in ("vector", "bias_corrected"):
        method = "temperature"
    if len(y) < n_classes * ENOUGH_TO_CALIBRATE or int((counts > 0).sum()) < 2:
        method = "none"
    if method == "none":
        flat = torch.zeros(n_classes, dtype=torch.float64)
        return Calibration("none", flat + 1, flat)
    return fit_calibration(raw_log_ratio, smoothed_targets(y, counts), log_prevalence, weight, method)


def smoothed_targets(y: Tensor, counts: Tensor) -> Tensor:
    """Platt's soft labels, (n + 1) / (n + 2) for a class with n rows; separable data then give finite fits."""
    n_classes = len(counts)
    certainty = ((counts + 1) / (counts + 2)).double()[y][:, None]
    return one_hot(y, n_classes).double() * (certainty - (1 - certainty) / (n_classes - 1)) + (1 - certainty) / (
        n_classes - 1
    )


def resample(held: HeldOut, calibration: Calibration, n_resamples: int, seed: int) -> Calibration:
    """The calibration with refits to resamples of held-out rows (equation 6a)."""
    targets = smoothed_targets(held.y, torch.bincount(held.y, minlength=len(calibration.slope)))
    rows = (held.raw_log_ratio, targets, held.log_prevalence, held.weight)
    return resample_calibration(calibration, *rows, n_resamples=n_resamples, random_state=seed)


def describe_source(held: HeldOut, log_ratio: Tensor, pooled: Prevalence, deviation: Tensor | None) -> SitePrior:
    """The source's g with the error of f: the effective number of held-out groups, and what f leaves open (18b)."""
    missing = missing_information(log_ratio, pooled.log_prob(held.codes), held.weight)
    return SitePrior(pooled, deviation=deviation, n_source=min(effective_rows(held), ROWS), missing=missing)


def effective_rows(held: HeldOut) -> float:
    """The effective number of held-out rows; groups count instead of rows if there are groups."""
    unit = torch.arange(len(held)) if held.groups is None else torch.unique(held.groups, return_inverse=True)[1]
    mass = torch.zeros(int(unit.max()) + 1, dtype=torch.float64).index_add_(0, unit, held.weight)
    return float(mass.sum() ** 2 / mass.square().sum())
