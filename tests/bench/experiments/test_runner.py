import json
import math
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

import patience
from patience import LONG, wait_for
from sitewise.bench.experiments import runner
from sitewise.bench.experiments.plan import final_runs, tuning_runs
from sitewise.bench.experiments.records import append_record, claim, done_ids, read_records
from sitewise.bench.experiments.runner import RunError, perform_run, records_path, run_experiment
from sitewise.bench.experiments.scoring import run_one
from sitewise.bench.experiments.selection import choose_settings
from sitewise.bench.experiments.summary import summarize
from sitewise.datasets import simulated


def planned(experiment, records):
    chosen = choose_settings(experiment, records)
    return {run.id for run in (*tuning_runs(experiment), *final_runs(experiment, chosen))}


def test_an_experiment_is_tuned_and_run_to_the_end(tiny, tmp_path):
    experiment = tiny()
    records = run_experiment(experiment, tmp_path, jobs=1)
    assert {record["id"] for record in records} == planned(experiment, records)
    assert len(records) == 8 + 9 + 1  # tuning, methods without a grid, the one seed left of the setting chosen
    assert read_records(tmp_path / "tiny.jsonl") == records
    assert (summarize(experiment, records)["skipped"] == "").all()


def test_what_is_done_is_not_done_again(tiny, tmp_path, fakes):
    experiment = tiny()
    run_experiment(experiment, tmp_path, jobs=1)
    path = records_path(experiment, tmp_path)
    before, lines = len(fakes), path.read_bytes().splitlines(keepends=True)
    run_experiment(experiment, tmp_path, jobs=1)
    assert len(fakes) == before
    path.write_bytes(b"".join([*lines[:-1], lines[-1][:40]]))  # killed while writing the last line
    run_experiment(experiment, tmp_path, jobs=1)
    assert len([note for note in fakes[before:] if note.what == "train"]) == 1
    assert len(path.read_bytes().splitlines()) == len(lines)


def test_quick_records_are_in_a_file_of_their_own(tiny, tmp_path):
    experiment = tiny({"quick": {"seeds": 1, "tuning": {"seeds": 1}}}, quick=True)
    run_experiment(experiment, tmp_path, jobs=1)
    assert [path.name for path in tmp_path.glob("*.jsonl")] == ["tiny.quick.jsonl"]


def test_a_run_that_fails_is_named_and_does_not_stop_the_others(tiny, tmp_path):
    experiment = tiny({"methods": {"B": {"method": "guess", "network": "broken"}}})
    with pytest.raises(
        RunError, match=r"3 run\(s\) of tiny failed.*\n.*B {'network': 'broken'}, seed 0: FloatingPointError: no luck"
    ):
        run_experiment(experiment, tmp_path, jobs=1)
    records = read_records(records_path(experiment, tmp_path))
    assert len(planned(experiment, records) - {record["id"] for record in records}) == 3
    table = summarize(experiment, records)
    assert set(table.loc[table["skipped"] != "", "method"]) == {"B"}


def test_tuning_that_fails_leaves_the_label_out(tiny, tmp_path):
    grid = {"network": ["one", "broken"], "share": [0.1, 0.2]}
    experiment = tiny({"methods": {"B": {"method": "guess", "grid": grid}}})
    with pytest.raises(RunError, match=r"4 run\(s\)"):
        run_experiment(experiment, tmp_path, jobs=1)
    records = read_records(records_path(experiment, tmp_path))
    assert set(choose_settings(experiment, records)) == {"R"}


def test_a_run_finished_elsewhere_between_plan_and_claim_is_not_repeated(tiny, tmp_path, fakes):
    run = final_runs(tiny(), {})[0]
    path = tmp_path / "tiny.jsonl"
    append_record(path, run_one(run))
    before = len(fakes)
    assert perform_run(run, path, run_one).state == "done"
    assert len(fakes) == before
    assert len(read_records(path)) == 1


