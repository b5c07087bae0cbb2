"""Run all experiments on one machine, the most important first, within a time limit. A repeated call continues.

    python experiments/run_all.py --data-dir DIR --out OUT --minutes 9 --jobs 16
    python experiments/run_all.py --plan

The script writes OUT/records.tar.gz, and OUT/failures.txt if runs failed. The archive has
`experiments/FOLDER/records/NAME.jsonl.gz` for every complete experiment, to be unpacked in the root of the repository,
and `partial/NAME.jsonl.gz` for the others. Finished runs are found in OUT/records.tar.gz, in local/records.tar.gz and
in the records of the repository; a record counts if its fingerprint is that of the current code. Pure-Python packages
that are not installed on the machine can be unpacked into local/site-packages.
"""

import argparse
import contextlib
import gzip
import importlib.util
import io
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCAL = ROOT / "local"
sys.path.insert(0, str(ROOT / "src"))
sys.path.append(str(LOCAL / "site-packages"))

ORDER = (
    "gpa2024/cmnist_result",
    "gpa2024/unlabeled",
    "gpa2024/small_sites",
    "images64/isic64",
    "images64/cxr64",
    "images64/isic64_centres",
    "gpa2024/cmnist_default",
    "gpa2024/calibration",
    "gpa2024/cmnist_y_cause",
    "gpa2024/cmnist_z_cause",
    "gpa2024/cmnist_short",
    "gpa2024/cmnist_release",
    "gpa2024/beta_sweep",
    "gpa2024/cmnist_augmented",
    "gpa2024/leave_one_site_out",
    "gpa2024/omitted_confounder",
    "gpa2024/joint",
    "gpa2024/partial_z",
    "gpa2024/pooled_g",
    "simulated/mixed_z",
    "gpa2024/label_shift",
    "images64/isic64_no_age",
)
NEEDED = ("numpy", "scipy", "pandas", "pyarrow", "sklearn", "torch", "safetensors", "joblib", "filelock", "yaml")
NEEDED += ("jinja2", "rich", "PIL")
ARCHIVE, FAILURES = "records.tar.gz", "failures.txt"
RESERVE = 8.0  # seconds reserved for writing the archive
SAVE_EVERY = 45.0  # seconds between two archives; a killed script loses at most the results of this time
DONE, FAILED, TIME_IS_UP = 0, 1, 3


def main():
    """Check the machine, do the missing runs, and return the exit code."""
    options = read_options()
    deadline = time.monotonic() + 60 * options.minutes - RESERVE
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        print(f"cannot be imported: {', '.join(missing)}; put them into {LOCAL / 'site-packages'}")
        return FAILED
    plans = [Plan.read(path, options) for path in options.experiments]
    report(plans)
    if options.plan:
        return DONE
    from sitewise.bench.experiments.provenance import UNKNOWN, commit

    if commit() == UNKNOWN:
        print("git does not work here: set SITEWISE_COMMIT to the commit that these files are")
        return FAILED
    options.out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory() as work, sharing_gpu(options.device), contextlib.suppress(KeyboardInterrupt):
        for plan in plans:
            plan.start(Path(work))
        with working(options.jobs) as pool:
            try:
                do_all(plans, pool, options, deadline)
            finally:
                save(plans, options.out)
    report(plans)
    if any(plan.failures for plan in plans):
        return FAILED
    return DONE if all(plan.is_done for plan in plans) else TIME_IS_UP


