"""Laws of expected metrics: soft labels are rows written once for each class, and certainty is `evaluate`."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as peers

from sitewise.evaluation import METRICS, evaluate
from sitewise.performance.choice import best_f1_threshold, recall_threshold
from sitewise.performance.metrics import EXPECTED_METRICS, Predictions, decide


def draw(n_rows, n_classes, seed, ties=False):
    rng = np.random.default_rng(seed)
    probability = rng.dirichlet(np.full(n_classes, 0.7), n_rows)
    if ties:
        probability = np.round(probability, 1)
        probability = (probability + 0.01) / (probability + 0.01).sum(axis=1, keepdims=True)
    return probability, rng.dirichlet(np.full(n_classes, 0.7), n_rows), rng.gamma(1.0, size=n_rows)


def expected(probability, truth, weight, threshold=None):
    metric_values = Predictions.of(probability, threshold).metrics(truth.T[None], weight)
    assert set(metric_values) == set(EXPECTED_METRICS)
    return {name: float(values[0]) for name, values in metric_values.items()}


@pytest.mark.parametrize("threshold", [None, 0.2])
@pytest.mark.parametrize("ties", [False, True])
def test_soft_labels_are_rows_written_once_for_each_class(threshold, ties):
    probability, truth, weight = draw(300, 2, seed=1, ties=ties)
    expected_metrics = expected(probability, truth, weight, threshold)
    y = np.repeat([1, 0], 300)
    score = np.tile(probability[:, 1], 2)
    w = np.concatenate([weight * truth[:, 1], weight * truth[:, 0]])
    called = decide(np.tile(probability, (2, 1)), threshold)
    assert expected_metrics["auroc"] == pytest.approx(peers.roc_auc_score(y, score, sample_weight=w))
    assert expected_metrics["auprc"] == pytest.approx(peers.average_precision_score(y, score, sample_weight=w))
    assert expected_metrics["brier"] == pytest.approx(peers.brier_score_loss(y, score, sample_weight=w))
    assert expected_metrics["nll"] == pytest.approx(peers.log_loss(y, score, sample_weight=w))
    assert expected_metrics["accuracy"] == pytest.approx(peers.accuracy_score(y, called, sample_weight=w))
    assert expected_metrics["positive_f1"] == pytest.approx(peers.f1_score(y, called, sample_weight=w))
    assert expected_metrics["macro_f1"] == pytest.approx(peers.f1_score(y, called, sample_weight=w, average="macro"))
    assert expected_metrics["precision"] == pytest.approx(peers.precision_score(y, called, sample_weight=w))
    assert expected_metrics["recall"] == pytest.approx(peers.recall_score(y, called, sample_weight=w))
    assert expected_metrics["specificity"] == pytest.approx(peers.recall_score(y, called, sample_weight=w, pos_label=0))
    assert expected_metrics["balanced_accuracy"] == pytest.approx(
        peers.balanced_accuracy_score(y, called, sample_weight=w)
    )
    counts = Predictions.of(probability, threshold).confusion(truth.T[None], weight)[0]
    np.testing.assert_allclose(counts, peers.confusion_matrix(y, called, sample_weight=w))


def test_many_classes_are_means_over_each_against_the_rest():
    probability, truth, weight = draw(200, 4, seed=2)
    expected_metrics = expected(probability, truth, weight)
    y = np.repeat(np.arange(4), 200)
    w = (weight[:, None] * truth).T.ravel()
    tiled = np.tile(probability, (4, 1))
    called = tiled.argmax(axis=1)
    assert np.isnan(expected_metrics["positive_f1"])
    assert expected_metrics["macro_f1"] == pytest.approx(peers.f1_score(y, called, sample_weight=w, average="macro"))
    assert expected_metrics["precision"] == pytest.approx(
        peers.precision_score(y, called, sample_weight=w, average="macro")
    )
    areas = [peers.roc_auc_score(y == k, tiled[:, k], sample_weight=w) for k in range(4)]
    assert expected_metrics["auroc"] == pytest.approx(np.mean(areas))
    others = [peers.recall_score(y != k, called != k, sample_weight=w) for k in range(4)]
    assert expected_metrics["specificity"] == pytest.approx(np.mean(others))


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("ties", [False, True])
def test_certain_labels_are_what_evaluate_says(n_classes, ties):
    probability, truth, weight = draw(250, n_classes, seed=3, ties=ties)
    y = truth.argmax(axis=1)
    expected_metrics = expected(probability, np.eye(n_classes)[y], weight)
    for name, metric in evaluate(y, probability, sample_weight=weight).items():
        if metric.value is not None:
            assert expected_metrics[name] == pytest.approx(metric.value), name
    assert set(METRICS) <= set(expected_metrics)


def test_means_over_rows_are_exact_expectations():
    probability, truth, weight = draw(6, 2, seed=4)
    predictions = Predictions.of(probability)
    every = np.array(np.meshgrid(*[[0, 1]] * 6)).reshape(6, -1).T  # all 64 ways the labels may be
    chance = np.prod(np.where(every == 1, truth[:, 1], truth[:, 0]), axis=1)
    metric_values = predictions.metrics((every[:, None, :] == np.arange(2)[:, None]).astype(float), weight)
    mean = predictions.metrics(truth.T[None], weight)
    for name in ("accuracy", "nll", "brier"):
        assert mean[name][0] == pytest.approx(chance @ metric_values[name])


def test_calibration_error_of_a_belief_in_itself_is_zero():
    probability, _, weight = draw(100, 2, seed=5)
    assert expected(probability, probability, weight)["ece"] == pytest.approx(0.0, abs=1e-12)


def f1_at(score, truth, weight, threshold):
    called = score >= threshold
    return 2 * (weight * truth)[called].sum() / (weight[called].sum() + (weight * truth).sum())


@given(st.integers(0, 10_000), st.integers(1, 40), st.booleans())
def test_best_threshold_beats_every_other(seed, n_rows, ties):
    probability, truth, weight = draw(n_rows, 2, seed, ties)
    score, event, weight = probability[:, 1], truth[:, 1], weight + 1e-3
    best = best_f1_threshold(score, event, weight)
    others = [f1_at(score, event, weight, t) for t in [*np.unique(score), 0.0]]
    assert f1_at(score, event, weight, best) == pytest.approx(max(others))


def test_the_best_threshold_is_half_the_best_f1():
    # A known law for scores that are the beliefs themselves: call positive from F*/2 on.
    rng = np.random.default_rng(6)
    score = rng.beta(0.5, 2.0, 20_000)
    weight = np.ones_like(score)
    best = best_f1_threshold(score, score, weight)
    assert best == pytest.approx(f1_at(score, score, weight, best) / 2, abs=1e-3)


@given(st.integers(0, 10_000), st.integers(2, 40), st.floats(0.01, 1.0))
def test_recall_threshold_is_the_highest_that_is_enough(seed, n_rows, wanted):
    probability, truth, weight = draw(n_rows, 2, seed, ties=True)
    score, event, weight = probability[:, 1], truth[:, 1] + 1e-6, weight + 1e-3
    threshold = recall_threshold(score, event, weight, wanted)

    def recall(at):
        return (weight * event)[score >= at].sum() / (weight * event).sum()

    assert recall(threshold) >= wanted - 1e-9
    higher = score[score >= threshold].min()
    assert recall(np.nextafter(higher, 2.0)) < wanted