def test_what_another_runner_holds_is_waited_for(tiny, tmp_path, monkeypatch, fakes):
    """The other runner holds a tuning run, and finishes it while we wait: selection sees its record."""
    experiment = tiny()
    path = records_path(experiment, tmp_path)
    run = tuning_runs(experiment)[0]
    record = run_one(run)
    monkeypatch.setattr(runner, "WAIT", 0.05)
    held, finish = threading.Event(), threading.Event()

    def other():
        with claim(path, run.id) as mine:
            assert mine
            held.set()
            finish.wait(LONG)
            append_record(path, record)

    thread = threading.Thread(target=other)
    thread.start()
    assert held.wait(LONG)
    sleeps = []
    sleep = time.sleep

    def wait(seconds):
        sleeps.append(seconds)
        finish.set()
        sleep(seconds)

    monkeypatch.setattr(runner.time, "sleep", wait)
    try:
        records = run_experiment(experiment, tmp_path, jobs=1)
    finally:
        finish.set()
        thread.join()
    assert sleeps
    assert {r["id"] for r in records} == planned(experiment, records)
    assert Counter(r["id"] for r in records).most_common(1)[0][1] == 1


def test_what_a_dead_runner_held_is_done(tiny, tmp_path):
    experiment = tiny()
    path = records_path(experiment, tmp_path)
    (tmp_path / ".claims").mkdir()
    for run in tuning_runs(experiment):
        (tmp_path / ".claims" / run.id).touch()  # its mark stays where the process was killed
    assert len(run_experiment(experiment, tmp_path, jobs=1)) == 18
    assert len(done_ids(path)) == 18


SHARED = """
import os, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored, maybe, in the background
sys.path[:0] = {paths!r}
from conftest import FAKES, Guess
from patience import LONG, wait_for
from sitewise.bench.experiments import read_experiment, run_experiment
from sitewise.datasets import simulated
from sitewise.bench.methods import METHODS

simulated.REFERENCE = 200
METHODS.update(FAKES)
train = Guess.train

def noted(self, *data):
    with open({log!r}, "a") as file:
        file.write(str(os.getpid()) + "\\n")
    wait_for(lambda: len(set(begun())) >= {n_runners})  # none is done before all have begun
    time.sleep(LONG if len(begun()) > float('{stops_after}') else 0)
    return train(self, *data)

def begun():
    with open({log!r}) as file:
        return file.read().splitlines()

Guess.train = noted
print("ready", flush=True)
sys.stdin.readline()
run_experiment(read_experiment({path!r}), {out!r}, jobs=1)
"""


@pytest.fixture
def start(write, tmp_path):
    """Start a runner of the tiny experiment in a process of its own; it waits for a line before it begins."""
    started = []

    def start_one(stops_after=math.inf, n_runners=1):
        log, out = tmp_path / "log", tmp_path / "out"
        code = SHARED.format(
            paths=[str(Path(__file__).parent), str(Path(patience.__file__).parent)],
            log=str(log),
            path=str(write()),
            out=str(out),
            stops_after=stops_after,
            n_runners=n_runners,
        )
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        return process, log, out / "tiny.jsonl"

    yield start_one
    for process in started:
        process.kill()
        process.communicate()


def go(process):
    assert process.stdout.readline().strip() == "ready"
    process.stdin.write("\n")
    process.stdin.flush()


def test_two_runners_in_one_folder_do_each_run_once(start, tiny):
    (first, log, path), (second, _, _) = start(n_runners=2), start(n_runners=2)
    for process in (first, second):
        go(process)
    for process in (first, second):
        assert process.wait(LONG) == 0
    assert len(path.read_bytes().splitlines()) == 18
    assert done_ids(path) == planned(tiny(), read_records(path))
    trainings = log.read_text().splitlines()
    assert len(trainings) == 18
    assert set(trainings) == {str(first.pid), str(second.pid)}


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_runner_that_is_ended_leaves_its_finished_lines_and_the_next_goes_on(start, tiny, fakes, how):
    process, log, path = start(stops_after=5)
    go(process)
    wait_for(lambda: log.exists() and len(log.read_text().splitlines()) == 6)  # in the middle of its sixth run
    os.kill(process.pid, how)
    assert process.wait(LONG) != 0
    lines = path.read_bytes()
    assert len(done_ids(path)) == 5
    run_experiment(tiny(), path.parent, jobs=1)
    assert len([note for note in fakes if note.what == "train"]) == 18 - 5
    assert path.read_bytes().startswith(lines)
    assert len(done_ids(path)) == 18


