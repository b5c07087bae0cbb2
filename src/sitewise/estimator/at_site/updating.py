"""More rows of a site that was adapted to: joined with those kept of it, and its prevalence estimated anew."""

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from sitewise.adaptation import PrevalenceEstimate, estimate_prevalence
from sitewise.arrays import Problems, read_groups, read_weight
from sitewise.confounders import Notes
from sitewise.estimator.at_site.kept import KeptRows
from sitewise.estimator.scoring.features import FEATURE_ROWS
from sitewise.estimator.source.reading import read_partial_labels
from sitewise.estimator.source.regions import in_regions, warn_kept
from sitewise.estimator.source.splitting import evenly
from sitewise.estimator.without_z.predicting import with_joint
from sitewise.prevalence import SitePrior

if TYPE_CHECKING:
    from sitewise.estimator.adapted import AdaptedClassifier
    from sitewise.estimator.model import SiteModel


def read_rows(model: "SiteModel", X: Any, Z: Any, y: Any, groups: Any, weight: Any) -> tuple[KeptRows, Notes]:
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
    rows = KeptRows(
        model._calibrated(raw_log_ratio, codes),
        codes,
        ~in_regions(codes, model._unsupported),
        None if weight is None else read_weight(weight, n_rows, problems),
        read_groups(groups, n_rows, problems),
        None if y is None else torch.tensor(read_partial_labels(y, model.classes_, n_rows)),
        features,
        feature_rows,
    )
    problems.raise_if_any()
    return rows, notes


def join_rows(first: KeptRows, second: KeptRows) -> KeptRows:
    """The rows of both, the earlier ones first.

    Groups are numbers without names, so a group of the one is none of the other; a row without one is its own.
    """
    n_first, n_rows = len(first), len(first) + len(second)

    def both(name: str, default: Tensor) -> Tensor | None:
        mine, theirs = getattr(first, name), getattr(second, name)
        if mine is None and theirs is None:
            return None
        return torch.cat([default[:n_first] if mine is None else mine, default[n_first:] if theirs is None else theirs])

    groups = None
    if first.groups is not None or second.groups is not None:
        mine, theirs = (torch.arange(len(part)) if part.groups is None else part.groups for part in (first, second))
        groups = torch.cat([mine, theirs + int(mine.max()) + 1])
    features = feature_rows = None
    if first.features is not None and second.features is not None:
        assert first.feature_rows is not None
        assert second.feature_rows is not None
        chosen = evenly(len(first.features) + len(second.features), FEATURE_ROWS)
        features = torch.cat([first.features, second.features])[chosen]
        feature_rows = torch.cat([first.feature_rows, second.feature_rows + n_first])[chosen]
    return KeptRows(
        torch.cat([first.log_ratio, second.log_ratio]),
        torch.cat([first.codes, second.codes]),
        torch.cat([first.supported, second.supported]),
        both("weight", torch.ones(n_rows, dtype=torch.float64)),
        groups,
        both("labels", torch.full((n_rows,), np.nan, dtype=torch.float64)),
        features,
        feature_rows,
        None if first.without_z is None or second.without_z is None else torch.cat([first.without_z, second.without_z]),
    )


def estimate_rows(here: "AdaptedClassifier", rows: KeptRows, *, prior: SitePrior | None) -> PrevalenceEstimate:
    """Estimate g from kept rows as `adapt` does, with this prior; by maximum likelihood where there is none."""
    model = here.model
    use, schema = rows.supported, model.confounders_
    codes = rows.codes[use]
    knows_z = schema is not None and not bool(schema.missing(codes).all())
    weight, groups, labels = (None if part is None else part[use] for part in (rows.weight, rows.groups, rows.labels))
    known = None if prior is None else here.known_prevalence  # it is data of a posterior
    return estimate_prevalence(
        rows.log_ratio[use].numpy(),
        schema.decode(codes) if schema is not None and knows_z else None,
        model=model.prevalence if knows_z else "constant",
        prior=prior,
        confounders=schema,
        y=None if labels is None else labels.numpy(),
        groups=None if groups is None else groups.numpy(),
        sample_weight=weight,
        known_prevalence=model._where_supported(known, rows.log_ratio, rows.codes, use, rows.weight),
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
