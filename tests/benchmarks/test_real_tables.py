"""The study of real tables: its tables on records written by hand, and the guides' tables on the committed ones."""

from pathlib import Path

import pytest

from scripts import load_script

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "real_tables.py"


@pytest.fixture(scope="module")
def study():
    return load_script("benchmarks/real_tables.py")


def record(study, site, prevalence, nll, interval):
    metrics = {name: [0.5, 0.4, 0.6] for name in ("brier", "auroc", "ece", "positive_f1")}
    arms = {arm: {"metrics": metrics | {"nll": [nll, nll, nll]}, "nll_gain": [0.0, 0.1]} for arm in study.ARMS}
    arms["gpa"] |= {"prevalence": interval, "verdict": "care", "marked": {"stability": "care"}}
    arms["label_shift"] |= {"prevalence": [0.2, 0.1, 0.3], "verdict": "adapt", "marked": {}}
    settings = {"data": "heart", "classifier": "forest", "seed": 0, "at_most": None, "n": 100}
    return {"id": site, "site": site, "prevalence": prevalence, "arms": arms, **settings}


def test_tables_are_means_and_intervals_hold_what_they_hold(study):
    records = [record(study, "a", 0.3, 0.4, [0.35, 0.2, 0.5]), record(study, "b", 0.6, 0.8, [0.4, 0.3, 0.5])]
    table = study.frame(records)
    assert study.short_table(table, "heart")[2] == "| forest | 2 |" + " 0.600 |" * len(study.ARMS)
    assert "| forest | GPA | 0.600 | 0.500 | 0.500 | 0.500 | 0.500 | 0.125 | 1 of 2 |" in study.means_table(
        table, "heart"
    )
    row = study.sites_table(table, "heart", "forest")[2]
    assert row.startswith("| a | 100 | 0.300 | 0.200 (0.100 to 0.300) | 0.350 (0.200 to 0.500) | 0.400 |")
    assert row.endswith("| care (stability) |")


def test_the_guides_show_the_committed_records(study):
    records = study.read_records(SCRIPT.with_suffix(".jsonl"))
    assert {record["data"] for record in records} == {"heart", "gusto"}
    table = study.frame(records)
    for name in study.LOADERS:
        guide = (ROOT / "docs" / "guides" / f"{name}.md").read_text()
        assert "\n".join(study.short_table(table, name)) in guide
    assert (
        "\n".join(study.sites_table(table, "heart", "logistic regression"))
        in (ROOT / "docs/guides/heart.md").read_text()
    )
