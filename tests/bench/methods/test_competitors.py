"""Quantifiers, MAPLS, LaSCal, TENT, LAME and LAMDA against closed forms, brute force and QuaPy itself."""

from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from scipy.special import softmax
from scipy.stats import entropy

from sitewise.bench.methods import METHODS
from sitewise.bench.methods.lamda import data_cost, label_cost, transport
from sitewise.bench.methods.lame import agree, nearest
from sitewise.bench.methods.lascal import shifted_calibration_error
from sitewise.bench.methods.mapls import confidence, data_share, divergence
from sitewise.bench.methods.quantifier import GivenPosteriors, find_quantifier, quantify
from sitewise.bench.methods.tent import Modulated, mean_entropy, sharpen

FAST = {"epochs": 6, "batch_size": 64, "device": "cpu", "verbose": False}
NAMES = ["ACC", "PACC", "HDy", "EDy", "KDEyML", "KDEyHD", "KDEyCS", "EMQ"]

quapy_only = pytest.mark.skipif(find_spec("quapy") is None, reason="QuaPy comes with sitewise[bench]")


def posteriors(n, share, seed, signal=2.0):
    """Exact posteriors under even classes of normal x around the class's corner, and the labels."""
    rng = np.random.default_rng(seed)
    y = rng.choice(len(share), n, p=share)
    x = rng.normal(size=(n, len(share))) + signal * np.eye(len(share))[y]
    return softmax(signal * x, axis=1), y


@pytest.fixture(scope="module")
def erm():
    """An ERM of three classes that were equally frequent, and a site where the first is frequent."""
    rng = np.random.default_rng(0)

    def draw(n, share):
        y = rng.choice(3, n, p=share)
        return rng.normal(size=(n, 4)) + 2 * np.eye(4)[y], y

    X, y = draw(1500, [1 / 3] * 3)
    fitted = METHODS["erm"](**FAST).fit(X, y, sample_domain=np.repeat(["one", "two"], 750))
    return fitted, draw(2000, [0.7, 0.2, 0.1])


@quapy_only
@pytest.mark.parametrize("share", [[0.8, 0.2], [0.6, 0.3, 0.1]], ids=["two", "three"])
@pytest.mark.parametrize("name", NAMES)
def test_a_quantifier_by_name_finds_the_shares(name, share):
    if name == "EDy":
        pytest.importorskip("quadprog", reason="quadprog comes with sitewise[bench]")
    held, y = posteriors(2000, np.full(len(share), 1 / len(share)), 1)
    here, labels = posteriors(2000, share, 2)
    options = {"random_state": 0} if name == "KDEyHD" else {}
    prevalence = quantify(name, held, y, here, options)
    assert prevalence.sum() == pytest.approx(1, abs=1e-6)
    truth = np.bincount(labels, minlength=len(share)) / len(labels)
    # six standard errors of a share that a classifier with these posteriors tells: below 0.012 each
    np.testing.assert_allclose(prevalence, truth, atol=0.07)


@quapy_only
def test_a_quantifier_is_quapys_own_answer():
    aggregative = pytest.importorskip("quapy.method.aggregative")
    held, y = posteriors(600, np.full(3, 1 / 3), 1)
    here, _ = posteriors(400, [0.6, 0.3, 0.1], 2)
    by_hand = aggregative.PACC(GivenPosteriors(3), fit_classifier=False, val_split=None)
    by_hand.aggregation_fit(held, y)
    np.testing.assert_allclose(quantify("PACC", held, y, here, {}), by_hand.aggregate(here), atol=1e-9)
    confusion = np.stack([held[y == k].mean(0) for k in range(3)], axis=1)
    exact = np.linalg.solve(confusion, here.mean(0))
    np.testing.assert_allclose(quantify("PACC", held, y, here, {}), exact, atol=2e-3)  # QuaPy minimizes ‖Cπ - μ‖


@quapy_only
def test_quapys_em_is_ours_where_it_converges(erm):
    fitted, (X, _) = erm
    ours = METHODS["label_shift_em"](**FAST, calibration="vector").attach(fitted.trained_).adapt(X)
    theirs = METHODS["quantifier"](**FAST, quantifier="EMQ", calibration="vector").attach(fitted.trained_).adapt(X)
    np.testing.assert_allclose(theirs.prevalence(), ours.prevalence(), atol=5e-3)  # it stops at a change of 1e-4
    proba = theirs.predict_proba(X)
    np.testing.assert_allclose(proba, ours.predict_proba(X), atol=0.02)


