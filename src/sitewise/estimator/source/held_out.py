"""Held-out labeled rows for calibration."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from sitewise.calibration import Calibration
from sitewise.calibration.fit import fit_calibration, resample_calibration
from sitewise.confounders import Confounders
from sitewise.estimator.source.prevalences import RowPrevalence
from sitewise.inputs import Inputs
from sitewise.rows import HeldOut, LabeledRows

ENOUGH_TO_CALIBRATE = 10  # rows of each class

Score = Callable[
    [Inputs, Tensor], tuple[Tensor, Tensor | None, Tensor | None]
]  # raw log f, features of some rows, numbers of these rows


def calibrate(held: HeldOut, method: str, n_classes: int) -> Calibration:
    """Fit the chosen calibration to held-out rows, or a simpler one if there are too few labels."""
    return calibrate_rows(held.raw_log_ratio, held.log_prevalence, held.y, held.weight, method, n_classes)


def resample(held: HeldOut, calibration: Calibration, n_resamples: int, seed: int) -> Calibration:
    """The calibration with refits to resamples of held-out rows (equation 6a)."""
    targets = smoothed_targets(held.y, torch.bincount(held.y, minlength=len(calibration.slope)))
    rows = (held.raw_log_ratio, targets, held.log_prevalence, held.weight)
    return resample_calibration(calibration, *rows, n_resamples=n_resamples, random_state=seed)


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


def smoothed_targets(y: Tensor, counts: Tensor) -> Tensor:
    """Platt's soft labels, (n + 1) / (n + 2) for a class with n rows; separable data then give finite fits."""
    n_classes = len(counts)
    certainty = ((counts + 1) / (counts + 2)).double()[y][:, None]
    return one_hot(y, n_classes).double() * (certainty - (1 - certainty) / (n_classes - 1)) + (1 - certainty) / (
        n_classes - 1
    )
