"""GPAClassifier end to end on simulated sites whose f and g are known."""

import copy
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.exceptions import NotFittedError

import sitewise as sw

FAST = {"epochs": 4, "batch_size": 64, "device": "cpu", "rehearsal": None}


def pool(sites):
    return {
        "X": np.concatenate([s.X for s in sites]),
        "y": np.concatenate([s.y for s in sites]),
        "sample_domain": np.concatenate([[s.site.name] * len(s.y) for s in sites]),
        "sample_confounder": pd.concat([s.Z for s in sites], ignore_index=True),
    }


def nll(probability, y):
    return -np.log(np.asarray(probability)[np.arange(len(y)), y]).mean()


@pytest.fixture(scope="module")
def family():
    return sw.SimulatedFamily(seed=3, signal=2.0)


@pytest.fixture(scope="module")
def training(family):
    return [
        family.site(4000, prevalence=[0.5, 0.5], dependence=1.0, name="north", seed=1),
        family.site(4000, prevalence=[0.6, 0.4], dependence=0.3, name="south", seed=2),
    ]


@pytest.fixture(scope="module")
def model(training):
    return sw.GPAClassifier(device="cpu", rehearsal=None).fit(**pool(training))


def test_the_trained_f_comes_back(family, model):
    new = family.site(4000, dependence=0.0, seed=5)
    found = model.log_ratio(new.X, sample_confounder=new.Z)
    difference, truth = np.diff(found)[:, 0], np.diff(new.log_ratio)[:, 0]
    assert np.corrcoef(difference, truth)[0, 1] > 0.95
    assert (
        nll(sw.adjust(found, new.log_prevalence), new.y)
        < nll(sw.adjust(new.log_ratio, new.log_prevalence), new.y) + 0.02
    )


def test_adaptation_reaches_the_nll_of_the_true_g(family, model):
    new = family.site(6000, prevalence=[0.85, 0.15], dependence=-0.5, seed=6)
    here = model.adapt(new.X, sample_confounder=new.Z)
    with_truth = nll(sw.adjust(model.log_ratio(new.X, new.Z), new.log_prevalence), new.y)
    adapted = nll(here.predict_proba(new.X, sample_confounder=new.Z), new.y)
    unadapted = nll(model.predict_proba(new.X, sample_confounder=new.Z), new.y)
    assert adapted < with_truth + 0.01
    assert adapted < unadapted - 0.05
    low, high = here.prevalence_interval()
    assert low[1] - 0.02 < 0.15 < high[1] + 0.02


def test_without_shift_predictions_stay_where_they_were(family, model, training):
    again = family.site(6000, prevalence=[0.5, 0.5], dependence=1.0, seed=8)
    here = model.adapt(again.X, sample_confounder=again.Z)
    own = model.predict_proba(again.X, sample_domain=["north"] * 6000, sample_confounder=again.Z)
    adapted = here.predict_proba(again.X, sample_confounder=again.Z)
    assert np.abs(own - adapted).mean() < 0.02
    assert abs(nll(own, again.y) - nll(adapted, again.y)) < 0.01


def test_adaptation_without_z_and_with_part_of_it(family, model):
    new = family.site(4000, prevalence=[0.85, 0.15], dependence=0.5, seed=7)
    unadapted = nll(model.predict_proba(new.X), new.y)
    without = model.adapt(new.X)
    assert nll(without.predict_proba(new.X), new.y) < unadapted - 0.02
    partly = new.Z.assign(age0=np.nan)
    here = model.adapt(new.X, sample_confounder=partly)
    assert nll(here.predict_proba(new.X, sample_confounder=partly), new.y) < unadapted - 0.02
    with pytest.warns(UserWarning, match="absent"):
        fewer = model.adapt(new.X, sample_confounder=partly.drop(columns="age0"))
    np.testing.assert_allclose(fewer.prevalence(), here.prevalence())
    nothing = here.predict_proba(new.X[:1])
    assert np.isfinite(nothing).all()


