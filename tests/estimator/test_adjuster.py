"""PrevalenceAdjuster: the laws of adjusting a classifier's probabilities, and other libraries' answers without z."""

import warnings
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.ensemble import RandomForestClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

import sitewise as sw
from sitewise.arrays import STRETCH
from sitewise.confounders import Confounders
from sitewise.confounders.schema import Encoded
from sitewise.posterior import combine


@dataclass(frozen=True)
class Case:
    """Probabilities of a classifier that saw z, or did not, of labeled rows and at the new site; and their adjuster."""

    with_z: bool
    proba: np.ndarray
    proba_new: np.ndarray
    adjuster: sw.PrevalenceAdjuster


@pytest.fixture(scope="module", params=[False, True], ids=["sees x", "sees xz"])
def case(request, two):
    proba, proba_new = two.probabilities(request.param)
    return Case(request.param, proba, proba_new, two.fitted(proba))


@pytest.fixture(scope="module")
def sees_x(two):
    proba, proba_new = two.probabilities(False)
    return Case(False, proba, proba_new, two.fitted(proba))


def test_a_classifier_that_gives_back_what_it_was_given(two):
    """With one site, z seen and no calibration, g taken out and put in again leaves p."""
    proba, _ = two.probabilities(True)
    adjuster = sw.PrevalenceAdjuster(calibration="none", classifier_sees="xz")
    adjuster.fit(proba, two.y, sample_confounder=two.Z)
    again = adjuster.predict_proba(proba, sample_domain=["site"] * len(proba), sample_confounder=two.Z)
    np.testing.assert_allclose(again, proba, atol=1e-12)
    expected = np.log(proba) - adjuster.pooled_prevalence_.log_prob(adjuster.codes_of(two.Z, len(proba))).numpy()
    np.testing.assert_allclose(adjuster.log_ratio(proba, sample_confounder=two.Z), expected, atol=1e-12)


def test_z_is_read_once_by_each_call(two, sees_x, monkeypatch):
    """Whatever is asked of a site's rows later, their z is not encoded again."""
    tables, encode = [], Confounders.encode

    def noting(schema, Z, *args, **options):
        tables.append(Z)
        return encode(schema, Z, *args, **options)

    monkeypatch.setattr(Confounders, "encode", noting)
    here = sees_x.adjuster.adapt(sees_x.proba_new, sample_confounder=two.new.Z)
    more = here.update(sees_x.proba_new[:50], two.new.Z.iloc[:50])
    assert more.outcome.sentence
    read = [Z for Z in tables if not isinstance(Z, Encoded)]
    assert [len(Z) for Z in read] == [len(two.new.Z), 50]


def test_adjusted_probabilities_come_near_the_truth(two, case):
    """At a site where classes and their relation to z are others; the true f with the true g is the limit."""
    proba_new, adjuster = case.proba_new, case.adjuster
    here = adjuster.adapt(proba_new, sample_confounder=two.new.Z)
    best = two.nll(combine(torch.tensor(two.new.log_ratio), torch.tensor(two.new.log_prevalence)).exp().numpy())
    adjusted, unadjusted = two.nll(here.predict_proba(proba_new, two.new.Z)), two.nll(proba_new)
    assert adjusted < best + 0.025 < unadjusted - 0.03
    share = np.bincount(two.new.y) / len(two.new.y)
    assert np.abs(here.prevalence() - share).max() < 0.04


def test_auto_takes_what_predicts_held_out_labels_better(two, case):
    """A classifier without z is found out; balanced, both ways lead to the same place."""
    with_z, proba, proba_new, adjuster = case.with_z, case.proba, case.proba_new, case.adjuster
    assert adjuster.classifier_sees_ == min(adjuster.held_out_nll_, key=adjuster.held_out_nll_.get)
    if not with_z:
        assert adjuster.classifier_sees_ == "x"
        assert adjuster.held_out_nll_["x"] < adjuster.held_out_nll_["xz"] - 0.002
    losses = {}
    for sees in ("x", "xz"):
        forced = adjuster if adjuster.classifier_sees_ == sees else two.fitted(proba, classifier_sees=sees)
        assert forced.classifier_sees_ == sees
        here = forced.adapt(proba_new, sample_confounder=two.new.Z)
        losses[sees] = two.nll(here.predict_proba(proba_new, two.new.Z))
    assert abs(losses["x"] - losses["xz"]) < 0.01


