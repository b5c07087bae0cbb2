"""Compute the posterior of a site's g from its rows and a prior, and select the points that represent it."""

import math
from dataclasses import dataclass, replace

import torch
from scipy.stats import norm, qmc
from torch import Tensor

from sitewise.adaptation.evidence import Evidence
from sitewise.adaptation.fit import Fit, no_curvature
from sitewise.adaptation.posterior.deviation import Deviation, fit_deviation
from sitewise.adaptation.posterior.known import Known, stratum_means
from sitewise.adaptation.posterior.known_points import (
    contradiction,
    copy_for_slopes,
    drawn_slopes,
    normal_noise,
    sampling_variance_of_predictions,
    settle,
    stepped,
)
from sitewise.adaptation.posterior.labels import KnownLabels, LabelLikelihood, read_label_likelihood
from sitewise.adaptation.posterior.levels import LevelPrior, Weighed, candidates, locate, weigh_levels
from sitewise.adaptation.posterior.likelihood import Sums, evaluate_points, subset
from sitewise.adaptation.posterior.points import Points, Posterior, shape_of
from sitewise.adaptation.rows import Rows, scores
from sitewise.posterior import contrasts
from sitewise.prevalence import SitePrior
from sitewise.prevalence.base import ConstantPrevalence, Prevalence, finite, is_constant

KEPT = 64  # number of points that are kept
MARGINALS = 400  # number of draws of P(Y) for intervals
TAIL = 3.2  # standard deviations up to which the edges of strata of P(Y) are evenly spaced
ENOUGH = 1e-12  # information per row below which rows are not informative
ENOUGH_ROWS = 2**14  # largest number of rows for a first fit of the deviation, and for P(Y) at all points


@dataclass(frozen=True)
class RefitLevel:
    """A function that refits a posterior, by one Newton step of the level, after a change of weights or of f."""

    points: Points
    power: float  # exponent of the rows' likelihood
    score: Tensor  # (K,) `level_score` of the rows to which the posterior was fitted

    def __call__(self, drawn: Evidence) -> Prevalence:
        """Return the refitted posterior."""
        sums = evaluate_points(drawn, self.points, slope=1.0)
        score = level_score(self.points, sums, self.power * drawn.total_weight)
        # Rows inform about P(Y), not about the level alone, which also varies with the deviation.
        centred = self.points.log_marginal - self.points.log_marginal.mean(dim=1, keepdim=True)
        away = centred - self.points.weight @ centred
        covariance = (away * self.points.weight[:, None]).T @ away
        move = covariance @ (score - self.score)
        moved = replace(self.points, level=self.points.level + move)
        moved = replace(moved, log_marginal=torch.log_softmax(moved.log_marginal + move, dim=1))
        if not moved.depends_on_z:
            return moved
        return replace(moved, log_marginal=finite(evaluate_points(drawn, moved).mean.log()))


def level_score(points: Points, sums: Sums, weight: float) -> Tensor:
    """Return the score of the level, (K,): the derivative of the log-likelihood, averaged over the points (7a)."""
    return weight * (points.weight @ (sums.predicted - sums.mean))


def row_scores(rows: Rows, g: Prevalence, basis: Tensor) -> Tensor:
    """Return the derivative of every row's log-likelihood in the level's contrasts, (n, K-1) (equation 7a)."""
    at = g.log_prob(rows.codes).exp()
    return ((scores(rows, at) - 1.0) * rows.at_rows(at)) @ basis


def design_effect(evidence: Evidence, g: Prevalence) -> float:
    """Return the design effect of groups, at least 1: the level score's variance relative to independent rows."""
    if evidence.groups is None or not evidence.groups.factor:
        return 1.0
    basis = contrasts(evidence.n_classes, evidence.device)
    site = evidence if isinstance(g, Points) and g.depends_on_z else evidence.without_confounders()
    plain, grouped = site.gram(site.rows, lambda rows: (rows, row_scores(rows, g, basis)))
    if grouped is None or float(torch.diagonal(plain).max()) < ENOUGH:
        return 1.0
    return max(1.0, float((torch.linalg.pinv(plain, hermitian=True) * grouped).sum()) / len(plain))


