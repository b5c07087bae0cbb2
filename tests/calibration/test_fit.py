import numpy as np
import pandas as pd
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import log_softmax
from sklearn.utils import check_random_state

import sitewise as sw
from sitewise.calibration import Calibration
from sitewise.calibration import fit as fitting
from sitewise.calibration.fit import centre, fit_calibration, resample_calibration
from sitewise.estimator.source.held_out import calibrate_rows, smoothed_targets


def labeled(n_classes, n_rows=3000, seed=0, prevalence=None, slope=1.0):
    """Rows whose log-ratios are `slope` times the true ones, plus a constant of its own for every row."""
    rng = np.random.default_rng(seed)
    prevalence = np.full(n_classes, 1 / n_classes) if prevalence is None else np.asarray(prevalence)
    y = rng.choice(n_classes, n_rows, p=prevalence)
    x = 1.5 * np.eye(n_classes)[y] + rng.normal(size=(n_rows, n_classes))
    log_f = 1.5 * x
    with np.errstate(divide="ignore"):
        log_prevalence = np.log(np.tile(prevalence, (n_rows, 1)))
    return slope * log_f + rng.normal(0, 3, (n_rows, 1)), y, log_prevalence


def nll(slope, bias, log_ratio, y, log_prevalence):
    centred = log_ratio - log_ratio.mean(axis=1, keepdims=True)
    logits = slope * centred + bias + log_prevalence
    logits = logits - logits.max(axis=1, keepdims=True)
    return -(logits[np.arange(len(y)), y] - np.log(np.exp(logits).sum(axis=1))).mean()


def by_scipy(method, log_ratio, y, log_prevalence):
    """The same optimum by another optimizer, in another parametrization (biases free but the last)."""
    n_classes = log_ratio.shape[1]
    n_slopes = n_classes if method == "vector" else 1
    n_biases = 0 if method == "temperature" else n_classes - 1

    def unpack(p):
        bias = np.append(p[n_slopes:], 0.0) if n_biases else np.zeros(n_classes)
        return p[:n_slopes] if n_slopes > 1 else np.full(n_classes, p[0]), bias - bias.mean()

    start = np.r_[np.ones(n_slopes), np.zeros(n_biases)]
    bounds = [(0, None)] * n_slopes + [(None, None)] * n_biases
    options = {"ftol": 1e-15, "gtol": 1e-9, "maxiter": 5000, "maxfun": 100_000}
    found = minimize(lambda p: nll(*unpack(p), log_ratio, y, log_prevalence), start, bounds=bounds, options=options)
    return unpack(found.x)


@pytest.mark.parametrize("n_classes", [2, 3, 5])
@pytest.mark.parametrize("method", ["temperature", "bias_corrected", "vector"])
def test_scaling_equals_an_independent_optimizers(n_classes, method):
    log_ratio, y, log_prevalence = labeled(n_classes, slope=2.5)
    log_ratio = log_ratio + 0.5 * np.arange(n_classes)
    calibration = sw.calibrate_log_ratio(log_ratio, y, log_prevalence, method)
    if method == "vector" and n_classes == 2:  # only the sum of the slopes is determined
        method = "bias_corrected"
    slope, bias = by_scipy(method, log_ratio, y, log_prevalence)
    np.testing.assert_allclose(calibration.slope, slope, atol=1e-5)
    np.testing.assert_allclose(calibration.bias, bias, atol=1e-5)


def test_none_changes_nothing():
    log_ratio, y, log_prevalence = labeled(3)
    calibration = sw.calibrate_log_ratio(log_ratio, y, log_prevalence, "none")
    np.testing.assert_array_equal(calibration(log_ratio), log_ratio)


@pytest.mark.parametrize("method", ["temperature", "bias_corrected", "vector"])
def test_a_constant_added_to_a_row_changes_no_probability(method):
    """Trap: w∘(l + c) is not w∘l + c, so rows must be centred first."""
    log_ratio, y, log_prevalence = labeled(3)
    shift = np.random.default_rng(1).normal(0, 20, (len(y), 1))
    plain = sw.calibrate_log_ratio(log_ratio, y, log_prevalence, method)
    shifted = sw.calibrate_log_ratio(log_ratio + shift, y, log_prevalence, method)
    expected = sw.adjust(plain(log_ratio), log_prevalence)
    np.testing.assert_allclose(sw.adjust(shifted(log_ratio + shift), log_prevalence), expected, atol=1e-8)
    np.testing.assert_allclose(sw.adjust(plain(log_ratio + shift), log_prevalence), expected, atol=1e-8)


