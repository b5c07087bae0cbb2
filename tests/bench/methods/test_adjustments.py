"""What each adjustment does, against a closed form, a brute force or a hand computation."""

import itertools

import numpy as np
import pandas as pd
import pytest
import torch

import sitewise as sw
from sitewise.bench.methods import METHODS, ttlsa
from sitewise.bench.methods.base import cross_fitted
from sitewise.bench.methods.cells import Cells
from sitewise.bench.methods.copa import uniform_points
from sitewise.bench.methods.ttlsa import sum_out_z
from sitewise.confounders import Confounders
from sitewise.diagnosis import Finding
from sitewise.diagnosis.result import conclude

FAST = {"epochs": 6, "batch_size": 64, "device": "cpu", "verbose": False}


@pytest.fixture(scope="module")
def sites():
    """Two training sites and a new one, x a noisy picture of y and z; one categorical confounder."""

    def draw(n, joint, seed):
        rng = np.random.default_rng(seed)
        y, z = np.divmod(rng.choice(4, n, p=np.ravel(joint)), 2)
        X = np.stack([y + 0.7 * rng.normal(size=n), z + 0.3 * rng.normal(size=n), rng.normal(size=n)], 1)
        return X, y, pd.DataFrame({"scanner": np.array(["a", "b"])[z]})

    first = draw(1500, [[0.35, 0.15], [0.15, 0.35]], 1)
    second = draw(1500, [[0.4, 0.2], [0.1, 0.3]], 2)
    joint = np.array([[0.2, 0.6], [0.15, 0.05]])
    data = {
        "X": np.concatenate([first[0], second[0]]),
        "y": np.concatenate([first[1], second[1]]),
        "sample_domain": np.repeat(["one", "two"], 1500),
        "sample_confounder": pd.concat([first[2], second[2]], ignore_index=True),
    }
    return data, draw(3000, joint, 3), joint


def test_cross_fitting_never_scores_a_row_by_itself():
    seen = np.zeros((10, 10), dtype=bool)

    def predict(fitted, scored):
        seen[np.ix_(scored, fitted)] = True
        return torch.tensor(scored)[:, None].double()

    predicted = cross_fitted(10, 0, predict)
    assert predicted[:, 0].tolist() == list(range(10))
    assert not seen.diagonal().any()
    assert (seen.sum(1) == 8).all()


def test_copa_scores_no_row_by_a_g_that_saw_its_label(sites):
    data, (X, y, Z), _ = sites
    method = METHODS["copa"](**FAST).fit(**data)
    few, labels, z = X[:40], y[:40], Z.iloc[:40]
    plain = method.adapt(few, z, y=labels).own_proba()
    for row in (0, 7, 39):
        flipped = labels.copy()
        flipped[row] = 1 - flipped[row]
        np.testing.assert_allclose(method.adapt(few, z, y=flipped).own_proba()[row], plain[row], rtol=1e-9)
        assert np.abs(method.adapt(few, z, y=flipped).predict_proba(few, z)[row] - plain[row]).max() > 1e-4


def test_copa_finds_g_from_labels_and_asks_for_them(sites):
    data, (X, y, Z), joint = sites
    method = METHODS["copa"](**FAST).fit(**data)
    with pytest.raises(ValueError, match="needs the site's labels"):
        method.adapt(X, Z)
    here = method.adapt(X, Z, y=y)
    ratio = method.log_ratio(X, Z).numpy()
    truth = (joint / joint.sum(0)).T[(Z["scanner"] == "b").to_numpy().astype(int)]
    np.testing.assert_allclose(here.predict_proba(X, Z), sw.adjust(ratio, np.log(truth)), atol=0.06)


def test_copa_star_is_the_average_over_z_by_hand(sites):
    data, (X, y, _), _ = sites
    method = METHODS["copa_star"](**FAST).fit(**data)
    prior = np.array([0.7, 0.3])
    rows = X[:5]
    by_hand = np.zeros((5, 2))
    for level in ("a", "b"):
        joint = np.exp(method.log_ratio(rows, pd.DataFrame({"scanner": [level] * 5})).numpy()) * prior
        by_hand += joint / joint.sum(1, keepdims=True)
    by_hand /= by_hand.sum(1, keepdims=True)
    np.testing.assert_allclose(method.adapt(rows, prevalence=prior).predict_proba(rows), by_hand, rtol=1e-9)
    with_labels = method.adapt(X, y=y).predict_proba(rows)
    np.testing.assert_allclose(with_labels, method.adapt(X, prevalence=np.bincount(y) / len(y)).predict_proba(rows))


