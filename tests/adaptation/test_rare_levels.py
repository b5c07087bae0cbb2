"""Levels of z with too few rows to learn from count as missing, with a warning; those that tell something stay."""

import warnings

import numpy as np
import pandas as pd
import pytest

import sitewise as sw
from sitewise.adaptation.rare_levels import MOST_COEFFICIENTS


def site(n_rows, level, g, seed=0):
    """Rows of two classes with exact log-ratios."""
    rng = np.random.default_rng(seed)
    y = rng.random(n_rows) < g
    x = rng.normal(2.0 * y, 1.0)
    return np.c_[np.zeros(n_rows), 2.0 * x - 2.0], pd.DataFrame({"id": np.asarray(level).astype(str)})


@pytest.mark.parametrize("rows_a_level", [1, 2, 3])
def test_a_level_for_each_row_or_two_leaves_the_constant(rows_a_level):
    for seed in range(3):
        log_ratio, Z = site(300, np.arange(300) // rows_a_level, 0.1, seed)
        with pytest.warns(UserWarning, match="'id': 300 of its 300|'id': 1[05]0 of its 1[05]0"):
            estimate = sw.estimate_prevalence(log_ratio, Z)
        constant = sw.estimate_prevalence(log_ratio)
        np.testing.assert_allclose(estimate.marginal, constant.marginal, atol=1e-6)
        low, high = estimate.interval()
        assert low[1] <= 0.1 <= high[1]


def test_rare_levels_beside_a_full_one_are_pooled_and_it_stays():
    level = np.where(np.arange(1200) < 1000, 0, np.arange(1200))
    log_ratio, Z = site(1200, level, 0.1)
    with pytest.warns(UserWarning, match="200 of its 201 levels"):
        estimate = sw.estimate_prevalence(log_ratio, Z)
    assert estimate.confounders.variables[0].levels == ("0",)
    assert estimate.marginal[1] == pytest.approx(0.1, abs=0.03)


def test_another_confounder_keeps_what_it_tells():
    rng = np.random.default_rng(0)
    sex = rng.integers(0, 2, 800)
    log_ratio, Z = site(800, np.arange(800), np.where(sex == 1, 0.5, 0.05))
    Z["sex"] = np.array(["f", "m"])[sex]
    with pytest.warns(UserWarning, match="'id'"):
        estimate = sw.estimate_prevalence(log_ratio, Z)
    new = pd.DataFrame({"id": ["never seen"] * 2, "sex": ["f", "m"]})
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a level that was pooled, or would have been, is no surprise
        g = np.exp(estimate.log_prevalence(new))[:, 1]
    assert g[0] < 0.15
    assert g[1] > 0.35


def test_levels_that_predict_others_of_their_kind_are_kept():
    """Pairs of rows of one class: each tells of the other."""
    rng = np.random.default_rng(0)
    pair = np.repeat(rng.random(400) < 0.5, 2)
    x = rng.normal(3.0 * pair, 1.0)
    log_ratio = np.c_[np.zeros(800), 3.0 * x - 4.5]
    Z = pd.DataFrame({"id": np.repeat(np.arange(400), 2).astype(str)})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        estimate = sw.estimate_prevalence(log_ratio, Z, model="additive")
    assert len(estimate.confounders.variables[0].levels) == 400
    assert estimate.marginal[1] == pytest.approx(pair.mean(), abs=0.05)


@pytest.mark.filterwarnings("ignore:confounder 'id'")
def test_a_row_of_weight_two_is_two_rows_here_too():
    level, weight = np.arange(120) // 2, np.tile([2.0, 1.0], 60)
    log_ratio, Z = site(120, level, 0.3)
    again = np.repeat(np.arange(120), weight.astype(int))
    weighted = sw.estimate_prevalence(log_ratio, Z, sample_weight=weight)
    repeated = sw.estimate_prevalence(log_ratio[again], Z.iloc[again])
    assert weighted.confounders == repeated.confounders
    np.testing.assert_allclose(weighted.marginal, repeated.marginal, atol=1e-6)


def test_ten_thousand_levels_cost_seconds():
    log_ratio, Z = site(20_000, np.arange(20_000) % 10_000, 0.2)
    with pytest.warns(UserWarning, match="10000 of its 10000 levels"):
        estimate = sw.estimate_prevalence(log_ratio, Z)
    assert estimate.marginal[1] == pytest.approx(0.2, abs=0.03)


def test_no_more_levels_than_can_be_solved_for():
    n_levels = MOST_COEFFICIENTS + 50
    log_ratio, Z = site(6 * n_levels, np.arange(6 * n_levels) % n_levels, 0.2)
    with pytest.warns(UserWarning, match=f"50 of its {n_levels} levels"):
        estimate = sw.estimate_prevalence(log_ratio, Z, model="additive", strength=100.0)
    assert len(estimate.confounders.variables[0].levels) == MOST_COEFFICIENTS


def test_rows_in_chunks_are_judged_alike():
    log_ratio, Z = site(300, np.arange(300), 0.1)
    with pytest.warns(UserWarning, match="300 of its 300"):
        chunked = sw.estimate_prevalence(sw.ArrayChunks(log_ratio, Z, rows=70))
    with pytest.warns(UserWarning, match="300 of its 300"):
        whole = sw.estimate_prevalence(log_ratio, Z)
    np.testing.assert_allclose(chunked.marginal, whole.marginal, atol=1e-9)
