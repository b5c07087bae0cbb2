"""Label shift from a confusion matrix, by hand, by its laws and against the package `abstention`."""

import warnings

import numpy as np
import pytest
import torch

from sitewise.bench.methods.weights import (
    bbse,
    confusion,
    correct_pseudo_labels,
    hard,
    prior_from_weights,
    project_to_simplex,
    rlls,
)


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


def scores(n_rows, prior, rng):
    """Labels from a prior and the uncalibrated probabilities of an imperfect classifier."""
    n_classes = len(prior)
    y = rng.choice(n_classes, n_rows, p=prior)
    logits = 1.5 * np.eye(n_classes)[y] + rng.normal(size=(n_rows, n_classes))
    probability = np.exp(logits)
    return probability / probability.sum(axis=1, keepdims=True), y


def example():
    """300 labeled rows, and 500 of a site that lacks class 2."""
    rng = np.random.default_rng(0)
    valid, y = scores(300, [0.1, 0.2, 0.3, 0.4], rng)
    target, _ = scores(500, [0.6, 0.3, 0.0, 0.1], rng)
    return valid, y, target


def known_shift(n_classes, seed):
    """A confusion matrix, the weights of a new site, and the mean prediction they imply."""
    rng = np.random.default_rng(seed)
    prior, target = rng.dirichlet(np.full(n_classes, 5.0)), rng.dirichlet(np.full(n_classes, 2.0))
    given = rng.dirichlet(np.ones(n_classes), n_classes).T / 2 + np.eye(n_classes) / 2  # column j: P(ŷ|y=j)
    return tensor(given * prior), tensor(target / prior), tensor(given @ target), tensor(target)


# The confusion matrix


def test_confusion_by_hand():
    probability = tensor([[0.9, 0.1], [0.4, 0.6], [0.3, 0.7], [0.2, 0.8]])
    y = torch.tensor([0, 0, 1, 1])
    torch.testing.assert_close(hard(probability), tensor([[1, 0], [0, 1], [0, 1], [0, 1]]))
    torch.testing.assert_close(confusion(hard(probability), y), tensor([[0.25, 0.0], [0.25, 0.5]]))
    torch.testing.assert_close(confusion(probability, y), tensor([[0.325, 0.125], [0.175, 0.375]]))


def test_a_weight_of_two_is_a_row_twice():
    probability, y, _ = example()
    probability, y = tensor(probability), torch.tensor(y)
    twice = torch.arange(len(y)) % 3 == 0
    weighted = confusion(probability, y, 1 + twice.double())
    torch.testing.assert_close(
        weighted, confusion(torch.cat([probability, probability[twice]]), torch.cat([y, y[twice]]))
    )


def test_columns_sum_to_the_prior_and_rows_to_the_mean_prediction():
    probability, y, _ = example()
    C = confusion(tensor(probability), torch.tensor(y))
    torch.testing.assert_close(C.sum(dim=0), tensor(np.bincount(y) / len(y)))
    torch.testing.assert_close(C.sum(dim=1), tensor(probability.mean(axis=0)))


# Weights


def test_weights_by_hand():
    """P(y) = (1/2, 1/2) with 80% and 60% right; the new site has P(y=1) = 3/4, so 0.25·0.2 + 0.75·0.6 = 0.5 say 1."""
    C = tensor([[0.4, 0.2], [0.1, 0.3]])
    torch.testing.assert_close(bbse(C, tensor([0.5, 0.5])), tensor([0.5, 1.5]))
    torch.testing.assert_close(prior_from_weights(tensor([0.5, 1.5]), C.sum(dim=0)), tensor([0.25, 0.75]))
    # Fewer ones than even a site without them would show: 0.2 of its zeros look like ones.
    torch.testing.assert_close(bbse(C, tensor([0.9, 0.1])), tensor([2.5, 0.0]))


@pytest.mark.parametrize("n_classes", [2, 3, 10])
@pytest.mark.parametrize("seed", range(3))
def test_a_known_shift_comes_back(n_classes, seed):
    C, weights, mean_prediction, target = known_shift(n_classes, seed)
    for found in (bbse(C, mean_prediction), rlls(C, mean_prediction, 1e12, 1e12)):
        torch.testing.assert_close(found, weights, atol=1e-7, rtol=1e-7)
        torch.testing.assert_close(prior_from_weights(found, C.sum(dim=0)), target, atol=1e-7, rtol=1e-7)


