"""The page on performance shows the committed record of serving."""

import json
from pathlib import Path

import pytest

from scripts import load_script

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "serving.py"


@pytest.fixture(scope="module")
def script():
    return load_script("benchmarks/serving.py")


def test_the_page_has_the_table_of_the_record(script):
    record = json.loads(SCRIPT.with_suffix(".json").read_text())
    assert script.table(record) in (ROOT / "docs" / "performance.md").read_text()


def test_the_table_leaves_out_what_a_server_does_not_take(script):
    rate = {"requests a second, median": 100.4, "ratio to no-op, median of blocks": 0.754}
    record = {"one row": {"no-op": rate, "a": rate}, "100,000 rows": {"a, json": {"seconds, median": 1.234}}}
    assert script.table(record).splitlines()[2:] == [
        "| no-op | 100 |  | - | - | - |",
        "| a | 100 | 0.75 | 1.23 | - | - |",
    ]
