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
    is_chunked,
    join_chunks,
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


@pytest.mark.parametrize(
    ("chunks", "words"),
    [
        ([(RATIO, Z), (RATIO, Z, Z)], "chunk 1 of log_ratio: expected a pair"),
        ([(RATIO, Z), RATIO], "chunk 1 of log_ratio: expected a pair .* got ndarray"),
        ([(RATIO, Z), (RATIO, Z.iloc[:2])], r"chunk 1 .*Z has 2 row\(s\), log_ratio has 3"),
        ([(RATIO, Z), (np.zeros((3, 4)), Z)], "chunk 1 .*has 4 classes, chunk 0 has 2"),
        ([(RATIO, Z), (np.zeros(3), Z)], r"chunk 1 .*shape \(rows, classes\), got \(3,\)"),
        ([(RATIO, Z), (RATIO, Z.rename(columns=str.upper))], r"chunk 1 .*columns \['AGE'\], chunk 0 has \['age'\]"),
        ([(RATIO, np.zeros((3, 1))), (RATIO, np.zeros((3, 2)))], "chunk 1 .*columns 2, chunk 0 has 1"),
        ([(RATIO, Z), (RATIO, None)], "chunk 1 .*some have None"),
    ],
)
def test_a_chunk_that_does_not_fit_is_named(chunks, words):
    assert is_chunked(chunks)
    with pytest.raises(ValueError, match=words):
        join_chunks(chunks)


def test_pairs_may_be_lists_and_numbers_are_no_chunks():
    assert is_chunked([[RATIO, Z], [RATIO, Z]])
    log_ratio, joined = join_chunks([[RATIO, Z], [RATIO, Z]])
    assert (len(log_ratio), len(joined)) == (6, 6)
    assert not is_chunked(RATIO.tolist())
    assert not is_chunked([(0.0, 1.0), (1.0, 0.0)])


def test_an_iterable_that_is_spent_after_one_pass_is_refused():
    class Spent:
        def __init__(self):
            self.chunks = iter([(RATIO, Z)])

        def __iter__(self):
            return self.chunks

    with pytest.raises(TypeError, match="one-shot iterator"):
        join_chunks(Spent())


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
