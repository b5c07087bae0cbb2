"""Calibration of log f on held-out labeled data, given that data's g (equation 6).

The scaled quantity is log f, never log f + log g: the prior of the calibration data must not leak into f.
"""

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sitewise.arrays import Container, Problems, read_labels, read_matrix, read_weight, to_tensor
from sitewise.solvers import newton

METHODS = ("none", "temperature", "bias_corrected", "vector")
INFINITE = 50.0  # what ±inf counts as while fitting, in units of the spread; more decides nothing that 50 does not
HUGE = 1e6  # a centred log-ratio beyond this is a certainty written as a number

NOT_CONVERGED = (
    "the calibration did not converge in {n_iter} iterations (gap {gap:.1e}): check the log-ratios for outliers, "
    "or use method='temperature'"
)


@dataclass(frozen=True)
class Calibration:
    """A fitted `slope ∘ centred log f + bias`; call it on the log-ratios of any site."""

    method: str
    slope: Tensor  # (K,)
    bias: Tensor  # (K,), sums to zero

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


def centre(log_ratio: Tensor) -> Tensor:
    """Subtract each row's mean over its finite entries, which takes out f's free factor before anything scales it."""
    finite = torch.isfinite(log_ratio)
    total = torch.where(finite, log_ratio, 0.0).sum(1, keepdim=True)
    return log_ratio - total / finite.sum(1, keepdim=True).clamp_min(1)


def calibrate_log_ratio(
    log_ratio: Any, y: Any, log_prevalence: Any, method: str = "vector", *, sample_weight: Any = None
) -> Calibration:
    """Fit a calibration of log f by minimum NLL of equation 3.

    Parameters
    ----------
    log_ratio : (n, K) log f of held-out labeled rows.
    y : (n,) class indices 0..K-1.
    log_prevalence : (n, K) or (K,) log g of those rows' own site, not fitted on these very labels (cross-fit it).
    method : "temperature" (one slope), "bias_corrected" (one slope, a bias for each class), "vector" (a slope and a
        bias for each class; for two classes the same as "bias_corrected") or "none".
    sample_weight : (n,) optional.

    Examples
    --------
    >>> calibration = calibrate_log_ratio(log_ratio, y, log_prevalence, method="vector")
    >>> log_ratio_here = calibration(log_ratio_of_another_site)
    """
    problems = Problems("calibrate_log_ratio")
    if method not in METHODS:
        problems.add(f"method must be one of {', '.join(METHODS)}, got {method!r}")
    ratios = read_matrix(log_ratio, "log_ratio", problems)
    if ratios is None:
        problems.raise_if_any()
    assert ratios is not None
    n_rows, n_classes = ratios.shape
    labels = read_labels(y, n_rows, n_classes, problems)
    weight = read_weight(sample_weight, n_rows, problems, ratios.device)
    prior = _read_log_prevalence(log_prevalence, ratios, problems)
    known = torch.tensor(labels, device=ratios.device)
    if known.isnan().any():
        problems.add(f"y has {int(known.isnan().sum())} unknown label(s): calibration needs labeled rows only")
    problems.raise_if_any()
    target = known.long()
    _check_classes(target, weight, n_classes, method, prior, problems)
    problems.raise_if_any()
    one_hot = torch.nn.functional.one_hot(target, n_classes).to(ratios.dtype)
    return fit_calibration(ratios, one_hot, prior, weight, method)


def fit_calibration(
    log_ratio: Tensor, targets: Tensor, log_prevalence: Tensor, weight: Tensor, method: str
) -> Calibration:
    """Fit to soft labels (n, K), rows of which sum to one; a class that log g calls impossible gets none of them.

    Rows are brought to a spread of one before Newton and the slopes back after it, so that overconfident log-ratios
    are no harder than others.
    """
    n_classes = log_ratio.shape[1]
    if method == "none":
        return Calibration(method, log_ratio.new_ones(n_classes), log_ratio.new_zeros(n_classes))
    possible = torch.where(log_prevalence == -torch.inf, 0.0, targets)
    possible = possible / possible.sum(1, keepdim=True)
    scaled, spread = _to_unit_spread(centre(log_ratio), weight)
    slope, bias = _fit(scaled, possible, log_prevalence, weight, method)
    return Calibration(method, slope / spread, bias)


