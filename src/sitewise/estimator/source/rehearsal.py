"""The prior of a new site, learned by adapting to labeled rows as if they had no labels (section 19 of docs/maths.md).

A unit is the data of one rehearsal: the rows of a training site to which f, g and calibration were not fitted, or
held-out rows of all sites, which have no shift. The few numbers of a new site's prior are learned from several units.

Many numbers and shifted levels are tried. To save time, a unit computes the posterior of `adaptation/posterior/` on a
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

ROWS = 1000  # the largest number of rows of a unit; from more rows, so many are taken, evenly spread
TRUSTED = (0.0, 10.0, 30.0, 100.0, 300.0, 1000.0, math.inf)  # candidates for the number of trusted rows
SLOPES = tuple(float(value) for value in np.geomspace(0.1, 1.6, 13))
NODES, FACTORS, SAMPLES = 49, 15, 512
FINEST = 0.5  # log-odds; below it the steps of the grid of levels are about equal, above it they grow in proportion
REACH = 16.0  # the largest level of the grid, in log-odds
WIDE_LEVEL = 3.0  # scale of the level, in log-odds, of a very different site
BOUND = 9.0  # largest shift of the prior's centre, in log-odds
ERRORS: tuple[float, ...] = (
    0.0,
    *np.geomspace(0.1, 12.0, 45).tolist(),
)  # candidates for the standard deviation of a level's error, in log-odds
FARTHEST = 6.0  # the largest shift of a unit's level, in log-odds


def _shifts() -> list[tuple[float, float]]:
    """Return shifts of the level in units of its scale, with their prior probabilities by Student's t distribution.

    The shifts are zero, and three sizes in both directions.
    """
    edges = [*student.cdf([1.0, 2.5, 5.0], FREEDOM).tolist(), 1.0]
    tails = [(student.ppf((low + high) / 2.0, FREEDOM), high - low) for low, high in pairwise(edges)]
    return [(0.0, 2.0 * edges[0] - 1.0), *((sign * float(at), float(share)) for at, share in tails for sign in (1, -1))]


SHIFTS = _shifts()


def _drawn_shifts(scale: float, n_classes: int) -> list[tuple[Tensor, float]]:
    """Return shifts of the level (K,) by the prior with this scale, with their probabilities."""
    directions = torch.eye(n_classes, dtype=torch.float64)[1 if n_classes == 2 else 0 :]
    shifts = [(max(-FARTHEST, min(FARTHEST, size * scale)), part / len(directions)) for size, part in SHIFTS[1:]]
    drawn = [(reach * direction, part) for reach, part in shifts for direction in directions]
    return [(torch.zeros(n_classes, dtype=torch.float64), SHIFTS[0][1]), *drawn]


@dataclass(frozen=True)
class Unit:
    """The data of one rehearsal: calibrated log f, log g as trained, labels and weights of its rows."""

    name: str
    log_ratio: Tensor  # (n, K)
    log_prevalence: Tensor  # (n, K)
    y: Tensor  # (n,)
    weight: Tensor  # (n,)
    tempering: float  # exponent of the likelihood, which accounts for the error of f
    shifted: bool = True  # True: a site that f was not trained on. False: held-out rows of the training sites

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
        """Make a unit of at most ROWS of the rows."""
        rows = evenly(len(y), ROWS)
        own = weight[rows].double()
        tempering = prior.tempering(float(own.sum()))
        return cls(
            name, normalize(log_ratio[rows].double()), log_prevalence[rows].double(), y[rows], own, tempering, shifted
        )

    @property
    def n_classes(self) -> int:
        """The number of classes, K."""
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
        """Fit the shift of the level to the labels; return it as contrasts (K-1,), its covariance, and the NLL."""
        offset = slope * self.log_ratio + self.log_prevalence
        design = torch.ones(len(self.y), 1, dtype=torch.float64)
        weight = self.weight
        totals = (self.labels * (1.0 - 1e-9) + 1e-9 / self.n_classes) * weight[:, None]
        penalty = torch.full(
            (1,), 0.25, dtype=torch.float64
        )  # half a row of each class, so that the level is finite if only one class occurs
        coefficients = fit_linear(totals, weight, design, penalty, offset).point
        log_p = torch.log_softmax(offset + coefficients @ contrasts(self.n_classes).T, dim=1)
        curvature = information(design, weight, log_p.exp()) + 0.25 * torch.eye(len(coefficients))
        return coefficients, torch.linalg.inv(curvature), float(-(self.share @ (self.labels * log_p).sum(1)))

    @cached_property
    def labeled_level(self) -> tuple[Tensor, Tensor, float]:
        """The result of `level` with slope one."""
        return self.level()

    @cached_property
    def slope_losses(self) -> Tensor:
        """The NLL for each slope of log f in SLOPES, with the best level for this slope."""
        return torch.tensor([self.level(slope)[2] for slope in SLOPES], dtype=torch.float64)

    @cached_property
    def nodes(self) -> "Nodes":
        """The grid of factors and levels for the integrals."""
        return _grid_nodes(self) if self.n_classes == 2 else _sampled_nodes(self)

    @cached_property
    def row_log_likelihood(self) -> Tensor:
        """log Σ_y f_y g_y of each row at each of the M nodes, (n, M)."""
        joint = self.log_ratio[:, None, :] + self.nodes.log_prevalence(self.log_prevalence, self.share)
        return torch.logsumexp(joint, dim=2)

    def predictions(self, slope: float) -> tuple[Tensor, Tensor]:
        """Return P(y|x,z) of all classes at each node, (n, M K), and of the true class, (n, M)."""
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
        """The log-likelihood (S,) of each of ERRORS as the standard deviation of the level's error (equation 19a).

        The error is the difference between the level estimated from unlabeled rows and the level of the labels.
        """
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
        """Return the NLL of the predictions with these numbers at this unit, without a change of its prevalence."""
        return float(self.share @ self._row_losses(numbers, (numbers.trusted_rows,), None)[0][:, 0])

    def _row_losses(self, numbers: "Numbers", trusted: tuple[float, ...], tilt: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the loss of each row for each number of trusted rows (n, choices), and the shares of the rows (n,).

        If `tilt` (K,) is given, rows are first reweighted so that the log-odds of the classes change by `tilt`.
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
        losses = -averaged.clamp_min(1e-12).log()
        if not numbers.averaged:
            as_trained = combine(self.log_ratio, self.log_prevalence)
            losses[:, powers == 0.0] = -(self.labels * as_trained).sum(1, keepdim=True)
        return losses, share

    def expected_losses(self, numbers: "Numbers") -> Tensor:
        """Return the loss for each number of trusted rows in TRUSTED, averaged over the level of a new site.

        Its level is a shift from the prior, added to the level of the unit's labels or, as often, to that of the model
        as trained. The errors of f are those at this unit in both cases.
        """
        average = torch.zeros(len(TRUSTED), dtype=torch.float64)
        own_level = self.labeled_level[0] @ contrasts(self.n_classes).T
        for start in (torch.zeros_like(own_level), -own_level):
            for shift, part in _drawn_shifts(numbers.level_scale, self.n_classes):
                tilt = start + shift
                losses, share = self._row_losses(numbers, TRUSTED, (tilt - tilt.amax()).clamp_min(-FARTHEST))
                average = average + part / 2.0 * (share @ losses)
        return average

    def harms(self, numbers: "Numbers") -> Tensor:
        """Return for each number in TRUSTED by how much trusting so many rows increases the loss of the unit.

        The prevalence of the unit is not changed. The increase is relative to predictions averaged over the prior
        without rows. The standard error of the increase is subtracted, and the result is at least zero.
        """
        own, share = self._row_losses(replace(numbers, averaged=True), TRUSTED, None)
        more = own - own[:, :1]
        mean = share @ more
        error = (share.square() @ (more - mean).square()).sqrt()
        return (mean - error).clamp_min(0.0)


@dataclass(frozen=True)
class Numbers:
    """The numbers that are learned in rehearsals: scales of a new site's prior, and how many of its rows are trusted.

    The fields are explained at `SitePrior`.
    """

    level_scale: float = USUAL_LEVEL
    factor_scale: float = USUAL_FACTOR
    slope: float = 1.0
    slope_scale: float = USUAL_SLOPE
    level_error: float = 0.0
    trusted_rows: float = math.inf
    wide_trusted_rows: float = math.inf
    averaged: bool = False  # only if no rows are trusted. True: predictions are averaged over the prior

    def put_into(self, prior: SitePrior) -> SitePrior:
        """Return the prior with these numbers in place of its own."""
        return replace(prior, **vars(self))


@dataclass(frozen=True)
class Nodes:
    """M nodes of an integral over g: factors on the shape (M,) and shifts of the level (M, K), with log volumes (M,).

    The nodes of one factor follow each other, and all factors have the same `n_levels` shifts.
    """

    factor: Tensor
    level: Tensor
    log_volume: Tensor
    n_levels: int

    def log_prevalence(self, log_g: Tensor, share: Tensor) -> Tensor:
        """Return log g of rows at each node, (n, M, K), from log g as trained (n, K) and shares of the rows (n,)."""
        shape = log_g - log_g.mean(dim=1, keepdim=True)
        centre = share @ shape
        logits = self.factor[:, None] * (shape - centre)[:, None, :] + centre + self.level
        return torch.log_softmax(logits, dim=2)

    def log_factor(self, scale: float) -> Tensor:
        """Return the log prior of the factor at each node, (M,), with this standard deviation."""
        return -0.5 * ((self.factor - 1.0) / scale) ** 2

    def log_prior(self, numbers: Numbers, centre: Tensor) -> Tensor:
        """Return the log prior of each node, (M,), with its centre at the shift `centre` (K,) of the level."""
        squares = 2.0 * (self.level - centre).square().sum(1) / numbers.level_scale**2
        student = -0.5 * (FREEDOM + self.level.shape[1] - 1.0) * torch.log1p(squares / FREEDOM)
        return student + self.log_factor(numbers.factor_scale) + self.log_volume

    def located(self, numbers: Numbers, predicted: Tensor, as_trained: Tensor) -> Tensor:
        """Return the log prior (M,), centred so that the mean prediction equals that of the model as trained.

        `predicted` (M, K) is the mean prediction at each node, `as_trained` (K,) that of the model as trained.
        """
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
        """Return the log of likelihoods (M, choices) that are averaged over nearby levels of the same factor.

        The weights of the levels are those of a normal error of the level with standard deviation `error`.
        """
        if error < 0.02:
            return log_likelihood
        by_factor = log_likelihood.reshape(-1, self.n_levels, log_likelihood.shape[1])
        highest = by_factor.amax(1, keepdim=True)
        mixed = self._kernel(error) @ (by_factor - highest).exp()
        return (mixed.clamp_min(torch.finfo(mixed.dtype).tiny).log() + highest).reshape(log_likelihood.shape)

    def _kernel(self, error: float) -> Tensor:
        """Return the matrix (n_levels, n_levels) of the convolution with a normal error."""
        if error not in self._kernels:
            level = self.level[: self.n_levels]
            apart = torch.cdist(level, level, compute_mode="donot_use_mm_for_euclid_dist")
            self._kernels[error] = torch.softmax(self.log_volume[: self.n_levels] - (apart / error) ** 2, dim=1)
        return self._kernels[error]

    @cached_property
    def _kernels(self) -> dict[float, Tensor]:
        return {}


def _grid_nodes(unit: Unit) -> Nodes:
    """Return the nodes for two classes: a grid of log-odds, fine near zero and coarse elsewhere, for a few factors."""
    end = math.asinh(REACH / FINEST)
    odds = FINEST * torch.sinh(torch.linspace(-end, end, NODES, dtype=torch.float64))
    volume = torch.gradient(odds)[0]
    reach = 0.0 if bool((unit.log_prevalence - unit.log_prevalence[:1]).abs().max() < 1e-9) else 2.5
    steps = torch.linspace(-reach, reach, FACTORS if reach else 1, dtype=torch.float64)
    factor = (1.0 + USUAL_FACTOR * steps).repeat_interleave(NODES)
    half = odds.repeat(len(steps)) / 2.0
    return Nodes(factor, torch.stack([-half, half], dim=1), volume.log().repeat(len(steps)), NODES)


def _sampled_nodes(unit: Unit) -> Nodes:
    """Return the nodes for three or more classes: levels drawn from the usual prior, with factor one."""
    width = unit.n_classes - 1
    uniform = np.clip(qmc.Sobol(width + 1, seed=0).random(SAMPLES)[1:], 1e-6, 1 - 1e-6)
    normal = torch.tensor(norm.ppf(uniform[:, :-1]))
    stretch = torch.tensor(np.sqrt(FREEDOM / chi2.ppf(uniform[:, -1], FREEDOM)))
    steps = torch.cat([torch.zeros(1, width, dtype=torch.float64), normal * stretch[:, None]])
    log_density = -0.5 * (FREEDOM + width) * torch.log1p(steps.square().sum(1) / FREEDOM)
    level = USUAL_LEVEL / math.sqrt(2.0) * steps @ contrasts(unit.n_classes).T
    return Nodes(torch.ones(SAMPLES, dtype=torch.float64), level, -log_density, SAMPLES)


def learn_numbers(units: list[Unit]) -> Numbers:
    """Learn the numbers of the prior from rehearsed units; the defaults of `Numbers` if there are none."""
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
    numbers = replace(numbers, averaged=_averaging_helps(sites, numbers))
    wide = replace(numbers, level_scale=max(WIDE_LEVEL, numbers.level_scale), averaged=True)
    return replace(
        numbers,
        trusted_rows=_learn_trust(units, numbers),
        wide_trusted_rows=_expected_trust(sites, wide) if sites else math.inf,
    )


def _level_error(sites: list[Unit]) -> float:
    """Estimate the standard deviation of the error of a level at an unseen site: it maximizes equation 19a.

    It is zero without sites.
    """
    if not sites:
        return 0.0
    return ERRORS[int(torch.stack([unit.error_log_likelihood for unit in sites]).sum(0).argmax())]


def _averaging_helps(sites: list[Unit], numbers: Numbers) -> bool:
    """Return whether predictions averaged over the prior, without any rows, have a lower loss than those as trained.

    The losses are summed over sites. Held-out rows of the training sites are not used, because they have no shift.
    """
    without = replace(numbers, trusted_rows=0.0, averaged=True)
    return sum(unit.loss(without) - unit.loss_as_trained for unit in sites) < 0.0


def _learn_trust(units: list[Unit], numbers: Numbers) -> float:
    """Choose how many rows of a new site are trusted.

    It is the number that `best_trust` chooses from the losses at sites, but at most the number that does no harm at
    units without a shift. Infinite if there are no units.
    """
    harmless = [_harmless(unit.harms(numbers)) for unit in units if not unit.shifted]
    sites = [unit.expected_losses(numbers) for unit in units if unit.shifted]
    trusted = best_trust(torch.stack(sites)) if sites else math.inf
    return min([trusted, *harmless])


def _expected_trust(sites: list[Unit], numbers: Numbers) -> float:
    """Choose how many rows are trusted at a site drawn from the prior: the number with the smallest expected loss."""
    losses = torch.stack([unit.expected_losses(numbers) for unit in sites]).mean(0)
    return TRUSTED[int(losses.argmin())]


def _factor_excess(unit: Unit) -> float:
    """Return the squared difference of the factor on the shape from one, minus its sampling variance.

    The factor is fitted to the labels. If the nodes have one factor only, the usual variance of the factor is returned.
    """
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
    """Return the slope with the smallest loss, interpolated by a parabola in the logarithm of the slope."""
    best = int(losses.argmin())
    if best in (0, len(SLOPES) - 1):
        return SLOPES[best]
    before, at, after = losses[best - 1 : best + 2].tolist()
    step = math.log(SLOPES[1] / SLOPES[0])
    bend = before - 2.0 * at + after
    return SLOPES[best] * math.exp(0.5 * step * (before - after) / bend if bend > 0 else 0.0)


def _slope_scale(sites: list[Unit], slope: float) -> float:
    """Estimate the standard deviation between sites of the log slope around that of `slope`, without sampling error."""
    excess = [_slope_excess(unit, slope) for unit in sites]
    return math.sqrt((USUAL_SITES * USUAL_SLOPE**2 + sum(excess)) / (USUAL_SITES + len(excess)))


def _slope_excess(unit: Unit, slope: float) -> float:
    """Return the squared difference between the unit's log slope and that of `slope`, minus its sampling variance."""
    best = min(max(int(unit.slope_losses.argmin()), 1), len(SLOPES) - 2)
    before, at, after = unit.slope_losses[best - 1 : best + 2].tolist()
    step = math.log(SLOPES[1] / SLOPES[0])
    information: float = float(unit.weight.sum()) * max(before - 2.0 * at + after, 0.0) / step**2
    away = math.log(_best_slope(unit.slope_losses) / slope)
    return float(max(away**2 - 1.0 / max(information, 1e-300), 0.0))


def _harmless(harms: Tensor) -> float:
    """Return the largest number of trusted rows before the first with a positive harm, from harms (choices,)."""
    first = (harms > 0).nonzero().flatten()
    return TRUSTED[int(first[0]) - 1] if len(first) else math.inf


def best_trust(losses: Tensor) -> float:
    """Choose how many rows of a new site are trusted, from expected losses (units, choices), by minimax regret.

    A choice is compared with every other choice: the mean difference of their losses, plus one standard error between
    units (by Student's t, because there are few units). Its regret is the largest of these values (equation 19b). A
    choice that is not better than the first one, no rows, in this comparison is left out.
    """
    apart, count = losses[:, :, None] - losses[:, None, :], len(losses)
    more = apart.mean(0)
    if count > 1:
        more = more + student.ppf(norm.cdf(1.0), count - 1) * apart.std(0) / math.sqrt(count)
    able = [0, *(choice for choice in range(1, len(more)) if more[choice, 0] < 0.0)]
    return TRUSTED[able[int(more[able][:, able].amax(1).argmin())]]
