"""`Calibration`, which applies and inverts a calibration of log f, and the fit of a calibration.

The fit is a convex problem. Newton's method solves it for one set of row weights, or for many sets at once.
"""

import warnings
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from sklearn.utils import check_random_state
from torch import Tensor

from sitewise.arrays import Container, Problems, read_matrix
from sitewise.solvers import newton

INFINITE = 50.0  # replaces ±inf while fitting, in units of the root mean square
HUGE = 1e6  # a centred log-ratio beyond this is treated as infinite
SLICE = 400_000  # resamples × rows × classes solved at once: at most about 64 MB of temporaries

NOT_CONVERGED = (
    "the calibration did not converge in {n_iter} iterations (gap {gap:.1e}): check the log-ratios for outliers, "
    "or use method='temperature'"
)
ONE_UNIT = (
    "the calibration data come from one {unit} only, which cannot show how {unit}s differ: "
    "resampling needs at least two, or n_resamples=0"
)
METHODS = ("none", "temperature", "bias_corrected", "vector")

NOT_UNDONE = (
    "the calibration cannot be inverted: the slope of class {classes} is zero, so the raw log-ratio is lost. "
    "Keep the raw log-ratios beside the calibrated ones, or use method='none'"
)


@dataclass(frozen=True)
class Calibration:
    """A fitted calibration of log f. Call it on log f of rows of any site.

    First, log f of a row is centred: its mean over the classes is subtracted. The calibrated log f of each class is
    then its slope times the centred log f, plus its bias (equation 6).

    Parameters
    ----------
    method : {"vector", "bias_corrected", "temperature", "none"}
        The method of the fit, as for `calibrate_log_ratio`; "none" leaves log f unchanged.
    slope : Tensor of shape (K,)
        The slope of each class.
    bias : Tensor of shape (K,)
        The bias of each class. The biases sum to zero.
    resampled_slope : Tensor of shape (R, K), optional
        The slopes of R bootstrap resamples.
    resampled_bias : Tensor of shape (R, K), optional
        The biases of the same resamples.

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
            Raw log f: before calibration.

        Returns
        -------
        array of shape (n, K)
            Calibrated log f, as the same type of array and on the same device as `log_ratio`.
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
        """Calibrate rows of log f (equation 6) that are given as a tensor; infinite entries stay infinite.

        Parameters
        ----------
        raw_log_ratio : Tensor of shape (n, K)
            Raw log f: before calibration.

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
        """Recover the centred raw log f from the calibrated one; infinite entries stay infinite.

        A slope of zero cannot be undone and raises an error.

        Parameters
        ----------
        calibrated_log_ratio : Tensor of shape (n, K)
            Calibrated log f. A constant that was added to a row does not change the result.

        Returns
        -------
        Tensor of shape (n, K)
            Raw log f, centred: the finite entries of each row have mean zero.
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
            One calibration for each resample; empty if the calibration was fitted with `n_resamples=0`.
        """
        if self.resampled_slope is None or self.resampled_bias is None:
            return []
        pairs = zip(self.resampled_slope, self.resampled_bias, strict=True)
        return [Calibration(self.method, slope, bias) for slope, bias in pairs]


def centre(log_ratio: Tensor) -> Tensor:
    """Subtract from each row the mean of its finite entries, so that scaling does not depend on the factor of f."""
    finite = torch.isfinite(log_ratio)
    total = torch.where(finite, log_ratio, 0.0).sum(1, keepdim=True)
    return log_ratio - total / finite.sum(1, keepdim=True).clamp_min(1)


def fit_calibration(
    log_ratio: Tensor, targets: Tensor, log_prevalence: Tensor, weight: Tensor, method: str
) -> Calibration:
    """Fit a calibration to soft labels (n, K), whose rows sum to one.

    Where log g is -inf, the label's share of the class is set to zero, and the row is rescaled. All log-ratios are
    divided by their root mean square before Newton's method, and the slopes are rescaled afterwards. So overconfident
    log-ratios are not harder to fit.
    """
    if method == "none":
        return Calibration(method, torch.ones_like(log_ratio[0]), torch.zeros_like(log_ratio[0]))
    scaling = _Scaling.of(log_ratio, targets, log_prevalence, weight, method)
    slope, bias = scaling.fit(weight[None], scaling.start[None])
    return Calibration(method, slope[0], bias[0])


