"""Do all experiments on one machine, the most important first; stop before the time is up, go on when called again.

    python experiments/run_all.py --data-dir DIR --out OUT --minutes 9 --jobs 16
    python experiments/run_all.py --plan

OUT/records.tar.gz is all that it leaves, beside OUT/failures.txt where runs failed. It has
`experiments/FOLDER/records/NAME.jsonl.gz` of every experiment that is complete, to be unpacked in the root of the
repository, and `partial/NAME.jsonl.gz` of the others. What is done is looked for in OUT/records.tar.gz, in
local/records.tar.gz and in the records of the repository: a record counts where its fingerprint is that of the code
here. Pure-Python packages that the machine lacks may lie unpacked in local/site-packages.
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
RESERVE = 8.0  # seconds kept for writing the archive
SAVE_EVERY = 45.0  # seconds between archives: one that is killed has lost no more
DONE, FAILED, TIME_IS_UP = 0, 1, 3


def main():
    """Check the machine, then do what is not done yet."""
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
    """The command line, with paths checked."""
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
    """An experiment, its records so far, and what is under way; `reason` says why it cannot be done here."""

    file: Path
    experiment: object
    digits: str | None
    records: list
    reason: str = ""
    skipped: dict = field(default_factory=dict)  # label -> packages that it lacks
    failures: dict = field(default_factory=dict)  # run id -> what happened
    path: Path | None = None
    under_way: set = field(default_factory=set)
    longest: float = 0.0  # seconds of a run

    @classmethod
    def read(cls, file, options):
        """Read an experiment and every record of it that can be found."""
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
        """The labels whose methods need packages that are not here."""
        from sitewise.bench.methods import METHODS

        for entry in self.experiment.methods:
            packages = [name for name in METHODS[entry.method].packages if importlib.util.find_spec(name) is None]
            if packages:
                yield entry.label, packages

    @cached_property
    def state(self):
        """What the records are worth; forgotten when there is a new one."""
        from sitewise.bench.experiments.state import record_state

        return record_state(self.experiment, self.records, self.digits)

    @property
    def is_done(self):
        """Whether nothing is left that can be done here."""
        return bool(self.reason) or not (self.possible(self.state) or self.under_way)

    def possible(self, state):
        """The runs to start: not done, not under way, not failed, no package lacking."""
        return [
            run
            for run in state.remaining
            if run.id not in self.under_way
            and run.id not in self.failures
            and not any(choice.label in self.skipped for choice in run.methods)
        ]

    def start(self, work):
        """Go on from the records that are current, in a file of the work folder."""
        from sitewise.bench.experiments.records import append_record
        from sitewise.bench.experiments.runner import records_path

        self.path = records_path(self.experiment, work)
        for record in self.state.current:
            append_record(self.path, record)
            self.longest = max(self.longest, record["seconds"])

    def end(self, run, outcome):
        """Note how a run ended."""
        from sitewise.bench.experiments.records import read_records

        self.under_way.discard(run.id)
        if outcome.state == "done":
            self.records = read_records(self.path)
            self.longest = max(record["seconds"] for record in self.records)
            self.__dict__.pop("state", None)
        else:
            self.failures[run.id] = f"{self.experiment.name}, {run.label}: {outcome.error or outcome.state}"


def found_records(file, name, out):
    """Every record of an experiment in the archives and in the repository; those of this code count last."""
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
    """The lines of a compressed file."""
    return gzip.decompress(packed).decode().splitlines()


def do_all(plans, pool, options, deadline):
    """Start runs in the order of the plans while there is time, at most one for each process; then wait for them."""
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
            if not waiting[id(plan)] and not plan.under_way:  # settings of grids can be chosen now
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
    """Processes with one thread each; whatever they still do at the end of the block is stopped."""
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
    """NVIDIA's MPS while the block lasts, where there is a GPU: kernels of several processes overlap."""
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
    """Write the archive of all records that are current, whole or not at all."""
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
    """Say how far every experiment is, what cannot be done here, and what failed."""
    for plan in plans:
        print(line_of(plan))
    for plan in plans:
        for failure in plan.failures.values():
            print(f"failed: {failure}")
    sys.stdout.flush()


def line_of(plan):
    """One line about an experiment."""
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