def test_log_f_is_scaled_and_not_log_f_plus_log_g():
    """Trap: scaling after the prior is added makes the temperature depend on the calibration site's prevalence."""
    for prevalence in ([0.5, 0.5], [0.97, 0.03]):
        log_ratio, y, log_prevalence = labeled(2, n_rows=60_000, prevalence=prevalence, slope=4.0, seed=5)
        calibration = sw.calibrate_log_ratio(log_ratio, y, log_prevalence, "temperature")
        assert float(calibration.slope[0]) == pytest.approx(0.25, rel=0.06)


def test_weight_two_is_two_rows():
    log_ratio, y, log_prevalence = labeled(3, n_rows=300)
    weight = np.where(np.arange(300) % 3 == 0, 2.0, 1.0)
    twice = np.r_[np.arange(300), np.flatnonzero(weight == 2)]
    weighted = sw.calibrate_log_ratio(log_ratio, y, log_prevalence, sample_weight=weight)
    repeated = sw.calibrate_log_ratio(log_ratio[twice], y[twice], log_prevalence[twice])
    np.testing.assert_allclose(weighted.slope, repeated.slope, atol=1e-7)
    np.testing.assert_allclose(weighted.bias, repeated.bias, atol=1e-7)


def test_slopes_never_turn_the_order_around():
    log_ratio, y, log_prevalence = labeled(2)
    assert sw.calibrate_log_ratio(-log_ratio, y, log_prevalence, "vector").slope.tolist() == [0.0, 0.0]


def test_infinite_log_ratios_stay_certain_and_finite_fits_stay_finite():
    log_ratio, y, log_prevalence = labeled(2)
    log_ratio[0, 1 - y[0]] = -np.inf
    calibration = sw.calibrate_log_ratio(log_ratio, y, log_prevalence)
    assert torch.isfinite(calibration.slope).all()
    assert sw.adjust(calibration(log_ratio), log_prevalence)[0, y[0]] == 1.0


def test_containers_are_kept():
    log_ratio, y, log_prevalence = labeled(2, n_rows=50)
    calibration = sw.calibrate_log_ratio(torch.tensor(log_ratio), y, log_prevalence[0])
    frame = pd.DataFrame(log_ratio, columns=["no", "yes"], index=range(100, 150))
    assert isinstance(calibration(torch.tensor(log_ratio)), torch.Tensor)
    assert calibration(frame).index.equals(frame.index)
    assert list(calibration(frame).columns) == ["no", "yes"]


def test_everything_wrong_is_said_at_once():
    log_ratio, y, log_prevalence = labeled(3, n_rows=20)
    with pytest.raises(ValueError, match="4 problems") as caught:
        sw.calibrate_log_ratio(
            log_ratio, np.where(y == 2, 9, y), log_prevalence[:, :2], "platt", sample_weight=[-1.0] * 20
        )
    for words in ("method must be one of", "class indices 0..2", "log_prevalence must have shape", "not be negative"):
        assert words in str(caught.value)


@pytest.mark.parametrize(
    ("y", "method", "words"),
    [
        (np.zeros(20), "temperature", "one class only"),
        (np.arange(20) % 2, "vector", "no row of class"),
        (np.where(np.arange(20) == 3, np.nan, np.arange(20) % 3), "vector", "unknown label"),
    ],
)
def test_labels_that_cannot_calibrate_are_refused(y, method, words):
    log_ratio, _, log_prevalence = labeled(3, n_rows=20)
    with pytest.raises(ValueError, match=words):
        sw.calibrate_log_ratio(log_ratio, y, log_prevalence, method)


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("method", ["temperature", "bias_corrected", "vector"])
@pytest.mark.parametrize("factor", [300.0, 1e-4])
def test_overconfident_log_ratios_are_no_harder(n_classes, method, factor):
    log_ratio, y, log_prevalence = labeled(n_classes)
    plain = sw.calibrate_log_ratio(log_ratio, y, log_prevalence, method)
    scaled = sw.calibrate_log_ratio(log_ratio * factor, y, log_prevalence, method)
    np.testing.assert_allclose(scaled.slope * factor, plain.slope, rtol=1e-6)
    np.testing.assert_allclose(scaled.bias, plain.bias, atol=1e-6)