def resample_calibration(
    calibration: Calibration,
    log_ratio: Tensor,
    targets: Tensor,
    log_prevalence: Tensor,
    weight: Tensor,
    groups: Tensor | None = None,
    *,
    n_resamples: int,
    random_state: Any = None,
) -> Calibration:
    """Refit a calibration to R bootstrap resamples of its rows, or of groups of rows (equation 6a).

    In a resample, the weight of a row is multiplied by the number of times it was drawn, plus 1/N, where N is the
    number of rows of positive weight. Without 1/N, the bias of a class that was not drawn would be infinite, and so
    would be the slopes if the drawn rows separate the classes. Resamples of the method "none" do not change log f.
    """
    if calibration.method == "none":
        slope, bias = (value.repeat(n_resamples, 1) for value in (calibration.slope, calibration.bias))
        return replace(calibration, resampled_slope=slope, resampled_bias=bias)
    rng = check_random_state(random_state)
    scaling = _Scaling.of(log_ratio, targets, log_prevalence, weight, calibration.method)
    start = scaling.parameters(calibration)
    at_once = max(1, SLICE // log_ratio.numel())
    fits = []
    for first in range(0, n_resamples, at_once):
        resampled_weight = resample_weight(weight, groups, min(at_once, n_resamples - first), rng)
        fits.append(scaling.fit(resampled_weight, start.expand(len(resampled_weight), -1)))
    slope, bias = (torch.cat(values) for values in zip(*fits, strict=True))
    return replace(calibration, resampled_slope=slope, resampled_bias=bias)


def resample_weight(weight: Tensor, groups: Tensor | None, n_resamples: int, rng: np.random.RandomState) -> Tensor:
    """Return weights (R, n) of R bootstrap resamples: (times drawn + 1/N) × weight for the N rows of positive weight.

    Groups are drawn if they are given, otherwise rows. Rows of weight zero are not drawn, and their weight stays zero.
    With 1/N, no row loses all of its weight: see `resample_calibration`.
    """
    kept = (weight > 0).cpu().numpy()
    rows = np.arange(len(kept)) if groups is None else groups.cpu().numpy()
    distinct, unit = np.unique(rows[kept], return_inverse=True)
    n_units = len(distinct)
    if n_units < 2:
        raise ValueError(ONE_UNIT.format(unit="row" if groups is None else "group"))
    counts = np.zeros((n_resamples, len(kept)))
    for resample in counts:
        resample[kept] = np.bincount(rng.randint(n_units, size=n_units), minlength=n_units)[unit]
    resampled: Tensor = (torch.tensor(counts, device=weight.device) + 1 / float(kept.sum())) * weight
    return resampled


@dataclass(frozen=True)
class _Scaling:
    """The NLL as a convex function of parameters, for B sets of weights of the same rows at once.

    The slopes and biases of all K classes are expand @ parameters, for P free parameters.
    """

    centred: Tensor  # (n, K) log f, centred and divided by its root mean square
    scale: Tensor  # the root mean square of centred log f
    targets: Tensor  # (n, K) soft labels
    prior: Tensor  # (n, K) log g
    expand: Tensor  # (2K, P)
    start: Tensor  # (P,) initial parameters: one for a slope, zero for a bias

    @classmethod
    def of(cls, log_ratio: Tensor, targets: Tensor, prior: Tensor, weight: Tensor, method: str) -> "_Scaling":
        possible = torch.where(prior == -torch.inf, 0.0, targets)
        possible = possible / possible.sum(1, keepdim=True)
        centred, scale = _to_unit_scale(centre(log_ratio), weight)
        return cls(centred, scale, possible, prior, *_expansion(log_ratio.shape[1], method, log_ratio))

    def fit(self, weight: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
        """Return the optimal slopes (not negative) and biases, (B, K) each, for weights (B, n) and starts (B, P)."""
        share = weight / weight.sum(1, keepdim=True)
        lower = torch.where(self.start == 1, 0.0, -torch.inf).expand_as(start)
        solution = newton(
            lambda points: self.loss(points, share),
            lambda points: self.derivatives(points, share),
            torch.maximum(start, lower),
            lower=lower,
            damping=self.damping,
            tolerance=1e-10,
            max_iter=200,
        )
        if not solution.converged:
            warnings.warn(NOT_CONVERGED.format(n_iter=solution.n_iter, gap=float(solution.gap.max())), stacklevel=4)
        slope, bias = (solution.point @ self.expand.T).chunk(2, dim=1)
        return slope / self.scale, bias

    def damping(self, directions: Tensor) -> Tensor:
        """Return factors (B,) on Newton steps (B, P) with which the loss decreases from any point: log(1 + d) / d.

        d is the largest amount, over all rows and pairs of classes, by which the full step changes the difference
        between two logits. The formula holds because the loss is generalized self-concordant (Sun and Tran-Dinh, 2019).
        The factor is nearly one for a short step. Steps are long where all predictions are near 0 or 1 and the loss is
        flat; they are shortened to about the logarithm of d.
        """
        slope, bias = (directions @ self.expand.T).chunk(2, dim=1)
        change = slope[:, None] * self.centred + bias[:, None]
        most = (change.amax(2) - change.amin(2)).amax(1).clamp_min(torch.finfo(change.dtype).tiny)
        return torch.log1p(most) / most

    def parameters(self, calibration: Calibration) -> Tensor:
        """Return the parameters (P,) of a calibration fitted by the same method."""
        inverse: Tensor = torch.linalg.pinv(self.expand)
        return inverse @ torch.cat([calibration.slope * self.scale, calibration.bias])

    def log_posterior(self, points: Tensor) -> Tensor:
        """Return log P(y|x,z) of every row by equation 3, (B, n, K), at parameters (B, P)."""
        slope, bias = (points @ self.expand.T).chunk(2, dim=1)
        return torch.log_softmax(slope[:, None] * self.centred + bias[:, None] + self.prior, dim=2)

    def loss(self, points: Tensor, share: Tensor) -> Tensor:
        """Return the mean NLL (B,) at parameters (B, P), for weights (B, n) that sum to one."""
        rows = torch.where(self.targets > 0, self.targets * self.log_posterior(points), 0.0).sum(2)
        return -(share * rows).sum(1)

    def derivatives(self, points: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
        """Return gradients (B, P) and Hessians (B, P, P) of the loss: Σ s (p - t) a, and Σ s a aᵀ ∘ (diag(p) - p pᵀ).

        Here s is the weight of a row, p its prediction, t its soft label, and a = (centred, 1) are the factors on the
        slope and the bias of a class. The sums are over rows and classes.
        """
        n_classes = self.centred.shape[1]
        posterior = self.log_posterior(points).exp()
        moments = torch.cat([posterior * self.centred, posterior], dim=2)
        weighted = share[..., None] * moments
        expected = weighted.sum(1)
        gradient = expected - share @ torch.cat([self.targets * self.centred, self.targets], dim=1)
        squares = (weighted[..., :n_classes] * self.centred).sum(1)
        slopes, cross, biases = map(torch.diag_embed, (squares, *expected.split(n_classes, dim=1)))
        diagonal = torch.cat([torch.cat([slopes, cross], dim=2), torch.cat([cross, biases], dim=2)], dim=1)
        hessian = diagonal - moments.mT @ weighted
        return gradient @ self.expand, self.expand.T @ hessian @ self.expand


def _to_unit_scale(centred: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Divide centred rows by their root mean square; also return it. Entries beyond HUGE become ±INFINITE.

    These entries are not part of the root mean square.
    """
    ordinary = centred.abs() <= HUGE
    squares = weight[:, None] * torch.where(ordinary, centred, 0.0) ** 2
    mean_square = squares.sum() / (weight[:, None] * ordinary).sum().clamp_min(1e-300)
    scale = torch.where(mean_square > 0, mean_square.sqrt(), 1.0)
    return torch.where(ordinary, centred / scale, centred.clamp(-INFINITE, INFINITE)), scale


def _expansion(n_classes: int, method: str, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return the (2K, P) matrix from free parameters to all slopes and biases, and the initial parameters."""
    shared = torch.ones(n_classes, 1, dtype=like.dtype, device=like.device)
    own = torch.eye(n_classes, dtype=like.dtype, device=like.device)
    # With two classes only the sum of both slopes matters, so that "vector" is the same as "bias_corrected".
    slopes = own if method == "vector" and n_classes > 2 else shared
    biases = own[:, 1:] - 1.0 / n_classes if method in ("vector", "bias_corrected") else own[:, :0]
    return torch.block_diag(slopes, biases), torch.cat([torch.ones_like(slopes[0]), torch.zeros_like(biases[0])])
