"""The demo at its smallest, its record over ten seeds, and the command line around it."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from scripts import load_script
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


@pytest.fixture(scope="module")
def study():
    return load_script("benchmarks/demo.py")


@pytest.fixture(scope="module")
def seeds(study):
    return study.read_records(ROOT / "benchmarks" / "demo.jsonl")


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


def test_a_site_is_scored_by_all_test_digits_with_its_own_shares():
    data = draw_data(DemoSize(), seed=1)
    for name, given_z in NEW.items():
        scored = data.scored[name]
        red = (scored.Z["paper"] == "red").to_numpy()
        weight = scored.sample_weight / scored.sample_weight.sum()
        assert [weight[~red].sum(), weight[red].sum()] == pytest.approx([0.5, 0.5])
        assert [weight[(red == z) & (scored.y == 1)].sum() for z in (0, 1)] == pytest.approx(np.array(given_z) / 2)
        assert set(data.new[name].groups) <= set(scored.groups)
        assert (np.unique(scored.groups, return_counts=True)[1] == 2).all()


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


def test_the_record_of_ten_seeds_shows_what_the_demo_is_to_show(seeds):
    assert [record["seed"] for record in seeds] == list(range(20, 30))
    assert len({record["commit"] for record in seeds}) == 1
    for name in (RARE_SITE, REVERSED_SITE):
        sites = [record["sites"][name] for record in seeds]
        f1, loss = (
            {m: np.mean([site["methods"][m][metric]["value"] for site in sites]) for m in METHODS}
            for metric in ("positive_f1", "nll")
        )
        for other in ("ERM", "ERM + label-shift EM"):
            assert f1["GPA"] > f1[other] + 0.03
            assert loss["GPA"] < loss[other]
        assert f1["GPA"] > f1["GPA, constant g"] - 0.005
        estimates = [(site["methods"]["GPA"]["prevalence"], site["true_prevalence"]) for site in sites]
        assert sum(one["low"] <= truth <= one["high"] for one, truth in estimates) >= 9


def test_the_page_shows_the_table_of_the_record(study, seeds):
    assert study.tables(seeds) in (ROOT / "docs" / "demo.md").read_text(encoding="utf-8")


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
