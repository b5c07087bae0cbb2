"""Every table of the results page says what the committed records say."""

import gzip
import importlib.util
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RECORDS = sorted((ROOT / "experiments").glob("*/records/*.jsonl.gz"))
DIAGNOSES = sorted((ROOT / "experiments").glob("*/diagnosis/*.jsonl.gz"))
PAGES = [ROOT / "docs" / "results.md", ROOT / "docs" / "results_images.md"]


@pytest.fixture(scope="module")
def update_results():
    spec = importlib.util.spec_from_file_location("update_results", ROOT / "experiments" / "update_results.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_a_page_has_the_tables_of_the_records(path, update_results):
    page = path.read_text(encoding="utf-8")
    assert update_results.BLOCK.findall(page)
    assert update_results.rewrite(page) == page


def test_a_number_that_no_record_has_is_noticed(update_results):
    page = PAGES[0].read_text(encoding="utf-8")
    block = update_results.BLOCK.search(page)
    wrong = page[: block.start()] + block[0].replace("0.", "1.", 1) + page[block.end() :]
    assert update_results.rewrite(wrong) == page != wrong


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.name)
def test_every_record_says_where_it_comes_from(path):
    lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    assert lines
    for record in map(json.loads, lines):
        assert {"id", "seed", "recipe", "methods", "versions", "commit", "device", "started", "seconds"} <= set(record)
        assert len(record["commit"]) >= 12
        known = {"gpa2024": "mnist", "simulated": None}
        assert record["digits"] == known.get(path.parts[-3], record["data"]["kind"])


@pytest.mark.parametrize("path", DIAGNOSES, ids=lambda path: path.name)
def test_every_diagnosis_says_where_it_comes_from(path):
    lines = [json.loads(line) for line in gzip.decompress(path.read_bytes()).decode().splitlines()]
    assert len({(line["seed"], line["site"]) for line in lines}) == len(lines) > 0
    for line in lines:
        assert {"experiment", "versions", "commit", "device", "diagnosis", "adapted", "as_trained"} <= set(line)
        assert len(line["commit"]) >= 12


def test_the_overview_names_every_stale_file(update_results):
    """A stale record is no failure; one that the page does not name is. `make results` writes the list."""
    page = PAGES[0].read_text(encoding="utf-8")
    shown = re.findall(r"^- `(\S+)`$", update_results.STALE.search(page)[0], re.MULTILINE)
    assert shown == [path.relative_to(ROOT).as_posix() for path in update_results.stale_files()]


def test_a_record_by_other_code_is_noticed(update_results, tmp_path):
    path = tmp_path / "study.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"id": "a", "fingerprint": "x"}\n{"id": "b", "fingerprint": "y"}\n{"id": "c"}\n'))
    assert update_results._made_by_others(path, {"x", "y"}) == {path: "1 lines are of other code"}
    assert update_results._made_by_others(path, {"y"}) == {path: "2 lines are of other code"}
