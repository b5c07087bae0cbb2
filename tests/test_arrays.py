"""Numbers at the border."""

import numpy as np
import pandas as pd
import pytest
import torch

import sitewise as sw
from sitewise.arrays import (
    Container,
    Problems,
    align_classes,
    index_of,
    read_groups,
    read_labels,
)
from sitewise.confounders import Confounders
from sitewise.evaluation import evaluate

RATIO = np.zeros((3, 2))
Z = pd.DataFrame({"age": [1.0, 2.0, 3.0]})


@pytest.mark.parametrize("value", [[1, 2], (1, 2), np.zeros(2), torch.zeros(2)])
def test_only_pandas_has_row_names(value):
    """A list has a method called index."""
    assert index_of(value) is None
    assert index_of(pd.Series([1], index=["a"])).tolist() == ["a"]
    assert Container.of(value).index is None


def test_two_dimensional_labels_and_groups_are_named():
    for read in (
        lambda problems: read_labels(np.zeros((3, 1)), 3, 2, problems),
        lambda problems: read_groups(np.zeros((3, 1)), 3, problems),
    ):
        problems = Problems("test")
        read(problems)
        assert len(problems.messages) == 1
        assert "one column with an entry for each of the 3 row(s), got shape (3, 1)" in problems.messages[0]


def test_classes_are_aligned_by_label_where_the_labels_are_the_same():
    columns = pd.Index(["ill", "healthy"])
    prior = pd.Series({"healthy": 0.9, "ill": 0.1})
    assert align_classes(prior, columns).tolist() == [0.1, 0.9]
    assert align_classes(prior.to_frame().T, columns).iloc[0].tolist() == [0.1, 0.9]
    for other in (pd.Series([0.9, 0.1]), np.array([0.9, 0.1]), [0.9, 0.1]):
        assert align_classes(other, columns) is other
    assert align_classes(prior, None) is prior


SCORES = np.random.default_rng(0).normal(size=(8, 2))
MASKED = np.ma.array(SCORES, mask=np.arange(16).reshape(8, 2) == 5)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (MASKED, "masked in 1 row.*first at row 2"),
        ([*SCORES[:7], np.ma.array(SCORES[7], mask=[True, False])], "masked in 1 row.*first at row 7"),
        ((SCORES * 1e6).astype("datetime64[s]"), "holds dates"),
        ((SCORES * 1e6).astype("timedelta64[s]"), "holds spans of time"),
        (np.array([[np.timedelta64(1, "D"), np.timedelta64(2, "D")]] * 8, dtype=object), "holds dates or spans"),
        (SCORES + 1j, "complex"),
        (torch.tensor(SCORES + 1j), "complex"),
        (torch.tensor(SCORES).to_sparse(), "sparse"),
        (torch.tensor(SCORES).to("meta"), "meta"),
        ([[10**400, 1]] * 8, "too large for double precision"),
    ],
    ids=[
        "masked",
        "masked rows",
        "dates",
        "spans",
        "spans as objects",
        "complex",
        "complex tensor",
        "sparse",
        "meta",
        "huge",
    ],
)
def test_what_is_no_number_or_hides_one_is_refused_everywhere(value, words):
    y = np.arange(8) % 2
    for call in (
        lambda: sw.estimate_prevalence(value),
        lambda: sw.adjust(value, np.zeros(2)),
        lambda: sw.calibrate_log_ratio(value, y, np.zeros(2)),
        lambda: sw.PrevalenceAdjuster().fit(value, y),
        lambda: evaluate(y, value),
    ):
        with pytest.raises(ValueError, match=words):
            call()


def test_a_masked_confounder_is_a_missing_one():
    mask = np.arange(40) % 5 == 0
    hidden = np.ma.array(np.arange(40.0), mask=mask)
    explicit = np.where(mask, np.nan, np.arange(40.0))
    assert Confounders.learn(hidden) == Confounders.learn(explicit)
    log_ratio = np.random.default_rng(1).normal(size=(40, 2))
    estimated, expected = (sw.estimate_prevalence(log_ratio, Z, model="additive") for Z in (hidden, explicit))
    np.testing.assert_array_equal(estimated.marginal, expected.marginal)
    words = np.ma.array(["a", "b"] * 20, mask=mask)
    assert Confounders.learn(words).encode(words)[0][0, 0] == 2.0


