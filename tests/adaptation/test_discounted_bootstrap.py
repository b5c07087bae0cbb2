"""Rows drawn again that count for less than one, for f has an error of its own (equations 11d and 18c)."""

import numpy as np
import pytest
import torch

import sitewise as sw
from sitewise.adaptation.bootstrap import Draws, drawn_again
from sitewise.adaptation.records import RECORDS
from sitewise.artifacts import pack, unpack
from sitewise.prevalence import ConstantPrevalence, SourcePrevalence, missing_information

EVEN = ConstantPrevalence(torch.tensor([0.5, 0.5], dtype=torch.float64).log())
ON_ITS_OWN = {"model": "constant", "strength": 0.0}


def worth(rows, prevalence=EVEN):
    """A source whose f has the error of so many rows."""
    return SourcePrevalence(prevalence, 1e12, 0.5, 1.0 / rows)


def two_classes(n_rows, positive, signal, rng):
    y = (rng.random(n_rows) < positive).astype(int)
    x = rng.normal(signal * y, 1.0)
    return y, np.stack([np.zeros(n_rows), signal * x - signal**2 / 2], axis=1)


@pytest.fixture(scope="module")
def log_ratio():
    return two_classes(3000, 0.35, 2.0, np.random.default_rng(0))[1]


def spread_of(estimate, n_resamples=600):
    return np.std(estimate.bootstrap(n_resamples, random_state=0).marginal[:, 1])


def width(interval):
    return np.asarray(interval[1] - interval[0])


def weights_of(estimate, n_draws):
    return Draws(estimate._evidence, torch.Generator().manual_seed(0)).weights(n_draws)


def test_an_f_without_error_changes_no_bit(log_ratio):
    exact = SourcePrevalence(EVEN, 100.0, missing=0.0)
    given, taken = (sw.estimate_prevalence(log_ratio, prior=prior, **ON_ITS_OWN) for prior in ([0.5, 0.5], exact))
    np.testing.assert_array_equal(*(e.bootstrap(20, random_state=1).marginal for e in (given, taken)))


@pytest.mark.parametrize("discount", [0.8, 0.4, 0.1])
def test_the_spread_grows_with_one_over_the_root_of_the_discount(log_ratio, discount):
    prior = worth(len(log_ratio) * discount / (1 - discount))
    assert prior.discount(len(log_ratio)) == pytest.approx(discount)
    given, taken = (sw.estimate_prevalence(log_ratio, prior=p, **ON_ITS_OWN) for p in (None, prior))
    np.testing.assert_allclose(given.marginal, taken.marginal, atol=1e-8)
    assert spread_of(taken) * discount**0.5 == pytest.approx(spread_of(given), rel=0.08)
    assert width(taken.interval(method="bootstrap", random_state=0))[1] == pytest.approx(
        width(taken.interval())[1], rel=0.12
    )


@pytest.mark.parametrize("scale", [1.0, 0.02])
def test_a_second_draw_keeps_sums_and_means_and_has_the_variance_asked_for(scale):
    rng = np.random.default_rng(0)
    weights = torch.tensor(scale * rng.integers(0, 4, 60) * rng.random(60))
    share = torch.full((60,), 0.7, dtype=torch.float64)
    drawn = drawn_again(weights.expand(40_000, -1), share, torch.Generator().manual_seed(0))
    np.testing.assert_allclose(drawn.sum(1), float(weights.sum()), rtol=1e-12)
    np.testing.assert_allclose(drawn.mean(0), weights, atol=0.02 * float(weights.max()) * max(1.0, 0.1 / scale))
    assert not drawn[:, weights == 0].any()
    if scale == 1.0:
        of_many = weights * 0.7 * (1 - weights / weights.sum())  # of a multinomial
        np.testing.assert_allclose(drawn.var(0), of_many, rtol=0.1, atol=0.02)
    else:  # little more than a row's worth: one or two have it all
        assert 1.0 < (drawn > 0).sum(1).double().mean() < 2.5


def test_known_labels_owe_nothing_to_f(log_ratio):
    y = np.full(len(log_ratio), np.nan)
    y[:1000] = 1.0
    weight = np.tile([1.0, 2.0, 3.0], 1000)
    estimate = sw.estimate_prevalence(log_ratio, y=y, sample_weight=weight, prior=worth(300.0), **ON_ITS_OWN)
    plain = sw.estimate_prevalence(log_ratio, y=y, sample_weight=weight, **ON_ITS_OWN)
    drawn, once = weights_of(estimate, 50), weights_of(plain, 50)
    assert torch.equal(drawn[:, :1000], once[:, :1000])
    kappa = worth(300.0).discount(weight[1000:].sum())
    np.testing.assert_allclose(drawn[:, 1000:].sum(1), kappa * once[:, 1000:].sum(1))
    assert ((drawn[:, 1000:] == 0).sum(1) > (once[:, 1000:] == 0).sum(1)).all()


