"""The training sites as a prior: the typical g, and where its spread between sites is wide or narrow."""

from functools import cache
from unittest.mock import patch

import numpy as np
import pandas as pd
import pytest
import torch
from torch.nn.functional import one_hot

import sitewise as sw
from sitewise.datasets import simulated
from sitewise.prevalence import SitePrior, pooled
from sitewise.prevalence.additive import features, fit_additive, missing_features
from sitewise.prevalence.base import Prevalence, on_device
from sitewise.prevalence.pooled import pool_sites
from sitewise.prevalence.prior import USUAL_DEVIATION, USUAL_LEVEL, USUAL_SITES, student_scale

N_SITES = 12


@cache
def draw_sites(n_classes, n_rows=600, seed=0):
    """Sites that differ in prevalence and in the effect of age and group, but not in that of the scanner."""
    rng = np.random.default_rng(seed)
    family = sw.SimulatedFamily(n_classes=n_classes, n_continuous=1, levels=(3,), effect=1.5, seed=seed)
    scanner_given_class = rng.dirichlet(np.full(3, 2.0), n_classes)
    sites = []
    for number in range(N_SITES):
        prevalence, dependence = rng.dirichlet(np.full(n_classes, 8.0)), rng.uniform(-1, 2)
        with patch.object(simulated, "REFERENCE", 400):  # the level need not be exact here
            site = family.site(n_rows, prevalence=prevalence, dependence=dependence, seed=100 * seed + number)
        # Given the class the scanner depends on nothing else, so it adds the same log-odds at every site.
        scanner = [f"s{rng.choice(3, p=scanner_given_class[label])}" for label in site.y]
        sites.append(site.Z.assign(scanner=scanner, y=site.y, site=number))
    return sites


def training_sites(n_sites=5, n_rows=100, n_classes=2, missing=0.0):
    """Z, y and the site of the first rows of the first sites."""
    rows = pd.concat([site.head(n_rows) for site in draw_sites(n_classes)[:n_sites]], ignore_index=True)
    Z = rows.drop(columns=["y", "site"])
    hidden = np.random.default_rng(0).random(Z.shape) < missing
    return Z.mask(hidden), rows["y"].to_numpy(), rows["site"].to_numpy()


def encoded(Z, y, site, n_classes=2):
    schema = sw.Confounders.learn(Z)
    codes, _ = schema.encode(Z)
    targets = one_hot(torch.tensor(y), n_classes).double()
    return targets, codes, torch.ones(len(y), dtype=torch.float64), torch.tensor(site), schema


def spread(model, n_sites):
    """τ² of every feature as these sites alone show it: without the usual variance, which counts as two sites."""
    usual = USUAL_SITES * USUAL_DEVIATION**2
    return ((USUAL_SITES + n_sites) * model.deviation - usual) / n_sites


def by_variable(model, n_sites):
    """τ² of the level and of each variable."""
    first = [0, *(end for end in missing_features(model.schema))]
    return spread(model, n_sites)[first]


def two_level_sites(logits, n_rows=20_000.0):
    """A site for each logit (E, K) with as many rows in both levels of a group that has no effect."""
    codes = torch.tensor([[0.0], [1.0]], dtype=torch.float64).repeat(len(logits), 1)
    targets = torch.softmax(logits, dim=1).repeat_interleave(2, dim=0)
    site = torch.arange(len(logits)).repeat_interleave(2)
    schema = sw.Confounders.learn(pd.DataFrame({"group": ["a", "b"]}))
    return targets, codes, torch.full((len(codes),), n_rows, dtype=torch.float64), site, schema


@pytest.mark.parametrize("n_classes", [2, 3])
def test_the_spread_is_wide_where_effects_vary_from_site_to_site_and_narrow_where_they_do_not(n_classes):
    data = encoded(*training_sites(N_SITES, 600, n_classes), n_classes)
    _, age, group, scanner = by_variable(pool_sites(*data), N_SITES).tolist()
    assert min(age, group) > 0.1
    assert scanner < 0.01


