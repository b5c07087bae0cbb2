"""Is f calibrated on the held-out rows, and how surely is that known?"""

import torch
from scipy.stats import chi2
from torch import Tensor

from sitewise.diagnosis.result import Finding
from sitewise.diagnosis.samples import SourceSample
from sitewise.posterior import combine

BINS = 10
FEWEST = 20
LEVEL = 0.01
LARGE = 0.05  # calibration error that matters


def check_calibration(source: SourceSample, slope_in_errors: float | None) -> Finding:
    """Predicted against observed frequencies of each class on held-out rows, in bins of the prediction."""
    name = "calibration"
    if int((source.counts > 0).sum()) < 2 or len(source.y) < FEWEST:
        sentence = "There are too few held-out rows to calibrate f or to tell whether it is calibrated."
        advice = "Call model.calibrate with labeled rows that training did not use."
        return Finding(name, "care", None, None, sentence, advice, details={"rows": len(source.y)})
    probability = combine(source.log_ratio, source.log_prevalence).exp()
    error, statistic, degrees = calibration_error(probability, source.y, source.weight)
    fitted = {"none": 0, "temperature": 1}.get(source.calibration.method, 2)
    p_value = float(chi2.sf(statistic, max(1, degrees - fitted)))
    severity = "care" if p_value < LEVEL and error > LARGE else "good"
    certainty = (
        "" if slope_in_errors is None else f"; its slope is known to within {100 / max(slope_in_errors, 1e-9):.0f}%"
    )
    sentence = (
        f"On {len(source.y)} held-out rows predicted and observed frequencies differ by {100 * error:.1f} points on "
        f"average{certainty}."
    )
    advice = "Calibrate on more held-out rows, or with method='vector'."
    details = {"rows": len(source.y), "counts": source.counts.tolist(), "method": source.calibration.method}
    return Finding(name, severity, error, LARGE, sentence, advice, p_value, details)


def calibration_error(probability: Tensor, y: Tensor, weight: Tensor) -> tuple[float, float, int]:
    """The mean gap |observed - predicted| over bins, less what chance alone makes of it, Σ z², and how many z.

    Bins hold equally many rows each, for every class but the first (with two classes they mirror each other).
    """
    gaps, statistic, degrees = [], 0.0, 0
    for label in range(1, probability.shape[1]):
        p, hit = probability[:, label], (y == label).double()
        bins = torch.argsort(torch.argsort(p)) * BINS // len(p)
        total, gap, variance, squares = (torch.zeros(BINS).double() for _ in range(4))
        total.index_add_(0, bins, weight)
        gap.index_add_(0, bins, weight * (hit - p))
        variance.index_add_(0, bins, weight**2 * p * (1 - p))
        squares.index_add_(0, bins, weight**2)
        enough = variance > 1.0 * squares / total.clamp_min(1e-300)  # about one event expected each way
        statistic += float((gap[enough] ** 2 / variance[enough]).sum())
        degrees += int(enough.sum())
        excess = (gap**2 - variance).clamp_min(0).sqrt()
        gaps.append(float(excess.sum() / total.sum()))
    return max(gaps), statistic, max(1, degrees)