@pytest.mark.parametrize("alpha", [0.01, 0.5])
def test_no_shift_gives_weights_of_one(alpha):
    C, *_ = known_shift(4, 0)
    torch.testing.assert_close(bbse(C, C.sum(dim=1)), torch.ones(4, dtype=torch.float64))
    torch.testing.assert_close(rlls(C, C.sum(dim=1), 500, 500, alpha=alpha), torch.ones(4, dtype=torch.float64))


def test_permuting_the_classes_permutes_the_weights():
    valid, y, target = example()
    order = np.array([2, 0, 3, 1])
    C, mean = confusion(tensor(valid), torch.tensor(y)), tensor(target.mean(axis=0))
    permuted = confusion(tensor(valid[:, order]), torch.tensor(np.argsort(order)[y]))
    for alpha in (0.01, 0.05):
        torch.testing.assert_close(
            rlls(permuted, mean[order], 300, 500, alpha=alpha),
            rlls(C, mean, 300, 500, alpha=alpha)[order],
            atol=1e-7,
            rtol=0,
        )
    torch.testing.assert_close(bbse(permuted, mean[order]), bbse(C, mean)[order])


def test_weights_are_relative_to_the_sample_behind_the_confusion_matrix():
    """Trap: a validation sample unlike the training data; its weights times the training prior are another answer."""
    rng = np.random.default_rng(3)
    target_prior, training_prior = np.array([0.6, 0.3, 0.1]), np.array([0.1, 0.1, 0.8])
    valid, y = scores(40_000, [0.2, 0.5, 0.3], rng)  # neither the training data's prior nor the new site's
    target, _ = scores(40_000, target_prior, rng)
    C, mean = confusion(hard(tensor(valid)), torch.tensor(y)), hard(tensor(target)).mean(dim=0)
    for weights in (bbse(C, mean), rlls(C, mean, len(y), len(target))):
        right = prior_from_weights(weights, C.sum(dim=0)).numpy()
        np.testing.assert_allclose(right, target_prior, atol=0.02)
        assert np.abs(prior_from_weights(weights, tensor(training_prior)).numpy() - target_prior).max() > 0.2


def test_a_class_that_is_never_seen_gets_no_weight():
    C = tensor([[0.4, 0.1, 0.0], [0.1, 0.4, 0.0], [0.0, 0.0, 0.0]])
    for weights in (bbse(C, tensor([0.5, 0.5, 0.0])), rlls(C, tensor([0.5, 0.5, 0.0]), 100, 100)):
        assert torch.isfinite(weights).all()
        torch.testing.assert_close(prior_from_weights(weights, C.sum(dim=0)), tensor([0.5, 0.5, 0.0]))


def test_weights_that_say_nothing_leave_the_prior():
    C = tensor([[0.3, 0.7], [0.0, 0.0]])  # one class is always predicted, and the new site shows the other
    weights = bbse(C, tensor([0.0, 1.0]))
    torch.testing.assert_close(prior_from_weights(weights, C.sum(dim=0)), tensor([0.3, 0.7]))


def test_too_few_rows_for_the_largest_shift_leave_the_weights_at_one():
    """By hand: σ_min = 0.4, 1/√100 = 0.1, so a shift of at most 1 asks for 1 / 0.3² = 11.1 rows."""
    C, mean_prediction = tensor([[0.5, 0.0], [0.0, 0.4]]), tensor([0.3, 0.6])
    adapted = rlls(C, mean_prediction, 100, 11)
    assert (adapted - 1).abs().min() > 0.3
    for n_target, largest_shift, expected in [
        (11, 1.0, tensor([1.0, 1.0])),
        (12, 1.0, adapted),
        (11, 1.1, adapted),
        (12, 0.9, tensor([1.0, 1.0])),
    ]:
        torch.testing.assert_close(rlls(C, mean_prediction, 100, n_target, largest_shift=largest_shift), expected)
    torch.testing.assert_close(rlls(C, mean_prediction, 6, 1e9, largest_shift=1.0), tensor([1.0, 1.0]))  # 1/√6 > σ_min


@pytest.mark.parametrize("alpha", [0.001, 0.01, 0.03, 0.1, 0.3])
@pytest.mark.parametrize("predict", [hard, torch.clone])
def test_no_other_weights_have_a_smaller_regularized_error(alpha, predict):
    valid, y, target = example()
    C = confusion(predict(tensor(valid)), torch.tensor(y)).numpy()
    mean = predict(tensor(target)).mean(dim=0).numpy()
    bound = np.log(2 * 4 / 0.05)
    strength = alpha * 3 * (2 * bound / 900 + np.sqrt(2 * bound / 300))

    def error(w):
        return np.linalg.norm(w @ C.T - mean, axis=-1) + strength * np.linalg.norm(w - 1, axis=-1)

    found = rlls(tensor(C), tensor(mean), 300, 500, alpha=alpha).numpy()
    rng = np.random.default_rng(0)
    steps = 10.0 ** rng.uniform(-8, 0, (20_000, 1)) * rng.normal(size=(20_000, 4))
    assert error(found) <= error(np.maximum(found + steps, 0)).min() + 1e-12
    assert error(found) <= error(np.ones(4)) + 1e-12