def test_a_certainty_written_as_a_number_is_a_certainty():
    log_ratio, y, log_prevalence = labeled(3)
    sure, huge = log_ratio.copy(), log_ratio.copy()
    sure[0, y[0]], huge[0, y[0]] = np.inf, 1e300
    expected = sw.calibrate_log_ratio(sure, y, log_prevalence, "temperature")
    np.testing.assert_allclose(
        sw.calibrate_log_ratio(huge, y, log_prevalence, "temperature").slope, expected.slope, rtol=1e-2
    )


def test_soft_labels_are_weighted_labels():
    """A row of soft labels (3/4, 1/4) is three rows of the one class and one of the other."""
    log_ratio, _, log_prevalence = labeled(2, n_rows=200)
    soft = np.tile([0.75, 0.25], (200, 1))
    soft[::2] = soft[::2, ::-1]
    arguments = [torch.tensor(v) for v in (log_ratio, soft, log_prevalence, np.ones(200))]
    ours = fit_calibration(*arguments, "bias_corrected")
    labels, weight = np.repeat([0, 1], 200), soft.T.reshape(-1)
    rows = np.tile(np.arange(200), 2)
    hard = sw.calibrate_log_ratio(log_ratio[rows], labels, log_prevalence[rows], "bias_corrected", sample_weight=weight)
    np.testing.assert_allclose(ours.slope, hard.slope, atol=1e-6)
    np.testing.assert_allclose(ours.bias, hard.bias, atol=1e-6)


def test_a_class_that_g_calls_impossible_takes_no_soft_label():
    log_ratio, y, log_prevalence = labeled(3, n_rows=200, prevalence=[0.5, 0.5, 0.0])
    smooth = 0.9 * np.eye(3)[y] + 0.1 / 3
    possible = smooth * [1, 1, 0]
    slopes = []
    for soft in (smooth, possible / possible.sum(axis=1, keepdims=True)):
        arguments = [torch.tensor(v) for v in (log_ratio, soft, log_prevalence, np.ones(200))]
        slopes.append(fit_calibration(*arguments, "temperature").slope)
    np.testing.assert_allclose(slopes[0], slopes[1], rtol=1e-6)


def test_not_converging_warns_and_says_what_to_do(monkeypatch):
    log_ratio, y, log_prevalence = labeled(3, n_rows=50)
    solver = fitting.newton
    monkeypatch.setattr(fitting, "newton", lambda *a, **k: solver(*a, **{**k, "max_iter": 1}))
    with pytest.warns(UserWarning, match="did not converge in 1 iterations.*use method='temperature'"):
        sw.calibrate_log_ratio(log_ratio, y, log_prevalence)


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_log_prevalence_must_be_logs_of_probabilities(value):
    log_ratio, y, log_prevalence = labeled(2, n_rows=20)
    log_prevalence[3, 0] = value
    with pytest.raises(ValueError, match=r"got NaN or \+inf"):
        sw.calibrate_log_ratio(log_ratio, y, log_prevalence)


def standard_errors(calibration, log_ratio, y, log_prevalence):
    """Of slopes and biases, from the inverse information at the optimum, by automatic differentiation."""
    log_ratio, prior = centre(torch.tensor(log_ratio)), torch.tensor(log_prevalence)
    n_classes = log_ratio.shape[1]
    biases = torch.eye(n_classes, dtype=torch.float64)[:, 1:] - 1 / n_classes
    expand = torch.block_diag(torch.eye(n_classes, dtype=torch.float64), biases)

    def negative_log_likelihood(parameters):
        slope, bias = (expand @ parameters).chunk(2)
        return torch.nn.functional.cross_entropy(slope * log_ratio + bias + prior, torch.tensor(y), reduction="sum")

    optimum = torch.cat([calibration.slope, calibration.bias[1:] - calibration.bias[0]])
    information = torch.autograd.functional.hessian(negative_log_likelihood, optimum)
    return (expand @ torch.linalg.inv(information) @ expand.T).diagonal().sqrt().chunk(2)


def spreads(calibration):
    return np.r_[calibration.resampled_slope.std(0), calibration.resampled_bias.std(0)]


def test_resamples_spread_as_the_information_says():
    data = labeled(3, n_rows=2000, prevalence=[0.5, 0.3, 0.2])
    calibration = sw.calibrate_log_ratio(*data, n_resamples=300, random_state=0)
    np.testing.assert_allclose(spreads(calibration), torch.cat(standard_errors(calibration, *data)), rtol=0.2)
    centres = torch.cat([calibration.resampled_slope.mean(0), calibration.resampled_bias.mean(0)])
    around = torch.cat([calibration.slope, calibration.bias])
    np.testing.assert_array_less((centres - around).abs(), 0.3 * spreads(calibration))


