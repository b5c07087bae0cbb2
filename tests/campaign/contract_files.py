"""Attacks on saved models and on processes, written from docs/saving.md and docs/training.md."""

import itertools
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

import numpy as np
import yaml

import sitewise as sw
from campaign.contract_models import fitted
from campaign.files import parts_of, place, refused, rows, scratch
from campaign.registry import family
from patience import LONG

Rng = np.random.Generator


def bits(here: Any) -> bytes:
    """What a site answers."""
    _, probability, _, Z = fitted()
    return np.asarray(here.predict_proba(probability, sample_confounder=Z)).tobytes()


@cache
def saved() -> dict[str, Path]:
    """Two sites of one model, saved by this version, that answer differently."""
    model, probability, y, Z = fitted()
    folder = scratch() / "saved"
    for name, chosen in (("few", y == 0), ("many", y == 1)):
        model.adapt(probability[chosen], sample_confounder=Z[chosen], policy="rows").save(folder / name)
    return {name: folder / name for name in ("few", "many")}


@cache
def expected() -> dict[str, bytes]:
    """The answers of both."""
    found = {name: bits(sw.load(path)) for name, path in saved().items()}
    assert len(set(found.values())) == 2
    return found


@family(short=25, limit_s=60)
def what_disks_do(rng: Rng) -> str:
    """Copies as programs and people make them: the same bits, or a refusal; never another site's answers."""
    with place() as folder:
        name = str(rng.choice(sorted(saved())))
        other = next(one for one in saved() if one != name)
        copied = shutil.copytree(saved()[name], folder / "copy")
        files = sorted(path for path in copied.rglob("*") if path.is_file())
        file = files[rng.integers(len(files))]
        theirs = saved()[other] / file.relative_to(copied)
        content = file.read_bytes()
        start, end = np.sort(rng.integers(0, len(content) + 1, 2)).tolist()
        changes: dict[str, Callable[[], Any]] = {
            "whole": lambda: None,
            "touched": lambda: os.utime(file, (0, 0)),
            "line ends": lambda: file.write_bytes(content.replace(b"\n", b"\r\n")),
            "a mark of order": lambda: file.write_bytes(b"\xef\xbb\xbf" + content),
            "another encoding": lambda: file.write_bytes(content.decode("latin-1").encode("utf-16")),
            "a last line": lambda: file.write_bytes(content + b"\n"),
            "a block of zeros": lambda: file.write_bytes(content[:start] + bytes(end - start) + content[end:]),
            "a block of the other": lambda: file.write_bytes(content[:start] + theirs.read_bytes()[start:]),
            "the other's file": lambda: shutil.copy(theirs, file),
            "the other's model": lambda: shutil.copytree(
                saved()[other] / "model", copied / "model", dirs_exist_ok=True
            ),
            "swapped bytes": lambda: file.write_bytes(content[:start] + content[start:end][::-1] + content[end:]),
            "case of the name": lambda: file.rename(file.with_name(file.name.upper())),
            "a hidden file": lambda: (copied / ".DS_Store").write_bytes(b"x"),
            "a linked folder": lambda: (
                (copied / "model").rename(folder / "m") and (copied / "model").symlink_to(folder / "m")
            ),
            "half": lambda: [path.unlink() for path in files if rng.random() < 0.5],
            "nothing": lambda: [path.write_bytes(b"") for path in files],
            "by random bits": lambda: file.write_bytes(rng.bytes(len(content))),
            "a number": lambda: file.write_bytes(content.replace(b"1", b"2", 1)),
            "a key": lambda: file.write_bytes(content.replace(b'"kind"', b'"kimd"', 1)),
            "a huge number": lambda: file.write_bytes(content.replace(b": 1", b": 1" + b"0" * 5000, 1)),
        }
        what = str(rng.choice(sorted(changes)))
        changes[what]()
        here, message = refused(lambda: sw.load(copied))
        if here is None:
            assert "load: " in message, message
            assert len(message) < 3000
            return "refused"
        assert bits(here) == expected()[name], f"{what} of {file.name} led to other answers"
        return "the same bits"


def _save_both(path: str, paths: list[str]) -> None:
    sites = [sw.load(one) for one in paths]
    for here in itertools.cycle(sites):
        here.save(path)
        time.sleep(0.02)  # a slow reader finds a moment in between


@cache
def busy_place() -> Path:
    """A place at which another process saves the two sites in turn until this one ends."""
    path = scratch() / "busy" / "site"
    shutil.copytree(saved()["few"], path)
    expected()
    writer = multiprocessing.get_context("fork").Process(
        target=_save_both, args=(str(path), [str(one) for one in saved().values()]), daemon=True
    )
    writer.start()
    Finalize(None, writer.kill, exitpriority=100)  # a worker runs no atexit; a stopped process needs a kill
    busy_place.writer = writer  # type: ignore[attr-defined]
    return path


@family(short=2, limit_s=60, every=4)
def loads_of_a_busy_place(rng: Rng) -> str:
    """Ten loads of a place that is replaced all the time: each is one of the two sites, whole."""
    path = busy_place()
    writer: Any = busy_place.writer  # type: ignore[attr-defined]
    os.kill(writer.pid, signal.SIGCONT)
    try:
        for _ in range(10):
            assert bits(sw.load(path)) in expected().values(), "parts of two sites were joined"
        assert writer.is_alive(), "the writer failed"
    finally:
        os.kill(writer.pid, signal.SIGSTOP)  # it takes no time from other attacks
    return "whole"


