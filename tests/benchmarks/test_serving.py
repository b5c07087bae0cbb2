"""The page on performance shows the committed record of serving."""

import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "serving.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("serving_benchmark", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SCRIPT.parent)  # its own modules stand beside it
        spec.loader.exec_module(module)
    return module


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