@pytest.mark.parametrize("n_classes", [2, 3])
def test_the_spread_of_the_level_is_the_variance_between_sites(n_classes):
    """The closed form where rows are so many that each site's logits are known; few sites are made up for (E - 1)."""
    generator = torch.Generator().manual_seed(n_classes)
    logits = 0.8 * torch.randn(3, n_classes, generator=generator, dtype=torch.float64)
    centred = logits - logits.mean(1, keepdim=True)
    model = pool_sites(*two_level_sites(logits))
    variance = float(centred.var(dim=0, correction=1).sum()) / (n_classes - 1)
    level, group = by_variable(model, 3).tolist()
    assert level == pytest.approx(variance, rel=0.02)
    assert group == pytest.approx(pooled.FLOOR)
    squares = torch.full((3,), 2 * level, dtype=torch.float64)  # of log-odds between two classes
    assert model.level_scale == pytest.approx(student_scale(squares, USUAL_LEVEL))
    typical = torch.log_softmax(centred.mean(0), dim=0)
    torch.testing.assert_close(model.log_prob(torch.tensor([[0.0]]).double())[0], typical, atol=0.01, rtol=0)


def test_sites_that_are_alike_have_no_spread_and_the_g_of_all_rows_together():
    Z, y, _ = training_sites(n_sites=1, n_rows=600)
    data = encoded(pd.concat([Z] * 4, ignore_index=True), np.tile(y, 4), np.repeat(np.arange(4), len(y)))
    targets, codes, weight, _, schema = data
    model = pool_sites(*data)
    assert (spread(model, 4) <= 1.5 * pooled.FLOOR).all()
    together = fit_additive(targets, codes, weight, schema, strength=pooled.RIDGE)
    torch.testing.assert_close(model.log_prob(codes).exp(), together.log_prob(codes).exp(), atol=2e-3, rtol=0)
    masked = schema.knock_out(codes, torch.tensor([True, False, True]))
    torch.testing.assert_close(model.log_prob(masked).exp(), together.log_prob(masked).exp(), atol=2e-3, rtol=0)


def test_a_big_site_does_not_make_the_typical_g():
    logits = torch.tensor([[0.0, -2.0], [0.0, -1.0], [0.0, 0.0], [0.0, 1.0], [0.0, 2.0]], dtype=torch.float64)
    targets, codes, weight, site, schema = two_level_sites(logits, 1000.0)
    weight[site == 4] *= 100
    share = pool_sites(targets, codes, weight, site, schema).log_prob(codes).exp()[:, 1]
    together = fit_additive(targets, codes, weight, schema).log_prob(codes).exp()[:, 1]
    assert (together > 0.85).all()
    torch.testing.assert_close(share, torch.full_like(share, 0.5), atol=0.02, rtol=0)


def test_permuting_classes_permutes_the_typical_g_and_leaves_the_spread():
    targets, *rest = encoded(*training_sites(n_classes=3, missing=0.1), 3)
    order = [2, 0, 1]
    plain, permuted = pool_sites(targets, *rest), pool_sites(targets[:, order], *rest)
    g, own = plain.prevalence, permuted.prevalence
    torch.testing.assert_close(own.coefficients, g.coefficients[:, order], atol=1e-5, rtol=0)
    torch.testing.assert_close(own.log_marginal, g.log_marginal[order], atol=1e-5, rtol=0)
    torch.testing.assert_close(permuted.deviation, plain.deviation, atol=1e-6, rtol=1e-4)


def test_a_row_of_weight_two_is_two_rows_and_one_of_weight_zero_is_none():
    targets, codes, weight, site, schema = encoded(*training_sites())
    weight = torch.arange(len(weight), dtype=torch.float64) % 3
    weight[site == 3] = 0.0
    rows = torch.repeat_interleave(torch.arange(len(weight)), weight.long())
    weighted = pool_sites(targets, codes, weight, site, schema)
    repeated = pool_sites(targets[rows], codes[rows], torch.ones(len(rows)).double(), site[rows], schema)
    torch.testing.assert_close(weighted.prevalence.coefficients, repeated.prevalence.coefficients, atol=1e-6, rtol=0)
    torch.testing.assert_close(weighted.deviation, repeated.deviation, atol=1e-7, rtol=1e-5)
    assert weighted.level_scale == pytest.approx(repeated.level_scale, rel=1e-5)