@quapy_only
@pytest.mark.parametrize("settings", [{}, {"calibration": "bias_corrected"}, {"options": {"calib": "bcts"}}])
def test_emq_with_and_without_calibration_follows_a_shift(erm, settings):
    pytest.importorskip("abstention", reason="abstention comes with sitewise[bench]")
    fitted, (X, y) = erm
    method = METHODS["quantifier"](**FAST, quantifier="EMQ", **settings).attach(fitted.trained_)
    np.testing.assert_allclose(method.adapt(X).prevalence(), np.bincount(y) / len(y), atol=0.06)


@quapy_only
def test_an_unknown_quantifier_is_refused_with_the_spelling_meant(erm):
    with pytest.raises(ValueError, match=r"QuaPy's, got 'KDEyMl'; did you mean 'KDEyML'\?"):
        find_quantifier("KDEyMl")
    with pytest.raises(ValueError, match="got 'np'"):
        METHODS["quantifier"](**FAST, quantifier="np").attach(erm[0].trained_)


def test_packages_that_are_missing_are_a_refusal(monkeypatch):
    for name in ("lamda", "quantifier"):
        monkeypatch.setattr(f"sitewise.bench.methods.{name}.find_spec", lambda package: None)
        assert METHODS[name](**FAST).refusal(2, None, 10).endswith("install sitewise[bench]")
    monkeypatch.setattr("sitewise.bench.methods.quantifier.find_spec", lambda package: package == "quapy" or None)
    assert METHODS["quantifier"](**FAST, quantifier="EDy").refusal(2, None, 0).startswith("EDy needs quadprog:")
    assert METHODS["quantifier"](**FAST).refusal(2, None, 0) is None


def test_mapls_is_its_fixed_point(erm):
    fitted, (X, _) = erm
    method = METHODS["mapls"](**FAST, share=0.8).attach(fitted.trained_)
    estimated = method.adapt(X).prevalence()
    joint = estimated * np.exp(method.log_ratio(X, None).numpy())
    responsibilities = (joint / joint.sum(1, keepdims=True)).mean(0)
    np.testing.assert_allclose(estimated, 0.8 * responsibilities + 0.2 / 3, atol=1e-7)
    plain = METHODS["label_shift_em"](**FAST).attach(fitted.trained_).adapt(X).prevalence()
    all_data = METHODS["mapls"](**FAST, share=1.0).attach(fitted.trained_).adapt(X).prevalence()
    np.testing.assert_allclose(all_data, plain, atol=1e-7)
    no_data = METHODS["mapls"](**FAST, share=0.0).attach(fitted.trained_).adapt(X).prevalence()
    np.testing.assert_allclose(no_data, 1 / 3)


def test_mapls_trusts_rows_the_more_the_further_they_are_from_even_shares():
    even = torch.full((4,), 0.25, dtype=torch.float64)
    shares = [torch.tensor([0.25 + 3 * d, *[0.25 - d] * 3], dtype=torch.float64) for d in (0.0, 0.05, 0.1, 0.2)]
    assert divergence(shares[1], even) == pytest.approx(entropy(shares[1], even))
    assert confidence(0.5, 0.3) == pytest.approx(0.3)
    assert confidence(0.0, 0.3) == 0
    source = torch.tensor([0.1, 0.3, 0.3, 0.3], dtype=torch.float64)
    weights = [data_share(share, source) for share in shares]
    assert weights == sorted(weights)
    assert weights[-1] > weights[0] + 0.1
    # an even source has distance 0: any other distance then counts wholly, 0.9 + 0.1 (1 - 1)
    assert data_share(shares[2], even) == pytest.approx(0.9)


