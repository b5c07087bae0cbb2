"""Rows without z in GPAClassifier: the joint model, knockout, and the choice between them."""

import copy
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

import sitewise as sw
from sitewise.bench.datasets.known_densities import TARGETS, TRAINING
from sitewise.estimator.without_z.predicting import joint_log_ratio, judged
from sitewise.rows import LabeledRows

QUICK = {"device": "cpu", "verbose": False, "epochs": 30, "batch_size": 128, "rehearsal": None}


def training(n=1500):
    sites = [site.draw(n, seed) for seed, site in enumerate(TRAINING)]
    data = {
        "sample_domain": np.repeat(["a", "b"], n),
        "sample_confounder": pd.concat([site.Z for site in sites], ignore_index=True),
    }
    return np.concatenate([site.X for site in sites]), np.concatenate([site.y for site in sites]), data


@pytest.fixture(scope="module")
def model():
    X, y, data = training()
    return sw.GPAClassifier(missing="joint", **QUICK).fit(X, y, **data)


@pytest.fixture(scope="module")
def site():
    return TARGETS["correlation flips"].draw(800, 5)


@pytest.fixture(scope="module")
def here(model, site):
    return model.adapt(site.X)


def by(model, missing):
    other = copy.copy(model)
    other.missing = missing
    return other


def nll(probability, y):
    return -np.log(probability[np.arange(len(y)), y]).mean()


def test_f_is_the_same_to_the_bit_whatever_is_missing(model):
    X, y, data = training()
    plain = sw.GPAClassifier(missing="knockout", **QUICK).fit(X, y, **data)
    mine, theirs = model.scorer_.module.state_dict(), plain.scorer_.module.state_dict()
    assert all(torch.equal(mine[name].double(), theirs[name].double()) for name in theirs)
    assert plain.joint_ is None
    assert plain.adapt(X[:50]).missing == "knockout"


def test_the_mean_of_r_over_the_training_population_is_one_for_every_x(model, site):
    blank = model.confounders_.missing_codes().expand(800, -1)
    log_ratio = joint_log_ratio(model, torch.tensor(site.X), blank).double()
    np.testing.assert_allclose((log_ratio.exp() * model.joint_.prior).sum((1, 2)), 1, atol=1e-4)


def test_training_rows_give_the_training_joint_back(model):
    """Equation 15e: without the balance of r they suggest another P(Y), and cells that do not occur."""
    X, _, _ = training()
    blank = model.confounders_.missing_codes().expand(len(X), -1)
    unbalanced = by(model, "joint")
    unbalanced.joint_ = replace(model.joint_, log_balance=torch.zeros_like(model.joint_.log_balance))
    gained = {}
    for name, made in (("balanced", model), ("unbalanced", unbalanced)):
        estimate = sw.estimate_joint(joint_log_ratio(made, torch.tensor(X), blank), prior=made.joint_.prior, strength=1)
        gained[name] = estimate.log_likelihood  # that of the training joint is zero
    assert gained["balanced"] < 15  # the held-out rows are among them, on which r was not balanced
    assert gained["unbalanced"] > 60


def test_the_joint_model_is_nearer_the_truth_than_knockout(model, here, site):
    target = TARGETS["correlation flips"]
    plain = by(model, "knockout").adapt(site.X)
    assert (here.missing, plain.missing) == ("joint", "knockout")
    truth = target.joint(200)[:, 1].sum()
    assert abs(here.prevalence()[1] - truth) < abs(plain.prevalence()[1] - truth)
    assert nll(here.predict_proba(site.X), site.y) < nll(plain.predict_proba(site.X), site.y)
    low, high = here.prevalence_interval()
    assert (low < here.prevalence()).all()
    assert (here.prevalence() < high).all()


def test_auto_says_which_it_took(model, site):
    chosen = by(model, "auto").adapt(site.X)
    assert chosen.missing in ("joint", "knockout")
    assert (chosen.joint is None) == (chosen.missing == "knockout")
    some = site.Z.copy()
    some.iloc[::9, 0] = None
    assert by(model, "auto").adapt(site.X, some).missing == "knockout"
    with_z = by(model, "auto").adapt(site.X, site.Z)
    assert with_z.missing == "knockout"  # nothing was missing


def test_auto_keeps_knockout_where_the_critic_knows_nothing(model, site):
    ignorant = by(model, "auto")
    joint = model.joint_
    nothing = joint.bank.codes[:1].expand(len(joint.bank.codes), -1)
    bank, even = replace(joint.bank, codes=nothing), torch.zeros_like(joint.log_balance)
    ignorant.joint_ = replace(joint, temperature=0.0, bank=bank, log_balance=even)
    ignorant.balance_ = None  # which knows one z from another
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert ignorant.adapt(site.X).missing == "knockout"


def test_rows_are_predicted_one_by_one_and_complete_ones_by_f(model, here, site):
    whole = here.predict_proba(site.X)
    np.testing.assert_allclose(here.predict_proba(site.X[:3]), whole[:3], atol=1e-9)
    with_z = by(model, "knockout").adapt_log_ratio(here.rows.log_ratio)
    np.testing.assert_allclose(
        here.predict_proba(site.X[:5], site.Z[:5]).sum(1), with_z.predict_proba(site.X[:5], site.Z[:5]).sum(1)
    )


