"""What f's own error leaves of a new site's evidence: the laws of equations 18b to 18d."""

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_t

from sitewise.prevalence import (
    ConstantPrevalence,
    SourcePrevalence,
    discount,
    excess_between_sites,
    missing_information,
)
from sitewise.prevalence.source import level_spread, surprise


def test_nothing_is_discounted_as_the_source_grows_or_where_f_is_certain():
    assert discount(1000, 1e12, 1.0) == pytest.approx(1.0)
    assert discount(1000, 100, 0.0) == 1.0
    assert 0 < discount(1e9, 100, 1.0) < 1e-6


def test_a_weak_f_is_that_of_two_samples_compared():
    """The variance of a difference of means is 1/n + 1/m: as if n m / (n + m) rows had been seen."""
    for n, m in ((10, 1000), (500, 500), (4000, 30)):
        assert n * discount(n, m, 1.0) == pytest.approx(n * m / (n + m))


def test_the_discount_grows_with_all_that_is_unknown():
    at = [discount(500, 1000, missing, between) for missing in (0.1, 0.5, 1.0) for between in (0.0, 0.001, 0.1)]
    assert at == sorted(at[:3], reverse=True) + sorted(at[3:6], reverse=True) + sorted(at[6:], reverse=True)
    assert at[0] > at[3] > at[6]
    assert discount(1e9, 1e9, 0.0, 0.01) * 1e9 == pytest.approx(100, rel=1e-3)  # 1 / between rows, and no more


@pytest.mark.parametrize("n_classes", [2, 3])
def test_what_is_missing_goes_from_nothing_to_all_whichever_way_classes_are_numbered(n_classes):
    rng = np.random.default_rng(0)
    log_g = torch.log_softmax(torch.tensor(rng.normal(size=(400, n_classes))), dim=1)
    weight = torch.tensor(rng.uniform(0.5, 2, size=400))
    signal = torch.tensor(rng.normal(size=(400, n_classes)))
    found = [missing_information(scale * signal, log_g, weight) for scale in (0.0, 1.0, 3.0, 1e4)]
    assert found[0] == pytest.approx(1.0)
    assert found[1] > found[2] > found[3]
    assert found[3] < 0.01
    order = torch.randperm(n_classes, generator=torch.Generator().manual_seed(0))
    again = missing_information(signal[:, order], log_g[:, order], weight)
    assert again == pytest.approx(found[1])


def test_sites_drawn_by_lot_have_no_excess_and_others_have_theirs():
    """Scores whose mean differs between sites by a variance of ψ times their own give ψ back."""
    rng = np.random.default_rng(0)
    site = torch.arange(40).repeat_interleave(250)
    mix = torch.tensor(rng.normal(size=(3, 3)))
    noise = torch.tensor(rng.normal(size=(len(site), 3)))
    weight = torch.ones(len(site), dtype=torch.float64)
    assert excess_between_sites(noise @ mix, site, weight, 1.0) < 5e-4
    own = torch.tensor(rng.normal(size=(40, 3))) * 0.05**0.5
    found = excess_between_sites((noise + own[site]) @ mix, site, weight, 1.0)
    assert found == pytest.approx(0.05, rel=0.25)
    doubled = excess_between_sites((noise + own[site]) @ mix, site, 2 * weight, 1.0)
    assert found < doubled < 0.06  # rows that count twice explain half as much by their noise
    assert excess_between_sites((noise + 1.0) @ mix, torch.zeros_like(site), weight, 1.0) == 0.0  # one site


def test_a_source_prevalence_says_what_its_model_says():
    g = ConstantPrevalence(torch.tensor([0.9, 0.1], dtype=torch.float64).log())
    source = SourcePrevalence(g, 500.0, 0.5, 0.001)
    codes = torch.zeros(3, 0, dtype=torch.float64)
    assert torch.equal(source.log_prob(codes), g.log_prob(codes))
    assert source.schema is None
    assert source.discount(1000) == pytest.approx(1 / (1 + 1000 * (0.5 / 500 + 0.001)))


@pytest.mark.parametrize("n_classes", [2, 4])
def test_surprise_is_the_fall_of_a_students_density(n_classes):
    shift, spread, n_sites = np.random.default_rng(0).normal(size=n_classes), 0.7, 6
    freedom = 2.0 + n_sites - 1  # a usual spread counts as two sites
    basis = np.linalg.qr(np.eye(n_classes) - 1 / n_classes)[0][:, : n_classes - 1]
    law = multivariate_t(np.zeros(n_classes - 1), spread**2 / 2 * np.eye(n_classes - 1), df=freedom)
    expected = law.logpdf(np.zeros(n_classes - 1)) - law.logpdf(basis.T @ shift)
    assert surprise(torch.tensor(shift), spread, n_sites) == pytest.approx(expected)
    assert surprise(torch.tensor(shift + 3.0), spread, n_sites) == pytest.approx(expected)  # a factor of all classes
    assert surprise(torch.zeros(n_classes), spread, n_sites) == 0


def test_the_spread_is_that_of_the_sites_once_they_are_many():
    rng = np.random.default_rng(1)
    level = -2.0 + rng.normal(scale=0.4, size=400)
    rare = rng.binomial(3000, 1 / (1 + np.exp(-level)))
    counts = torch.tensor(np.stack([3000 - rare, rare], axis=1)).double()
    expected = torch.tensor([3000 / (1 + np.exp(-2.0)), 3000 / (1 + np.exp(2.0))]).double().expand_as(counts)
    assert level_spread(counts, expected) == pytest.approx(0.4, abs=0.06)
    assert level_spread(counts[:1], expected[:1]) == pytest.approx(1.5, abs=0.05)  # one tells hardly anything
    by_lot = torch.tensor(rng.multinomial(3000, expected[0] / 3000, size=400)).double()
    assert level_spread(by_lot, expected) < 0.15
