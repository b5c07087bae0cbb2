"""The result of a joint estimation: the site's distribution over bank points and classes, with its KKT gap."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from scipy.optimize import brentq
from torch import Tensor

from sitewise.arrays import Container, Problems, view_tensor
from sitewise.uncertainty import allowed_drop, logit_interval, mirror, near_a_bound, normal_interval


@dataclass(frozen=True)
class JointEstimate:
    """A site's estimated joint distribution P(z, y) over M values of z and K classes, with convergence diagnostics.

    `joint` (M, K) is the estimate of P(z_m, y), where z_1, ..., z_M are the values of z for which `log_joint_ratio` was
    given. The sum of `joint` over these values, `marginal` (K,), is the estimate of P(Y).

    Parameters
    ----------
    strength : float
        Weight of the prior: the number of pseudo-rows for which it counts.
    converged : bool
        Whether the gap is below the solver's tolerance.
    gap : float
        How far the estimate is from the optimum: the KKT gap of equation 15a.
    n_iter : int
        The number of iterations.
    log_likelihood : float
        The log-likelihood of the rows, Σ_n w_n log Σ_my π_my r_nmy, with row weights w and `joint` π (equation 15).
    left_out : float
        An estimate of the log-likelihood of left-out rows (equations 10 and 15b).
    identified : bool
        Whether the rows determine P(Y). If not, the estimate is close to the prior, and intervals reach from 0 to 1.
    trace : list of float
        The penalized log-likelihood at every iteration.
    weights : Tensor of shape (M, K)
        The same as `joint`, always as a tensor.
    prior : Tensor of shape (M, K)
        The joint distribution to which the estimate is shrunk.

    Examples
    --------
    >>> estimate = estimate_joint(log_joint_ratio, prior=training_joint)
    >>> estimate.marginal, estimate.interval()
    >>> probabilities = estimate.posterior(log_joint_ratio)
    """

    strength: float
    converged: bool
    gap: float
    n_iter: int
    log_likelihood: float
    left_out: float
    identified: bool
    trace: list[float] = field(repr=False)
    weights: Tensor = field(repr=False)
    prior: Tensor = field(repr=False)
    _row_weight: Tensor = field(repr=False)  # (n,)
    _densities: Tensor = field(repr=False)  # (n, 1 + 2K): the rows' densities at the weights of `class_profiles`
    _variance: Tensor = field(repr=False)  # (K,) of the marginal
    _container: Container = field(repr=False)

    @cached_property
    def joint(self) -> Any:
        """Estimate of P(z_m, y) at the site, (M, K)."""
        return self._container.rows(self.weights)

    @cached_property
    def marginal(self) -> Any:
        """Estimate of P(Y) at the site, (K,)."""
        return self._container.classes(self.weights.sum(0))

    def posterior(self, log_joint_ratio: Any) -> Any:
        """Compute P(y|x) of each row at this site (equation 15c).

        Parameters
        ----------
        log_joint_ratio : array of shape (n, M, K)
            log r(x,y,z_m) of the rows, at the same values z_1, ..., z_M of z as for the estimate.

        Returns
        -------
        array of shape (n, K)
            Probabilities of the classes.
        """
        problems = Problems("posterior")
        rows = read_ratios(log_joint_ratio, problems, self.weights.device)
        if rows is not None and rows.shape[1:] != self.weights.shape:
            expected = f"(rows, {self.weights.shape[0]}, {self.weights.shape[1]})"
            problems.add(f"log_joint_ratio must have shape {expected} as at estimation, got {tuple(rows.shape)}")
        problems.raise_if_any()
        assert rows is not None
        return Container.of(log_joint_ratio).rows(joint_posterior(rows, self.weights.log()).exp())

    def interval(self, level: float = 0.95) -> tuple[Any, Any]:
        """Compute intervals for P(Y) of the population, one for each class; errors of r are not included.

        An interval is computed from the curvature of the log-likelihood at the estimate, or, if the estimate is near 0
        or 1, from the decrease of the log-likelihood.

        Parameters
        ----------
        level : float
            Confidence level of the intervals.

        Returns
        -------
        low : array of shape (K,)
            The lower bounds.
        high : array of shape (K,)
            The upper bounds.
        """
        if not 0 < level < 1:
            raise ValueError(f"interval: level must lie between 0 and 1, got {level}")
        marginal = self.weights.sum(0)
        if not self.identified:
            return self._container.classes(torch.zeros_like(marginal)), self._container.classes(marginal * 0 + 1)
        variance, n_classes = self._variance, len(marginal)
        low, high = logit_interval(marginal, variance, level)
        plain_low, plain_high = normal_interval(marginal, variance, level)
        near = near_a_bound(marginal, variance).nonzero().flatten()
        if len(near):
            ends = torch.cat([self._ends(label, level) for label in near.tolist()])
            if n_classes > 2:  # classes can replace each other, which mixing one class in and out does not cover
                ends = torch.cat([ends, plain_low[None], plain_high[None]])
            low[near], high[near] = ends.amin(0)[near], ends.amax(0)[near]
        low, high = mirror(low, high)
        return self._container.classes(low.clamp_min(0.0)), self._container.classes(high.clamp_max(1.0))

    def _ends(self, label: int, level: float) -> Tensor:
        """Return P(Y) (2, K) after taking a class out, and mixing it in, as far as the likelihood allows."""
        with_all, with_own, with_typical = self._densities[:, [0, 1 + label, 1 + len(self._variance) + label]].T
        share, weight, drop = self.weights[:, label].sum(), self._row_weight, allowed_drop(level, 1.0)

        def left(density: Callable[[float], Tensor]) -> Callable[[float], float]:
            return lambda amount: drop - float((weight @ (with_all / density(amount)).log()).clamp(-1e6, 1e6))

        out = _farthest(left(lambda t: ((with_all - t * with_own) / (1 - t * share)).clamp_min(1e-300)))
        into = _farthest(left(lambda t: ((1 - t) * with_all + t * with_typical).clamp_min(1e-300)))
        marginal, chosen = (
            self.weights.sum(0),
            torch.eye(len(self._variance), dtype=share.dtype, device=share.device)[label],
        )
        return torch.stack([(marginal - out * share * chosen) / (1 - out * share), torch.lerp(marginal, chosen, into)])


def class_profiles(weights: Tensor, prior: Tensor) -> Tensor:
    """Return the weights of P = M K cells, (P, 1 + 2K), whose densities intervals need.

    The columns are: all cells at the estimated weights (M, K), only the cells of one class at the same weights (K
    columns), and only the cells of one class at P(z|y) of the prior (K columns).
    """
    n_classes = weights.shape[1]
    own = torch.diag_embed(weights)  # (M, K, K)
    share = prior.sum(0)
    typical = torch.where(share > 0, prior / share.clamp_min(1e-300), 1.0 / len(prior))
    return torch.cat([weights[..., None], own, torch.diag_embed(typical)], dim=2).reshape(-1, 1 + 2 * n_classes)


def joint_posterior(log_joint_ratio: Tensor, log_joint: Tensor) -> Tensor:
    """Return log P(y|x) (n, K) of rows (n, M, K) at the cells' log weights: equation 15c.

    The log weights have shape (M, K), or (n, M, K) if each row has its own. If no cell with positive weight can explain
    a row, r is used alone. A row of -inf gets the marginal. If a row has entries of +inf, all other cells are excluded.
    """
    certain = log_joint_ratio == torch.inf
    sure = certain.any(2).any(1)[:, None, None]
    rows = torch.where(sure, torch.where(certain, 0.0, -torch.inf), log_joint_ratio)
    rows = torch.where((rows == -torch.inf).all(2).all(1)[:, None, None], 0.0, rows)
    both = torch.logsumexp(rows + log_joint, dim=1)
    impossible = (both == -torch.inf).all(1, keepdim=True)
    return torch.log_softmax(torch.where(impossible, torch.logsumexp(rows, dim=1), both), dim=1)


def read_ratios(value: object, problems: Problems, device: torch.device | None = None) -> Tensor | None:
    """Read an (n, M, K) array of logs with n, M ≥ 1, K ≥ 2 and no NaN; return None if it cannot be read."""
    name = "log_joint_ratio"
    try:
        ratios = view_tensor(value, device)
    except (TypeError, ValueError) as error:
        problems.add(f"{name} must be an array of numbers, got {type(value).__name__} ({error})")
        return None
    if ratios.ndim != 3:
        problems.add(f"{name} must have shape (rows, points of the bank, classes), got shape {tuple(ratios.shape)}")
        return None
    if 0 in ratios.shape[:2] or ratios.shape[2] < 2:
        problems.add(f"{name} needs a row, a point of the bank and two classes at least, got {tuple(ratios.shape)}")
        return None
    bad = torch.cat([chunk.isnan().flatten(1).any(1) for chunk in ratios.split(4096)]).nonzero().flatten()
    if len(bad):
        problems.add(f"{name} has NaN in {len(bad)} row(s), first at row {int(bad[0])}: drop them or fix the scores")
        return None
    return ratios


def _farthest(left: Callable[[float], float]) -> float:
    """Return the largest amount in [0, 1) at which `left` is not negative."""
    most = 1 - 1e-12
    if left(most) >= 0:
        return most
    return 0.0 if left(0.0) <= 0 else float(brentq(left, 0.0, most, xtol=1e-12, rtol=1e-9))