def test_what_is_kept_of_the_rows_says_the_same_as_the_predictions(here, site):
    kept = sw.adjust(here.rows.log_ratio.numpy(), np.log(np.asarray(here.joint.marginal)))
    np.testing.assert_allclose(kept, here.predict_proba(site.X), atol=1e-6)
    for share in (np.asarray(here.joint.marginal), here.estimate.marginal):
        np.testing.assert_allclose(share, here.prevalence(), atol=0.02)


def test_part_of_z_is_used(model, here, site):
    partly = site.Z.assign(age=np.nan)
    there = model.adapt(site.X, partly)
    assert there.missing == "joint"
    probability = there.predict_proba(site.X, partly)
    assert nll(probability, site.y) < nll(here.predict_proba(site.X), site.y) + 0.02
    assert np.abs(probability - there.predict_proba(site.X)).max() > 0.01


def test_rows_with_and_without_z_share_one_estimate(model, site):
    mixed = site.Z.copy()
    mixed.loc[:399, "age"] = np.nan
    mixed.loc[:399, "sex"] = None
    there = model.adapt(site.X, mixed)
    with_z = by(model, "knockout").adapt(site.X, site.Z)
    assert abs(there.prevalence()[1] - with_z.prevalence()[1]) < 0.05
    assert np.isfinite(there.predict_proba(site.X, mixed)).all()


def test_where_rows_are_not_trusted_the_joint_model_does_not_predict(model, site, tmp_path):
    """The joint P(z, y) comes from these rows too. Its log f was combined with the g of training."""
    distrusting = copy.copy(model)
    distrusting.prior_ = replace(model.prior_, trusted_rows=0.0, averaged=False)
    there, as_trained = distrusting.adapt(site.X), model.predict_proba(site.X)
    assert there.joint is not None
    assert there.missing == "knockout"
    assert there.outcome == "as trained"
    assert np.array_equal(there.predict_proba(site.X), as_trained)
    np.testing.assert_allclose(there.prevalence(), as_trained.mean(0), atol=1e-9)
    assert there.outcome.grounds.as_trained == pytest.approx(as_trained.mean(0))
    there.save(tmp_path / "site")
    assert np.array_equal(sw.load(tmp_path / "site").predict_proba(site.X), as_trained)


def test_the_outcome_of_a_joint_site_compares_with_the_model_as_trained(model, here, site):
    assert here.missing == "joint"
    assert here.outcome.grounds.as_trained == pytest.approx(model.predict_proba(site.X).mean(0))


def test_known_labels_count(model, site):
    labels = np.where(np.arange(800) < 400, site.y.astype(float), np.nan)
    there = model.adapt(site.X, y=labels)
    assert abs(there.prevalence()[1] - site.y.mean()) < 0.04


def test_saved_and_loaded_it_predicts_the_same(here, site, tmp_path):
    here.save(tmp_path / "site")
    again = sw.load(tmp_path / "site")
    assert again.missing == "joint"
    np.testing.assert_array_equal(again.predict_proba(site.X[:20]), here.predict_proba(site.X[:20]))
    np.testing.assert_array_equal(again.prevalence_interval(), here.prevalence_interval())


def test_joint_without_confounders_is_refused():
    X, y, _ = training(100)
    with pytest.raises(ValueError, match="needs confounders"):
        sw.GPAClassifier(missing="joint", **QUICK | {"epochs": 1}).fit(X, y).adapt(X)
    with pytest.raises(ValueError, match="missing must be one of"):
        sw.GPAClassifier(missing="jont", **QUICK).fit(X, y)


def test_more_rows_and_another_calibration(model, here, site):
    more = here.update(site.X[:100])
    assert more.missing == "joint"
    np.testing.assert_allclose(more.predict_proba(site.X[:5]), here.predict_proba(site.X[:5]), atol=1e-12)
    other = copy.copy(model)
    labeled = TRAINING[0].draw(300, 9)
    other.calibrate(labeled.X, labeled.y, sample_confounder=labeled.Z)
    assert other.joint_.temperature != model.joint_.temperature
    assert other.joint_.critic is model.joint_.critic


def test_auto_trusts_the_joint_model_only_where_held_out_labels_do(model, site):
    assert model.joint_.trusted
    held = TRAINING[1].draw(400, 11)
    codes = model.confounders_.encode(held.Z)[0]
    X, y, one_site = torch.tensor(held.X), torch.tensor(held.y), torch.zeros(400).long()
    rows = LabeledRows(X=X, y=y, weight=torch.ones(400), site=one_site, codes=codes)
    ruined = by(model, "auto")
    impossible = model.joint_.possible.clone()
    impossible[1:, 1] = False
    ruined.joint_ = replace(model.joint_, possible=impossible)
    ruined.joint_ = judged(ruined, rows)
    assert not ruined.joint_.trusted
    assert ruined.adapt(site.X).missing == "knockout"
    assert judged(model, rows).trusted


def test_a_check_of_rows_with_z_counts_in_the_joint_model_too(model, site):
    changed = 3 * site.X + 2
    with_z, without = model.adapt(changed, sample_confounder=site.Z), model.adapt(changed)
    assert with_z.joint is not None
    assert (with_z.missing, without.missing) == ("knockout", "joint")  # a failed check leaves the model as trained
    assert (with_z.outcome, with_z.outcome.reason) == ("as trained", "check")
    assert without.outcome.reason != "check"
