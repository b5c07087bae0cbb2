import json

import numpy as np
import pytest

from sitewise.bench.experiments import scoring
from sitewise.bench.experiments.experiment import ALL_METRICS, TEST
from sitewise.bench.experiments.kinds import Population
from sitewise.bench.experiments.plan import final_runs
from sitewise.bench.experiments.scoring import NO_TRUTH, Task, run_one, score
from sitewise.bench.experiments.sites import world_of
from sitewise.evaluation import evaluate
from sitewise.sites import Site

ONE = {"seeds": 1, "methods": {"R": None, "T": None}, "tuning": None}


def test_a_record_has_everything_and_is_json(tiny):
    (run,) = final_runs(tiny(ONE), {})
    record = json.loads(json.dumps(run_one(run, device="cpu"), allow_nan=False))
    assert next(iter(record)) == "id"
    assert record["id"] == run.id
    assert record["methods"] == {
        "G": {"method": "guess", "settings": {}},
        "G2": {"method": "guess", "settings": {"share": 0.4}},
    }
    assert set(record["versions"]) == {"sitewise", "torch", "numpy", "scikit-learn", "python"}
    assert record["device"] == "cpu"
    assert record["seconds"] > 0
    assert {key: record[key] for key in run.plain()} == json.loads(json.dumps(run.plain()))
    for result in record["results"].values():
        assert set(result["sites"]) == {"near", "far"}
        for scores in (result["validation"], *(s for draws in result["sites"].values() for s in draws.values())):
            assert set(scores) == {*ALL_METRICS, "prevalence", "true_prevalence"}


def test_the_numbers_are_those_of_the_rows(tiny):
    (run,) = final_runs(tiny(ONE), {})
    scores = run_one(run)["results"]["G2"]["sites"]["far"]["all"]
    world = world_of(run)
    rows, _ = world.test_rows(run.tests[1], run.draws[0])
    expected = evaluate(rows.y, np.tile([0.6, 0.4], (50, 1)))
    assert {name: scores[name] for name in expected} == {name: metric.value for name, metric in expected.items()}
    assert scores["true_prevalence"] == [0.9, 0.1]
    assert scores["prevalence_error"] == pytest.approx(0.3)


def test_the_network_is_trained_once_for_all_that_share_it(tiny, fakes):
    (run,) = final_runs(tiny(ONE), {})
    run_one(run)
    trainings = [note for note in fakes if note.what == "train"]
    assert [(note.n, note.unlabeled) for note in trainings] == [(40 + 30 + 20, None)]
    assert set(trainings[0].domain) == {"a", "b", "validation"}


def test_labels_and_truth_go_only_to_methods_that_ask(tiny, fakes):
    methods = {"L": "sees_labels", "K": "knows_truth", "G2": None}
    (run,) = final_runs(tiny({**ONE, "methods": ONE["methods"] | methods}), {})
    run_one(run)
    handed = {
        name: [note for note in fakes if note.what == "adapt" and note.method == name]
        for name in ("Guess", "SeesLabels", "KnowsTruth")
    }
    assert [len(notes) for notes in handed.values()] == [5, 5, 5]  # the validation site, and two sites by two draws
    assert all(note.y is None and note.prevalence is None for note in handed["Guess"])
    assert all(len(note.y) == len(note.X) and note.prevalence is None for note in handed["SeesLabels"])
    assert all(note.y is None and callable(note.prevalence) for note in handed["KnowsTruth"])


def test_a_training_for_a_target_sees_its_rows_and_is_scored_there(tiny, fakes):
    experiment = tiny({**ONE, "methods": {"R": None, "G": None, "G2": None}, "reference": "T"})
    near, far = final_runs(experiment, {})
    assert (near.target, far.target) == ("near", "far")
    record = run_one(far)
    assert set(record["results"]["T"]["sites"]) == {"far"}
    unlabeled = next(note for note in fakes if note.what == "train").unlabeled
    rows, _ = world_of(far).test_rows(far.tests[0], far.draws[0])
    assert list(unlabeled) == ["validation", "far"]
    assert unlabeled["far"] is rows.X


