"""Matching held-out rows to a site's mix: the balance itself, and the means and errors that it gives."""

import numpy as np
import pytest
import torch

from sitewise.confounders import Confounders
from sitewise.diagnosis.matching import balance, match, z_features
from sitewise.posterior import contrasts


def draw(seed, n_source=400, n_target=300):
    """z moves P(y) at both sites, differently, and a function that depends on y and z alike at both."""
    rng = np.random.default_rng(seed)
    z = rng.random(n_source), rng.random(n_target) ** 2
    g = (lambda v: 0.2 + 0.3 * v), (lambda v: 0.9 - 0.5 * v)
    y = [(rng.random(len(v)) < p(v)).astype(int) for v, p in zip(z, g, strict=True)]
    h = [2 * labels + v * (1 - labels) + rng.normal(size=len(v)) for labels, v in zip(y, z, strict=True)]
    schema = Confounders.learn(z[0][:, None])
    codes = [schema.encode(v[:, None])[0] for v in z]
    prevalence = [torch.tensor(np.stack([1 - g[1](v), g[1](v)], axis=1)) for v in z]
    matched = match(
        codes[0],
        torch.tensor(y[0]),
        torch.ones(n_source).double(),
        codes[1],
        torch.ones(n_target).double(),
        prevalence[1],
        prevalence[0],
        schema,
    )
    return matched, *(torch.tensor(v)[:, None] for v in h)


def test_weights_reach_their_goal():
    rng = np.random.default_rng(0)
    features = torch.tensor(np.c_[np.ones(200), rng.normal(size=(200, 2))])
    goal = torch.tensor([0.4, 0.1, -0.05], dtype=torch.float64)
    weight = balance(features, torch.full((200,), 0.002, dtype=torch.float64), goal)
    assert (weight > 0).all()
    torch.testing.assert_close(weight @ features, goal, atol=2e-3, rtol=0)


def test_rows_that_have_the_mix_already_stay_even():
    features = torch.tensor([[1.0, -1.0], [1.0, 1.0]] * 50, dtype=torch.float64)
    base = torch.full((100,), 0.01, dtype=torch.float64)
    torch.testing.assert_close(balance(features, base, base @ features), base)


def test_the_matched_source_has_the_targets_mean_where_nothing_shifted():
    plain, matched_error = [], []
    for seed in range(40):
        matched, source, target = draw(seed)
        plain.append(float(target.mean() - source.mean()))
        matched_error.append(float(matched.compare(source, target).mean))
    assert abs(np.mean(plain)) > 0.1
    assert abs(np.mean(matched_error)) < 3 * np.std(matched_error) / np.sqrt(40)


def test_the_standard_error_is_what_repeated_draws_show():
    differences = []
    for seed in range(100):
        matched, source, target = draw(seed)
        difference = matched.compare(source, target)
        differences.append((float(difference.mean), float(difference.covariance)))
    means, variances = np.array(differences).T
    assert np.var(means) == pytest.approx(np.mean(variances), rel=0.3)


def test_tilts_are_the_derivative_of_the_matched_mean_in_the_log_odds_of_g():
    matched, source, _ = draw(4)
    everywhere = torch.ones(len(source), 1, dtype=torch.float64)
    log_g = matched.source_prevalence.log()
    means = []
    for step in (1e-5, -1e-5):
        moved = torch.log_softmax(log_g + step * contrasts(2)[:, 0], dim=1)
        change = (moved - log_g).gather(1, matched.y[:, None])[:, 0].exp()
        means.append(float((matched.source_weight * change) @ source[:, 0]))
    assert float(matched.tilts(source, everywhere)) == pytest.approx((means[0] - means[1]) / 2e-5, rel=1e-6)


def test_a_doubled_source_row_is_a_row_of_weight_two():
    matched, source, _ = draw(3)
    features = matched.source_features
    again = torch.cat([torch.arange(len(source)), torch.arange(20)])
    weight = torch.ones(len(source)).double()
    weight[:20] = 2
    goal = torch.tensor([0.5, 0.1, 0.0], dtype=torch.float64)
    whole = balance(features, weight / 420, goal)
    rows = balance(features[again], torch.full((420,), 1 / 420, dtype=torch.float64), goal)
    torch.testing.assert_close(whole[:20] / 2, rows[:20])


def test_many_levels_share_columns():
    levels = np.array([f"level {i % 300}" for i in range(600)], dtype=object)[:, None]
    schema = Confounders.learn(levels)
    codes = schema.encode(levels)[0]
    assert z_features(codes, codes, schema).shape[1] <= 13


def test_no_confounders_leave_the_constant():
    nothing = torch.zeros(5, 0, dtype=torch.float64)
    assert torch.equal(z_features(nothing, nothing, None), torch.ones(5, 1).double())
