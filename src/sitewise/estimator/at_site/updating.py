"""Join new rows of a site with its earlier rows, and estimate its prevalence again."""

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sitewise.estimator.scoring.cached import FEATURE_ROWS
from sitewise.estimator.source.reading import evenly
from sitewise.estimator.without_z.predicting import rows_with_joint
from sitewise.rows import ScoredRows

if TYPE_CHECKING:
    from sitewise.estimator.adapted import AdaptedClassifier


def join_rows(first: ScoredRows, second: ScoredRows) -> ScoredRows:
    """Return the rows of both in one `ScoredRows`; features of at most `FEATURE_ROWS` rows are kept."""
    both = first.join(second)
    if both.features is None or both.feature_rows is None:
        return both
    chosen = evenly(len(both.features), FEATURE_ROWS)
    return replace(both, features=both.features[chosen], feature_rows=both.feature_rows[chosen])


def update(here: "AdaptedClassifier", X: Any, Z: Any, y: Any, groups: Any, weight: Any) -> "AdaptedClassifier":
    """Return the model adapted to the rows of `here` and to these new rows."""
    model, known = here.model, here.known_prevalence
    inputs, more, notes = model.read_site(X, Z, y, groups, weight, "update")
    rows = join_rows(here.rows, rows_with_joint(model, here.joint, inputs, more))
    prior = None if here.policy == "rows" else model.prior_of(here.policy, here.level_scale)
    estimate = model.estimate_rows(rows, prior=prior, known=known)
    together = copy.deepcopy(here.estimate.notes)
    together.add(notes)
    own = {"confounder_columns": here.confounder_columns, "known_prevalence": known, "joint": here.joint}
    again = type(here)(model, replace(estimate, notes=together), rows, here.policy, here.level_scale, **own)
    again.threshold_ = here.threshold_
    return again