def test_groups_are_drawn_whole_and_f_errs_in_every_row(log_ratio):
    """Var = that of groups + (1/κ - 1) that of rows: what is alike in a group and f's error do not multiply."""
    rows, repeat = log_ratio[:400], np.repeat(np.arange(400), 4)
    discount = 0.2
    prior = worth(1600 * discount / (1 - discount))
    once = sw.estimate_prevalence(rows, **ON_ITS_OWN)
    grouped = sw.estimate_prevalence(rows[repeat], groups=repeat, prior=prior, **ON_ITS_OWN)
    expected = spread_of(once) * (1 + (1 / discount - 1) / 4) ** 0.5
    assert spread_of(grouped) == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize(("model", "strength"), [("additive", 1.0), ("table", 5.0)])
@pytest.mark.parametrize("missing", [0.0, 0.5])
def test_models_of_z_spread_as_curvature_says(model, strength, missing):
    shape = {"n_continuous": 0, "levels": (2, 2)} if model == "table" else {}
    rows = sw.SimulatedFamily(signal=2.5, seed=0, **shape).site(1500, missing=missing, seed=1)
    estimate = sw.estimate_prevalence(rows.log_ratio, rows.Z, model=model, strength=strength, prior=worth(600.0))
    resamples = estimate.bootstrap(100, random_state=0)
    np.testing.assert_allclose(width(resamples.interval()), width(estimate.interval()), rtol=0.3)


def test_where_the_source_stands_intervals_hold_it_and_the_doubt_of_the_rows():
    family = sw.SimulatedFamily(signal=1.5, effect=0.0, seed=1)
    rows = family.site(800, prevalence=[0.55, 0.45], seed=3)
    estimate = sw.estimate_prevalence(rows.log_ratio, rows.Z, prior=worth(400.0))
    assert estimate.unchanged
    np.testing.assert_allclose(estimate.marginal, [0.5, 0.5])
    low, high = estimate.interval(method="bootstrap", n_resamples=100, random_state=0)
    assert (low <= 0.5).all()
    assert (high >= 0.5).all()
    own = sw.estimate_prevalence(rows.log_ratio, prior=worth(400.0), **ON_ITS_OWN)
    assert (high - low > 0.4 * width(own.interval())).all()  # a ridge of a thousand alone would leave a tenth
    resamples = estimate.bootstrap(100, random_state=0)
    assert resamples.interval(lambda g: g.marginal[1]) == (low[1], high[1])
    everywhere = estimate.interval(rows.Z.iloc[:20], method="bootstrap", n_resamples=20, random_state=0)
    assert (everywhere[0] <= 0.5 + 1e-12).all(axis=None)
    assert (everywhere[1] >= 0.5 - 1e-12).all(axis=None)


@pytest.mark.parametrize("prior", [None, worth(2.0)])
def test_hardly_any_z_is_enough(prior):
    rows = sw.SimulatedFamily(signal=2.5, seed=0).site(60, missing=0.99, seed=1)
    assert rows.Z.notna().any(axis=1).sum() == 1
    estimate = sw.estimate_prevalence(rows.log_ratio, rows.Z, model="additive", strength=1.0, prior=prior)
    low, high = estimate.interval(method="bootstrap", n_resamples=30, random_state=0)
    assert (low < high).all()


def test_a_saved_estimate_draws_the_same(log_ratio):
    estimate = sw.estimate_prevalence(log_ratio, prior=worth(300.0), **ON_ITS_OWN)
    tree, tensors = pack({"it": estimate}, RECORDS)
    other = unpack(tree, tensors, RECORDS)["it"]
    np.testing.assert_array_equal(*(e.bootstrap(5, random_state=0).marginal for e in (estimate, other)))


def test_intervals_hold_the_truth_where_f_is_balanced_on_few_rows():
    """With f's error left out they held it at 64% of such sites."""
    rng = np.random.default_rng(0)
    held, n_sites = 0, 120
    for _ in range(n_sites):
        y, source = two_classes(200, 0.4, 1.5, rng)
        log_g, lacking = np.log([1 - y.mean(), y.mean()]), 0.0
        for _ in range(30):  # Newton's steps to a balanced f (equation 18a)
            r = 1 / (1 + np.exp(-(source[:, 1] + log_g[1] - log_g[0] + lacking)))
            lacking += (y - r).sum() / (r * (1 - r)).sum()
        ones = torch.ones(200, dtype=torch.float64)
        g = torch.tensor(log_g)
        share = missing_information(torch.tensor(source + np.array([0, lacking])), g.expand(200, 2), ones)
        prior = SourcePrevalence(ConstantPrevalence(g), 200.0, share)
        _, new = two_classes(1000, 0.25, 1.5, rng)
        estimate = sw.estimate_prevalence(new + np.array([0, lacking]), prior=prior, **ON_ITS_OWN)
        low, high = estimate.interval(method="bootstrap", n_resamples=150, random_state=0)
        held += low[1] <= 0.25 <= high[1]
    assert 0.9 <= held / n_sites <= 0.995