def test_resamples_repeat_by_seed_and_differ_between_seeds():
    data = labeled(3, n_rows=200)
    first, again, other = (sw.calibrate_log_ratio(*data, n_resamples=5, random_state=seed) for seed in (1, 1, 2))
    assert torch.equal(first.resampled_slope, again.resampled_slope)
    assert torch.equal(first.resampled_bias, again.resampled_bias)
    assert not torch.isclose(first.resampled_slope, other.resampled_slope, rtol=1e-6).any()
    assert torch.equal(first.slope, sw.calibrate_log_ratio(*data).slope)


def test_rows_repeated_within_groups_are_no_new_evidence():
    data = [np.repeat(part, 4, axis=0) for part in labeled(3, n_rows=500)]
    settings = {"n_resamples": 300, "random_state": 0}
    as_rows = sw.calibrate_log_ratio(*data, **settings)
    patients = [f"patient {number}" for number in np.repeat(np.arange(500), 4)]
    as_groups = sw.calibrate_log_ratio(*data, groups=patients, **settings)
    np.testing.assert_allclose(spreads(as_groups) / spreads(as_rows), 2.0, rtol=0.2)


@pytest.mark.parametrize("n_classes", [2, 4])
@pytest.mark.parametrize("method", ["temperature", "bias_corrected", "vector"])
@pytest.mark.parametrize("of_two_rows", [False, True])
def test_a_batch_of_resamples_is_a_loop_over_weighted_fits(monkeypatch, n_classes, method, of_two_rows):
    monkeypatch.setattr(fitting, "SLICE", 3 * 120 * n_classes)  # seven resamples in slices of three
    data = labeled(n_classes, n_rows=120, slope=3.0)
    sample_weight = np.random.default_rng(0).uniform(0.5, 2.0, 120)
    groups = np.arange(120) // 2 if of_two_rows else None
    batch = sw.calibrate_log_ratio(
        *data, method, sample_weight=sample_weight, groups=groups, n_resamples=7, random_state=3
    )
    codes = None if groups is None else torch.tensor(groups)
    weights = fitting.resample_weight(torch.tensor(sample_weight), codes, 7, check_random_state(3))
    for weight, resample in zip(weights, batch.resamples(), strict=True):
        alone = sw.calibrate_log_ratio(*data, method, sample_weight=weight)
        np.testing.assert_allclose(resample.slope, alone.slope, atol=1e-6)
        np.testing.assert_allclose(resample.bias, alone.bias, atol=1e-6)


@pytest.mark.parametrize("method", ["temperature", "bias_corrected", "vector"])
def test_resamples_start_at_the_fit_itself_and_warn_where_they_do_not_converge(monkeypatch, method):
    rows = [torch.tensor(v) for v in labeled(3, n_rows=50, slope=4.0)]
    rows = [rows[0], torch.eye(3, dtype=torch.float64)[rows[1]], rows[2], torch.ones(50, dtype=torch.float64)]
    calibration = fit_calibration(*rows, method)
    solver = fitting.newton
    monkeypatch.setattr(fitting, "newton", lambda *a, **k: solver(*a, **{**k, "max_iter": 0}))
    with pytest.warns(UserWarning, match="did not converge in 0 iterations"):
        (resample,) = resample_calibration(calibration, *rows, n_resamples=1, random_state=0).resamples()
    np.testing.assert_allclose(resample.slope, calibration.slope, rtol=1e-10)
    np.testing.assert_allclose(resample.bias, calibration.bias, atol=1e-10)


def test_whole_groups_are_drawn_as_many_as_there_are():
    groups = torch.tensor([2, 0, 1, 0, 2, 0])
    weight = torch.tensor([1.0, 2.0, 1.0, 0.5, 3.0, 0.0], dtype=torch.float64)
    weights = fitting.resample_weight(weight, groups, 50, check_random_state(0))
    counts = weights[:, :5] / weight[:5] - 1 / 5  # five rows take part; the last has no weight
    np.testing.assert_allclose(counts, counts.round(), atol=1e-12)
    assert torch.equal(weights[:, 5], torch.zeros(50, dtype=torch.float64))
    assert torch.allclose(counts[:, 0], counts[:, 4])
    assert torch.allclose(counts[:, 1], counts[:, 3])
    np.testing.assert_allclose(counts[:, :3].sum(1), 3.0)
    assert counts.std(0).min() > 0


