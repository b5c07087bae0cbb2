"""Rows that come in chunks."""

import numpy as np
import pandas as pd
import pytest

from sitewise.sources import ArrayChunks, ParquetChunks, chunks_from, first_chunk, is_chunked

RATIO = np.zeros((3, 2))
Z = pd.DataFrame({"age": [1.0, 2.0, 3.0]})


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
        list(chunks_from(chunks))


def test_pairs_may_be_lists_and_numbers_are_no_chunks():
    assert is_chunked([[RATIO, Z], [RATIO, Z]])
    assert [len(log_ratio) for log_ratio, _ in chunks_from([[RATIO, Z], [RATIO, Z]])] == [3, 3]
    assert not is_chunked(RATIO.tolist())
    assert not is_chunked([(0.0, 1.0), (1.0, 0.0)])


def test_an_iterable_that_is_spent_after_one_pass_is_refused():
    class Spent:
        def __init__(self):
            self.chunks = iter([(RATIO, Z)])

        def __iter__(self):
            return self.chunks

    with pytest.raises(TypeError, match="one-shot iterator"):
        first_chunk(Spent())


def parquet(path, n_rows=10, rows_from=0):
    frame = pd.DataFrame(
        {"f0": np.zeros(n_rows), "f1": np.arange(n_rows) + rows_from, "sex": ["m", "f"] * (n_rows // 2)}
    )
    frame.to_parquet(path)
    return path


def test_a_folder_of_parquet_files_is_read_in_order_and_again(tmp_path):
    parquet(tmp_path / "b.parquet", rows_from=10)
    parquet(tmp_path / "a.parquet")
    source = ParquetChunks(tmp_path, ["f0", "f1"], ["sex"], rows=4)
    for _ in range(2):
        chunks = list(source)
        assert [len(log_ratio) for log_ratio, _ in chunks] == [4, 4, 2, 4, 4, 2]
        np.testing.assert_array_equal(np.concatenate([c[:, 1] for c, _ in chunks]), np.arange(20))
        assert chunks[0][1].columns.tolist() == ["sex"]
    assert next(iter(ParquetChunks(tmp_path / "a.parquet", ["f0", "f1"])))[1] is None


def test_what_is_wrong_with_parquet_is_said_at_once(tmp_path):
    parquet(tmp_path / "a.parquet")
    (tmp_path / "text.parquet").write_text("not parquet")
    files = [tmp_path / "a.parquet", tmp_path / "text.parquet", tmp_path / "none.parquet"]
    with pytest.raises(ValueError, match="4 problems") as caught:
        ParquetChunks(files, ["f0", "f2"], ["age"], rows=0)
    for words in ("no column 'f2', 'age'; its columns are f0, f1, sex", "cannot be read", "there is no file", "rows"):
        assert words in str(caught.value)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"holds no \.parquet file"):
        ParquetChunks(tmp_path / "empty", ["f0", "f1"])


def test_array_chunks_start_anywhere():
    log_ratio, Z = np.arange(20.0).reshape(10, 2), pd.DataFrame({"age": np.arange(10)})
    chunks = list(ArrayChunks(log_ratio, Z, rows=4).chunks_from(1))
    np.testing.assert_array_equal(np.concatenate([c for c, _ in chunks]), log_ratio[4:])
    assert chunks[-1][1]["age"].tolist() == [8, 9]
    with pytest.raises(ValueError, match="2 problems"):
        ArrayChunks(log_ratio, Z.iloc[:3], rows=-1)
