"""The runner does the missing runs of an experiment in several processes.

Several runners may work in the same folder, and a runner may be killed at any time.
"""

import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from joblib import cpu_count

from sitewise.arrays import Problems
from sitewise.bench.experiments.experiment import Experiment
from sitewise.bench.experiments.fingerprint import run_fingerprint
from sitewise.bench.experiments.plan import Run, final_runs, tuning_runs
from sitewise.bench.experiments.records import Record, append_record, claim, fingerprints, read_records
from sitewise.bench.experiments.scoring import run_one
from sitewise.bench.experiments.selection import choose_settings
from sitewise.bench.experiments.sites import Folder, prepare_data, source_name
from sitewise.training.devices import device_problems, join_processes, torchrun_processes

logger = logging.getLogger(__name__)
ALONE = {"devices": 1, "nodes": 1, "strategy": "auto"}
WAIT = 0.5  # seconds until runs that another runner holds are checked again
GPU_JOBS = 16  # largest default number of processes that share a GPU
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
WORKER_DIED = "a process died, perhaps for lack of memory; finished runs are in {path}: run again, with fewer jobs"


class RunError(RuntimeError):
    """Raised if runs failed or a worker process died. Finished runs are recorded."""


@dataclass(frozen=True)
class Outcome:
    """The result of an attempt at a run: done (by this or another runner), held by another runner, or failed."""

    state: Literal["done", "held", "failed"]
    error: str = ""


Do = Callable[[Run], Record]
Perform = Callable[[Iterable[Run]], Iterator[tuple[Run, Outcome]]]


def records_path(experiment: Experiment, out: str | os.PathLike[str]) -> Path:
    """Return the path of an experiment's records in a folder."""
    return Path(out) / f"{experiment.name}{'.quick' if experiment.quick else ''}.jsonl"


def run_experiment(
    experiment: Experiment,
    out: str | os.PathLike[str],
    *,
    jobs: int | None = None,
    device: str = "auto",
    devices: int | str = 1,
    nodes: int = 1,
    strategy: str = "auto",
    data_dir: Folder = None,
    verbose: bool | None = None,
) -> list[Record]:
    """Do all runs of an experiment that have not been done yet, and return the records of its runs.

    A run is one training with one seed, and the scores of all methods that use the trained network. Its record is one
    line, with its settings and scores, of a file in the folder `out`. Each experiment has its file, with its name.

    Parameters
    ----------
    experiment : Experiment
        The experiment, as `read_experiment` returns it.
    out : path
        The folder of records. Several calls on one machine may work in it at the same time.
    jobs : int, optional
        The number of processes, with one thread each. The default is the number of cores, but at most 16 with a GPU. If
        it is 1, this process does all runs.
    device : str
        "auto", "cpu" or "cuda".
    devices : int or str
        The number of devices that train one network together, as for `GPAClassifier`. If it is not 1, the runs are done
        one after the other. Under torchrun, all its processes do each run together; the first process returns the
        records, and the others return an empty list.
    nodes : int
        The number of machines that train one network together.
    strategy : str
        How several training processes are started, as for `GPAClassifier`.
    data_dir : path, optional
        The folder with MNIST, or with the real images of the experiment. By default it is the value of the environment
        variable SITEWISE_DATA.
    verbose : bool, optional
        Whether to show a progress bar; None shows it in a terminal.

    Returns
    -------
    list of dict
        All records in the experiment's file, those of earlier calls included.

    Notes
    -----
    For a method with a grid of settings, there are tuning runs, which choose the settings at the validation site. These
    runs and all runs of the methods without a grid are done first. Then the methods with a grid are run with the chosen
    settings and all seeds. If the code of the package has changed since a run was recorded in a way that may change its
    result, the run is done again. A run that fails does not stop the others: a `RunError` at the end lists all failed
    runs, and the next call tries them again. A script that calls this function with several jobs needs
    `if __name__ == "__main__":`.
    """
    path = records_path(experiment, out)
    processes: dict[str, Any] = {"devices": devices, "nodes": nodes, "strategy": strategy}
    do = partial(run_one, data_dir=data_dir, device=device, **processes)
    together = processes != ALONE
    if together:
        _check_processes(jobs, processes)
    fabric = join_processes(device) if together and torchrun_processes() is not None else None
    if fabric is not None and fabric.global_rank > 0:
        _follow(fabric, do)
        return []
    prepare_data(experiment, data_dir)
    digits = source_name(experiment.data, data_dir)
    tuning = tuning_runs(experiment, digits)
    first = _by_seed((*tuning, *final_runs(experiment, {}, digits)))
    with _performing(path, 1 if together else jobs or default_jobs(device), do, fabric) as perform:
        failures = _do(first, path, perform, "tuning and runs" if tuning else "runs", verbose)
        if tuning:
            chosen = choose_settings(experiment, read_records(path), digits)
            tried = {run.id for run in first}
            then = [run for run in final_runs(experiment, chosen, digits) if run.id not in tried]
            failures += _do(then, path, perform, "runs with settings chosen", verbose)
    if failures:
        shown = "\n".join(f"  - {failure}" for failure in failures)
        raise RunError(f"{len(failures)} run(s) of {experiment.name} failed, the others are in {path}:\n{shown}")
    return read_records(path)


