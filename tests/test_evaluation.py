import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as sk
from sklearn.calibration import calibration_curve

from patience import no_hang
from sitewise.evaluation import METRICS, Metric, evaluate, reliability


def drawn(seed, n_rows=300, n_classes=2, digits=None):
    """Labels, probabilities that know something of them, and weights; `digits` rounds, which makes ties."""
    rng = np.random.default_rng(seed)
    y = rng.integers(n_classes, size=n_rows)
    logits = rng.normal(size=(n_rows, n_classes)) + np.eye(n_classes)[y]
    if digits is not None:
        logits = logits.round(digits)
    probability = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return y, probability, rng.integers(0, 4, n_rows).astype(float)


def values(*args, **kwargs):
    return {name: metric.value for name, metric in evaluate(*args, **kwargs).items()}


def same(left, right, tolerance=1e-9):
    assert left.keys() == right.keys()
    for name in left:
        assert left[name] == pytest.approx(right[name], abs=tolerance), name


# Golden numbers: scikit-learn


@pytest.mark.parametrize("digits", [None, 1])
@pytest.mark.parametrize("weighted", [False, True])
def test_two_classes_agree_with_scikit_learn(digits, weighted):
    y, p, weight = drawn(1, digits=digits)
    w = weight if weighted else None
    ours, guess, score = values(y, p, sample_weight=w), p.argmax(1), p[:, 1]
    theirs = {
        "accuracy": sk.accuracy_score(y, guess, sample_weight=w),
        "positive_f1": sk.f1_score(y, guess, sample_weight=w),
        "macro_f1": sk.f1_score(y, guess, average="macro", sample_weight=w),
        "balanced_accuracy": sk.balanced_accuracy_score(y, guess, sample_weight=w),
        "nll": sk.log_loss(y, p, sample_weight=w),
        "brier": sk.brier_score_loss(y, score, sample_weight=w),
        "auroc": sk.roc_auc_score(y, score, sample_weight=w),
        "auprc": sk.average_precision_score(y, score, sample_weight=w),
    }
    same({name: ours[name] for name in theirs}, theirs)


@pytest.mark.parametrize("weighted", [False, True])
def test_four_classes_agree_with_scikit_learn(weighted):
    y, p, weight = drawn(2, n_classes=4, digits=1)
    w = weight if weighted else None
    ours, guess = values(y, p, sample_weight=w), p.argmax(1)
    theirs = {
        "accuracy": sk.accuracy_score(y, guess, sample_weight=w),
        "macro_f1": sk.f1_score(y, guess, average="macro", sample_weight=w),
        "balanced_accuracy": sk.balanced_accuracy_score(y, guess, sample_weight=w),
        "nll": sk.log_loss(y, p, sample_weight=w),
        "brier": np.average(((p - np.eye(4)[y]) ** 2).sum(axis=1), weights=w),
        "auroc": sk.roc_auc_score(y, p, multi_class="ovr", average="macro", sample_weight=w)
        if w is None
        else np.mean([sk.roc_auc_score(y == k, p[:, k], sample_weight=w) for k in range(4)]),
        "auprc": np.mean([sk.average_precision_score(y == k, p[:, k], sample_weight=w) for k in range(4)]),
    }
    same({name: ours[name] for name in theirs}, theirs)
    assert ours["positive_f1"] is None


@pytest.mark.parametrize("n_classes", [2, 3])
def test_ece_agrees_with_scikit_learns_quantile_bins(n_classes):
    y, p, _ = drawn(3, n_rows=1500, n_classes=n_classes)
    score = p[:, 1] if n_classes == 2 else p.max(axis=1)
    event = y if n_classes == 2 else p.argmax(axis=1) == y
    observed, predicted = calibration_curve(event, score, n_bins=15, strategy="quantile")
    assert values(y, p)["ece"] == pytest.approx(np.abs(observed - predicted).mean())  # 15 bins of 100 rows
    table = reliability(y, p, n_bins=15)
    np.testing.assert_allclose(table["observed"], observed)
    np.testing.assert_allclose(table["mean_predicted"], predicted)
    assert table["count"].tolist() == [100] * 15


# Laws


@pytest.mark.parametrize("n_classes", [2, 3])
def test_perfect_predictions(n_classes):
    y = np.arange(30) % n_classes
    result = values(y, np.eye(n_classes)[y])
    for name in METRICS:
        expected = 0.0 if name in ("nll", "brier", "ece") else 1.0
        if name == "positive_f1" and n_classes > 2:
            expected = None
        assert result[name] == (None if expected is None else pytest.approx(expected, abs=1e-12)), name


def test_certain_and_wrong_is_finite():
    y = np.array([0, 1, 0, 1])
    assert values(y, np.eye(2)[1 - y])["nll"] == pytest.approx(-np.log(1e-15))


