"""Adapt to rows in Dask partitions: g and the mean prediction are from all rows, all other results from a sample."""

from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from sitewise.adaptation import PrevalenceEstimate, estimate_prevalence
from sitewise.adaptation.answer import evidence_of, fit_of
from sitewise.adaptation.families import finish
from sitewise.adaptation.fit import Candidate, Finisher, Fit
from sitewise.adaptation.partitioned import stand_in
from sitewise.adaptation.posterior.known import Known
from sitewise.adaptation.posterior.points import Posterior
from sitewise.arrays import Problems, in_stretches, read_groups, read_weight
from sitewise.confounders import Confounders
from sitewise.estimator.source.reading import read_partial_labels
from sitewise.estimator.source.regions import Region, in_regions, region_counts, warn_kept
from sitewise.partitions import Partition, Partitions, as_partitions, compute
from sitewise.posterior import combine
from sitewise.prevalence import SitePrior
from sitewise.prevalence.base import Prevalence
from sitewise.rows import ScoredRows

if TYPE_CHECKING:
    from sitewise.estimator.model import SiteModel

SAMPLE_ROWS = 20_000  # approximate size of the sample from which checks and expected performance are computed
STRIDE = 2654435761  # a large odd number, with which the samples of partitions start at different rows
KNOWN = "known_prevalence is not supported with rows in Dask partitions: adapt to log-ratios of a sample in memory"


@dataclass(frozen=True)
class SiteReader:
    """The parts of a model that workers need: classes, the schema of z, and the regions where f is not identified."""

    classes: np.ndarray[Any, Any]
    schema: Confounders | None
    unsupported: tuple[Region, ...]

    def codes(self, rows: Partition) -> Tensor:
        """Return the codes of z (n, V) of a partition's rows."""
        if self.schema is None:
            return torch.zeros(rows.n_rows, 0, dtype=torch.float64)
        if rows.sample_confounder is None:
            return self.schema.missing_codes().expand(rows.n_rows, -1)
        return self.schema.encode(rows.sample_confounder, quiet=True)[0]

    def scored(self, rows: Partition) -> ScoredRows:
        """Return the rows of a partition as `ScoredRows`, the form in which a site keeps its rows."""
        problems, n_rows, codes = Problems(f"partition {rows.number}"), rows.n_rows, self.codes(rows)
        weight = None if rows.sample_weight is None else read_weight(rows.sample_weight, n_rows, Problems("adapt"))
        rows_here = ScoredRows(
            codes=codes,
            weight=weight,
            groups=read_groups(rows.groups, n_rows, problems),
            y=read_partial_labels(rows.y, self.classes, n_rows, problems),
            log_ratio=torch.tensor(np.asarray(rows.log_ratio, dtype=np.float64)),
            supported=~in_regions(codes, self.unsupported),
        )
        problems.raise_if_any()
        return rows_here

    def readied(self, rows: Partition) -> Partition:
        """Return the rows from which g is estimated, with labels as class numbers; f is identified at these rows."""
        if not rows.n_rows:
            return rows
        if rows.y is not None:
            problems = Problems(f"partition {rows.number}")
            labels = read_partial_labels(rows.y, self.classes, rows.n_rows, problems)
            problems.raise_if_any()
            rows = rows._replace(y=None if labels is None else labels.numpy())
        kept = (
            ~in_regions(self.codes(rows), self.unsupported).numpy() if self.unsupported else np.ones(rows.n_rows, bool)
        )
        return rows if bool(kept.all()) else rows.take(kept)


@dataclass(frozen=True)
class Predictor:
    """A function that returns P(y|x,z) of rows at the site.

    It predicts by the posterior or, without one, by the maximum likelihood estimate. Where f is not identified,
    predictions are as trained.
    """

    posterior: Posterior | None
    prevalence: Prevalence
    pooled: Prevalence
    unsupported: tuple[Region, ...]
    as_trained: bool

    def __call__(self, log_ratio: Tensor, codes: Tensor) -> Tensor:
        """Return P(y|x,z), (n, K), from calibrated log f and codes of z."""
        kept = in_regions(codes, self.unsupported)
        trained = combine(log_ratio, self.pooled.log_prob(codes)).exp() if self.as_trained or kept.any() else None
        if self.as_trained and trained is not None:
            return trained
        if self.posterior is None:
            probability = combine(log_ratio, self.prevalence.log_prob(codes)).exp()
        else:
            probability = self.posterior.points.average(log_ratio, codes, self.posterior.slope)
        return probability if trained is None else torch.where(kept[:, None], trained, probability)


