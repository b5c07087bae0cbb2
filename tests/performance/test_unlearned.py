"""What f leaves open along predictions that are not its own: closed forms of logistic regression, and laws."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.special import expit

from sitewise.confounders import Confounders
from sitewise.performance.expected import DrawnRows, summarize
from sitewise.performance.labels import OpenShape, draw_labels
from sitewise.performance.others import judged_instead
from sitewise.performance.unlearned import Learned, logits_of, unlearned_directions

N_SOURCE = 500.0


@pytest.fixture(scope="module")
def scored():
    """Log-odds of our model and of another one, which has something of its own."""
    rng = np.random.default_rng(0)
    own = rng.normal(-0.5, 1.5, 4000)
    return own, 0.7 * own + rng.normal(0, 1, 4000)


def pair(log_odds):
    p = expit(log_odds)
    return np.stack([1 - p, p], axis=1)


def rows(own, n_draws=4000):
    logits = np.stack([np.zeros_like(own), own], axis=1)

    def draw(more=()):
        nothing = (np.zeros_like(logits) for _ in range(n_draws))
        return draw_labels(logits, nothing, np.random.default_rng(1), list(more))

    belief = pair(own)
    learned = Learned(N_SOURCE, belief, draw)
    z = pd.DataFrame(index=range(len(own)))
    return DrawnRows(belief, belief, draw(), np.ones(len(own)), z, learned=learned)


def directions(own, other):
    known = [np.tile(row, (len(own), 1)) for row in np.eye(2)] + logits_of(pair(own), None, 2)
    learned = Learned(N_SOURCE, pair(own), lambda more: np.zeros((1, len(own))))
    return unlearned_directions(logits_of(pair(other), None, 2), known, learned, np.ones(len(own)))


def test_one_standard_deviation_is_the_standard_error_of_a_logistic_regression(scored):
    own, other = scored
    (found,) = directions(own, other)
    p = expit(own)
    design = np.column_stack([np.ones_like(own), own, other])
    information = (design * (p * (1 - p))[:, None]).T @ design * N_SOURCE / len(own)
    error = np.sqrt(np.linalg.inv(information)[2, 2])
    moved = found.log_ratio[:, 1] - found.log_ratio[:, 0]
    coefficients, *_ = np.linalg.lstsq(design, moved, rcond=None)
    np.testing.assert_allclose(design @ coefficients, moved, atol=1e-9)
    assert abs(coefficients[2]) == pytest.approx(error)


def test_what_is_our_own_has_no_direction(scored):
    own, _ = scored
    assert directions(own, own) == []
    assert directions(own, 2 * own - 1) == []  # recalibrated: what calibration is about
    drawn = rows(own, n_draws=5)
    assert judged_instead(drawn, (0, 1), proba=pair(own)).labels is drawn.labels
    decided = (expit(own) >= 0.3).astype(int)
    assert judged_instead(drawn, (0, 1), y_pred=decided).labels is drawn.labels


def test_draws_spread_as_the_direction_says(scored):
    own, other = scored
    drawn = rows(own)
    judged = judged_instead(drawn, (0, 1), proba=pair(other))
    (direction,) = directions(own, other)
    moved = direction.log_ratio[:, 1] - direction.log_ratio[:, 0]
    p = expit(own)
    # The sum of labels times the direction: binomial noise, and the direction's own.
    noise, between = (p * (1 - p) * moved**2).sum(), ((p * (1 - p) * moved**2).sum()) ** 2
    for labels, wanted in ((drawn.labels, noise), (judged.labels, noise + between)):
        assert np.var(labels @ moved) == pytest.approx(wanted, rel=0.12)


def test_more_training_rows_leave_less_open(scored):
    own, other = scored
    drawn = rows(own)

    def width(n_rows):
        learned = replace(drawn.learned, n_rows=n_rows)
        judged = judged_instead(replace(drawn, learned=learned), (0, 1), proba=pair(other))
        low, high = summarize(judged, (0, 1))["auroc"][1:]
        return high - low

    plain = summarize(judged_instead(replace(drawn, learned=None), (0, 1), proba=pair(other)), (0, 1))["auroc"]
    assert width(100.0) > width(1e4) > 0.9 * (plain.high - plain.low)
    assert width(1e9) == pytest.approx(plain.high - plain.low, rel=0.1)


def test_three_classes_and_decisions_alone():
    rng = np.random.default_rng(2)
    own, other = rng.dirichlet(np.ones(3), 300), rng.dirichlet(np.ones(3), 300)
    known = [np.tile(row, (300, 1)) for row in np.eye(3)] + logits_of(own, own.argmax(axis=1), 3)
    learned = Learned(N_SOURCE, own, lambda more: np.zeros((1, 300)))
    judged = logits_of(other, other.argmax(axis=1), 3)
    drawn_directions = unlearned_directions(judged, known, learned, np.ones(300))
    assert len(drawn_directions) == 2
    for direction in drawn_directions:  # one standard deviation: the information of all training rows along it is one
        u = direction.log_ratio
        assert N_SOURCE * ((own * u**2).sum(1) - (own * u).sum(1) ** 2).mean() == pytest.approx(1.0)


@pytest.mark.parametrize("n_rows", [200.0, 5000.0])
def test_a_shape_is_open_as_a_logistic_regression_on_z_leaves_it(n_rows):
    rng = np.random.default_rng(3)
    Z = pd.DataFrame({"sex": rng.choice(["f", "m"], 1000, p=[0.3, 0.7])})
    schema = Confounders.learn(Z)
    codes = schema.encode(Z)[0]
    g = torch.tensor([0.8, 0.2], dtype=torch.float64).log().expand(1000, -1)
    moved = torch.stack(list(OpenShape(schema, n_rows).moves(g, codes, torch.ones(1000).double(), 4000, 0)))
    log_odds = (moved[:, :, 1] - moved[:, :, 0]).numpy()
    female = (Z["sex"] == "f").to_numpy()
    gap = log_odds[:, female][:, 0] - log_odds[:, ~female][:, 0]
    error = 1 / (n_rows * 0.16 * female.mean() * (1 - female.mean()))
    assert np.var(gap) == pytest.approx(1 / (1 / error + 1 / 4), rel=0.1)  # the ridge: each effect's variance is one
    np.testing.assert_allclose(log_odds.mean(axis=1), 0, atol=1e-9)  # the level is not touched


def test_without_features_nothing_moves():
    nothing = torch.zeros(5, 2, dtype=torch.float64)
    schema = Confounders.learn(pd.DataFrame({"clinic": [f"c{i}" for i in range(400)]}))
    codes = schema.encode(pd.DataFrame({"clinic": ["c1"] * 5}))[0]
    (moved,) = OpenShape(schema, 10.0).moves(nothing, codes, torch.ones(5).double(), 1, 0)
    assert not moved.any()  # more levels than a covariance is taken of
