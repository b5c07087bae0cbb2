"""What holds for every method of the registry: a new method is tested the moment it is registered."""

import warnings
from importlib.util import find_spec

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

import sitewise as sw
from sitewise.bench.methods import METHODS
from sitewise.bench.methods.base import fit_together, remembering, training_key

FAST = {"epochs": 2, "batch_size": 64, "device": "cpu", "verbose": False}
LEVELS = ("a", "b", "c")


def draw(n, n_classes, seed, *, images=False, shift=0.0):
    """Rows whose x shows y and z, y and z going together by `shift`."""
    rng = np.random.default_rng(seed)
    z = rng.integers(2, size=n)
    weight = np.ones(n_classes)
    weight[0] += shift
    y = rng.choice(n_classes, n, p=weight / weight.sum())
    together = rng.random(n) < 0.3
    y = np.where(together & (z == 1), n_classes - 1, y)
    if images:
        gray = rng.integers(40, size=(n, 8, 8)) + 50 * y[:, None, None]
        X = np.zeros((n, 3, 8, 8), dtype=np.uint8)
        X[np.arange(n), 1 - z] = gray  # red or green
    else:
        X = rng.normal(size=(n, 4)) + np.eye(4)[y] * 2
        X[:, 3] += z
    Z = pd.DataFrame({"scanner": np.array(LEVELS)[z]})
    return X, y, Z


def needs_images(name):
    return name == "erm_c"


def make(name, **settings):
    return METHODS[name](**FAST | settings)


def problem(name, n_classes=2, n_sites=2, with_z=True):
    X, y, Z = draw(240 * n_sites, n_classes, 1, images=needs_images(name))
    data = {"X": X, "y": y, "sample_domain": np.repeat([f"s{i}" for i in range(n_sites)], 240)}
    if with_z:
        data["sample_confounder"] = Z
    new = draw(150, n_classes, 2, images=needs_images(name), shift=2.0)
    data["unlabeled"] = {"new": new[0]}
    return data, new


def adapt(method, new, with_z=True):
    X, y, Z = new
    known = {"labels": {"y": y}, "P(Y)": {"y": y}, "true g": {}, "no": {}}[method.card.labels_at_test]
    if method.card.labels_at_test == "true g":
        shares = np.bincount(y, minlength=len(method.classes_)) / len(y)
        known = {"prevalence": lambda z: np.tile(shares, (1 if z is None else len(z), 1))}
    return method.adapt(X, Z if with_z else None, **known)


LACKING = {name for name, package in (("lamda", "ot"), ("quantifier", "quapy")) if find_spec(package) is None}


def needs_z(name):
    """Whether the network reads z, and the card says that z is needed."""
    return METHODS[name].reads_z and METHODS[name].card.z_at_test == "needed"


def refused(name, n_sites, with_z):
    if name in LACKING:
        return "install sitewise"
    if n_sites == 1 and not METHODS[name].card.single_site:
        return "needs at least two"
    if not with_z and (needs_z(name) or name == "ttlsa"):
        return "needs confounders"
    return None


CASES = [
    (name, n_classes, n_sites, with_z)
    for name in METHODS
    for n_classes, n_sites, with_z in ((2, 2, True), (3, 2, True), (2, 1, True), (3, 1, False), (2, 2, False))
]


@pytest.mark.parametrize(("name", "n_classes", "n_sites", "with_z"), CASES)
def test_fit_adapt_predict(name, n_classes, n_sites, with_z):
    data, new = problem(name, n_classes, n_sites, with_z)
    method = make(name)
    reason = refused(name, n_sites, with_z)
    if reason:
        with pytest.raises(ValueError, match=reason):
            method.fit(**data)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what short training makes of g is not the subject here
        assert method.fit(**data) is method
        here = adapt(method, new, with_z)
    X, Z = new[0], new[2] if with_z else None
    for probability in (here.predict_proba(X, Z), here.own_proba(), method.predict_proba(X, Z)):
        assert probability.shape == (150, n_classes)
        np.testing.assert_allclose(probability.sum(1), 1, atol=1e-6)
        assert (probability >= 0).all()
    assert set(here.predict(X, Z)) <= set(range(n_classes))
    # Adapt once, then predict row by row: a row's score does not depend on who else is there.
    part = here.predict_proba(X[:7], None if Z is None else Z.iloc[:7])
    np.testing.assert_allclose(part, here.predict_proba(X, Z)[:7], atol=1e-5)
    marginal = here.prevalence()
    if marginal is not None:
        assert marginal.shape == (n_classes,)
        assert marginal.sum() == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("name", [name for name in METHODS if name not in LACKING])
