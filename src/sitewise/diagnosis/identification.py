"""Check how informative f is: on held-out rows, and for the prevalence of this site given its number of rows."""

import numpy as np
import torch
from torch import Tensor

from sitewise.adaptation import PrevalenceEstimate
from sitewise.adaptation.cell_problem import ManyConstants, solve_cells
from sitewise.adaptation.rows import to_ratio
from sitewise.calibration import Calibration
from sitewise.calibration.fit import resample_calibration
from sitewise.diagnosis.result import Finding
from sitewise.diagnosis.samples import SourceSample, TargetSample, evenly, number, scatter, several
from sitewise.posterior import combine

CARE_WIDTH, STOP_WIDTH = 0.10, 0.25  # half the width of P(Y)'s 95% interval, with the calibration's uncertainty
SURE_SLOPE = 2.33  # distance from zero in standard errors: a one-sided test at 1%
RESAMPLES = 40
RESAMPLED_ROWS = 2000
DRAW_TOLERANCE = 1e-7  # tolerance of the KKT gap; enough for the standard deviation between draws


def check_identification(
    source: SourceSample, target: TargetSample, estimate: PrevalenceEstimate, resamples: list[Calibration]
) -> Finding:
    """Check half the width of P(Y)'s 95% interval, and whether f separates the classes on held-out rows."""
    name = "identification"
    low, high = (np.asarray(bound, dtype=np.float64) for bound in estimate.interval())
    given_f = float((high - low).max() / 2.0)
    calibration_error = calibration_standard_error(source.calibration, resamples, target)
    width = min(float(np.hypot(given_f, 1.96 * calibration_error)), 0.5)
    gain, gain_error = information_gain(source)
    slope = slope_in_errors(source.calibration, resamples)
    details = {
        "half_width_given_f": given_f,
        "calibration_error_of_prevalence": calibration_error,
        "held_out_gain": gain,
        "held_out_gain_error": gain_error,
        "slope_in_standard_errors": slope,
        "rows": len(target.log_ratio),
        **target.group_counts,
    }
    advice = "Adapt with more rows, or with labels for a few; or improve the model before using it anywhere."
    # If the classes are nearly separable, the slope is uncertain but the gain is clearly above zero. If f is
    # uninformative, neither is clearly above zero.
    silent = gain < SURE_SLOPE * gain_error and (slope is None or slope < SURE_SLOPE)
    if silent and len(source.y):
        sentence = (
            "The model does not separate the classes on held-out rows (f is uninformative): "
            "nothing can be learned about the prevalence here."
        )
        return Finding(name, "stop", width, STOP_WIDTH, sentence, advice, details=details)
    severity = "stop" if width > STOP_WIDTH else "care" if width > CARE_WIDTH else "good"
    threshold = STOP_WIDTH if severity == "stop" else CARE_WIDTH
    rows = f"{len(target.log_ratio)} rows" + (f" of {target.n_units} groups" if target.groups is not None else "")
    sentence = f"If the assumption holds, {rows} give the prevalence here to within ±{100 * width:.1f} points (95%)."
    if severity == "stop":
        sentence += " That is too imprecise to be useful: the model is not informative enough for so few rows."
    return Finding(name, severity, width, threshold, sentence, advice, details=details)


def draw_calibrations(source: SourceSample, random_state: int) -> list[Calibration]:
    """Refit the source's calibration to bootstrap resamples of its rows or groups.

    Returns an empty list if f was not calibrated. If all rows belong to one group, rows are resampled.
    """
    if source.calibration.method == "none" or len(source.y) < 2:
        return []
    rows, shrink = drawn_rows(several(source.groups), len(source.y))
    sample = source.take(rows)
    n_classes = sample.raw_log_ratio.shape[1]
    targets = torch.nn.functional.one_hot(sample.y, n_classes).double()
    drawn = resample_calibration(
        source.calibration,
        sample.raw_log_ratio,
        targets,
        sample.log_prevalence,
        sample.weight,
        several(sample.groups),
        n_resamples=RESAMPLES,
        random_state=random_state,
    )
    fitted = source.calibration
    return [
        Calibration(
            other.method,
            fitted.slope + shrink * (other.slope - fitted.slope),
            fitted.bias + shrink * (other.bias - fitted.bias),
        )
        for other in drawn.resamples()
    ]


def drawn_rows(groups: Tensor | None, n_rows: int) -> tuple[Tensor, float]:
    """Return the indices of about RESAMPLED_ROWS rows (of whole groups), and a factor for deviations in resamples.

    The factor is the square root of the share of rows, or of groups. It scales the deviations of refits to these rows
    to those of refits to all rows.
    """
    if groups is None:
        rows = evenly(torch.arange(n_rows), RESAMPLED_ROWS)
        return rows, (len(rows) / n_rows) ** 0.5
    numbers, n_groups = number(groups)
    kept = evenly(torch.arange(n_groups), max(2, n_groups * RESAMPLED_ROWS // n_rows))
    return torch.isin(numbers, kept).nonzero().flatten(), (len(kept) / n_groups) ** 0.5


def slope_in_errors(calibration: Calibration, resamples: list[Calibration]) -> float | None:
    """Return the calibration's mean slope divided by its standard error; None without resamples."""
    if not resamples:
        return None
    slopes = torch.stack([other.slope.mean() for other in resamples])
    error = float(slopes.std())
    return float(calibration.slope.mean()) / error if error > 0 else 0.0


def calibration_standard_error(calibration: Calibration, resamples: list[Calibration], target: TargetSample) -> float:
    """Return the standard error of P(Y) due to the calibration: the standard deviation of a constant g over resamples.

    The result is the largest standard error of any class. It is 0 without resamples.
    """
    if not resamples or bool((calibration.slope <= 0).any()):
        return 0.0
    rows = evenly(target.supported.nonzero().flatten(), RESAMPLED_ROWS)
    raw_log_ratio = calibration.undo(target.log_ratio[rows])
    drawn = torch.stack([other.apply(raw_log_ratio) for other in resamples])
    return float(constant_prevalences(drawn, target.weight[rows]).std(dim=0).max())


def constant_prevalences(log_ratio: Tensor, weight: Tensor) -> Tensor:
    """Estimate a constant g (R, K) from each of R versions of log f (R, n, K) (equation 8)."""
    n_versions, _, n_classes = log_ratio.shape
    even = torch.full((n_versions, n_classes), 1 / n_classes, dtype=torch.float64)
    ratio = torch.stack([to_ratio(version) for version in log_ratio])
    problem = ManyConstants(torch.zeros_like(even), ratio, weight.expand(n_versions, -1))
    return solve_cells(problem, even, "auto", DRAW_TOLERANCE).point


def information_gain(source: SourceSample) -> tuple[float, float]:
    """Return the increase of the mean log-probability of held-out labels by f over g alone, and its standard error."""
    if not len(source.y):
        return 0.0, 0.0
    prior = torch.log_softmax(source.log_prevalence, dim=1)
    gain = (combine(source.log_ratio, prior) - prior).gather(1, source.y[:, None])[:, 0]
    share = source.weight / source.weight.sum()
    mean = share @ gain
    if several(source.groups) is None:
        return float(mean), float((share**2 @ (gain - mean) ** 2).sqrt())
    return float(mean), float(scatter((share * (gain - mean))[:, None], source.groups).sqrt())
