"""Evaluate an adapted model with labels of its site, and compare it with the model as trained and recalibrated."""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from sitewise.estimator.at_site.label_draws import drawn_rows
from sitewise.estimator.source.regions import in_regions
from sitewise.estimator.without_z.predicting import rows_with_joint
from sitewise.inputs import take_inputs
from sitewise.performance import Evaluation
from sitewise.performance.evaluated import compare_models
from sitewise.performance.expected import summarize
from sitewise.performance.recalibration import RECALIBRATIONS, recalibrate
from sitewise.posterior import combine
from sitewise.rows import ScoredRows

if TYPE_CHECKING:
    from sitewise.estimator.adapted import AdaptedClassifier

FEWEST = 2  # the smallest number of labeled rows for an evaluation
NO_LABELS = "evaluate: at least two rows with labels are needed, got {count}"


def evaluate_site(
    here: "AdaptedClassifier",
    X: Any,
    y: Any,
    sample_confounder: Any,
    groups: Any,
    sample_weight: Any,
    level: float,
    n_resamples: int,
) -> Evaluation:
    """Evaluate the adapted model, the model as trained, and the model as trained after recalibration with the labels.

    See `AdaptedClassifier.evaluate`.
    """
    model = here.model
    inputs = model.inputs_of(X)
    given, _ = model.read_rows(len(inputs), sample_confounder, y, groups, sample_weight, "evaluate")
    if not 0 < level < 1:
        raise ValueError(f"evaluate: level must lie between 0 and 1, got {level}")
    labels = torch.full((len(given),), torch.nan) if given.y is None else given.y
    labeled = (~labels.isnan()).nonzero().flatten()
    if len(labeled) < FEWEST:
        raise ValueError(NO_LABELS.format(count=len(labeled)))
    inputs, rows, known = take_inputs(inputs, labeled), given.take(labeled), labels[labeled].long().numpy()
    units = None if rows.groups is None else torch.unique(rows.groups, return_inverse=True)[1]
    plain = model.calibrated_log_ratio(inputs, rows.codes)
    kept = rows.extended(
        ScoredRows,
        y=None,
        log_ratio=plain,
        supported=~in_regions(rows.codes, model.unsupported_),
        weight=rows.weights,
        groups=units,
    )
    kept = rows_with_joint(model, here.joint_in_use, inputs, kept)
    expected = summarize(drawn_rows(here, kept), tuple(here.classes_.tolist()), here.threshold_, level)
    numbers, weights = np.arange(len(rows)) if units is None else units.numpy(), rows.weights.numpy()
    as_trained = combine(plain, model.pooled_prevalence_.log_prob(rows.codes)).exp().numpy()
    probabilities = {"adapted": here.probability_of(kept.log_ratio, kept.codes).numpy(), "as trained": as_trained}
    for how in RECALIBRATIONS:
        probabilities[f"recalibrated: {how}"] = recalibrate(as_trained, known, how, weight=weights, units=numbers)
    return compare_models(
        probabilities,
        known,
        expected,
        weight=weights,
        units=numbers,
        threshold=here.threshold_,
        level=level,
        n_resamples=n_resamples,
    )
