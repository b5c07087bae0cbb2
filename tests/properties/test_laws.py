"""What must hold whatever the numbers are."""

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import sitewise as sw
from sitewise.adaptation.families import FAMILIES
from sitewise.adaptation.rows import know_labels, to_ratio
from sitewise.posterior import combine, normalize

LOGS = st.floats(-8, 8)
SEEDS = st.integers(0, 2**31)
QUICK = tuple(name for name, family in FAMILIES.items() if family.quick)
ANY_Z = tuple(name for name in QUICK if not FAMILIES[name].in_cells)  # numbers among z are no trouble
CONCAVE = tuple(name for name, family in FAMILIES.items() if family.concave)


@st.composite
def sites(draw, continuous=True):
    """A small site: log-ratios, confounders with gaps, integer weights."""
    rng = np.random.default_rng(draw(SEEDS))
    n_rows, n_classes = draw(st.integers(4, 40)), draw(st.integers(2, 4))
    log_ratio = rng.normal(0, draw(st.sampled_from([0.5, 2.0, 5.0])), (n_rows, n_classes))
    gaps = [None] if draw(st.booleans()) else []
    columns = {"sex": rng.choice(np.array(["f", "m", *gaps], dtype=object), n_rows)}
    columns["scanner"] = rng.choice(np.array(["a", "b", "c", *gaps], dtype=object), n_rows)
    if continuous:
        columns["age"] = np.where(rng.random(n_rows) < 0.2 * len(gaps), np.nan, rng.uniform(20, 90, n_rows))
    return log_ratio, pd.DataFrame(columns), rng.integers(1, 4, n_rows).astype(float)


def given_strength(model):
    """A fixed strength, for families that take one."""
    return 1.0 if FAMILIES[model].takes_strength else "auto"


def table_site(seed, n_rows=400, n_classes=3):
    family = sw.SimulatedFamily(n_classes=n_classes, n_continuous=0, levels=(2, 3), seed=seed)
    return family.site(n_rows, dependence=1.0, seed=seed)


@pytest.mark.filterwarnings("ignore")
@given(sites())
def test_the_objective_never_falls_along_the_default_solver(site):
    log_ratio, Z, weight = site
    for model in (*ANY_Z, "auto"):
        trace = sw.estimate_prevalence(log_ratio, Z, model=model, sample_weight=weight).trace
        assert (np.diff(trace) >= -1e-9 * (1 + abs(trace[-1]))).all()


@pytest.mark.filterwarnings("ignore")
@given(sites(continuous=False))
def test_the_observed_likelihood_never_falls_along_closed_form_em(site):
    log_ratio, Z, weight = site
    for model in CONCAVE:
        estimate = sw.estimate_prevalence(
            log_ratio, Z, model=model, strength=0.0, solver=sw.EM(iterations=30), sample_weight=weight, random_state=0
        )
        assert (np.diff(estimate.trace) >= -1e-9 * (1 + abs(estimate.trace[-1]))).all()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("model", CONCAVE)
def test_em_and_newton_reach_the_same_optimum(seed, model):
    site = table_site(seed)
    newton = sw.estimate_prevalence(site.log_ratio, site.Z, model=model, strength=0.0)
    em = sw.estimate_prevalence(site.log_ratio, site.Z, model=model, strength=0.0, solver="em", random_state=seed)
    assert newton.converged
    assert newton.gap < 1e-9
    assert em.log_likelihood == pytest.approx(newton.log_likelihood, abs=1e-5)
    np.testing.assert_allclose(np.exp(em.log_prevalence(site.Z)), np.exp(newton.log_prevalence(site.Z)), atol=1e-4)


@pytest.mark.filterwarnings("ignore")
@given(sites(), SEEDS)
def test_permuting_classes_permutes_g(site, seed):
    log_ratio, Z, weight = site
    order = np.random.default_rng(seed).permutation(log_ratio.shape[1])
    for model in ANY_Z:
        options = {"model": model, "strength": given_strength(model), "sample_weight": weight}
        plain = sw.estimate_prevalence(log_ratio, Z, **options)
        permuted = sw.estimate_prevalence(log_ratio[:, order], Z, **options)
        np.testing.assert_allclose(permuted.marginal, plain.marginal[order], atol=1e-5)


@pytest.mark.filterwarnings("ignore")
@given(sites())
def test_a_row_of_weight_two_is_two_rows(site):
    log_ratio, Z, weight = site
    repeat, schema = np.repeat(np.arange(len(weight)), weight.astype(int)), sw.Confounders.learn(Z)
    for model in (*ANY_Z, "auto"):
        weighted = sw.estimate_prevalence(log_ratio, Z, model=model, sample_weight=weight, confounders=schema)
        repeated = sw.estimate_prevalence(log_ratio[repeat], Z.iloc[repeat], model=model, confounders=schema)
        assert weighted.strength == repeated.strength
        np.testing.assert_allclose(weighted.marginal, repeated.marginal, atol=1e-6)
        np.testing.assert_allclose(weighted.log_prevalence(Z), repeated.log_prevalence(Z), atol=1e-4)
        np.testing.assert_allclose(weighted.interval(), repeated.interval(), atol=1e-4)