def read_options():
    """Read the command line and check its paths."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiments", type=Path, nargs="*", help="YAML files, in order; all otherwise")
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--minutes", type=float, default=9.0, help="stop before so many minutes have passed")
    parser.add_argument("--jobs", type=int, default=16, help="processes")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--data-dir", type=Path, help="folder with mnist, isic64 and cxr64; SITEWISE_DATA otherwise")
    parser.add_argument("--seeds", type=int, help="fewer than the experiments have")
    parser.add_argument("--plan", action="store_true", help="say how many trainings there are, and stop")
    options = parser.parse_args()
    if options.data_dir is None and os.environ.get("SITEWISE_DATA"):
        options.data_dir = Path(os.environ["SITEWISE_DATA"])
    options.experiments = options.experiments or [ROOT / "experiments" / f"{name}.yaml" for name in ORDER]
    absent = [str(path) for path in options.experiments if not path.is_file()]
    if absent:
        parser.error(f"there is no {', '.join(absent)}")
    return options


@dataclass
class Plan:
    """An experiment, its records so far, and the runs in progress; `reason` says why it cannot be run here."""

    file: Path
    experiment: object
    digits: str | None
    records: list
    reason: str = ""
    skipped: dict = field(default_factory=dict)  # label -> missing packages
    failures: dict = field(default_factory=dict)  # run id -> error
    path: Path | None = None
    under_way: set = field(default_factory=set)  # ids of runs in progress
    longest: float = 0.0  # seconds of the longest run

    @classmethod
    def read(cls, file, options):
        """Read an experiment and all its records that can be found."""
        from dataclasses import replace

        from sitewise.bench.experiments import read_experiment
        from sitewise.bench.experiments.sites import prepare_data, source_name

        experiment = read_experiment(file)
        if options.seeds:
            experiment = replace(experiment, seeds=options.seeds)
        digits, reason = None, ""
        try:
            digits = source_name(experiment.data, options.data_dir)
            prepare_data(experiment, options.data_dir)
        except (OSError, ValueError, ImportError) as error:
            reason = f"{type(error).__name__}: {error}"
        plan = cls(file, experiment, digits, found_records(file, experiment.name, options.out), reason)
        plan.skipped = dict(plan.lacking())
        return plan

    def lacking(self):
        """Yield the labels whose methods need packages that are not installed, with these packages."""
        from sitewise.bench.methods import METHODS

        for entry in self.experiment.methods:
            packages = [name for name in METHODS[entry.method].packages if importlib.util.find_spec(name) is None]
            if packages:
                yield entry.label, packages

    @cached_property
    def state(self):
        """The state of the records: current, stale or missing; it is computed again after a new record."""
        from sitewise.bench.experiments.state import record_state

        return record_state(self.experiment, self.records, self.digits)

    @property
    def is_done(self):
        """Whether no run is left that can be done on this machine."""
        return bool(self.reason) or not (self.possible(self.state) or self.under_way)

    def possible(self, state):
        """Return the runs to start: those that are not done, in progress or failed, and that lack no package."""
        return [
            run
            for run in state.remaining
            if run.id not in self.under_way
            and run.id not in self.failures
            and not any(choice.label in self.skipped for choice in run.methods)
        ]

    def start(self, work):
        """Write the current records to a file in the work folder, to which new records are appended."""
        from sitewise.bench.experiments.records import append_record
        from sitewise.bench.experiments.runner import records_path

        self.path = records_path(self.experiment, work)
        for record in self.state.current:
            append_record(self.path, record)
            self.longest = max(self.longest, record["seconds"])

    def end(self, run, outcome):
        """Store the outcome of a run."""
        from sitewise.bench.experiments.records import read_records

        self.under_way.discard(run.id)
        if outcome.state == "done":
            self.records = read_records(self.path)
            self.longest = max(record["seconds"] for record in self.records)
            self.__dict__.pop("state", None)
        else:
            self.failures[run.id] = f"{self.experiment.name}, {run.label}: {outcome.error or outcome.state}"


def found_records(file, name, out):
    """Read the records of an experiment: those of the repository, of the local archive and of the archive in `out`.

    If there are several records of a run, the last one counts.
    """
    lines = []
    for archive in (LOCAL / ARCHIVE, out / ARCHIVE):
        if archive.is_file():
            with tarfile.open(archive) as packed:
                members = [member for member in packed.getnames() if Path(member).name == f"{name}.jsonl.gz"]
                lines += [line for member in members for line in read_lines(packed.extractfile(member).read())]
    committed = file.parent / "records" / f"{name}.jsonl.gz"
    if committed.is_file():
        lines = read_lines(committed.read_bytes()) + lines
    return [json.loads(line) for line in lines]


def read_lines(packed):
    """Return the lines of a compressed file, given its bytes."""
    return gzip.decompress(packed).decode().splitlines()


def do_all(plans, pool, options, deadline):
    """Do runs in the order of the plans until all are done or the deadline is reached.

    At most one run for each process is in progress. A run is not started if it may not end before the deadline.
    """
    from sitewise.bench.experiments.runner import perform_run
    from sitewise.bench.experiments.scoring import run_one

    do = partial(run_one, data_dir=options.data_dir, device=options.device)
    running, saved = {}, time.monotonic()
    waiting = {id(plan): plan.possible(plan.state) for plan in plans if not plan.reason}
    while time.monotonic() < deadline:
        for plan in plans:
            queue = waiting.get(id(plan), [])
            while queue and len(running) < options.jobs and time.monotonic() + plan.longest < deadline:
                run = queue.pop(0)
                plan.under_way.add(run.id)
                running[pool.submit(perform_run, run, plan.path, do)] = (plan, run)
        if not running:
            break
        ended, _ = wait(running, timeout=max(0.0, deadline - time.monotonic()), return_when=FIRST_COMPLETED)
        for future in ended:
            plan, run = running.pop(future)
            plan.end(run, future.result())
            if not waiting[id(plan)] and not plan.under_way:  # tuning is finished: the chosen settings can be run
                waiting[id(plan)] = plan.possible(plan.state)
                print(
                    f"{60 * options.minutes - RESERVE - deadline + time.monotonic():5.0f} s  {line_of(plan)}",
                    flush=True,
                )
        if time.monotonic() - saved > SAVE_EVERY:
            save(plans, options.out)
            saved = time.monotonic()


@contextlib.contextmanager
def working(jobs):
    """Provide a pool of processes with one thread each; at the end of the block, unfinished runs are stopped."""
    from sitewise.bench.experiments.runner import one_thread_each, start_worker

    with one_thread_each():
        pool = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), initializer=start_worker)
        try:
            yield pool
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.terminate()


@contextlib.contextmanager
def sharing_gpu(device):
    """Run NVIDIA's MPS within the block if there is a GPU, so that kernels of several processes overlap."""
    import torch

    command = shutil.which("nvidia-cuda-mps-control")
    if device == "cpu" or not torch.cuda.is_available() or command is None:
        yield
        return
    with tempfile.TemporaryDirectory() as folder:
        places = {"CUDA_MPS_PIPE_DIRECTORY": f"{folder}/pipe", "CUDA_MPS_LOG_DIRECTORY": f"{folder}/log"}
        for place in places.values():
            Path(place).mkdir()
        os.environ.update(places)
        started = subprocess.run([command, "-d"], check=False).returncode == 0
        print("MPS started" if started else "MPS does not start: processes take turns on the GPU", flush=True)
        if not started:
            for name in places:
                del os.environ[name]
        try:
            yield
        finally:
            if started:
                subprocess.run([command], input="quit\n", text=True, check=False, capture_output=True)


