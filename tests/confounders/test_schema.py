import warnings

import numpy as np
import pandas as pd
import pytest
import torch

import sitewise as sw
from sitewise.confounders.schema import mask_patterns
from sitewise.confounders.variables import Categorical, Continuous


def frame():
    return pd.DataFrame(
        {
            "age": [30.0, np.nan, 50.0, 70.0],
            "sex": ["f", "m", None, "f"],
            "smoker": [True, False, True, None],
            "ward": pd.Categorical(["a", "b", "a", None]),
            "implant": [0.0, 1.0, np.nan, 0.0],
            "visits": pd.array([1, 2, 3, pd.NA], dtype="Int64"),
            "score": [0.25, 0.75, 0.25, 0.25],
        }
    )


def test_kinds_are_inferred_as_the_contract_says():
    kinds = {v.name: type(v).__name__ for v in sw.Confounders.learn(frame()).variables}
    assert kinds == {
        "age": "Continuous",
        "sex": "Categorical",
        "smoker": "Categorical",
        "ward": "Categorical",
        "implant": "Categorical",
        "visits": "Continuous",
        "score": "Continuous",
    }


def test_categorical_overrides_by_name_and_by_position():
    by_name = sw.Confounders.learn(frame(), categorical=["visits"]).variables[5]
    by_position = sw.Confounders.learn(frame(), categorical=[5]).variables[5]
    assert by_name == by_position == Categorical("visits", (1, 2, 3))


def test_codes_and_missing():
    schema = sw.Confounders.learn(frame())
    codes, notes = schema.encode(frame())
    assert codes[:, 0].tolist() == [1.0, 0.0, 1.5, 2.0]
    assert codes[:, 1].tolist() == [0.0, 1.0, 2.0, 0.0]
    assert codes[:, 4].tolist() == [0.0, 1.0, 2.0, 0.0]
    assert schema.missing(codes).sum(0).tolist() == [1, 1, 1, 1, 1, 1, 0]
    assert not notes.clipped


@pytest.mark.parametrize("levels", [(1, 2), (0, 1), (2, 0), ("0", "1", "2")])
def test_the_code_of_missing_is_never_a_values_code(levels):
    """Trap: a colour coded 1, 2 against a table for 0, 1, 2."""
    Z = pd.DataFrame({"colour": list(levels) * 3, "age": np.linspace(0, 100, 3 * len(levels))})
    schema = sw.Confounders.learn(Z)
    codes, _ = schema.encode(Z)
    assert not schema.missing(codes).any()
    blank, _ = schema.encode(pd.DataFrame({"colour": [None], "age": [np.nan]}))
    assert schema.missing(blank).all()
    for j in range(2):
        assert float(blank[0, j]) not in codes[:, j].tolist()


def test_one_value_has_one_level_however_it_is_typed():
    schema = sw.Confounders.learn(pd.DataFrame({"implant": [0, 1, 0]}))
    for column in ([1.0, np.nan], np.array([1, 0], dtype=np.int8), [True, False], pd.array([1, pd.NA], dtype="Int64")):
        codes, _ = schema.encode(pd.DataFrame({"implant": column}))
        assert float(codes[0, 0]) == 1.0


def test_unseen_levels_warn_and_count_as_missing():
    schema = sw.Confounders.learn(frame())
    other = frame().assign(sex=["f", "x", "y", "x"])
    with pytest.warns(UserWarning, match="3 row.*'x', 'y'"):
        codes, notes = schema.encode(other)
    assert notes.unseen == {"sex": 3}
    assert codes[:, 1].tolist() == [0.0, 2.0, 2.0, 2.0]


def test_values_outside_the_range_are_clipped_and_counted():
    schema = sw.Confounders.learn(frame())
    codes, notes = schema.encode(frame().assign(age=[10.0, 200.0, 40.0, np.nan]))
    assert codes[:, 0].tolist() == [1.0, 2.0, 1.25, 0.0]
    assert notes.clipped == {"age": 2}


