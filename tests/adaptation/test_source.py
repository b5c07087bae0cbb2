"""The source's g as a prior: it stands unless rows speak against it, and known labels owe f nothing."""

import numpy as np
import pytest
import torch

import sitewise as sw
from sitewise.prevalence import ConstantPrevalence, SourcePrevalence, fit_additive


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
    return SourcePrevalence(g, **{"n_rows": float(len(site.y)), "missing": 0.5} | settings)


def test_where_nothing_changes_the_source_stands_to_the_letter(at_home):
    source, new = at_home
    before = prior(source)
    estimate = sw.estimate_prevalence(new.log_ratio, new.Z, prior=before)
    assert estimate.unchanged
    codes = before.schema.encode(new.Z)[0]
    np.testing.assert_allclose(estimate.log_prevalence(new.Z), before.log_prob(codes), atol=1e-12)
    low, high = estimate.interval()
    assert (low <= estimate.marginal).all()
    assert (estimate.marginal <= high).all()
    assert (high - low > 0.02).all()  # the rows' own doubt
    everywhere = estimate.interval(new.Z)
    assert (everywhere[0] < everywhere[1]).all()
    assert np.std(estimate.draws(200, random_state=0).marginal[:, 1]) > 0.005


def test_a_change_that_rows_show_is_believed(family, at_home):
    source, _ = at_home
    new = family.site(1500, prevalence=[0.8, 0.2], dependence=-1.0, seed=4)
    estimate = sw.estimate_prevalence(new.log_ratio, new.Z, prior=prior(source))
    assert not estimate.unchanged
    assert abs(estimate.marginal[1] - 0.2) < 0.05
    truth = np.exp(new.log_prevalence[:, 1])
    assert np.corrcoef(np.exp(estimate.log_prevalence(new.Z)[:, 1]), truth)[0, 1] > 0.7


def test_a_level_that_no_source_site_is_near_needs_more_evidence(family, at_home):
    """A weak f whose rows seem to speak, a little, for a class three times as frequent, or for none of it."""
    source, new = at_home
    rng = np.random.default_rng(6)
    weak = 0.1 * new.log_ratio + np.outer(0.06 * rng.normal(size=len(new.y)) + 0.05, [-1, 1])
    plain = sw.estimate_prevalence(weak, new.Z, prior=prior(source, missing=0.0))
    assert not plain.unchanged
    assert plain.marginal[1] > 0.9
    settled = sw.estimate_prevalence(weak, new.Z, prior=prior(source, missing=0.0, spread=0.1, n_sites=30))
    assert settled.unchanged
    shifted = family.site(1500, prevalence=[0.8, 0.2], seed=4)
    surprising = prior(source, missing=0.0, spread=0.1, n_sites=30)
    assert not sw.estimate_prevalence(shifted.log_ratio, shifted.Z, prior=surprising).unchanged


def test_a_freer_shape_is_not_believed_where_the_plain_one_is_not(family, at_home):
    """A rival that lost to the prior's shape has no claim on a site where that shape, moved, is not believed."""
    source, _ = at_home
    new = family.site(600, dependence=0.5, seed=6)
    noise = 0.06 * np.random.default_rng(6).normal(size=600) + 0.04
    weak = 0.25 * new.log_ratio + np.outer(noise, [-1, 1])
    estimate = sw.estimate_prevalence(weak, new.Z, prior=prior(source, missing=0.0, spread=0.3, n_sites=30))
    assert estimate.unchanged
    assert any(rival.fit.log_likelihood > estimate._fit.doubted.log_likelihood for rival in estimate._fit.rivals)


def test_evidence_that_is_discounted_away_changes_nothing(family, at_home):
    source, _ = at_home
    new = family.site(1500, prevalence=[0.8, 0.2], seed=4)
    assert not sw.estimate_prevalence(new.log_ratio, new.Z, prior=prior(source)).unchanged
    assert sw.estimate_prevalence(new.log_ratio, new.Z, prior=prior(source, between=10.0)).unchanged


def test_the_more_is_unknown_of_f_the_wider_the_interval(at_home):
    source, new = at_home
    widths = []
    for settings in ({"n_rows": 1e9}, {}, {"n_rows": 300.0}, {"between": 0.01}):
        low, high = sw.estimate_prevalence(new.log_ratio, new.Z, prior=prior(source, **settings)).interval()
        widths.append(high[1] - low[1])
    assert widths == sorted(widths)


def test_a_known_label_owes_nothing_to_f(at_home):
    source, new = at_home
    before = prior(source, between=100.0)
    none, all_ = (sw.estimate_prevalence(new.log_ratio, new.Z, prior=before, y=y) for y in (None, new.y))
    narrow, wide = (np.diff(np.stack(e.interval())[:, 1])[0] for e in (all_, none))
    assert narrow < 0.1 < wide


def test_without_z_one_number_is_compared(at_home):
    _, new = at_home
    share = np.bincount(new.y) / len(new.y)
    level = ConstantPrevalence(torch.tensor(share).log())
    same = sw.estimate_prevalence(new.log_ratio, prior=SourcePrevalence(level, 1e5, 0.5))
    assert same.unchanged
    np.testing.assert_allclose(same.marginal, share)
    other = ConstantPrevalence(torch.tensor(share[::-1].copy() * [0.2, 1.8]).log_softmax(0))
    assert not sw.estimate_prevalence(new.log_ratio, prior=SourcePrevalence(other, 1e5, 0.5)).unchanged


def test_the_order_of_classes_does_not_matter(at_home):
    source, new = at_home
    swapped = prior(type("Rows", (), {"Z": source.Z, "y": 1 - source.y}))
    one = sw.estimate_prevalence(new.log_ratio, new.Z, prior=prior(source, n_rows=1e9))
    other = sw.estimate_prevalence(
        new.log_ratio[:, ::-1].copy(), new.Z, prior=SourcePrevalence(swapped.prevalence, 1e9, 0.5)
    )
    assert one.unchanged == other.unchanged
    np.testing.assert_allclose(one.marginal, other.marginal[::-1], atol=1e-6)


def test_chunks_are_refused_in_a_sentence(at_home):
    source, new = at_home
    chunks = sw.ArrayChunks(new.log_ratio, new.Z, rows=500)
    with pytest.raises(ValueError, match="SourcePrevalence as prior needs all rows in memory"):
        sw.estimate_prevalence(chunks, prior=prior(source))
