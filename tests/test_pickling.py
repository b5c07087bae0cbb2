"""Whatever a user holds goes through pickle and joblib, and answers as before."""

import pickle

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.linear_model import LogisticRegression

import sitewise as sw

FAMILY = sw.SimulatedFamily(n_classes=2, coupling=1.5, effect=1.5, seed=0)


def again(value):
    return pickle.loads(pickle.dumps(value))


@pytest.fixture(scope="module")
def site():
    """A site with a number and a category for z, some of it missing, and its log f."""
    drawn = FAMILY.site(400, prevalence=[0.7, 0.3], dependence=-1.0, seed=1)
    sex = pd.Series(np.where(drawn.X[:, 0] > 0, "f", "m")).mask(np.arange(400) % 7 == 0)
    Z = pd.DataFrame({"age": drawn.Z.select_dtypes("number").iloc[:, 0].to_numpy(), "sex": sex})
    return drawn.log_ratio, Z


def check_estimate(estimate, Z):
    """The same estimate, before anything was asked of it and after."""
    for copy in (again(estimate), again(again(estimate))):
        np.testing.assert_array_equal(copy.marginal, estimate.marginal)
        np.testing.assert_array_equal(copy.interval(), estimate.interval())
        np.testing.assert_array_equal(
            copy.draws(20, random_state=0).marginal, estimate.draws(20, random_state=0).marginal
        )
        if Z is not None:
            np.testing.assert_array_equal(copy.log_prevalence(Z), estimate.log_prevalence(Z))
            np.testing.assert_array_equal(copy.interval(Z[:5]), estimate.interval(Z[:5]))
        if estimate.can_refit:
            drawn = [one.bootstrap(5, random_state=0) for one in (copy, estimate)]
            np.testing.assert_array_equal(*(again(each).marginal for each in drawn))
    drawn = estimate.draws(5, random_state=0)
    np.testing.assert_array_equal(again(drawn).marginal, drawn.marginal)


@pytest.mark.filterwarnings("ignore:network g did not converge")
@pytest.mark.parametrize("model", ["auto", "constant", "additive", "network"])
@pytest.mark.parametrize("prior", [None, np.array([0.5, 0.5])])
def test_estimates(site, model, prior):
    log_ratio, Z = site
    check_estimate(sw.estimate_prevalence(log_ratio, Z, model=model, prior=prior), Z)


@pytest.mark.parametrize("model", ["auto", "table"])
def test_estimates_of_a_table(site, model):
    log_ratio, Z = site
    check_estimate(sw.estimate_prevalence(log_ratio, Z[["sex"]], model=model), Z[["sex"]])


def test_estimates_without_z_and_where_f_says_nothing(site):
    log_ratio, _ = site
    check_estimate(sw.estimate_prevalence(log_ratio), None)
    with pytest.warns(UserWarning, match="are not informative about y"):
        check_estimate(sw.estimate_prevalence(np.zeros_like(log_ratio)), None)


def test_estimates_from_chunks(site, monkeypatch):
    """Also of rows that are not kept in memory."""
    log_ratio, Z = site
    monkeypatch.setattr("sitewise.adaptation.streaming.KEPT_BYTES", 0)
    for model in ("constant", "additive"):
        estimate = sw.estimate_prevalence(sw.ArrayChunks(log_ratio, Z, rows=150), model=model)
        assert not estimate.can_refit
        check_estimate(estimate, Z)


def test_an_estimate_of_a_joint(site):
    log_ratio, _ = site
    bank = np.log(np.random.default_rng(0).dirichlet(np.ones(3), size=len(log_ratio)))
    estimate = sw.estimate_joint(log_ratio[:, None, :] + bank[:, :, None])
    estimate.interval()
    np.testing.assert_array_equal(again(estimate).interval(), estimate.interval())


@pytest.fixture(scope="module")
def sites():
    """Three labeled sites, and ten new ones."""
    labeled = [FAMILY.site(150, dependence=number, seed=number) for number in range(3)]
    new = [
        FAMILY.site(120, prevalence=[share, 1 - share], seed=20 + n)
        for n, share in enumerate(np.linspace(0.2, 0.8, 10))
    ]
    return labeled, new


