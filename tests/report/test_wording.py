"""The sentences about a site agree with the numbers that they print."""

import pytest

from sitewise.diagnosis.outcome import UNCHANGED
from sitewise.report import wording

SHARES = {"names": ("0", "1"), "applied_share": 0.26, "slope": 1.0, "failed": None}


def sentence(word, reason, here, trained, rows):
    shares = {"here": here, "as_trained": trained, "rows_alone": rows}
    return wording.outcome_sentence(word, reason, **{k: (1 - v, v) for k, v in shares.items()}, **SHARES)


@pytest.mark.parametrize("reason", ["few rows", "rehearsal"])
def test_a_part_of_the_change_is_of_the_share_only_where_the_rows_change_the_share(reason):
    by_share = sentence("partly adapted", reason, here=0.3, trained=0.2, rows=0.5)
    assert "26% of the change that the rows suggest" in by_share
    assert "the share of “1” is 30.0% here, 20.0% as trained, 50.0% by the rows alone." in by_share
    by_rows = sentence("partly adapted", reason, here=0.490, trained=0.481, rows=0.464)
    assert "26% of the change of the predictions that the rows suggest" in by_rows
    assert "the share of “1” hardly changes: 49.0% here, 48.1% as trained, 46.4% by the rows alone." in by_rows


def test_the_share_changes_from_the_step_at_which_the_outcome_counts_it():
    at = {step: 1 / (1 + 2.718281828459045**-step) for step in (0.99 * UNCHANGED, 1.01 * UNCHANGED)}
    below, above = (sentence("partly adapted", "few rows", 0.5, 0.5, rows) for rows in at.values())
    assert "hardly changes" in below
    assert "hardly changes" not in above


@pytest.mark.parametrize("reason", ["check", "rehearsal"])
def test_rows_that_suggest_the_printed_share_are_no_objection(reason):
    assert "23.0%, although the rows alone suggest 30.0%." in sentence("as trained", reason, 0.23, 0.23, 0.3)
    assert "23.0%, as the rows alone suggest." in sentence("as trained", reason, 0.23, 0.23, 0.2304)


def test_a_rehearsal_says_lowered_or_raised_only_where_the_printed_losses_differ():
    said = [wording.rehearsal_sentence("sites", 0.2061, after, 1, 3) for after in (0.2, 0.21, 0.2063)]
    assert "lowered the log loss from 0.206 to 0.200 (1 of 3 sites better)" in said[0]
    assert "raised the log loss from 0.206 to 0.210" in said[1]
    assert "left the log loss at 0.206" in said[2]


def test_labels_that_were_used_are_said():
    content = {"done": [{"heading": "This site", "entries": [{"name": "rows with a known label", "value": 40}]}]}
    assert wording.known_labels(content) == 40
    assert wording.known_labels({"done": []}) == 0
    assert wording.rows_here(500, 40) == "500 rows, 40 with a label"
    assert wording.rows_here(500, 0) == "500 unlabeled rows"
    assert [wording.by_labels(n) for n in (0, 1, 40)] == [
        "without labels",
        "with 1 known label",
        "with 40 known labels",
    ]