def test_lascals_error_is_the_calibration_error_with_labels_where_these_are_known():
    """With the site's own labeled rows and no shift it is the binned classwise error, by hand."""
    proba, y = posteriors(3000, [0.5, 0.3, 0.2], 3)
    proba = softmax(2 * np.log(proba), axis=1)  # too certain
    here, labels = torch.tensor(proba), torch.tensor(y)
    error = shifted_calibration_error(here, labels, here, torch.ones(3, dtype=torch.float64), n_bins=10)
    for k in range(3):
        edges = np.quantile(proba[:, k], np.linspace(0, 1, 11)[1:-1])
        cell = np.searchsorted(edges, proba[:, k])
        truth = np.array([(y[cell == b] == k).mean() if (cell == b).any() else 0 for b in range(10)])
        assert float(error[k]) == pytest.approx(((proba[:, k] - truth[cell]) ** 2).mean(), rel=1e-9)


def test_lascals_error_needs_no_labels_of_the_site():
    held, y = posteriors(200_000, [1 / 3] * 3, 4)
    share = np.array([0.6, 0.3, 0.1])
    here, labels = posteriors(200_000, share, 5)
    weights = torch.tensor(share * 3)
    scaled = [torch.tensor(p) * weights for p in (held, here)]
    held, here = (p / p.sum(1, keepdim=True) for p in scaled)
    for power in (1.0, 2.0):
        own, there = (torch.softmax(power * p.log(), dim=1) for p in (here, held))
        without = shifted_calibration_error(there, torch.tensor(y), own, weights)
        with_labels = shifted_calibration_error(own, torch.tensor(labels), own, torch.ones(3, dtype=torch.float64))
        # in a bin of 13,000 rows P(y = k) has a standard error below 0.012; with gaps of 0.08, over 15 bins: 5e-4
        np.testing.assert_allclose(without, with_labels, atol=2.5e-3)
    assert float(with_labels.mean()) > 4e-3


def test_lascal_finds_the_temperature_that_was_taken_out(erm):
    fitted, (X, _) = erm
    method = METHODS["lascal"](**FAST).attach(fitted.trained_)
    log_ratio = method.log_ratio(X, None)
    marginal = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64)
    plain = method.temperature(log_ratio, marginal)
    assert 0.5 < plain < 2
    sharp = replace(
        fitted.trained_, held_out_outputs=3 * fitted.trained_.held_out_outputs, shares=fitted.trained_.shares**3
    )
    method = METHODS["lascal"](**FAST).attach(sharp)
    assert method.temperature(3 * log_ratio, marginal) == pytest.approx(3 * plain, rel=0.08)  # steps of the grid: 3%


def test_tents_entropy_and_that_it_falls():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(50, 4))
    assert float(mean_entropy(torch.tensor(logits))) == pytest.approx(entropy(softmax(logits, axis=1), axis=1).mean())
    torch.manual_seed(0)
    features, last = torch.randn(400, 6), torch.nn.Linear(6, 3)
    last.requires_grad_(False)
    none = features[:, :0]
    assert torch.equal(Modulated(last, 6)(features, none), last(features))
    before = float(mean_entropy(last(features)))
    sharpened = sharpen(Modulated(last, 6), features, none, rate=1e-2, passes=3, seed=0, device="cpu")
    with torch.no_grad():
        assert float(mean_entropy(sharpened(features, none))) < before - 0.01
    assert torch.equal(sharpened.last.weight, last.weight)


def test_tent_adapts_batch_norm_to_the_site_and_leaves_the_network_alone():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 3)).astype(np.float32)
    y = (X[:, 0] + 0.5 * rng.normal(size=600) > 0).astype(int)
    torch.manual_seed(0)
    backbone = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU())
    method = METHODS["tent"](**FAST, backbone=backbone).fit(X, y, sample_domain=np.repeat(["one", "two"], 300))
    before = {name: value.clone() for name, value in method.trained_.scorer.module.state_dict().items()}
    moved = 2 * X + 1
    here = method.adapt(moved)
    sure = [entropy(p, axis=1).mean() for p in (method.predict_proba(moved), here.predict_proba(moved))]
    assert sure[0] != sure[1]
    after = method.trained_.scorer.module.state_dict()
    assert all(torch.equal(before[name], after[name].to(before[name])) for name in before)
    np.testing.assert_allclose(here.predict_proba(moved[:5]), here.predict_proba(moved)[:5], atol=1e-6)


