"""Windows over time: every row once and in order, each window's own estimate, alarms by the check handed in."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from sitewise import SimulatedFamily, estimate_prevalence
from sitewise.monitoring import COLUMNS, monitor, split_windows
from sitewise.report.timeline import timeline_figure

FAMILY = SimulatedFamily(levels=(2,), n_continuous=0, signal=3.0)


@pytest.fixture(scope="module")
def year():
    """Four quarters of rows, prevalence 10%, 10%, 10%, 40%, rows shuffled."""
    quarters = [FAMILY.site(600, prevalence=[1 - p, p], seed=i) for i, p in enumerate((0.1, 0.1, 0.1, 0.4))]
    log_ratio = np.concatenate([q.log_ratio for q in quarters])
    Z = pd.concat([q.Z for q in quarters], ignore_index=True)
    days = np.repeat(np.arange(4) * 91, 600) + np.tile(np.arange(600) % 90, 4)
    order = np.random.default_rng(0).permutation(len(days))
    dates = pd.Timestamp("2025-01-01") + pd.to_timedelta(days[order], unit="D")
    return log_ratio[order], dates, Z.iloc[order].reset_index(drop=True)


@pytest.mark.parametrize(("n", "window", "sizes"), [(10, 4, [4, 4, 2]), (9, 4, [4, 5]), (3, 10, [3]), (4, 1, [1] * 4)])
def test_windows_of_rows_hold_every_row_once_in_order(n, window, sizes):
    time = pd.Series(np.random.default_rng(n).permutation(n).astype(float))
    windows = split_windows(time, window)
    assert [len(rows) for rows in windows] == sizes
    assert time[np.concatenate(windows)].tolist() == sorted(time)


def test_windows_of_time_leave_empty_ones_out():
    time = pd.Series(pd.to_datetime(["2025-03-02", "2025-01-05", "2025-01-03", "2025-03-30"]))
    assert [rows.tolist() for rows in split_windows(time, "MS")] == [[2, 1], [0, 3]]


def test_the_level_of_each_window_is_its_own(year):
    log_ratio, dates, Z = year
    frame = monitor(log_ratio, dates, Z, window=600, classes=["healthy", "ill"])
    assert list(frame.columns) == list(COLUMNS)
    assert frame["n"].tolist() == [600] * 4
    assert set(frame["class"]) == {"ill"}
    true = [0.1, 0.1, 0.1, 0.4]
    assert ((frame["low"] <= true) & (true <= frame["high"])).sum() >= 3
    assert frame["estimate"].iloc[3] > 0.33
    assert frame["time"].is_monotonic_increasing
    assert not frame["alarm"].any()


def test_without_z_a_window_is_what_its_rows_say_alone(year):
    log_ratio, dates, _ = year
    frame = monitor(log_ratio, dates, window="QS")
    for number, rows in enumerate(split_windows(pd.Series(dates), "QS")):
        alone = estimate_prevalence(log_ratio[rows])
        assert frame["estimate"][number] == pytest.approx(alone.marginal[1], abs=1e-8)


def test_the_check_sees_each_window_and_decides_the_alarm(year):
    log_ratio, dates, Z = year
    seen = []

    def check(rows, estimate):
        seen.append(rows)
        return [0.5, None, 0.01, 0.04][len(seen) - 1]  # Holm over three: 0.5, 0.03, 0.08

    frame = monitor(log_ratio, dates, Z, window=600, check=check)
    assert frame["alarm"].tolist() == [False, False, True, False]
    assert frame["p_value"].isna().tolist() == [False, True, False, False]
    assert sorted(np.concatenate(seen)) == list(range(2400))


def test_weights_and_groups_follow_their_rows(year):
    log_ratio, dates, _ = year
    weight = np.where(np.arange(len(log_ratio)) % 2, 2.0, 0.0)
    frame = monitor(log_ratio, dates, window=1200, sample_weight=weight, model="constant")
    for number, rows in enumerate(split_windows(pd.Series(dates), 1200)):
        alone = estimate_prevalence(log_ratio[rows], sample_weight=weight[rows])
        assert frame["estimate"][number] == pytest.approx(alone.marginal[1], abs=1e-8)


def test_many_classes_have_a_row_each():
    site = SimulatedFamily(n_classes=3, levels=(2,), n_continuous=0).site(400, seed=1)
    frame = monitor(site.log_ratio, np.arange(400.0), window=200, classes=["a", "b", "c"])
    assert frame["class"].tolist() == ["a", "b", "c"] * 2
    np.testing.assert_allclose(frame.groupby("start")["estimate"].sum(), 1)
    assert len(timeline_figure(frame).axes) == 4
    plt.close("all")


def test_all_problems_are_in_one_error():
    log_ratio = np.zeros((3, 2))
    with pytest.raises(ValueError, match="3 problems") as caught:
        monitor(log_ratio, ["2025-01-01", "soon", None], window=0, alarm_level=0.05)
    for words in ("got 'soon' at row 1", "missing in 1 row(s), first at row 2", "got 0"):
        assert words in str(caught.value)
    with pytest.raises(ValueError, match="time holds numbers: give a number of rows"):
        monitor(log_ratio, [1, 2, 3], window="30D")
    with pytest.raises(ValueError, match="above zero"):
        monitor(log_ratio, pd.date_range("2020", periods=len(log_ratio)), window="0D")
    with pytest.raises(ValueError, match="not a length of time"):
        monitor(log_ratio, pd.to_datetime(["2025-01-01"] * 3), window="fortnight")


def test_the_figure_shows_windows_and_alarms(year):
    log_ratio, dates, Z = year
    frame = monitor(log_ratio, dates, Z, window=300, check=lambda rows, _: 0.001 if rows[0] % 2 else 0.9)
    frame.loc[frame["alarm"].idxmin(), "p_value"] = np.nan
    figure = timeline_figure(frame, title="Saint $Mary_")
    lines = {line.get_label(): line for line in figure.axes[0].lines}
    np.testing.assert_allclose(lines["estimate, no labels"].get_ydata(), frame["estimate"])
    assert len(lines["check cannot tell"].get_ydata()) == 1
    assert len(lines["alarm: the check fails"].get_ydata()) == frame["alarm"].sum() > 0
    plt.close(figure)


def test_a_figure_of_one_window_and_of_none():
    frame = pd.DataFrame({"time": [1.0], "estimate": [0.02], "low": [0.01], "high": [0.04], "alarm": [True], "n": [5]})
    plt.close(timeline_figure(frame))
    with pytest.raises(ValueError, match="no windows"):
        timeline_figure(frame.iloc[:0])
    with pytest.raises(ValueError, match="missing: low, n"):
        timeline_figure(frame.drop(columns=["low", "n"]))


def test_the_chance_of_any_false_alarm_is_that_of_the_whole_series():
    """Uniform p-values in 20 windows: some window alarms in about 5% of the series, not in 64% of them."""
    rng, false = np.random.default_rng(0), 0
    log_ratio = rng.normal(size=(40, 2))
    for _ in range(200):
        frame = monitor(log_ratio, np.arange(40), window=2, check=lambda rows, estimate: float(rng.random()))
        false += bool(frame["alarm"].any())
    assert false <= 20  # 10 expected; P(more than 20) < 0.001


@pytest.mark.parametrize("time", [np.arange(7), pd.date_range("2025-01-01", periods=50)], ids=["short", "long"])
def test_times_of_another_length_are_refused(time):
    with pytest.raises(ValueError, match=rf"monitor: time must have one entry a row \(40\), got {len(time)}"):
        monitor(np.random.default_rng(0).normal(size=(40, 2)), time, window=10)
