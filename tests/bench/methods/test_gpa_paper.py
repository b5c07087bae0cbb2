"""The paper's algorithms to the letter: against closed forms, round by round."""

import numpy as np
import pandas as pd
import pytest
import torch

import sitewise as sw
from sitewise.adaptation.families.network import NetworkProblem
from sitewise.bench.methods import METHODS
from sitewise.bench.methods.base import training_key
from sitewise.bench.methods.gpa import read_solver
from sitewise.prevalence.network import build_network
from sitewise.solvers import EM

FAST = {"epochs": 6, "batch_size": 64, "device": "cpu", "verbose": False}


def draw(n, joint, seed):
    """x a very noisy picture of y, so that five rounds of EM are far from enough."""
    rng = np.random.default_rng(seed)
    y, z = np.divmod(rng.choice(4, n, p=np.ravel(joint)), 2)
    X = np.stack([y + 0.9 * rng.normal(size=n), z + 0.3 * rng.normal(size=n), rng.normal(size=n)], 1)
    return X, y, pd.DataFrame({"scanner": np.array(["a", "b"])[z]})


@pytest.fixture(scope="module")
def fitted():
    """The published GPA and GPA* on one network, and rows of a new site."""
    parts = draw(1500, [[0.35, 0.15], [0.15, 0.35]], 1), draw(1500, [[0.4, 0.2], [0.1, 0.3]], 2)
    X, y = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
    Z = pd.concat([part[2] for part in parts], ignore_index=True)
    paper = METHODS["gpa_paper"](**FAST).fit(X, y, sample_domain=np.repeat(["one", "two"], 1500), sample_confounder=Z)
    return paper, METHODS["gpa_paper_star"](**FAST).attach(paper.trained_), draw(1200, [[0.3, 0.6], [0.07, 0.03]], 3)


def random_network(method):
    schema = method.model_.confounders_
    seed = int(np.random.RandomState(method.random_state).randint(2**31))
    return schema, build_network(schema, 2, seed=seed)


def rounds(log_ratio, start, cells, n_rounds):
    """EM in closed form: g of every cell is the mean of ŷ over its rows."""
    g = start
    for _ in range(n_rounds):
        joint = np.exp(log_ratio) * g[cells]
        posterior = joint / joint.sum(1, keepdims=True)
        g = np.stack([posterior[cells == c].mean(0) for c in range(len(g))])
    return g


def test_algorithm_one_is_five_rounds_from_random_weights(fitted):
    paper, _, (X, _, Z) = fitted
    schema, network = random_network(paper)
    levels = pd.DataFrame({"scanner": ["a", "b"]})
    with torch.no_grad():
        start = torch.softmax(network(schema.inputs(schema.encode(levels)[0])), dim=1).numpy()
    log_ratio, cells = paper.log_ratio(X, Z).numpy(), (Z["scanner"] == "b").to_numpy().astype(int)
    prevalence = np.exp(np.asarray(paper.estimate(paper.log_ratio(X, Z), Z).log_prevalence(levels)))
    by_hand = {n: rounds(log_ratio, start, cells, n) for n in (4, 5, 6, 500)}
    error = np.abs(prevalence - by_hand[5]).max()  # the M-step is a network's, with 20 iterations
    assert error < np.abs(by_hand[5] - by_hand[4]).max() / 4
    assert error < np.abs(by_hand[5] - by_hand[6]).max() / 4
    assert np.abs(prevalence - by_hand[500]).max() > 0.02


def test_algorithm_two_is_five_rounds_in_closed_form(fitted):
    _, star, (X, _, Z) = fitted
    schema, network = random_network(star)
    with torch.no_grad():
        start = torch.softmax(network(schema.inputs(schema.missing_codes().reshape(1, -1))), dim=1).numpy()
    log_ratio = star.log_ratio(X, None).numpy()
    expected = rounds(log_ratio, start, np.zeros(len(X), dtype=int), 5)[0]
    here = star.adapt(X, Z)
    np.testing.assert_allclose(here.prevalence(), expected, rtol=1e-9)
    np.testing.assert_allclose(here.predict_proba(X, Z), sw.adjust(log_ratio, np.log(expected)), rtol=1e-9)


