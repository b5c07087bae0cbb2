"""Held-out labeled rows: log f of these rows, its balance and calibration, and the prior that follows from them.

In the order of a fit: `score_held_out`, `fit_balance`, `calibrate`, `describe_source`.

Balance (section 18): at each z, the mean of f over source rows must be the same for all classes. Otherwise f makes some
classes look more frequent than they are, at the source and at any other site. This matters most if f has little
information, because errors of g_s(z) are then large compared with log f.
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
]  # raw log f, features of some rows, indices of these rows
ROWS = 100_000  # the largest number of rows that are used
RIDGE = 0.01
LEAST_SLOPE = 0.1  # f is not balanced if the calibration slope of log f is smaller
ROUNDS = 3  # rounds of two steps: fit the slope of the balanced f, then fit the balance at this slope


def score_held_out(
    rows: LabeledRows, prevalence: RowPrevalence, schema: Confounders | None, score: Score
) -> tuple[HeldOut, HeldOut]:
    """Return the held-out rows with all of z, and all held-out rows with z hidden; equation 6 is fitted to both.

    In the second result, z is hidden in the rows that have all of it; other rows keep the known part of z. Both results
    are the same object if there is no z.
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
    """log h(z), the log of the mean of f at z, as a sum of one term for each variable; zero for rows that lack z."""

    schema: Confounders
    coefficients: Tensor  # (D, K), each row sums to zero

    def log_mean(self, codes: Tensor) -> Tensor:
        """Return log h at codes of z, (n, K), which is subtracted from log f."""
        lacking = self.schema.missing(codes).any(dim=1, keepdim=True)
        return torch.where(lacking, 0.0, features(codes, self.schema) @ self.coefficients)


def fit_balance(held: HeldOut, schema: Confounders | None, n_classes: int) -> Balance | None:
    """Fit h(z), the mean of f at z, to labeled rows (equation 18a).

    Return None without z, if a class has too few rows, or if the slope of log f is too small. g and h are fitted to the
    same labels, so that their common noise cancels; it is large compared with the log f of a weak model.
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
    """Fit the calibration `method` to held-out rows, or a simpler one if there are too few labels."""
    return calibrate_rows(held.raw_log_ratio, held.log_prevalence, held.y, held.weight, method, n_classes)


def calibrate_rows(
    raw_log_ratio: Tensor, log_prevalence: Tensor, y: Tensor, weight: Tensor, method: str, n_classes: int
) -> Calibration:
    """Fit the calibration `method` to rows, or a simpler one if there are too few labels."""
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
    """Return Platt's soft labels (n, K), with which fits to separable data are finite.

    A row has probability (m + 1) / (m + 2) for its own class, where m is the number of rows of this class. The rest is
    divided equally among the other classes.
    """
    n_classes = len(counts)
    certainty = ((counts + 1) / (counts + 2)).double()[y][:, None]
    return one_hot(y, n_classes).double() * (certainty - (1 - certainty) / (n_classes - 1)) + (1 - certainty) / (
        n_classes - 1
    )


def resample(held: HeldOut, calibration: Calibration, n_resamples: int, seed: int) -> Calibration:
    """Return the calibration together with its refits to resamples of the held-out rows (equation 6a)."""
    targets = smoothed_targets(held.y, torch.bincount(held.y, minlength=len(calibration.slope)))
    rows = (held.raw_log_ratio, targets, held.log_prevalence, held.weight)
    return resample_calibration(calibration, *rows, n_resamples=n_resamples, random_state=seed)


def describe_source(held: HeldOut, log_ratio: Tensor, pooled: Prevalence, deviation: Tensor | None) -> SitePrior:
    """Return the prior of a new site: the source's g, and the two numbers that determine the error of f.

    These are the effective number of held-out rows (or groups), and the missing-information fraction (equation 18b).
    """
    missing = missing_information(log_ratio, pooled.log_prob(held.codes), held.weight)
    return SitePrior(pooled, deviation=deviation, n_source=min(effective_rows(held), ROWS), missing=missing)


def effective_rows(held: HeldOut) -> float:
    """Return the effective number of held-out rows, or of groups if there are groups."""
    unit = torch.arange(len(held)) if held.groups is None else torch.unique(held.groups, return_inverse=True)[1]
    mass = torch.zeros(int(unit.max()) + 1, dtype=torch.float64).index_add_(0, unit, held.weight)
    return float(mass.sum() ** 2 / mass.square().sum())
