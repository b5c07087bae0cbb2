"""Expected performance of predictions that are not ours: the same rows, the same beliefs."""

import pickle
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from sklearn import metrics as peers

import sitewise as sw
from sitewise.datasets.simulated import SimulatedFamily
from sitewise.performance.expected import DrawnRows, summarize
from sitewise.performance.others import judged_instead


def rows(n=400, n_classes=2, seed=0, n_draws=50):
    rng = np.random.default_rng(seed)
    belief = rng.dirichlet(np.ones(n_classes), n)
    labels = (rng.random((n_draws, n, 1)) > np.cumsum(belief, axis=1)[:, :-1]).sum(axis=2)
    return DrawnRows(belief, belief, labels, np.ones(n), pd.DataFrame(index=range(n)))


@pytest.fixture(scope="module")
def site():
    return SimulatedFamily(signal=2.0, levels=(2,)).site(500, prevalence=[0.8, 0.2], seed=9)


@pytest.fixture(scope="module")
def here(site):
    family = SimulatedFamily(signal=2.0, levels=(2,))
    sites = [family.site(250, prevalence=[1 - p, p], name=str(p), seed=i) for i, p in enumerate((0.3, 0.5))]
    probability = [sw.adjust(s.log_ratio, np.log([0.6, 0.4])) for s in sites]
    model = sw.PrevalenceAdjuster(rehearsal=None).fit(
        np.concatenate(probability),
        np.concatenate([s.y for s in sites]),
        sample_domain=np.repeat([0, 1], 250),
        sample_confounder=pd.concat([s.Z for s in sites], ignore_index=True),
    )
    return model.adapt(sw.adjust(site.log_ratio, np.log([0.6, 0.4])), site.Z)


@pytest.mark.parametrize("threshold", [None, 0.3])
def test_our_own_predictions_passed_in_are_the_call_without_arguments_to_the_bit(here, site, threshold):
    here.threshold_ = threshold
    inputs = sw.adjust(site.log_ratio, np.log([0.6, 0.4]))
    probability, decided = here.predict_proba(inputs, site.Z), here.predict(inputs, site.Z)
    ours = here.expected_performance()
    assert here.expected_performance(proba=probability, threshold=threshold).to_dict() == ours.to_dict()
    given = here.expected_performance(y_pred=decided, proba=probability)
    assert dict(given) == dict(ours)
    for name, counts in ours.confusion._asdict().items():
        np.testing.assert_array_equal(getattr(given.confusion, name), counts)


def test_our_own_clinical_units_curve_and_subgroups_passed_in_are_ours_to_the_bit(here, site):
    here.threshold_ = None
    given = {"proba": here.predict_proba(sw.adjust(site.log_ratio, np.log([0.6, 0.4])), site.Z)}
    assert here.clinical_performance(**given) == here.clinical_performance()
    pd.testing.assert_frame_equal(here.decision_curve(**given), here.decision_curve())
    ours, theirs = ([group.to_dict() for group in here.subgroups("group0", **more)] for more in ({}, given))
    assert theirs == ours


def test_another_score_is_judged_with_more_doubt_than_its_beliefs_alone(here, site):
    score = np.random.default_rng(0).random(500)
    rows = here.drawn_rows
    wide, narrow = (
        summarize(judged_instead(one, (0, 1), proba=score), (0, 1))["auroc"]
        for one in (rows, replace(rows, learned=None))
    )
    assert wide.estimate == narrow.estimate
    assert wide.high - wide.low > narrow.high - narrow.low


def test_certain_beliefs_give_the_metrics_of_scikit_learn():
    rng = np.random.default_rng(1)
    y = rng.integers(0, 2, 300)
    certain = DrawnRows(None, np.eye(2)[y], np.tile(y, (5, 1)), np.ones(300), pd.DataFrame(index=range(300)))
    score = rng.random(300)
    summary = summarize(judged_instead(certain, (0, 1), proba=score), (0, 1), threshold=0.3)
    assert summary["accuracy"].estimate == pytest.approx(peers.accuracy_score(y, score >= 0.3))
    assert summary["auroc"].estimate == pytest.approx(peers.roc_auc_score(y, score))
    assert (
        summary["brier"].low == pytest.approx(summary["brier"].high) == pytest.approx(peers.brier_score_loss(y, score))
    )


