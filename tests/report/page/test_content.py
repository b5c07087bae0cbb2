"""What a report says: counts by brute force, shapes that are refused, and nothing that JSON cannot hold."""

import json
import math

import numpy as np
import pytest
from scipy.stats import binomtest

from sitewise.report.page.content import Profile, called_shares, most_frequent, plain, probability_shares


def test_shares_are_numpys_histogram():
    rng = np.random.default_rng(0)
    probability, weight = rng.dirichlet([1, 2, 3], 400), rng.uniform(0, 2, 400)
    shares = probability_shares(probability, weight)
    for k in range(3):
        expected, _ = np.histogram(probability[:, k], bins=20, range=(0, 1), weights=weight)
        np.testing.assert_allclose(shares[k], expected / weight.sum())
    np.testing.assert_allclose(shares.sum(axis=1), 1)


def test_the_ends_of_the_unit_interval_have_a_bin():
    assert probability_shares(np.array([[0.0, 1.0]])).sum() == 2


def test_a_doubled_row_is_a_row_of_weight_two():
    probability = np.random.default_rng(1).dirichlet([1, 1], 30)
    weight = np.r_[2.0, np.ones(29)]
    twice = np.r_[probability, probability[:1]]
    np.testing.assert_allclose(probability_shares(probability, weight), probability_shares(twice))
    np.testing.assert_allclose(called_shares(probability, weight, 0.3), called_shares(twice, None, 0.3))


def test_called_by_threshold_or_by_the_largest():
    probability = np.array([[0.9, 0.1], [0.65, 0.35], [0.2, 0.8]])
    assert called_shares(probability).tolist() == pytest.approx([2 / 3, 1 / 3])
    assert called_shares(probability, threshold=0.35).tolist() == pytest.approx([1 / 3, 2 / 3])


def test_the_most_frequent_keep_their_order():
    assert most_frequent(np.array([5, 1, 9, 5, 7]), 3) == [0, 2, 4]


def test_plain_holds_what_json_holds():
    odd = {1: np.float32(0.5), "nan": np.nan, "inf": [math.inf], "set": np.array([[1, 2]]), "none": None, "yes": True}
    as_plain = plain(odd | {"broken": "a\ud800b\x00c"})
    assert as_plain == {
        "1": 0.5,
        "nan": None,
        "inf": [None],
        "set": [[1, 2]],
        "none": None,
        "yes": True,
        "broken": "a?b\ufffdc",
    }
    assert json.loads(json.dumps(as_plain, allow_nan=False)) == as_plain


def test_content_survives_json_unchanged(make_content):
    content = make_content(n_classes=3)
    assert json.loads(json.dumps(content, allow_nan=False)) == content


def test_numbers_are_those_that_were_passed(make_content):
    prevalence, pooled = np.array([0.7, 0.3]), np.array([0.4, 0.6])
    content = make_content(prevalence=prevalence, low=prevalence - 0.1, high=prevalence + 0.1, pooled=pooled)
    assert content["prevalence"]["estimate"] == [0.7, 0.3]
    assert content["prevalence"]["training"] == [0.4, 0.6]
    assert content["focus"] == [1]
    assert content["rows"] == 500


def test_reliability_counts_every_held_out_row_once(make_content):
    content = make_content(n_held=137)
    bins = content["reliability"]["bins"]
    assert sum(b["rows"] for b in bins) == content["reliability"]["rows"] == 137
    assert all(b["low"] <= b["observed"] <= b["high"] for b in bins)
    for b in bins:
        expected = binomtest(round(b["observed"] * b["rows"]), b["rows"]).proportion_ci(0.95, method="wilson")
        assert (b["low"], b["high"]) == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_many_levels_show_the_most_frequent_and_count_the_rest(make_content):
    n_levels = 1000
    share = np.tile([0.8, 0.2], (n_levels, 1))
    rows = np.ones(n_levels, dtype=int)
    rows[[17, 900]] = 50
    many = Profile("clinic", [f"c{i}" for i in range(n_levels)], rows, share, share, share, share)
    (entries,) = make_content(profiles=[many])["confounders"]
    names = [point["value"] for point in entries["points"]]
    assert {"c17", "c900"} <= set(names)
    assert entries["more"]["levels"] == n_levels - len(names)
    assert entries["more"]["rows"] + sum(p["rows"] for p in entries["points"]) == rows.sum()


def test_of_many_classes_the_most_frequent_are_drawn(make_content):
    prevalence = np.array([0.05, 0.3, 0.01, 0.2, 0.04, 0.1, 0.02, 0.2, 0.03, 0.05])
    content = make_content(n_classes=10, prevalence=prevalence)
    assert content["focus"] == [1, 3, 5, 7]


def test_without_a_diagnosis_nothing_is_promised(make_content):
    assert make_content(diagnosis=None)["verdict"] == "not checked"


def test_wrong_shapes_are_all_named(make_content):
    share = np.ones((2, 2))
    short = Profile("sex", ["f", "m"], np.array([1, 1]), share, share[:1], share, share)
    with pytest.raises(ValueError, match="3 problems") as caught:
        make_content(before=np.ones((4, 3)), low=np.ones(3), profiles=[short])
    for word in ("before must be", "low must have", "'sex': after must be (2, 2), got (1, 2)"):
        assert word in str(caught.value)
