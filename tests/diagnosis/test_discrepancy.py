"""The distribution of a quadratic form, and directions left out of a vector."""

import numpy as np
import pytest
import torch
from scipy.stats import chi2

from sitewise.diagnosis.discrepancy import leave_out, quadratic_p_value


@pytest.mark.parametrize(("degrees", "statistic"), [(1, 3.84), (5, 11.07), (12, 6.3)])
def test_even_eigenvalues_give_chi_squared(degrees, statistic):
    expected = chi2.sf(statistic, degrees)
    assert quadratic_p_value(2.5 * statistic, torch.full((degrees,), 2.5).double()) == pytest.approx(expected, rel=1e-6)


def test_uneven_eigenvalues_agree_with_draws():
    eigenvalues = torch.tensor([3.0, 1.0, 0.5, 0.1, 0.01], dtype=torch.float64)
    draws = np.random.default_rng(0).chisquare(1, (200_000, 5)) @ eigenvalues.numpy()
    for level in (0.5, 0.1, 0.05, 0.01):
        p_value = quadratic_p_value(float(np.quantile(draws, 1 - level)), eigenvalues)
        assert p_value == pytest.approx(level, rel=0.12)


def test_nothing_that_varies_is_no_evidence():
    assert quadratic_p_value(0.0, torch.zeros(3).double()) == 1.0


def test_what_is_left_out_is_gone_and_the_rest_stays():
    generator = torch.Generator().manual_seed(0)
    directions = torch.randn(8, 3, generator=generator, dtype=torch.float64)
    metric = torch.rand(8, generator=generator, dtype=torch.float64) + 0.1
    out = leave_out(directions, metric)
    torch.testing.assert_close(out @ directions, torch.zeros(8, 3).double(), atol=1e-10, rtol=0)
    torch.testing.assert_close(out @ out, out)
    vector = torch.randn(8, generator=generator, dtype=torch.float64)
    weighted = directions.T @ (metric * (out @ vector))
    torch.testing.assert_close(weighted, torch.zeros(3).double(), atol=1e-10, rtol=0)


def test_no_direction_leaves_everything():
    metric = torch.ones(4).double()
    torch.testing.assert_close(leave_out(torch.zeros(4, 2).double(), metric), torch.eye(4).double())
