"""More rows of a site that was adapted to: joined with those kept of it, and its prevalence estimated anew."""

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from sitewise.adaptation import PrevalenceEstimate, estimate_prevalence
from sitewise.arrays import Problems, read_groups, read_weight
from sitewise.confounders import Notes
from sitewise.estimator.scoring.features import FEATURE_ROWS
from sitewise.estimator.source.reading import read_partial_labels
from sitewise.estimator.source.regions import in_regions, warn_kept
from sitewise.estimator.source.splitting import evenly
from sitewise.estimator.without_z.predicting import with_joint
from sitewise.prevalence import SitePrior
from sitewise.rows import ScoredRows

if TYPE_CHECKING:
    from sitewise.estimator.adapted import AdaptedClassifier
    from sitewise.estimator.model import SiteModel


def read_rows(model: "SiteModel", X: Any, Z: Any, y: Any, groups: Any, weight: Any) -> tuple[ScoredRows, Notes]:
    """Score rows, and keep of them what an adapted model keeps; also say what was odd about Z."""
    problems = Problems("update")
    inputs = model._read(X)
    n_rows = len(inputs)
    codes, notes = model._quiet_codes(Z, n_rows), Notes()
    if Z is not None and model.confounders_ is not None:
        notes = model.confounders_.encode(Z, quiet=True)[1]
        notes.warn(stacklevel=4)
        warn_kept(codes, model._unsupported, model.confounders_, model.classes_.tolist())
    raw_log_ratio, features, feature_rows = model._score(inputs, codes)
    rows = ScoredRows(
        log_ratio=model._calibrated(raw_log_ratio, codes),
        codes=codes,
        supported=~in_regions(codes, model._unsupported),
        weight=None if weight is None else read_weight(weight, n_rows, problems),
        groups=read_groups(groups, n_rows, problems),
        y=None if y is None else torch.tensor(read_partial_labels(y, model.classes_, n_rows)),
        features=features,
        feature_rows=feature_rows,
    )
    problems.raise_if_any()
    return rows, notes


def join_rows(first: ScoredRows, second: ScoredRows) -> ScoredRows:
    """The rows of both, the earlier ones first, with the features of no more than are kept of one site."""
    both = first.join(second)
    if both.features is None or both.feature_rows is None:
        return both
    chosen = evenly(len(both.features), FEATURE_ROWS)
    return replace(both, features=both.features[chosen], feature_rows=both.feature_rows[chosen])


def estimate_rows(here: "AdaptedClassifier", rows: ScoredRows, *, prior: SitePrior | None) -> PrevalenceEstimate:
    """Estimate g from kept rows as `adapt` does, with this prior; by maximum likelihood where there is none."""
    model = here.model
    own, schema = rows.take(rows.supported), model.confounders_
    knows_z = schema is not None and not bool(schema.missing(own.codes).all())
    known = None if prior is None else here.known_prevalence  # it is data of a posterior
    return estimate_prevalence(
        own.log_ratio.numpy(),
        schema.decode(own.codes) if schema is not None and knows_z else None,
        model=model.prevalence if knows_z else "constant",
        prior=prior,
        confounders=schema,
        y=None if own.y is None else own.y.numpy(),
        groups=None if own.groups is None else own.groups.numpy(),
        sample_weight=own.weight,
        known_prevalence=model._where_supported(known, rows),
        random_state=model.random_state,
    )


def update(here: "AdaptedClassifier", X: Any, Z: Any, y: Any, groups: Any, weight: Any) -> "AdaptedClassifier":
    """The model adapted to the rows of `here` and to these."""
    more, notes = read_rows(here.model, X, Z, y, groups, weight)
    if here.joint is not None:
        log_ratio = with_joint(here.model, here.joint, here.model._read(X), more.codes, more.log_ratio)
        more = replace(more, log_ratio=log_ratio, without_z=more.log_ratio)
    rows = join_rows(here.rows, more)
    prior = here.model._prior_of(here.policy, here.level_scale)
    estimate = estimate_rows(here, rows, prior=None if here.policy == "rows" else prior)
    together = copy.deepcopy(here.estimate.notes)
    together.add(notes)
    settings = (here.policy, here.level_scale, here.confounder_columns)
    again = type(here)(here.model, replace(estimate, notes=together), rows, *settings)
    again.threshold_, again.joint, again.known_prevalence = here.threshold_, here.joint, here.known_prevalence
    return again
