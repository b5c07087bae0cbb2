"""Subgroups and samples to label: laws."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from sitewise.performance.expected import DrawnRows, summarize
from sitewise.performance.others import judged_instead
from sitewise.performance.sampling import allocate, draw_sample, strata_of
from sitewise.performance.subgroups import FEWEST, WIDE, in_bands, subgroups


def made(n=600, seed=0, n_classes=2):
    rng = np.random.default_rng(seed)
    belief = rng.dirichlet(np.full(n_classes, 0.8), n)
    labels = (rng.random((200, n, 1)) > np.cumsum(belief, axis=1)[:, :-1]).sum(axis=2)
    return DrawnRows(belief, belief, labels, np.ones(n), pd.DataFrame(index=range(n)))


def test_a_group_is_described_as_its_rows_alone_are():
    rows, sex = made(), pd.Series(["f", "m"] * 300)
    groups = {group.name: group for group in subgroups(rows, (0, 1), sex.rename("sex"))}
    alone = summarize(rows.take(np.arange(0, 600, 2)), (0, 1))
    assert groups["f"].performance.to_dict() == alone.to_dict()
    assert groups["f"].prevalence[1].estimate == pytest.approx(rows.belief[::2, 1].mean())
    assert groups["f"].prevalence[1].low < groups["f"].prevalence[1].estimate < groups["f"].prevalence[1].high
    assert groups["f"].calibration["oe_ratio"].estimate == pytest.approx(1.0)
    json.dumps([group.to_dict() for group in groups.values()], allow_nan=False)


def test_shares_of_groups_add_up_to_the_site():
    rows, age = made(), pd.Series(np.random.default_rng(1).normal(60, 10, 600))
    groups = subgroups(rows, (0, 1), age.rename("age"), bands=[50, 65])
    assert [group.name for group in groups] == ["below 50", "50 to below 65", "65 and above"]
    total = sum(group.n_rows * group.prevalence[1].estimate for group in groups)
    assert total == pytest.approx(rows.belief[:, 1].sum())


def test_few_rows_get_a_note_and_no_numbers():
    group = pd.Series(["a"] * (600 - FEWEST + 1) + ["b"] * (FEWEST - 1))
    a, b = subgroups(made(), (0, 1), group)
    assert a.note is None
    assert b.performance is None
    assert not b.prevalence
    assert "19 row(s) are too few" in b.note


def test_a_group_whose_prevalence_is_not_identified_says_so():
    rows = made(100)
    shaken = np.where(np.arange(200)[:, None] % 2 == 0, 0, 1) * np.ones((1, 100), dtype=int)
    unsure = DrawnRows(rows.probability, rows.belief, shaken, rows.weight, rows.z)
    (groups,) = subgroups(unsure, (0, 1), pd.Series(["x"] * 100))
    assert "do not determine the prevalence" in groups.note
    assert groups.prevalence[1].high - groups.prevalence[1].low > WIDE
    assert groups.performance is None
    assert not groups.calibration


def test_rows_whose_g_is_not_identified_may_be_of_any_class():
    rows = made()
    identified = np.arange(600) % 4 != 0
    (free,) = subgroups(replace(rows, identified=identified), (0, 1), ["x"] * 600)
    (drawn,) = subgroups(rows.take(np.flatnonzero(identified)), (0, 1), ["x"] * 450)
    assert free.prevalence[1].low == pytest.approx(0.75 * drawn.prevalence[1].low)
    assert free.prevalence[1].high == pytest.approx(0.75 * drawn.prevalence[1].high + 0.25)
    (nothing,) = subgroups(replace(rows, identified=np.zeros(600, dtype=bool)), (0, 1), ["x"] * 600)
    assert (nothing.prevalence[1].low, nothing.prevalence[1].high) == (0, 1)
    assert nothing.performance is None


def test_columns_are_named_or_passed():
    rows = replace(made(), z=pd.DataFrame({"age": np.linspace(20, 90, 600), "sex": ["f", "m"] * 300}))
    by_name = subgroups(rows, (0, 1), ["age", "sex"], bands={"age": [50]})
    assert [group.name for group in by_name] == ["below 50", "50 and above", "f", "m"]
    by_value = subgroups(rows, (0, 1), rows.z, bands={"age": [50]})
    assert [group.to_dict() for group in by_value] == [group.to_dict() for group in by_name]
    assert [group.name for group in subgroups(rows, (0, 1), ["f", "m"] * 300)] == ["f", "m"]
    with pytest.raises(ValueError, match=r"no confounder 'sexx'; did you mean 'sex'"):
        subgroups(rows, (0, 1), "sexx")
    with pytest.raises(ValueError, match=r"no confounder 'ward'; there are \['age', 'sex'\]; pass the values"):
        subgroups(rows, (0, 1), ["sex", "ward"])
    with pytest.raises(ValueError, match=r"bands of 'agee'; did you mean 'age'"):
        subgroups(rows, (0, 1), "age", bands={"agee": [50]})


def test_bad_columns_are_refused():
    rows = made()
    with pytest.raises(ValueError, match="every group of 'id' has one row"):
        subgroups(rows, (0, 1), pd.Series([f"p{i}" for i in range(600)], name="id"))
    with pytest.raises(ValueError, match=r"expected one value for each of 600 row\(s\), got 3"):
        subgroups(rows, (0, 1), pd.Series(["f", "m", "f"]))
    with pytest.raises(ValueError, match="bands must be numbers in increasing order"):
        in_bands(pd.Series([1.0]), [3, 2], "age")
    with pytest.raises(ValueError, match="bands are for numbers"):
        in_bands(pd.Series(["a"]), [3], "sex")


def test_many_classes_and_decisions_alone_have_no_calibration():
    group = pd.Series(["a", "b"] * 300)
    assert not subgroups(made(n_classes=3), (0, 1, 2), group)[0].calibration
    decided = judged_instead(made(), (0, 1), y_pred=np.zeros(600, dtype=int))
    assert not subgroups(decided, (0, 1), group)[0].calibration


def test_missing_values_are_a_group():
    values = pd.Series([np.nan] * 50 + list(np.linspace(0, 100, 550)))
    groups = subgroups(made(), (0, 1), values, bands=[50])
    assert groups[-1].name == "missing"
    assert groups[-1].n_rows == 50


# Samples


def rows_to_sample(n=2000, seed=0):
    rng = np.random.default_rng(seed)
    p = rng.beta(0.5, 2, n)
    z = pd.DataFrame({"sex": rng.choice(["f", "m"], n), "age": rng.normal(60, 10, n)})
    return np.stack([1 - p, p], axis=1), z


def test_weights_represent_all_rows_and_means_are_unbiased():
    probability, z = rows_to_sample()
    value = np.random.default_rng(1).random(2000) < probability[:, 1]
    means = []
    for seed in range(200):
        sample = draw_sample(probability, z, 100, seed=seed)
        assert len(sample) == len(np.unique(sample.rows)) == 100
        assert sample.weight.sum() == pytest.approx(2000)
        means.append(sample.weight @ value[sample.rows] / 2000)
    error = np.std(means) / np.sqrt(200)
    assert abs(np.mean(means) - value.mean()) < 4 * error
    plain = np.sqrt(value.mean() * (1 - value.mean()) / 100)
    assert np.std(means) < plain  # stratified by what predicts the value: better than a simple draw


def test_few_rows_have_few_strata_and_every_stratum_is_drawn_from():
    probability, z = rows_to_sample()
    for n in (2, 10, 30, 200):
        strata = strata_of(probability, z, n)
        assert (strata.max() + 1) * 2 <= max(n, 2)
        assert set(draw_sample(probability, z, n).stratum) == set(strata)


def test_all_rows_have_a_weight_of_one():
    probability, z = rows_to_sample(60)
    sample = draw_sample(probability, z, 60)
    np.testing.assert_array_equal(sample.rows, np.arange(60))
    np.testing.assert_allclose(sample.weight, 1.0)


def test_allocation_is_whole_and_within_bounds():
    size, spread = np.array([1, 10, 1000]), np.array([0.5, 0.1, 0.3])
    counts = allocate(size, spread, 50)
    assert counts.sum() == 50
    assert (counts <= size).all()
    assert (counts >= np.minimum(size, 2)).all()


@pytest.mark.parametrize("n", [0, 1, 61])
def test_a_sample_of_another_size_is_refused(n):
    probability, z = rows_to_sample(60)
    with pytest.raises(ValueError, match="the number of rows must lie from 2 to 60"):
        draw_sample(probability, z, n)


def test_a_site_of_one_row_has_nothing_to_draw_from():
    probability, z = rows_to_sample(60)
    with pytest.raises(ValueError, match="the site has 1 row; a sample needs at least 2"):
        draw_sample(probability[:1], z[:1], 1)