def fit_posterior(
    evidence: Evidence, prior: SitePrior, labeled: KnownLabels | None = None, known: Known | None = None
) -> Fit:
    """Compute the posterior of a site's g (section 18 of docs/maths.md); return a fit whose g is a `Points`.

    `evidence` has all rows, without labels. `labeled` has the labeled rows once more, with their labels. `known` is a
    known prevalence.
    """
    template = read_source(evidence, prior.prevalence)
    as_trained = candidates(template, template.factor, template.level)
    n_rows = evidence.total_weight
    # equation 18c: the design effect counts groups
    power = 1.0 / (design_effect(evidence, as_trained) - 1.0 + 1.0 / max(prior.tempering(n_rows), 1e-300))
    power = power if prior.tempering(n_rows) > 0.0 else 0.0
    factor_scale = prior.factor_scale if has_shape(template) else 0.0
    located = locate(template, evidence, prior.level_scale, factor_scale, prior.slope)
    trusted = evidence if power else None
    labels = None if labeled is None else read_label_likelihood(labeled, as_trained, prior)
    problem = Problem(template, evidence, trusted, labels, known, located, power, prior.level_error, prior.slope)
    depends = template.schema is not None and (trusted is not None or labels is not None)
    deviation = None
    if depends:  # rough estimates of level and factor are enough to fit the deviation
        few = replace(problem, unlabeled=None if trusted is None else subset(trusted, ENOUGH_ROWS))
        weighed = few.weigh(None)
        share = torch.softmax(weighed.log_weight, dim=0)
        deviation = fit_deviation(
            template, evidence, power, share @ weighed.factor, share @ weighed.level, prior.deviation, labels
        )
    keep = keep_points if labels is None and known is None else keep_known_points
    posterior, score = keep(problem, problem.weigh(deviation), deviation)
    if known is not None:
        without = fit_posterior(evidence, prior, labeled).posterior
        assert without is not None
        against = contradiction(without.points, without.marginals, evidence, prior.slope, known)
        posterior = replace(posterior, against=against)
    return _as_fit(evidence, posterior, score, deviation)


def read_source(evidence: Evidence, source: Prevalence) -> Points:
    """Return a `Points` with a single point, the source's g."""
    schema = evidence.schema
    if schema is None or not evidence.seen_weight:
        nothing = torch.zeros(1, 0, dtype=torch.float64, device=evidence.device)
        own = getattr(source, "schema", None)
        at = nothing if own is None else own.missing_codes(evidence.device)[None]
        source, schema = ConstantPrevalence(finite(source.log_prob(at)[0])), None
        centre = shape_of(source, nothing)[0]
    else:
        centre = evidence.mean(lambda codes: shape_of(source, codes))
    one = centre.new_ones(1)
    return Points(source, centre, one, centre[None], None, one, torch.log_softmax(centre, dim=0)[None], schema)


def has_shape(template: Points) -> bool:
    """Return whether the source's g depends on z at this site."""
    return template.schema is not None and not is_constant(template.source)


@dataclass(frozen=True)
class Problem:
    """The data and settings for estimating level and factor."""

    template: Points  # the source's g
    rows: Evidence  # all rows
    unlabeled: Evidence | None  # all rows, or None if they are not trusted
    labels: LabelLikelihood | None
    known: Known | None
    prior: LevelPrior
    power: float  # exponent of the rows' likelihood
    error: float  # standard deviation of the error of an estimated level
    slope: float  # factor on log f in predictions

    def points(self, factor: Tensor, level: Tensor, deviation: Deviation | None) -> Points:
        """Return M points of g at factors (M,) and levels (M, K), with the mean deviation at each, if there is one."""
        at = candidates(self.template, factor, level)
        return at if deviation is None else deviation.put_on(at)

    def weigh(self, deviation: Deviation | None) -> Weighed:
        """Return points of level and factor, and their weights (equation 18i) given the deviation, if there is one."""

        def unlabeled(rows: Evidence, factor: Tensor, level: Tensor) -> Tensor:
            log_likelihood = (
                self.power * evaluate_points(rows, self.points(factor, level, deviation), means=False).log_likelihood
            )
            return log_likelihood if deviation is None else log_likelihood + deviation.log_prior(factor, level)

        def known_log_likelihood(factor: Tensor, level: Tensor) -> Tensor:
            log_likelihood = torch.zeros_like(factor)
            if self.labels is None and self.known is None:
                return log_likelihood
            at = self.points(factor, level, deviation)
            if self.labels is not None:
                log_likelihood = log_likelihood + self.labels(at)
            if self.known is not None:
                log_likelihood = log_likelihood + self.known.weigh(self.rows, at, self.slope)
            if deviation is not None and self.unlabeled is None:
                log_likelihood = log_likelihood + deviation.log_prior(factor, level)
            return log_likelihood

        return weigh_levels(self.unlabeled, self.prior, unlabeled, known_log_likelihood, self.error)


