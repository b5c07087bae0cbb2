"""A calibration once it is fitted: how it scales log f, how that is undone, and its resamples."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from sitewise.arrays import Container, Problems, read_matrix

METHODS = ("none", "temperature", "bias_corrected", "vector")

NOT_UNDONE = (
    "the calibration cannot be undone: the slope of class {classes} is zero, so the raw log-ratio left no trace. "
    "Keep the raw log-ratios beside the calibrated ones, or use method='none'"
)


@dataclass(frozen=True)
class Calibration:
    """A fitted `slope ∘ centred log f + bias`; call it on the log-ratios of any site."""

    method: str
    slope: Tensor  # (K,)
    bias: Tensor  # (K,), sums to zero
    resampled_slope: Tensor | None = field(default=None, repr=False)  # (R, K), None where none were asked for
    resampled_bias: Tensor | None = field(default=None, repr=False)  # (R, K)

    def __call__(self, log_ratio: Any) -> Any:
        """Calibrate rows of log f, in the container they come in."""
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
        """Calibrate an (n, K) tensor; infinite entries stay infinite."""
        if self.method == "none":
            return raw_log_ratio
        device = raw_log_ratio.device
        calibrated = self.slope.to(device) * centre(raw_log_ratio) + self.bias.to(device)
        return torch.where(raw_log_ratio.isinf(), raw_log_ratio, calibrated)

    def undo(self, calibrated_log_ratio: Tensor) -> Tensor:
        """The centred raw (n, K) log-ratio behind a calibrated one that may be off by a constant in each row.

        The constant c with l + c = slope ∘ raw + bias is the one that centres raw; infinite entries stay infinite.
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
        """The R resampled calibrations, each to be called like any other; an empty list where none were asked for."""
        if self.resampled_slope is None or self.resampled_bias is None:
            return []
        pairs = zip(self.resampled_slope, self.resampled_bias, strict=True)
        return [Calibration(self.method, slope, bias) for slope, bias in pairs]


def centre(log_ratio: Tensor) -> Tensor:
    """Subtract each row's mean over its finite entries, which takes out f's free factor before anything scales it."""
    finite = torch.isfinite(log_ratio)
    total = torch.where(finite, log_ratio, 0.0).sum(1, keepdim=True)
    return log_ratio - total / finite.sum(1, keepdim=True).clamp_min(1)
