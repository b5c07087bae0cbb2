"""Join new rows of a site with the rows kept of it, and estimate its prevalence again."""

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sitewise.adaptation import PrevalenceEstimate, estimate_prevalence
from sitewise.adaptation.families import solver_problem
from sitewise.adaptation.posterior.known import Known
from sitewise.confounders.schema import Encoded
from sitewise.confounders.variables import Notes
from sitewise.estimator.scoring.cached import FEATURE_ROWS
from sitewise.estimator.source.reading import evenly
from sitewise.estimator.without_z.predicting import rows_with_joint
from sitewise.prevalence import SitePrior
from sitewise.rows import ScoredRows

if TYPE_CHECKING:
    from sitewise.estimator.adapted import AdaptedClassifier
    from sitewise.estimator.model import SiteModel


def join_rows(first: ScoredRows, second: ScoredRows) -> ScoredRows:
    """The rows of both, earlier ones first, with features for at most as many rows as one site keeps."""
    both = first.join(second)
    if both.features is None or both.feature_rows is None:
        return both
    chosen = evenly(len(both.features), FEATURE_ROWS)
    return replace(both, features=both.features[chosen], feature_rows=both.feature_rows[chosen])


def estimate_rows(
    model: "SiteModel",
    rows: ScoredRows,
    *,
    prior: SitePrior | None,
    known: Known | None = None,
    notes: Notes | None = None,
) -> PrevalenceEstimate:
    """Estimate g from a site's rows with this prior; by maximum likelihood if there is none.

    A `known` prevalence enters the posterior as data. `notes` list what was unusual about z when it was read.
    """
    own, schema = rows.take(rows.supported), model.confounders_
    knows_z = notes is not None or (schema is not None and not bool(schema.missing(own.codes).all()))
    g = model.prevalence if knows_z else "constant"
    return estimate_prevalence(
        own.log_ratio.numpy(),
        Encoded(schema, own.codes, notes or Notes()) if schema is not None and knows_z else None,
        model=g,
        solver=model.solver if solver_problem(g, model.solver) is None else "auto",
        dropout=model.prevalence_dropout if g == "network" else 0.0,
        prior=prior,
        confounders=schema,
        y=None if own.y is None else own.y.numpy(),
        groups=None if own.groups is None else own.groups.numpy(),
        sample_weight=own.weight,
        known_prevalence=None if prior is None else model.where_supported(known, rows),
        random_state=model.random_state,
    )


def update(here: "AdaptedClassifier", X: Any, Z: Any, y: Any, groups: Any, weight: Any) -> "AdaptedClassifier":
    """The model adapted to the rows of `here` and to these rows."""
    model, known = here.model, here.known_prevalence
    inputs, more, notes = model.read_site(X, Z, y, groups, weight, "update")
    rows = join_rows(here.rows, rows_with_joint(model, here.joint, inputs, more))
    prior = None if here.policy == "rows" else model.prior_of(here.policy, here.level_scale)
    estimate = estimate_rows(model, rows, prior=prior, known=known)
    together = copy.deepcopy(here.estimate.notes)
    together.add(notes)
    own = {"confounder_columns": here.confounder_columns, "known_prevalence": known, "joint": here.joint}
    again = type(here)(model, replace(estimate, notes=together), rows, here.policy, here.level_scale, **own)
    again.threshold_ = here.threshold_
    return again
