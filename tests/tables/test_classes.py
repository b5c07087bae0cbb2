"""The classes of a target column: sorted, of one kind, and no slip of the pen among them."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sitewise.arrays import Problems
from sitewise.tables.classes import learn_classes
from sitewise.tables.values import Place, as_rows


def classes_of(values, given=()):
    problems = Problems("test")
    classes = learn_classes(as_rows(pd.DataFrame({"y": values})), "y", given, Place(), problems)
    problems.raise_if_any()
    return classes


@given(st.permutations([2, 10, -1, 0]))
def test_numbers_are_sorted_by_size_and_text_by_its_letters(order):
    values = np.repeat(order, 5)
    assert classes_of(values) == (-1, 0, 2, 10)
    assert classes_of([str(value) for value in values]) == (-1, 0, 2, 10)
    assert classes_of([f"grade {value}" for value in values]) == ("grade -1", "grade 0", "grade 10", "grade 2")


def test_one_label_of_text_makes_all_of_them_text():
    assert classes_of(["1", "2", "unclear"] * 5, given=("1", "2", "unclear")) == ("1", "2", "unclear")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (["sick"] * 50 + ["well"] * 50 + ["Sick"] * 40, r"'Sick' in row 100 .* and 39 more .* did you mean 'sick'"),
        (["sick"] * 50 + ["well"] * 50 + ["sikc"], r"'sikc' in row 100 .* did you mean 'sick'"),
        ([0, 1] * 30 + ["o"], r"expected a number as in most rows, got 'o' in row 60"),
        ([1] * 9, r"holds one class only \(1\)"),
        (list(range(51)), "has 51 different values, too many for classes"),
        ([0, 1, None], "the label is missing in row 2"),
    ],
)
def test_what_cannot_be_meant_is_said(values, said):
    with pytest.raises(ValueError, match=said):
        classes_of(pd.Series(values, dtype=object))


def test_a_rare_class_that_is_spelled_like_no_other_is_a_class():
    assert classes_of(["nevus"] * 300 + ["keratosis"] * 200 + ["melanoma"]) == ("keratosis", "melanoma", "nevus")


def test_a_frequent_class_that_is_spelled_like_another_is_a_class():
    """Type 1 and type 2 differ by a letter, and both are frequent."""
    assert classes_of(["type 1"] * 30 + ["type 2"] * 20) == ("type 1", "type 2")


def test_numbers_are_never_slips_of_each_other():
    assert classes_of([10] * 400 + [100]) == (10, 100)


def test_classes_that_are_named_are_all_there_are():
    assert classes_of(["1", "0", "2"], given=("1", "0", "2")) == (0, 1, 2)
    with pytest.raises(ValueError, match="expected one of 0, 1, got '2' in row 2"):
        classes_of(["1", "0", "2"], given=("0", "1"))


def test_a_class_that_no_row_has_is_refused():
    with pytest.raises(ValueError, match="has no row of 2, which --classes names"):
        classes_of([0, 1] * 5, given=("0", "1", "2"))
