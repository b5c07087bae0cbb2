"""The demo at its smallest, and the command line around it."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from sitewise.bench.demo import (
    BRISK,
    NEW,
    RARE_SITE,
    REVERSED_SITE,
    TRAINING,
    DemoSize,
    draw_data,
    run_demo,
    write_demo,
)
from sitewise.cli import app

ROOT = Path(__file__).parents[2]
TINY = DemoSize(n_train=100, n_test=100, noise=0, recipe=replace(BRISK, epochs=8), n_resamples=20)
METHODS = ["ERM", "ERM^Z", "ERM + label-shift EM", "GPA, constant g", "GPA", "GPA without z", "GPA, true g"]


@pytest.fixture(scope="module")
def found():
    return run_demo(size=TINY, n_jobs=1)


@pytest.fixture(scope="module")
def record(found):
    return found.record


def test_the_record_has_every_method_at_both_sites_and_is_json(record):
    assert json.loads(json.dumps(record, allow_nan=False))["sites"] == record["sites"]
    assert list(record["sites"]) == [RARE_SITE, REVERSED_SITE]
    for name, site in record["sites"].items():
        assert list(site["methods"]) == METHODS
        for scored in site["methods"].values():
            assert 0 <= scored["macro_f1"]["value"] <= 1
            assert scored["nll"]["low"] <= scored["nll"]["value"] + 0.2
        for method in METHODS[2:6]:
            found = site["methods"][method]["prevalence"]
            assert 0 <= found["low"] <= found["value"] <= found["high"] <= 1
        assert site["true_prevalence"] == pytest.approx(np.mean(NEW[name]))
    assert [site["site"] for site in record["rehearsal"]["sites"]] == sorted(TRAINING)


def test_files_are_written_with_the_same_numbers(found, tmp_path):
    paths = write_demo(found, tmp_path / "deep" / "demo")
    figures = ["prevalence.png", "f1.png", "reliability.png"]
    assert [path.name for path in paths] == ["demo.json", *figures, "report.html", "report_reversed.html"]
    assert json.loads(paths[0].read_text()) == json.loads(json.dumps(found.record))
    written = json.loads(paths[-1].with_suffix(".json").read_text())
    assert found.adapted[REVERSED_SITE].diagnose().verdict == written["diagnosis"]["verdict"]
    assert all(path.stat().st_size > 5000 for path in paths[1:])


def test_digits_of_a_site_are_distinct_and_none_is_at_two_training_sites_or_in_training_and_test():
    data = draw_data(DemoSize(), seed=3)
    training = np.concatenate([site.groups for site in data.training.values()])
    assert len(np.unique(training)) == len(training) == 4 * DemoSize().n_train
    for site in data.new.values():
        assert len(np.unique(site.groups)) == len(site) == DemoSize().n_test
        assert not np.isin(site.groups, training).any()


def test_sites_have_the_shares_that_the_demo_states():
    """Means over seeds of the share of y = 1 on each paper, within four standard errors."""
    drawn = [draw_data(DemoSize(), seed) for seed in range(20)]
    for sites, stated in (([d.training for d in drawn], TRAINING), ([d.new for d in drawn], NEW)):
        for name, shares in stated.items():
            for level, share in zip(("green", "red"), shares, strict=True):
                y = np.concatenate([s[name].y[(s[name].Z["paper"] == level).to_numpy()] for s in sites])
                assert abs(y.mean() - share) < 4 * np.sqrt(share * (1 - share) / len(y))


def test_the_blue_channel_shows_the_digit_alone_and_the_others_the_paper():
    site = draw_data(replace(DemoSize(), noise=0), seed=0).new[RARE_SITE]
    red = (site.Z["paper"] == "red").to_numpy()
    background = site.X[:, 2] == 0
    assert (site.X[red, 0][background[red]] == 128).all()
    assert (site.X[~red, 1][background[~red]] == 128).all()
    assert (site.X[red, 1] == site.X[red, 2]).all()
    assert (site.X[~red, 0] == site.X[~red, 2]).all()


def test_the_same_seed_gives_the_same_numbers(record):
    again = run_demo(size=TINY, n_jobs=1).record
    assert again["sites"][RARE_SITE]["methods"]["GPA"] == record["sites"][RARE_SITE]["methods"]["GPA"]
    assert np.isfinite(again["sites"][RARE_SITE]["methods"]["GPA"]["nll"]["value"])


def test_it_needs_no_extra_package():
    code = "import sys; sys.modules['mlxtend'] = None; from sitewise.bench.demo import *; draw_data(DemoSize(), 0)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    "arguments", [["demo", "--quik"], ["demmo"], ["demo", "--seed", "x"], ["demo", "--seed", "-1"]]
)
def test_typos_end_with_exit_code_2(arguments):
    assert CliRunner().invoke(app, arguments).exit_code == 2


def test_help_and_version():
    assert "demo" in CliRunner().invoke(app, ["--help"]).output
    assert CliRunner().invoke(app, ["--version"]).output.startswith("sitewise 0.1.0")
