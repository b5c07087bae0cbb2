"""Tables: what is in a cell, what is bold, what is escaped, and that nothing is lost."""

import io
import re

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from sitewise.bench.report.grids import Cell, Grid, TerminalGrid, escape_latex, escape_markdown, write_latex
from sitewise.bench.report.summary import INFORMED_MARK, choose, left_out, small_is_good
from sitewise.bench.report.tables import (
    comparison_table,
    interval_text,
    methods_table,
    number_text,
    scores_table,
    shown_digits,
)

MEANS = {"ERM": 0.66, "ERM^Z": 0.71, "CoPA": 0.9, "GPA": 0.858, "IRM": "IRM needs two training sites, got 1."}


def printed(table, width=200):
    console = Console(width=width, file=io.StringIO(), color_system=None)
    console.print(table)
    return console.file.getvalue()


def cells(markdown, method):
    line = next(line for line in markdown.splitlines() if line.startswith(f"| {method}"))
    return [cell.strip() for cell in line.strip("|").split(" | ")]


def test_a_cell_has_mean_interval_and_paired_difference(summary):
    table = comparison_table(summary(MEANS, told={"CoPA"}), "positive_f1", "markdown", "GPA")
    assert cells(table, "ERM |")[1] == "0.660 (0.650 to 0.670)<br>-0.198 (-0.208 to -0.188)"
    assert "below each number the method minus GPA, paired by seed" in table
    assert "ean over 20 seeds with its 95% interval" in table


def test_the_reference_has_no_difference_and_the_best_competitor_is_bold_though_an_informed_one_is_better(summary):
    table = comparison_table(summary(MEANS, told={"CoPA"}), "positive_f1", "markdown", "GPA")
    assert cells(table, "GPA")[1] == "**0.858 (0.848 to 0.868)**"
    assert table.count("**") == 4  # the title and one cell
    assert cells(table, "CoPA")[0] == f"CoPA {INFORMED_MARK}"
    assert f"{INFORMED_MARK} sees labels of the test site" in table


def test_without_informed_methods_there_is_no_dagger(summary):
    assert INFORMED_MARK not in comparison_table(summary(MEANS), "positive_f1", "markdown", "GPA")


def test_the_smallest_is_best_where_small_is_good(summary):
    table = comparison_table(summary(MEANS, metric="nll"), "nll", "markdown", "GPA")
    assert cells(table, "ERM |")[1].startswith("**0.660")
    assert "negative log-likelihood" in table
    assert [
        metric for metric in ("nll", "brier", "weight_mse", "prevalence_error", "ece") if not small_is_good(metric)
    ] == []
    assert not small_is_good("macro_f1")


def test_equal_as_shown_is_equally_bold(summary):
    table = comparison_table(summary({"A": 0.8581, "GPA": 0.8584, "B": 0.857}), "positive_f1", "markdown", "GPA")
    assert ["**" in cells(table, method)[1] for method in ("A", "GPA", "B")] == [True, True, False]


def test_skipped_methods_are_listed_below_with_their_reason(summary):
    table = comparison_table(summary(MEANS), "positive_f1", "markdown", "GPA")
    assert "| IRM" not in table
    assert "Left out (IRM needs two training sites, got 1): IRM." in table


def test_several_metrics_are_side_by_side_each_with_its_best(summary):
    frame = pd.concat([summary(MEANS, told={"CoPA"}), summary(MEANS, metric="nll", told={"CoPA"})])
    table = scores_table(frame, ["positive_f1", "nll"], "markdown", "GPA")
    assert [cell.rpartition("<br>")[2] for cell in cells(table, "method")[1:]] == [
        "positive-class F1",
        "negative log-likelihood",
    ]
    assert ["**" in cell for cell in cells(table, "GPA")] == [False, True, False]
    assert ["**" in cell for cell in cells(table, "ERM |")] == [False, False, True]
    assert table.count("Left out (IRM") == 1


def test_methods_left_out_for_one_reason_share_a_line(summary):
    table = comparison_table(summary({"GPA": 0.8, "A": "not run yet", "B": "not run yet"}), "positive_f1", "markdown")
    assert "Left out (not run yet): A; B." in table


