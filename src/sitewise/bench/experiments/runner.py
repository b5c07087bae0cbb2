"""The runner: does missing runs in several processes; runners may share a folder and may be killed at any time."""

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
WAIT = 0.5  # seconds between looks at what another runner holds
GPU_JOBS = 16  # processes that share a GPU
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
WORKER_DIED = "a process died, perhaps for lack of memory; finished runs are in {path}: run again, with fewer jobs"


class RunError(RuntimeError):
    """Some runs failed; the others are done and recorded."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended: done (here or elsewhere), held by another runner, or failed with an error."""

    state: Literal["done", "held", "failed"]
    error: str = ""


Do = Callable[[Run], Record]
Perform = Callable[[Iterable[Run]], Iterator[tuple[Run, Outcome]]]


def records_path(experiment: Experiment, out: str | os.PathLike[str]) -> Path:
    """The file of an experiment's records in a folder."""
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
    """Do what is not done yet of an experiment and return all records of its file.

    Parameters
    ----------
    experiment : Experiment
        What `read_experiment` read.
    out : path
        The folder of records; several runners, on one machine, may work in it at the same time.
    jobs : int, optional
        Processes, each with one thread of its own; by default one for each core, up to sixteen that share a GPU. With 1
        everything happens in this process.
    device : str
        "auto", "cpu" or "cuda".
    devices : int or str
        How many devices train one network together, as for `GPAClassifier`; then there is one run at a time. Under
        torchrun its processes do every run together; the first returns the records, the others none.
    nodes : int
        How many machines train together.
    strategy : str
        How several processes are started.
    data_dir : path, optional
        The folder with MNIST, or with the real images that the experiment is about.
    verbose : bool, optional
        Whether to show a progress bar; None shows it in a terminal.

    Returns
    -------
    list of dict
        All records of the experiment's file.

    Notes
    -----
    Grids are tuned first, while methods without one run to the end; then the settings chosen run for all seeds. A run
    whose record was made by other code (its fingerprint differs) is done again. A run that fails does not stop the
    others: `RunError` lists them at the end, and a next call tries them again. A script that calls this with several
    jobs needs `if __name__ == "__main__":`.
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
    """The number of processes that work at the same time."""
    shares_gpu = device != "cpu" and torch.cuda.is_available()
    return min(GPU_JOBS, cpu_count()) if shares_gpu else int(cpu_count())


def perform_run(run: Run, path: Path, do: Do) -> Outcome:
    """Claim a run, do it and append its record, unless it is done or held elsewhere; an error is an outcome."""
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
    """The runs that have no record yet, or one that other code made."""
    done = fingerprints(path)
    return [run for run in runs if done.get(run.id) != run_fingerprint(run)]


def _check_processes(jobs: int | None, processes: dict[str, Any]) -> None:
    """Report all problems of training on several devices."""
    problems = Problems("run_experiment")
    for problem in device_problems(**processes):
        problems.add(problem)
    if jobs not in (None, 1):
        problems.add(f"devices that train together do one run at a time: leave jobs out, got {jobs}")
    problems.raise_if_any()


def _do(runs: Iterable[Run], path: Path, perform: Perform, title: str, verbose: bool | None) -> list[str]:
    """Do runs until all are done, here or by another runner, or failed; return the failures with their reasons."""
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
    """Runs ordered by seed, because a process keeps the sites of one seed; without duplicates."""
    return sorted({run.id: run for run in runs}.values(), key=lambda run: run.seed)


@contextmanager
def _performing(path: Path, jobs: int, do: Do, fabric: Any = None) -> Iterator[Perform]:
    """The function that does runs: in this process, in those of a fabric, or in several with one thread each."""
    if fabric is not None:
        with _leading(fabric, do) as together:  # an error ends all processes: nobody may wait for one that failed
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
        for process in multiprocessing.active_children():  # an interrupt, say: what is finished is recorded
            if process not in others:
                process.terminate()
        pool.shutdown(cancel_futures=True)
        raise
    pool.shutdown()


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Processes that start in the block take one thread, of torch and of any BLAS."""
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
    """Delay an interrupt to the end of the block: an interrupted start of a process would print a traceback."""
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
    """One thread; and an interrupt, or the end of the runner, ends the process at once: its claim ends with it."""
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
    """A progress bar with the time left on a terminal, nothing elsewhere."""
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
    """Provide a function that does a run together with the following processes, which end with the block."""

    def together(run: Run) -> Record:
        fabric.broadcast(run)
        return do(run)

    yield together
    fabric.broadcast(None)


def _follow(fabric: Any, do: Do) -> None:
    """Do the runs that the first process names; their records are dropped, because the first process has them."""
    for run in _named(fabric):
        do(run)


def _named(fabric: Any) -> Iterable[Run]:
    while (run := fabric.broadcast(None)) is not None:
        yield run
