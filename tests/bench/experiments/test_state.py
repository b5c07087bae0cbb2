"""Records are current where this code made them with these settings, stale where other code did."""

from sitewise.bench.experiments.fingerprint import run_fingerprint
from sitewise.bench.experiments.plan import final_runs, tuning_runs
from sitewise.bench.experiments.records import append_record, fingerprints
from sitewise.bench.experiments.runner import records_path, run_experiment
from sitewise.bench.experiments.state import record_state


def made(run, by_hand, **metrics):
    return by_hand(run, **metrics) | {"fingerprint": run_fingerprint(run)}


def test_runs_are_sorted_by_what_their_records_are_worth(tiny, by_hand):
    experiment = tiny({"methods": {"R": None}, "tuning": None})
    runs = final_runs(experiment, {})
    records = [made(runs[0], by_hand), made(runs[1], by_hand) | {"fingerprint": "other"}, by_hand(runs[2])]
    state = record_state(experiment, records, None)
    assert [record["id"] for record in state.current] == [runs[0].id]
    assert {run.id for run in state.stale} == {runs[1].id, runs[2].id}
    assert {run.id for run in state.missing} == {run.id for run in runs[3:]}
    assert not state.is_current
    assert record_state(experiment, [made(run, by_hand) for run in runs], None).is_current


def test_settings_are_chosen_by_current_records_only(tiny, by_hand):
    experiment = tiny()
    tuning = tuning_runs(experiment)
    records = [made(run, by_hand, validation={"nll": 1.0}) for run in tuning]
    assert record_state(experiment, records, None).is_tuned
    records[0]["fingerprint"] = "other"
    state = record_state(experiment, records, None)
    assert not state.is_tuned
    assert not any(choice.label == "R" for run in state.missing for choice in run.methods)


def test_a_run_that_other_code_made_is_done_again_and_its_new_record_counts(tiny, tmp_path, fakes):
    experiment = tiny({"methods": {"R": None, "T": None}, "tuning": None})
    first = run_experiment(experiment, tmp_path, jobs=1)
    path = records_path(experiment, tmp_path)
    append_record(path, first[1] | {"fingerprint": "other"})
    before = len([note for note in fakes if note.what == "train"])
    again = run_experiment(experiment, tmp_path, jobs=1)
    assert len([note for note in fakes if note.what == "train"]) == before + 1
    assert [record["results"] for record in again] == [record["results"] for record in first]
    assert "other" not in fingerprints(path).values()