def test_points_of_z_are_spread_evenly_over_its_range():
    schema = Confounders.learn(pd.DataFrame({"sex": ["m", "f"] * 10, "scanner": ["a", "b", "c", "a"] * 5}))
    points = uniform_points(schema)
    assert set(map(tuple, points[["sex", "scanner"]].to_numpy())) == set(itertools.product("mf", "abc"))
    mixed = Confounders.learn(pd.DataFrame({"sex": ["m", "f"] * 10, "age": np.linspace(20, 80, 20)}))
    points = uniform_points(mixed)
    assert len(points) == 64
    assert points["age"].between(20, 80).all()
    assert points["age"].mean() == pytest.approx(50, abs=1)
    assert points["sex"].value_counts().tolist() == [32, 32]


def test_gpas_variants_use_one_f_and_differ_in_g(sites):
    data, (X, y, Z), joint = sites
    gpa = METHODS["gpa"](**FAST).fit(**data)
    variants = {name: METHODS[name](**FAST).attach(gpa.trained_) for name in ("gpa_star", "gpa_constant", "gpa_oracle")}
    ratio = gpa.log_ratio(X, Z).numpy()
    constant = variants["gpa_constant"].adapt(X, Z)
    np.testing.assert_allclose(constant.predict_proba(X, Z), sw.adjust(ratio, np.log(constant.prevalence())), rtol=1e-6)

    def truth(z):
        return (joint / joint.sum(0)).T[(z["scanner"] == "b").to_numpy().astype(int)]

    oracle = variants["gpa_oracle"].adapt(X, Z, prevalence=truth)
    np.testing.assert_allclose(oracle.predict_proba(X, Z), sw.adjust(ratio, np.log(truth(Z))), rtol=1e-6)
    with pytest.raises(ValueError, match="needs the true prevalence"):
        variants["gpa_oracle"].adapt(X, Z)
    star = variants["gpa_star"].adapt(X, Z)
    np.testing.assert_array_equal(star.predict_proba(X, Z), star.predict_proba(X))
    np.testing.assert_array_equal(star.prevalence(), gpa.adapt(X).prevalence())

    def nll(here):
        return -np.log(here.predict_proba(X, Z)[np.arange(len(y)), y]).mean()

    assert nll(gpa.adapt(X, Z)) < nll(constant) - 0.01
    assert nll(gpa.adapt(X, Z)) < nll(oracle) + 0.04  # averaged over what two rehearsed sites leave open


def test_guarded_is_gpa_where_adapting_is_safe_and_the_training_g_elsewhere(sites, monkeypatch):
    data, (X, _, Z), _ = sites
    gpa = METHODS["gpa"](**FAST).fit(**data)
    guarded = METHODS["gpa_guarded"](**FAST).attach(gpa.trained_)
    broken = Finding("stability", "stop", 0.0, 0.01, "Broken.", details={"gap": 1.0})
    for findings in ((), (broken,)):
        monkeypatch.setattr("sitewise.estimator.adapted.check_site", lambda here, found=findings: conclude(found))
        here = guarded.adapt(X, Z)
        if not findings:
            np.testing.assert_allclose(here.predict_proba(X, Z), gpa.adapt(X, Z).predict_proba(X, Z), rtol=1e-9)
        else:
            assert here.prevalence() is None
            means = (method.predict_proba(X, Z).mean(axis=0) for method in (here, gpa))
            np.testing.assert_allclose(*means, atol=1e-6)


