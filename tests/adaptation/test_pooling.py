"""The door to a prior from training sites: what it reads, what it refuses, and that the prior serves."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from torch.nn.functional import one_hot

import sitewise as sw
from sitewise.prevalence.pooled import pool_sites

RNG = np.random.default_rng(0)
Y = RNG.integers(0, 2, 60)
Z = pd.DataFrame({"age": RNG.uniform(20, 90, 60), "sex": RNG.choice(["f", "m"], 60)})
SITE = np.repeat(["north", "south", "west"], 20)


def test_it_pools_what_it_reads():
    weight = RNG.integers(0, 3, 60)
    model = sw.pool_prevalence(Y.tolist(), Z, torch.arange(60) // 20, n_classes=3, sample_weight=weight)
    schema = sw.Confounders.learn(Z)
    assert model.schema == schema
    targets = one_hot(torch.tensor(Y), 3).double()
    expected = pool_sites(
        targets,
        schema.encode(Z)[0],
        torch.tensor(weight).double(),
        torch.tensor(np.unique(SITE, return_inverse=True)[1]),
        schema,
    )
    torch.testing.assert_close(model.prevalence.coefficients, expected.prevalence.coefficients)
    torch.testing.assert_close(model.deviation, expected.deviation)
    assert model.level_scale == expected.level_scale


def test_a_schema_and_kinds_can_be_given():
    schema = sw.Confounders.learn(Z.assign(age=np.linspace(0, 120, 60)))
    assert sw.pool_prevalence(Y, Z, SITE, confounders=schema).schema == schema
    ward = Z.assign(ward=np.arange(60) % 3)
    assert hasattr(sw.pool_prevalence(Y, ward, SITE, categorical="ward").schema.variables[2], "levels")


@pytest.mark.filterwarnings("ignore:the log-ratios say nothing")
def test_where_f_says_nothing_the_answer_is_the_prior():
    """Its mean over the site's rows; at single z it is nearer to that mean, for the factor is not known."""
    prior = sw.pool_prevalence(Y, Z, SITE)
    here = Z.iloc[:7]
    with pytest.warns(UserWarning, match="not identified"):
        estimate = sw.estimate_prevalence(np.zeros((7, 2)), here, prior=prior)
    before = prior.log_prob(prior.schema.encode(here)[0])
    np.testing.assert_allclose(estimate.marginal, before.exp().mean(0), atol=1e-9)
    at, before = (np.diff(np.asarray(log_g))[:, 0] for log_g in (estimate.log_prevalence(here), before))
    assert np.corrcoef(at, before)[0, 1] > 0.95
    assert np.std(at) < np.std(before)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"y": None}, "y must hold a class index for each row, at least one, got None"),
        ({"y": []}, "y must hold a class index for each row"),
        ({"y": np.zeros((60, 1))}, r"y must be one column .* got shape \(60, 1\)"),
        ({"y": np.where(np.arange(60) == 4, np.nan, Y)}, r"y is missing in 1 row\(s\), first at row 4"),
        ({"y": np.where(np.arange(60) == 4, "b", "a")}, "class indices 0..1, .* got 'a' at row 0"),
        ({"y": np.where(np.arange(60) == 4, 1.5, Y)}, "class indices 0..1, .* got 1.5 at row 4"),
        ({"y": np.where(np.arange(60) == 4, 10**9, Y)}, "got 1000000000 at row 4"),
        ({"y": np.zeros(60)}, "y holds class 0 only: .* n_classes="),
        ({"n_classes": 1}, "n_classes must be a whole number from 2 up"),
        ({"y": np.arange(60) % 3, "n_classes": 2}, "class indices 0..1, .* got 2 at row 2"),
        ({"sample_domain": None}, r"sample_domain must have one entry a row \(60\), got 0"),
        ({"sample_domain": ["north"] * 60}, "at least two sites with rows of positive weight, got 1"),
        ({"sample_weight": SITE == "west"}, "at least two sites with rows of positive weight, got 1"),
        ({"sample_domain": [None, *SITE[1:]]}, r"sample_domain is missing in 1 row\(s\), first at row 0"),
        ({"sample_weight": -np.ones(60)}, "must not be negative"),
        ({"sample_confounder": None}, "sample_confounder is None"),
        ({"sample_confounder": Z.iloc[:9]}, r"sample_confounder has 9 row\(s\), y has 60"),
        ({"sample_confounder": Z.assign(age=np.inf)}, "'age' is infinite in 60"),
        ({"confounders": ["age"]}, "confounders must be a schema, .* got list"),
        ({"confounders": sw.Confounders.learn(Z), "categorical": ["age"]}, "categorical is given, but confounders"),
    ],
)
def test_mistakes_are_named(arguments, words):
    with pytest.raises(ValueError, match=words):
        sw.pool_prevalence(**{"y": Y, "sample_confounder": Z, "sample_domain": SITE} | arguments)