def test_a_patients_score_does_not_depend_on_the_batch(family, model):
    """Trap: adapt once, then predict row by row."""
    new = family.site(300, seed=9)
    here = model.adapt(new.X, sample_confounder=new.Z)
    together = here.predict_proba(new.X, sample_confounder=new.Z)
    for row in (0, 150, 299):
        alone = here.predict_proba(new.X[[row]], sample_confounder=new.Z.iloc[[row]])
        np.testing.assert_allclose(alone[0], together[row], rtol=1e-9)


def test_adapting_leaves_the_model_alone(family, model):
    new = family.site(500, prevalence=[0.9, 0.1], seed=10)
    before = model.predict_proba(new.X, sample_confounder=new.Z)
    first = model.adapt(new.X, sample_confounder=new.Z)
    model.adapt(new.X[:100], sample_confounder=new.Z[:100])
    np.testing.assert_array_equal(model.predict_proba(new.X, sample_confounder=new.Z), before)
    again = model.adapt(new.X, sample_confounder=new.Z)
    np.testing.assert_array_equal(first.prevalence(), again.prevalence())


def test_a_few_labels_are_used(family, model):
    new = family.site(300, prevalence=[0.7, 0.3], seed=11)
    y = np.where(np.arange(300) < 200, new.y, np.nan)
    widths = [np.diff(model.adapt(new.X, new.Z, y=labels).prevalence_interval(), axis=0)[0, 1] for labels in (None, y)]
    assert widths[1] < 1.1 * widths[0]  # f tells nearly as much as a label here, and labels leave its slope open
    all_ill = np.where(np.arange(300) < 200, 1.0, np.nan)
    assert model.adapt(new.X, new.Z, y=all_ill).prevalence()[1] > model.adapt(new.X, new.Z).prevalence()[1] + 0.2
    with pytest.raises(ValueError, match=r"classes \[0, 1\].* got 7"):
        model.adapt(new.X, new.Z, y=[7] * 300)


def test_calibrating_on_a_site_of_its_own_replaces_the_calibration(family, model):
    site = family.site(1500, prevalence=[0.8, 0.2], seed=12)
    mine = copy.deepcopy(model)
    overconfident = copy.deepcopy(model)
    with torch.no_grad():
        for layer in (overconfident.scorer_.module.fusion[-1],):
            layer.weight.mul_(4)
            layer.bias.mul_(4)
    new = family.site(3000, prevalence=[0.9, 0.1], seed=13)
    worse = nll(sw.adjust(overconfident.log_ratio(new.X, new.Z), new.log_prevalence), new.y)
    overconfident.calibrate(site.X, site.y, sample_confounder=site.Z)
    corrected = nll(sw.adjust(overconfident.log_ratio(new.X, new.Z), new.log_prevalence), new.y)
    assert corrected < worse - 0.02
    mine.calibrate(site.X, site.y, sample_confounder=site.Z)
    assert abs(nll(sw.adjust(mine.log_ratio(new.X, new.Z), new.log_prevalence), new.y) - corrected) < 0.01
    with pytest.raises(ValueError, match="not among the classes"):
        mine.calibrate(site.X, site.y + 1, sample_confounder=site.Z)
    with pytest.raises(ValueError, match=r"y has 1499 row\(s\), X has 1500"):
        mine.calibrate(site.X, site.y[:-1], sample_confounder=site.Z)


def test_calibration_is_of_log_f_and_is_used_for_the_target(model, family):
    """Trap: calibration applied after adding the prior, or computed and then not used."""
    new = family.site(200, seed=14)
    codes = model.confounders_.encode(new.Z)[0]
    raw = model.balanced(model.raw_log_ratio(torch.tensor(new.X), codes), codes)
    complete, incomplete = model.calibrations_
    np.testing.assert_allclose(model.log_ratio(new.X, new.Z), complete.apply(raw))
    blank = model.raw_log_ratio(torch.tensor(new.X), model.confounders_.missing_codes().expand(200, -1))
    np.testing.assert_allclose(model.log_ratio(new.X), incomplete.apply(blank))
    assert complete.method == incomplete.method == "vector"