def test_decisions_alone_have_no_probabilities():
    summary = summarize(judged_instead(rows(), ("a", "b"), y_pred=["a", "b"] * 200), ("a", "b"))
    assert summary["recall"].estimate is not None
    assert all(summary[name].estimate is None for name in ("nll", "brier", "auroc", "auprc", "ece"))
    assert "decisions as given" in repr(summary)


def test_groups_are_judged_by_their_own_decisions():
    n = 400
    group = np.arange(n) % 2
    decided = np.where(group == 1, 1, 0)
    groups = summarize(judged_instead(rows(n), (0, 1), y_pred=decided), (0, 1)).by(group)
    assert groups[1]["recall"].estimate == 1.0
    assert groups[0]["recall"].estimate == 0.0


def test_of_a_large_site_the_rows_kept_are_judged():
    n_site, few = 1000, rows(100)
    kept = DrawnRows(few.probability, few.belief, few.labels, few.weight, few.z, np.arange(0, 1000, 10), n_site)
    score = np.linspace(0, 1, n_site)
    np.testing.assert_array_equal(judged_instead(kept, (0, 1), proba=score).probability[:, 1], score[::10])
    assert set(summarize(kept, (0, 1)).by(np.arange(n_site) % 20)) == {0, 10}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"y_pred": ["a", "c"] * 200}, r"y_pred must hold \['a', 'b'\], not so in 200 row\(s\), first 'c' at row 1"),
        ({"y_pred": ["a"] * 3}, r"y_pred must hold a class for each of 400 row\(s\), got shape \(3,\)"),
        (
            {"proba": np.full((400, 2), 0.6)},
            r"rows that sum to one, not so in 400 row\(s\), first \[0.6, 0.6\] at row 0",
        ),
        ({"proba": np.linspace(-0.5, 1, 400)}, r"proba must lie in \[0, 1\]"),
        ({"proba": np.full((400, 3), 1 / 3)}, r"proba must have shape \(400, 2\), a column for each class"),
        ({"proba": np.full((7, 2), 0.5)}, r"proba must have shape \(400, 2\), a column for each class, got \(7, 2\)"),
        ({"proba": np.full((400, 2), np.nan)}, "proba has NaN in 400"),
    ],
)
def test_bad_predictions_are_refused_in_one_error(given, words):
    with pytest.raises(ValueError, match=words):
        judged_instead(rows(), ("a", "b"), **given)


def test_columns_named_after_the_classes_come_in_any_order():
    frame = pd.DataFrame({"b": np.full(400, 0.9), "a": np.full(400, 0.1)})
    assert judged_instead(rows(), ("a", "b"), proba=frame).probability[0].tolist() == [0.1, 0.9]


def test_labels_are_drawn_as_sharp_as_predictions_are(here):
    # What is trusted is what is predicted, and draws average to it: otherwise f's slope looks like miscalibration.
    drawn = here.drawn_rows
    np.testing.assert_array_equal(drawn.belief, drawn.probability)
    share = drawn.labels.mean(axis=0)
    assert abs(share.mean() - drawn.belief[:, 1].mean()) < 0.02
    sure = drawn.belief[:, 1] > np.quantile(drawn.belief[:, 1], 0.9)
    assert abs(share[sure].mean() - drawn.belief[sure, 1].mean()) < 0.03


def test_columns_are_ranked_by_the_shift_along_them(here):
    shifts = here.shift_by_column()
    assert set(shifts.index) == {"age0", "group0"}
    assert shifts["p_value"].is_monotonic_increasing
    other = here.shift_by_column(pd.DataFrame({"noise": np.arange(500) % 7}))
    assert list(other.index) == ["noise"]
    with pytest.raises(ValueError, match=r"columns has 3 row\(s\), the site was adapted on 500"):
        here.shift_by_column(pd.DataFrame({"noise": [1, 2, 3]}))


def test_a_site_and_its_expectations_go_through_pickle(here):
    score = np.linspace(0, 1, 500)
    performance = here.expected_performance(proba=score)
    for copy in (
        pickle.loads(pickle.dumps(here)).expected_performance(proba=score),
        pickle.loads(pickle.dumps(performance)),
    ):
        assert copy.to_dict() == performance.to_dict()
