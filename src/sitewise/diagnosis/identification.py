"""How much f says about y: on held-out rows, and about the prevalence of this site, given its size."""

import numpy as np
import torch
from torch import Tensor

from sitewise.adaptation import PrevalenceEstimate
from sitewise.calibration import Calibration, resample_calibration
from sitewise.diagnosis.groups import number, scatter, several
from sitewise.diagnosis.result import Finding
from sitewise.diagnosis.samples import SourceSample, TargetSample, evenly
from sitewise.posterior import combine, normalize
from sitewise.prevalence.linear import contrasts

CARE_WIDTH, STOP_WIDTH = 0.10, 0.25  # half the 95% interval of P(Y), the calibration's doubt included
SURE_SLOPE = 2.33  # standard errors that the slope of a calibration is above zero: 1% one-sided
RESAMPLES = 40
RESAMPLED_ROWS = 2000
EM_STEPS, NEWTON_STEPS = 20, 3  # enough where only the spread between draws is wanted


def check_identification(
    source: SourceSample, target: TargetSample, estimate: PrevalenceEstimate, resamples: list[Calibration]
) -> Finding:
    """The half-width of P(Y)'s 95% interval, and whether f tells the classes apart on held-out rows at all."""
    name = "identification"
    low, high = (np.asarray(bound, dtype=np.float64) for bound in estimate.interval())
    given_f = float((high - low).max() / 2.0)
    doubt = calibration_spread(source.calibration, resamples, target)
    width = min(float(np.hypot(given_f, 1.96 * doubt)), 0.5)
    gain, gain_error = information_gain(source)
    slope = slope_in_errors(source.calibration, resamples)
    details = {
        "half_width_given_f": given_f,
        "calibration_error_of_prevalence": doubt,
        "held_out_gain": gain,
        "held_out_gain_error": gain_error,
        "slope_in_standard_errors": slope,
        "rows": len(target.log_ratio),
        **target.group_counts,
    }
    advice = "Adapt with more rows, or with labels for a few; or improve the model before using it anywhere."
    silent = (slope is not None and slope < SURE_SLOPE) or (slope is None and gain < SURE_SLOPE * gain_error)
    if silent and len(source.y):
        sentence = (
            "The model does not tell the classes apart on held-out rows (f is uninformative): "
            "nothing can be learned about the prevalence here."
        )
        return Finding(name, "stop", width, STOP_WIDTH, sentence, advice, details=details)
    severity = "stop" if width > STOP_WIDTH else "care" if width > CARE_WIDTH else "good"
    threshold = CARE_WIDTH if severity == "good" else STOP_WIDTH if severity == "stop" else CARE_WIDTH
    rows = f"{len(target.log_ratio)} rows" + (f" of {target.n_units} groups" if target.groups is not None else "")
    sentence = f"Where the assumption holds, {rows} tell the prevalence here to within ±{100 * width:.1f} points (95%)."
    if severity == "stop":
        sentence += " That is too wide to be of use: the model says too little about y for so few rows."
    return Finding(name, severity, width, threshold, sentence, advice, details=details)


def draw_calibrations(source: SourceSample, random_state: int) -> list[Calibration]:
    """The source's calibration refitted to its rows, or groups of rows, drawn again; none if nothing is to be refitted.

    Rows of one group only are drawn as if there were none.
    """
    if source.calibration.method == "none" or len(source.y) < 2:
        return []
    rows, shrink = drawn_rows(several(source.groups), len(source.y))
    part = source.take(rows)
    n_classes = part.raw_log_ratio.shape[1]
    targets = torch.nn.functional.one_hot(part.y, n_classes).double()
    drawn = resample_calibration(
        source.calibration,
        part.raw_log_ratio,
        targets,
        part.log_prevalence,
        part.weight,
        several(part.groups),
        n_resamples=RESAMPLES,
        random_state=random_state,
    )
    found = source.calibration
    return [
        Calibration(
            other.method,
            found.slope + shrink * (other.slope - found.slope),
            found.bias + shrink * (other.bias - found.bias),
        )
        for other in drawn.resamples()
    ]


def drawn_rows(groups: Tensor | None, n_rows: int) -> tuple[Tensor, float]:
    """About RESAMPLED_ROWS of the rows, or of whole groups, and what brings their draws as near as all rows' would be.

    That is the root of the share of rows, or of groups.
    """
    if groups is None:
        rows = evenly(torch.arange(n_rows), RESAMPLED_ROWS)
        return rows, (len(rows) / n_rows) ** 0.5
    numbers, n_groups = number(groups)
    kept = evenly(torch.arange(n_groups), max(2, n_groups * RESAMPLED_ROWS // n_rows))
    return torch.isin(numbers, kept).nonzero().flatten(), (len(kept) / n_groups) ** 0.5


def slope_in_errors(calibration: Calibration, resamples: list[Calibration]) -> float | None:
    """How many standard errors the calibration's mean slope is above zero; None where none was fitted."""
    if not resamples:
        return None
    slopes = torch.stack([other.slope.mean() for other in resamples])
    error = float(slopes.std())
    return float(calibration.slope.mean()) / error if error > 0 else 0.0


def calibration_spread(calibration: Calibration, resamples: list[Calibration], target: TargetSample) -> float:
    """The standard error of P(Y) from the calibration alone: a constant g under every draw of it."""
    if not resamples or bool((calibration.slope <= 0).any()):
        return 0.0
    rows = evenly(target.supported.nonzero().flatten(), RESAMPLED_ROWS)
    raw_log_ratio = calibration.undo(target.log_ratio[rows])
    drawn = torch.stack([normalize(other.apply(raw_log_ratio)).exp() for other in resamples])
    return float(constant_prevalences(drawn, target.weight[rows]).std(dim=0).max())


def constant_prevalences(ratio: Tensor, weight: Tensor) -> Tensor:
    """One g for all rows from each of R versions of f (R, n, K), (R, K), by Newton on the simplex (equation 8)."""
    share, basis = weight / weight.sum(), contrasts(ratio.shape[2])
    point = torch.full((len(ratio), ratio.shape[2]), 1 / ratio.shape[2], dtype=torch.float64)
    for _ in range(EM_STEPS):
        point = point * torch.einsum("n,rnk->rk", share, ratio / (ratio @ point[:, :, None]))
    for _ in range(NEWTON_STEPS):
        relative = ratio / (ratio @ point[:, :, None])
        gradient = torch.einsum("n,rnk->rk", share, relative) @ basis
        flat = relative @ basis
        information = torch.einsum("n,rni,rnj->rij", share, flat, flat)
        information = information + 1e-9 * torch.eye(len(basis.T), dtype=torch.float64)
        step = torch.linalg.solve(information, gradient) @ basis.T
        point = (point + step).clamp_min(1e-6)
        point = point / point.sum(1, keepdim=True)
    return point


def information_gain(source: SourceSample) -> tuple[float, float]:
    """By how much f raises the log-probability of held-out rows' classes over g alone, and its standard error."""
    if not len(source.y):
        return 0.0, 0.0
    prior = torch.log_softmax(source.log_prevalence, dim=1)
    gain = (combine(source.log_ratio, prior) - prior).gather(1, source.y[:, None])[:, 0]
    share = source.weight / source.weight.sum()
    mean = share @ gain
    if several(source.groups) is None:
        return float(mean), float((share**2 @ (gain - mean) ** 2).sqrt())
    return float(mean), float(scatter((share * (gain - mean))[:, None], source.groups).sqrt())
