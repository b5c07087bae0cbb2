"""Records: one JSON line for each run, appended atomically; claims, so that two runners can share a folder."""

import gzip
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

Record = dict[str, Any]
DIGITS = 6  # significant ones of every number
CLAIMS = ".claims"
FINGERPRINT = "fingerprint"  # of the code and settings behind a record
# A line starts with both, so that finding what is done need not parse the rest.
HEAD = re.compile(rb'\{"id": "([^"]+)"(?:, "fingerprint": "([^"]*)")?')


def append_record(path: Path, record: Record) -> None:
    """Append a record as one line, completely or not at all for any other process; numbers are rounded to six digits.

    A line that was cut short by a kill is removed first: no other process can be writing at that time.
    """
    assert next(iter(record)) == "id"
    head = {key: record[key] for key in ("id", FINGERPRINT) if key in record}
    line = json.dumps(rounded(head | record), ensure_ascii=False, allow_nan=False).encode() + b"\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(f".{path.name}.lock")), path.open("a+b") as file:
        _mend(file)
        file.write(line)
        file.flush()
        os.fsync(file.fileno())


def read_records(path: Path) -> list[Record]:
    """All records, one for each id: those of `path` with .gz added, if it exists, and those of `path`."""
    by_id: dict[str, Record] = {}
    for file in _files(path):
        for number, line in enumerate(_lines(file), start=1):
            try:
                record = json.loads(line)
                by_id[record["id"]] = record
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{file}, line {number}: not a record ({error!r}); delete the line") from None
    return list(by_id.values())


def fingerprints(path: Path) -> dict[str, str]:
    """The fingerprint of each record by its id, "" if it has none; of several with one id the last counts."""
    heads = (HEAD.match(line) for file in _files(path) for line in _lines(file))
    return {head.group(1).decode(): (head.group(2) or b"").decode() for head in heads if head}


def done_ids(path: Path, fingerprint: str | None = None) -> set[str]:
    """The ids of all records; with a fingerprint, of those that have it."""
    return {name for name, mark in fingerprints(path).items() if fingerprint in (None, mark)}


@contextmanager
def claim(path: Path, run_id: str) -> Iterator[bool]:
    """Claim a run for the duration of the block: True if no other process holds it. The claim ends with the process.

    After claiming, call `done_ids` again: another runner may have finished the run before.
    """
    folder = path.parent / CLAIMS
    folder.mkdir(parents=True, exist_ok=True)
    mark = folder / run_id
    lock = FileLock(mark, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        yield False
        return
    try:
        yield True
    finally:
        lock.release()
    # Only a finished run gets here. A process that holds the mark now finds the record.
    with suppress(PermissionError):
        mark.unlink(missing_ok=True)


def rounded(value: Any) -> Any:
    """Numbers to six significant digits, in nested dicts and lists."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {key: rounded(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(entry) for entry in value]
    return value


def _files(path: Path) -> list[Path]:
    return [file for file in (path.with_name(path.name + ".gz"), path) if file.exists()]


def _lines(file: Path) -> list[bytes]:
    """The complete lines of a file; one that was cut short by a kill is left out."""
    data = file.read_bytes()
    lines = (gzip.decompress(data) if file.suffix == ".gz" else data).splitlines(keepends=True)
    return [line for line in lines if line.strip() and (line.endswith(b"\n") or _is_json(line))]


def _mend(file: Any) -> None:
    """Remove a last line that was cut short; add a missing line end to a complete one."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - 1))
    if file.read() in (b"", b"\n"):
        return
    file.seek(0)
    data = file.read()
    tail = data[data.rfind(b"\n") + 1 :]
    if _is_json(tail):
        file.write(b"\n")
    else:
        file.truncate(size - len(tail))


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True
