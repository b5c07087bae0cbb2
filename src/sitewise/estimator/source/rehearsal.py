"""The prior of a new site, learned by adapting to labeled rows as if they had no labels (section 19 of docs/maths.md).

A unit is one rehearsal: the rows of a training site that f, g and calibration did not see, or held-out rows of all
sites, where nothing has shifted. Several units give the few numbers of a new site's prior.

To try many numbers and shifted levels in little time, a unit computes the posterior of `adaptation/posterior/` on a
coarse grid that is made once, and without deviations of the shape. A test compares the predictions of both.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
import torch
from scipy.optimize import brentq
from scipy.stats import chi2, norm, qmc
from scipy.stats import t as student
from torch import Tensor
from torch.nn.functional import one_hot

from sitewise.estimator.source.reading import evenly
from sitewise.posterior import combine, contrasts, normalize
from sitewise.prevalence import SitePrior
from sitewise.prevalence.linear import fit_linear, information
from sitewise.prevalence.prior import (
    FACTOR_SITES,
    FREEDOM,
    USUAL_FACTOR,
    USUAL_LEVEL,
    USUAL_SITES,
    USUAL_SLOPE,
    student_scale,
)

ROWS = 1000  # the most rows of a unit, evenly spread
TRUSTED = (0.0, 10.0, 30.0, 100.0, 300.0, 1000.0, math.inf)  # numbers of trusted rows to choose from
SLOPES = tuple(float(value) for value in np.geomspace(0.1, 1.6, 13))
NODES, FACTORS, SAMPLES = 49, 15, 512
FINEST = 0.5  # log-odds up to which the steps of the grid of levels are equal; beyond, they grow in proportion
REACH = 16.0
WIDE_LEVEL = 3.0  # scale of the level, in log-odds, of a very different site
BOUND = 9.0  # largest shift of the prior's centre, in log-odds
ERRORS: tuple[float, ...] = (
    0.0,
    *np.geomspace(0.1, 12.0, 45).tolist(),
)  # standard deviations of a level's error to choose from, log-odds
FARTHEST = 6.0  # the largest shift of a unit's level, in log-odds


def _shifts() -> list[tuple[float, float]]:
    """Shifts of the level in units of its scale, with their prior probabilities (Student's t): 0 and three each way."""
    edges = [*student.cdf([1.0, 2.5, 5.0], FREEDOM).tolist(), 1.0]
    tails = [(student.ppf((low + high) / 2.0, FREEDOM), high - low) for low, high in pairwise(edges)]
    return [(0.0, 2.0 * edges[0] - 1.0), *((sign * float(at), float(share)) for at, share in tails for sign in (1, -1))]


SHIFTS = _shifts()


@dataclass(frozen=True)
class Unit:
    """The rows of one rehearsal: calibrated log f, log g as trained, labels and weights."""

    name: str
    log_ratio: Tensor  # (n, K)
    log_prevalence: Tensor  # (n, K)
    y: Tensor  # (n,)
    weight: Tensor  # (n,)
    tempering: float  # of the likelihood, for the error of f
    shifted: bool = True  # whether it is a site that f was not trained on

    @classmethod
    def of(
        cls,
        name: str,
        log_ratio: Tensor,
        log_prevalence: Tensor,
        y: Tensor,
        weight: Tensor,
        prior: SitePrior,
        *,
        shifted: bool,
    ) -> "Unit":
        """A unit of at most ROWS rows."""
        rows = evenly(len(y), ROWS)
        own = weight[rows].double()
        tempering = prior.tempering(float(own.sum()))
        return cls(
            name, normalize(log_ratio[rows].double()), log_prevalence[rows].double(), y[rows], own, tempering, shifted
        )

    @property
    def n_classes(self) -> int:
        """K."""
        return self.log_ratio.shape[1]

    @cached_property
    def labels(self) -> Tensor:
        """One-hot labels, (n, K)."""
        return one_hot(self.y, self.n_classes).double()

    @cached_property
    def share(self) -> Tensor:
        """The weights, normalized to sum to one."""
        return self.weight / self.weight.sum()

    def level(self, slope: float = 1.0) -> tuple[Tensor, Tensor, float]:
        """The shift of the level (K-1,), in contrasts, fitted to the labels; its covariance; and the NLL there."""
        offset = slope * self.log_ratio + self.log_prevalence
        design = torch.ones(len(self.y), 1, dtype=torch.float64)
        weight = self.weight
        totals = (self.labels * (1.0 - 1e-9) + 1e-9 / self.n_classes) * weight[:, None]
        penalty = torch.full(
            (1,), 0.25, dtype=torch.float64
        )  # half a row of each class, so one class alone stays finite
        coefficients = fit_linear(totals, weight, design, penalty, offset).point
        log_p = torch.log_softmax(offset + coefficients @ contrasts(self.n_classes).T, dim=1)
        curvature = information(design, weight, log_p.exp()) + 0.25 * torch.eye(len(coefficients))
        return coefficients, torch.linalg.inv(curvature), float(-(self.share @ (self.labels * log_p).sum(1)))

    @cached_property
    def labeled_level(self) -> tuple[Tensor, Tensor, float]:
        """`level` with slope one."""
        return self.level()

    @cached_property
    def slope_losses(self) -> Tensor:
        """The NLL at each slope of log f, with the best level for each."""
        return torch.tensor([self.level(slope)[2] for slope in SLOPES], dtype=torch.float64)

    @cached_property
    def nodes(self) -> "Nodes":
        """The grid of factors and levels for the integrals."""
        return _grid_nodes(self) if self.n_classes == 2 else _sampled_nodes(self)

    @cached_property
    def row_log_likelihood(self) -> Tensor:
        """log Σ_y f_y g_y of each row at each node, (n, M)."""
        joint = self.log_ratio[:, None, :] + self.nodes.log_prevalence(self.log_prevalence, self.share)
        return torch.logsumexp(joint, dim=2)

    def predictions(self, slope: float) -> tuple[Tensor, Tensor]:
        """P(y|x,z) at each node, (n, M K), and that of the true classes, (n, M)."""
        if slope not in self._predictions:
            self._predictions.clear()
            g = self.nodes.log_prevalence(self.log_prevalence, self.share)
            probability = torch.softmax(slope * self.log_ratio[:, None, :] + g, dim=2)
            chosen = probability.gather(2, self.y[:, None, None].expand(-1, probability.shape[1], 1))[:, :, 0]
            self._predictions[slope] = probability.flatten(1), chosen.contiguous()
        return self._predictions[slope]

    @cached_property
    def _predictions(self) -> dict[float, tuple[Tensor, Tensor]]:
        return {}

    @cached_property
    def error_log_likelihood(self) -> Tensor:
        """The log-likelihood (S,) of each of ERRORS: how well the rows without labels find the level of the labels."""
        nodes, (truth, covariance, _) = self.nodes, self.labeled_level
        of_rows = self.tempering * (self.weight @ self.row_log_likelihood) + nodes.log_volume
        of_rows = of_rows + nodes.log_factor(USUAL_FACTOR)
        width = self.n_classes - 1
        squares = 2.0 * (nodes.level @ contrasts(self.n_classes) - truth).square().sum(1)
        variance = torch.tensor(ERRORS, dtype=torch.float64) ** 2 + 2.0 * covariance.trace() / width
        normal = -0.5 * (squares / variance[:, None] + width * variance.log()[:, None])
        return torch.logsumexp(of_rows + normal, dim=1)

    @cached_property
    def loss_as_trained(self) -> float:
        """The NLL of the model as trained."""
        log_p = combine(self.log_ratio, self.log_prevalence)
        return float(-(self.share @ (self.labels * log_p).sum(1)))

    def loss(self, numbers: "Numbers") -> float:
        """The NLL of what is predicted at this unit as it is."""
        if not numbers.trusted_rows and not numbers.averaged:
            return self.loss_as_trained
        return float(self.share @ self._row_losses(numbers, (numbers.trusted_rows,), None)[0][:, 0])

    def _row_losses(self, numbers: "Numbers", trusted: tuple[float, ...], tilt: Tensor | None) -> tuple[Tensor, Tensor]:
        """The loss of each row for several numbers of trusted rows (n, choices), and the shares of the rows (n,).

        With a `tilt` (K,), rows are reweighted so that the log-odds of the classes change by it.
        """
        weight = self.weight if tilt is None else self.weight * tilt.exp()[self.y]
        weight = weight * (self.weight.sum() / weight.sum())
        share = weight / weight.sum()
        predicted, chosen = self.predictions(numbers.slope)
        mean = (share @ predicted).reshape(-1, self.n_classes)
        log_prior = self.nodes.located(numbers, mean, share @ combine(self.log_ratio, self.log_prevalence).exp())
        log_likelihood = weight @ self.row_log_likelihood
        n_rows = float(weight.sum())
        powers = torch.tensor(
            [1.0 / (1.0 / self.tempering + n_rows / rows) if rows else 0.0 for rows in trusted], dtype=torch.float64
        )
        convolved = self.nodes.convolved(log_likelihood[:, None] * powers, numbers.level_error)
        averaged = chosen @ torch.softmax(log_prior[:, None] + convolved, dim=0)
        return -averaged.clamp_min(1e-12).log(), share

    def expected_losses(self, numbers: "Numbers") -> Tensor:
        """The loss for each number of trusted rows, averaged over the prior of the level."""
        own, share = self._row_losses(numbers, TRUSTED, None)
        average = SHIFTS[0][1] * (share @ own)
        directions = torch.eye(self.n_classes, dtype=torch.float64)[1 if self.n_classes == 2 else 0 :]
        for size, part in SHIFTS[1:]:
            reach = max(-FARTHEST, min(FARTHEST, size * numbers.level_scale))
            for direction in directions:
                shifted, drawn = self._row_losses(numbers, TRUSTED, reach * direction)
                average = average + part / len(directions) * (drawn @ shifted)
        return average

    def harms(self, numbers: "Numbers") -> Tensor:
        """For each number of trusted rows: the increase of the loss of the unit as it is, less its standard error."""
        own, share = self._row_losses(numbers, TRUSTED, None)
        more = own - own[:, :1]
        mean = share @ more
        error = (share.square() @ (more - mean).square()).sqrt()
        return (mean - error).clamp_min(0.0)


@dataclass(frozen=True)
class Numbers:
    """What rehearsals teach: the scales of a new site's prior, and how many of its rows to trust."""

    level_scale: float = USUAL_LEVEL
    factor_scale: float = USUAL_FACTOR
    slope: float = 1.0
    slope_scale: float = USUAL_SLOPE
    level_error: float = 0.0
    trusted_rows: float = math.inf
    wide_trusted_rows: float = math.inf
    averaged: bool = False  # over the prior, where no rows are trusted; otherwise the model stays as trained

    def put_into(self, prior: SitePrior) -> SitePrior:
        """The prior with these numbers."""
        return replace(prior, **vars(self))


@dataclass(frozen=True)
class Nodes:
    """Factors (M,) and shifts of the level (M, K), with the log of the volume around each node.

    All factors have the same `n_levels` shifts, in the order of the factors.
    """

    factor: Tensor
    level: Tensor
    log_volume: Tensor
    n_levels: int

    def log_prevalence(self, log_g: Tensor, share: Tensor) -> Tensor:
        """log g of rows at each node, (n, M, K), from log g as trained (n, K)."""
        shape = log_g - log_g.mean(dim=1, keepdim=True)
        centre = share @ shape
        logits = self.factor[:, None] * (shape - centre)[:, None, :] + centre + self.level
        return torch.log_softmax(logits, dim=2)

    def log_factor(self, scale: float) -> Tensor:
        """The log prior of the factor, (M,)."""
        return -0.5 * ((self.factor - 1.0) / scale) ** 2

    def log_prior(self, numbers: Numbers, centre: Tensor) -> Tensor:
        """The log prior of each node, (M,), centred at a shift (K,)."""
        squares = 2.0 * (self.level - centre).square().sum(1) / numbers.level_scale**2
        student = -0.5 * (FREEDOM + self.level.shape[1] - 1.0) * torch.log1p(squares / FREEDOM)
        return student + self.log_factor(numbers.factor_scale) + self.log_volume

    def located(self, numbers: Numbers, predicted: Tensor, as_trained: Tensor) -> Tensor:
        """The log prior, centred so that the mean prediction (M, K) is that of the model as trained (K,)."""
        n_classes = len(as_trained)
        wanted = as_trained.clamp_min(1e-12).log()

        def off(centre: Tensor) -> Tensor:
            mean = torch.softmax(self.log_prior(numbers, centre), dim=0) @ predicted
            apart = wanted - mean.clamp_min(1e-12).log()
            return apart - apart.mean()

        if n_classes == 2:
            half = torch.tensor([-0.5, 0.5], dtype=torch.float64)
            low, high = -BOUND, BOUND
            if float(off(low * half)[1]) * float(off(high * half)[1]) >= 0:
                return self.log_prior(numbers, 0.0 * half)
            root = brentq(lambda at: float(off(at * half)[1]), low, high, xtol=1e-3)
            return self.log_prior(numbers, root * half)
        centre = torch.zeros(n_classes, dtype=torch.float64)
        for _ in range(15):
            centre = centre + off(centre).clamp(-1.0, 1.0)
        return self.log_prior(numbers, centre)

    def convolved(self, log_likelihood: Tensor, error: float) -> Tensor:
        """Log-likelihoods (M, choices) of levels, convolved with a normal error of the level."""
        if error < 0.02:
            return log_likelihood
        by_factor = log_likelihood.reshape(-1, self.n_levels, log_likelihood.shape[1])
        highest = by_factor.amax(1, keepdim=True)
        mixed = self._kernel(error) @ (by_factor - highest).exp()
        return (mixed.clamp_min(torch.finfo(mixed.dtype).tiny).log() + highest).reshape(log_likelihood.shape)

    def _kernel(self, error: float) -> Tensor:
        """The matrix (n_levels, n_levels) of that convolution."""
        if error not in self._kernels:
            level = self.level[: self.n_levels]
            apart = torch.cdist(level, level, compute_mode="donot_use_mm_for_euclid_dist")
            self._kernels[error] = torch.softmax(self.log_volume[: self.n_levels] - (apart / error) ** 2, dim=1)
        return self._kernels[error]

    @cached_property
    def _kernels(self) -> dict[float, Tensor]:
        return {}


def _grid_nodes(unit: Unit) -> Nodes:
    """Two classes: a grid of log-odds, fine near zero and coarse far from it, times a few factors."""
    end = math.asinh(REACH / FINEST)
    odds = FINEST * torch.sinh(torch.linspace(-end, end, NODES, dtype=torch.float64))
    volume = torch.gradient(odds)[0]
    reach = 0.0 if bool((unit.log_prevalence - unit.log_prevalence[:1]).abs().max() < 1e-9) else 2.5
    steps = torch.linspace(-reach, reach, FACTORS if reach else 1, dtype=torch.float64)
    factor = (1.0 + USUAL_FACTOR * steps).repeat_interleave(NODES)
    half = odds.repeat(len(steps)) / 2.0
    return Nodes(factor, torch.stack([-half, half], dim=1), volume.log().repeat(len(steps)), NODES)


def _sampled_nodes(unit: Unit) -> Nodes:
    """Nodes for three and more classes: levels drawn from the usual prior, with factor one."""
    width = unit.n_classes - 1
    uniform = np.clip(qmc.Sobol(width + 1, seed=0).random(SAMPLES)[1:], 1e-6, 1 - 1e-6)
    normal = torch.tensor(norm.ppf(uniform[:, :-1]))
    stretch = torch.tensor(np.sqrt(FREEDOM / chi2.ppf(uniform[:, -1], FREEDOM)))
    steps = torch.cat([torch.zeros(1, width, dtype=torch.float64), normal * stretch[:, None]])
    log_density = -0.5 * (FREEDOM + width) * torch.log1p(steps.square().sum(1) / FREEDOM)
    level = USUAL_LEVEL / math.sqrt(2.0) * steps @ contrasts(unit.n_classes).T
    return Nodes(torch.ones(SAMPLES, dtype=torch.float64), level, -log_density, SAMPLES)


def learn_numbers(units: list[Unit]) -> Numbers:
    """The numbers of the prior from rehearsed units."""
    if not units:
        return Numbers()
    sites = [unit for unit in units if unit.shifted]
    squares, factors = [], []
    for unit in sites:
        level, covariance, _ = unit.labeled_level
        squares.append(2.0 * float((level.square().sum() - covariance.trace()).clamp_min(0.0)) / (unit.n_classes - 1))
        factors.append(_factor_excess(unit))
    slope = _best_slope(torch.stack([unit.slope_losses for unit in units]).mean(0)) if sites else 1.0
    numbers = Numbers(
        level_scale=student_scale(torch.tensor(squares, dtype=torch.float64), USUAL_LEVEL),
        factor_scale=math.sqrt((FACTOR_SITES * USUAL_FACTOR**2 + sum(factors)) / (FACTOR_SITES + len(factors))),
        slope=slope,
        slope_scale=_slope_scale(sites, slope),
        level_error=_level_error(sites),
    )
    wide = replace(numbers, level_scale=max(WIDE_LEVEL, numbers.level_scale))
    return replace(
        numbers,
        trusted_rows=_learn_trust(units, numbers),
        wide_trusted_rows=_expected_trust(sites, wide) if sites else math.inf,
        averaged=_averaging_helps(sites, numbers),
    )


def _level_error(sites: list[Unit]) -> float:
    """The standard deviation of the error of a level at an unseen site, by maximum likelihood; zero without sites."""
    if not sites:
        return 0.0
    return ERRORS[int(torch.stack([unit.error_log_likelihood for unit in sites]).sum(0).argmax())]


def _averaging_helps(sites: list[Unit], numbers: Numbers) -> bool:
    """Whether predictions averaged over the prior, without any rows, are better than the model as trained on average.

    Only sites can tell: rows of the same population have no level of their own.
    """
    without = replace(numbers, trusted_rows=0.0, averaged=True)
    return sum(unit.loss(without) - unit.loss_as_trained for unit in sites) < 0.0


def _learn_trust(units: list[Unit], numbers: Numbers) -> float:
    """The number of a new site's rows to trust: it lowers the loss at sites and does no harm without a shift."""
    harmless = [_harmless(unit.harms(numbers)) for unit in units if not unit.shifted]
    sites = [unit.expected_losses(numbers) for unit in units if unit.shifted]
    trusted = best_trust(torch.stack(sites)) if sites else math.inf
    return min([trusted, *harmless])


def _expected_trust(sites: list[Unit], numbers: Numbers) -> float:
    """The number of rows to trust at a site drawn from the prior: the one with the smallest expected loss."""
    losses = torch.stack([unit.expected_losses(numbers) for unit in sites]).mean(0)
    return TRUSTED[int(losses.argmin())]


def _factor_excess(unit: Unit) -> float:
    """The squared distance from one of the factor on the shape, fitted to labels, minus its sampling variance."""
    nodes = unit.nodes
    if float(nodes.factor.amax()) <= 1.0:
        return USUAL_FACTOR**2
    shape = unit.log_prevalence - unit.log_prevalence.mean(dim=1, keepdim=True)
    shape = (shape - unit.share @ shape) @ contrasts(unit.n_classes)
    offset = unit.log_ratio + unit.log_prevalence
    design = torch.cat([torch.ones(len(shape), 1, dtype=torch.float64), shape], dim=1)
    penalty = torch.tensor([0.25, 1.0 / (2.0 * USUAL_FACTOR) ** 2], dtype=torch.float64)
    coefficients = fit_linear(unit.labels * unit.weight[:, None], unit.weight, design, penalty, offset).point
    log_p = torch.log_softmax(offset + (design @ coefficients.reshape(2, 1)) @ contrasts(2).T, dim=1)
    covariance = torch.linalg.inv(information(design, unit.weight, log_p.exp()) + torch.diag(penalty))
    return float((coefficients[1] ** 2 - covariance[1, 1]).clamp_min(0.0))


def _best_slope(losses: Tensor) -> float:
    """The slope with the smallest mean loss, interpolated by a parabola in its logarithm."""
    best = int(losses.argmin())
    if best in (0, len(SLOPES) - 1):
        return SLOPES[best]
    before, at, after = losses[best - 1 : best + 2].tolist()
    step = math.log(SLOPES[1] / SLOPES[0])
    bend = before - 2.0 * at + after
    return SLOPES[best] * math.exp(0.5 * step * (before - after) / bend if bend > 0 else 0.0)


def _slope_scale(sites: list[Unit], slope: float) -> float:
    """The standard deviation of the log slope between sites around the common one, beyond sampling error."""
    excess = [_slope_excess(unit, slope) for unit in sites]
    return math.sqrt((USUAL_SITES * USUAL_SLOPE**2 + sum(excess)) / (USUAL_SITES + len(excess)))


def _slope_excess(unit: Unit, slope: float) -> float:
    """The squared distance of the unit's log slope from a given one, minus its sampling variance."""
    best = min(max(int(unit.slope_losses.argmin()), 1), len(SLOPES) - 2)
    before, at, after = unit.slope_losses[best - 1 : best + 2].tolist()
    step = math.log(SLOPES[1] / SLOPES[0])
    information: float = float(unit.weight.sum()) * max(before - 2.0 * at + after, 0.0) / step**2
    away = math.log(_best_slope(unit.slope_losses) / slope)
    return float(max(away**2 - 1.0 / max(information, 1e-300), 0.0))


def _harmless(harms: Tensor) -> float:
    """The largest number of trusted rows that does no harm (choices,) where nothing has shifted."""
    first = (harms > 0).nonzero().flatten()
    return TRUSTED[int(first[0]) - 1] if len(first) else math.inf


def best_trust(losses: Tensor) -> float:
    """The number of a new site's rows to trust, from expected losses (units, choices), by minimax regret.

    The regret of a choice is how much larger its mean loss may be than that of the best other choice: the mean of the
    differences plus one standard error between units (by Student's t, because units are few).
    """
    apart, count = losses[:, :, None] - losses[:, None, :], len(losses)
    regret = apart.mean(0)
    if count > 1:
        regret = regret + student.ppf(norm.cdf(1.0), count - 1) * apart.std(0) / math.sqrt(count)
    return TRUSTED[int(regret.amax(1).argmin())]