@pytest.mark.filterwarnings("ignore")
@given(sites(), SEEDS)
def test_a_constant_added_to_a_row_of_log_ratio_changes_nothing(site, seed):
    log_ratio, Z, _ = site
    shift = np.random.default_rng(seed).normal(0, 50, (len(log_ratio), 1))
    for model in ANY_Z:
        options = {"model": model, "strength": given_strength(model)}
        plain = sw.estimate_prevalence(log_ratio, Z, **options)
        shifted = sw.estimate_prevalence(log_ratio + shift, Z, **options)
        np.testing.assert_allclose(shifted.marginal, plain.marginal, atol=1e-6)
        assert shifted.log_likelihood == pytest.approx(plain.log_likelihood, abs=1e-6)


@pytest.mark.filterwarnings("ignore")
@given(sites())
def test_everything_masked_gives_exactly_the_marginal(site):
    log_ratio, Z, weight = site
    nothing = pd.DataFrame({c: [None] for c in Z.columns})
    for model in (*ANY_Z, "auto"):
        estimate = sw.estimate_prevalence(log_ratio, Z, model=model, sample_weight=weight)
        np.testing.assert_allclose(np.exp(estimate.log_prevalence(nothing))[0], estimate.marginal, atol=1e-9)
        by_hand = weight @ np.exp(estimate.log_prevalence(Z)) / weight.sum()
        np.testing.assert_allclose(by_hand, estimate.marginal, atol=1e-9)


@pytest.mark.filterwarnings("ignore")
@given(sites(continuous=False))
def test_everything_masked_gives_the_marginal_of_cells(site):
    log_ratio, Z, weight = site
    nothing = pd.DataFrame({c: [None] for c in Z.columns})
    for model in (name for name in QUICK if FAMILIES[name].in_cells):
        estimate = sw.estimate_prevalence(log_ratio, Z, model=model, sample_weight=weight)
        np.testing.assert_allclose(np.exp(estimate.log_prevalence(nothing))[0], estimate.marginal, atol=1e-9)
        by_hand = weight @ np.exp(estimate.log_prevalence(Z)) / weight.sum()
        np.testing.assert_allclose(by_hand, estimate.marginal, atol=1e-9)


@given(hnp.arrays(np.float64, (6, 3), elements=LOGS), hnp.arrays(np.float64, (6, 3), elements=LOGS))
def test_a_known_label_is_a_certain_responsibility(log_ratio, log_prevalence):
    rows, classes = torch.tensor([1, 4]), torch.tensor([2, 0])
    known = to_ratio(torch.tensor(log_ratio))
    know_labels(known, rows, classes)
    certain = combine(known.log(), torch.tensor(log_prevalence)).exp()
    assert certain[rows, classes].tolist() == [1.0, 1.0]
    unknown = [0, 2, 3, 5]
    expected = combine(torch.tensor(log_ratio), torch.tensor(log_prevalence)).exp()
    torch.testing.assert_close(certain[unknown], expected[unknown])


@given(hnp.arrays(np.float64, (5, 3), elements=st.floats(-50, 50) | st.sampled_from([np.inf, -np.inf])))
def test_probabilities_are_probabilities_whatever_f_says(log_ratio):
    posterior = combine(normalize(torch.tensor(log_ratio)), torch.log(torch.tensor([0.7, 0.3, 0.0]))).exp()
    assert torch.isfinite(posterior).all()
    torch.testing.assert_close(posterior.sum(1), torch.ones(5, dtype=torch.float64))


@given(sites())
def test_the_certificate_is_that_of_the_plain_equations(site):
    log_ratio, _, weight = site
    estimate = sw.estimate_prevalence(log_ratio, sample_weight=weight, model="constant")
    f = normalize(torch.tensor(log_ratio)).exp().numpy()
    plain = (weight @ (f / (f @ estimate.marginal)[:, None]) / weight.sum()).max() - 1
    assert plain < 1e-8
    assert abs(plain - estimate.gap) < 1e-8


@pytest.mark.parametrize("n_classes", [2, 4])
@pytest.mark.parametrize("model", [*(name for name in QUICK if FAMILIES[name].needs_z), "auto"])
def test_with_the_true_f_and_many_rows_the_true_g_comes_back(model, n_classes):
    n_continuous = 0 if model in FAMILIES and FAMILIES[model].in_cells else 1
    family = sw.SimulatedFamily(n_classes=n_classes, n_continuous=n_continuous, levels=(2, 3), signal=3.0, seed=3)
    site = family.site(40_000, prevalence=np.arange(1, n_classes + 1) / np.arange(1, n_classes + 1).sum(), seed=4)
    estimate = sw.estimate_prevalence(site.log_ratio, site.Z, model=model)
    truth = np.exp(site.log_prevalence)
    divergence = (truth * (site.log_prevalence - estimate.log_prevalence(site.Z))).sum(1).mean()
    assert 0 <= divergence < 2e-3
    np.testing.assert_allclose(estimate.marginal, site.marginal, atol=0.01)


def test_order_of_rows_does_not_matter():
    site = sw.SimulatedFamily(seed=1).site(800, missing=0.2, seed=2)
    order = np.random.default_rng(0).permutation(800)
    plain = sw.estimate_prevalence(site.log_ratio, site.Z)
    shuffled = sw.estimate_prevalence(site.log_ratio[order], site.Z.iloc[order])
    assert plain.strength == shuffled.strength
    np.testing.assert_allclose(shuffled.marginal, plain.marginal, atol=1e-7)
