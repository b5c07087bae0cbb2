"""Intervals of an estimated g if f is known (section 11 of docs/maths.md).

An interval comes from the curvature of the log-likelihood, which gives the covariance of g at the z of rows and of the
mean of g over the site. Near 0 and 1, it comes from the decrease of the log-likelihood.
"""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

import torch
from scipy.optimize import brentq
from torch import Tensor

from sitewise.posterior import contrasts, softmax_hessian

NEAR_A_BOUND = 3.0  # standard errors
HELD = 2**24  # largest number of entries of the derivatives of g in memory at a time
PRECISE = 1e-8  # relative precision of a bound along a path of g


@dataclass(frozen=True)
class LinearCurvature:
    """Covariance of a g whose logits are linear in features of z."""

    features: Callable[[Tensor], Tensor]
    log_prob: Callable[[Tensor], Tensor]
    coefficient_covariance: Tensor  # (P, P), P = D (K-1)
    grouped_covariance: Tensor | None  # (P, P) the same if rows of a group depend on each other; None without groups
    mean_jacobian: Tensor  # (K, P) derivative of the site's mean of g with respect to the coefficients

    def at(self, codes: Tensor) -> Tensor:
        """Return the covariance of g(z), (n, K, K), computed in chunks because the derivatives (n, K, P) are large."""
        size = max(1, HELD // max(1, self.mean_jacobian.numel()))
        return torch.cat([self._carry(self._jacobian(chunk)) for chunk in codes.split(size)])

    def of_mean(self) -> Tensor:
        """Return the covariance of the mean of g over the given rows of the site, (K, K)."""
        return self._carry(self.mean_jacobian)

    def easiest(self, codes: Tensor, label: int) -> Tensor:
        """Return the direction of g (n, K) that raises the mean of class `label` with the least loss of likelihood."""
        design, basis, probability = self._pieces(codes)
        moves = (self.coefficient_covariance @ self.mean_jacobian[label]).reshape(design.shape[1], -1)
        logits = design @ moves @ basis.T
        return probability * (logits - (probability * logits).sum(1, keepdim=True))

    def _carry(self, jacobian: Tensor) -> Tensor:
        plain = jacobian @ self.coefficient_covariance @ jacobian.transpose(-1, -2)
        if self.grouped_covariance is None:
            return plain
        return at_least(jacobian @ self.grouped_covariance @ jacobian.transpose(-1, -2), plain)

    def _jacobian(self, codes: Tensor) -> Tensor:
        design, basis, probability = self._pieces(codes)
        slope = softmax_hessian(probability)
        return torch.einsum("nkl,nd->nkdl", slope @ basis, design).reshape(len(codes), slope.shape[1], -1)

    def _pieces(self, codes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        probability = self.log_prob(codes).exp()
        return self.features(codes), contrasts(probability.shape[1], codes.device), probability


@dataclass(frozen=True)
class CellCurvature:
    """Covariance of a g that is a separate distribution in each of C cells of z; a constant g has one cell.

    The cells are shrunk to a constant g. If this constant is given, the estimates of the cells are independent.
    """

    covariance: Tensor  # (C, K, K) of the cells, given the constant
    inverse_information: Tensor  # (C, K, K) the same if all rows are independent
    pull: Tensor  # (C, K, K) derivative of a cell's g with respect to the constant
    level_covariance: Tensor  # (K, K) of the constant
    mean_covariance: Tensor  # (K, K) of the mean of g over the site
    agreement: Callable[[Tensor], Tensor]  # codes (n, V) -> (n, C): g(z) of a row is a mean of the cells, by weight

    def at(self, codes: Tensor) -> Tensor:
        """Return the covariance of g(z), (n, K, K)."""
        share = self.agreement(codes)
        own = torch.einsum("nc,ckl->nkl", share**2, self.covariance)
        pull = torch.einsum("nc,ckl->nkl", share, self.pull)
        return own + pull @ self.level_covariance @ pull.transpose(1, 2)

    def of_mean(self) -> Tensor:
        """Return the covariance of the mean of g over the given rows of the site, (K, K)."""
        return self.mean_covariance

    def easiest(self, share: Tensor, label: int) -> Tensor:
        """Return the direction of g (C, K) that raises the mean of class `label` with the least loss of likelihood.

        `share` (C,) is the share of each cell in the mean.
        """
        return share[:, None] * self.covariance[:, label]


Curvature = LinearCurvature | CellCurvature


def simplex_covariance(information: Tensor, free: Tensor) -> Tensor:
    """Return the covariance (C, K, K) of class probabilities that sum to one, from their information (C, K, K).

    It is the inverse of the information within the free classes of each cell (`free`, (C, K)). The other classes are
    fixed at zero and have variance zero.
    """
    n_classes = information.shape[1]
    covariance = torch.zeros_like(information)
    for pattern in torch.unique(free, dim=0):
        classes = pattern.nonzero().flatten()
        if len(classes) < 2:
            continue
        cells = (free == pattern).all(dim=1).nonzero().flatten()
        tangent = torch.zeros(n_classes, len(classes) - 1, dtype=information.dtype, device=information.device)
        tangent[classes] = contrasts(len(classes), information.device)
        inverse = invert_information(tangent.T @ information[cells] @ tangent)
        covariance[cells] = tangent @ inverse @ tangent.T
    return covariance


def invert_information(information: Tensor) -> Tensor:
    """Invert symmetric matrices; a direction without information gets a very large variance, never NaN."""
    values, vectors = torch.linalg.eigh(information)
    floor = 1e-12 * values.abs().amax(-1, keepdim=True).clamp_min(1e-12)
    inverse: Tensor = vectors @ (vectors.transpose(-1, -2) / torch.maximum(values, floor)[..., None])
    return inverse


def at_least(covariance: Tensor, floor: Tensor) -> Tensor:
    """Raise the variances of `covariance` (..., K, K) to those of `floor`, in every direction."""
    short, directions = torch.linalg.eigh(floor - covariance)
    raised: Tensor = covariance + (directions * short.clamp_min(0.0)[..., None, :]) @ directions.transpose(-1, -2)
    return raised


def normal_interval(probability: Tensor, variance: Tensor, level: float) -> tuple[Tensor, Tensor]:
    """Return the normal interval on the probability scale, clipped to [0, 1]."""
    error = NormalDist().inv_cdf(0.5 + level / 2) * variance.clamp_min(0).sqrt()
    return (probability - error).clamp_min(0.0), (probability + error).clamp_max(1.0)


def logit_interval(probability: Tensor, variance: Tensor, level: float) -> tuple[Tensor, Tensor]:
    """Return the normal interval on the log-odds scale, which stays inside [0, 1]."""
    inside = (probability * (1 - probability)).clamp_min(1e-300)
    error = NormalDist().inv_cdf(0.5 + level / 2) * variance.clamp_min(0).sqrt() / inside
    odds = torch.logit(probability)
    fixed = (probability <= 0) | (probability >= 1)
    low = torch.where(fixed, probability, torch.sigmoid(odds - error))
    return low, torch.where(fixed, probability, torch.sigmoid(odds + error))


def stretched(bound: Tensor, middle: Tensor, stretch: float, error: float) -> Tensor:
    """Move a bound away from the middle, in log-odds: the new distance is sqrt((stretch * distance)² + error²)."""
    odds, centre = (torch.logit(share.clamp(1e-12, 1 - 1e-12)) for share in (bound, middle))
    away = odds - centre
    return torch.sigmoid(centre + torch.sign(away) * torch.hypot(stretch * away, torch.full_like(away, error)))


def mirror(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """For two classes (..., 2), widen the intervals so that the bounds of one class are one minus those of the other.

    For more classes, return the bounds unchanged.
    """
    if low.shape[-1] != 2:
        return low, high
    return torch.minimum(low, 1 - high.flip(-1)), torch.maximum(high, 1 - low.flip(-1))


def near_a_bound(probability: Tensor, variance: Tensor) -> Tensor:
    """Return where an estimate is so close to 0 or 1 that an interval from curvature alone is misleading."""
    error = variance.clamp_min(0).sqrt().clamp_min(1e-9)  # at the bound itself the variance by curvature is zero
    return torch.minimum(probability, 1 - probability) < NEAR_A_BOUND * error


At = Callable[[Tensor], Tensor]  # g (n, K) at rows of codes (n, V)


@dataclass(frozen=True)
class Average:
    """A mean of g for which an interval is computed.

    `mean` computes the mean from a g. `where` marks the rows at which g may be moved (None: all rows). `easiest` gives
    the direction of g in which a change of the mean costs the least log-likelihood.
    """

    mean: Callable[[At], Tensor]
    where: At | None
    easiest: Callable[[Tensor, int], Tensor]

    def direction_of(self, label: int) -> At:
        """Return the direction of g, (n, K) at rows of codes (n, V), by which a class's mean changes at the least cost.

        The cost is the decrease of the log-likelihood for a given change of the mean.
        """
        return lambda codes: self.easiest(codes, label)


@dataclass(frozen=True)
class Fall:
    """The limit of an interval: the log-likelihood of g may be at most `drop` lower than that of the estimate `at`."""

    log_likelihood: Callable[[At], float]
    at: At
    drop: float

    def farthest(self, path: Callable[[float], At]) -> float:
        """Return the largest amount in [0, 1] that the limit allows, along a path of g that starts at the estimate."""
        best = self.log_likelihood(self.at)

        def left(amount: float) -> float:
            fall = best - self.log_likelihood(path(amount))
            return self.drop - min(fall, 1e3 * self.drop) if fall == fall else -self.drop

        if left(1.0) >= 0.0:
            return 1.0
        if left(0.0) <= 0.0:  # with very large weights, rounding alone exceeds `drop`
            return 0.0
        return float(brentq(left, 0.0, 1.0, xtol=1e-12, rtol=1e-9))


@dataclass(frozen=True)
class ConstantFall:
    """The limit of `Fall` for a constant g (K,). Many classes share a pass over the rows."""

    log_likelihoods: Callable[[Tensor], Tensor]  # maps many constant g (B, K) to log-likelihoods (B,)
    log_mixings: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # see `Evidence.log_mixings`
    estimate: Tensor  # (K,)
    drop: float

    def intervals(self, labels: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor]:
        """Return the lower and upper bounds (B,) of the shares of B classes that the limit allows.

        As in `likelihood_ends`, g is moved towards and away from each class, and along the direction that changes the
        share of this class with the least loss of log-likelihood.
        """
        own = torch.arange(len(labels), device=labels.device)
        directions = covariance[labels]
        reach = directions[own, labels]
        directions = torch.where(reach[:, None] > 0, directions / reach.clamp_min(1e-300)[:, None], 0.0)

        share = self.estimate[labels]

        def out(amount: Tensor) -> Tensor:
            rest = (1.0 - amount * share).clamp_min(1e-300)
            return self.log_mixings(self.estimate, labels, 1.0 / rest, -amount * share / rest)

        def into(amount: Tensor) -> Tensor:
            return self.log_mixings(self.estimate, labels, 1.0 - amount, amount)

        def along(amount: Tensor) -> Tensor:
            positive = (self.estimate + amount[:, None] * directions).clamp_min(0.0)
            total = positive.sum(1, keepdim=True)
            return torch.where(total > 0, positive / total, self.estimate)

        taken, added = self._farthest(out, len(labels)), self._farthest(into, len(labels))
        down = self._farthest(lambda amount: self.log_likelihoods(along(-amount)), len(labels))
        up = self._farthest(lambda amount: self.log_likelihoods(along(amount)), len(labels))
        chosen = torch.eye(len(self.estimate), dtype=share.dtype, device=share.device)[labels]
        without = (self.estimate - (taken * share)[:, None] * chosen) / (1.0 - taken * share).clamp_min(1e-300)[:, None]
        mixed = torch.lerp(self.estimate.expand_as(chosen), chosen, added[:, None])
        ends = torch.cat([without, mixed, along(-down), along(up)])[:, labels]
        return ends.amin(0), ends.amax(0)

    def _farthest(self, log_likelihood: Callable[[Tensor], Tensor], count: int) -> Tensor:
        """Return the largest allowed amounts in [0, 1], (B,), along B paths of g, by bracketed false position."""
        best = self.log_likelihoods(self.estimate[None])[0]

        def left(amount: Tensor) -> Tensor:
            fall = best - log_likelihood(amount)
            return torch.where(fall.isnan(), -self.drop, self.drop - fall.clamp_max(1e3 * self.drop))

        low, high = self.estimate.new_zeros(count), self.estimate.new_ones(count)
        at_low, at_high = torch.full_like(low, self.drop), left(high)
        free = at_high >= 0
        for step in range(100):
            if bool((free | (high - low <= PRECISE * high)).all()):
                break
            middle = (low * at_high - high * at_low) / (at_high - at_low).clamp_max(-1e-300)
            middle = torch.where((middle > low) & (middle < high), middle, 0.5 * (low + high))
            middle = 0.5 * (low + high) if step % 3 == 2 else middle
            at = left(middle)
            above = at >= 0
            at_high, at_low = (
                torch.where(above, 0.5 * at_high, at),  # Illinois method: the value at the retained end is halved
                torch.where(above, at, 0.5 * at_low),
            )
            low, high = torch.where(above, middle, low), torch.where(above, high, middle)
        return torch.where(free, torch.ones_like(low), low)


def allowed_drop(level: float, inflation: float) -> float:
    """Return the largest allowed fall of the log-likelihood: half a χ² quantile, times the inflation for groups."""
    return float(inflation * NormalDist().inv_cdf(0.5 + level / 2) ** 2 / 2)


def take_out(prevalence: Tensor, label: int, amount: float | Tensor) -> Tensor:
    """Remove the share `amount` of the probability of class `label` from g (n, K), and renormalize."""
    reduced = prevalence.clone()
    reduced[:, label : label + 1] *= 1 - amount
    total = reduced.sum(1, keepdim=True)
    return torch.where(total > 0, reduced / total, prevalence)


def mix_in(prevalence: Tensor, label: int, amount: float | Tensor) -> Tensor:
    """Mix a point mass at class `label`, with weight `amount`, into g (n, K)."""
    certain = torch.zeros_like(prevalence)
    certain[:, label] = 1.0
    return prevalence + amount * (certain - prevalence)


def mixing(fall: Fall, label: int, where: At | None = None) -> tuple[float, float]:
    """Return the largest amounts of class `label` that `fall` allows to be taken out of g, and to be mixed into g.

    g is changed only at the z that `where` marks; None: at all z.
    """
    return (
        fall.farthest(lambda amount: _mixed(fall.at, take_out, label, amount, where)),
        fall.farthest(lambda amount: _mixed(fall.at, mix_in, label, amount, where)),
    )


def _mixed(
    at: At, move: Callable[[Tensor, int, float | Tensor], Tensor], label: int, amount: float, where: At | None
) -> At:
    return lambda codes: move(at(codes), label, amount if where is None else amount * where(codes))


def likelihood_ends(
    fall: Fall, mean: Callable[[At], Tensor], label: int, where: At | None = None, direction: At | None = None
) -> Tensor:
    """Move g as far as the likelihood allows, to less and to more of class `label`; return the E means of g, (E, K).

    g is moved by taking the class out and by mixing it in, at all z or at the z that `where` marks (n, 1). If
    `direction` (n, K) is given, g is also moved along it: it is the direction of least loss by curvature, which
    exchanges classes. The rows allow all E results. Therefore, the interval of every class must cover its share in each
    of them.
    """
    out, into = mixing(fall, label, where)
    ends = [_mixed(fall.at, take_out, label, out, where), _mixed(fall.at, mix_in, label, into, where)]
    if direction is not None:
        reach = float(mean(direction)[label])  # after division by it, amount 1 changes the mean of the class by 1

        def path(amount: float) -> At:
            def at(codes: Tensor) -> Tensor:
                estimate = fall.at(codes)
                point = (estimate + amount / reach * direction(codes)).clamp_min(0.0)
                total = point.sum(1, keepdim=True)
                return torch.where(total > 0, point / total, estimate)

            return at

        ends += [path(-fall.farthest(lambda amount: path(-amount))), path(fall.farthest(path))]
    return torch.stack([mean(end) for end in ends])
