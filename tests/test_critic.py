"""The critic of P(z|x) / P(z) and its bank of z-points."""

import numpy as np
import pandas as pd
import pytest
import torch

from sitewise.confounders import Confounders
from sitewise.critic import Bank, Pairs, contrastive_nll, log_lift, make_bank, train_critic


def mixed(n=400, seed=0):
    rng = np.random.default_rng(seed)
    Z = pd.DataFrame({"age": rng.beta(2, 3, n) * 80, "sex": rng.choice(["f", "m"], n, p=[0.9, 0.1])})
    schema = Confounders.learn(Z)
    return schema, schema.encode(Z)[0]


def test_the_contrast_is_over_z_and_never_over_x():
    """A term of x alone changes nothing; a term of z alone does."""
    scores, weight = torch.randn(5, 5, generator=torch.Generator().manual_seed(0)), torch.ones(5)
    plain = contrastive_nll(scores, weight)
    assert contrastive_nll(scores + torch.arange(5.0)[:, None], weight) == pytest.approx(float(plain), abs=1e-5)
    assert contrastive_nll(scores + torch.arange(5.0), weight) != pytest.approx(float(plain), abs=1e-3)


def test_a_weight_of_two_is_a_row_twice():
    scores = torch.randn(4, 4, generator=torch.Generator().manual_seed(0)).double()
    weight = torch.tensor([2.0, 1.0, 1.0, 1.0]).double()
    twice = torch.tensor([0, 0, 1, 2, 3])
    doubled = contrastive_nll(scores[twice][:, twice], torch.ones(5).double())
    # The doubled row is found among its like: log 2 of it is chance.
    own = contrastive_nll(scores, weight) + (2 * np.log(2.0)) / 5
    assert float(doubled) == pytest.approx(float(own), abs=1e-9)


def test_the_critic_learns_the_density_ratio_of_two_normals():
    """x = z + noise, both normal: log P(z|x)/P(z) is known in closed form."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=6000)
    x = z + 0.7 * rng.normal(size=6000)
    features = torch.tensor(np.stack([x, rng.normal(size=6000)], 1)).float()
    inputs = torch.tensor(z[:, None]).float()
    pairs, held = (
        Pairs(features[rows], inputs[rows], torch.ones(len(inputs[rows])))
        for rows in (slice(0, 5000), slice(5000, None))
    )
    critic = train_critic(pairs, held, device="cpu", seed=0)
    points = torch.linspace(-1.5, 1.5, 13)[:, None]
    grid = torch.stack([torch.linspace(-1.5, 1.5, 9), torch.zeros(9)], 1)
    share = torch.softmax(-0.5 * points[:, 0].double() ** 2, 0)
    with torch.no_grad():
        lift = log_lift(critic.network(grid)(grid, points).double(), share)
    shrink, spread = 1 / 1.49, np.sqrt(0.49 / 1.49)
    mean = shrink * grid[:, :1].double()
    truth = -0.5 * ((points.T - mean) / spread) ** 2 - np.log(spread) + 0.5 * points.T**2
    truth = log_lift(truth, share)
    assert float((lift - truth).abs().mean()) < 0.15


def test_shares_of_z_given_x_sum_to_one():
    scores = torch.randn(6, 9, generator=torch.Generator().manual_seed(1)).double()
    share = torch.softmax(torch.arange(9.0).double(), 0)
    np.testing.assert_allclose((log_lift(scores, share).exp() * share).sum(1), 1, atol=1e-12)


def test_a_bank_has_points_in_every_combination_and_all_the_weight():
    schema, codes = mixed()
    bank, point_of = make_bank(schema, codes, torch.ones(400), 40)
    assert len(bank.codes) <= 40
    assert float(bank.share.sum()) == pytest.approx(1)
    assert set(bank.codes[:, 1].tolist()) == {0.0, 1.0}
    male = bank.codes[:, 1] == 1
    assert float(bank.share[male].sum()) == pytest.approx(float((codes[:, 1] == 1).double().mean()), abs=1e-9)
    assert male.sum() >= 5  # a rare combination has more points than its share: it may be common elsewhere
    known = {tuple(row) for row in codes.tolist()}
    assert all(tuple(row) in known for row in bank.codes.tolist())
    np.testing.assert_allclose(torch.bincount(point_of, minlength=len(bank.codes)) / 400, bank.share, atol=1e-12)
    assert (codes[:, 1] == bank.codes[point_of, 1]).all()


def test_few_distinct_values_are_all_in_the_bank():
    Z = pd.DataFrame({"scanner": ["a", "b", "c"] * 20, "dose": [1.0, 2.0, 3.0] * 20})
    schema = Confounders.learn(Z)
    bank, _ = make_bank(schema, schema.encode(Z)[0], torch.ones(60), 50)
    assert len(bank.codes) == 3
    np.testing.assert_allclose(bank.share, 1 / 3)


def test_agreement_follows_what_is_known_of_z():
    schema, codes = mixed()
    bank, _ = make_bank(schema, codes, torch.ones(400), 40)
    blank = schema.missing_codes()[None]
    assert (bank.log_agreement(blank) == 0).all()
    male = blank.clone()
    male[0, 1] = 1.0
    agreement = bank.log_agreement(male)[0]
    assert (agreement[bank.codes[:, 1] == 1] == 0).all()
    assert (agreement[bank.codes[:, 1] == 0] == -torch.inf).all()
    aged = blank.clone()
    aged[0, 0] = float(bank.codes[3, 0])
    near = bank.log_agreement(aged)[0]
    distance = (bank.codes[:, 0] - aged[0, 0]).abs()
    assert near[3] == 0
    farthest = int(distance.argmax())
    np.testing.assert_allclose(near, float(near[farthest]) * (distance / distance[farthest]) ** 2, atol=1e-9)
    assert near[farthest] < -1


def test_a_combination_that_no_point_has_counts_as_unknown():
    schema, codes = mixed()
    only = Bank(schema, codes[codes[:, 1] == 0][:5], torch.full((5,), 0.2).double())
    male = schema.missing_codes()[None].clone()
    male[0, 1] = 1.0
    assert (only.log_agreement(male) == 0).all()