def test_all_mistakes_come_in_one_error():
    with pytest.raises(ValueError, match="pool_prevalence: 4 problems") as error:
        sw.pool_prevalence(Y - 1, Z.iloc[:9], SITE[:5], sample_weight=np.full(60, np.nan))
    for word in ("class indices", "9 row", "sample_domain", "sample_weight"):
        assert word in str(error.value)


def test_a_small_site_gains_from_what_training_sites_have_in_common():
    """Mean KL from the true g over new sites of the same kind."""
    family = sw.SimulatedFamily(signal=1.5, seed=3)

    def draw(n_rows, seed):
        rng = np.random.default_rng(seed)
        risk = rng.uniform(0.1, 0.5)
        return family.site(n_rows, prevalence=[1 - risk, risk], dependence=rng.normal(1.0, 0.2), seed=seed)

    sites = [draw(1500, seed) for seed in range(6)]
    y, everything = np.concatenate([s.y for s in sites]), pd.concat([s.Z for s in sites])
    prior = sw.pool_prevalence(y, everything, np.repeat(np.arange(6), 1500))
    alone, together = [], []
    for seed in range(100, 112):
        new = draw(300, seed)
        for options, into in (({}, alone), ({"prior": prior}, together)):
            estimate = sw.estimate_prevalence(new.log_ratio, new.Z, confounders=prior.schema, **options)
            truth = new.log_prevalence
            into.append((np.exp(truth) * (truth - estimate.log_prevalence(new.Z))).sum(1).mean())
    assert np.mean(together) < 0.5 * np.mean(alone)


def test_the_spread_between_sites_says_how_far_a_new_one_may_go():
    prior = sw.pool_prevalence(Y, Z, SITE)
    site = sw.SimulatedFamily(signal=2.5, seed=1).site(800, seed=2)
    here = pd.DataFrame({"age": site.Z["age0"], "sex": np.where(site.Z["group0"] == "level 0", "f", "m")})

    def shape(model):
        return np.diff(np.asarray(model), axis=1)[:, 0] - np.diff(np.asarray(model), axis=1).mean()

    def estimate(variance):
        trusted = replace(prior, factor_scale=1e-4, deviation=torch.full_like(prior.deviation, variance))
        return shape(sw.estimate_prevalence(site.log_ratio, here, prior=trusted).log_prevalence(here))

    trusted = shape(prior.log_prob(prior.schema.encode(here)[0]))
    free = shape(
        sw.estimate_prevalence(
            site.log_ratio, here, model="additive", strength=1e-6, confounders=prior.schema
        ).log_prevalence(here)
    )
    away = [np.abs(estimate(variance) - trusted).max() for variance in (1e-8, 0.01, 0.3)]
    assert away[0] < 0.01
    assert away == sorted(away)
    assert np.abs(estimate(100.0) - free).mean() < 0.25 * np.abs(trusted - free).mean()
    assert np.abs(free - trusted).max() > 0.3
