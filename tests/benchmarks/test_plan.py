"""The study of plans: a width that no number of rows gives is a row of the table, and is left out of the figure."""

import pytest

from scripts import load_script


@pytest.fixture(scope="module")
def study():
    return load_script("benchmarks/plan.py")


def planned(wanted, answer, widths):
    plan = {"answer": answer, "floor_width": 0.025}
    sites = {str(answer): [{"width": width, "holds": True} for width in widths]} if answer else {}
    return {"target": "width", "wanted": wanted, "prevalence": 0.1, "plan": plan, "sites": sites}


RECORDS = [planned(0.08, 263, [0.07, 0.09]), planned(0.02, None, [])]


def test_a_width_out_of_reach_is_a_row_that_names_the_narrowest(study):
    rows = study.table(RECORDS).splitlines()[2:4]
    assert rows == [
        "| 0.1 | 0.08 | 263 | 0.0800 (0.0700 to 0.0900) | 100% of 2 |",
        "| 0.1 | 0.02 | no number; 10,000,000 give 0.0250 | | |",
    ]


def test_the_figure_shows_the_widths_in_reach(study):
    (axis,) = study.figure(RECORDS).axes
    drawn = [line.get_ydata() for line in axis.lines if line.get_marker() != "None"]
    assert [list(widths) for widths in drawn] == [[0.07, 0.09]]
