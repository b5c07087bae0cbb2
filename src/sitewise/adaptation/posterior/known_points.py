"""M points of a site with labels or a known prevalence. At each point, predictions and g have the same mean."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from scipy.stats import norm, qmc
from torch import Tensor

from sitewise.adaptation.evidence import Evidence
from sitewise.adaptation.posterior.known import Known, log_ratio_of, stratum_means
from sitewise.adaptation.posterior.labels import LabelLikelihood
from sitewise.adaptation.posterior.likelihood import evaluate_points
from sitewise.adaptation.posterior.points import Contradiction, Points
from sitewise.adaptation.rows import Stream
from sitewise.posterior import contrasts
from sitewise.prevalence.base import finite

GOLDEN = (5**0.5 - 1) / 2
QUANTILES = (0.1, 0.3, 0.5, 0.7, 0.9)  # quantiles of the slope over which predictions are averaged
NEGLIGIBLE = 1e-7  # points with a smaller weight, relative to the largest, are dropped
STEPS = 100  # largest number of iterations
CLOSE = 1e-13  # tolerance of means


def copy_for_slopes(points: Points, labels: LabelLikelihood, weight: Tensor) -> tuple[Points, Tensor]:
    """Return five copies of each point, which differ in the slope of log f, and the weights of all copies.

    The slopes of the copies are quantiles of the slope's distribution given the labels and the point. Points of
    negligible weight are left out. If the slope is fixed, each point has one copy.
    """
    some = (weight > NEGLIGIBLE * weight.max()).nonzero().flatten()
    heavy, share = take_points(points, some), weight[some] / weight[some].sum()
    if len(labels.slope) == 1:
        return labels.with_slopes(heavy, labels.slopes_at(heavy, share)), share
    copies = [labels.with_slopes(heavy, labels.slopes_at(heavy, torch.full_like(share, at))) for at in QUANTILES]
    return join_points(copies), share.repeat(len(copies)) / len(copies)


def drawn_slopes(points: Points, labels: LabelLikelihood) -> Points:
    """Return the points, each with its own slope of log f: a quantile of the slope given the labels and the point.

    The probabilities of the quantiles are spread evenly over the points.
    """
    number = torch.arange(len(points), dtype=torch.float64, device=points.weight.device)
    return labels.with_slopes(points, labels.slopes_at(points, (0.5 + GOLDEN * number) % 1.0))


def take_points(points: Points, chosen: Tensor) -> Points:
    """Select some of the points."""
    own = ("factor", "level", "weight", "log_marginal", "along", "slope", "shift", "step")
    parts = {name: getattr(points, name) for name in own}
    if points.along is None:
        parts["deviation"] = points.deviation
    taken: dict[str, Any] = {name: part[chosen] for name, part in parts.items() if part is not None}
    return replace(points, **taken)


def join_points(parts: list[Points]) -> Points:
    """Concatenate sets of points that share their directions."""
    own = ("factor", "level", "weight", "log_marginal", "along", "slope", "shift")
    first = parts[0]
    assert first.deviation is None or first.along is not None
    joined: dict[str, Any] = {
        name: torch.cat([getattr(part, name) for part in parts]) for name in own if getattr(first, name) is not None
    }
    return replace(first, **joined)


def settle(points: Points, evidence: Evidence, slope: float, target: Tensor) -> Points:
    """Return points at which g and predictions both have the mean `target` (M, K) over the site.

    To make both means equal, predictions use log g plus `shift`, which corrects the error of f's level at this site.
    """
    before = points
    away = torch.zeros_like(points.level)
    for _ in range(STEPS):
        mean = evaluate_points(evidence, points).mean if points.depends_on_z else points.log_marginal.exp()
        off = target.clamp_min(1e-300).log() - mean.clamp_min(1e-300).log()
        if float((mean - target).abs().max()) < CLOSE:
            break
        away = away + (off - off.mean(1, keepdim=True)).clamp(-4.0, 4.0)
        level = before.level + away
        log_marginal = torch.log_softmax(level, dim=1) if not points.depends_on_z else points.log_marginal
        points = replace(points, level=level, log_marginal=log_marginal)
    points = replace(points, log_marginal=finite(target.log()))
    shift = (0.0 if before.shift is None else before.shift) - away
    points = replace(points, shift=shift)
    if before.strata is not None:  # rows in strata have z; the changes of `level` and `shift` cancel in predictions
        return points

    def moved(move: Tensor) -> Points:
        return replace(points, shift=shift + move[:, 0])

    return moved(_solve(moved, evidence, slope, None, target[None]))


def stepped(points: Points, evidence: Evidence, slope: float, known: Known, target: Tensor) -> Points:
    """Return points at which predictions have the means `target` (S, M, K) in the strata."""
    base = replace(points, strata=known.strata)

    def moved(move: Tensor) -> Points:
        at = replace(base, step=move)
        return replace(at, log_marginal=finite(evaluate_points(evidence, at).mean.log()))

    return moved(_solve(moved, evidence, slope, known, target))


def _solve(
    moved: Callable[[Tensor], Points], evidence: Evidence, slope: float, known: Known | None, target: Tensor
) -> Tensor:
    """Return the shift of log g, (M, S, K), at which mean predictions are `target` (S, M, K); by damped Newton."""
    strata = None if known is None else known.strata
    n_strata, n_points, n_classes = target.shape
    basis = contrasts(n_classes, target.device)
    best = move = step = target.new_zeros(n_points, n_strata, n_classes)
    least = target.new_full((n_points, n_strata, 1), math.inf)
    for _ in range(STEPS):
        mean, covariance, _ = stratum_means(evidence, moved(move), slope, strata)
        off = (target - mean).transpose(0, 1)
        now = off.abs().amax(2, keepdim=True)
        if float(now.max()) < CLOSE:
            return move
        better = now < least
        flat = basis.T @ covariance.transpose(0, 1) @ basis + 1e-14 * torch.eye(n_classes - 1).to(basis)
        newton = torch.linalg.solve(flat, (off @ basis)[..., None])[..., 0].clamp(-3.0, 3.0) @ basis.T
        best, least = torch.where(better, move, best), torch.minimum(now, least)
        step = torch.where(better, newton, step / 2.0)
        move = best + step
    return best


def normal_noise(n_points: int, n_strata: int, basis: Tensor, weight: Tensor) -> Tensor:
    """Return quasi-random standard normal numbers (S, M, K) for the log-odds of every class.

    Their weighted mean over the points is zero.
    """
    n_classes = len(basis)
    uniform = qmc.Sobol(n_strata * (n_classes - 1), seed=2).random(n_points)
    flat = torch.tensor(norm.ppf(uniform.clip(1e-6, 1 - 1e-6)), device=basis.device)
    flat = flat - weight @ flat
    noise = flat.reshape(n_points, n_strata, n_classes - 1) @ basis.T * math.sqrt(n_classes / (n_classes - 1))
    return noise.transpose(0, 1)


def sampling_variance_of_predictions(
    points: Points, some: Evidence, evidence: Evidence, slope: float, power: float, level_variance: Tensor
) -> Tensor:
    """Return the variance (K,) of P(Y) due to the sampling of the rows, given the labels (equation 20b).

    It includes twice the covariance with the error of the level, because the level was estimated from the same rows.
    """
    predicted = []
    for rows in (*some.rows, *some.blank):
        codes = rows.codes
        known = rows.at_rows(codes) if codes.shape[1] else codes.new_zeros(len(rows), 0)
        if points.depends_on_z and not codes.shape[1]:
            assert points.schema is not None
            known = points.schema.missing_codes(codes.device).expand(len(rows), -1)
        predicted.append((rows, points.average(log_ratio_of(rows.ratio), known, slope)))
    together = Stream(predicted)
    totals = together.total(
        lambda pair: tuple(pair[0].weighted(p).sum(0) for p in (pair[1], pair[1] * (1.0 - pair[1])))
    )
    mean, uncertainty = (total / some.total_weight for total in totals)
    plain, grouped = some.gram(together, lambda pair: (pair[0], pair[1] - mean))
    scattered = torch.diagonal(plain if grouped is None else torch.maximum(plain, grouped)) / some.total_weight
    variance: Tensor = scattered / evidence.total_weight + 2.0 * uncertainty * power * scattered * level_variance
    return variance


def contradiction(points: Points, marginals: Tensor, evidence: Evidence, slope: float, known: Known) -> Contradiction:
    """Compare a known prevalence with a posterior that was computed without it, given by `points` and `marginals`."""
    predicted = stratum_means(evidence, points, slope, known.strata)[0]
    at = torch.logit(predicted.clamp(1e-12, 1 - 1e-12))
    middle = torch.einsum("m,smk->sk", points.weight, at)
    variance = torch.einsum("m,smk->sk", points.weight, (at - middle[:, None]).square())
    whole = torch.logit(marginals.clamp(1e-6, 1 - 1e-6))
    if known.strata is None:
        middle, variance = whole.mean(0)[None], whole.var(0)[None]
    else:
        variance = variance + known.freedom**2
    away = (torch.logit(known.share) - middle).abs() / (variance + known.error.square()).sqrt().clamp_min(1e-12)
    worst = int(away.amax(1).argmax())
    p_value = float(2.0 * norm.sf(float(away[worst].max())) * len(away) * (away.shape[1] - 1))
    means = torch.einsum("m,smk->sk", points.weight, predicted)[worst]
    deviation = variance[worst].sqrt()
    low, high = (torch.sigmoid(middle[worst] + side * 1.96 * deviation) for side in (-1.0, 1.0))
    if known.strata is None:
        low, high = torch.quantile(marginals, marginals.new_tensor([0.025, 0.975]), dim=0)
        means = marginals.mean(0)
    return Contradiction(torch.stack([means, low, high]), known.share[worst], known.names[worst], min(1.0, p_value))
