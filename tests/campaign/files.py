"""Attacks on files: damaged and forged folders, kills and readers during saves, checkpoints, tables, reports.

Everything a folder or a table holds is somebody else's: it is answered or refused with one clear error.
"""

import copy
import hashlib
import html.parser
import io
import itertools
import json
import multiprocessing
import os
import shutil
import signal
import string
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch

import sitewise as sw
from campaign.registry import family
from patience import LONG, no_hang
from sitewise.artifacts.folders import Folder, read_folder, write_folder
from sitewise.cli import main

Rng = np.random.Generator
FORK = multiprocessing.get_context("fork")
SAVED = Path(__file__).parents[1] / "estimator" / "files" / "saved_by_0.1.0"
SHORT = 30_000  # characters of a message
NAMES = [
    "<script>alert(1)</script>",
    "'\"><img src=x onerror=alert(1)>",
    "{{ 7 * 7 }}",
    "</title></style>",
    "a\x00b",
    "\ud800",
    "x" * 3000,
    "\u202eabc",
    "",
    " ",
    "=cmd|' /C calc'!A0",
    "../../etc/passwd",
    "\n\n",
    "ä€𝄞",
    "NaN",
    "None",
]
LEAVES = [
    None,
    True,
    False,
    0,
    -1,
    1,
    10**9,
    10**18,
    2**63,
    0.5,
    -1e300,
    "",
    "x",
    "nan",
    [],
    {},
    [1, 2],
    [[]],
    {"a": 1},
]


@cache
def scratch() -> Path:
    """A folder of this process, removed at its end."""
    holder = tempfile.TemporaryDirectory(prefix="campaign-")
    scratch.holder = holder  # type: ignore[attr-defined]
    return Path(holder.name)


@contextmanager
def place() -> Iterator[Path]:
    """An empty folder for one attack."""
    folder = Path(tempfile.mkdtemp(dir=scratch()))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def rows(n: int = 80) -> tuple[Any, Any, Any, Any, Any]:
    """Inputs, probabilities, labels, sites and z of a few rows."""
    rng = np.random.default_rng(3)
    y = rng.integers(0, 2, n)
    X = rng.normal(size=(n, 3)) + 1.5 * y[:, None]
    p = 1 / (1 + np.exp(2 - X.sum(axis=1)))
    Z = pd.DataFrame({"age": rng.normal(60, 10, n), "level": rng.choice(["a", "b"], n).astype(object)})
    return X, np.stack([1 - p, p], axis=1), y, np.array(["north", "south"])[np.arange(n) % 2], Z


def originals() -> dict[str, Path]:
    """Sites of a network and of an adjuster, saved by an earlier version."""
    return {name: SAVED / name for name in ("network", "adjusted")}


@cache
def answers(name: str) -> bytes:
    """The predictions of an original, to the bit."""
    return predictions(sw.load(originals()[name]))


def predictions(here: Any) -> bytes:
    X, proba, _, _, Z = rows()
    inputs = X if isinstance(here.model, sw.GPAClassifier) else proba
    return np.asarray(here.predict_proba(inputs, sample_confounder=Z)).tobytes()


def refused(call: Callable[[], Any]) -> tuple[Any, str]:
    """What a call gives, and the one message with which it refuses; any other error goes on."""
    try:
        return call(), ""
    except (ValueError, OSError) as error:
        message = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
        assert message
        assert len(message) < SHORT, len(message)
        return None, message


@family(short=40, limit_s=30)
def damaged_folders(rng: Rng) -> str:
    """Bits flipped, bytes cut, zeroed, repeated, files swapped or gone: refused, or nothing that matters changed."""
    name = str(rng.choice(list(originals())))
    with place() as folder:
        copied = shutil.copytree(originals()[name], folder / "site")
        files = sorted(file for file in copied.rglob("*") if file.is_file())
        file = files[rng.integers(len(files))]
        content = bytearray(file.read_bytes())
        at, length = int(rng.integers(len(content))), int(rng.integers(1, 64))
        what = rng.choice(["flip", "cut", "zero", "repeat", "swap", "remove", "link", "folder", "empty", "append"])
        if what == "flip":
            content[at] ^= 1 << int(rng.integers(8))
        elif what == "cut":
            del content[at:]
        elif what == "zero":
            content[at : at + length] = bytes(len(content[at : at + length]))
        elif what == "repeat":
            content[at:at] = content[at : at + length]
        elif what == "append":
            content += rng.bytes(length)
        elif what == "empty":
            content.clear()
        file.write_bytes(content)
        other = files[rng.integers(len(files))]
        if what == "swap":
            file.write_bytes(other.read_bytes())
        elif what in ("remove", "link", "folder"):
            file.unlink()
            if what == "link":
                file.symlink_to(rng.choice(["/dev/zero", "/nowhere", file.name, "/proc/self/mem"]))
            elif what == "folder":
                file.mkdir()
        here, message = refused(lambda: sw.load(copied))
        if here is None:
            assert "load" in message
            return "refused"
        assert predictions(here) == answers(name), "another model was loaded"
        return "answered"


