"""Features of a table as columns of X: numbers, categories and gaps, learned once and the same ever after."""

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import sklearn
from hypothesis import given
from hypothesis import strategies as st

from sitewise.artifacts.packing import pack, unpack
from sitewise.tables import Roles, TableReader
from sitewise.tables.reader import RECORDS

N = 24


def reader_of(frame, **roles):
    """A reader of all columns as features; the target is a column of its own."""
    labeled = frame.assign(target=np.arange(len(frame)) % 2)
    return TableReader.learn(labeled, Roles(target="target", features=tuple(frame.columns), **roles))


def read(reader, frame):
    return reader.read(frame, labels="none").X


def by_hand(column, training):
    """A column of X as a formula says it, from pandas alone."""
    gaps = training.isna().any()
    if pd.api.types.is_numeric_dtype(training):
        filled = training.fillna(training.median())
        spread = filled.std(ddof=0)
        scaled = (column.fillna(training.median()) - filled.mean()) / (spread if filled.nunique() > 1 else 1.0)
        columns = [scaled.to_numpy()]
    else:
        columns = [(column == level).to_numpy() for level in sorted(training.dropna().unique())]
    return np.stack([*columns, *([column.isna().to_numpy()] if gaps else [])], axis=1).astype(float)


@st.composite
def tables(draw):
    """A training table and a new one, of numbers and categories in any order, with and without gaps."""
    kinds = draw(st.lists(st.sampled_from(["number", "category"]), min_size=1, max_size=5))
    frames = []
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    gaps = [bool(rng.random() < 0.5) for _ in kinds]
    for new in (False, True):
        columns = {}
        for place, (kind, gap) in enumerate(zip(kinds, gaps, strict=True)):
            if kind == "number":
                column = pd.Series(rng.normal(rng.normal() * 10, 1, N))
            else:
                column = pd.Series(rng.choice(["a", "b", "c", *(["unseen"] if new else [])], N), dtype=object)
            if gap or new:
                column[rng.permutation(N)[: N // 3]] = None
            columns[f"{kind} {place}"] = column
        frames.append(pd.DataFrame(columns))
    return frames


@given(tables())
def test_columns_are_what_the_formula_says(frames):
    training, new = frames
    reader = reader_of(training)
    for frame in frames:
        expected = np.concatenate([by_hand(frame[name], training[name]) for name in training], axis=1)
        np.testing.assert_allclose(read(reader, frame), expected, rtol=1e-12, atol=1e-12)
    assert read(reader, new).shape[1] == len(reader.feature_columns)


@given(tables())
def test_what_is_saved_prepares_to_the_bit_as_what_was_learned(frames):
    training = frames[0]
    reader = reader_of(training)
    tree, tensors = pack({"reader": reader}, RECORDS)
    again = unpack(json.loads(json.dumps(tree)), tensors, RECORDS)["reader"]
    assert again == reader
    for frame in frames:
        np.testing.assert_array_equal(read(again, frame), read(reader, frame))


@given(tables(), st.randoms())
def test_features_in_another_order_are_the_same_columns_in_another_order(frames, random):
    training, new = frames
    names = list(training)
    random.shuffle(names)
    one, other = reader_of(training), reader_of(training[names])
    place = [one.feature_columns.index(column) for column in other.feature_columns]
    np.testing.assert_array_equal(read(other, new), read(one, new)[:, place])
    np.testing.assert_array_equal(read(one, new[names]), read(one, new))


def test_names_that_meet_do_not_mix_columns():
    """`a` has a column called `a missing`, and so is a feature."""
    frame = pd.DataFrame({"a": [1.0, None, 3.0, 5.0], "a missing": [9.0, 7.0, 8.0, 6.0]})
    reader = reader_of(frame)
    assert reader.feature_columns == ("a", "a missing", "a missing")
    read_back = read(reader, frame)
    assert read_back[:, 1].tolist() == [0, 1, 0, 0]
    assert (np.diff(read_back[:, 2]) < 0).tolist() == [True, False, True]


def test_columns_are_an_array_whatever_scikit_learn_is_set_to():
    frame = pd.DataFrame({"x": [1.0, None, 3.0], "c": ["u", "v", "v"]})
    expected = read(reader_of(frame), frame)
    with sklearn.config_context(transform_output="pandas"):
        read_back = read(reader_of(frame), frame)
    assert isinstance(read_back, np.ndarray)
    np.testing.assert_array_equal(read_back, expected)


@pytest.mark.parametrize("gap", [False, True])
def test_a_constant_column_is_zero_and_stays_finite(gap):
    frame = pd.DataFrame({"constant": [0.1, None if gap else 0.1, 0.1, 0.1], "x": [1.0, 2.0, 3.0, 4.0]})
    reader = reader_of(frame)
    assert not read(reader, frame)[:, 0].any()
    assert read(reader, frame.assign(constant=2.1))[:, 0].tolist() == [2.0] * 4


def test_a_gap_where_training_had_none_is_the_median_or_no_level_at_all():
    frame = pd.DataFrame({"x": [1.0, 2.0, 9.0], "c": ["u", "v", "v"]})
    reader = reader_of(frame)
    read_back = read(reader, pd.DataFrame({"x": [None, 2.0], "c": [None, "v"]}))
    assert read_back[0, 0] == read_back[1, 0]
    assert read_back[:, 1:].tolist() == [[0, 0], [0, 1]]


@pytest.mark.parametrize("written", [[True, False, None], ["true", "FALSE", ""], ["True", "False", "NA"]])
def test_truth_is_a_category_however_it_is_written(written):
    frame = pd.DataFrame({"smoker": pd.Series([True, False, None, True], dtype=object)})
    reader = reader_of(frame)
    assert reader.feature_columns == ("smoker=False", "smoker=True", "smoker missing")
    expected = [[0, 1, 0], [1, 0, 0], [0, 0, 1]]
    assert read(reader, pd.DataFrame({"smoker": pd.Series(written, dtype=object)})).tolist() == expected


def test_numbers_are_the_same_however_they_are_stored():
    values = [1.5, 2.25, None, 40.0]
    frame = pd.DataFrame({"x": values})
    reader = reader_of(frame)
    expected = read(reader, frame)
    stored = [
        pa.table({"x": pa.array(["1.5", " 2.25 ", "NA", "4e1"])}),
        pa.table({"x": pa.array(values, type=pa.float32())}),
        pa.table({"x": pa.array(["1.5", "2.25", "", "40"]).dictionary_encode()}),
        pa.table({"x": pa.array(["1.50", "2.25", None, "40.00"]).cast(pa.decimal128(9, 2))}),
        pa.table({"x": pa.chunked_array([values[:1], values[1:]])}),
    ]
    for table in stored:
        np.testing.assert_array_equal(read(reader, table), expected)


@pytest.mark.parametrize(
    ("column", "said"),
    [
        (pd.date_range("2020-01-01", periods=4), "column 'odd' holds dates"),
        ([[1], [2], [3], [4]], "column 'odd' holds list"),
        ([b"a", b"b", b"a", b"b"], "column 'odd' holds binary"),
        ([1.0, 2.0, np.inf, 3.0], "column 'odd' is infinite in row 2"),
        ([1.0, 2.0, 1e39, 3.0], r"column 'odd': 1e\+39 in row 2 .* is too large"),
        ([None] * 4, "column 'odd' has no values"),
        (["3", "4", "5", "many"], "column 'odd': expected a number, got 'many' in row 3"),
    ],
)
def test_a_column_that_cannot_be_a_feature_is_named_with_all_others(column, said):
    frame = pd.DataFrame({"odd": column, "empty": [None] * 4, "x": [1.0, 2.0, 3.0, 4.0]})
    with pytest.raises(ValueError, match=said) as error:
        reader_of(frame)
    assert "'x'" not in str(error.value)


def test_a_number_that_comes_as_dates_later_is_refused_by_name():
    reader = reader_of(pd.DataFrame({"x": [1.0, 2.0], "c": ["u", "v"]}))
    late = pd.DataFrame({"x": pd.to_datetime(["2020-01-01", "2021-01-01"]), "c": ["u", "v"]})
    with pytest.raises(ValueError, match="column 'x' holds dates"):
        read(reader, late)
    with pytest.raises(ValueError, match=r"no column 'x' \(features\)"):
        read(reader, late[["c"]])


@pytest.mark.parametrize(
    "changes", [{"spread": 0.0}, {"spread": -1.0}, {"median": float("nan")}, {"mean": float("inf")}, {"mean": "3"}]
)
def test_numbers_that_nobody_learned_are_refused_when_loaded(changes):
    tree, tensors = pack({"reader": reader_of(pd.DataFrame({"x": [1.0, 2.0]}))}, RECORDS)
    fields = tree["reader"]["fields"]["features"]["items"][0]["fields"]
    fields |= {
        k: v if isinstance(v, str) or np.isfinite(v) else {"$": "float", "value": str(v)} for k, v in changes.items()
    }
    with pytest.raises(ValueError, match="reader/features/0 is not what this version of sitewise expects"):
        unpack(tree, tensors, RECORDS)
