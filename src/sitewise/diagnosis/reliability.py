"""Check the calibration of f on held-out rows, and its uncertainty."""

from dataclasses import dataclass

import torch
from scipy.stats import chi2
from torch import Tensor

from sitewise.diagnosis.discrepancy import quadratic_p_value
from sitewise.diagnosis.result import Finding
from sitewise.diagnosis.samples import SourceSample, number, several
from sitewise.posterior import combine

BINS = 10
FEWEST = 20
LEVEL = 0.01
LARGE = 0.05  # a smaller calibration error is ignored


@dataclass(frozen=True)
class CalibrationError:
    """The calibration error, with a test statistic.

    `value` is the mean of |observed - predicted| over bins, reduced by the part expected by chance. `statistic` is the
    sum of s² over bins, where s is observed minus predicted, divided by the standard deviation of this difference.
    `degrees` is the number of bins in this sum. `eigenvalues` are those of the covariance of the s of all bins if there
    are groups; None if the s are independent.
    """

    value: float
    statistic: float
    degrees: int
    eigenvalues: Tensor | None = None

    def p_value(self, fitted: int) -> float:
        """Return the p-value. Each fitted parameter removes a degree of freedom or, with groups, an eigenvalue."""
        degrees = max(1, self.degrees - fitted)
        if self.eigenvalues is None:
            return float(chi2.sf(self.statistic, degrees))
        return quadratic_p_value(self.statistic, self.eigenvalues.sort(descending=True).values[:degrees])


def check_calibration(source: SourceSample, slope_in_errors: float | None) -> Finding:
    """Compare predicted and observed frequencies of each class on held-out rows, in bins of the prediction."""
    name = "calibration"
    if int((source.counts > 0).sum()) < 2 or len(source.y) < FEWEST:
        sentence = "There are too few held-out rows to calibrate f or to tell whether it is calibrated."
        advice = "Call model.calibrate with labeled rows that training did not use."
        return Finding(name, "care", None, None, sentence, advice, details={"rows": len(source.y)})
    probability = combine(source.log_ratio, source.log_prevalence).exp()
    error = calibration_error(probability, source.y, source.weight, source.groups)
    p_value = error.p_value({"none": 0, "temperature": 1}.get(source.calibration.method, 2))
    severity = "care" if p_value < LEVEL and error.value > LARGE else "good"
    certainty = (
        "" if slope_in_errors is None else f"; its slope is known to within {100 / max(slope_in_errors, 1e-9):.0f}%"
    )
    groups = "".join(f" of {n_groups} groups" for n_groups in source.group_counts.values())
    sentence = (
        f"On {len(source.y)} held-out rows{groups} predicted and observed frequencies differ by "
        f"{100 * error.value:.1f} points on average{certainty}."
    )
    advice = "Calibrate on more held-out rows, or with method='vector'."
    details = {"rows": len(source.y), "counts": source.counts.tolist(), "method": source.calibration.method}
    details |= source.group_counts
    return Finding(name, severity, error.value, LARGE, sentence, advice, p_value, details)


def calibration_error(probability: Tensor, y: Tensor, weight: Tensor, groups: Tensor | None = None) -> CalibrationError:
    """Compare observed and predicted frequencies in bins of equally many rows, for every class except the first.

    The variance of a label is p(1 - p). With groups of rows, the additional variance of sums over a group and the
    covariance between bins are included. The error is that of the class with the largest error.
    """
    groups = several(groups)
    gaps, statistic, degrees, eigenvalues = [], 0.0, 0, []
    for label in range(1, probability.shape[1]):
        p, hit = probability[:, label], (y == label).double()
        bins = torch.argsort(torch.argsort(p)) * BINS // len(p)
        total, gap, variance, squares = (torch.zeros(BINS).double() for _ in range(4))
        total.index_add_(0, bins, weight)
        gap.index_add_(0, bins, weight * (hit - p))
        variance.index_add_(0, bins, weight**2 * p * (1 - p))
        squares.index_add_(0, bins, weight**2)
        together = None if groups is None else dependence(weight * (hit - p), bins, groups)
        inflation = torch.ones(BINS).double() if together is None else together.diagonal()
        enough = variance / inflation > 1.0 * squares / total.clamp_min(1e-300)  # about one event and one non-event
        statistic += float((gap[enough] ** 2 / variance[enough]).sum())
        degrees += int(enough.sum())
        if together is not None:
            eigenvalues.append(torch.linalg.eigvalsh(together[enough][:, enough]))
        excess = (gap**2 - variance * inflation).clamp_min(0).sqrt()
        gaps.append(float(excess.sum() / total.sum()))
    return CalibrationError(max(gaps), statistic, max(1, degrees), torch.cat(eigenvalues) if eigenvalues else None)


def dependence(residuals: Tensor, bins: Tensor, groups: Tensor) -> Tensor:
    """Return the covariance of the bins' sums of residuals, relative to that of independent rows, (BINS, BINS).

    It is Q/(Q-1) Σ_G S_Gi S_Gj / sqrt(E_i E_j) for Q groups G. S_Gi is the sum of residuals of group G in bin i, and
    E_i the sum of their squares in bin i.
    """
    numbers, n_groups = number(groups)
    sums = torch.zeros(n_groups * BINS).double().index_add_(0, numbers * BINS + bins, residuals).reshape(-1, BINS)
    scale = torch.zeros(BINS).double().index_add_(0, bins, residuals**2).sqrt()
    scaled = sums / scale.clamp_min(1e-300)
    product: Tensor = scaled.T @ scaled * (n_groups / (n_groups - 1))
    return torch.where(torch.eye(BINS).bool() & (scale <= 0), 1.0, product)