# Golden values


def test_bbse_equals_abstention():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = pytest.importorskip("abstention.label_shift", reason="abstention comes with the extra bench")
        valid, y, target = example()
        expected = [
            theirs.BBSEImbalanceAdapter(soft=soft)(np.eye(4)[y], target, valid).multipliers for soft in (False, True)
        ]
    for predict, weights in zip((hard, torch.clone), expected, strict=True):
        C = confusion(predict(tensor(valid)), torch.tensor(y))
        torch.testing.assert_close(bbse(C, predict(tensor(target)).mean(dim=0)), tensor(weights))


@pytest.mark.parametrize(
    ("predict", "alpha", "theirs"),
    [
        (hard, 0.01, [8.2496022, 0.0, 0.0981407, 0.2148507]),
        (hard, 0.03, [8.1164076, 0.0, 0.1160385, 0.2210390]),
        (torch.clone, 0.01, [8.2569277, 0.4405591, 0.0, 0.1274343]),
        (torch.clone, 0.03, [8.1075928, 0.4960373, 0.0, 0.1392420]),
    ],
)
def test_rlls_equals_abstention(predict, alpha, theirs):
    """Recorded from abstention 0.1.3.1 with its problem handed to cvxpy 1.9.3 (Clarabel, tolerance 1e-13)."""
    valid, y, target = example()
    C = confusion(predict(tensor(valid)), torch.tensor(y))
    ours = rlls(C, predict(tensor(target)).mean(dim=0), len(y), len(target), alpha=alpha)
    torch.testing.assert_close(ours, tensor(theirs), atol=2e-6, rtol=0)


# Noisy labels


def test_noise_of_two_classes_has_its_closed_form():
    p = torch.linspace(0, 1, 11, dtype=torch.float64)
    right0, right1 = 0.9, 0.7
    noise = tensor([[right0, 1 - right0], [1 - right1, right1]])
    corrected = correct_pseudo_labels(torch.stack([1 - p, p], dim=1), noise)
    torch.testing.assert_close(corrected[:, 1], ((p + right0 - 1) / (right0 + right1 - 1)).clamp(0, 1))
    torch.testing.assert_close(corrected.sum(dim=1), torch.ones(11, dtype=torch.float64))


@pytest.mark.parametrize("n_classes", [2, 3, 5])
def test_known_noise_is_undone(n_classes):
    rng = np.random.default_rng(n_classes)
    truth = tensor(rng.dirichlet(np.ones(n_classes), 20))
    noise = tensor(rng.dirichlet(np.ones(n_classes), n_classes) / 2 + np.eye(n_classes) / 2)  # row k: P(ŷ|y=k)
    torch.testing.assert_close(correct_pseudo_labels(truth @ noise, noise), truth)
    impossible = correct_pseudo_labels(tensor(np.eye(n_classes)), noise)  # surer than the noise allows
    torch.testing.assert_close(impossible, tensor(np.eye(n_classes)), atol=0.35, rtol=0)
    assert (impossible >= 0).all()
    torch.testing.assert_close(impossible.sum(dim=1), torch.ones(n_classes, dtype=torch.float64))


def test_labels_that_say_nothing_leave_every_class_alike():
    noise = tensor([[0.8, 0.2], [0.8, 0.2]])
    torch.testing.assert_close(correct_pseudo_labels(tensor([[0.8, 0.2]]), noise), tensor([[0.5, 0.5]]))


def test_the_projection_by_hand_and_by_search():
    rows = tensor([[0.2, 0.3, 0.5], [1.4, -0.1, -0.3], [0.8, 0.6, -0.4], [1.0, 1.0, 1.0]])
    expected = tensor([[0.2, 0.3, 0.5], [1.0, 0.0, 0.0], [0.6, 0.4, 0.0], [1 / 3, 1 / 3, 1 / 3]])
    torch.testing.assert_close(project_to_simplex(rows), expected)
    rng = np.random.default_rng(0)
    row, others = rng.normal(size=4), rng.dirichlet(np.full(4, 0.3), 20_000)
    nearest = project_to_simplex(tensor(row)[None])[0].numpy()
    assert np.linalg.norm(nearest - row) <= np.linalg.norm(others - row, axis=1).min()
