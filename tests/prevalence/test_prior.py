"""What training sites say of a new one, and what f's own error leaves of its evidence: equations 18b and 18c."""

import numpy as np
import pytest
import torch

from sitewise.prevalence import SitePrior
from sitewise.prevalence.base import ConstantPrevalence
from sitewise.prevalence.prior import FREEDOM, missing_information, student_scale

EVEN = ConstantPrevalence(torch.tensor([0.5, 0.5], dtype=torch.float64).log())


def tempering(n_rows, n_source=float("inf"), missing=1.0, trusted_rows=float("inf")):
    return SitePrior(EVEN, n_source=n_source, missing=missing, trusted_rows=trusted_rows).tempering(n_rows)


def test_nothing_is_tempered_as_the_source_grows_or_where_f_is_certain():
    assert tempering(1000) == 1.0
    assert tempering(1000, 1e12) == pytest.approx(1.0)
    assert tempering(1000, 100, 0.0) == 1.0
    assert 0 < tempering(1e9, 100) < 1e-6


def test_a_weak_f_is_that_of_two_samples_compared():
    """The variance of a difference of means is 1/n + 1/m: as if n m / (n + m) rows had been seen."""
    for n, m in ((10, 1000), (500, 500), (4000, 30)):
        assert n * tempering(n, m) == pytest.approx(n * m / (n + m))


def test_tempering_grows_with_all_that_is_unknown():
    trust = (float("inf"), 1000.0, 10.0)
    at = [tempering(500, 1000, missing, rows) for missing in (0.1, 0.5, 1.0) for rows in trust]
    assert at == sorted(at[:3], reverse=True) + sorted(at[3:6], reverse=True) + sorted(at[6:], reverse=True)
    assert at[0] > at[3] > at[6]


def test_more_rows_than_are_trusted_tell_nothing_new():
    assert tempering(1e9, trusted_rows=100.0) * 1e9 == pytest.approx(100, rel=1e-3)
    assert tempering(1, trusted_rows=0.0) == 0.0
    assert tempering(0, trusted_rows=0.0) == 0.0


@pytest.mark.parametrize("n_classes", [2, 3])
def test_what_is_missing_goes_from_nothing_to_all_whichever_way_classes_are_numbered(n_classes):
    rng = np.random.default_rng(0)
    log_g = torch.log_softmax(torch.tensor(rng.normal(size=(400, n_classes))), dim=1)
    weight = torch.tensor(rng.uniform(0.5, 2, size=400))
    signal = torch.tensor(rng.normal(size=(400, n_classes)))
    shares = [missing_information(scale * signal, log_g, weight) for scale in (0.0, 1.0, 3.0, 1e4)]
    assert shares[0] == pytest.approx(1.0)
    assert shares[1] > shares[2] > shares[3]
    assert shares[3] < 0.01
    order = torch.randperm(n_classes, generator=torch.Generator().manual_seed(0))
    again = missing_information(signal[:, order], log_g[:, order], weight)
    assert again == pytest.approx(shares[1])


def test_a_prior_says_what_its_model_says():
    prior = SitePrior(EVEN, n_source=500.0, missing=0.5, trusted_rows=1000.0)
    codes = torch.zeros(3, 0, dtype=torch.float64)
    assert torch.equal(prior.log_prob(codes), EVEN.log_prob(codes))
    assert prior.schema is None
    assert prior.tempering(1000) == pytest.approx(1 / (1 + 1000 * (0.5 / 500 + 0.001)))


def test_the_scale_is_that_of_the_sites_once_they_are_many():
    drawn = torch.tensor(0.4 * np.random.default_rng(1).standard_t(FREEDOM, size=4000)) ** 2
    assert student_scale(drawn, 1.5) == pytest.approx(0.4, rel=0.05)
    assert student_scale(drawn[:0], 1.5) == 1.5
    assert student_scale(torch.full((1,), 1.5**2, dtype=torch.float64), 1.5) == pytest.approx(1.5)
    few, more = (student_scale(torch.zeros(count, dtype=torch.float64), 1.5) for count in (1, 30))
    assert 1.0 < few < 1.5  # one tells hardly anything
    assert more < 0.5
