"""The joint of (z, y) from x alone: laws, the optimum by brute force, and sites whose densities are known."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import sitewise as sw
from sitewise.adaptation.joint import mixture as mixtures
from sitewise.adaptation.joint.estimate import OPEN, climb, curvature_at
from sitewise.adaptation.joint.mixture import log_balance, make_mixture
from sitewise.bench.datasets.known_densities import TARGETS, log_density, training_joint


def rows(n=300, n_points=4, n_classes=2, seed=0):
    """Log-ratios of rows that each come from one of the cells, by Gaussians around the cells' places."""
    rng = np.random.default_rng(seed)
    places = rng.normal(size=(n_points, n_classes, 2)) * 2
    truth = rng.dirichlet(np.ones(n_points * n_classes)).reshape(n_points, n_classes)
    cell = rng.choice(truth.size, n, p=truth.ravel())
    X = places.reshape(-1, 2)[cell] + rng.normal(size=(n, 2))
    return -0.5 * ((X[:, None, None] - places) ** 2).sum(-1), truth


def penalized(log_ratio, weight, joint, prior, strength):
    density = np.einsum("nmk,mk->n", np.exp(log_ratio), joint)
    return weight @ np.log(density) + strength * np.sum(prior * np.log(joint))


def long_em(log_ratio, prior, strength, n_steps=20_000):
    """The penalized optimum as it is written: EM, run very long."""
    ratio = np.exp(log_ratio).reshape(len(log_ratio), -1)
    cells, aim = prior.ravel().copy(), prior.ravel()
    for _ in range(n_steps):
        share = cells * (ratio / (ratio @ cells)[:, None]).sum(0) + strength * aim
        cells = share / (len(ratio) + strength)
    return cells.reshape(prior.shape)


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("strength", [1.0, 40.0])
def test_the_optimum_is_that_of_em_run_very_long(n_classes, strength):
    log_ratio, truth = rows(n_classes=n_classes)
    prior = np.random.default_rng(5).dirichlet(np.ones(truth.size)).reshape(truth.shape)
    estimate = sw.estimate_joint(log_ratio, prior=prior, strength=strength)
    expected = long_em(log_ratio, prior, strength)
    np.testing.assert_allclose(estimate.joint, expected, atol=2e-6)
    assert estimate.converged
    assert estimate.gap <= 1e-8


def test_without_a_prior_no_random_direction_is_uphill():
    log_ratio, truth = rows(n=150)
    estimate = sw.estimate_joint(log_ratio, strength=0.0)
    best = penalized(log_ratio, np.ones(150), np.clip(estimate.joint, 1e-12, None), truth, 0.0)
    rng = np.random.default_rng(1)
    for _ in range(200):
        other = 0.9 * estimate.joint + 0.1 * rng.dirichlet(np.full(truth.size, 0.3)).reshape(truth.shape)
        assert penalized(log_ratio, np.ones(150), other + 1e-300, truth, 0.0) <= best + 1e-6


def test_the_gap_bounds_what_is_left_to_gain():
    log_ratio, truth = rows()
    prior = torch.full((truth.size,), 1 / truth.size, dtype=torch.float64)
    mixture = make_mixture(torch.tensor(log_ratio), torch.ones(300, dtype=torch.float64))
    rough, fine = (climb(mixture, 5 * prior, prior, tolerance=t) for t in (0.1, 1e-10))
    gain = float(rough.trace[-1] - fine.trace[-1])
    assert 0 < gain <= 305 * np.log1p(float(rough.gap))


@pytest.mark.parametrize("n_classes", [2, 3])
def test_a_bank_of_one_point_is_the_constant_prevalence(n_classes):
    log_ratio, _ = rows(n_points=1, n_classes=n_classes)
    joint = sw.estimate_joint(log_ratio, strength=0.0)
    constant = sw.estimate_prevalence(log_ratio[:, 0], model="constant")
    np.testing.assert_allclose(joint.marginal, constant.marginal, atol=1e-4)
    np.testing.assert_allclose(joint.interval(), constant.interval(), atol=0.002 if n_classes == 2 else 0.02)
    expected = sw.adjust(log_ratio[:, 0], np.log(joint.marginal))
    np.testing.assert_allclose(joint.posterior(log_ratio), expected, atol=1e-9)