def test_rows_without_weight_change_no_resample():
    data = labeled(3, n_rows=100)
    weight = np.where(np.arange(100) % 4 == 0, 0.0, 1.0)
    settings = {"n_resamples": 4, "random_state": 0}
    weighted = sw.calibrate_log_ratio(*data, sample_weight=weight, **settings)
    without = sw.calibrate_log_ratio(*(part[weight > 0] for part in data), **settings)
    np.testing.assert_allclose(weighted.resampled_slope, without.resampled_slope, atol=1e-7)


@pytest.mark.parametrize("method", ["bias_corrected", "vector"])
def test_a_class_that_was_not_drawn_keeps_a_bias_of_ordinary_size(method):
    log_ratio, y, log_prevalence = labeled(3, n_rows=120, prevalence=[0.5, 0.46, 0.04])
    calibration = sw.calibrate_log_ratio(log_ratio, y, log_prevalence, method, n_resamples=400, random_state=0)
    weights = fitting.resample_weight(torch.ones(120, dtype=torch.float64), None, 400, check_random_state(0))
    absent = (weights[:, y == 2] < 0.5).all(1)
    assert absent.any()
    assert calibration.resampled_slope.isfinite().all()
    # Without that rest of a row the optimum lies at -∞, and Newton stops near -20.
    assert calibration.resampled_bias[absent].abs().max() < 8


def test_a_resample_that_is_easy_to_separate_keeps_a_slope_of_ordinary_size():
    """The one wrong row is absent from a third of the resamples, whose slopes alone would have no optimum."""
    log_ratio = np.outer(np.r_[np.linspace(-3, -0.5, 50), np.linspace(0.5, 3, 50)], [-0.5, 0.5])
    y = np.arange(100) // 50
    y[0] = 1
    calibration = sw.calibrate_log_ratio(log_ratio, y, np.log([0.5, 0.5]), n_resamples=60, random_state=0)
    assert calibration.resampled_slope.max() < 10 * float(calibration.slope[0])


def test_no_calibration_has_no_uncertainty():
    data = labeled(3, n_rows=20)
    calibration = sw.calibrate_log_ratio(*data, "none", n_resamples=4)
    assert torch.equal(calibration.resampled_slope, torch.ones(4, 3, dtype=torch.float64))
    assert torch.equal(calibration.resampled_bias, torch.zeros(4, 3, dtype=torch.float64))


def test_resamples_are_calibrations():
    log_ratio, y, log_prevalence = labeled(3, n_rows=100)
    calibration = sw.calibrate_log_ratio(log_ratio, y, log_prevalence, n_resamples=3, random_state=0)
    for position, other in enumerate(calibration.resamples()):
        centred = log_ratio - log_ratio.mean(1, keepdims=True)
        slope, bias = calibration.resampled_slope[position].numpy(), calibration.resampled_bias[position].numpy()
        np.testing.assert_allclose(other(log_ratio), slope * centred + bias)
        assert other.resamples() == []
    assert len(calibration.resamples()) == 3
    plain = sw.calibrate_log_ratio(log_ratio, y, log_prevalence)
    assert plain.resampled_slope is None
    assert plain.resampled_bias is None
    assert plain.resamples() == []


@pytest.mark.parametrize("n_resamples", [-1, 2.5, "many", True, None])
def test_n_resamples_must_be_a_whole_number(n_resamples):
    data = labeled(3, n_rows=20)
    with pytest.raises(ValueError, match="2 problems") as caught:
        sw.calibrate_log_ratio(*data, n_resamples=n_resamples, groups=[1, 2])
    assert f"n_resamples must be a whole number from 0 up, got {n_resamples!r}" in str(caught.value)
    assert "groups must have one entry a row (20), got 2" in str(caught.value)


def test_one_group_cannot_show_how_groups_differ():
    data = labeled(3, n_rows=50)
    with pytest.raises(ValueError, match=r"one group only.*at least two"):
        sw.calibrate_log_ratio(*data, groups=["a"] * 50, n_resamples=2)
    assert sw.calibrate_log_ratio(*data, groups=["a"] * 50).resamples() == []