@given(seed=st.integers(0, 10_000), n_rows=st.integers(1, 60), n_classes=st.integers(2, 4))
def test_rows_have_no_order_and_weight_two_is_two_rows(seed, n_rows, n_classes):
    y, p, weight = drawn(seed, n_rows, n_classes, digits=0)
    weight[0] = 1
    result = values(y, p, sample_weight=weight)
    order = np.random.default_rng(seed).permutation(n_rows)
    same(values(y[order], p[order], sample_weight=weight[order]), result)
    rows = np.repeat(np.arange(n_rows), weight.astype(int))
    same(values(y[rows], p[rows]), result)
    same(values(y, p, sample_weight=4 * weight), result)


@given(seed=st.integers(0, 10_000), n_classes=st.integers(3, 5))
def test_names_of_classes_do_not_matter(seed, n_classes):
    y, p, _ = drawn(seed, n_classes=n_classes)
    order = np.random.default_rng(seed).permutation(n_classes)
    same(values(np.argsort(order)[y], p[:, order]), values(y, p))


def test_ece_is_the_gap_of_the_reliability_diagram():
    y, p, _ = drawn(4, n_rows=777, digits=1)
    table = reliability(y, p, n_bins=15)
    gap = np.abs(table["mean_predicted"] - table["observed"])
    assert values(y, p)["ece"] == pytest.approx((gap * table["count"]).sum() / 777)
    assert table["count"].sum() == 777
    assert table["mean_predicted"].is_monotonic_increasing


def test_equal_probabilities_share_a_bin():
    table = reliability([0, 1, 1, 0, 1], np.full((5, 2), 0.5))
    assert table.to_dict("list") == {"mean_predicted": [0.5], "observed": [0.6], "count": [5]}
    assert values([0, 1, 1, 0, 1], np.full((5, 2), 0.5))["ece"] == pytest.approx(0.1)


def test_the_two_f1_are_different_numbers():
    y = np.array([0] * 90 + [1] * 10)
    p = np.full((100, 2), (0.9, 0.1))
    p[90:95] = (0.2, 0.8)
    result = values(y, p)
    assert result["positive_f1"] == pytest.approx(2 / 3)
    assert result["macro_f1"] == pytest.approx((2 / 3 + 180 / 185) / 2)


# Undefined is None


@pytest.mark.parametrize("label", [0, 1])
def test_one_class_present_is_no_accident(label):
    p = np.array([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3]])
    result = evaluate([label] * 3, p, n_resamples=20)
    assert list(result) == list(METRICS)
    assert result["auroc"] == Metric(None, None, None)
    assert result["balanced_accuracy"].value == 1 - label
    if label == 0:
        assert result["auprc"] == Metric(None)
        assert result["positive_f1"] == Metric(None)  # no positive, none predicted: 0/0
        assert result["macro_f1"].value == 1
    else:
        assert result["positive_f1"].value == 0
        assert result["macro_f1"].value == 0


def test_a_class_without_rows_is_left_out_of_means():
    y, p, _ = drawn(5, n_classes=3)
    kept = y < 2
    result = values(y[kept], p[kept])
    assert result["auroc"] == pytest.approx(np.mean([sk.roc_auc_score(y[kept] == k, p[kept][:, k]) for k in range(2)]))
    same(values(y, p, sample_weight=kept.astype(float)), result)


@pytest.mark.parametrize("n_resamples", [0, 30])
def test_one_row_is_enough(n_resamples):
    result = evaluate([1], [[0.3, 0.7]], n_resamples=n_resamples)
    assert result["accuracy"] == Metric(1.0)
    assert result["nll"].value == pytest.approx(-np.log(0.7))
    assert result["auroc"] == Metric(None)


def test_rare_positives_absent_from_resamples_leave_no_nan():
    y = np.zeros(40, dtype=int)
    y[0] = 1
    p = np.random.default_rng(0).dirichlet([5, 1], 40)
    metrics = evaluate(y, p, n_resamples=100)
    assert all(metric.low <= metric.value <= metric.high for metric in metrics.values())
    assert metrics["auroc"].value == pytest.approx(sk.roc_auc_score(y, p[:, 1]))
    assert metrics["auroc"].low < metrics["auroc"].high


# Intervals


def test_no_resamples_no_interval():
    y, p, _ = drawn(6)
    assert all(metric.low is None and metric.high is None for metric in evaluate(y, p).values())


def test_intervals_are_those_of_a_plain_bootstrap():
    y, p, weight = drawn(7, n_rows=200, digits=1)
    result = evaluate(y, p, sample_weight=weight, n_resamples=150, random_state=3, level=0.8)
    rng = np.random.default_rng(3)
    plain = []
    for rows in rng.integers(200, size=(150, 200)):
        plain.append(values(y[rows], p[rows], sample_weight=weight[rows]))
    for name, metric in result.items():
        low, high = np.quantile([sample[name] for sample in plain], [0.1, 0.9])
        assert (metric.low, metric.high) == pytest.approx((low, high)), name