@given(st.permutations(range(4)), st.permutations(range(3)), st.integers(0, 3))
def test_the_order_of_points_and_classes_does_not_matter(points, classes, seed):
    log_ratio, _ = rows(n=80, n_classes=3, seed=seed)
    plain = sw.estimate_joint(log_ratio, strength=2.0)
    turned = sw.estimate_joint(log_ratio[:, points][:, :, classes], strength=2.0)
    np.testing.assert_allclose(turned.joint, plain.joint[points][:, classes], atol=1e-5)


def test_a_row_of_weight_two_is_two_rows_and_a_constant_of_a_row_is_none():
    log_ratio, _ = rows(n=100)
    weight = np.where(np.arange(100) < 30, 2.0, 1.0)
    twice = np.concatenate([log_ratio, log_ratio[:30] + 7.0])
    one, two = sw.estimate_joint(log_ratio, sample_weight=weight), sw.estimate_joint(twice)
    np.testing.assert_allclose(one.joint, two.joint, atol=1e-4)
    np.testing.assert_allclose(one.interval(), two.interval(), atol=1e-5)
    assert one.strength == two.strength
    assert two.log_likelihood - one.log_likelihood == pytest.approx(30 * 7.0, abs=1e-4)


def test_an_excluded_point_takes_no_part_in_a_row():
    log_ratio, _ = rows(n=200)
    known = np.arange(200) % 4
    only = np.full_like(log_ratio, -np.inf)
    only[np.arange(200), known] = log_ratio[np.arange(200), known]
    estimate = sw.estimate_joint(only, strength=0.0)
    np.testing.assert_allclose(estimate.joint.sum(1), np.full(4, 0.25), atol=1e-6)  # every z was seen fifty times
    for point in range(4):
        rows_here = only[known == point][:, point]
        own = sw.estimate_prevalence(rows_here, model="constant").marginal
        np.testing.assert_allclose(estimate.joint[point] * 4, own, atol=1e-5)


def test_rows_that_say_nothing_change_nothing():
    log_ratio, _ = rows(n=100)
    silent = np.concatenate([log_ratio, np.full((20, 4, 2), -np.inf)])
    plain, more = sw.estimate_joint(log_ratio, strength=0.0), sw.estimate_joint(silent, strength=0.0)
    np.testing.assert_allclose(plain.joint, more.joint, atol=1e-4)
    np.testing.assert_allclose(more.posterior(silent[-1:])[0], more.marginal, atol=1e-12)


def test_where_x_does_not_tell_the_classes_apart_the_prior_decides_and_that_is_said():
    log_ratio, _ = rows(n=400)
    log_ratio[:, :, 1] = log_ratio[:, :, 0]
    prior = np.array([[0.2, 0.05]] * 4)
    with pytest.warns(UserWarning, match=OPEN[:40]):
        estimate = sw.estimate_joint(log_ratio, prior=prior)
    assert not estimate.identified
    np.testing.assert_allclose(estimate.marginal, [0.8, 0.2], atol=1e-6)
    np.testing.assert_array_equal(estimate.interval(), [[0, 0], [1, 1]])


def test_rows_without_any_information_give_the_prior():
    prior = np.random.default_rng(0).dirichlet(np.ones(6)).reshape(3, 2)
    with pytest.warns(UserWarning, match="that of the prior"):
        estimate = sw.estimate_joint(np.zeros((50, 3, 2)), prior=prior)
    np.testing.assert_allclose(estimate.joint, prior, atol=1e-6)


def test_containers_follow_the_input():
    log_ratio, _ = rows(n=60)
    there = sw.estimate_joint(torch.tensor(log_ratio), strength=1.0)
    assert isinstance(there.joint, torch.Tensor)
    assert there.marginal.dtype == torch.float64
    assert isinstance(there.posterior(log_ratio), np.ndarray)
    here = sw.estimate_joint(log_ratio.astype(np.float32), strength=1.0)
    assert here.joint.dtype == np.float64
    np.testing.assert_allclose(here.joint, there.joint.numpy(), atol=1e-4)