def test_neither_the_order_of_rows_nor_the_numbers_of_sites_matter():
    targets, codes, weight, site, schema = encoded(*training_sites())
    plain = pool_sites(targets, codes, weight, site, schema)
    order = torch.randperm(len(weight), generator=torch.Generator().manual_seed(0))
    number = torch.randperm(50, generator=torch.Generator().manual_seed(1))
    shuffled = pool_sites(targets[order], codes[order], weight[order], number[site][order], schema)
    torch.testing.assert_close(shuffled.prevalence.coefficients, plain.prevalence.coefficients, atol=1e-6, rtol=0)
    torch.testing.assert_close(shuffled.deviation, plain.deviation, atol=1e-7, rtol=1e-5)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_sites_with_one_class_leave_everything_finite(n_classes):
    """Trap: a site whose prevalence is 0.000. A class that occurs nowhere, too."""
    Z, y, site = training_sites()
    y = np.where(site < 2, 0, y)
    model = pool_sites(*encoded(Z, y, site, n_classes))
    codes, _ = model.schema.encode(Z)
    assert model.log_prob(codes).isfinite().all()
    assert model.deviation.isfinite().all()
    assert 0.5 < spread(model, 5)[0] < 20
    assert USUAL_LEVEL < model.level_scale < 10
    all_one = pool_sites(*encoded(Z, np.zeros_like(y), site, n_classes))
    assert (all_one.log_prob(codes)[:, 0].exp() > 0.98).all()
    assert (all_one.log_prob(codes) > -12).all()


def test_where_z_is_missing_the_typical_g_is_its_own_mean():
    """Also where sites of other sizes and levels would have it otherwise."""
    targets, codes, weight, site, schema = encoded(*training_sites(n_rows=300))
    weight = torch.where(site == 0, 50.0, weight)
    model = pool_sites(targets, codes, weight, site, schema)
    share = model.log_prob(codes).exp()
    blank = model.log_prob(schema.missing_codes()[None])[0].exp()
    torch.testing.assert_close(blank, weight @ share / weight.sum())
    only_scanner = schema.knock_out(codes, torch.tensor([True, True, False]))
    for level in range(3):
        rows = codes[:, 2] == level
        mean = weight[rows] @ share[rows] / weight[rows].sum()
        torch.testing.assert_close(model.log_prob(only_scanner[rows])[0].exp(), mean, atol=0.05, rtol=0)


def test_all_features_of_a_variable_share_its_spread():
    """Change what one variable is at every row: only features with that variable's spread may change."""
    _, codes, _, _, schema = data = encoded(*training_sites(missing=0.2))
    model = pool_sites(*data)
    assert len(model.deviation.unique()) == 1 + len(schema.variables)
    for j in range(len(schema.variables)):
        other = codes.clone()
        other[:, j] = codes[:, j].flip(0)
        changed = (features(other, schema) != features(codes, schema)).any(0)
        assert torch.equal(changed, spread(model, 5) == by_variable(model, 5)[j + 1])


def test_moving_the_coefficients_never_loses_ground():
    """From far away Newton's step overshoots and has to be halved."""
    targets, codes, weight, site, schema = two_level_sites(torch.tensor([[0.0, 1.0], [0.0, -1.0]]).double(), 50.0)
    sites = [pooled.site_rows(targets[site == s], codes[site == s], weight[site == s], schema) for s in (0, 1)]
    for distance in (-9.0, 0.0, 9.0):
        for spread in (pooled.FLOOR, 1.0):
            typical = torch.tensor([distance, 0.0, 0.0, 0.0]).double()
            tau = torch.full((2,), spread).double()
            pool = pooled.Pool(sites, pooled.owners(schema), typical, torch.zeros(2, 4).double(), tau)
            start = pool.value
            for _ in range(20):
                before, pool = pool.value, pooled.move_coefficients(pool, pooled.laplace(pool))
                assert pool.value <= before + 1e-6
            assert pooled.coefficient_gap(pool, pooled.laplace(pool)) < 1e-9
            assert pool.value < start


def test_a_spread_that_does_not_settle_is_reported(monkeypatch):
    monkeypatch.setattr(pooled, "LIMIT", 1)
    with pytest.warns(UserWarning, match="did not converge in 1 iterations"):
        pool_sites(*encoded(*training_sites()))


def test_it_is_a_prevalence_and_moves_as_a_whole():
    model = pool_sites(*encoded(*training_sites()))
    assert isinstance(model, Prevalence)
    assert isinstance(model, SitePrior)
    assert model.schema is model.prevalence.schema
    moved = on_device(model, torch.device("meta"))
    assert moved.prevalence.coefficients.is_meta
    assert moved.deviation.is_meta