def save(plans, out):
    """Write the archive of all current records atomically, and the list of failures."""
    fresh = out / f".{ARCHIVE}"
    with tarfile.open(fresh, "w:gz") as archive:
        for plan in plans:
            state = plan.state
            if not state.current:
                continue
            folder = f"experiments/{plan.file.resolve().parent.name}/records" if state.is_current else "partial"
            text = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in state.current)
            content = gzip.compress(text.encode(), mtime=0)
            member = tarfile.TarInfo(f"{folder}/{plan.experiment.name}.jsonl.gz")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    fresh.replace(out / ARCHIVE)
    failures = [text for plan in plans for text in plan.failures.values()]
    if failures:
        (out / FAILURES).write_text("\n".join(failures) + "\n", encoding="utf-8")


def report(plans):
    """Print the progress of every experiment, and the failures."""
    for plan in plans:
        print(line_of(plan))
    for plan in plans:
        for failure in plan.failures.values():
            print(f"failed: {failure}")
    sys.stdout.flush()


def line_of(plan):
    """Return a line about the progress of an experiment."""
    state = plan.state
    if plan.reason:
        return f"{plan.experiment.name:20}  cannot be done here: {plan.reason}"
    parts = [f"{len(state.current)} done", f"{len(state.missing)} to do"]
    parts += [f"{len(state.stale)} to do again"] * bool(state.stale)
    parts += ["then the settings chosen"] * (not state.is_tuned)
    parts += [f"{label} skipped for lack of {', '.join(names)}" for label, names in plan.skipped.items()]
    parts += [f"{len(plan.failures)} failed"] * bool(plan.failures)
    parts += [f"up to {plan.longest:.0f} s a run"] * bool(plan.longest)
    return f"{plan.experiment.name:20}  {', '.join(parts)}"


if __name__ == "__main__":
    sys.exit(main())