def test_masked_labels_are_unknown_and_masked_inputs_refused():
    y = np.ma.array(np.arange(8) % 2, mask=np.arange(8) == 3)
    known = np.where(np.arange(8) == 3, np.nan, np.arange(8) % 2)
    estimated, expected = (sw.estimate_prevalence(SCORES, y=labels).marginal for labels in (y, known))
    np.testing.assert_array_equal(estimated, expected)
    proba = np.full((8, 2), 0.5)
    with pytest.raises(ValueError, match="y is missing in 1 row"):
        sw.PrevalenceAdjuster().fit(proba, y)
    with pytest.raises(ValueError, match="y is missing in 1 row"):
        evaluate(y, proba)
    with pytest.raises(ValueError, match="masked in 1 row"):
        sw.GPAClassifier().fit(MASKED, np.arange(8) % 2)


def test_a_tensor_that_requires_grad_is_read_as_it_is():
    y, proba = torch.tensor([0.0, 1.0, 1.0], requires_grad=True), torch.full((3, 2), 0.5, requires_grad=True)
    assert evaluate(y, proba)["accuracy"].value == pytest.approx(1 / 3)
    assert read_groups(y, 3, Problems("test")).tolist() == [0, 1, 1]


@pytest.mark.parametrize("groups", [[[1, 2]] * 8, [{"a": 1}] * 8, [{1}] * 8], ids=["lists", "dicts", "sets"])
def test_groups_must_be_names(groups):
    with pytest.raises(ValueError, match=r"groups must have one name or number a row, got a .* at row 0"):
        sw.estimate_prevalence(SCORES, groups=groups)


def test_a_number_beyond_double_precision_in_z_is_infinite():
    with pytest.raises(ValueError, match="'z' is infinite in 1 row"):
        sw.estimate_prevalence(SCORES, {"z": [10**400, *range(7)]})


@pytest.mark.filterwarnings("ignore:confounder 'z'")
@pytest.mark.parametrize("weight", [[1.0, 1e-6] * 4, [1e6, 1e-3] * 4], ids=["1 and 1e-6", "1e6 and 1e-3"])
def test_weights_of_any_size_that_can_be_added_up_will_do(weight):
    Z = {"z": list("abababab")}
    for options in ({}, {"strength": 1e-9, "model": "additive"}, {"prior": [0.5, 0.5]}):
        estimate = sw.estimate_prevalence(SCORES, Z, sample_weight=weight, **options)
        low, high = estimate.interval()
        assert (low <= estimate.marginal + 1e-9).all()
        assert (estimate.marginal <= high + 1e-9).all()
        np.testing.assert_allclose(low + high[::-1], 1, atol=1e-6)  # of two classes


@pytest.mark.parametrize(
    ("weight", "words"),
    [
        ([1e154] * 8, "heaviest must lie between"),
        ([1e308] * 8, "heaviest must lie between"),
        ([1e-30] * 8, "heaviest must lie between"),
        ([1.0] * 7 + [1e-13], "set them to zero"),
    ],
)
def test_weights_that_cannot_be_added_up_are_refused(weight, words):
    with pytest.raises(ValueError, match=words):
        sw.estimate_prevalence(SCORES, sample_weight=weight)


@pytest.mark.parametrize("prior", [[0.9, 0.9], [0.2, 0.2], [1.5, -0.5], [np.nan, 1.0], [1.0]], ids=str)
def test_a_prior_that_does_not_sum_to_one_is_refused(prior):
    with pytest.raises(ValueError, match="prior must be 2 probabilities"):
        sw.estimate_prevalence(SCORES, prior=prior)


def test_a_certain_row_of_a_joint_ratio_is_certain_of_its_class():
    log_joint = np.random.default_rng(2).normal(size=(30, 2, 2))
    log_joint[4, 1, 0] = np.inf
    estimate = sw.estimate_joint(log_joint, strength=1.0)
    posterior = estimate.posterior(log_joint)
    assert np.isfinite(posterior).all()
    assert posterior[4, 0] == pytest.approx(1.0)