def test_a_method_skipped_at_one_site_keeps_its_row_and_says_where(summary):
    frame = summary(MEANS, sites=("site A", "site B"))
    at_b = (frame["method"] == "ERM") & (frame["site"] == "site B")
    frame.loc[at_b, ["mean", "low", "high", "difference", "difference_low", "difference_high"]] = np.nan
    frame.loc[at_b, "skipped"] = "no z there"
    table = comparison_table(frame, "positive_f1", "markdown", "GPA")
    assert cells(table, "ERM |")[2] == "-"
    assert left_out(frame)["ERM"] == "no z there at site B, 1,000"


def test_a_method_without_the_metric_is_named(summary):
    frame = summary(MEANS, metric="prevalence_error")
    frame.loc[frame["method"] == "ERM", "mean"] = np.nan
    assert "Without a prevalence error: ERM." in comparison_table(frame, "prevalence_error", "markdown", "GPA")


def test_rows_keep_the_frames_order_and_columns_are_sites_by_draws(summary):
    frame = summary(MEANS, sites=("site A", "site B"), draws=("30,000", "1,000"))
    lines = comparison_table(frame, "positive_f1", "markdown", "GPA").splitlines()
    assert lines[2] == ("| method | site A<br>30,000 | site A<br>1,000 | site B<br>30,000 | site B<br>1,000 |")
    assert [line.split(" | ")[0] for line in lines[4:8]] == ["| ERM", "| ERM^Z", "| CoPA", "| GPA"]


def test_one_seed_has_no_intervals_anywhere(summary):
    table = comparison_table(summary(MEANS, seeds=1), "positive_f1", "markdown", "GPA")
    assert cells(table, "ERM |")[1] == "0.660<br>-0.198"
    assert "nan" not in table
    assert "One seed, hence no intervals" in table


def test_csv_has_every_column_unrounded(summary):
    frame = summary({"ERM": 2 / 3, "GPA": 0.858}, metric="nll")
    back = pd.read_csv(io.StringIO(comparison_table(frame, "nll", "csv", "GPA")), keep_default_na=True)
    assert list(back.columns) == list(frame.columns)
    assert back["mean"].tolist() == pytest.approx(frame["mean"].tolist(), abs=0, rel=1e-15)


def test_latex_is_booktabs_with_spanning_sites_and_every_row_as_wide(summary):
    frame = summary(MEANS, told={"CoPA"}, sites=("β = 0.3", "50% & more"), draws=("30,000", "1,000"))
    table = comparison_table(frame, "positive_f1", "latex", "GPA")
    assert r"\multicolumn{2}{l}{$\beta$ = 0.3} & \multicolumn{2}{l}{50\% \& more} \\" in table
    assert r"\cmidrule(lr){2-3} \cmidrule(lr){4-5}" in table
    assert r"\textbf{0.858 (0.848 to 0.868)}" in table
    assert r"{\footnotesize $-$0.198 ($-$0.208 to $-$0.188)}" in table
    assert r"CoPA \textdagger{}" in table
    assert r"ERM\textsuperscript{Z}" in table
    assert [table.count(rf"\{rule}rule") for rule in ("top", "mid", "bottom")] == [1, 1, 1]
    body = table.split(r"\midrule")[1].split(r"\bottomrule")[0]
    assert {len(re.findall(r"(?<!\\)&", line)) for line in body.splitlines() if "&" in line} == {4}
    assert table.count("{") == table.count("}")


@pytest.mark.parametrize(
    ("text", "latex"),
    [
        ("positive_f1", r"positive\_f1"),
        ("ERM^Z + EM", r"ERM\textsuperscript{Z} + EM"),
        ("x^ y", r"x\textasciicircum{} y"),
        ("β = 0.3, 50% & #1 {a} $2", r"$\beta$ = 0.3, 50\% \& \#1 \{a\} \$2"),
        ("a\\b ~ P(y|z) < 1", r"a\textbackslash{}b \textasciitilde{} P(y\textbar{}z) \textless{} 1"),
        ("-0.1 to 0.2, label-shift, 5-20", r"$-$0.1 to 0.2, label-shift, 5-20"),
    ],
)
def test_latex_signs_are_written_as_themselves(text, latex):
    assert escape_latex(text) == latex