def test_what_a_method_refuses_is_skipped_and_the_others_go_on(tiny, fakes):
    (run,) = final_runs(tiny({**ONE, "methods": ONE["methods"] | {"N": "refuses", "K": "knows_truth"}}), {})
    results = run_one(run)["results"]
    assert list(results) == ["G", "G2", "N", "K"]
    assert results["N"] == {"skipped": "not with 2 sites"}
    assert "sites" in results["G"]
    missing = {"tests": {"near": {"missing": 0.3}}, "methods": ONE["methods"] | {"K": "knows_truth"}}
    (run,) = final_runs(tiny({**ONE, **missing}), {})
    assert run_one(run)["results"]["K"] == {"skipped": NO_TRUTH}


def test_nothing_is_trained_where_all_refuse(tiny, fakes):
    methods = {"R": None, "T": None, "G": None, "G2": None, "N": "refuses"}
    (run,) = final_runs(tiny({**ONE, "methods": methods, "reference": "N"}), {})
    assert run_one(run)["results"] == {"N": {"skipped": "not with 2 sites"}}
    assert not fakes


def test_weights_are_relative_to_the_validation_rows_and_true_in_the_rows_adapted_on():
    adaptation = Site("new", np.zeros(4), np.array([0, 0, 0, 1]))
    scored = Site("new", np.zeros(2), np.array([0, 1]))
    population = Population(lambda n, seed: scored, np.array([0.8, 0.2]), None)
    task = Task(adaptation, scored, population, np.array([0.5, 0.5]))
    got = score(task, np.array([[0.7, 0.3], [0.4, 0.6]]), np.array([0.6, 0.4]))
    assert got["prevalence_error"] == pytest.approx(0.2)
    assert got["weight_mse"] == pytest.approx(((0.6 - 0.75) / 0.5) ** 2)  # the same for both classes
    assert got["accuracy"] == 1
    none = score(task, np.array([[0.7, 0.3], [0.4, 0.6]]), None)
    assert [none[name] for name in ("prevalence", "prevalence_error", "weight_mse")] == [None] * 3
    absent = Task(adaptation, scored, population, np.array([1.0, 0.0]))
    assert score(absent, np.array([[0.7, 0.3], [0.4, 0.6]]), np.array([0.6, 0.4]))["weight_mse"] is None


def test_warnings_are_kept_in_the_record(tiny, monkeypatch):
    (run,) = final_runs(tiny(ONE), {})
    train = scoring.fit_together

    def warn(*arguments, **data):
        import warnings

        warnings.warn("look here", UserWarning, stacklevel=1)
        train(*arguments, **data)

    monkeypatch.setattr(scoring, "fit_together", warn)
    assert run_one(run)["warnings"] == ["look here"]


def test_the_same_run_gives_the_same_numbers(tiny):
    methods = ONE["methods"] | {"E": "erm", "S": {"method": "label_shift_em", "base": "erm"}}
    changes = {"methods": methods, "recipe": {"epochs": 5, "min_steps": 0}, "validation": {"n": 200}}
    runs = final_runs(tiny({**ONE, **changes, "training": {"a": {"n": 300}}}), {})
    run = next(run for run in runs if run.methods[0].label == "E")
    assert [choice.label for choice in run.methods] == ["E", "S"]
    first, second = run_one(run, device="cpu"), run_one(run, device="cpu")
    assert first["results"] == second["results"]
    sites = first["results"]["S"]["sites"]["near"]
    assert sites["all"]["prevalence"] != sites["apart"]["prevalence"]
    assert first["results"]["E"]["sites"]["near"]["all"] == first["results"]["E"]["sites"]["near"]["apart"]
    assert world_of(run).test_rows(run.tests[0], run.draws[0])[1] is world_of(run).rows(
        run.tests[0], TEST, "scored", 50
    )
