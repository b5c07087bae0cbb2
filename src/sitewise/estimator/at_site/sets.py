"""Prediction sets at a site, computed from held-out source rows that are weighted to match its P(y, z)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from sitewise.diagnosis.matching import balance, z_features
from sitewise.estimator.without_z.predicting import lacking
from sitewise.performance import PredictionSets
from sitewise.performance.conformal import score_thresholds
from sitewise.rows import HeldOut

if TYPE_CHECKING:
    from sitewise.estimator.adapted import AdaptedClassifier

Array = np.ndarray[Any, Any]
NO_ROWS = (
    "predict_set: no labeled rows were held out in training; fit with validation, or call calibrate with labeled rows"
)


def predict_sets(
    here: "AdaptedClassifier", probability: Tensor, codes: Tensor, coverage: float, by_class: bool
) -> PredictionSets:
    """Return prediction sets for rows with these probabilities (n, K) and codes of z.

    The sets of rows that lack some of z are computed from held-out rows with z hidden.
    """
    if not 0 < coverage < 1:
        raise ValueError(f"predict_set: coverage must lie between 0 and 1, got {coverage!r}")
    lacks = lacking(here.model, codes)
    member = torch.zeros(len(codes), len(here.classes_), dtype=torch.bool)
    worth = np.inf
    for without_z, rows in ((False, ~lacks), (True, lacks)):
        if not bool(rows.any()):
            continue
        held = here.weighted_rows[without_z]
        if not len(held.y):
            raise ValueError(NO_ROWS)
        thresholds, own = score_thresholds(held.probability, held.y, held.weight, coverage, by_class=by_class)
        member[rows] = 1 - probability[rows] <= torch.tensor(thresholds)
        worth = min(worth, own)
    return PredictionSets(member.numpy(), tuple(here.classes_.tolist()), coverage, by_class, worth)


@dataclass(frozen=True, eq=False)
class WeightedRows:
    """Held-out rows with their cross-calibrated predictions at the site, weighted to match the site's P(y, z)."""

    probability: Array  # (m, K)
    y: Array  # (m,)
    weight: Array  # (m,)


def weighted_rows(here: "AdaptedClassifier") -> tuple[WeightedRows, WeightedRows]:
    """Return the held-out rows with all of z, and all held-out rows with z hidden, weighted to the site's P(y, z)."""
    complete, hidden = here.model.telling_rows()

    def weighted(held: HeldOut) -> WeightedRows:
        if not len(held.y):
            return WeightedRows(np.zeros((0, len(here.classes_))), np.zeros(0, dtype=np.int64), np.zeros(0))
        probability = here.probability_of(here.model.cross_calibrated(held), held.codes)
        weight = site_weights(here, held, lacks=held is hidden and held is not complete)
        return WeightedRows(probability.numpy(), held.y.numpy(), weight.numpy())

    first = weighted(complete)
    return first, first if hidden is complete else weighted(hidden)


def site_weights(here: "AdaptedClassifier", held: HeldOut, *, lacks: bool = False) -> Tensor:
    """Return weights (m,) of held-out rows that match the site's P(y, z) (equation 21).

    The rows are first weighted to the site's P(z), by means of features of z, and then by the ratio of the site's g to
    the g of their own site. The site's g is the posterior mean, so the weights are averages over the posterior.
    """
    schema, rows = here.model.confounders_, here.rows
    ratio = (here.log_prevalence_at(held.codes) - held.log_prevalence).gather(1, held.y[:, None])[:, 0].exp()
    if lacks or schema is None:  # z is hidden: only the class shares are matched
        return held.weight * ratio
    goal = rows.weighted_mean(z_features(rows.codes, rows.codes, schema))
    source = z_features(held.codes, rows.codes, schema)
    return balance(source, held.weight / held.weight.sum(), goal) * ratio