def test_nothing_of_ours_is_in_it(fitted):
    paper, star, (X, _, Z) = fitted
    for method in (paper, star):
        model = method.model_
        assert (model.prevalence, model.calibration, model.missing) == ("network", "vector", "knockout")
        assert model.balance_ is None
        assert model.unsupported_ == ()
        assert model.rehearsal is None
    estimate = paper.estimate(paper.log_ratio(X, Z), Z)
    assert (estimate.model, estimate.n_iter) == ("network", 5)
    with torch.no_grad():
        g = estimate.prevalence.log_prob(paper.model_.codes_of(Z, len(X)))
    expected = sw.adjust(paper.log_ratio(X, Z).numpy(), g.numpy())
    np.testing.assert_allclose(paper.adapt(X, Z).predict_proba(X, Z), expected, rtol=1e-9)


def test_calibration_has_rows_of_every_z():
    """Where a class never occurs in training, GPA sets the region apart; the paper does not."""
    rng = np.random.default_rng(0)
    z = rng.integers(2, size=1200)
    y = np.where(z == 1, rng.integers(2, size=1200), 0)
    X = np.stack([y + rng.normal(size=1200), z + 0.3 * rng.normal(size=1200)], 1)
    data = {"sample_domain": np.repeat(["one", "two"], 600), "sample_confounder": pd.DataFrame({"scanner": z})}
    paper = METHODS["gpa_paper"](**FAST).fit(X, y, **data)
    assert paper.trained_.classifier.unsupported_
    assert paper.model_.unsupported_ == ()
    assert len(paper.model_.telling_rows()[0]) > len(paper.trained_.classifier.telling_rows()[0])


def test_one_network_serves_both_and_every_balance_and_solver():
    keys = {
        training_key(METHODS[name](**FAST | settings))
        for name, settings in (
            ("gpa_paper", {}),
            ("gpa_paper_star", {"hidden": ["age"]}),
            ("gpa_paper", {"balance": True, "solver": "auto"}),
        )
    }
    assert len(keys) == 1
    assert keys != {training_key(METHODS["gpa_paper"](**FAST, prevalence_dropout=0.5))}
    assert training_key(METHODS["gpa"](**FAST)) == training_key(METHODS["gpa"](**FAST, balance=False, solver="newton"))
    assert keys != {training_key(METHODS["gpa"](**FAST))}


def test_an_experiment_names_the_settings_of_em():
    assert read_solver({"iterations": 5, "m_step": "sgd"}) == EM(iterations=5, m_step="sgd")
    assert read_solver("newton") == "newton"
    with pytest.raises(ValueError, match=r"rounds.*not settings of EM; there are iterations, m_step"):
        read_solver({"rounds": 5})


def test_dropout_acts_in_the_m_steps_only_with_a_mask_for_each_row(fitted, monkeypatch):
    paper, _, (X, _, Z) = fitted
    log_ratio, counted = paper.log_ratio(X, Z), []
    n_rows = NetworkProblem.n_rows
    monkeypatch.setattr(NetworkProblem, "n_rows", lambda problem: counted.append(n_rows(problem)) or counted[-1])
    plain = paper.estimate(log_ratio, Z)
    assert not counted
    dropping = METHODS["gpa_paper"](**FAST, prevalence_dropout=0.5).attach(paper.trained_)
    first, again = (dropping.estimate(log_ratio, Z) for _ in range(2))
    assert [int(counts.sum()) for counts in counted] == [len(X), len(X)]
    assert not first.prevalence.module.training
    values = [np.asarray(estimate.log_prevalence(Z)) for estimate in (first, again, plain)]
    np.testing.assert_array_equal(values[0], values[1])
    assert np.abs(values[0] - values[2]).max() > 1e-6
    assert np.exp(values[0])[:, 1].mean() == pytest.approx(np.exp(values[2])[:, 1].mean(), abs=0.05)
