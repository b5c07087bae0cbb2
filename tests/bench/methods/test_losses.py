"""Every loss on two or three rows against a value computed by hand, and its gradient against what the method says."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from sitewise.bench.methods import METHODS
from sitewise.bench.methods.coral import coral_distance, moments
from sitewise.bench.methods.dann import AdversarialNetwork, reversal_schedule, reverse_gradient
from sitewise.bench.methods.group_dro import GroupShares, group_losses, reweight
from sitewise.bench.methods.irm import irm_penalty
from sitewise.bench.methods.iwdann import ClassWeights
from sitewise.bench.methods.objective import Batch
from sitewise.bench.methods.sfb import boost, conditional_covariance, pseudo_given_true
from sitewise.bench.methods.ttlsa import pair_nll, sum_out_z
from sitewise.ratio import RatioNetwork


def batch(x, y, site=None, unlabeled=None, unlabeled_site=None, progress=1.0, **columns):
    n = len(y)
    return Batch(
        x,
        torch.zeros(n, 0),
        torch.tensor(y),
        torch.ones(n),
        torch.zeros(n, dtype=torch.int64) if site is None else torch.tensor(site),
        columns,
        unlabeled,
        unlabeled_site,
        torch.tensor(progress),
        1 if site is None else max(site) + 1,
        (1 if site is None else max(site) + 1) + (0 if unlabeled is None else 1),
    )


class Echo(nn.Module):
    """A module whose logits are its input."""

    def forward(self, x, z, *more):
        return (x, x) if more else x


def test_the_irm_penalty_by_hand():
    logits, y = torch.tensor([[0.0, math.log(3.0)]]), torch.tensor([0])
    # softmax = (1/4, 3/4), y = 0: slope = (3/4)·log 3 - 0
    assert float(irm_penalty(logits, y, torch.ones(1))) == pytest.approx((0.75 * math.log(3)) ** 2)


def test_the_irm_penalty_is_the_squared_gradient_of_a_dummy_scale():
    torch.manual_seed(0)
    logits, y, weight = torch.randn(20, 3), torch.randint(3, (20,)), torch.rand(20)
    scale = torch.ones((), requires_grad=True)
    risk = (weight * cross_entropy(scale * logits, y, reduction="none")).sum() / weight.sum()
    (gradient,) = torch.autograd.grad(risk, scale)
    assert float(irm_penalty(logits, y, weight)) == pytest.approx(float(gradient) ** 2, rel=1e-4)


def test_the_irm_penalty_vanishes_at_an_invariant_optimum():
    # Of four rows of x = 1 three have y = 1: at the log-odds log 3 the risk is minimal, scaled up or down it is higher.
    y = torch.tensor([1, 1, 1, 0])
    logits = torch.tensor([[0.0, math.log(3.0)]]).repeat(4, 1)
    assert float(irm_penalty(logits, y, torch.ones(4))) == pytest.approx(0, abs=1e-12)
    assert float(irm_penalty(1.5 * logits, y, torch.ones(4))) > 1e-3


def test_irm_adds_the_penalty_of_each_site_after_the_warm_up():
    x, y, site = torch.tensor([[0.0, 1.0], [0.0, -1.0], [0.0, 2.0]]), [1, 0, 0], [0, 0, 1]
    method = METHODS["irm"](penalty=10.0, warm_up=0.5)
    parts = [(x[:2], torch.tensor(y[:2]), torch.ones(2)), (x[2:], torch.tensor(y[2:]), torch.ones(1))]
    risks = [cross_entropy(logits, labels) for logits, labels, _ in parts]
    penalties = [irm_penalty(*part) for part in parts]
    early = method.loss(Echo(), batch(x, y, site, progress=0.1), None)
    late = method.loss(Echo(), batch(x, y, site, progress=0.6), None)
    assert float(early) == pytest.approx(float(sum(risks) + sum(penalties)) / 2)
    assert float(late) == pytest.approx(float(sum(risks) + 10 * sum(penalties)) / 2 / 10)


def test_gradients_are_reversed_and_values_are_not():
    features = torch.tensor([1.0, -2.0], requires_grad=True)
    passed = reverse_gradient(features, torch.tensor(0.3))
    assert passed.tolist() == [1.0, -2.0]
    (passed * torch.tensor([5.0, 7.0])).sum().backward()
    np.testing.assert_allclose(features.grad, [-1.5, -2.1], rtol=1e-6)


def test_the_reversal_grows_from_nothing_to_one():
    assert reversal_schedule(torch.tensor(0.0)) == 0
    assert float(reversal_schedule(torch.tensor(0.5))) == pytest.approx(0.9866, abs=1e-4)


def dann_gradients(strength, progress=1.0):
    torch.manual_seed(0)
    network = AdversarialNetwork(RatioNetwork(nn.Flatten(), 3, 0, 2), 3)
    rows = batch(torch.randn(4, 3), [0, 1, 0, 1], [0, 0, 1, 1], torch.randn(2, 3), torch.tensor([2, 2]), progress)
    METHODS["dann"](strength=strength).loss(network, rows, None).backward()
    first = network.network.fusion[0].weight.grad
    return first, network.critic[0].weight.grad


def test_danns_features_climb_what_its_critic_descends():
    without, critic_without = dann_gradients(0.0)
    one, critic_one = dann_gradients(1.0)
    two, critic_two = dann_gradients(2.0)
    # The critic learns alike whatever the strength; the features get the reversed gradient, in proportion to it.
    np.testing.assert_allclose(critic_one, critic_without, atol=1e-6)
    np.testing.assert_allclose(critic_two, critic_without, atol=1e-6)
    np.testing.assert_allclose(two - without, 2 * (one - without), atol=1e-5)
    torch.manual_seed(0)
    network = AdversarialNetwork(RatioNetwork(nn.Flatten(), 3, 0, 2), 3)
    x, unlabeled = torch.randn(4, 3), torch.randn(2, 3)
    features = network.network.features(torch.cat([x, unlabeled]), torch.zeros(6, 0))
    critic_loss = cross_entropy(network.critic(features), torch.tensor([0, 0, 1, 1, 2, 2]))
    (plain,) = torch.autograd.grad(critic_loss, network.network.fusion[0].weight)
    np.testing.assert_allclose(one - without, -reversal_schedule(torch.tensor(1.0)) * plain, atol=1e-5)


def distance(a, b):
    rows = torch.cat([a, b])
    inside = torch.cat([torch.ones(len(a)), torch.zeros(len(b))])
    return coral_distance(moments(rows, inside), moments(rows, 1 - inside))


def test_coral_by_hand():
    a, b = torch.tensor([[0.0], [2.0]]), torch.tensor([[1.0], [5.0]])
    # means 1 and 3, variances 2 and 8
    assert float(distance(a, b)) == pytest.approx((1 - 3) ** 2 + (2 - 8) ** 2)


def test_coral_has_the_covariances_of_torch():
    torch.manual_seed(0)
    a, b = torch.randn(7, 3), torch.randn(5, 3)
    expected = ((a.mean(0) - b.mean(0)) ** 2).mean() + ((torch.cov(a.T) - torch.cov(b.T)) ** 2).mean()
    assert float(distance(a, b)) == pytest.approx(float(expected), rel=1e-5)


def test_coral_is_zero_for_equal_moments_only():
    a = torch.tensor([[0.0, 1.0], [2.0, 3.0], [1.0, -1.0]])
    assert float(distance(a, a[[2, 0, 1]])) == pytest.approx(0, abs=1e-12)
    assert float(distance(a, a + 1)) == pytest.approx(1)
    assert float(distance(a, a * 2)) > 0.1


def test_coral_pulls_the_sites_together():
    a, b = torch.zeros(3, 1, requires_grad=True), torch.ones(3, 1)
    distance(a, b).backward()
    assert (a.grad < 0).all()  # a step downhill moves a up, towards b


def test_group_losses_by_hand():
    losses, weight, group = torch.tensor([1.0, 3.0, 5.0]), torch.tensor([1.0, 3.0, 1.0]), torch.tensor([0, 0, 2])
    by_group = group_losses(losses, weight, group, 3)
    assert by_group[[0, 2]].tolist() == [2.5, 5.0]
    assert by_group[1].isnan()


def test_group_dros_weights_grow_on_the_worst_group():
    share = reweight(torch.tensor([0.5, 0.5]), torch.tensor([1.0, 3.0]), 0.5)
    np.testing.assert_allclose(share, [1 / (1 + math.e), math.e / (1 + math.e)], rtol=1e-6)
    np.testing.assert_allclose(reweight(share, torch.tensor([torch.nan, torch.nan]), 0.5), share)
    x, memory = torch.tensor([[5.0, 0.0], [5.0, 0.0]]), GroupShares(torch.tensor([0.5, 0.5]))
    rows = batch(x, [0, 1], group=torch.tensor([0, 1]))
    method = METHODS["group_dro"](step=0.1)
    for _ in range(20):
        loss = method.loss(Echo(), rows, memory)
    assert float(memory.share[1]) > 0.99
    assert float(loss) == pytest.approx(5.0, abs=0.1)  # that of the group that is served worst


def test_the_loss_of_pairs_by_hand():
    outputs = torch.zeros(2, 4)
    log_prior = torch.tensor([0.1, 0.2, 0.3, 0.4]).log().expand(2, -1)
    possible = torch.tensor([[True, False, False, False], [False, False, True, True]])
    np.testing.assert_allclose(pair_nll(outputs, log_prior, possible), [-math.log(0.1), -math.log(0.7)], rtol=1e-5)


def test_summing_z_out_by_hand():
    pairs = torch.tensor([[0.1, 0.2, 0.3, 0.4]]).log()  # (y=0,z=0), (0,1), (1,0), (1,1)
    np.testing.assert_allclose(sum_out_z(pairs, 2).exp(), [[0.3, 0.7]], rtol=1e-6)


def test_conditional_covariance_by_hand():
    a, b, y = (
        torch.tensor([[0.0], [2.0], [0.0], [2.0]]),
        torch.tensor([[0.0], [4.0], [4.0], [0.0]]),
        torch.tensor([0, 0, 1, 1]),
    )
    # within class 0 the covariance is 2, within class 1 it is -2; over all rows it is 0
    assert float(conditional_covariance(a, b, y, 2)) == pytest.approx(4)
    assert float(conditional_covariance(a, b, y, 3)) == pytest.approx(4)  # a class that is not there changes nothing
    assert float(conditional_covariance(a, b, torch.zeros(4), 2)) == pytest.approx(0)


def test_boosting_independent_parts_is_bayes_rule():
    # P(y) = (.8, .2), stable part likelihoods (.3, .6), unstable (.1, .5)
    prior, stable, unstable = torch.tensor([0.8, 0.2]), torch.tensor([0.3, 0.6]), torch.tensor([0.1, 0.5])
    whole = prior * stable * unstable
    of_stable, of_unstable = (prior * part / (prior * part).sum() for part in (stable, unstable))
    boosted = boost(of_stable.log()[None], of_unstable[None], prior).exp()[0]
    np.testing.assert_allclose(boosted, whole / whole.sum(), rtol=1e-5)


def test_the_noise_of_pseudo_labels_by_hand():
    probability = torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]], dtype=torch.float64)
    # labels 0, 0, 1: P(ŷ=0|y=0) = 1.5/1.7, P(ŷ=1|y=1) = .8/1.3
    np.testing.assert_allclose(pseudo_given_true(probability), [[1.5 / 1.7, 0.2 / 1.7], [0.5 / 1.3, 0.8 / 1.3]])


def test_class_weights_come_from_the_epochs_confusion_matrix():
    memory = ClassWeights(torch.ones(2, dtype=torch.float64))
    labeled = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]], dtype=torch.float64)
    unlabeled = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    memory.add(labeled, torch.tensor([0, 0, 1, 1]), unlabeled)
    memory.update()  # P_b/P_s = (.75/.5, .25/.5), mixed half and half with (1, 1)
    np.testing.assert_allclose(memory.weight, [1.25, 0.75])
    memory.update()  # nothing seen since
    np.testing.assert_allclose(memory.weight, [1.25, 0.75])


def test_iwdann_weighs_labeled_rows_by_the_class_weights():
    torch.manual_seed(0)
    network = AdversarialNetwork(RatioNetwork(nn.Flatten(), 3, 0, 2), 2)
    rows = batch(torch.randn(2, 3), [0, 1], unlabeled=torch.randn(2, 3), unlabeled_site=torch.tensor([1, 1]))
    method = METHODS["iwdann"]()
    with torch.no_grad():
        logits, critic = network(rows.all_x(), rows.all_z(), torch.tensor(1.0))
        each = cross_entropy(logits[:2], rows.y, reduction="none")
        sources = cross_entropy(critic[:2], torch.zeros(2, dtype=torch.int64), reduction="none")
        targets = cross_entropy(critic[2:], torch.ones(2, dtype=torch.int64))
        expected = (1.5 * each[0] + 0.5 * each[1]) / 2 + ((1.5 * sources[0] + 0.5 * sources[1]) / 2 + targets) / 2
        value = method.loss(network, rows, ClassWeights(torch.tensor([1.5, 0.5], dtype=torch.float64)))
    assert float(value) == pytest.approx(float(expected), rel=1e-5)


def test_no_method_owns_an_optimizer():
    from pathlib import Path

    import sitewise.bench.methods

    for path in Path(sitewise.bench.methods.__file__).parent.glob("*.py"):
        assert "torch.optim" not in path.read_text(encoding="utf-8"), path.name
