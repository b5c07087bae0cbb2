"""The answer of a joint estimation: the site's distribution over bank points and classes, with its certificate."""

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
    """A site's estimated P(z_m, y) over a bank of z-points, with its certificate.

    Attributes
    ----------
    joint, marginal : (M, K) weights of the bank's points and classes, and their sums (K,), the estimate of P(Y).
    strength : rows' worth of the prior.
    converged, gap, n_iter, trace : the solver's certificate; the gap is the KKT gap of the penalized problem.
    log_likelihood, left_out : of the rows, Σ_n w_n log Σ_my w_my r_nmy, and what is left of it for rows left out.
    identified : whether the rows tell about P(Y) at all; where not, the prior decides.
    """

    strength: float
    converged: bool
    gap: float
    n_iter: int
    log_likelihood: float
    left_out: float
    identified: bool
    trace: list[float] = field(repr=False)
    weights: Tensor = field(repr=False)  # (M, K)
    prior: Tensor = field(repr=False)  # (M, K)
    _row_weight: Tensor = field(repr=False)  # (n,)
    _densities: Tensor = field(repr=False)  # (n, 1 + 2K): of all cells, of each class's, of each class as in the prior
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
        """P(y|x) of rows (n, M, K), (n, K), each by itself (equation 15c)."""
        problems = Problems("posterior")
        rows = read_ratios(log_joint_ratio, problems, self.weights.device)
        if rows is not None and rows.shape[1:] != self.weights.shape:
            expected = f"(rows, {self.weights.shape[0]}, {self.weights.shape[1]})"
            problems.add(f"log_joint_ratio must have shape {expected} as at estimation, got {tuple(rows.shape)}")
        problems.raise_if_any()
        assert rows is not None
        return Container.of(log_joint_ratio).rows(joint_posterior(rows, self.weights.log()).exp())

    def interval(self, level: float = 0.95) -> tuple[Any, Any]:
        """Interval for P(Y) of the population, two (K,), given r: curvature, and near a bound the likelihood's fall."""
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
            if n_classes > 2:  # classes may stand in for each other, which mixing one in and out does not see
                ends = torch.cat([ends, plain_low[None], plain_high[None]])
            low[near], high[near] = ends.amin(0)[near], ends.amax(0)[near]
        low, high = mirror(low, high)
        return self._container.classes(low.clamp_min(0.0)), self._container.classes(high.clamp_max(1.0))

    def _ends(self, label: int, level: float) -> Tensor:
        """The P(Y) (2, K) that the likelihood just allows, with a class taken out and mixed in (as in the prior)."""
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
    """What intervals near a bound need densities of, (P, 1 + 2K): all cells, each class's own, each as in the prior."""
    n_classes = weights.shape[1]
    own = torch.diag_embed(weights)  # (M, K, K)
    share = prior.sum(0)
    typical = torch.where(share > 0, prior / share.clamp_min(1e-300), 1.0 / len(prior))
    return torch.cat([weights[..., None], own, torch.diag_embed(typical)], dim=2).reshape(-1, 1 + 2 * n_classes)


def joint_posterior(log_joint_ratio: Tensor, log_joint: Tensor) -> Tensor:
    """Log P(y|x) of rows (n, M, K) at log weights (M, K), or (n, M, K) of their own: equation 15c.

    A row that no cell with weight can explain is judged by r alone; one that says nothing gets the marginal; one with
    +inf is certain of those cells.
    """
    certain = log_joint_ratio == torch.inf
    sure = certain.any(2).any(1)[:, None, None]
    rows = torch.where(sure, torch.where(certain, 0.0, -torch.inf), log_joint_ratio)
    rows = torch.where((rows == -torch.inf).all(2).all(1)[:, None, None], 0.0, rows)
    both = torch.logsumexp(rows + log_joint, dim=1)
    impossible = (both == -torch.inf).all(1, keepdim=True)
    return torch.log_softmax(torch.where(impossible, torch.logsumexp(rows, dim=1), both), dim=1)


def read_ratios(value: object, problems: Problems, device: torch.device | None = None) -> Tensor | None:
    """Read an (n, M, K) array of logs with n, M ≥ 1, K ≥ 2 and no NaN; None after noting what is wrong."""
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
    bad = torch.cat([part.isnan().flatten(1).any(1) for part in ratios.split(4096)]).nonzero().flatten()
    if len(bad):
        problems.add(f"{name} has NaN in {len(bad)} row(s), first at row {int(bad[0])}: drop them or mend the scores")
        return None
    return ratios


def _farthest(left: Callable[[float], float]) -> float:
    """The largest amount in [0, 1) for which something is left."""
    most = 1 - 1e-12
    if left(most) >= 0:
        return most
    return 0.0 if left(0.0) <= 0 else float(brentq(left, 0.0, most, xtol=1e-12, rtol=1e-9))