def keep_points(problem: Problem, weighed: Weighed, deviation: Deviation | None) -> tuple[Posterior, Tensor]:
    """Return the posterior, with 64 selected points and draws of P(Y) for intervals, and the score of its level, (K,).

    The score (see `level_score`) is kept for `RefitLevel`.
    """
    evidence, slope = problem.rows, problem.slope
    fine = problem.points(weighed.factor, weighed.level, deviation)
    weight, prior_weight = (torch.softmax(part, dim=0) for part in (weighed.log_weight, weighed.log_prior))
    some = subset(evidence, ENOUGH_ROWS)
    sums = evaluate_points(some, fine, slope=slope)
    kept, share = choose_points(sums.mean, weight, weighed.factor)
    points = _drawn_points(problem, weighed, deviation, kept, share)
    own = evaluate_points(evidence, points, slope=slope)
    points = replace(points, log_marginal=finite(own.mean.log()))
    wanted = weight @ sums.predicted
    if weighed.covers_prior:  # without information, the mean prediction is then that of the model as trained (18d)
        as_trained = candidates(problem.template, fine.factor.new_ones(1), problem.template.centre[None])
        trained = evaluate_points(evidence, as_trained, slope=1.0).predicted[0]
        wanted = (wanted + trained - prior_weight @ sums.predicted).clamp_min(1e-12)
    basis = contrasts(evidence.n_classes, evidence.device)
    predicted, wanted = own.predicted @ basis, (wanted / wanted.sum()) @ basis
    middle = weight @ weighed.factor
    shape = [torch.stack([(at - middle) ** power for power in (1, 2)], dim=1) for at in (points.factor, weighed.factor)]
    exact = tilt(share, torch.cat([predicted, shape[0]], dim=1), torch.cat([wanted, weight @ shape[1]]))
    if exact is None:
        exact = tilt(share, predicted, wanted)
    points = replace(points, weight=share if exact is None else exact)
    extra = share @ (own.mean - sums.mean[kept]) ** 2 + sampling_variance(points, some, evidence)
    shift = share @ own.mean - weight @ sums.mean if some.n_rows < evidence.n_rows else 0.0
    marginals = spread_marginals(sums.mean + shift, weight, extra)
    score = level_score(points, own, problem.power * evidence.total_weight)
    return Posterior(points, marginals, slope, problem.power), score


def keep_known_points(problem: Problem, weighed: Weighed, deviation: Deviation | None) -> tuple[Posterior, Tensor]:
    """Do the same as `keep_points` for a site with labels or a known prevalence.

    P(Y) is then the mean of the predictions (section 20 of docs/maths.md).
    """
    evidence, slope, labels, known = problem.rows, problem.slope, problem.labels, problem.known
    fine = problem.points(weighed.factor, weighed.level, deviation)
    weight = torch.softmax(weighed.log_weight, dim=0)
    some = subset(evidence, ENOUGH_ROWS)
    at = fine if labels is None else labels.with_slopes(fine, labels.slopes_at(fine, torch.full_like(weight, 0.5)))
    middle = evaluate_points(some, at, slope=slope).predicted
    copies, own_weight = (at, weight) if labels is None else copy_for_slopes(fine, labels, weight)
    predicted = middle if labels is None else evaluate_points(some, copies, slope=slope).predicted
    kept, share = choose_points(middle, weight, weighed.factor)
    points = _drawn_points(problem, weighed, deviation, kept, share)
    points = replace(points, log_marginal=finite(evaluate_points(evidence, points).mean.log()))
    points = points if labels is None else drawn_slopes(points, labels)
    own = stratum_means(evidence, points, slope, None if known is None else known.strata)[0]
    if known is not None:
        noise = normal_noise(len(points), len(own), problem.prior.basis, share)
        own = known.pulled(own, noise)
        if known.strata is not None:
            points = stepped(points, evidence, slope, known, own)
            own = stratum_means(evidence, points, slope, None)[0]
    points = settle(points, evidence, slope, own[0])
    if known is None:
        basis = contrasts(evidence.n_classes, evidence.device)
        exact = tilt(share, own[0] @ basis, own_weight @ predicted @ basis)
        points = replace(points, weight=share if exact is None else exact)
    n_classes = points.level.shape[1]
    one_of_many = (n_classes / (n_classes - 1)) ** 2  # from a centred level to the log-odds of a class
    level_variance = one_of_many * (weight @ (weighed.level - weight @ weighed.level).square())
    extra = sampling_variance_of_predictions(points, some, evidence, slope, problem.power, level_variance)
    if known is not None:
        extra = extra * (0.0 if known.strata is None else (1.0 - _covered(evidence, known)) ** 2)
        marginals = spread_marginals(own[0], points.weight, extra)
    else:
        marginals = spread_marginals(predicted, own_weight, extra)
    score = level_score(points, evaluate_points(evidence, points, slope=slope), problem.power * evidence.total_weight)
    label_weight = 0.0 if labels is None else float(labels.rows.weight.sum())
    return Posterior(points, marginals, slope, problem.power, label_weight), score


