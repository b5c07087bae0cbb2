"""Which columns to take for z: found where relations differ, and nothing where none does."""

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from scipy.special import expit

import sitewise as sw
from sitewise.diagnosis.heterogeneity import site_interactions


def table(seed, effects, n_sites=3, n=600, n_columns=8):
    """Sites whose log-odds are common but for the effects (by column) that change from site to site."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n_sites * n, n_columns))
    X[:, 1] = X[:, 0] * 0.6 + 0.8 * X[:, 1]  # a neighbour of the first column, whose own effect is common
    X[:, 2] = X[:, 2] > 0
    site = np.repeat(np.arange(n_sites), n)
    X[:, 3] += 0.5 * site  # a shift of P(x) alone
    common = rng.normal(0, 0.5, n_columns)
    logit = X @ common + rng.normal(0, 0.7, n_sites)[site]
    for column, size in effects.items():
        logit = logit + (np.linspace(-1, 1, n_sites) * size)[site] * X[:, column]
    y = (rng.random(len(site)) < expit(logit)).astype(int)
    frame = pd.DataFrame(X, columns=[f"c{j}" for j in range(n_columns)])
    frame["word"] = rng.choice(["red", "blue", None], len(frame))
    return frame, y, site


def test_the_columns_that_differ_are_found_and_not_their_neighbours():
    frame, y, site = table(0, {0: 1.0, 2: 1.0})
    suggestion = sw.suggest_confounders(frame, y, site)
    assert set(suggestion.confounders) == {"c0", "c2"}
    assert suggestion.table.loc[["c0", "c2"], "suggested"].all()
    assert suggestion.rehearsal.index[0] == "none"
    assert len(suggestion.rehearsal) == 3
    assert np.isfinite(suggestion.rehearsal[["as_trained", "adapted", "gain"]].to_numpy()).all()
    assert "suggested z: " in str(suggestion)


def test_mostly_nothing_is_suggested_where_nothing_differs():
    wrong = [bool(sw.suggest_confounders(*table(100 + s, {}, n=300), rehearse=False).confounders) for s in range(20)]
    assert sum(wrong) <= 4  # one in twenty is expected; five have a chance of 0.003


def test_under_the_null_the_statistic_is_chi_squared():
    rng = np.random.default_rng(1)
    values = []
    for _ in range(60):
        X = torch.tensor(rng.normal(size=(800, 2)))
        site = torch.arange(800) % 2
        y = torch.tensor(rng.random(800) < expit(X[:, 0].numpy() + 0.5 * site.numpy())).long()
        test = site_interactions(X, [X[:, :1], X[:, 1:]], y, site, torch.ones(800).double(), 2)[0]
        assert test.freedom == 1
        values.append(test.statistic)
    assert stats.kstest(values, stats.chi2(1).cdf).pvalue > 1e-3


def test_three_classes_and_an_array_work():
    frame, y, site = table(2, {0: 1.5}, n=500)
    three = np.where((y == 1) & (np.random.default_rng(0).random(len(y)) < 0.5), 2, y)
    suggestion = sw.suggest_confounders(frame.drop(columns="word").to_numpy(), three, site, rehearse=False)
    assert suggestion.confounders[0] == "x0"


def test_the_order_of_rows_does_not_matter():
    """Of levels that are equally frequent, an identity number's, the first ones of the table were taken."""
    frame, y, site = table(7, {}, n=60)
    frame["id"] = np.arange(len(y)).astype(str)
    order = np.random.default_rng(0).permutation(len(y))
    found = sw.suggest_confounders(frame, y, site, rehearse=False).table
    turned = sw.suggest_confounders(frame.iloc[order], y[order], site[order], rehearse=False).table
    pd.testing.assert_frame_equal(turned.loc[found.index], found, atol=1e-6)


def test_only_candidates_are_suggested():
    frame, y, site = table(3, {0: 1.5})
    suggestion = sw.suggest_confounders(frame, y, site, candidates=["c5", "word"], rehearse=False)
    assert list(suggestion.table.index) in (["c5", "word"], ["word", "c5"])


def test_bad_input_is_refused_at_once():
    frame, y, site = table(4, {}, n=50)
    with pytest.raises(ValueError, match=r"at least two sites are needed in sample_domain, got 1"):
        sw.suggest_confounders(frame, y, np.zeros(len(y)))
    with pytest.raises(ValueError, match=r"candidates must be columns of X; these are not: \['age'\]"):
        sw.suggest_confounders(frame, y, site, candidates=["age"])
    with pytest.raises(ValueError, match=r"y has 3 row\(s\), X has 150"):
        sw.suggest_confounders(frame, [0, 1, 0], site)