def _to_unit_spread(centred: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Divide centred rows by their root mean square; certainties take no part in it and count as ±INFINITE."""
    ordinary = centred.abs() <= HUGE
    squares = weight[:, None] * torch.where(ordinary, centred, 0.0) ** 2
    mean_square = squares.sum() / (weight[:, None] * ordinary).sum().clamp_min(1e-300)
    spread = torch.where(mean_square > 0, mean_square.sqrt(), 1.0)
    return torch.where(ordinary, centred / spread, centred.clamp(-INFINITE, INFINITE)), spread


def _read_log_prevalence(log_prevalence: Any, ratios: Tensor, problems: Problems) -> Tensor:
    try:
        prior = to_tensor(log_prevalence, ratios.device)
    except (TypeError, ValueError) as error:
        problems.add(f"log_prevalence must be numbers ({error})")
        return torch.zeros_like(ratios)
    if prior.shape not in (ratios.shape, ratios.shape[1:]):
        problems.add(
            f"log_prevalence must have shape {tuple(ratios.shape)} or ({ratios.shape[1]},), got {tuple(prior.shape)}"
        )
        return torch.zeros_like(ratios)
    if prior.isnan().any() or (prior == torch.inf).any():
        problems.add("log_prevalence must hold logs of probabilities, got NaN or +inf")
    return prior.expand_as(ratios)


def _check_classes(
    target: Tensor, weight: Tensor, n_classes: int, method: str, prior: Tensor, problems: Problems
) -> None:
    seen = set(target[weight > 0].tolist())
    absent = sorted(set(range(n_classes)) - seen)
    if len(seen) == 1 and method != "none":
        problems.add(f"y holds one class only ({seen.pop()}): calibration needs at least two")
    elif absent and method in ("bias_corrected", "vector"):
        problems.add(f"y has no row of class {absent}, whose bias then has no optimum: use method='temperature'")
    impossible = (prior.gather(1, target[:, None])[:, 0] == -torch.inf).nonzero().flatten().tolist()
    if impossible:
        problems.add(f"log_prevalence calls the label of row {impossible[0]} impossible (-inf)")


def _fit(centred: Tensor, targets: Tensor, prior: Tensor, weight: Tensor, method: str) -> tuple[Tensor, Tensor]:
    """Minimize the convex NLL by Newton over (slope, bias) = expand @ parameters, slopes held at or above zero."""
    n_classes = centred.shape[1]
    expand, n_slopes = _expansion(n_classes, method, centred)
    total = weight.sum()

    def log_posterior(point: Tensor) -> Tensor:
        slope, bias = (expand @ point).split(n_classes)
        return torch.log_softmax(slope * centred + bias + prior, dim=1)

    def value(points: Tensor) -> Tensor:
        rows = torch.where(targets > 0, targets * log_posterior(points[0]), 0.0).sum(1)
        return -(weight @ rows)[None] / total

    def derivatives(points: Tensor) -> tuple[Tensor, Tensor]:
        posterior = log_posterior(points[0]).exp()
        residual = weight[:, None] * (posterior - targets)
        gradient = torch.cat([(residual * centred).sum(0), residual.sum(0)])
        # Σ w a aᵀ ∘ (diag(p) - p pᵀ) for a = (centred, 1), block by block.
        columns = torch.cat([posterior * centred, posterior], dim=1)
        weighted = weight[:, None] * posterior
        corner = torch.diag((weighted * centred).sum(0))
        diagonal = torch.cat(
            [
                torch.cat([torch.diag((weighted * centred**2).sum(0)), corner], dim=1),
                torch.cat([corner, torch.diag(weighted.sum(0))], dim=1),
            ]
        )
        hessian = diagonal - columns.T @ (weight[:, None] * columns)
        return (expand.T @ gradient)[None] / total, (expand.T @ hessian @ expand)[None] / total

    start = torch.zeros(1, expand.shape[1], dtype=centred.dtype, device=centred.device)
    start[:, :n_slopes] = 1.0
    lower = torch.full_like(start, -torch.inf)
    lower[:, :n_slopes] = 0.0
    found = newton(value, derivatives, start, lower=lower, tolerance=1e-10, max_iter=200)
    if not found.converged:
        warnings.warn(NOT_CONVERGED.format(n_iter=found.n_iter, gap=float(found.gap[0])), stacklevel=4)
    slope, bias = (expand @ found.point[0]).split(n_classes)
    return slope, bias


def _expansion(n_classes: int, method: str, like: Tensor) -> tuple[Tensor, int]:
    """The (2K, P) matrix from free parameters to all slopes and biases, and how many of them are slopes."""
    shared = torch.ones(n_classes, 1, dtype=like.dtype, device=like.device)
    own = torch.eye(n_classes, dtype=like.dtype, device=like.device)
    # With two classes only the sum of both slopes matters: vector scaling is the bias-corrected temperature.
    slopes = own if method == "vector" and n_classes > 2 else shared
    biases = own[:, 1:] - 1.0 / n_classes if method in ("vector", "bias_corrected") else own[:, :0]
    return torch.block_diag(slopes, biases), slopes.shape[1]