@family(short=4, limit_s=60, every=4)
def killed_writers(rng: Rng) -> str:
    """A process killed while it saves over a site: the old or the new one is there, and nothing else after a save."""
    with place() as folder:
        path = folder / "site"
        shutil.copytree(saved()["few"], path)
        old, new = sw.load(saved()["few"]), sw.load(saved()["many"])
        pid = os.fork()
        if pid == 0:
            try:
                while True:
                    new.save(path)
                    old.save(path)
            finally:
                os._exit(1)
        time.sleep(float(rng.exponential(0.03)))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        found = bits(sw.load(path))
        assert found in expected().values(), "what was killed left another model"
        old.save(path)
        assert bits(sw.load(path)) == expected()["few"]
        assert os.listdir(folder) == ["site"], os.listdir(folder)
    return "whole"


@cache
def trained_at_once() -> bytes:
    """The log-ratios of a network whose training nobody disturbed."""
    X, _, y, site, Z = rows()
    model = _trainee(None).fit(X, y, sample_domain=site, sample_confounder=Z)
    return np.asarray(model.log_ratio(X, sample_confounder=Z)).tobytes()


def _trainee(checkpoint: Path | None) -> Any:
    return sw.GPAClassifier(
        epochs=6, batch_size=16, device="cpu", rehearsal=None, random_state=5, checkpoint=checkpoint
    )


@family(short=1, limit_s=120, every=8)
def killed_trainings(rng: Rng) -> str:
    """A training killed at any moment and started again, twice: the same bits as one that nobody disturbed."""
    expected_bits = trained_at_once()
    X, _, y, site, Z = rows()
    with place() as folder:
        file = folder / "training.pt"
        for _ in range(2):
            pid = os.fork()
            if pid == 0:
                try:
                    _trainee(file).fit(X, y, sample_domain=site, sample_confounder=Z)
                finally:
                    os._exit(0)
            time.sleep(float(rng.uniform(0.0, 1.5)))
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        model = _trainee(file).fit(X, y, sample_domain=site, sample_confounder=Z)
        assert np.asarray(model.log_ratio(X, sample_confounder=Z)).tobytes() == expected_bits
        assert set(os.listdir(folder)) <= {file.name}, os.listdir(folder)
    return "the same bits"


EXPERIMENT = Path(__file__).parents[2] / "experiments" / "simulated" / "mixed_z.yaml"


@family(short=10, limit_s=60)
def odd_experiments(rng: Rng) -> str:
    """An experiment's YAML of any shape: read, or refused in one message that is not long."""
    from sitewise.bench.experiments import read_experiment

    leaves: list[Any] = [
        None,
        True,
        -1,
        10**30,
        0.5,
        float("nan"),
        "",
        "x" * 2000,
        [],
        {},
        [[1]],
        {"a": {"b": 1}},
        "../..",
    ]
    tree: Any = yaml.safe_load(EXPERIMENT.read_text(encoding="utf-8"))
    for _ in range(int(rng.integers(0, 3))):
        paths = [*parts_of(tree), ("nonsense",)]
        *above, last = paths[rng.integers(len(paths))]
        holder = tree
        for key in above:
            holder = holder[key]
        if rng.random() < 0.3 and last != "nonsense":
            del holder[last]
        else:
            holder[last] = leaves[rng.integers(len(leaves))]
    text = yaml.safe_dump(tree, allow_unicode=True)
    spoil = rng.random()
    if spoil < 0.2:
        at = int(rng.integers(len(text)))
        text = (
            text[:at]
            + str(rng.choice(["\t", "{", "]", "&a *a", "!!python/object:os.system", ": :", "\x00"]))
            + text[at:]
        )
    with place() as folder:
        path = folder / "experiment.yaml"
        path.write_text(text, encoding="utf-8")
        experiment, message = refused(lambda: read_experiment(path))
        assert experiment is not None or 10 < len(message) < 20_000, message[:300]
        return "read" if experiment is not None else "refused"


@family(short=0, limit_s=200, every=60)
def interrupted_benchmarks(rng: Rng) -> str:
    """An interrupt of `sitewise bench run --jobs 2` at any moment: ended at once, every record whole."""
    bench = Path(__file__).parents[1] / "bench" / "experiments"
    code = (
        f"import sys, copy, yaml; sys.path.insert(0, {str(bench)!r}); from conftest import TINY, merge; "
        "from test_runner import REAL; print(yaml.safe_dump(merge(copy.deepcopy(TINY), REAL | "
        "{'seeds': 200, 'recipe': {'epochs': 5, 'min_steps': 0}}), sort_keys=False))"
    )
    with place() as folder:
        path = folder / "tiny.yaml"
        path.write_text(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
        command = [sys.executable, "-m", "sitewise", "bench", "run", path, "--out", folder, "--jobs", "2"]
        before = signal.signal(signal.SIGINT, signal.default_int_handler)  # what is ignored here is ignored there
        process = subprocess.Popen([*map(str, command), "--device", "cpu"], stderr=subprocess.PIPE, text=True)
        signal.signal(signal.SIGINT, before)
        try:
            time.sleep(float(rng.uniform(3, 30)))
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=LONG)
        finally:
            process.kill()
        assert process.returncode in (130, -signal.SIGINT), (process.returncode, said)
        if process.returncode == 130:
            assert "Traceback" not in said, said
        from sitewise.bench.experiments.records import done_ids

        record = folder / "tiny.jsonl"
        lines = record.read_bytes().splitlines() if record.exists() else []
        assert len(done_ids(record)) >= len(lines) - 1
    return "ended"