def default_jobs(device: str) -> int:
    """Return the default number of processes: the number of cores, at most `GPU_JOBS` if they share a GPU."""
    shares_gpu = device != "cpu" and torch.cuda.is_available()
    return min(GPU_JOBS, cpu_count()) if shares_gpu else int(cpu_count())


def perform_run(run: Run, path: Path, do: Do) -> Outcome:
    """Claim a run, do it and append its record, unless it is already done or another runner holds it.

    An error is not raised; it becomes a "failed" outcome.
    """
    try:
        return _claim_and_do(run, path, do)
    except Exception as error:
        logger.debug("%s", traceback.format_exc())
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = "; ".join([f"{Path(place.filename).name}:{place.lineno}", *getattr(error, "__notes__", ())])
        return Outcome("failed", f"{type(error).__name__}: {error} ({where})")


def _claim_and_do(run: Run, path: Path, do: Do) -> Outcome:
    with claim(path, run.id) as mine:
        if not mine:
            return Outcome("held")
        if remaining_runs([run], path):
            append_record(path, do(run))
    return Outcome("done")


def remaining_runs(runs: Iterable[Run], path: Path) -> list[Run]:
    """Return the runs that have no record, or whose record was made by other code."""
    done = fingerprints(path)
    return [run for run in runs if done.get(run.id) != run_fingerprint(run)]


def _check_processes(jobs: int | None, processes: dict[str, Any]) -> None:
    """Raise one error for all problems of training on several devices."""
    problems = Problems("run_experiment")
    for problem in device_problems(**processes):
        problems.add(problem)
    if jobs not in (None, 1):
        problems.add(f"devices that train together do one run at a time: leave jobs out, got {jobs}")
    problems.raise_if_any()


def _do(runs: Iterable[Run], path: Path, perform: Perform, title: str, verbose: bool | None) -> list[str]:
    """Do runs until each has failed or is done (by this or another runner); return the failures with their reasons."""
    remaining = {run.id: run for run in remaining_runs(runs, path)}
    failures = []
    with _progress(title, len(remaining), verbose) as advance:
        while remaining:
            for run, outcome in perform(list(remaining.values())):
                if outcome.state == "held":
                    continue
                del remaining[run.id]
                if outcome.state == "failed":
                    failures.append(f"{run.label}: {outcome.error}")
                    logger.warning("failed: %s", failures[-1])
                advance()
            if remaining:
                time.sleep(WAIT)
    return failures


def _by_seed(runs: Iterable[Run]) -> list[Run]:
    """Return the runs without duplicates, ordered by seed, because a process keeps the sites of one seed in memory."""
    return sorted({run.id: run for run in runs}.values(), key=lambda run: run.seed)


@contextmanager
def _performing(path: Path, jobs: int, do: Do, fabric: Any = None) -> Iterator[Perform]:
    """Provide the function that does runs: in this process, in those of a fabric, or in a pool of `jobs` processes."""
    if fabric is not None:
        with _leading(fabric, do) as together:  # an error is raised and ends all processes: none waits for a failed one
            yield lambda runs: ((run, _claim_and_do(run, path, together)) for run in runs)
        return
    if jobs == 1:
        yield lambda runs: ((run, perform_run(run, path, do)) for run in runs)
        return
    others = multiprocessing.active_children()
    pool = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), initializer=start_worker)

    def perform(runs: Iterable[Run]) -> Iterator[tuple[Run, Outcome]]:
        with one_thread_each(), interrupts_wait():
            futures = {pool.submit(perform_run, run, path, do): run for run in runs}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BrokenProcessPool:
            raise RunError(WORKER_DIED.format(path=path)) from None

    try:
        yield perform
    except BaseException:
        for process in multiprocessing.active_children():  # for example on an interrupt; finished runs are recorded
            if process not in others:
                process.terminate()
        pool.shutdown(cancel_futures=True)
        raise
    pool.shutdown()


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Let processes that are started in the block use one thread in torch and in any BLAS."""
    before = {name: os.environ.get(name) for name in THREADS}
    os.environ.update(dict.fromkeys(THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def interrupts_wait() -> Iterator[None]:
    """Delay an interrupt until the end of the block, because an interrupted start of a process prints a traceback."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard: list[tuple[int, Any]] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: heard.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if heard and callable(before):
        before(*heard[0])


def start_worker() -> None:
    """Prepare a worker process: it uses one thread, and ends at once on an interrupt or when the runner ends.

    The claim of a run ends with the process.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


@contextmanager
def _progress(title: str, total: int, verbose: bool | None) -> Iterator[Callable[[], None]]:
    """Provide a function that advances a progress bar with the time left; by default it is shown only in a terminal."""
    if not total or not (sys.stderr.isatty() if verbose is None else verbose):
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

    columns = (*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=total)
        yield lambda: bar.advance(task)


@contextmanager
def _leading(fabric: Any, do: Do) -> Iterator[Do]:
    """Provide a function that does a run together with the other processes (`_follow`), which stop after the block."""

    def together(run: Run) -> Record:
        fabric.broadcast(run)
        return do(run)

    yield together
    fabric.broadcast(None)


def _follow(fabric: Any, do: Do) -> None:
    """Do the runs that the first process broadcasts. Their records are dropped: the first process writes them."""
    for run in _named(fabric):
        do(run)


def _named(fabric: Any) -> Iterable[Run]:
    while (run := fabric.broadcast(None)) is not None:
        yield run