REAL = {
    "recipe": {"epochs": 1, "min_steps": 0},
    "seeds": 2,
    "methods": {"T": None, "R": None, "G": "erm", "G2": None, "S": {"method": "label_shift_em", "base": "erm"}},
    "tuning": None,
}


def test_several_processes_give_the_numbers_of_one_and_report_what_fails(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(simulated, "REFERENCE", 4000)  # as in the other processes
    alone = run_experiment(tiny(REAL), tmp_path / "alone", jobs=1, device="cpu")
    experiment = tiny({**REAL, "methods": {**REAL["methods"], "B": {"method": "erm", "backbone": "no such network"}}})
    environment = dict(os.environ)
    with pytest.raises(RunError, match="no such network"):
        run_experiment(experiment, tmp_path / "together", jobs=2, device="cpu")
    assert dict(os.environ) == environment
    together = read_records(records_path(experiment, tmp_path / "together"))
    assert len(alone) == 2
    assert {r["id"]: r["results"] for r in alone} == {r["id"]: r["results"] for r in together}


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


# At which instruction the interrupt finds the parent is up to the system: Python drops one that comes in a finalizer.
@pytest.mark.flaky(reruns=2)
@pytest.mark.parametrize("started", [True, False])
def test_an_interrupt_of_the_parent_ends_its_processes_at_once(tiny, write, tmp_path, started):
    """kill -INT, as a scheduler sends it, reaches the parent alone: it used to do all runs before it ended."""
    path = write(REAL | {"seeds": 200, "recipe": {"epochs": 20, "min_steps": 0}})
    command = [sys.executable, "-m", "sitewise", "bench", "run", path, "--out", tmp_path, "--jobs", "2"]
    records = tmp_path / "tiny.jsonl"
    heard = signal.signal(signal.SIGINT, signal.default_int_handler)  # what is ignored here is ignored there
    process = subprocess.Popen([*map(str, command), "--device", "cpu"], stderr=subprocess.PIPE, text=True)
    signal.signal(signal.SIGINT, heard)
    try:
        workers = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        wait_for(lambda: len(workers.read_text().split()) >= 2)  # and the tracker of resources
        if started:
            wait_for(lambda: records.exists() and records.read_bytes().count(b"\n") >= 2)
        children = workers.read_text().split()
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=LONG)
    finally:
        process.kill()
    assert process.returncode == 130, said
    assert "Traceback" not in said
    wait_for(lambda: not any(map(is_running, children)))
    lines = records.read_bytes().splitlines() if started else []
    assert len({json.loads(line)["id"] for line in lines[:-1]}) == max(len(lines) - 1, 0)  # every line but the last
    done = done_ids(records)
    assert len(lines) - 1 <= len(done) <= len(lines) < 200  # all runs would be 200


def test_an_interrupt_while_processes_start_is_heard_when_they_have():
    seen = []

    def start():
        with runner.interrupts_wait():
            signal.raise_signal(signal.SIGINT)
            seen.append("started")

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            start()
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == ["started"]


def test_progress_is_shown_where_asked(tiny, tmp_path, capsys):
    run_experiment(tiny(), tmp_path, jobs=1, verbose=True)
    shown = capsys.readouterr().err
    assert "tuning and runs" in shown
    assert "17/17" in shown
    run_experiment(tiny(), tmp_path / "quiet", jobs=1)
    assert capsys.readouterr().err == ""


def test_jobs_by_default(monkeypatch):
    monkeypatch.setattr(runner, "cpu_count", lambda: 64)
    monkeypatch.setattr(runner.torch.cuda, "is_available", lambda: True)
    assert (runner.default_jobs("auto"), runner.default_jobs("cpu")) == (16, 64)
    monkeypatch.setattr(runner.torch.cuda, "is_available", lambda: False)
    assert runner.default_jobs("auto") == 64


def test_a_record_is_a_line_of_json(tiny, tmp_path):
    run_experiment(tiny(), tmp_path, jobs=1)
    for line in (tmp_path / "tiny.jsonl").read_text(encoding="utf-8").splitlines():
        assert json.loads(line)["experiment"] == "tiny"
