"""Where a shift is concentrated: the column along which g differs is found, without labels."""

import numpy as np
import torch
from scipy import stats
from scipy.special import expit

from sitewise.diagnosis.heterogeneity import shift_concentration, with_own_level


def site(seed, change, n=1500):
    """Rows with log f, the training sites' log g and five columns; `change` is what is added along the third."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, 5))
    z[:, 1] = 0.5 * z[:, 2] + 0.8 * z[:, 1]
    trained = z @ np.array([0.5, 0.5, 0.5, -0.5, 0.0]) - 0.5
    y = rng.random(n) < expit(trained + 0.7 + change * z[:, 2])
    x = rng.normal(size=n) + 2.0 * y
    log_ratio = np.stack([-0.5 * x**2, -0.5 * (x - 2.0) ** 2], axis=1)
    log_g = np.log(np.stack([expit(-trained), expit(trained)], axis=1))
    columns = [torch.tensor(z[:, j : j + 1]) for j in range(5)]
    return torch.tensor(log_ratio), torch.tensor(log_g), columns, torch.ones(n, dtype=torch.float64)


def test_the_column_that_g_differs_along_comes_first():
    first = []
    for seed in range(30):
        concentration = shift_concentration(*site(seed, change=1.0))
        first.append(int(np.argmin([test.p_value for test in concentration])))
    assert np.mean(np.array(first) == 2) >= 0.8


def test_a_shift_of_the_level_alone_is_no_shift_along_a_column():
    p_values = [test.p_value for seed in range(30) for test in shift_concentration(*site(100 + seed, change=0.0))[3:]]
    assert stats.kstest(p_values, "uniform").pvalue > 1e-3


def test_the_level_is_where_predictions_and_g_agree():
    log_ratio, log_g, _, weight = site(7, change=0.0)
    leveled = with_own_level(log_ratio, log_g, weight)
    predicted = torch.softmax(log_ratio + leveled, dim=1).mean(0)
    np.testing.assert_allclose(predicted, leveled.exp().mean(0), atol=1e-6)
    np.testing.assert_allclose(leveled.exp().sum(1), 1.0)


def test_a_constant_column_tells_nothing():
    log_ratio, log_g, _, weight = site(8, change=1.0)
    (concentration,) = shift_concentration(log_ratio, log_g, [torch.ones(len(weight), 1, dtype=torch.float64)], weight)
    assert concentration.p_value == 1.0
    assert concentration.freedom == 0