def _covered(evidence: Evidence, known: Known) -> float:
    """Return the share of the site's rows in strata with a known prevalence."""
    assert known.strata is not None
    strata = known.strata
    (total,) = evidence.rows.total(lambda rows: (rows.cell_weight @ strata.holds(rows.codes).sum(1),))
    return float(total) / evidence.total_weight


def choose_points(mean: Tensor, weight: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
    """Return the indices and weights of the points to keep: one from each stratum of P(Y), (KEPT,) each.

    P(Y) of the M points is `mean` (M, K). The strata are ranges of P(Y) of the class with the largest variance, and are
    smaller in the tails. Within a stratum, the point at one quantile of the factor (M,) is taken. The quantiles follow
    van der Corput's low-discrepancy sequence.
    """
    centre = weight @ mean
    variance = weight @ (mean - centre) ** 2
    tied = variance >= variance.max() * (1.0 - 1e-9)
    order = torch.argsort(mean[:, int(torch.where(tied, centre, 2.0).argmin())], stable=True)
    cumulative, factor = torch.cumsum(weight[order], dim=0), factor[order]
    edges = torch.tensor(norm.cdf(torch.linspace(-TAIL, TAIL, KEPT + 1, dtype=torch.float64)), device=weight.device)
    edges[0], edges[-1] = 0.0, cumulative[-1]
    if bool((factor == factor[0]).all()):
        place = torch.searchsorted(cumulative, (edges[1:] + edges[:-1]) / 2.0)
    else:
        ends = torch.searchsorted(cumulative, edges).clamp_max(len(order) - 1)
        quantiles = qmc.Halton(1, scramble=False).random(KEPT)[:, 0] + 0.5 / KEPT
        place = torch.stack(
            [
                _at_quantile(cumulative, factor, int(ends[i]), int(ends[i + 1]) + 1, edges[i : i + 2], quantiles[i])
                for i in range(KEPT)
            ]
        )
    return order[place.clamp_max(len(order) - 1)], edges[1:] - edges[:-1]


def _at_quantile(cumulative: Tensor, factor: Tensor, first: int, last: int, edges: Tensor, quantile: float) -> Tensor:
    """Return the index, from `first` to `last`, of the point at a quantile of the factor.

    The weight of a point is the part of its mass that lies between the two edges of the stratum.
    """
    bounds = torch.cat([edges[:1], cumulative[first:last]]).clamp(edges[0], edges[1])
    by_factor = torch.argsort(factor[first:last], stable=True)
    mass = torch.cumsum(bounds.diff()[by_factor], dim=0)
    return first + by_factor[torch.searchsorted(mass, quantile * mass[-1]).clamp_max(len(mass) - 1)]


def tilt(weight: Tensor, values: Tensor, wanted: Tensor) -> Tensor | None:
    """Return weights of M points, (M,), at which C values (M, C) have the wanted means; None if this is impossible.

    They are the given weights times an exponential function of the values (exponential tilting).
    """
    away = values - wanted
    scale = away.abs().amax(0).clamp_min(1e-300)
    away = away / scale
    at = away.new_zeros(away.shape[1])
    for _ in range(50):
        share = torch.softmax(weight.log() + away @ at, dim=0)
        off = share @ away
        if float(off.abs().max()) < 1e-14:
            break
        covariance = (away * share[:, None]).T @ away - off[:, None] * off
        step = torch.linalg.solve(covariance + 1e-14 * torch.eye(len(at)).to(covariance), -off)
        at = at + step.clamp(-2.0, 2.0)
    return share if bool(torch.isfinite(share).all()) and float(at.abs().max()) < 30.0 else None


def spread_marginals(mean: Tensor, weight: Tensor, extra: Tensor) -> Tensor:
    """Return R equally weighted draws of P(Y), (R, K), from its values at M weighted points, `mean` (M, K).

    The draws are stretched around their mean so that their variance increases by `extra` (K,).
    """
    centre = weight @ mean
    variance = weight @ (mean - centre) ** 2
    if mean.shape[1] == 2:
        order = torch.argsort(mean[:, 1], stable=True)
        ordered, share = mean[order, 1], weight[order]
        middle = torch.cumsum(share, dim=0) - share / 2.0
        at = (torch.arange(MARGINALS, dtype=torch.float64, device=mean.device) + 0.5) / MARGINALS
        after = torch.searchsorted(middle, at).clamp(1, len(ordered) - 1)
        part = ((at - middle[after - 1]) / (middle[after] - middle[after - 1]).clamp_min(1e-300)).clamp(0.0, 1.0)
        second = ordered[after - 1] + part * (ordered[after] - ordered[after - 1])
        marginals = torch.stack([1.0 - second, second], dim=1)
    else:
        order = torch.argsort(mean[:, int(variance.argmax())], stable=True)
        at = (torch.arange(MARGINALS, dtype=torch.float64, device=mean.device) + 0.5) / MARGINALS
        marginals = mean[order[torch.searchsorted(torch.cumsum(weight[order], 0), at).clamp_max(len(order) - 1)]]
    stretch = (1.0 + extra / variance.clamp_min(1e-300)).sqrt().clamp_max(1e6)
    return (centre + (marginals - centre) * stretch).clamp(0.0, 1.0)


def sampling_variance(points: Points, some: Evidence, evidence: Evidence) -> Tensor:
    """Return the variance (K,) of P(Y) due to the sampling of z; without groups it is estimated from some rows."""
    if not points.depends_on_z:
        return torch.zeros_like(points.centre)
    mean, rows = points.mean_log_marginal.exp(), some if evidence.groups is None else evidence
    plain, grouped = rows.gram(rows.rows, lambda part: (part, part.at_rows(points.log_prob(part.codes).exp() - mean)))
    variance = torch.diagonal(plain if grouped is None else torch.maximum(plain, grouped))
    return variance / (rows.seen_weight * evidence.seen_weight)


def _drawn_points(
    problem: Problem, weighed: Weighed, deviation: Deviation | None, kept: Tensor, share: Tensor
) -> Points:
    """Return the kept points with their weights, each with a draw of its deviation."""
    points = replace(candidates(problem.template, weighed.factor[kept], weighed.level[kept]), weight=share)
    if deviation is None:
        return points
    drawn = _drawn(deviation, points, problem.prior.basis)
    return replace(points, level=deviation.without_level(points.level, drawn), deviation=drawn, along=None)


def _drawn(deviation: Deviation, points: Points, basis: Tensor) -> Tensor:
    """Draw the coefficients of D features for each of the M kept points around their means, (M, D, K)."""
    n_points, n_classes = len(points), points.level.shape[1]
    width = n_classes - 1
    n_features = len(deviation.mean) // width
    uniform = qmc.Sobol(n_features * width, seed=0).random(KEPT // 2)
    half = torch.tensor(norm.ppf(uniform.clip(1e-6, 1 - 1e-6)), device=basis.device)
    noise = torch.stack([half, -half], dim=1).flatten(
        0, 1
    )  # neighbours in P(Y) have opposite signs, so that errors cancel
    noise = noise - points.weight @ noise
    in_own_order = noise.reshape(n_points, n_features, width) @ basis.T @ contrasts(n_classes, basis.device)
    values, vectors = torch.linalg.eigh(deviation.covariance)
    root = vectors @ torch.diag(values.clamp_min(0.0).sqrt()) @ vectors.T
    flat = deviation.flat(points.factor, points.level) + in_own_order.reshape(n_points, -1) @ root
    return deviation.coefficients(flat, n_classes)


def _as_fit(evidence: Evidence, posterior: Posterior, score: Tensor, deviation: Deviation | None) -> Fit:
    points = posterior.points
    log_likelihood = float(evaluate_points(evidence, _at_mean(points), means=False).log_likelihood[0])
    return Fit(
        points,
        log_likelihood=log_likelihood,
        converged=True if deviation is None else deviation.converged,
        gap=0.0 if deviation is None else deviation.gap,
        tolerance=math.inf,
        n_iter=0 if deviation is None else deviation.n_iter,
        trace=[log_likelihood],
        strength=math.nan,
        post_fit=no_curvature,
        refit=RefitLevel(points, posterior.power, score),
        posterior=posterior,
    )


def _at_mean(points: Points) -> Points:
    """Return a `Points` with a single point, at the mean of all points."""
    weight = points.weight
    return replace(
        points,
        factor=(weight @ points.factor)[None],
        level=(weight @ points.level)[None],
        deviation=None if points.deviation is None else torch.einsum("m,mdk->dk", weight, points.deviation)[None],
        weight=torch.ones_like(weight[:1]),
        log_marginal=points.mean_log_marginal[None],
    )