def test_ttlsa_finds_the_joint_without_z(sites, monkeypatch):
    data, (X, _, _), joint = sites
    log_ratios, estimate = [], ttlsa.estimate_prevalence

    def record_ratio(log_ratio, **settings):
        log_ratios.append(log_ratio)
        return estimate(log_ratio, **settings)

    monkeypatch.setattr(ttlsa, "estimate_prevalence", record_ratio)
    method = METHODS["ttlsa"](**FAST).fit(**data)
    here = method.adapt(X)
    assert here.prevalence()[1] == pytest.approx(joint[1].sum(), abs=0.04)
    # Brute force: the same fixed point by plain EM with one pseudo-count a pair.
    ratio = np.exp(log_ratios[0])
    share = np.full(4, 0.25)
    for _ in range(5000):
        posterior = ratio * share
        posterior /= posterior.sum(1, keepdims=True)
        share = (posterior.sum(0) + 1) / (len(X) + 4)
    by_hand = sum_out_z(torch.tensor(ratio * share).log(), 2).exp().numpy()
    by_hand /= by_hand.sum(1, keepdims=True)
    np.testing.assert_allclose(here.predict_proba(X), by_hand, atol=1e-4)
    np.testing.assert_allclose(share.reshape(2, 2), joint, atol=0.05)


def test_cells_number_what_occurs_and_bin_by_quantiles():
    Z = pd.DataFrame({"sex": ["m", "f", "m", "f", None], "age": [10.0, 20.0, 30.0, 40.0, 20.0]})
    schema = Confounders.learn(Z)
    codes, _ = schema.encode(Z)
    cells = Cells.learn(schema, codes, bins=2)
    assert len(cells) == 4
    numbers = cells.number(codes)
    assert sorted(numbers[:4].tolist()) == [0, 1, 2, 3]
    assert numbers[4] == -1
    assert cells.possible(codes)[:4].sum(1).tolist() == [1, 1, 1, 1]
    assert cells.possible(codes)[4].sum() == 2  # young, of either sex
    new, _ = schema.encode(pd.DataFrame({"sex": ["m"], "age": [40.0]}))
    few = Cells.learn(schema, codes[[0, 1, 3]], bins=2)  # no old man among them
    assert few.number(new) == -1
    assert few.possible(new).all()
    assert len(Cells.learn(None, torch.zeros(3, 0), None)) == 1


@pytest.mark.parametrize("name", ["label_shift_em", "bbse", "rlls"])
def test_label_shift_is_relative_to_the_held_out_rows(name):
    """A validation site with other shares than training must not move the answer."""
    rng = np.random.default_rng(5)

    def draw(n, share):
        y = (rng.random(n) < share).astype(int)
        return np.stack([2 * y + 0.7 * rng.normal(size=n), rng.normal(size=n), rng.normal(size=n)], 1), y

    (X, y), (X_val, y_val), (new, _) = draw(3000, 0.25), draw(1500, 0.8), draw(4000, 0.1)
    method = METHODS[name](**FAST | {"validation": "validation"})
    method.fit(
        np.concatenate([X, X_val]), np.concatenate([y, y_val]), np.repeat(["training", "validation"], [3000, 1500])
    )
    assert method.adapt(new).prevalence()[1] == pytest.approx(0.1, abs=0.03)


def test_erm_c_cannot_see_the_colour():
    rng = np.random.default_rng(0)
    gray = rng.integers(255, size=(4, 8, 8)).astype(np.uint8)
    red, green = np.zeros((2, 4, 3, 8, 8), dtype=np.uint8)
    red[:, 0], green[:, 1] = gray, gray
    X = np.concatenate([red, green] * 30)
    y = np.tile([0, 1], 120)
    method = METHODS["erm_c"](**FAST | {"epochs": 1}).fit(X, y)
    np.testing.assert_array_equal(method.predict_proba(red), method.predict_proba(green))
    with pytest.raises(ValueError, match="drops the colour of images"):
        METHODS["erm_c"](**FAST).fit(np.zeros((20, 3)), np.tile([0, 1], 10))


def test_methods_with_held_out_rows_ask_for_them(sites):
    data, _, _ = sites
    with pytest.raises(ValueError, match="needs held-out rows"):
        METHODS["bbse"](**FAST | {"validation": None}).fit(**data)


def test_unknown_settings_are_said(sites):
    data, _, _ = sites
    for settings, message in (
        ({"base": "ermz"}, "base must be one of"),
        ({"calibration": "platt"}, "calibration must"),
    ):
        with pytest.raises(ValueError, match=message):
            METHODS["label_shift_em"](**FAST | settings).fit(**data)
    with pytest.raises(ValueError, match="groups must be"):
        METHODS["group_dro"](**FAST, groups="cell").fit(**data)