def test_frames_match_by_name_and_arrays_by_position():
    schema = sw.Confounders.learn(frame()[["age", "sex"]])
    with pytest.warns(UserWarning, match="'age'.* absent"), pytest.warns(UserWarning, match="'ward'.* ignored"):
        codes, notes = schema.encode(pd.DataFrame({"ward": ["a"], "sex": ["m"]}))
    assert codes.tolist() == [[0.0, 1.0]]
    assert (notes.absent, notes.extra) == (("age",), ("ward",))
    with pytest.raises(ValueError, match="none of the confounders"):
        schema.encode(pd.DataFrame({"weight": [1.0]}))
    assert schema.encode(np.array([[50.0, "m"]], dtype=object))[0].tolist() == [[1.5, 1.0]]
    assert schema.encode([[50.0, "m"]])[0].tolist() == [[1.5, 1.0]]
    with pytest.raises(ValueError, match=r"must have 2 column\(s\) \(age, sex\), got 3"):
        schema.encode(np.zeros((2, 3)))


def test_tensors_and_single_columns():
    schema = sw.Confounders.learn(torch.tensor([[30.0, 1.0], [50.0, 0.0], [40.0, torch.nan]]))
    assert [type(v) for v in schema.variables] == [Continuous, Categorical]
    assert sw.Confounders.learn(["a", "b", None]).variables == (Categorical("z0", ("a", "b")),)


def test_everything_wrong_with_z_is_said_at_once():
    bad = pd.DataFrame({"age": [1.0, np.inf, 3.0], "born": pd.to_datetime(["2020-01-01"] * 3), "list": [[1], [2], [3]]})
    with pytest.raises(ValueError, match="3 problems") as caught:
        sw.Confounders.learn(bad)
    for words in ("'age' is infinite in 1 row(s), first at row 1", "'born' holds dates", "'list' holds values"):
        assert words in str(caught.value)
    with pytest.raises(ValueError, match="not a column of Z"):
        sw.Confounders.learn(frame(), categorical=["sexx"])
    with pytest.raises(ValueError, match="row 1 holds 'old'"):
        sw.Confounders.learn(frame()).encode(frame().assign(age=["30", "old", "50", "60"]))
    with pytest.raises(ValueError, match="at least one row and one column"):
        sw.Confounders.learn(np.zeros((0, 2)))
    with pytest.raises(ValueError, match="duplicated in Z"):
        sw.Confounders.learn(pd.concat([frame(), frame()], axis=1))


@pytest.mark.filterwarnings("ignore")
def test_columns_that_say_nothing_are_legal():
    Z = pd.DataFrame({"empty": [np.nan] * 3, "none": [None] * 3, "same": [0.5] * 3, "one": ["a"] * 3})
    schema = sw.Confounders.learn(Z)
    codes, _ = schema.encode(Z)
    assert schema.missing(codes)[0].tolist() == [True, True, False, False]
    assert schema.inputs(codes).isfinite().all()


def test_knocked_out_values_leave_no_trace_in_anything_that_reads_them():
    """Trap: f sees the knocked-out z while g sees the true one."""
    schema = sw.Confounders.learn(frame())
    codes, _ = schema.encode(frame())
    mask = torch.zeros_like(codes, dtype=torch.bool)
    mask[:, [0, 1]] = True
    one, other = schema.knock_out(codes, mask), schema.knock_out(codes.flip(0), mask)
    assert schema.missing(one)[:, :2].all()
    assert torch.equal(schema.inputs(one)[:, :5], schema.inputs(other)[:, :5])
    untouched = schema.knock_out(codes, torch.zeros_like(mask))
    assert torch.equal(untouched, codes)


def test_missing_columns_are_zero_for_known_rows_and_one_for_missing_ones():
    schema = sw.Confounders.learn(frame())
    codes, _ = schema.encode(frame())
    flags = schema.inputs(codes)[:, schema.missing_columns()]
    assert torch.equal(flags.bool(), schema.missing(codes))