def test_markdown_signs_are_written_as_themselves():
    assert escape_markdown("GPA* | P_b(Y) <x> `a`") == r"GPA\* \| P\_b(Y) \<x> \`a\`"


def test_a_bibliography_key_is_cited():
    assert r"\cite{a_b} \\" in write_latex(Grid("t", (("paper",),), ((Cell("a_b", cite=True),),)))


@pytest.mark.parametrize("width", [30, 80, 200])
def test_the_terminal_shows_every_number_however_narrow(summary, width):
    frame = summary(MEANS, told={"CoPA"}, sites=("site A", "site B"), draws=("30,000", "1,000", "adapted on 1,000"))
    text = printed(comparison_table(frame, "positive_f1", "terminal", "GPA"), width)
    assert max(map(len, text.splitlines())) <= width
    flat = " ".join(re.sub(r"[│┃]", " ", text).split())
    assert flat.count("0.660") == flat.count("-0.198") == 6
    assert "adapted on 1,000" in flat or width == 30


def test_brackets_in_a_name_are_no_markup():
    assert "[red]x[/red]" in printed(TerminalGrid(Grid("t", (("m",),), ((Cell("[red]x[/red]"),),))))


def test_numbers_are_rounded_and_zero_has_no_sign():
    assert number_text(-0.0001, 3) == number_text(0.0001, 3, signed=True) == "0.000"
    assert interval_text(0.1, -0.05, 0.25, 2, signed=True) == "+0.10 (-0.05 to +0.25)"
    assert interval_text(np.nan, np.nan, np.nan, 3) == ""
    assert shown_digits(pd.Series([0.8, 0.9, np.nan])) == 3
    assert shown_digits(pd.Series([0.002, 0.004])) == 5
    assert shown_digits(pd.Series([0.0, 1e-12])) == 6
    assert shown_digits(pd.Series([np.nan])) == 3


def test_unknown_names_propose_what_was_meant_all_at_once(summary):
    frame = summary(MEANS, sites=("paper's site", "flipped site"))
    with pytest.raises(ValueError, match="did you mean 'positive_f1'") as error:
        choose(frame, "positve_f1", sites=["Paper's site"], draws=["10,000", "zzz"])
    assert 'did you mean "paper\'s site"' in str(error.value)
    assert "did you mean '1,000'" in str(error.value)
    assert "no draw 'zzz'; there are: 1,000" in str(error.value)
    with pytest.raises(ValueError, match="missing: mean"):
        choose(frame.drop(columns="mean"), "positive_f1")


CARD = {
    "name": "GPA*",
    "cite": "nguyen2024adapting",
    "input": "X",
    "single_site": True,
    "several_sites": False,
    "continuous_z": None,
    "high_dimensional_z": True,
    "z_at_test": "no",
    "labels_at_test": "P(Y)",
    "unlabeled_in_training": False,
    "estimates_g": "indirectly, EM",
    "without_z": "input knockout",
    "given": "",
    "note": "a note",
}


def test_the_methods_table_has_every_field_of_every_card():
    table = methods_table({"gpa_star": CARD, "other": CARD | {"name": "B"}}, "markdown")
    assert cells(table, r"gpa\_star") == [
        *(r"gpa\_star", r"GPA\*", "yes", "no", "n/a", "yes", "no", "P(Y)", "", "no", "X", "input knockout"),
        *("indirectly, EM", "`nguyen2024adapting`"),
    ]
    assert r"GPA\*: a note." in table
    back = pd.read_csv(io.StringIO(methods_table({"gpa_star": CARD}, "csv")), keep_default_na=False)
    assert {key: back[key][0] for key in CARD} == {
        key: "n/a" if value is None else value for key, value in CARD.items()
    }
    assert r"\cite{nguyen2024adapting}" in methods_table({"gpa_star": CARD}, "latex")
    assert "input knockout" in printed(methods_table({"gpa_star": CARD}, "terminal"))
