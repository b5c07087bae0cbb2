"""The level of g and the factor on the source's shape: their prior, and weighted points of their posterior.

For two classes the M points are a grid, which is narrowed to the region where the density is not negligible. For more
classes they come from importance sampling around the mode.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from scipy.stats import chi2, norm, qmc
from torch import Tensor

from sitewise.adaptation.cell_problem import constant_problem, solve_cells
from sitewise.adaptation.evidence import Evidence
from sitewise.adaptation.posterior.likelihood import evaluate_points, subset
from sitewise.adaptation.posterior.points import Points
from sitewise.posterior import contrasts
from sitewise.prevalence.prior import FREEDOM

REACH = 16.0  # half-width of the widest grid around the prior's centre, in log-odds
FACTOR_REACH = 3.5  # half-width of the grid of the factor, in standard deviations of its prior
ALIVE, SURELY = 12.0, 20.0  # decrease of the log-density beyond which the grid is cut: with all rows, with a sample
LEVELS, FACTORS = 61, 9  # points of the grid on each axis
FINE = 12  # interpolation points in a step, to locate the mass of a density
RESOLVED = 2.0  # smallest standard deviation of the density, in steps of the grid
ROUNDS = 12  # largest number of times that a grid is narrowed
FEW, SOME = 2**11, 2**14  # rows of the samples that narrow the grid before all rows are used
LOCATING_ROWS = 2**12  # largest number of rows with which the prior is centred
NEAR = 1.0  # largest shift of the prior's centre by predictions, in a contrast of log shares
SAMPLES = 1024  # points of importance sampling
INFLATION = 1.3  # of the covariance at the mode, for heavier tails

Array = np.ndarray[Any, Any]
Likelihood = Callable[[Evidence, Tensor, Tensor], Tensor]  # rows, factor (M,), level (M, K) -> (M,)


@dataclass(frozen=True)
class LevelPrior:
    """A Student prior of the level around `centre`, and a normal prior of the factor around one.

    The contrasts `basis` are in an order of the classes by their shares, so that results do not depend on the numbering
    of the classes.
    """

    centre: Tensor  # (K,), sums to zero
    scale: float  # scale of the log-odds of two classes
    factor_scale: float  # zero if the source's g has no shape
    basis: Tensor  # (K, K-1) contrasts

    def log_density(self, factor: Tensor, level: Tensor) -> Tensor:
        """Return the log-density (M,) at factors (M,) and levels (M, K), up to a constant."""
        density = _log_student(2.0 * (level - self.centre).square().sum(1) / self.scale**2, level.shape[1] - 1)
        if self.factor_scale:
            density = density - 0.5 * ((factor - 1.0) / self.factor_scale) ** 2
        return density


def _log_student(squares: Tensor, dimension: int) -> Tensor:
    return -0.5 * (FREEDOM + dimension) * torch.log1p(squares / FREEDOM)


@dataclass(frozen=True)
class Weighed:
    """Points (factor, level) with the logs of their posterior weights and of their prior weights, up to constants."""

    factor: Tensor  # (M,)
    level: Tensor  # (M, K)
    log_weight: Tensor  # (M,)
    log_prior: Tensor  # (M,)
    covers_prior: bool  # whether the points cover the whole prior


def candidates(template: Points, factor: Tensor, level: Tensor) -> Points:
    """Return points with the given factors (M,) and levels (M, K), without deviations from the shape."""
    log_marginal, weight = torch.log_softmax(level, dim=1), torch.full_like(factor, 1.0 / len(factor))
    return replace(template, factor=factor, level=level, deviation=None, weight=weight, log_marginal=log_marginal)


def locate(template: Points, evidence: Evidence, scale: float, factor_scale: float, slope: float) -> LevelPrior:
    """Return the prior whose mean prediction at this site is that of the model as trained (equation 18d).

    If f is very informative, predictions hardly depend on the level. Therefore the centre of the prior stays near the
    level at which the prior mean of g equals the mean of the source's g.
    """
    few = subset(evidence, LOCATING_ROWS)
    as_trained = evaluate_points(few, candidates(template, template.factor[:1], template.centre[None]), slope=1.0)
    order = torch.argsort(torch.argsort(as_trained.predicted[0]))
    basis = contrasts(len(order), order.device)[order]
    prior = LevelPrior(template.centre, scale, factor_scale, basis)
    nodes = _prior_nodes(prior)
    weight = torch.softmax(nodes.log_weight, dim=0)

    def moved(move: Tensor) -> Points:
        return candidates(template, nodes.factor, nodes.level + basis @ move)

    def mean_of_g(move: Tensor) -> Tensor:
        return weight @ evaluate_points(few, moved(move)).mean

    def mean_prediction(move: Tensor) -> Tensor:
        return weight @ evaluate_points(few, moved(move), means=False, slope=slope).predicted

    start = basis.new_zeros(basis.shape[1])
    by_g = _solve_shares(mean_of_g, as_trained.mean[0], basis, start)
    by_predictions = _solve_shares(mean_prediction, as_trained.predicted[0], basis, by_g)
    move = by_g + (by_predictions - by_g).clamp(-NEAR, NEAR)
    return replace(prior, centre=template.centre + basis @ move)


def _solve_shares(shares: Callable[[Tensor], Tensor], wanted: Tensor, basis: Tensor, start: Tensor) -> Tensor:
    """Return the shift of the level, in contrasts (K-1,), at which the shares (K,) have the wanted values.

    It is found by secant steps from `start`. The logs of shares increase with the level, with a slope of at most one.
    """

    def off_at(move: Tensor) -> Tensor:
        return (wanted.clamp_min(1e-300).log() - shares(move).clamp_min(1e-300).log()) @ basis

    move, off = start, off_at(start)
    before, before_off = move, off
    for _ in range(100):
        if float(off.abs().max()) < 1e-10 or float((move - start).abs().max()) > REACH:
            break
        moved = (move - before) @ (move - before)
        pace = float(((before_off - off) @ (move - before)) / moved) if float(moved) else 1.0
        before, before_off = move, off
        move = move + (off / min(max(pace, 0.1), 1.0)).clamp(-2.0, 2.0)
        off = off_at(move)
    return move


def weigh_levels(
    evidence: Evidence | None, prior: LevelPrior, unlabeled: Likelihood, labeled: Callable[..., Tensor], error: float
) -> Weighed:
    """Return weighted points of the posterior, given unlabeled rows and labels.

    `unlabeled` and `labeled` are the two log-likelihoods. `error` is the standard deviation of the normal error of a
    level estimated from unlabeled rows.
    """
    weigh = _weigh_grid if len(prior.centre) == 2 else _weigh_samples
    return weigh(evidence, prior, unlabeled, labeled, error)


def _prior_nodes(prior: LevelPrior) -> Weighed:
    """Return points that cover the whole prior."""
    if len(prior.centre) == 2:
        return _grid(prior, *_widest(prior))
    identity = torch.eye(len(prior.centre) - 1, dtype=torch.float64, device=prior.centre.device)
    return _sample(prior, prior.centre @ prior.basis, identity * prior.scale**2 / 2.0, 1.0, prior.factor_scale)


def _widest(prior: LevelPrior, n_levels: int = LEVELS) -> tuple[Tensor, Tensor]:
    """Return the log-odds and the factors of the widest grid."""
    middle, reach = float(prior.centre[1] - prior.centre[0]), FACTOR_REACH * prior.factor_scale
    odds = torch.linspace(middle - REACH, middle + REACH, n_levels, dtype=torch.float64)
    factors = torch.linspace(1.0 - reach, 1.0 + reach, FACTORS if reach else 1, dtype=torch.float64)
    return odds.to(prior.centre), factors.to(prior.centre)


def _grid(prior: LevelPrior, odds: Tensor, factors: Tensor) -> Weighed:
    """Return the points of a grid of log-odds and factors, ordered by factor first.

    The log-odds need not be evenly spaced.
    """
    factor, half = factors.repeat_interleave(len(odds)), odds.repeat(len(factors)) / 2.0
    level = torch.stack([-half, half], dim=1)
    log_prior = prior.log_density(factor, level) + torch.gradient(odds)[0].log().repeat(len(factors))
    return Weighed(factor, level, log_prior, log_prior, covers_prior=True)


def _weigh_grid(
    evidence: Evidence | None, prior: LevelPrior, unlabeled: Likelihood, labeled: Callable[..., Tensor], error: float
) -> Weighed:
    few = evidence is None or evidence.n_rows <= SOME  # a pass over so few rows is cheap
    odds, factors = widest = _widest(prior, 2 * LEVELS if few else LEVELS)
    error = 0.0 if evidence is None else error

    def weighed(rows: Evidence | None) -> Weighed:
        grid = _grid(prior, odds, factors)
        of_rows = 0.0 * grid.factor if rows is None else unlabeled(rows, grid.factor, grid.level)
        if error:  # the grid is over the level of the rows, not of the site: only the prior of the factor applies
            return replace(grid, log_weight=of_rows + prior.log_density(grid.factor, 0.0 * grid.level + prior.centre))
        return replace(grid, log_weight=grid.log_prior + of_rows + labeled(grid.factor, grid.level))

    for rows in _stages(evidence):
        for _ in range(ROUNDS if rows is evidence else 1):
            points = weighed(rows)
            density = points.log_weight.reshape(len(factors), -1)
            narrower = _narrowed(density, odds, factors, ALIVE if rows is evidence else SURELY)
            if narrower is None:
                break
            odds, factors = narrower
    for _ in range(ROUNDS):
        density = points.log_weight.reshape(len(factors), -1)
        focused = _focused(density, factors)
        if focused is None:
            break
        factors = focused
        points = weighed(evidence)
    if error:  # `_convolved` applies the whole prior to the site's level
        flat = prior.log_density(points.factor, 0.0 * points.level + prior.centre).reshape(len(factors), -1)
        return _convolved(prior, odds, factors, density - flat, labeled, error)
    unchanged = torch.equal(odds, widest[0]) and torch.equal(factors, widest[1])
    if not _resolved(density, odds):
        odds = _where_mass_is(density - torch.gradient(odds)[0].log(), odds)
        points = weighed(evidence)
    return replace(points, covers_prior=unchanged)


def _stages(evidence: Evidence | None) -> list[Evidence | None]:
    """Return samples of growing size, which narrow the grid at little cost, followed by all rows."""
    if evidence is None:
        return [None]
    return [*(subset(evidence, size) for size in (FEW, SOME) if 2 * size < evidence.n_rows), evidence]


def _resolved(density: Tensor, odds: Tensor) -> bool:
    """Return whether the steps of an even grid of log-odds are small relative to the density's standard deviation.

    The density, given as logs, has the shape (factors, log-odds).
    """
    share = torch.softmax(density.logsumexp(0), dim=0)
    mean = share @ odds
    return float((share @ (odds - mean) ** 2).sqrt()) > RESOLVED * float(odds[1] - odds[0])


def _focused(density: Tensor, factors: Tensor) -> Tensor | None:
    """Return evenly spaced factors around the mass of a density (factors, log-odds), given as logs.

    Return None if the steps of the present factors are small enough.
    """
    share = torch.softmax(density.logsumexp(1), dim=0)
    mean, step = share @ factors, float((factors[-1] - factors[0]) / max(len(factors) - 1, 1))
    deviation = float((share @ (factors - mean) ** 2).sqrt())
    if deviation >= step:
        return None
    steps = torch.arange(len(factors), dtype=factors.dtype, device=factors.device) - (len(factors) - 1) / 2.0
    return mean + max(0.8 * deviation, 0.4 * step) * steps


def _where_mass_is(density: Tensor, odds: Tensor) -> Tensor:
    """Return about as many log-odds over the same range, most of them where a density has its mass.

    The density, given as logs, has the shape (factors, log-odds).
    """
    height = density.logsumexp(0)
    parts = torch.linspace(0.0, 1.0, FINE * (len(odds) - 1) + 1, dtype=odds.dtype, device=odds.device)
    at = parts * (len(odds) - 1)
    left = at.long().clamp_max(len(odds) - 2)
    between = height[left] + (height[left + 1] - height[left]) * (at - left)
    mass = (between - between.max()).exp()
    cumulative = torch.cumsum(mass, 0) / mass.sum()
    even = torch.linspace(0.0, 1.0, len(odds), dtype=odds.dtype, device=odds.device)
    mixed = 0.75 * cumulative + 0.25 * parts  # a quarter of the points is evenly spaced
    place = torch.searchsorted(mixed, even * mixed[-1]).clamp_max(len(parts) - 1)
    chosen = torch.unique(torch.cat([parts[place], parts[[0, -1]]]))
    denser: Tensor = odds[0] + (odds[-1] - odds[0]) * chosen
    return denser


def _narrowed(density: Tensor, odds: Tensor, factors: Tensor, fall: float = ALIVE) -> tuple[Tensor, Tensor] | None:
    """Return a grid over the part where the density is not negligible; None if this is most of the present grid."""
    alive = density > density.max() - fall
    axes, narrower = [], False
    for axis, values in ((0, odds), (1, factors)):
        some = alive.any(dim=axis).nonzero().flatten()
        first, last = max(int(some.min()) - 1, 0), min(int(some.max()) + 1, len(values) - 1)
        if last - first < 0.6 * (len(values) - 1):
            steps = torch.linspace(0.0, 1.0, len(values), dtype=values.dtype, device=values.device)
            values, narrower = values[first] + (values[last] - values[first]) * steps, True
        axes.append(values)
    return (axes[0], axes[1]) if narrower else None


def _convolved(
    prior: LevelPrior, odds: Tensor, factors: Tensor, of_rows: Tensor, labeled: Callable[..., Tensor], error: float
) -> Weighed:
    """Return a weighted grid of the site's level, which differs from the level of the rows by a normal error.

    `of_rows` (factors, log-odds) is the log-likelihood of the level of the rows.
    """
    middle, reach = float(prior.centre[1] - prior.centre[0]), REACH
    target = torch.linspace(middle - reach, middle + reach, FINE * LEVELS, dtype=torch.float64).to(odds)
    widest = target
    volume = torch.gradient(odds)[0].log()
    for _ in range(ROUNDS):
        kernel = -0.5 * ((target[:, None] - odds) / error) ** 2 + volume
        grid = _grid(prior, target, factors)
        density = torch.logsumexp(of_rows[:, None, :] + kernel, dim=2).reshape(-1)
        density = grid.log_prior + density + labeled(grid.factor, grid.level)
        narrower = _narrowed(density.reshape(len(factors), -1).amax(0, keepdim=True), target, factors[:1])
        if narrower is None:
            break
        target = narrower[0]
    covers = torch.equal(target, widest) and torch.equal(factors, _widest(prior)[1])
    return replace(grid, log_weight=density, covers_prior=covers)


def _sample(prior: LevelPrior, middle: Tensor, covariance: Tensor, factor: float, factor_deviation: float) -> Weighed:
    """Draw points from a Student distribution of the level in contrasts, and a normal distribution of the factor.

    Their weights are importance weights with respect to the prior.
    """
    width, device = len(middle), middle.device
    uniform = np.clip(qmc.Sobol(width + 2, seed=0).random(SAMPLES), 1e-6, 1 - 1e-6)
    normal = torch.tensor(norm.ppf(uniform[:, :-1]), device=device)
    stretch = torch.tensor(np.sqrt(FREEDOM / chi2.ppf(uniform[:, -1], FREEDOM)), device=device)
    values, vectors = torch.linalg.eigh(covariance)
    vectors = vectors * torch.sign(vectors.gather(0, vectors.abs().argmax(0, keepdim=True)))
    steps = normal[:, :width] * stretch[:, None]
    level = (middle + (steps * values.clamp_min(0.0).sqrt()) @ vectors.T) @ prior.basis.T
    factors = factor + factor_deviation * normal[:, width]
    log_proposal = _log_student(steps.square().sum(1), width)
    if prior.factor_scale:
        log_proposal = log_proposal - 0.5 * normal[:, width] ** 2
    log_prior = prior.log_density(factors, level) - log_proposal
    return Weighed(factors, level, log_prior, log_prior, covers_prior=True)


def _weigh_samples(
    evidence: Evidence | None, prior: LevelPrior, unlabeled: Likelihood, labeled: Callable[..., Tensor], error: float
) -> Weighed:
    basis, width = prior.basis, prior.basis.shape[1]
    wider = replace(prior, scale=math.hypot(prior.scale, error))
    has_factor = bool(prior.factor_scale)

    def of_rows(factor: Tensor, level: Tensor) -> Tensor:
        return 0.0 * factor if evidence is None else unlabeled(evidence, factor, level)

    def log_density(factor: Tensor, level: Tensor) -> Tensor:
        return wider.log_density(factor, level) + of_rows(factor, level) + labeled(factor, level)

    def negative(flat: Array) -> tuple[float, Array]:
        at = torch.tensor(flat, device=basis.device, requires_grad=True)
        value = -log_density(at[width:], (basis @ at[:width])[None])[0]
        (slope,) = torch.autograd.grad(value, at)
        return float(value.detach()), slope.cpu().numpy()

    starts = [prior.centre] if evidence is None else [prior.centre, _level_of_rows(evidence)]
    start = min((np.append((level @ basis).cpu().numpy(), 1.0) for level in starts), key=lambda at: negative(at)[0])
    mode = minimize(negative, start, jac=True, method="BFGS", options={"gtol": 1e-9, "maxiter": 500}).x
    step = 1e-4
    gradient = negative(mode)[1]
    columns = [(negative(mode + step * unit)[1] - gradient) / step for unit in np.eye(width + 1)]
    curvature = torch.tensor(np.array(columns), device=basis.device)
    curvature = (curvature + curvature.T) / 2.0
    values, vectors = torch.linalg.eigh(curvature[:width, :width])
    least = 0.2 / prior.scale**2  # a direction without information is as wide as the prior
    covariance = INFLATION * vectors @ torch.diag(1.0 / values.clamp_min(least)) @ vectors.T
    own = float(1.0 / curvature[width, width].clamp_min(0.2 / prior.factor_scale**2)) if has_factor else 0.0
    points = _sample(prior, torch.tensor(mode[:width], device=basis.device), covariance, mode[width], own**0.5)
    rows = of_rows(points.factor, points.level)
    if error and evidence is not None:
        return _with_error(points, prior, rows, labeled, error)
    return _settled(points, points.log_weight + rows + labeled(points.factor, points.level))


def _level_of_rows(evidence: Evidence) -> Tensor:
    """Return the level (K,) of a constant g fitted to the rows: a good start if the rows are far from the prior."""
    even = torch.full((evidence.n_classes,), 1.0 / evidence.n_classes, dtype=torch.float64, device=evidence.device)
    share = solve_cells(constant_problem(subset(evidence, SOME), even), even[None], "auto", tolerance=1e-6).point[0]
    return share.log() - share.log().mean()


def _with_error(
    points: Weighed, prior: LevelPrior, of_rows: Tensor, labeled: Callable[..., Tensor], error: float
) -> Weighed:
    """Return points of the site's level: the level of the rows plus a normal error, drawn for each point."""
    uniform = qmc.Sobol(prior.basis.shape[1], scramble=True, seed=1).random(len(points.factor))
    noise = torch.tensor(norm.ppf(np.clip(uniform, 1e-6, 1 - 1e-6)), device=prior.basis.device)
    level = points.level + error / math.sqrt(2.0) * noise @ prior.basis.T
    log_prior = (
        points.log_prior - prior.log_density(points.factor, points.level) + prior.log_density(points.factor, level)
    )
    moved = replace(points, level=level, log_prior=log_prior)
    return _settled(moved, log_prior + of_rows + labeled(points.factor, level))


def _settled(points: Weighed, log_weight: Tensor) -> Weighed:
    """Truncate the importance weights, so that no point has nearly all the weight (Ionides)."""
    most = log_weight.logsumexp(0) - 0.5 * math.log(len(log_weight))
    prior_weight = torch.softmax(points.log_prior, dim=0)
    covers = float(1.0 / prior_weight.square().sum()) > len(prior_weight) / 2
    return replace(points, log_weight=log_weight.clamp_max(float(most)), covers_prior=covers)