def parts_of(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of everything in JSON."""
    entries = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, part in entries:
        yield (*path, key)
        yield from parts_of(part, (*path, key))


@family(short=80, limit_s=60)
def forged_folders(rng: Rng) -> str:
    """Content changed at random and signed again: it loads and answers in numbers, or is refused by name."""
    original = read_folder(originals()[str(rng.choice(list(originals())))])
    inner = bool(rng.random() < 0.5)
    target = original.inside["model"] if inner else original
    content, tensors = copy.deepcopy(target.content), dict(target.tensors)
    for _ in range(int(rng.integers(1, 3))):
        paths = list(parts_of(content))
        path = paths[rng.integers(len(paths))]
        holder = content
        for key in path[:-1]:
            holder = holder[key]
        what = rng.choice(["leaf", "drop", "copy", "tensor"])
        if what == "leaf":
            holder[path[-1]] = copy.deepcopy(LEAVES[rng.integers(len(LEAVES))])
        elif what == "drop":
            del holder[path[-1]]
        elif what == "copy":
            source: Any = content
            for key in paths[rng.integers(len(paths))]:
                source = source[key]
            holder[path[-1]] = copy.deepcopy(source)
        else:
            name = list(tensors)[rng.integers(len(tensors))]
            tensors[name] = torch.zeros([int(n) for n in rng.integers(0, 9, rng.integers(0, 3))])
    forged = Folder(target.kind, content, tensors, target.card, target.versions, target.inside)
    whole = Folder(original.kind, original.content, original.tensors, "", {}, {"model": forged}) if inner else forged
    with place() as folder:
        _, unwritten = refused(lambda: write_folder(whole, folder / "site"))
        if unwritten:
            return "not written"
        here, message = refused(lambda: sw.load(folder / "site"))
        if here is None:
            assert message.startswith("load: "), message
            return "refused"
        model = here.model if isinstance(here, sw.AdaptedClassifier) else here
        assert getattr(model, "cache", None) is None
        assert getattr(model, "checkpoint", None) is None
        return "answered"


def _save_again(path: str, enough: Any) -> None:
    """Save two sites in turn until it is enough; a slow reader finds a moment in between."""
    for here in itertools.cycle([sw.load(folder) for folder in originals_at(path).values()]):
        here.save(path)
        if enough.wait(0.02):
            return


def originals_at(path: str) -> dict[str, Path]:
    """The originals as another process finds them, beside the place that it writes to."""
    root = Path(path).parent
    return {name: root / f"original {name}" for name in ("network", "adjusted")}


def copy_originals(folder: Path) -> Path:
    for name, source in originals().items():
        shutil.copytree(source, folder / f"original {name}")
    return folder / "site"


@family(short=1, limit_s=120, every=5)
def reads_during_saves(rng: Rng) -> str:
    """While another process saves two sites in turn at one place, every load is the one or the other, whole."""
    with place() as folder:
        path = copy_originals(folder)
        shutil.copytree(folder / "original network", path)
        enough = FORK.Event()
        writer = FORK.Process(target=_save_again, args=(str(path), enough))
        writer.start()
        try:
            for _ in range(20):
                here = sw.load(path)
                name = "network" if isinstance(here.model, sw.GPAClassifier) else "adjusted"
                assert predictions(here) == answers(name), "parts of two models were joined"
        finally:
            enough.set()
            writer.join()
        assert writer.exitcode == 0
        assert sorted(os.listdir(folder)) == ["original adjusted", "original network", "site"]
        return "whole"


@family(short=3, limit_s=120, every=5)
def kills_during_saves(rng: Rng) -> str:
    """A writer killed at any moment leaves one of the two models, whole; the next one leaves nothing else."""
    with place() as folder:
        path = copy_originals(folder)
        shutil.copytree(folder / "original network", path)
        writer = FORK.Process(target=_save_again, args=(str(path), FORK.Event()))
        writer.start()
        time.sleep(0.3 + float(rng.random()))
        assert writer.pid is not None
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
        here = sw.load(path)
        name = "network" if isinstance(here.model, sw.GPAClassifier) else "adjusted"
        assert predictions(here) == answers(name)
        here.save(path)
        assert sorted(os.listdir(folder)) == ["original adjusted", "original network", "site"]
        return "whole"


@family(short=8, limit_s=60)
def damaged_checkpoints(rng: Rng) -> str:
    """A checkpoint with a flipped bit or a piece gone is refused; whole, it leads to the same bits."""
    X, _, y, site, Z = rows()
    with place() as folder:
        file = folder / "f.pt"
        sealed = bytearray(_checkpoint())
        at = int(rng.integers(len(sealed)))
        if rng.random() < 0.7:
            sealed[at] ^= 1 << int(rng.integers(8))
        else:
            del sealed[at:]
        file.write_bytes(sealed)
        model = sw.GPAClassifier(epochs=2, batch_size=32, device="cpu", rehearsal=None, checkpoint=file)
        _, message = refused(lambda: model.fit(X, y, sample_domain=site, sample_confounder=Z))
        assert "checkpoint" in message, "a damaged checkpoint was taken"
        assert file.read_bytes() == sealed
        return "refused"


class StopTrainingError(Exception):
    """The training is to end here."""


@cache
def _checkpoint() -> bytes:
    """The bytes of the checkpoint of a fit that was stopped."""
    from sitewise.training.checkpoint import Checkpoint

    X, _, y, site, Z = rows()
    original, file = Checkpoint.save, scratch() / "stopped.pt"

    def save(self: Checkpoint, *parts: Any) -> None:
        original(self, *parts)
        raise StopTrainingError

    Checkpoint.save = save  # type: ignore[method-assign]
    try:
        model = sw.GPAClassifier(epochs=2, batch_size=32, device="cpu", rehearsal=None, checkpoint=file)
        model.fit(X, y, sample_domain=site, sample_confounder=Z)
    except StopTrainingError:
        pass
    finally:
        Checkpoint.save = original  # type: ignore[method-assign]
    return file.read_bytes()


def command(*arguments: object) -> tuple[int, str]:
    """Exit code and all that a command says."""
    before, said = sys.argv, io.StringIO()
    sys.argv = ["sitewise", *map(str, arguments)]
    try:
        with redirect_stdout(said), redirect_stderr(said):
            main()
    except SystemExit as end:
        return int(end.code or 0), said.getvalue()
    finally:
        sys.argv = before
    return 0, said.getvalue()


@cache
def commanded() -> Path:
    """A site that commands made from a table of probabilities."""
    _, proba, y, site, Z = rows()
    frame = Z.assign(id=np.arange(len(y)), y=y, hospital=site, p0=proba[:, 0], p1=proba[:, 1])
    data, folder = scratch() / "good.csv", scratch() / "commanded"
    frame.to_csv(data, index=False)
    roles = ("--target", "y", "--site", "hospital", "--confounder", "age", "--confounder", "level", "--proba", "p0,p1")
    assert command("fit", data, *roles, "--out", folder / "model", "--quiet")[0] == 0
    assert command("adapt", folder / "model", data, "--site", "north", "--out", folder / "site", "--quiet")[0] == 0
    return folder


def odd_cells(rng: Rng, n: int) -> list[Any]:
    """A column of some kind or of no kind."""
    kinds: list[Callable[[], list[Any]]] = [
        lambda: [None] * n,
        lambda: rng.normal(size=n).tolist(),
        lambda: (10.0 ** rng.integers(-320, 309, n)).tolist(),
        lambda: [float("inf")] * n,
        lambda: [str(rng.choice(NAMES[:5] + NAMES[6:])) for _ in range(n)],
        lambda: pd.date_range("2020", periods=n).tolist(),
        lambda: [f"{x:.1f}".replace(".", ",") for x in rng.normal(size=n)],
        lambda: [True, False] * (n // 2) + [True] * (n % 2),
        lambda: ["".join(rng.choice(list(string.printable), 5)) for _ in range(n)],
        lambda: rng.integers(-(2**62), 2**62, n).tolist(),
        lambda: [[1.0, 2.0]] * n,
        lambda: [{"a": 1}] * n,
        lambda: [b"\xff\x00"] * n,
        lambda: ["1" * 400] * n,
    ]
    return kinds[rng.integers(len(kinds))]()


@family(short=40, limit_s=120)
def malformed_tables(rng: Rng) -> str:
    """A table with odd columns, damaged bytes or another encoding: done, or exit code 2 with a sentence."""
    folder = commanded()
    frame = pd.read_csv(scratch() / "good.csv").head(int(rng.choice([0, 1, 2, 40])))
    for column in rng.choice(frame.columns, int(rng.integers(0, 3)), replace=False):
        frame[column] = pd.Series(odd_cells(rng, len(frame)), index=frame.index, dtype=object)
    if rng.random() < 0.2:
        frame = frame.drop(columns=rng.choice(frame.columns))
    if rng.random() < 0.1:
        frame.columns = rng.choice(NAMES[:5] + NAMES[6:], len(frame.columns))
    with place() as empty:
        suffix = str(rng.choice([".csv", ".csv.gz", ".tsv", ".parquet"]))
        data = empty / f"t{suffix}"
        if suffix == ".parquet":
            arrays = [_arrow(frame.iloc[:, i]) for i in range(frame.shape[1])]
            pq.write_table(pa.Table.from_arrays(arrays, names=[str(name) for name in frame.columns]), data)
        else:
            separator = "\t" if suffix == ".tsv" else str(rng.choice([",", ",", ",", ";"]))
            encoding = str(rng.choice(["utf-8", "utf-8", "utf-8-sig", "utf-16"]))
            frame.to_csv(data, index=False, sep=separator, encoding=encoding)
        if rng.random() < 0.4:
            content = bytearray(data.read_bytes())
            at = int(rng.integers(len(content))) if content else 0
            damage: list[Callable[[], Any]] = [
                lambda: content.__setitem__(slice(at, None), b""),
                lambda: content.__setitem__(slice(at, at), rng.bytes(5)),
                lambda: content.__setitem__(slice(0, 0), b"\n"),
                lambda: content.__setitem__(slice(at, at + 9), bytes(9)),
            ]
            damage[rng.integers(len(damage))]()
            data.write_bytes(content)
        options = [
            [],
            *[["--site", "north"]] * 3,
            ["--encoding", str(rng.choice(["base64", "latin-1", "utf-16", "x"]))],
        ]
        chosen = options[rng.integers(len(options))]
        calls: list[tuple[object, ...]] = [
            ("predict", folder / "site", data, "--out", empty / "p.csv", *chosen),
            ("adapt", folder / "model", data, "--out", empty / "site", *chosen),
            ("monitor", folder / "site", data, "--time", "age", "--window", 20, "--out", empty / "m.png", *chosen),
            ("plan", data, "--target", "y", "--proba", "p0,p1", "--simulations", 0),
            ("init", data),
        ]
        call = calls[rng.integers(len(calls))]
        code, said = command(*call)
        assert "Traceback" not in said
        assert code in (0, 2), f"{call}: {said}"
        assert code == 0 or said.strip(), call
        left = {path.name for path in empty.iterdir()} - {data.name}
        assert code == 0 or not left, f"{left} was left by {call}"
        return "done" if code == 0 else "refused"


def _arrow(column: pd.Series) -> Any:
    try:
        return pa.array(column, from_pandas=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return pa.array(column.map(repr), type=pa.string())


class _Page(html.parser.HTMLParser):
    """Counts what could run or be fetched."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.scripts, self.odd = 0, []  # type: int, list[str]
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        fetches = tag in ("img", "iframe", "object", "embed", "link", "base", "form")
        links = [value or "" for name, value in attrs if name in ("src", "href")]
        if fetches or any(name.startswith("on") for name, _ in attrs) or not all(link[:1] == "#" for link in links):
            self.odd.append(tag)


@family(short=4, limit_s=120, every=4)
def hostile_names_in_reports(rng: Rng) -> str:
    """Sites, classes, columns and levels of any name: a page with one script, our own, that fetches nothing."""
    names = [NAMES[i] for i in rng.permutation(len(NAMES))] + [7, 2.5, True]
    _, proba, y, _, Z = rows(60)
    classes = np.array([str(names[0]), str(names[1])], dtype=object)
    words = [str(name).encode("utf-8", "replace").decode() or "z" for name in names]  # pandas takes no other text
    levels = np.array(words[2:4], dtype=object)
    Z = pd.DataFrame({words[4]: levels[(np.arange(60) // 3) % 2], "age": Z["age"]})
    domain = np.array([names[5], names[6]], dtype=object)[np.arange(60) % 2]
    adjuster = sw.PrevalenceAdjuster(rehearsal=None)
    fitted, message = refused(lambda: adjuster.fit(proba, classes[y], sample_domain=domain, sample_confounder=Z))
    if fitted is None:
        assert message
        return "refused"
    order = [adjuster.classes_.tolist().index(label) for label in classes]
    with place() as folder:
        here = adjuster.adapt(proba[:, np.argsort(order)], sample_confounder=Z)
        page = here.report(folder / "page.html", site=names[-int(rng.integers(1, 8))])
        found = _Page(page.read_text(encoding="utf-8"))
        assert found.scripts == 1
        assert not found.odd
        json.loads((folder / "page.json").read_text(encoding="utf-8"))
        return "answered"


@family(short=1, limit_s=300, every=40)
def writers_at_once(rng: Rng) -> str:
    """Several processes save at one place: the last state is whole, nobody hangs, the others are told."""
    code = (
        "import sys, sitewise as sw\n"
        "here = sw.load(sys.argv[1])\n"
        "for _ in range(15):\n"
        "    try:\n"
        "        here.save(sys.argv[2])\n"
        "    except BlockingIOError as error:\n"
        "        assert 'another program is writing there' in str(error)\n"
    )
    with place() as folder:
        path = copy_originals(folder)
        sources = [folder / f"original {name}" for name in ("network", "adjusted", "network")]
        writers = [subprocess.Popen([sys.executable, "-c", code, source, path]) for source in sources]
        assert [writer.wait(LONG) for writer in writers] == [0, 0, 0]
        here = sw.load(path)
        name = "network" if isinstance(here.model, sw.GPAClassifier) else "adjusted"
        assert predictions(here) == answers(name)
        assert sorted(os.listdir(folder)) == ["original adjusted", "original network", "site"]
        return "whole"


@family(short=30, limit_s=30)
def huge_claims(rng: Rng) -> str:
    """Small documents that claim much: deep, long, of sizes that no tensor has; refused at once, in a short message."""
    with place() as folder:
        copied = shutil.copytree(originals()["network"], folder / "site")
        document = copied / str(rng.choice(["model.json", "model/model.json"]))
        what = rng.choice(["brackets", "braces", "sparse", "key", "size"])
        if what in ("brackets", "braces"):
            document.write_text(("[" if what == "brackets" else '{"a":') * int(rng.integers(1000, 10**5)))
        elif what == "sparse":
            with document.open("r+b") as file:
                file.truncate(int(2 ** rng.integers(27, 41)))
        elif what == "key":
            document.write_text(json.dumps({"format": "x" * int(rng.integers(1, 10**6))}))
        else:
            inner = read_folder(copied / "model")
            inner.content["fitted"]["n_features_in_"] = int(10 ** rng.integers(2, 19))
            write_folder(inner, folder / "other")
            copied = folder / "other"
        with no_hang():
            here, message = refused(lambda: sw.load(copied))
        assert here is None
        assert len(message) < 3000
        return "refused"


def digest_of(path: Path) -> str:
    """The checksum of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


@family(short=20, limit_s=30)
def foreign_folders(rng: Rng) -> str:
    """A path that holds anything of somebody else's is left as it is, to the byte."""
    with place() as folder:
        there = folder / "theirs"
        there.mkdir()
        for name in rng.choice(["model.json", "model.md", "tensors.safetensors", "notes.txt"], 2, replace=False):
            (there / name).write_bytes(rng.choice([b'{"learner": {}}', b"", b"[1]", b'{"format": "other"}', b"\xff"]))
        if rng.random() < 0.3:
            shutil.copytree(originals()["adjusted"], there, dirs_exist_ok=True)
            (there / "mine.txt").write_text("mine")
        before = {path.name: digest_of(path) for path in there.iterdir() if path.is_file()}
        here = sw.load(originals()["adjusted"])
        _, message = refused(lambda: here.save(there))
        assert "nothing was written" in message
        assert {path.name: digest_of(path) for path in there.iterdir() if path.is_file()} == before
        assert os.listdir(folder) == ["theirs"]
        return "refused"