def test_four_classes_and_permuted_columns(four):
    """The adjustment helps, and columns in another order, with their classes, change nothing."""
    proba, proba_new = four.probabilities(False)
    order = [2, 0, 3, 1]
    one = four.fitted(proba).adapt(proba_new, sample_confounder=four.new.Z)
    other = four.fitted(proba[:, order], classes=order).adapt(proba_new[:, order], sample_confounder=four.new.Z)
    assert other.classes_.tolist() == order
    expected = one.predict_proba(proba_new, four.new.Z)[:, order]
    assert four.nll(one.predict_proba(proba_new, four.new.Z)) < four.nll(proba_new) - 0.1
    np.testing.assert_allclose(other.predict_proba(proba_new[:, order], four.new.Z), expected, atol=1e-6)
    assert (other.predict(proba_new[:, order], four.new.Z) == one.predict(proba_new, four.new.Z)).all()


def test_columns_named_after_classes_may_come_in_any_order(two):
    proba, proba_new = two.probabilities(False)
    y = np.array(["no", "yes"])[two.y]
    by_name = sw.PrevalenceAdjuster().fit(pd.DataFrame(proba, columns=["no", "yes"])[["yes", "no"]], y)
    by_place = sw.PrevalenceAdjuster().fit(proba, y)
    expected = by_place.adapt(proba_new).predict_proba(proba_new)
    swapped = pd.DataFrame(proba_new, columns=["no", "yes"])[["yes", "no"]]
    np.testing.assert_array_equal(by_name.adapt(swapped).predict_proba(swapped), expected)
    np.testing.assert_array_equal(by_name.adapt(proba_new).predict_proba(proba_new), expected)
    with pytest.raises(ValueError, match=r"have the columns \['p0', 'p1'\], at fit they had"):
        by_name.adapt(pd.DataFrame(proba_new, columns=["p0", "p1"]))


def test_a_row_is_predicted_by_itself_however_many_come_along(two, case):
    proba_new = case.proba_new
    here = case.adjuster.adapt(proba_new, sample_confounder=two.new.Z)
    many, Z = np.tile(proba_new, (10, 1)), pd.concat([two.new.Z] * 10, ignore_index=True)
    assert len(many) > STRETCH
    whole = here.predict_proba(many, Z)
    for rows in ([0], [5, 3], list(range(STRETCH - 2, STRETCH + 3))):
        alone = here.predict_proba(many[rows], Z.iloc[rows].reset_index(drop=True))
        np.testing.assert_allclose(alone, whole[rows], atol=1e-12)


def test_z_that_is_missing_in_part_or_whole(two, case):
    """Less of z is worse than all of it and better than no adjustment; everybody gets a probability."""
    proba_new, adjuster = case.proba_new, case.adjuster
    losses = {"unadjusted": two.nll(proba_new)}
    partly = two.new.Z.mask(np.random.default_rng(0).random(two.new.Z.shape) < 0.5)
    for name, Z in (("all", two.new.Z), ("part", partly), ("none", None)):
        here = adjuster.adapt(proba_new, sample_confounder=Z)
        losses[name] = two.nll(here.predict_proba(proba_new, Z))
    assert losses["all"] < losses["part"] < losses["none"] < losses["unadjusted"]


def test_z_missing_in_labeled_rows(two):
    proba, proba_new = two.probabilities(False)
    gaps = two.Z.mask(np.random.default_rng(1).random(two.Z.shape) < 0.2)
    adjuster = sw.PrevalenceAdjuster(rehearsal=None).fit(proba, two.y, sample_domain=two.site, sample_confounder=gaps)
    here = adjuster.adapt(proba_new, sample_confounder=two.new.Z)
    assert two.nll(here.predict_proba(proba_new, two.new.Z)) < two.nll(proba_new) - 0.05


def test_one_site_is_enough(two):
    proba, proba_new = two.probabilities(True)
    adjuster = sw.PrevalenceAdjuster().fit(proba, two.y, sample_confounder=two.Z)
    here = adjuster.adapt(proba_new, sample_confounder=two.new.Z)
    assert two.nll(here.predict_proba(proba_new, two.new.Z)) < two.nll(proba_new) - 0.05


def shares_of(y):
    """Shares of the classes with an even row added, as g has them."""
    counts = np.bincount(y) + 1 / len(np.unique(y))
    return counts / counts.sum()


def test_without_z_it_is_quapys_em(four):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        emq = pytest.importorskip("quapy.method.aggregative").EMQ
    proba, proba_new = four.probabilities(False)
    limit, emq.MAX_ITER = emq.MAX_ITER, 100_000
    try:
        marginal, posterior = emq.EM(shares_of(four.y), proba_new, epsilon=1e-11)
    finally:
        emq.MAX_ITER = limit
    adjuster = sw.PrevalenceAdjuster(calibration="none", rehearsal=None).fit(proba, four.y)
    log_ratio = adjuster.log_ratio(proba_new)
    alone = sw.estimate_prevalence(log_ratio)  # without a prior: the maximum of the likelihood
    np.testing.assert_allclose(alone.marginal, marginal, atol=1e-6)
    np.testing.assert_allclose(alone.predict_proba(log_ratio), posterior, atol=1e-5)
    here = adjuster.adapt(proba_new)  # with 2000 rows the posterior is near it
    np.testing.assert_allclose(here.prevalence(), marginal, atol=0.02)
    np.testing.assert_allclose(here.predict_proba(proba_new), posterior, atol=0.05)