def test_left_out_likelihood_is_what_leaving_rows_out_gives():
    log_ratio, _ = rows(n=150, n_points=3)
    prior = np.full((3, 2), 1 / 6)
    estimate = sw.estimate_joint(log_ratio, prior=prior, strength=5.0)
    total = 0.0
    for row in range(150):
        others = sw.estimate_joint(np.delete(log_ratio, row, axis=0), prior=prior, strength=5.0)
        total += np.log((np.exp(log_ratio[row]) * others.joint).sum())
    optimism = estimate.log_likelihood - estimate.left_out
    assert estimate.log_likelihood - total == pytest.approx(optimism, rel=0.15)


def test_many_rows_are_climbed_with_the_curvature_of_some(monkeypatch):
    log_ratio, _ = rows(n=6000, seed=3)
    exact = sw.estimate_joint(log_ratio, strength=3.0)
    for name in ("STEERING_ENTRIES", "STEERING_ROWS", "CURVED_ENTRIES"):
        monkeypatch.setattr(f"sitewise.adaptation.joint.estimate.{name}", 1)
    monkeypatch.setattr("sitewise.adaptation.joint.mixture.PRECISE", 1)
    sampled = sw.estimate_joint(log_ratio, strength=3.0)
    assert sampled.converged
    np.testing.assert_allclose(sampled.joint, exact.joint, atol=2e-4)


def test_where_a_sample_steers_badly_all_rows_do(monkeypatch):
    log_ratio, _ = rows(n=6000, seed=3)
    exact = sw.estimate_joint(log_ratio, strength=3.0)
    monkeypatch.setattr("sitewise.adaptation.joint.estimate.STEERING_ENTRIES", 1)
    monkeypatch.setattr("sitewise.adaptation.joint.estimate.STEERING_ROWS", 0)
    slow = sw.estimate_joint(log_ratio, strength=3.0)
    monkeypatch.setattr("sitewise.adaptation.joint.estimate.PATIENCE", 3)
    quick = sw.estimate_joint(log_ratio, strength=3.0)
    assert slow.converged
    assert quick.converged
    assert exact.n_iter <= quick.n_iter < slow.n_iter
    np.testing.assert_allclose(quick.joint, exact.joint, atol=1e-4)


def test_intervals_hold_the_truth_most_of_the_time():
    inside = []
    for seed in range(60):
        log_ratio, truth = rows(n=400, n_points=3, seed=seed)
        low, high = sw.estimate_joint(log_ratio, strength=1.0).interval()
        inside.append(low[1] <= truth[:, 1].sum() <= high[1])
    assert np.mean(inside) >= 0.85


def test_an_absent_class_has_an_upper_bound_and_not_a_silent_zero():
    log_ratio, _ = rows(n=300, n_points=2)
    log_ratio[:, :, 1] = log_ratio[:, :, 0].min() - 3.0 + np.random.default_rng(0).normal(size=(300, 1))
    low, high = sw.estimate_joint(log_ratio, strength=0.0).interval()
    assert low[1] < 1e-6
    assert 0.001 < high[1] < 0.05


def test_everything_wrong_is_said_at_once():
    bad = np.zeros((3, 2, 2))
    bad[1] = np.nan
    with pytest.raises(ValueError, match="NaN in 1 row") as error:
        sw.estimate_joint(bad, strength="strong")
    assert "strength must be" in str(error.value)
    with pytest.raises(ValueError, match="points of the bank by classes"):
        sw.estimate_joint(np.zeros((3, 2, 2)), prior=np.ones(4) / 4)
    with pytest.raises(ValueError, match="sum to one"):
        sw.estimate_joint(np.zeros((3, 2, 2)), prior=np.ones((2, 2)))
    with pytest.raises(ValueError, match="shape"):
        sw.estimate_joint(np.zeros((3, 2)))
    with pytest.raises(ValueError, match="as at estimation"):
        sw.estimate_joint(rows(n=20)[0], strength=1.0).posterior(np.zeros((3, 2, 2)))


