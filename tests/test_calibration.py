import numpy as np
import pandas as pd
import pytest
import torch
from scipy.optimize import minimize

import sitewise as sw
from sitewise import calibration as room
from sitewise.calibration import fit_calibration


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
    arguments = [torch.tensor(v) for v in (log_ratio, smooth, log_prevalence, np.ones(200))]
    assert fit_calibration(*arguments, "temperature").slope.isfinite().all()


def test_not_converging_warns_and_says_what_to_do(monkeypatch):
    log_ratio, y, log_prevalence = labeled(3, n_rows=50)
    solver = room.newton
    monkeypatch.setattr(room, "newton", lambda *a, **k: solver(*a, **{**k, "max_iter": 1}))
    with pytest.warns(UserWarning, match="did not converge in 1 iterations.*use method='temperature'"):
        sw.calibrate_log_ratio(log_ratio, y, log_prevalence)


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_log_prevalence_must_be_logs_of_probabilities(value):
    log_ratio, y, log_prevalence = labeled(2, n_rows=20)
    log_prevalence[3, 0] = value
    with pytest.raises(ValueError, match=r"got NaN or \+inf"):
        sw.calibrate_log_ratio(log_ratio, y, log_prevalence)