def test_a_training_site_may_lack_a_variable_and_rows_may_lack_anything(family):
    sites = [
        family.site(800, name="north", seed=1, missing=0.2),
        family.site(800, name="south", seed=2),
    ]
    data = pool(sites)
    data["sample_confounder"].loc[800:, "age0"] = np.nan
    fitted = sw.GPAClassifier(**FAST).fit(**data)
    new = family.site(400, prevalence=[0.8, 0.2], missing=0.5, seed=3)
    here = fitted.adapt(new.X, sample_confounder=new.Z)
    assert np.isfinite(here.predict_proba(new.X, new.Z)).all()


@pytest.mark.parametrize("kind", ["numpy", "pandas", "torch"])
def test_containers_and_string_labels(kind, family):
    site = family.site(300, seed=1)
    X = {"numpy": site.X, "pandas": pd.DataFrame(site.X).add_prefix("f"), "torch": torch.tensor(site.X)}[kind]
    y = np.array(["healthy", "ill"])[site.y]
    fitted = sw.GPAClassifier(**FAST).fit(X, y, sample_confounder=site.Z)
    assert fitted.classes_.tolist() == ["healthy", "ill"]
    probability = fitted.predict_proba(X, sample_confounder=site.Z)
    assert isinstance(probability, torch.Tensor if kind == "torch" else np.ndarray)
    here = fitted.adapt(X, sample_confounder=site.Z, y=[None] * 299 + ["ill"])
    assert set(here.predict(X, sample_confounder=site.Z)) <= {"healthy", "ill"}
    if kind == "pandas":
        with pytest.raises(ValueError, match="feature names"):
            fitted.predict(X.rename(columns={"f0": "g0"}))


@pytest.mark.parametrize("shape", [(1, 16, 16), (3, 12, 20), (8, 8)])
def test_images_of_bytes_and_floats(shape):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 90)
    X = rng.integers(0, 100, (90, *shape)).astype(np.uint8)
    X[y == 1] += 100
    for images in (X, X / 255):
        fitted = sw.GPAClassifier(**{**FAST, "epochs": 2}).fit(images, y)
        assert fitted.predict_proba(images).shape == (90, 3)
        with pytest.raises(ValueError, match="as at fit"):
            fitted.predict_proba(np.zeros((2, 5, 9, 9)))
        with pytest.raises(ValueError, match="as at fit"):
            fitted.predict_proba(np.zeros((2, 5)))


def test_a_seed_repeats_to_the_bit(family):
    site = family.site(300, seed=1)
    runs = [
        sw.GPAClassifier(**FAST, random_state=s).fit(site.X, site.y, sample_confounder=site.Z).predict_proba(site.X)
        for s in (5, 5, 6)
    ]
    np.testing.assert_array_equal(runs[0], runs[1])
    assert not np.array_equal(runs[0], runs[2])


def test_a_validation_site_serves_the_snapshot_and_calibration_but_not_training(family, training):
    data = pool([*training, family.site(1000, prevalence=[0.7, 0.3], name="held", seed=4)])
    fitted = sw.GPAClassifier(**FAST, validation="held").fit(**data)
    assert fitted.calibrations_[0].method == "vector"
    held = data["sample_domain"] == "held"
    seen, hidden = fitted.held_out_
    for rows, Z in ((seen, data["sample_confounder"][held]), (hidden, None)):
        codes = fitted.codes_of(Z, int(held.sum()))
        raw = fitted.raw_log_ratio(torch.tensor(data["X"][held]), codes)
        np.testing.assert_allclose(rows.raw_log_ratio, fitted.balanced(raw, codes))
    with pytest.raises(ValueError, match=r"unknown sample_domain \['held'\].*Use adapt"):
        fitted.predict_proba(data["X"][:2], sample_domain=["held", "held"])
    with pytest.raises(ValueError, match="names the site 'hold'"):
        sw.GPAClassifier(**FAST, validation="hold").fit(**data)


