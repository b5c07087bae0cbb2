"""Prediction sets at a site: held-out source rows weighted to its P(y, z)."""

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from sitewise.diagnosis.matching import balance, z_features
from sitewise.estimator.without_z.predicting import lacking
from sitewise.performance import PredictionSets, score_thresholds
from sitewise.rows import HeldOut

if TYPE_CHECKING:
    from sitewise.estimator.adapted import AdaptedClassifier

NO_ROWS = "predict_set: no labeled rows were held out in training; fit with validation, or calibrate by a site's rows"


def predict_sets(
    here: "AdaptedClassifier", probability: Tensor, codes: Tensor, coverage: float, by_class: bool
) -> PredictionSets:
    """The sets of rows with these probabilities (n, K) and codes of z, those that lack z by rows that lack it too."""
    if not 0 < coverage < 1:
        raise ValueError(f"predict_set: coverage must lie between 0 and 1, got {coverage!r}")
    complete, hidden = here.model.telling_rows()
    lacks = lacking(here.model, codes)
    member = torch.zeros(len(codes), len(here.classes_), dtype=torch.bool)
    worth = np.inf
    for held, rows in ((complete, ~lacks), (hidden, lacks)):
        if not bool(rows.any()):
            continue
        if not len(held):
            raise ValueError(NO_ROWS)
        log_ratio = here.model.cross_calibrated(held)
        scored = here.probability_of(log_ratio, held.codes).numpy()
        weight = site_weights(here, held, lacks=held is hidden and held is not complete).numpy()
        thresholds, own = score_thresholds(scored, held.y.numpy(), weight, coverage, by_class=by_class)
        member[rows] = 1 - probability[rows] <= torch.tensor(thresholds)
        worth = min(worth, own)
    return PredictionSets(member.numpy(), tuple(here.classes_.tolist()), coverage, by_class, worth)


def site_weights(here: "AdaptedClassifier", held: HeldOut, *, lacks: bool = False) -> Tensor:
    """Weights (m,) that bring held-out rows to the site's P(y, z): P(z) by features of z, then g here over their own g.

    The posterior mean of g is the average of the weights over the posterior.
    """
    schema, rows = here.model.confounders_, here.rows
    ratio = (here.log_prevalence_at(held.codes) - held.log_prevalence).gather(1, held.y[:, None])[:, 0].exp()
    if lacks or schema is None:  # codes hide z: only the classes are brought to the site
        return held.weight * ratio
    goal = rows.weighted_mean(z_features(rows.codes, rows.codes, schema))
    source = z_features(held.codes, rows.codes, schema)
    return balance(source, held.weight / held.weight.sum(), goal) * ratio