def test_soft_labels_are_resampled_too():
    log_ratio, y, log_prevalence = labeled(3, n_rows=100)
    rows = [torch.tensor(v) for v in (log_ratio, 0.9 * np.eye(3)[y] + 0.1 / 3, log_prevalence, np.ones(100))]
    calibration = resample_calibration(fit_calibration(*rows, "vector"), *rows, n_resamples=2, random_state=0)
    weight = fitting.resample_weight(rows[3], None, 2, check_random_state(0))[1]
    alone = fit_calibration(*rows[:3], weight, "vector")
    np.testing.assert_allclose(calibration.resampled_slope[1], alone.slope, atol=1e-6)


@pytest.mark.parametrize("method", ["none", "temperature", "bias_corrected", "vector"])
def test_undo_gives_the_centred_log_ratio_back_whatever_constant_a_row_has(method):
    data = labeled(4, n_rows=200, slope=2.0)
    calibration = sw.calibrate_log_ratio(*data, method)
    raw_log_ratio = torch.tensor(data[0])
    raw_log_ratio[0, 1] = -torch.inf
    raw_log_ratio[1, 2] = torch.inf
    raw_log_ratio[2, :3] = -torch.inf
    raw_log_ratio[3] = -torch.inf
    shift = torch.tensor(np.random.default_rng(1).normal(0, 20, (200, 1)))
    back = calibration.undo(calibration.apply(raw_log_ratio) + shift)
    np.testing.assert_allclose(back, centre(raw_log_ratio), atol=1e-10)


def test_a_slope_of_zero_cannot_be_undone():
    slope = torch.tensor([1.0, 0.0, 2.0], dtype=torch.float64)
    calibration = Calibration("vector", slope, torch.zeros_like(slope))
    with pytest.raises(ValueError, match=r"slope of class 1 is zero.*Keep the raw log-ratios"):
        calibration.undo(torch.zeros(2, 3, dtype=torch.float64))


def few_rows(seed):
    """A part of few rows: classes that are separated by much or not at all, in any unit, and a prior that says much."""
    rng = np.random.default_rng(seed)
    n_classes = int(rng.integers(2, 5))
    y = np.concatenate([np.arange(10 * n_classes) % n_classes, rng.integers(0, n_classes, rng.integers(0, 60))])
    log_ratio = rng.normal(size=(len(y), n_classes))
    log_ratio[np.arange(len(y)), y] += rng.choice([0, 1, 3, 10, 100])
    log_ratio *= 10 ** rng.uniform(-3, 3)
    g = rng.dirichlet(np.full(n_classes, rng.choice([0.05, 0.5, 5])), len(y) if rng.random() < 0.5 else 1)
    method = str(rng.choice(["vector", "bias_corrected", "temperature"]))
    return log_ratio, np.broadcast_to(np.log(g + 1e-12), log_ratio.shape), y, method


@pytest.mark.parametrize("first", range(0, 300, 100))
def test_a_part_of_few_rows_is_calibrated_to_its_optimum(first):
    """Where all posteriors are 0 or 1 the loss does not bend, and beside a bound a step is cut: Newton goes on."""
    for seed in range(first, first + 100):
        log_ratio, log_prevalence, y, method = few_rows(seed)
        n_classes = log_ratio.shape[1]
        tensors = [torch.tensor(part) for part in (log_ratio, log_prevalence, y)]
        weight = torch.ones(len(y), dtype=torch.float64)
        found = calibrate_rows(*tensors, weight, method, n_classes)  # a warning is an error
        counts = torch.bincount(tensors[2], minlength=n_classes)
        targets = smoothed_targets(tensors[2], counts).numpy()
        centred = log_ratio - log_ratio.mean(axis=1, keepdims=True)

        def loss(slope, bias, rows=centred, prior=log_prevalence, soft=targets):
            return -float(np.mean((soft * log_softmax(slope * rows + bias + prior, axis=1)).sum(axis=1)))

        slope, bias = found.slope.numpy(), found.bias.numpy()
        best = loss(slope, bias)
        for factor in (0.0, 0.9, 1.1, 2.0):  # the loss is convex: where no neighbour is better, nothing is
            assert loss(factor * slope, bias) >= best - 1e-9, seed
            if found.method != "temperature":
                assert loss(factor * slope, factor * bias) >= best - 1e-9, seed
                for k in range(n_classes):
                    assert loss(slope, bias + factor * np.eye(n_classes)[k]) >= best - 1e-9, seed
                    assert loss(slope, bias - factor * np.eye(n_classes)[k]) >= best - 1e-9, seed