@pytest.mark.parametrize("prevalence", ["constant", "additive", "network"])
def test_every_model_of_g_trains_and_adapts(prevalence, family):
    site = family.site(400, seed=1)
    fitted = sw.GPAClassifier(**FAST, prevalence=prevalence).fit(site.X, site.y, sample_confounder=site.Z)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="network g did not converge")
        here = fitted.adapt(site.X, sample_confounder=site.Z)
    # the training g as a prior gives a posterior; a network g is trained anew at the site
    assert here.estimate.model == ("network" if prevalence == "network" else "posterior")
    codes = fitted.confounders_.encode(site.Z)[0]
    depends = bool(here.estimate.prevalence.log_prob(codes).std(0).max() > 1e-9)
    assert depends == (prevalence != "constant")


def test_where_a_class_never_occurs_in_training_the_training_g_is_kept(family):
    """Trap: f is not identified where P(y|z) = 0 at every training site (the paper's Z-causes-Y model)."""
    rng = np.random.default_rng(0)
    z = rng.choice(["red", "green"], 2000)
    y = ((z == "red") & (rng.random(2000) < 0.5)).astype(int)
    X = rng.normal(size=(2000, 2)) + 2 * y[:, None]
    fitted = sw.GPAClassifier(**FAST).fit(X, y, sample_confounder={"color": z})
    new_z = rng.choice(["red", "green"], 1000, p=[0.4, 0.6])
    new_y = ((new_z == "red") & (rng.random(1000) < 0.2)).astype(int)
    new_X = rng.normal(size=(1000, 2)) + 2 * new_y[:, None]
    with pytest.warns(UserWarning, match="at color = 'green' class 1 never occurs"):
        here = fitted.adapt(new_X, sample_confounder={"color": new_z})
    given_z = here.prevalence({"color": ["green", "red"]})
    assert given_z[0, 1] < 0.01
    assert given_z[1, 1] == pytest.approx(0.2, abs=0.07)
    kept = fitted.pooled_prevalence_.log_prob(fitted.confounders_.encode({"color": ["green"]})[0]).exp()[0]
    np.testing.assert_array_equal(given_z[0], kept)
    low, high = here.prevalence_interval({"color": ["green", "red"]})
    assert low[0, 1] == high[0, 1] == given_z[0, 1]
    assert low[1, 1] < given_z[1, 1] < high[1, 1]
    assert here.prevalence()[1] == pytest.approx(new_y.mean(), abs=0.04)
    low, high = here.prevalence_interval()
    assert low[1] < here.prevalence()[1] < high[1]


def test_f_may_be_computed_once_and_adapted_and_adjusted_later(family, model):
    new = family.site(1000, prevalence=[0.8, 0.2], seed=12)
    log_ratio = model.log_ratio(new.X, new.Z)
    here, whole = model.adapt_log_ratio(log_ratio, new.Z), model.adapt(new.X, new.Z)
    np.testing.assert_array_equal(here.prevalence(), whole.prevalence())
    np.testing.assert_array_equal(here.adjust(log_ratio, new.Z), whole.predict_proba(new.X, new.Z))


def test_another_calibration_leaves_the_model_alone(family, model):
    new = family.site(500, seed=13)
    before = model.log_ratio(new.X, new.Z)
    other = model.with_calibration("none")
    assert other.calibration == "none"
    assert model.calibration == "vector"
    np.testing.assert_array_equal(model.log_ratio(new.X, new.Z), before)
    np.testing.assert_allclose(model.with_calibration("vector").log_ratio(new.X, new.Z), before)
    assert np.abs(other.log_ratio(new.X, new.Z) - before).max() > 1e-3
    with pytest.raises(ValueError, match="calibration must be one of"):
        model.with_calibration("platt")


def test_adapting_before_fitting_says_so():
    with pytest.raises(NotFittedError):
        sw.GPAClassifier().adapt_log_ratio(np.zeros((3, 2)))
