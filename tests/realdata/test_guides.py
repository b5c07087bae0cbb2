"""The guides on real tables, heart.md and gusto.md: every block runs, and prints what the guide says."""

import io
import re
import shlex
from contextlib import redirect_stdout
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from sitewise.bench.datasets import real_tables as rt
from sitewise.cli import app

GUIDES = Path(__file__).parents[2] / "docs" / "guides"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
NUMBER = r"-?\d+(?:\.\d+)?(?:e-\d+)?"
FOLDERS = {"heart": "heart_disease", "gusto": "gusto"}


def run_commands(text):
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words:
            assert words[0] == "sitewise"
            result = CliRunner().invoke(app, words[1:])
            assert result.exit_code == 0, f"{line}\n{result.output}"


def assert_printed(found, expected):
    """To the letter but for the numbers, which may differ as another processor's arithmetic makes them."""
    assert re.sub(NUMBER, "#", found).split() == re.sub(NUMBER, "#", expected).split(), found
    numbers = [[float(number) for number in re.findall(NUMBER, text)] for text in (found, expected)]
    assert numbers[0] == pytest.approx(numbers[1], abs=0.03, rel=0.1), found


@pytest.mark.parametrize("guide", FOLDERS)
def test_a_guide_runs_and_prints_what_it_says(guide, real_data, tmp_path, monkeypatch):
    monkeypatch.setenv("SITEWISE_DATA", str(real_data(FOLDERS[guide]).parent))
    monkeypatch.chdir(tmp_path)
    namespace, printed, compared = {"__name__": guide}, "", 0
    for language, text in BLOCK.findall((GUIDES / f"{guide}.md").read_text()):
        if language == "python":
            with redirect_stdout(io.StringIO()) as out:
                exec(compile(text, f"{guide}.md", "exec"), namespace)
            printed = out.getvalue()
        elif language == "text":
            assert_printed(printed, text)
            compared += 1
        else:
            run_commands(text)
    assert compared >= 3
    assert (tmp_path / "report.html").stat().st_size > 10_000


@pytest.fixture(scope="module")
def heart(real_data):
    return rt.load_heart(real_data("heart_disease"))


@pytest.fixture(scope="module")
def gusto(real_data):
    return rt.load_gusto(real_data("gusto"))


def test_heart_is_what_others_made_of_the_same_files(heart, real_data):
    joined = pd.read_csv(real_data("heart_disease") / "heart.csv")
    assert heart.table["site"].tolist() == joined["site"].tolist()
    assert heart.table["y"].tolist() == joined["y"].tolist()
    for name in ("age", "cp", "thalach", "oldpeak", "thal"):
        pd.testing.assert_series_equal(heart.table[name], joined[name], check_dtype=False)
    assert (heart.table["sex"] == "male").tolist() == (joined["sex"] == 1).tolist()
    assert heart.table["chol"].isna().sum() == (joined["chol"].isna() | (joined["chol"] == 0)).sum()


def test_features_of_heart_are_measured_at_every_hospital(heart):
    measured = [name for name in rt.MEASURED if name not in heart.confounders]
    missing = heart.table[measured].isna().groupby(heart.table["site"]).mean().max()
    assert tuple(missing.index[missing <= 0.5]) == heart.features


def test_gusto_has_its_regions(gusto):
    sites = gusto.site_table()
    assert sites.index.tolist() == [str(number) for number in range(1, 17)]
    assert sites["samples"].sum() == 40_830
    assert sites["prevalence"].min().round(3) == 0.053
    assert sites["prevalence"].max().round(3) == 0.084
    assert not gusto.table.isna().any(axis=None)


@pytest.mark.parametrize("name", FOLDERS)
def test_a_split_shares_no_row_and_loses_none(name, request):
    data = request.getfixturevalue(name)
    source, new = data.split(data.sites[0])
    assert len(source) + len(new) == len(data.table)
    assert data.sites[0] not in set(source["site"])
    assert set(new["site"]) == {data.sites[0]}


@pytest.mark.parametrize("name", FOLDERS)
def test_data_check_knows_them(name, real_data):
    result = CliRunner().invoke(app, ["data", "check", name, str(real_data(FOLDERS[name]))], catch_exceptions=False)
    assert result.exit_code == 0
    site, share = {"heart": ("switzerland", "0.9350"), "gusto": ("13", "0.0527")}[name]
    assert any(line.split()[:1] == [site] and share in line for line in result.output.splitlines())
