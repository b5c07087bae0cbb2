import gzip
import json
import os
import signal
import subprocess
import sys

import pytest

from sitewise.bench.experiments.records import append_record, claim, done_ids, read_records, rounded


def test_what_is_appended_is_read(tmp_path):
    path = tmp_path / "deep" / "x.jsonl"
    records = [{"id": "a", "value": 0.5, "name": "β"}, {"id": "b", "value": None}]
    for record in records:
        append_record(path, record)
    assert read_records(path) == records
    assert done_ids(path) == {"a", "b"}
    assert path.read_text(encoding="utf-8").count("\n") == 2


def test_no_file_is_no_record(tmp_path):
    assert read_records(tmp_path / "x.jsonl") == []
    assert done_ids(tmp_path / "x.jsonl") == set()


@pytest.mark.parametrize("cut", [1, 5, 12, 20])
def test_a_line_cut_short_by_a_kill_is_ignored_and_replaced(tmp_path, cut):
    path = tmp_path / "x.jsonl"
    append_record(path, {"id": "a", "value": 1})
    append_record(path, {"id": "b", "value": 2})
    whole = path.read_bytes()
    path.write_bytes(whole[: -1 - cut])
    assert [record["id"] for record in read_records(path)] == ["a"]
    assert done_ids(path) == {"a"}
    append_record(path, {"id": "b", "value": 2})
    assert path.read_bytes() == whole


def test_a_last_line_that_only_lacks_its_end_counts(tmp_path):
    path = tmp_path / "x.jsonl"
    append_record(path, {"id": "a"})
    path.write_bytes(path.read_bytes()[:-1])
    assert done_ids(path) == {"a"}
    append_record(path, {"id": "b"})
    assert [record["id"] for record in read_records(path)] == ["a", "b"]


def test_a_damaged_line_elsewhere_is_an_error_that_names_it(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"id": "a"}\n{"id": "b", \n{"id": "c"}\n', encoding="utf-8")
    with pytest.raises(ValueError, match=r"x\.jsonl, line 2: not a record"):
        read_records(path)


def test_committed_records_and_new_ones_are_read_together(tmp_path):
    path = tmp_path / "x.jsonl"
    committed = [{"id": "a", "value": 1}, {"id": "b", "value": 2}]
    text = "".join(json.dumps(record) + "\n" for record in committed)
    path.with_name("x.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    append_record(path, {"id": "b", "value": 3})
    append_record(path, {"id": "c", "value": 4})
    assert read_records(path) == [committed[0], {"id": "b", "value": 3}, {"id": "c", "value": 4}]
    assert done_ids(path) == {"a", "b", "c"}


def test_numbers_are_rounded_to_six_digits():
    given = {"x": [0.123456789, 1234567.89, 1e-9 / 3], "n": 123456789, "s": "a", "none": None}
    assert rounded(given) == {"x": [0.123457, 1234570.0, 3.33333e-10], "n": 123456789, "s": "a", "none": None}


def test_nan_never_gets_into_a_file(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        append_record(tmp_path / "x.jsonl", {"id": "a", "value": float("nan")})
    assert read_records(tmp_path / "x.jsonl") == []


def test_a_claim_is_held_by_one_at_a_time(tmp_path):
    path = tmp_path / "x.jsonl"
    with claim(path, "a") as mine:
        assert mine
        with claim(path, "a") as second, claim(path, "b") as other:
            assert not second
            assert other
    with claim(path, "a") as again:
        assert again
    assert list((tmp_path / ".claims").iterdir()) == []


def test_a_claim_of_a_failed_run_is_free_again(tmp_path):
    path = tmp_path / "x.jsonl"
    with pytest.raises(ZeroDivisionError), claim(path, "a"):
        raise ZeroDivisionError
    with claim(path, "a") as mine:
        assert mine


HOLD = """
import sys
from pathlib import Path
from sitewise.bench.experiments.records import claim
with claim(Path(sys.argv[1]), "a") as mine:
    print(mine, flush=True)
    sys.stdin.read()
"""


def test_a_claim_ends_with_the_process_that_holds_it(tmp_path):
    path = tmp_path / "x.jsonl"
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline().strip() == "True"
        with claim(path, "a") as mine:
            assert not mine
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
    with claim(path, "a") as mine:
        assert mine
