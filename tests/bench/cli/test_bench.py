"""The command line: what it prints and writes, and how it says what is wrong. The runs themselves are made up."""

import csv
import io
import re
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
from typer.testing import CliRunner

import sitewise.bench.experiments
from sitewise.bench.cli.bench import Curve, read_curve
from sitewise.bench.experiments.runner import RunError
from sitewise.bench.methods import METHODS
from sitewise.cli import app, main

YAML = """
title: A small experiment
data: {kind: simulated}
seeds: 3
training: {"site 1": {n: 100}, "site 2": {n: 100}}
validation: {n: 50}
tests: {"paper's site": {prevalence: [0.8, 0.2]}, "flipped site": {prevalence: [0.3, 0.7]}}
draws: {"500": {score: 500}, "adapted on 50": {score: 500, adapt: 50}}
methods: {ERM: erm, GPA: gpa, CoPA: copa}
reference: GPA
metric: positive_f1
quick: {seeds: 2}
"""


@pytest.fixture
def experiment(tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text(YAML, encoding="utf-8")
    return path


@pytest.fixture
def records(monkeypatch):
    """Records in memory instead of files; a list to fill and the arguments that `run_experiment` was called with."""
    made, calls = [], []

    def run(plan, out, **options):
        calls.append((plan, out, options))
        made.append({"id": "a run"})
        return made

    def summarize(plan, found):
        import pandas as pd

        from sitewise.bench.report.summary import COLUMNS

        assert found is made
        rows = [
            (entry.label, site.name, draw.name, metric, plan.seeds, value, value - 0.01, value + 0.01)
            + ((float("nan"),) * 3 if entry.label == plan.reference else (value - 0.8, value - 0.81, value - 0.79))
            + (entry.label == "CoPA", "")
            for entry, value in zip(plan.methods, (0.6, 0.8, 0.9), strict=True)
            for site in plan.tests
            for draw in plan.draws
            for metric in ("positive_f1", "nll")
        ]
        return pd.DataFrame(rows, columns=list(COLUMNS))

    monkeypatch.setattr(sitewise.bench.experiments, "run_experiment", run)
    monkeypatch.setattr("sitewise.bench.experiments.records.read_records", lambda path: made)
    monkeypatch.setattr(sitewise.bench.experiments, "summarize", summarize)
    return made, calls


def sitewise_says(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def refused(monkeypatch, capsys, *arguments):
    """What `sitewise` writes to stderr when it ends with exit code 2."""
    monkeypatch.setattr(sys, "argv", ["sitewise", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    return said.err


def test_methods_lists_the_whole_registry_in_every_format():
    rows = list(csv.DictReader(io.StringIO(sitewise_says("methods", "--format", "csv"))))
    assert [row["method"] for row in rows] == list(METHODS)
    assert {row["several_sites"] for row in rows} <= {"True", "False"}
    markdown = sitewise_says("methods", "--format", "markdown").splitlines()
    assert sum(line.startswith("| ") for line in markdown) == len(METHODS) + 1
    latex = sitewise_says("methods", "--format", "latex")
    assert latex.count(r"\cite{") == len(METHODS)
    assert all(key in sitewise_says("methods") for key in METHODS)


def test_every_paper_a_card_names_is_in_the_bibliography_once():
    text = (Path(__file__).parents[3] / "docs" / "references.bib").read_text(encoding="utf-8")
    keys = re.findall(r"^@\w+\{(\w+),", text, flags=re.MULTILINE)
    assert len(keys) == len(set(keys))
    assert {method.card.cite for method in METHODS.values()} <= set(keys)
    assert text.count("{") == text.count("}")


def test_run_hands_its_options_on_then_prints_the_table_and_writes_the_figure(experiment, records, tmp_path):
    out = tmp_path / "results"
    said = sitewise_says(
        *("bench", "run", experiment, "--out", out, "--quick", "--jobs", 2, "--device", "cpu", "--data-dir", tmp_path),
        *("--devices", 2, "--nodes", 3, "--strategy", "ddp"),
    )
    ((plan, folder, options),) = records[1]
    assert (plan.seeds, plan.quick, folder) == (2, True, out)
    spread = {"devices": 2, "nodes": 3, "strategy": "ddp"}
    assert options == {"jobs": 2, "device": "cpu", "data_dir": tmp_path} | spread
    assert "positive-class F1" in said
    assert "0.600 (0.590 to 0.610)" in said
    assert f"wrote {out / 'small.quick.jsonl'}" in said
    assert f"wrote {out / 'small.quick.png'}" in said
    assert (out / "small.quick.png").stat().st_size > 5000


def test_seeds_replace_the_experiments(experiment, records, tmp_path):
    sitewise_says("bench", "run", experiment, "--out", tmp_path, "--seeds", 1)
    assert records[1][0][0].seeds == 1


def test_fewer_seeds_than_tuning_takes_are_refused(experiment, records, tmp_path, monkeypatch, capsys):
    grid = YAML.replace("ERM: erm", "ERM: {method: erm, grid: {epochs: [1, 2]}}")
    experiment.write_text(grid + "tuning: {metric: nll, seeds: 3}\n", encoding="utf-8")
    said = refused(monkeypatch, capsys, "bench", "run", experiment, "--out", tmp_path, "--seeds", 2)
    assert "--seeds must not be fewer, got 2" in said


def test_failed_runs_are_named_and_end_with_1(experiment, records, tmp_path, monkeypatch):
    def fail(plan, out, **options):
        raise RunError("1 run(s) of small failed, the others are there:\n  - ERM, seed 0: OSError: disk full")

    monkeypatch.setattr(sitewise.bench.experiments, "run_experiment", fail)
    result = CliRunner().invoke(app, ["bench", "run", str(experiment), "--out", str(tmp_path)])
    assert result.exit_code == 1
    assert "disk full" in result.stderr


def test_table_takes_a_metric_sites_draws_and_a_format(experiment, records, tmp_path):
    records[0].append({"id": "a run"})
    table = ("bench", "table", experiment, "--out", tmp_path)
    markdown = sitewise_says(*table, "--format", "markdown")
    assert "| method | paper's site<br>500 | paper's site<br>adapted on 50 | flipped site<br>500 |" in markdown
    assert "| GPA | **0.800 (0.790 to 0.810)**" in markdown
    some = sitewise_says(*table, "--format", "csv", "--metric", "nll", "--site", "flipped site", "--draw", "500")
    rows = list(csv.DictReader(io.StringIO(some)))
    assert [(row["method"], row["metric"], row["site"], row["draw"]) for row in rows] == [
        (method, "nll", "flipped site", "500") for method in ("ERM", "GPA", "CoPA")
    ]
    assert r"\toprule" in sitewise_says(*table, "--format", "latex")
    assert "CoPA †" in sitewise_says(*table)


def test_figure_is_named_after_experiment_and_metric(experiment, records, tmp_path):
    records[0].append({"id": "a run"})
    out = tmp_path / "results"
    assert f"wrote {out / 'small.png'}" in sitewise_says("bench", "figure", experiment, "--out", out)
    said = sitewise_says("bench", "figure", experiment, "--out", out, "--metric", "nll", "--format", "pdf")
    assert f"wrote {out / 'small.nll.pdf'}" in said
    assert (out / "small.nll.pdf").read_bytes().startswith(b"%PDF")


def test_a_curve_is_drawn_where_the_experiment_asks_for_one(experiment, records, tmp_path, monkeypatch):
    read, drawn = sitewise.bench.experiments.read_experiment, []

    def with_curve(path, **options):
        plan = read(path, **options)
        object.__setattr__(plan, "figure", {"kind": "curve", "over": "draws", "log": True})
        return plan

    def save(figure, path):
        drawn.append([axis.get_xlabel() for axis in figure.axes])
        plt.close(figure)
        return path

    records[0].append({"id": "a run"})
    monkeypatch.setattr(sitewise.bench.experiments, "read_experiment", with_curve)
    monkeypatch.setattr("sitewise.bench.report.comparison.save_figure", save)
    sitewise_says("bench", "figure", experiment, "--out", tmp_path)
    assert drawn == [["unlabeled samples"] * 2]


def test_typos_propose_what_was_meant(experiment, records, tmp_path, monkeypatch, capsys):
    records[0].append({"id": "a run"})
    table = ("bench", "table", experiment, "--out", tmp_path)
    said = refused(monkeypatch, capsys, *table, "--metric", "positive_f2", "--site", "fliped site", "--draw", "50")
    assert "did you mean 'positive_f1'?" in said
    assert "did you mean 'flipped site'?" in said
    assert "no draw '50'; did you mean '500'?" in said
    said = refused(monkeypatch, capsys, "bench", "figure", experiment, "--out", tmp_path, "--metric", "nlll")
    assert "did you mean 'nll'?" in said
    said = refused(monkeypatch, capsys, "bench", "run", experiment.with_name("smal.yaml"), "--out", tmp_path)
    assert "did you mean 'small.yaml'?" in said


def test_without_records_the_command_that_makes_them_is_named(experiment, records, tmp_path, monkeypatch, capsys):
    said = refused(monkeypatch, capsys, "bench", "table", experiment, "--out", tmp_path / "none", "--quick")
    assert f"make them with: sitewise bench run {experiment} --out {tmp_path / 'none'} --quick" in said


def test_a_faulty_experiment_is_refused_with_its_file(experiment, tmp_path, monkeypatch, capsys):
    experiment.write_text(YAML.replace("metric: positive_f1", "metric: positve_f1"), encoding="utf-8")
    said = refused(monkeypatch, capsys, "bench", "run", experiment, "--out", tmp_path / "out")
    assert str(experiment) in said
    assert "positive_f1" in said
    assert not (tmp_path / "out").exists()


def test_brackets_in_an_error_are_printed(monkeypatch, capsys):
    def broken():
        raise ValueError("got [red] and ['a']")

    monkeypatch.setattr("sitewise.cli.app", broken)
    assert refused(monkeypatch, capsys) == "sitewise: got [red] and ['a']\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ("bench", "runn"),
        ("bench", "run"),
        ("bench", "run", "x.yaml", "--jobs", "0"),
        ("bench", "table", "x.yaml", "--format", "html"),
        ("bench", "figure", "x.yaml", "--format", "svg"),
        ("methods", "--format", "pdf"),
    ],
)
def test_wrong_usage_ends_with_2(arguments):
    assert CliRunner().invoke(app, list(arguments)).exit_code == 2


DRAWS = {"500": {"score": 500}, "adapted on 50": {"score": 500, "adapt": 50}}
TESTS = {"β = 0.1": {"beta": 0.1}, "β = 0.3": {"beta": 0.3}, "flipped": {"joint": "flipped"}}


def test_points_are_drawn_unless_a_curve_is_asked_for():
    assert read_curve({}, DRAWS, TESTS) is None
    assert read_curve({"kind": "points"}, DRAWS, TESTS) is None


def test_a_draws_number_is_what_is_adapted_on_and_a_sites_is_the_option_named():
    curve = read_curve({"kind": "curve", "over": "draws", "label": "rows", "log": True}, DRAWS, TESTS)
    assert curve == Curve("draw", {"500": 500.0, "adapted on 50": 50.0}, "rows", True)
    curve = read_curve({"kind": "curve", "over": "tests", "key": "beta"}, DRAWS, TESTS)
    assert curve == Curve("site", {"β = 0.1": 0.1, "β = 0.3": 0.3}, "beta", False)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"kind": "curv"}, "did you mean 'curve'"),
        ({"kind": "curve", "over": "test"}, "did you mean 'tests'"),
        ({"kind": "curve", "lable": "x"}, "did you mean 'label'"),
        ({"kind": "curve", "over": "tests", "key": "betta"}, "did you mean 'beta'"),
        ({"kind": "curve", "over": "tests", "key": "joint"}, "is a number"),
    ],
)
def test_what_is_wrong_with_a_figure_is_named(spec, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        read_curve(spec, DRAWS, TESTS)
