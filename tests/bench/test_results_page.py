"""Every table of the results page says what the committed records say."""

import gzip
import json
import re
import sys
from pathlib import Path

import pytest

from scripts import load_script

ROOT = Path(__file__).parents[2]
RECORDS = sorted((ROOT / "experiments").glob("*/records/*.jsonl.gz"))
DIAGNOSES = sorted((ROOT / "experiments").glob("*/diagnosis/*.jsonl.gz"))
OVERVIEW = ROOT / "docs" / "results.md"
OTHERS = [ROOT / "docs" / f"{name}.md" for name in ("demo", "known_labels", "guides/heart", "guides/gusto")]
PAGES = [OVERVIEW, *OTHERS, *sorted((ROOT / "docs" / "results").glob("*.md"))]
BY_HAND = {"choices.md"}  # arranged by hand from the output of the scripts that it names
SETTINGS = {"demo.md", "known_labels.md"}  # have a table of settings


@pytest.fixture(scope="module")
def update_results():
    return load_script("experiments/update_results.py")


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_a_page_has_the_tables_of_the_records(path, update_results):
    page = path.read_text(encoding="utf-8")
    assert bool(update_results.BLOCK.findall(page)) != (path.name in BY_HAND)
    assert update_results.rewrite(page) == page


@pytest.mark.parametrize("path", [p for p in PAGES if p.name not in BY_HAND | SETTINGS], ids=lambda path: path.name)
def test_no_table_of_numbers_is_written_by_hand(path, update_results):
    rest = re.sub(r"\]\([^)]*\)", "]", update_results.BLOCK.sub("", path.read_text(encoding="utf-8")))
    assert not [line for line in rest.splitlines() if line.startswith("|") and re.search(r"\d", line)]


def test_every_experiment_with_records_has_a_page(update_results):
    names = {path.name.removesuffix(".jsonl.gz") for path in RECORDS}
    assert names <= {path.stem for path in PAGES}


def test_a_number_that_no_record_has_is_noticed(update_results):
    page = (ROOT / "docs" / "results" / "cmnist_short.md").read_text(encoding="utf-8")
    block = next(block for block in update_results.BLOCK.finditer(page) if block[2] == "scores")
    wrong = page[: block.start()] + block[0].replace("0.", "1.", 1) + page[block.end() :]
    assert update_results.rewrite(wrong) == page != wrong


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.name)
def test_every_record_says_where_it_comes_from(path):
    lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    assert lines
    for record in map(json.loads, lines):
        assert {"id", "seed", "recipe", "methods", "versions", "commit", "device", "started", "seconds"} <= set(record)
        assert len(record["commit"]) >= 7
        known = {"gpa2024": "mnist", "simulated": None}
        assert record["digits"] == known.get(path.parts[-3], record["data"]["kind"])


@pytest.mark.parametrize("path", DIAGNOSES, ids=lambda path: path.name)
def test_every_diagnosis_says_where_it_comes_from(path):
    lines = [json.loads(line) for line in gzip.decompress(path.read_bytes()).decode().splitlines()]
    assert len({(line["seed"], line["site"]) for line in lines}) == len(lines) > 0
    for line in lines:
        assert {"experiment", "versions", "commit", "device", "diagnosis", "adapted", "as_trained"} <= set(line)
        assert len(line["commit"]) >= 7


def test_the_overview_names_every_stale_file(update_results):
    """A stale record is no failure; one that the page does not name is. `make results` writes the list."""
    block = next(b for b in update_results.BLOCK.finditer(OVERVIEW.read_text(encoding="utf-8")) if b[2] == "stale")
    shown = re.findall(r"^- `(\S+)`$", block[0], re.MULTILINE)
    assert shown == [path.relative_to(ROOT).as_posix() for path in update_results.stale_files()]


def test_a_record_by_other_code_is_noticed(update_results, tmp_path):
    path = tmp_path / "study.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"id": "a", "fingerprint": "x"}\n{"id": "b", "fingerprint": "y"}\n{"id": "c"}\n'))
    assert update_results.made_by_others(path, {"x", "y"}) == {path: "1 lines are of other code"}
    assert update_results.made_by_others(path, {"y"}) == {path: "2 lines are of other code"}


def lead(other, mean, half=0.01):
    return sys.modules["claims"].Lead(other, mean, mean - half, mean + half)


@pytest.mark.parametrize(
    ("kind", "leads", "verdict"),
    [
        ("above", [("A", 0.05), ("B", 0.02)], "**yes**: closest B +0.020 (+0.010 to +0.030)"),
        (
            "above",
            [("A", 0.05), ("B", 0.005)],
            "**not decided** against B +0.005 (-0.005 to +0.015); ahead of 1 others",
        ),
        ("above", [("A", 0.05), ("B", -0.02)], "**no**: behind B -0.020 (-0.030 to -0.010)"),
        ("level", [("A", 0.05), ("B", -0.005)], "**yes**: none is significantly better; closest B -0.005"),
        ("level", [("A", -0.05)], "**no**: behind A"),
        ("below", [("A", -0.02)], "**yes**: A -0.020"),
        ("below", [("A", 0.02)], "**no**: A +0.020"),
        ("below", [("A", 0.0)], "**not decided**: A"),
        ("falls", [("A", -0.015)], "**yes**: -0.015"),
        ("falls", [("A", -0.005)], "**not decided**: -0.005"),
        ("falls", [("A", -0.05)], "**no**: -0.050"),
        ("above", [], "not run yet"),
    ],
)
def test_a_verdict_follows_from_paired_intervals(update_results, kind, leads, verdict):
    assert sys.modules["claims"].judge(kind, [lead(*part) for part in leads]).startswith(verdict)


def test_claims_name_sites_and_draws_that_are_there(update_results):
    for claim in sys.modules["claims"].CLAIMS:
        experiment = update_results.read_experiment(update_results.find_experiment(claim.experiment))
        assert claim.site in {site.name for site in experiment.tests}
        assert set(claim.draws) <= {draw.name for draw in experiment.draws}
        assert set(claim.others or ()) - {"IRM", "ERM^c"} <= {entry.label for entry in experiment.methods}