def test_seeds_repeat(name):
    data, new = problem(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first, again, other = (
            adapt(make(name, random_state=seed).fit(**data), new).predict_proba(new[0], new[2]) for seed in (1, 1, 2)
        )
    np.testing.assert_allclose(first, again, rtol=0, atol=1e-12)  # the last bit depends on how memory is aligned
    assert np.abs(first - other).max() > 1e-6


@pytest.mark.parametrize("name", METHODS)
def test_settings_are_stored_and_cloned(name):
    method = make(name, random_state=7)
    copied = clone(method)
    assert type(copied) is type(method)
    assert copied.get_params() == method.get_params()
    assert method.card.name
    assert type(method).__doc__ != METHODS["erm"].__bases__[0].__doc__


def test_methods_of_one_key_share_a_network():
    data, new = problem("erm")
    family = [make("erm"), make("label_shift_em"), make("bbse", soft=True), make("rlls")]
    assert len({training_key(method) for method in family}) == 1
    fit_together(family, data.pop("X"), data.pop("y"), **data)
    assert len({id(method.trained_) for method in family}) == 1
    calls = []
    scorer = family[0].trained_.scorer

    class Counting:
        def __call__(self, X, z):
            calls.append(len(X))
            return scorer(X, z)

    family[0].trained_.scorer = Counting()
    with remembering(family):
        for method in family:
            method.adapt(new[0]).predict_proba(new[0])
    assert calls == [150]
    family[0].predict_proba(new[0])
    assert calls == [150, 150]


def test_methods_of_other_keys_do_not():
    assert training_key(make("erm")) != training_key(make("erm_z"))
    assert training_key(make("erm")) != training_key(make("label_shift_em", base="erm_c"))
    assert training_key(make("gpa")) == training_key(make("gpa_star", calibration="none"))
    assert training_key(make("gpa")) != training_key(make("copa"))
    assert training_key(make("copa")) == training_key(make("copa_star"))
    data, _ = problem("erm")
    with pytest.raises(ValueError, match="do not share a network"):
        fit_together([make("erm"), make("irm")], data["X"], data["y"])


@pytest.mark.parametrize("name", ["ttlsa", "group_dro"])
def test_continuous_z_is_refused_or_binned(name):
    data, _ = problem(name)
    age = pd.DataFrame({"age": np.random.default_rng(0).normal(60, 10, len(data["y"]))})
    with pytest.raises(ValueError, match="'age' is continuous"):
        make(name, bins=None).fit(**data | {"sample_confounder": age})
    make(name, bins=3).fit(**data | {"sample_confounder": age})


def test_label_free_methods_never_look_at_labels():
    data, new = problem("gpa")
    X, y, Z = new
    for name in METHODS:
        if METHODS[name].card.labels_at_test != "no" or needs_images(name) or name in LACKING:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            method = make(name).fit(**data)
            known, untold = method.adapt(X, Z, y=y), method.adapt(X, Z)
        np.testing.assert_array_equal(known.predict_proba(X, Z), untold.predict_proba(X, Z))


def test_a_simulated_shift_is_followed():
    family = sw.SimulatedFamily(seed=4, signal=3.0)
    training = [family.site(1500, prevalence=[0.5, 0.5], name=f"s{i}", seed=i) for i in range(2)]
    new = family.site(3000, prevalence=[0.9, 0.1], seed=9)
    X, y = (np.concatenate([getattr(s, part) for s in training]) for part in ("X", "y"))
    method = METHODS["label_shift_em"](epochs=6, device="cpu", verbose=False)
    method.fit(X, y, sample_domain=np.repeat(["a", "b"], 1500))
    assert method.adapt(new.X).prevalence()[1] == pytest.approx(0.1, abs=0.06)