@pytest.fixture(scope="module")
def model(sites):
    """Of a classifier."""
    return fitted(sw.PrevalenceAdjuster(LogisticRegression()), sites[0])


def fitted(model, labeled):
    X, y = np.concatenate([s.X for s in labeled]), np.concatenate([s.y for s in labeled])
    Z, domain = pd.concat([s.Z for s in labeled], ignore_index=True), np.repeat(["a", "b", "c"], 150)
    return model.fit(X, y, sample_domain=domain, sample_confounder=Z)


def adapted(model, site):
    """P(y) and probabilities at a site, and everything that was asked there."""
    here = model.adapt(site.X, sample_confounder=site.Z)
    return here, here.prevalence(), here.predict_proba(site.X, sample_confounder=site.Z)


@pytest.mark.filterwarnings("ignore:confounder")
def test_ten_sites_in_parallel(sites, model):
    """By joblib's processes, which pickle what they are given and what they give back."""
    one_by_one = [adapted(model, site) for site in sites[1]]
    with joblib.parallel_config(backend="loky", inner_max_num_threads=1):
        together = joblib.Parallel(n_jobs=2)(joblib.delayed(adapted)(model, site) for site in sites[1])
    for (_, prevalence, probability), (here, *theirs), site in zip(one_by_one, together, sites[1], strict=True):
        np.testing.assert_allclose(theirs[0], prevalence, rtol=0, atol=1e-12)
        np.testing.assert_allclose(theirs[1], probability, rtol=0, atol=1e-12)
        np.testing.assert_allclose(
            here.predict_proba(site.X, sample_confounder=site.Z), probability, rtol=0, atol=1e-12
        )


@pytest.mark.parametrize("kind", ["adjuster", "network"])
@pytest.mark.filterwarnings("ignore")
def test_models_and_what_they_say_of_a_site(sites, model, kind, tmp_path):
    labeled, (new, *_) = sites
    if kind == "network":
        model = fitted(sw.GPAClassifier(epochs=1, missing="joint", rehearsal="rows", device="cpu"), labeled)
    here = model.adapt(new.X, sample_confounder=new.Z)
    here.diagnose(), here.expected_performance(), here.choose_threshold()
    joblib.dump(here, tmp_path / "here.joblib")
    for copy in (again(here), joblib.load(tmp_path / "here.joblib")):
        asked = (new.X, new.Z)
        np.testing.assert_allclose(copy.predict_proba(*asked), here.predict_proba(*asked), rtol=0, atol=1e-12)
        np.testing.assert_array_equal(copy.predict(*asked), here.predict(*asked))
        np.testing.assert_allclose(copy.prevalence_interval(), here.prevalence_interval(), rtol=0, atol=1e-12)
        assert copy.diagnose().verdict == here.diagnose().verdict
        assert dict(copy.expected_performance()) == dict(here.expected_performance())
        assert copy.update(new.X[:20], new.Z[:20]).prevalence() == pytest.approx(
            here.update(new.X[:20], new.Z[:20]).prevalence(), abs=1e-12
        )
    np.testing.assert_array_equal(again(model).predict_proba(new.X), model.predict_proba(new.X))
    for held in (here.diagnose(), here.expected_performance(), here.choose_threshold(), model.rehearsal_, here.rows):
        assert repr(again(held)) == repr(held)


def test_settings_schemas_and_calibrations(site, sites):
    log_ratio, Z = site
    labels = (log_ratio[:, 1] > log_ratio[:, 0]).astype(int)
    calibration = sw.calibrate_log_ratio(log_ratio, labels, np.log([0.5, 0.5]), n_resamples=3, random_state=0)
    scores = torch.tensor(log_ratio)
    assert torch.equal(again(calibration).apply(scores), calibration.apply(scores))
    assert len(again(calibration).resamples()) == 3
    for value in (sw.Confounders.learn(Z), sw.EM(), sw.Recipe(), sw.Roles(target="y"), FAMILY):
        assert again(value) == value
    kept = sw.Site("here", *(getattr(sites[0][0], part) for part in "XyZ"))
    np.testing.assert_array_equal(again(sw.Sites((kept,))).sites[0].X, kept.X)
