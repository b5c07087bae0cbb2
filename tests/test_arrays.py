"""Numbers at the border."""

import numpy as np
import pandas as pd
import pytest
import torch

from sitewise.arrays import (
    Container,
    Problems,
    align_classes,
    index_of,
    read_groups,
    read_labels,
)

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
        assert len(problems.found) == 1
        assert "one column with an entry for each of the 3 row(s), got shape (3, 1)" in problems.found[0]


def test_classes_are_aligned_by_label_where_the_labels_are_the_same():
    columns = pd.Index(["ill", "healthy"])
    prior = pd.Series({"healthy": 0.9, "ill": 0.1})
    assert align_classes(prior, columns).tolist() == [0.1, 0.9]
    assert align_classes(prior.to_frame().T, columns).iloc[0].tolist() == [0.1, 0.9]
    for other in (pd.Series([0.9, 0.1]), np.array([0.9, 0.1]), [0.9, 0.1]):
        assert align_classes(other, columns) is other
    assert align_classes(prior, None) is prior