@pytest.mark.parametrize("name", TARGETS)
def test_known_densities_are_predicted_nearly_as_well_as_can_be(name):
    """The numbers to reach: P(Y) within 0.015 and 0.005 of the best NLL, from 5,000 rows without z."""
    target, prior = TARGETS[name], training_joint(20)
    for seed in range(2):
        site, fresh = target.draw(5000, seed), target.draw(4000, 100 + seed)
        estimate = sw.estimate_joint(log_density(site.X, 20), prior=prior)
        assert estimate.converged
        assert abs(estimate.marginal[1] - target.joint(200)[:, 1].sum()) < 0.015
        taken = np.arange(4000), fresh.y
        reached = -np.log(estimate.posterior(log_density(fresh.X, 20))[taken]).mean()
        best = -np.log(target.posterior(fresh.X)[taken]).mean()
        assert reached - best < 0.005


def test_optimism_counts_no_more_than_the_cells():
    log_ratio, truth = rows()
    cells = torch.tensor(truth).reshape(-1)
    mixture = make_mixture(torch.tensor(log_ratio), torch.ones(300, dtype=torch.float64))
    assert 0 < curvature_at(mixture, cells, 1.0 * cells).optimism < truth.size


def sinkhorn(log_ratio, prior, weight, n_steps=5000):
    """The balance as it is written: scale every cell until rows give the joint back."""
    ratio, b = np.exp(log_ratio).reshape(len(log_ratio), -1), np.ones(prior.size)
    for _ in range(n_steps):
        b = weight.sum() / (weight @ (ratio / (ratio @ (prior.ravel() * b))[:, None]))
    return np.log(b).reshape(prior.shape)


def balanced(log_ratio, prior, weight=None):
    weight = np.ones(len(log_ratio)) if weight is None else weight
    return log_balance(torch.tensor(log_ratio), torch.tensor(prior), torch.tensor(weight)).numpy()


@pytest.mark.parametrize("n_classes", [2, 3])
def test_a_balanced_ratio_gives_the_joint_back(n_classes, monkeypatch):
    for name, free in (("RIDGE", 1e-10), ("LEAST", 1e-3), ("MOST", 1e3)):
        monkeypatch.setattr(mixtures, name, free)
    log_ratio, _ = rows(n_classes=n_classes)
    rng = np.random.default_rng(3)
    prior, weight = (
        rng.dirichlet(np.full(4 * n_classes, 5.0)).reshape(4, n_classes),
        rng.uniform(0.5, 2, len(log_ratio)),
    )
    balance = balanced(log_ratio, prior, weight)
    expected = sinkhorn(log_ratio, prior, weight)
    np.testing.assert_allclose(balance - balance[0, 0], expected - expected[0, 0], atol=1e-4)
    again = sw.estimate_joint(log_ratio + balance, prior=prior, strength=0.0, sample_weight=weight)
    np.testing.assert_allclose(again.joint, prior, atol=2e-4)


def test_balance_undoes_a_factor_of_each_cell():
    log_ratio, truth = rows(n=3000)
    factor = np.random.default_rng(4).normal(scale=0.2, size=truth.shape)
    left = factor + balanced(log_ratio + factor, truth) - balanced(log_ratio, truth)
    np.testing.assert_allclose(left, left.mean(), atol=0.05)


def test_balance_leaves_alone_what_it_cannot_know():
    log_ratio, truth = rows(n=500)
    log_ratio[:, 2, 1] = -np.inf
    prior = truth.copy()
    prior[0, 0] = 0
    balance = balanced(log_ratio, prior / prior.sum())
    assert balance[2, 1] == balance[0, 0] == 0
    assert np.isfinite(balance).all()
    certain = np.full((100, 2, 2), -np.inf)  # x tells each cell for certain: no factor changes how many rows are there
    certain.reshape(100, -1)[np.arange(100), np.arange(100) % 4] = 0.0
    np.testing.assert_allclose(balanced(certain, np.full((2, 2), 0.25)), 0, atol=1e-6)
    off = balanced(certain, np.array([[0.05, 0.45], [0.25, 0.25]]))
    assert np.exp(off.min()) >= 0.25 - 1e-9
    assert np.exp(off.max()) <= 2 + 1e-9