@pytest.mark.parametrize("n_variables", [1, 2, 3, 6])
def test_knockout_patterns_are_all_there_with_their_probabilities(n_variables):
    patterns = mask_patterns(n_variables, 0.3)
    assert len({tuple(m.tolist()) for m, _ in patterns}) == len(patterns) == 2**n_variables - 2
    total = sum(share for _, share in patterns) + 0.7**n_variables + 0.3**n_variables
    assert total == pytest.approx(1)
    assert len(mask_patterns(50, 0.3)) == 64


def test_large_numbers_do_not_overflow():
    Z = pd.DataFrame({"z": [-1.7e308, 0.0, 1.7e308]})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        codes, _ = sw.Confounders.learn(Z).encode(Z)
    assert codes[:, 0].tolist() == [1.0, 1.5, 2.0]


@pytest.mark.parametrize("values", [[1.5, pd.NA, 2.0], [1, None, 2, 3], [1, pd.NA, 2, 3]])
def test_na_does_not_turn_a_number_into_a_category(values):
    column = np.array(values, dtype=object)
    assert isinstance(sw.Confounders.learn(column[:, None]).variables[0], Continuous)
    assert isinstance(sw.Confounders.learn({"dose": values}).variables[0], Continuous)


@pytest.mark.parametrize(
    "categorical", ["visits", 5, np.int64(5), ["visits"], np.array(["visits"]), np.array([5]), pd.Index(["visits"])]
)
def test_categorical_may_come_in_any_container(categorical):
    assert sw.Confounders.learn(frame(), categorical).variables[5] == Categorical("visits", (1, 2, 3))


def test_categories_that_are_no_plain_values_go_by_their_text():
    Z = pd.DataFrame({"age": pd.cut(pd.Series([1.0, 5.0, 9.0, np.nan]), [0, 4, 10])})
    schema = sw.Confounders.learn(Z)
    assert schema.variables == (Categorical("age", ("(0, 4]", "(4, 10]")),)
    assert schema.encode(Z)[0][:, 0].tolist() == [0.0, 1.0, 1.0, 2.0]


@pytest.mark.parametrize("dtype", [None, object])
def test_dates_are_no_numbers(dtype):
    schema = sw.Confounders.learn(frame())
    born = pd.Series(list(pd.date_range("1950", periods=4)), dtype=dtype)
    with pytest.raises(ValueError, match="'age' is continuous, but holds dates here: turn them into a number"):
        schema.encode(frame().assign(age=born))


def test_levels_that_are_neither_numbers_nor_text_are_named_wherever_they_come():
    with pytest.raises(ValueError, match="'sex' holds values that are neither"):
        sw.Confounders.learn(frame()).encode(frame().assign(sex=[["f"]] * 4))


def test_a_few_rows_are_encoded_as_many_are():
    """To the bit, whatever is in them: one at a time, from frames, objects and numbers, columns in any order."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "age": rng.uniform(20, 90, 60),
            "sex": rng.choice(["f", "m"], 60),
            "grade": rng.choice([1, 2], 60),
            "smoker": rng.choice([True, False], 60),
            "fixed": np.full(60, 3.5),
        }
    )
    schema = sw.Confounders.learn(frame)
    frame.loc[::7, "age"] = np.nan
    frame["sex"] = frame["sex"].mask(np.arange(60) % 5 == 0)
    whole = schema.encode(frame)[0]
    odd = schema.encode(frame.assign(age=frame["age"] + 40, sex="x"), quiet=True)
    for row in range(60):
        one = frame.iloc[row : row + 1]
        for few in (one, one.iloc[:, ::-1], one.to_numpy(dtype=object), one.astype({"sex": "category"})):
            assert torch.equal(schema.encode(few)[0], whole[row : row + 1])
        strange = schema.encode(one.assign(age=one["age"] + 40, sex="x"), quiet=True)
        assert torch.equal(strange[0], odd[0][row : row + 1])
        assert strange[1].unseen == {"sex": 1}
    with pytest.raises(ValueError, match="infinite"):
        schema.encode(frame[:1].assign(age=np.inf))
    with pytest.raises(ValueError, match="row 0 holds 'old'"):
        schema.encode(frame[:1].assign(age="old"))
