import math

import pytest
import torch

from sitewise.posterior import combine, em_multiplier, kkt_gap, normalize, observed_log_likelihood

INF = torch.inf


def rows(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_combine_is_bayes_rule():
    # P(x|y) in the odds 1:3, prevalence .2 against .8: odds 0.25 * 3.
    posterior = combine(rows([0.0, math.log(3)]), torch.log(rows(0.8, 0.2))).exp()
    assert posterior[0, 1].item() == pytest.approx(0.75 / 1.75)


def test_normalize_reads_infinities():
    given = rows([INF, 1.0, INF], [-INF, -INF, -INF], [-INF, 2.0, -INF])
    expected = rows([0.5, 0, 0.5], [1 / 3, 1 / 3, 1 / 3], [0, 1, 0])
    torch.testing.assert_close(normalize(given).exp(), expected)


def test_where_f_and_g_contradict_each_other_f_decides():
    posterior = combine(rows([0.0, -INF]), rows(-INF, 0.0)).exp()
    assert posterior.tolist() == [[1.0, 0.0]]


def test_observed_log_likelihood_by_hand():
    f, g, weight = rows([0.2, 0.8], [0.6, 0.4]), rows(0.5, 0.5), rows(1, 3)
    expected = math.log(0.5) + 3 * math.log(0.5)
    assert observed_log_likelihood(f.log(), g.log(), weight).item() == pytest.approx(expected)


def test_gap_is_zero_at_the_optimum_and_bounds_what_is_left():
    f, weight = rows([0.9, 0.1], [0.9, 0.1], [0.1, 0.9]), torch.ones(3, dtype=torch.float64)
    # The optimum of 2 log(.1 + .8 g) + log(.9 - .8 g) is g = 3/4 - 1/24 = 17/24.
    best = rows(17 / 24, 7 / 24)
    assert kkt_gap(f.log(), best.log(), weight) == pytest.approx(0, abs=1e-12)
    other = rows(0.3, 0.7)
    gain = observed_log_likelihood(f.log(), best.log(), weight) - observed_log_likelihood(f.log(), other.log(), weight)
    assert 0 < gain / 3 <= math.log1p(kkt_gap(f.log(), other.log(), weight))


def test_an_em_step_multiplies_g_by_its_factor_and_stays_on_the_simplex():
    f, g, weight = rows([0.9, 0.1], [0.4, 0.6]), rows(0.3, 0.7), rows(1, 2)
    stepped = g * em_multiplier(f.log(), g.log(), weight)
    by_hand = weight @ (f * g / (f * g).sum(1, keepdim=True)) / 3
    torch.testing.assert_close(stepped, by_hand)
    assert stepped.sum().item() == pytest.approx(1)