@dataclass(frozen=True)
class Visit:
    """The result of one pass over a partition: a sample of its rows, the sum of its predictions, counts."""

    some: ScoredRows
    predicted: Tensor  # (K,) the weighted sum of the predictions
    weight: float
    n_rows: int
    kept: list[int]  # the number of rows in each region where f is not identified


def _visit(reader: SiteReader, predict: Predictor, step: int, rows: Partition) -> Visit | None:
    if not rows.n_rows:
        return None
    scored = reader.scored(rows)
    predicted = scored.weights @ in_stretches(predict, scored.log_ratio, scored.codes)
    chosen = torch.arange(rows.number * STRIDE % step, len(scored), step)
    kept = region_counts(scored.codes, reader.unsupported)
    return Visit(scored.take(chosen), predicted, float(scored.weights.sum()), len(scored), kept)


@dataclass(frozen=True)
class AdaptedPartitions:
    """A site in partitions: its g, a sample of its rows, their number, and their mean prediction."""

    estimate: PrevalenceEstimate
    rows: ScoredRows
    n_rows: int
    mean_probability: Tensor  # (K,)


def adapt_partitions(
    model: "SiteModel",
    log_ratio: Any,
    given: dict[str, Any],
    policy: str,
    level_scale: float | None,
    known: Known | None,
) -> AdaptedPartitions:
    """Estimate g from all rows; then predict all rows and draw a sample in one more pass."""
    partitions = _read_partitions(model, log_ratio, given, known)
    reader = SiteReader(model.classes_, model.confounders_, model.unsupported_)
    prior = None if policy == "rows" else model.prior_of(policy, level_scale)
    estimate = _estimate(model, partitions.changed(reader.readied), prior)
    fit, as_trained = fit_of(estimate), policy == "as trained"
    if policy == "auto" and given["y"] is None and level_scale is None and prior is not None:
        as_trained = not prior.trusted_rows and not prior.averaged  # the rule of `predicts_as_trained`
    predict = Predictor(fit.posterior, fit.prevalence, model.pooled_prevalence_, model.unsupported_, as_trained)
    step = -(-evidence_of(estimate).n_rows // SAMPLE_ROWS)
    visited = compute(partitions.tasks(partial(_visit, reader, predict, step)))
    visits: list[Visit] = [visit for visit in visited if visit is not None]
    if model.confounders_ is not None:
        counts = [sum(own) for own in zip(*(visit.kept for visit in visits), strict=True)]
        warn_kept(counts, model.unsupported_, model.confounders_, model.classes_.tolist())
    mean = torch.stack([visit.predicted for visit in visits]).sum(0) / sum(visit.weight for visit in visits)
    rows = reduce(ScoredRows.join, [visit.some for visit in visits if len(visit.some)])
    return AdaptedPartitions(_settled(estimate), rows, sum(visit.n_rows for visit in visits), mean)


def _read_partitions(model: "SiteModel", log_ratio: Any, given: dict[str, Any], known: Known | None) -> Partitions:
    problems = Problems("adapt")
    if known is not None:
        problems.add(KNOWN)
    if given["sample_confounder"] is not None and model.confounders_ is None:
        problems.add("sample_confounder is given, but the model was trained without confounders")
    partitions = as_partitions(log_ratio, problems, **given)
    problems.raise_if_any()
    assert partitions is not None
    return partitions


def _estimate(model: "SiteModel", partitions: Partitions, prior: SitePrior | None) -> PrevalenceEstimate:
    return estimate_prevalence(
        partitions,
        model=model.prevalence if partitions.has_z else "constant",
        prior=prior,
        confounders=model.confounders_,
        random_state=model.random_state,
    )


def _settled(estimate: PrevalenceEstimate) -> PrevalenceEstimate:
    """Return the same estimate without its partitions: diagnostics are computed now, and a sample replaces the rows."""
    fit, evidence = fit_of(estimate), stand_in(evidence_of(estimate), SAMPLE_ROWS)

    def with_diagnostics(fit: Fit) -> Fit:
        post_fit = fit.post_fit if fit.posterior is not None else fit.diagnostics
        return replace(fit, post_fit=post_fit, refit=None)

    candidates = tuple(
        Candidate(own, candidate.weight, Finisher(own, evidence, finish))
        for own, candidate in ((with_diagnostics(candidate.fit), candidate) for candidate in fit.candidates)
    )
    return replace(estimate, _fit=replace(with_diagnostics(fit), candidates=candidates), _evidence=evidence)