def test_chunks_change_nothing(monkeypatch):
    y, p, _ = drawn(8)
    whole = evaluate(y, p, n_resamples=50, random_state=1)
    monkeypatch.setattr("sitewise.evaluation.CHUNK", 7 * len(y))
    chunked = evaluate(y, p, n_resamples=50, random_state=1)
    for name in METRICS:
        assert (chunked[name].low, chunked[name].high) == pytest.approx((whole[name].low, whole[name].high))


def test_groups_are_drawn_whole():
    """Ten copies of each row as a group: the interval is that of the single rows, not of ten times as many."""
    y, p, _ = drawn(9, n_rows=100)
    single = evaluate(y, p, n_resamples=200)
    copies = np.repeat(np.arange(100), 10)
    grouped = evaluate(y[copies], p[copies], groups=[f"patient {i:03}" for i in copies], n_resamples=200)
    alone = evaluate(y[copies], p[copies], n_resamples=200)
    for name in METRICS:
        assert (grouped[name].low, grouped[name].high) == pytest.approx((single[name].low, single[name].high)), name
    width = {k: m["accuracy"].high - m["accuracy"].low for k, m in (("grouped", grouped), ("alone", alone))}
    assert width["alone"] < 0.5 * width["grouped"]
    assert evaluate(y, p, groups=np.zeros(100), n_resamples=20)["accuracy"].low is None  # one patient says nothing


def test_intervals_cover():
    truth = 0.7
    covered = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        y = rng.integers(2, size=150)
        right = rng.random(150) < truth
        p = np.where((y == right)[:, None], [0.3, 0.7], [0.7, 0.3])
        accuracy = evaluate(y, p, n_resamples=100, random_state=seed, level=0.9)["accuracy"]
        covered += accuracy.low <= truth <= accuracy.high
    assert 0.83 <= covered / 200 <= 0.96


def test_two_hundred_resamples_of_five_thousand_rows_take_seconds():
    y, p, _ = drawn(10, n_rows=5000)
    with no_hang():
        accuracy = evaluate(y, p, n_resamples=200)["accuracy"]
    assert accuracy.low < accuracy.value < accuracy.high


# Input


def test_containers_and_names_of_classes():
    y, p, _ = drawn(11)
    expected = values(y, p)
    frame = pd.DataFrame(p, columns=["healthy", "ill"], index=np.arange(300) + 7)
    same(values(pd.Series(y, index=frame.index), frame), expected)
    same(values(torch.tensor(y), torch.tensor(p)), expected)
    same(values(y.tolist(), p.astype(np.float32)), expected, 1e-5)
    names = np.array(["healthy", "ill"])
    same(values(names[y], p, classes=names), expected)
    assert values(names[y], p[:, [1, 0]], classes=names[::-1])["nll"] == pytest.approx(expected["nll"])


def test_all_problems_at_once():
    with pytest.raises(ValueError, match="evaluate: 6 problems") as error:
        evaluate(
            [0, 1, np.nan, 5],
            [[0.5, 0.5], [0.4, 0.4], [0.1, 0.9], [1, 0]],
            sample_weight=[1, 1, 1],
            level=95,
            n_resamples=-1,
        )
    for text in ("y is missing in 1", "got 5.0 at row 3", "sum to one", "sample_weight", "level", "n_resamples"):
        assert text in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([0, 1], [0.5, 0.5]), r"shape \(rows, classes\)"),
        (([], np.empty((0, 2))), "empty"),
        (([0], [[np.nan, 0.5]]), "NaN in 1 row"),
        (([0], [[1.5, -0.5]]), r"\[0, 1\].*row 0"),
        (([0], [[np.inf, 0]]), r"\[0, 1\]"),
        (([0, 1, 1], [[0.5, 0.5]]), "one entry a row"),
        (([[0], [1]], [[0.5, 0.5], [0.5, 0.5]]), "one label a row"),
        ((None, [[0.5, 0.5]]), "one label a row"),
        (([-1], [[0.5, 0.5]]), "class indices 0..1"),
    ],
)
def test_bad_input_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        evaluate(*arguments)
    with pytest.raises(ValueError, match=message):
        reliability(*arguments)


def test_bad_classes_are_named():
    p = [[0.5, 0.5], [0.5, 0.5]]
    with pytest.raises(ValueError, match="2 different values"):
        evaluate(["a", "b"], p, classes=["a", "a"])
    with pytest.raises(ValueError, match="got 'c' at row 1"):
        evaluate(["a", "c"], p, classes=["a", "b"])
    with pytest.raises(ValueError, match="one entry a row"):
        evaluate(["a", "b", "a"], p, classes=["a", "b"])
    with pytest.raises(ValueError, match="n_bins"):
        reliability([0, 1], p, n_bins=0)