def test_without_z_and_calibrated_it_is_abstentions_em(two):
    """Alexandari's bias-corrected temperature scaling, then EM: theirs pre-calibrated, for their EM ignores it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        calibration = pytest.importorskip("abstention.calibration")
        em = pytest.importorskip("abstention.label_shift").EMImbalanceAdapter
        proba, proba_new = two.probabilities(False)
        labels = np.eye(2)[two.y]
        scale = calibration.TempScaling(bias_positions="all")(proba, labels, posterior_supplied=True)
        adapter = em(estimate_priors_from_valid_labels=True, max_iterations=10_000, tolerance=1e-12)
        theirs = adapter(scale(proba_new), scale(proba), labels)(scale(proba_new))
    here = sw.PrevalenceAdjuster(calibration="bias_corrected").fit(proba, two.y).adapt(proba_new)
    np.testing.assert_allclose(here.predict_proba(proba_new), theirs, atol=0.01)
    np.testing.assert_allclose(here.prevalence(), theirs.mean(axis=0), atol=0.005)


def test_without_z_weight_two_is_two_rows(two):
    proba, proba_new = two.probabilities(False)
    twice = np.r_[np.arange(len(proba)), np.arange(300)]
    weight = np.r_[np.full(300, 2.0), np.ones(len(proba) - 300)]
    one = sw.PrevalenceAdjuster(calibration="none").fit(proba[twice], two.y[twice])
    other = sw.PrevalenceAdjuster(calibration="none").fit(proba, two.y, sample_weight=weight)
    np.testing.assert_allclose(one.predict_proba(proba_new), other.predict_proba(proba_new), atol=1e-12)


def test_zeros_count_as_half_the_smallest_that_is_none(two):
    forest = RandomForestClassifier(25, min_samples_leaf=5, random_state=0)
    adjuster = sw.PrevalenceAdjuster(forest, rehearsal=None).fit(two.X, two.y, two.site, two.Z)
    here = adjuster.adapt(two.new.X, sample_confounder=two.new.Z)
    predicted = here.predict_proba(two.new.X, two.new.Z)
    assert np.isfinite(np.log(predicted)).all()
    assert two.nll(predicted) < two.nll(forest.fit(two.X, two.y).predict_proba(two.new.X).clip(1e-3)) - 0.03
    proba = np.array([[0.0, 1.0], [0.02, 0.98], [0.5, 0.5], [1.0, 0.0]] * 20)
    stored = sw.PrevalenceAdjuster().fit(proba, np.array([1, 0, 1, 0] * 20))
    assert stored.classifier_.floor == 0.01
    np.testing.assert_allclose(stored.inputs_of(proba[:1]).numpy(), np.log([[0.01, 1.0]]))
    smooth = sw.PrevalenceAdjuster().fit(proba.clip(0.02, 0.98), np.array([1, 0, 1, 0] * 20))
    assert smooth.classifier_.floor == 1e-12


class TestEstimators:
    """What may turn X into probabilities."""

    def test_a_fitted_one_is_used_as_it_is(self, two):
        half = len(two.y) // 2
        pipeline = make_pipeline(StandardScaler(), LogisticRegression()).fit(two.X[::2], two.y[::2])
        before = pipeline[-1].coef_.copy()
        rest = (two.X[1::2], two.y[1::2], two.site[1::2], two.Z[1::2].reset_index(drop=True))
        by_estimator = [
            sw.PrevalenceAdjuster(e, rehearsal=None).fit(*rest) for e in (pipeline, FrozenEstimator(pipeline))
        ]
        stored = sw.PrevalenceAdjuster(rehearsal=None).fit(pipeline.predict_proba(rest[0]), *rest[1:])
        expected = stored.adapt(pipeline.predict_proba(two.new.X), two.new.Z).prevalence()
        for adjuster in by_estimator:
            assert adjuster.n_features_in_ == two.X.shape[1]
            np.testing.assert_array_equal(adjuster.adapt(two.new.X, two.new.Z).prevalence(), expected)
        np.testing.assert_array_equal(pipeline[-1].coef_, before)
        assert by_estimator[0].estimator_ is pipeline
        assert half == len(rest[1])

    def test_one_that_is_not_fitted_is_cross_fitted_and_left_unfitted(self, two):
        nearest = KNeighborsClassifier(1)
        adjuster = sw.PrevalenceAdjuster(nearest).fit(two.X, two.y)
        assert not hasattr(nearest, "classes_")
        assert adjuster.estimator_.score(two.X, two.y) == 1.0  # so does it see itself
        held = adjuster.held_out_[0]
        assert 0.5 < float((held.raw_log_ratio.argmax(1) == held.y).double().mean()) < 0.95

    def test_groups_are_kept_whole(self, two):
        """Each row stands eight times: the nearest neighbour knows it, unless all its twins are held out with it."""
        twins, y = np.repeat(two.X[:100], 8, axis=0), np.repeat(two.y[:100], 8)
        with pytest.warns(UserWarning, match="labeled rows correctly"):
            sw.PrevalenceAdjuster(KNeighborsClassifier(1)).fit(twins, y)
        sw.PrevalenceAdjuster(KNeighborsClassifier(1)).fit(twins, y, groups=np.repeat(np.arange(100), 8))

    def test_a_torch_module_gives_logits(self, two):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(two.X.shape[1], 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 2)).train()
        adjuster = sw.PrevalenceAdjuster(module, rehearsal=None).fit(two.X, two.y, two.site, two.Z)
        assert module.training
        assert next(module.parameters()).dtype == torch.float32
        with torch.no_grad():
            logits = module.eval()(torch.tensor(two.X).float()).double()
            logits_new = module(torch.tensor(two.new.X).float()).double()
        stored = sw.PrevalenceAdjuster(rehearsal=None).fit(torch.softmax(logits, 1), two.y, two.site, two.Z)
        expected = stored.adapt(torch.softmax(logits_new, 1), two.new.Z).prevalence()
        np.testing.assert_allclose(adjuster.adapt(two.new.X, two.new.Z).prevalence(), expected, atol=1e-9)
        assert isinstance(adjuster.adapt(two.new.X).predict_proba(torch.tensor(two.new.X)), torch.Tensor)

    def test_one_column_of_logits_is_the_second_class(self, two):
        class Odds(nn.Module):
            def forward(self, x):
                return x[:, :1]

        X = two.X[:, 1:2] - two.X[:, :1]
        one = sw.PrevalenceAdjuster(Odds()).fit(X, two.y)
        proba = 1 / (1 + np.exp(np.c_[X, -X]))
        np.testing.assert_allclose(
            one.predict_proba(X), sw.PrevalenceAdjuster().fit(proba, two.y).predict_proba(proba), atol=1e-12
        )

    def test_decisions_become_probabilities(self, two):
        adjuster = sw.PrevalenceAdjuster(RidgeClassifier(), rehearsal=None).fit(two.X, two.y, two.site, two.Z)
        here = adjuster.adapt(two.new.X, sample_confounder=two.new.Z)
        assert two.nll(here.predict_proba(two.new.X, two.new.Z)) < two.nll(two.probabilities(False)[1])


def test_the_face_of_an_adapted_model(two, sees_x, tmp_path):
    proba_new, adjuster = sees_x.proba_new, sees_x.adjuster
    here = adjuster.adapt(proba_new, sample_confounder=two.new.Z)
    low, high = here.prevalence_interval()
    assert (low < np.bincount(two.new.y) / len(two.new.y)).all()
    assert (np.bincount(two.new.y) / len(two.new.y) < high).all()
    assert here.prevalence(two.new.Z).shape == (2000, 2)
    assert here.diagnose().verdict != "do not adapt"
    expected = here.expected_performance()["accuracy"]
    assert abs(expected[0] - (here.predict(proba_new, two.new.Z) == two.new.y).mean()) < 0.03
    page = here.report(tmp_path / "site.html").read_text()
    assert "given probabilities" in page
    plan = adjuster.plan(width=0.1, n_simulations=2, sizes=[100, 1000])
    widths = plan.table.set_index("n")["width"]
    assert widths[1000] < widths[100]
    assert widths[plan.answer] == pytest.approx(0.1, rel=0.01)
    halves = (slice(0, 1000), slice(1000, 2000))
    first, second = ((proba_new[half], two.new.Z[half].reset_index(drop=True)) for half in halves)
    updated = adjuster.adapt(*first).update(*second)
    np.testing.assert_allclose(updated.prevalence(), here.prevalence(), atol=1e-4)


def test_known_labels_count(two, sees_x):
    proba_new, adjuster = sees_x.proba_new, sees_x.adjuster
    some = np.where(np.arange(2000) % 2, two.new.y, np.nan)
    here = adjuster.adapt(proba_new, sample_confounder=two.new.Z, y=some)
    share = np.bincount(two.new.y) / len(two.new.y)
    assert np.abs(here.prevalence() - share).max() < 0.02


def test_the_same_seed_gives_the_same_numbers(two, sees_x):
    again = two.fitted(sees_x.proba).log_ratio(sees_x.proba, two.Z)
    np.testing.assert_array_equal(sees_x.adjuster.log_ratio(sees_x.proba, two.Z), again)
