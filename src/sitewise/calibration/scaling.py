"""A fitted calibration: apply it to log f, invert it, and its bootstrap resamples."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from sitewise.arrays import Container, Problems, read_matrix

METHODS = ("none", "temperature", "bias_corrected", "vector")

NOT_UNDONE = (
    "the calibration cannot be inverted: the slope of class {classes} is zero, so the raw log-ratio is lost. "
    "Keep the raw log-ratios beside the calibrated ones, or use method='none'"
)


@dataclass(frozen=True)
class Calibration:
    """A fitted calibration of log f: `slope ∘ centred log f + bias`. Call it on the log-ratios of any site.

    Parameters
    ----------
    method : {"vector", "bias_corrected", "temperature", "none"}
        How it was fitted; "none" leaves log f unchanged.
    slope : Tensor of shape (K,)
        The slope of each class.
    bias : Tensor of shape (K,)
        The bias of each class; they sum to zero.
    resampled_slope : Tensor of shape (R, K), optional
        The slopes of R bootstrap resamples.
    resampled_bias : Tensor of shape (R, K), optional
        Their biases.

    Examples
    --------
    >>> calibration = calibrate_log_ratio(log_ratio, y, log_prevalence)
    >>> calibrated_log_ratio = calibration(log_ratio_of_another_site)
    """

    method: str
    slope: Tensor
    bias: Tensor
    resampled_slope: Tensor | None = field(default=None, repr=False)
    resampled_bias: Tensor | None = field(default=None, repr=False)

    def __call__(self, log_ratio: Any) -> Any:
        """Calibrate rows of log f.

        Parameters
        ----------
        log_ratio : array of shape (n, K)
            Raw log f.

        Returns
        -------
        array of shape (n, K)
            Calibrated log f, in the container and on the device of `log_ratio`.
        """
        problems = Problems("calibration")
        raw_log_ratio = read_matrix(log_ratio, "log_ratio", problems)
        if raw_log_ratio is not None and raw_log_ratio.shape[1] != len(self.slope):
            problems.add(
                f"log_ratio has {raw_log_ratio.shape[1]} classes, the calibration was fitted on {len(self.slope)}"
            )
        problems.raise_if_any()
        assert raw_log_ratio is not None
        return Container.of(log_ratio).rows(self.apply(raw_log_ratio))

    def apply(self, raw_log_ratio: Tensor) -> Tensor:
        """Calibrate a tensor; infinite entries stay infinite.

        Parameters
        ----------
        raw_log_ratio : Tensor of shape (n, K)
            Raw log f.

        Returns
        -------
        Tensor of shape (n, K)
            Calibrated log f.
        """
        if self.method == "none":
            return raw_log_ratio
        device = raw_log_ratio.device
        calibrated = self.slope.to(device) * centre(raw_log_ratio) + self.bias.to(device)
        return torch.where(raw_log_ratio.isinf(), raw_log_ratio, calibrated)

    def undo(self, calibrated_log_ratio: Tensor) -> Tensor:
        """Recover the centred raw log-ratio from a calibrated one; infinite entries stay infinite.

        A constant may have been added to each row of the calibrated log-ratio l. The constant c with
        l + c = slope ∘ raw + bias is found by centring raw.

        Parameters
        ----------
        calibrated_log_ratio : Tensor of shape (n, K)
            Calibrated log f, up to a constant in each row.

        Returns
        -------
        Tensor of shape (n, K)
            Raw log f; the mean of each row is zero.
        """
        flat = (self.slope == 0).nonzero().flatten().tolist()
        if flat:
            raise ValueError(NOT_UNDONE.format(classes=", ".join(map(str, flat))))
        inverse = 1 / self.slope.to(calibrated_log_ratio.device)
        finite = torch.isfinite(calibrated_log_ratio)
        unscaled = (calibrated_log_ratio - self.bias.to(calibrated_log_ratio.device)) * inverse
        total = torch.where(finite, unscaled, 0.0).sum(1, keepdim=True)
        constant = total / torch.where(finite, inverse, 0.0).sum(1, keepdim=True).clamp_min(1e-300)
        return unscaled - inverse * constant

    def resamples(self) -> list["Calibration"]:
        """Return the calibrations of the bootstrap resamples.

        Returns
        -------
        list of Calibration
            R calibrations; empty if `n_resamples` was 0.
        """
        if self.resampled_slope is None or self.resampled_bias is None:
            return []
        pairs = zip(self.resampled_slope, self.resampled_bias, strict=True)
        return [Calibration(self.method, slope, bias) for slope, bias in pairs]


def centre(log_ratio: Tensor) -> Tensor:
    """Subtract each row's mean over its finite entries, so that scaling does not depend on the free factor of f."""
    finite = torch.isfinite(log_ratio)
    total = torch.where(finite, log_ratio, 0.0).sum(1, keepdim=True)
    return log_ratio - total / finite.sum(1, keepdim=True).clamp_min(1)