def test_lame_is_its_fixed_point_and_lowers_its_objective():
    rng = np.random.default_rng(0)
    features = torch.tensor(rng.normal(size=(80, 3)))
    log_q = torch.log_softmax(torch.tensor(rng.normal(size=(80, 3))), dim=1)
    near = nearest(features, features, 4, same=True)
    distance = torch.cdist(features, features).fill_diagonal_(torch.inf)
    assert torch.equal(near.sort(1).values, distance.argsort(1)[:, :4].sort(1).values)
    z = agree(log_q, near).exp()
    by_hand = log_q.exp() * z[near].sum(1).exp()
    np.testing.assert_allclose(z, by_hand / by_hand.sum(1, keepdim=True), atol=1e-6)

    def objective(assigned):
        return float((assigned * (assigned.log() - log_q)).sum() - (assigned * assigned[near].sum(1)).sum())

    assert objective(z) < objective(log_q.exp()) - 1
    np.testing.assert_allclose(agree(log_q, near[:, :0]), log_q, atol=1e-12)  # nobody near: the network's own answer


def test_lame_scores_its_own_rows_by_their_assignments(erm):
    fitted, (X, _) = erm
    method = METHODS["lame"](**FAST).attach(fitted.trained_)
    here = method.adapt(X[:200])
    features = method.directions(X[:200], None)
    expected = agree(method.log_proba(X[:200], None), nearest(features, features, 5, same=True)).exp()
    np.testing.assert_allclose(here.own_proba(), expected, atol=1e-9)
    assert here.prevalence() is None


def test_lamdas_costs_and_its_transport_by_linear_programming():
    pytest.importorskip("ot", reason="POT comes with sitewise[bench]")
    rng = np.random.default_rng(0)
    source, target = torch.tensor(rng.normal(size=(5, 3))), torch.tensor(rng.normal(size=(4, 3)))
    expected = ((source[:, None] - target[None]) ** 2).mean(2)
    np.testing.assert_allclose(data_cost(source, target), expected, atol=1e-12)
    y, logits = torch.tensor([0, 1, 1, 0, 1]), torch.tensor(rng.normal(size=(4, 2)))
    labels = label_cost(y, logits)
    np.testing.assert_allclose(labels[2], -torch.log_softmax(logits, dim=1)[:, 1], atol=1e-12)
    weight = torch.tensor([1.0, 2.0, 1.0, 1.0, 3.0], dtype=torch.float64)
    cost = expected + labels
    plan = transport(cost, weight)
    np.testing.assert_allclose(plan.sum(1), weight / weight.sum(), atol=1e-12)
    np.testing.assert_allclose(plan.sum(0), 0.25, atol=1e-12)
    rows = np.kron(np.eye(5), np.ones(4))
    columns = np.kron(np.ones(5), np.eye(4))
    shares = np.r_[(weight / weight.sum()).numpy(), np.full(4, 0.25)]
    best = linprog(cost.numpy().ravel(), A_eq=np.r_[rows, columns], b_eq=shares).fun
    assert float((plan * cost).sum()) == pytest.approx(best, abs=1e-9)


def test_lamda_aligns_a_target_that_moved():
    """A feature that is correlated with y in training is moved, and not correlated, at the target."""
    pytest.importorskip("ot", reason="POT comes with sitewise[bench]")
    rng = np.random.default_rng(0)
    y, labels = rng.integers(2, size=(2, 600))
    noise = rng.normal(size=(2, 600, 2))
    X, moved = noise[0] + np.c_[3 * y, 2 * y], noise[1] + np.c_[3 * labels, np.full(600, 4)]
    data = {"sample_domain": np.repeat(["one", "two"], 300), "unlabeled": {"new": moved}}
    recipe = {**FAST, "epochs": 20}
    plain, lamda = (METHODS[name](**recipe).fit(X, y, **data) for name in ("erm", "lamda"))
    right = [(method.predict(moved) == labels).mean() for method in (plain, lamda)]
    assert right[1] > right[0] + 0.1  # 0.93 of these could be right, and ERM has about 0.7
    with pytest.raises(ValueError, match="give unlabeled="):
        METHODS["lamda"](**FAST).fit(X, y)
