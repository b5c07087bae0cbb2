"""An adapted model judged by labels of its site, beside the model as trained and recalibrations of it."""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from sitewise.arrays import Problems, read_groups, read_weight
from sitewise.estimator.at_site.believing import believed_rows
from sitewise.estimator.source.reading import read_partial_labels
from sitewise.estimator.source.regions import in_regions
from sitewise.estimator.without_z.predicting import with_joint
from sitewise.inputs import take_inputs
from sitewise.performance import RECALIBRATIONS, Evaluation, compare_models, recalibrate, summarize
from sitewise.posterior import combine
from sitewise.rows import ScoredRows

if TYPE_CHECKING:
    from sitewise.estimator.adapted import AdaptedClassifier

FEWEST = 2  # labeled rows, to say anything
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
    """Judge what predicts here, the model as trained, and the latter recalibrated by the labels."""
    model = here.model
    inputs = model._read(X)
    n_rows = len(inputs)
    problems = Problems("evaluate")
    labels = read_partial_labels(y, here.classes_, n_rows)
    weight = read_weight(sample_weight, n_rows, problems)
    units = read_groups(groups, n_rows, problems)
    if not 0 < level < 1:
        problems.add(f"level must lie between 0 and 1, got {level}")
    problems.raise_if_any()
    codes = model._codes(sample_confounder, n_rows)
    rows = torch.tensor(np.flatnonzero(~np.isnan(labels)))
    if len(rows) < FEWEST:
        raise ValueError(NO_LABELS.format(count=len(rows)))
    inputs, codes, weight = take_inputs(inputs, rows), codes[rows], weight[rows]
    units = None if units is None else torch.unique(units[rows], return_inverse=True)[1]
    known = labels[rows.numpy()].astype(np.int64)
    plain = model._log_ratio(inputs, codes)
    joint = None if here._stays else here.joint
    log_ratio = with_joint(model, joint, inputs, codes, plain)
    as_trained = combine(plain, model._pooled_prevalence.log_prob(codes)).exp().numpy()
    supported = ~in_regions(codes, model._unsupported)
    kept = ScoredRows(log_ratio=log_ratio, codes=codes, supported=supported, weight=weight, groups=units)
    expected = summarize(believed_rows(here, kept), tuple(here.classes_.tolist()), here.threshold_, level)
    numbers = np.arange(len(rows)) if units is None else units.numpy()
    weights = weight.numpy()
    probabilities = {"adapted": here._probability(log_ratio, codes).numpy(), "as trained": as_trained}
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
