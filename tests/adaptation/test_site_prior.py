"""The source's g as a prior: a posterior that departs from it with the evidence of the rows; known labels."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import sitewise as sw
from sitewise.adaptation.records import all_records
from sitewise.artifacts.packing import pack, unpack
from sitewise.prevalence import SitePrior
from sitewise.prevalence.additive import fit_additive
from sitewise.prevalence.base import ConstantPrevalence
from sitewise.prevalence.prior import missing_information


@pytest.fixture(scope="module")
def family():
    return sw.SimulatedFamily(effect=1.5, signal=1.5, seed=1)


@pytest.fixture(scope="module")
def at_home(family):
    """A source with its labels, and a new site that is no different."""
    return family.site(3000, seed=2), family.site(1000, seed=3)


def prior(site, **settings):
    schema = sw.Confounders.learn(site.Z)
    targets = torch.nn.functional.one_hot(torch.tensor(site.y), 2).double()
    g = fit_additive(targets, schema.encode(site.Z)[0], torch.ones(len(site.y), dtype=torch.float64), schema)
    return SitePrior(g, **{"n_source": float(len(site.y)), "missing": 0.5} | settings)


def width(interval):
    return np.asarray(interval[1] - interval[0])


def test_a_prior_gives_a_posterior_and_a_strength_a_penalty(at_home):
    source, new = at_home
    posterior = sw.estimate_prevalence(new.log_ratio, new.Z, prior=prior(source))
    assert posterior.model == "posterior"
    assert np.isnan(posterior.strength)
    penalized = sw.estimate_prevalence(new.log_ratio, new.Z, model="additive", strength=3.0, prior=prior(source))
    assert (penalized.model, penalized.strength) == ("additive", 3.0)


def test_where_nothing_changes_the_posterior_stays_near_the_source(at_home):
    source, new = at_home
    before = prior(source)
    estimate = sw.estimate_prevalence(new.log_ratio, new.Z, prior=before)
    g = before.log_prob(before.schema.encode(new.Z)[0]).exp().numpy()
    np.testing.assert_allclose(np.exp(estimate.log_prevalence(new.Z)), g, atol=0.1)
    low, high = estimate.interval()
    for share in (estimate.marginal, g.mean(0), np.exp(new.log_prevalence).mean(0)):
        assert (low <= share).all()
        assert (share <= high).all()
    assert (high - low > 0.02).all()
    everywhere = estimate.interval(new.Z)
    assert (everywhere[0] < everywhere[1]).all(axis=None)
    assert np.std(estimate.draws(200, random_state=0).marginal[:, 1]) > 0.005


def test_a_change_that_rows_show_is_trusted(family, at_home):
    source, _ = at_home
    new = family.site(1500, prevalence=[0.8, 0.2], dependence=-1.0, seed=4)
    estimate = sw.estimate_prevalence(new.log_ratio, new.Z, prior=prior(source))
    assert abs(estimate.marginal[1] - 0.2) < 0.05
    truth = np.exp(new.log_prevalence[:, 1])
    assert np.corrcoef(np.exp(estimate.log_prevalence(new.Z)[:, 1]), truth)[0, 1] > 0.7


def test_the_nearer_sites_are_to_each_other_the_less_a_weak_f_moves_the_level(at_home):
    """A weak f whose rows seem to speak, a little, for a class three times as frequent."""
    _, new = at_home
    rng = np.random.default_rng(6)
    weak = (0.1 * new.log_ratio + np.outer(0.06 * rng.normal(size=len(new.y)) + 0.05, [-1, 1]))[:60]
    even = ConstantPrevalence(torch.tensor([0.5, 0.5], dtype=torch.float64).log())
    shares = [
        sw.estimate_prevalence(weak, prior=SitePrior(even, level_scale=scale)).marginal[1]
        for scale in (0.1, 0.5, 1.5, 5.0)
    ]
    assert shares == sorted(shares)
    assert shares[0] < 0.6
    assert shares[-1] > 0.8


def test_rows_outvote_a_narrow_prior(family, at_home):
    source, _ = at_home
    shifted = family.site(1500, prevalence=[0.8, 0.2], seed=4)
    narrow = prior(source, missing=0.0, level_scale=0.1)
    assert abs(sw.estimate_prevalence(shifted.log_ratio, shifted.Z, prior=narrow).marginal[1] - 0.2) < 0.06


def test_rows_that_are_not_trusted_change_nothing_on_average(family, at_home):
    source, _ = at_home
    new = family.site(1500, prevalence=[0.8, 0.2], seed=4)
    deaf = prior(source, trusted_rows=0.0)
    estimate = sw.estimate_prevalence(new.log_ratio, new.Z, prior=deaf)
    log_g = deaf.log_prob(deaf.schema.encode(new.Z)[0])
    as_trained = torch.softmax(torch.tensor(new.log_ratio) + log_g, dim=1).mean(0)
    np.testing.assert_allclose(estimate.predict_proba(new.log_ratio, new.Z).mean(0), as_trained, atol=1e-9)
    np.testing.assert_allclose(  # whatever the rows are
        estimate.marginal,
        sw.estimate_prevalence(new.log_ratio[::-1].copy(), new.Z, prior=deaf).marginal,
        atol=0.05,
    )


def test_the_more_is_unknown_of_f_the_wider_the_interval(at_home):
    source, new = at_home
    widths = []
    for settings in ({"n_source": 1e9}, {}, {"n_source": 300.0}, {"trusted_rows": 100.0}, {"trusted_rows": 0.0}):
        low, high = sw.estimate_prevalence(new.log_ratio, new.Z, prior=prior(source, **settings)).interval()
        widths.append(high[1] - low[1])
    assert widths == sorted(widths)
    assert widths[-1] > 3 * widths[0]


@pytest.mark.parametrize("knows_z", [False, True])
def test_a_level_that_may_err_widens_the_interval(at_home, knows_z):
    source, new = at_home
    rows = (new.log_ratio, new.Z) if knows_z else (new.log_ratio,)
    widths = [
        width(sw.estimate_prevalence(*rows, prior=prior(source, level_error=error)).interval())[1]
        for error in (0.0, 0.2, 0.8)
    ]
    assert widths == sorted(widths)
    assert widths[2] > 2 * widths[0]


def test_a_known_label_does_not_depend_on_f(at_home):
    source, new = at_home
    before = prior(source, trusted_rows=0.0)
    none, all_ = (sw.estimate_prevalence(new.log_ratio, new.Z, prior=before, y=y) for y in (None, new.y))
    narrow, wide = (width(e.interval())[1] for e in (all_, none))
    assert narrow < 0.1 < wide
    assert all_.marginal[1] == pytest.approx(new.y.mean(), abs=0.02)


def test_without_z_there_is_one_number(at_home):
    _, new = at_home
    share = np.bincount(new.y) / len(new.y)
    level = ConstantPrevalence(torch.tensor(share).log())
    same = sw.estimate_prevalence(new.log_ratio, prior=SitePrior(level, n_source=1e5, missing=0.5))
    np.testing.assert_allclose(same.marginal, share, atol=0.03)
    other = ConstantPrevalence(torch.tensor(share[::-1].copy() * [0.2, 1.8]).log_softmax(0))
    moved = sw.estimate_prevalence(new.log_ratio, prior=SitePrior(other, n_source=1e5, missing=0.5))
    np.testing.assert_allclose(moved.marginal, same.marginal, atol=0.03)


def test_the_order_of_classes_does_not_matter(at_home):
    source, new = at_home
    swapped = prior(type("Rows", (), {"Z": source.Z, "y": 1 - source.y}))
    one = sw.estimate_prevalence(new.log_ratio, new.Z, prior=prior(source))
    other = sw.estimate_prevalence(new.log_ratio[:, ::-1].copy(), new.Z, prior=swapped)
    np.testing.assert_allclose(one.marginal, other.marginal[::-1], atol=1e-6)
    np.testing.assert_allclose(
        one.predict_proba(new.log_ratio, new.Z),
        other.predict_proba(new.log_ratio[:, ::-1].copy(), new.Z)[:, ::-1],
        atol=1e-6,
    )


def test_rows_in_chunks_give_the_posterior_of_all_of_them(at_home):
    source, new = at_home
    before = prior(source)
    chunks = sw.ArrayChunks(new.log_ratio, new.Z, rows=300)
    one, other = (
        sw.estimate_prevalence(*rows, prior=before, confounders=before.schema)
        for rows in ((new.log_ratio, new.Z), (chunks,))
    )
    np.testing.assert_allclose(one.marginal, other.marginal, atol=1e-9)
    np.testing.assert_allclose(one.interval(), other.interval(), atol=1e-9)


def test_rows_four_times_over_in_groups_of_four_tell_as_much_as_once():
    rows = sw.SimulatedFamily(signal=2.0, seed=0).site(400, seed=1)
    repeat = np.repeat(np.arange(400), 4)
    once = sw.estimate_prevalence(rows.log_ratio, prior=[0.5, 0.5])
    grouped = sw.estimate_prevalence(rows.log_ratio[repeat], groups=repeat, prior=[0.5, 0.5])
    np.testing.assert_allclose(grouped.marginal, once.marginal, atol=0.005)
    np.testing.assert_allclose(width(grouped.interval()), width(once.interval()), rtol=0.05)
    plain = sw.estimate_prevalence(rows.log_ratio[repeat], prior=[0.5, 0.5])
    np.testing.assert_allclose(width(plain.interval()) / width(once.interval()), 0.5, atol=0.05)


@pytest.mark.parametrize("trusted", [[0.5, 0.5], "two rows"])
def test_hardly_any_z_is_enough(trusted):
    if trusted == "two rows":
        even = ConstantPrevalence(torch.tensor([0.5, 0.5], dtype=torch.float64).log())
        trusted = SitePrior(even, trusted_rows=2.0)
    rows = sw.SimulatedFamily(signal=2.5, seed=0).site(60, missing=0.99, seed=1)
    assert rows.Z.notna().any(axis=1).sum() == 1
    estimate = sw.estimate_prevalence(rows.log_ratio, rows.Z, prior=trusted)
    for method in ("curvature", "bootstrap"):
        low, high = estimate.interval(method=method, n_resamples=30, random_state=0)
        assert (low < high).all()


def test_a_saved_posterior_says_and_draws_the_same(at_home):
    source, new = at_home
    estimate = sw.estimate_prevalence(new.log_ratio, new.Z, prior=prior(source))
    tree, tensors = pack({"it": estimate}, all_records())
    other = unpack(tree, tensors, all_records())["it"]
    np.testing.assert_array_equal(*(e.bootstrap(5, random_state=0).marginal for e in (estimate, other)))
    np.testing.assert_array_equal(*(e.interval() for e in (estimate, other)))
    np.testing.assert_array_equal(*(e.predict_proba(new.log_ratio, new.Z) for e in (estimate, other)))


def two_classes(n_rows, positive, signal, rng):
    y = (rng.random(n_rows) < positive).astype(int)
    x = rng.normal(signal * y, 1.0)
    return y, np.stack([np.zeros(n_rows), signal * x - signal**2 / 2], axis=1)


def test_intervals_hold_the_truth_where_f_is_balanced_on_few_rows():
    """With f's error left out they held it at 64% of such sites."""
    rng = np.random.default_rng(0)
    held, n_sites = {"balanced": 0, "as if f were exact": 0}, 120
    for _ in range(n_sites):
        y, source = two_classes(200, 0.4, 1.5, rng)
        log_g, lacking = np.log([1 - y.mean(), y.mean()]), 0.0
        for _ in range(30):  # Newton's steps to a balanced f (equation 18a)
            r = 1 / (1 + np.exp(-(source[:, 1] + log_g[1] - log_g[0] + lacking)))
            lacking += (y - r).sum() / (r * (1 - r)).sum()
        ones = torch.ones(200, dtype=torch.float64)
        g = torch.tensor(log_g)
        share = missing_information(torch.tensor(source + np.array([0, lacking])), g.expand(200, 2), ones)
        before = SitePrior(ConstantPrevalence(g), n_source=200.0, missing=share)
        _, new = two_classes(1000, 0.25, 1.5, rng)
        for name, trusted in (("balanced", before), ("as if f were exact", replace(before, missing=0.0))):
            low, high = sw.estimate_prevalence(new + np.array([0, lacking]), prior=trusted).interval()
            held[name] += low[1] <= 0.25 <= high[1]
    assert 0.9 <= held["balanced"] / n_sites <= 0.995
    assert held["as if f were exact"] / n_sites < 0.8
