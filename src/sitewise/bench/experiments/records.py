"""Records: one JSON line for each run, appended atomically. Claims of runs let several runners share a folder."""

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
DIGITS = 6  # significant digits of every number
CLAIMS = ".claims"
FINGERPRINT = "fingerprint"  # the key of the fingerprint of code and settings in a record
# A line starts with id and fingerprint, so that finished runs are found without parsing the rest of the line.
HEAD = re.compile(rb'\{"id": "([^"]+)"(?:, "fingerprint": "([^"]*)")?')


def append_record(path: Path, record: Record) -> None:
    """Append a record as one line, with numbers rounded to six significant digits.

    A lock makes the write atomic for other processes. If the last line is incomplete because a process was killed, it
    is removed first.
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
    """Read the records of `path` and of its compressed part (`path` with .gz added), if they exist.

    If several records have the same id, the last one is used; those of `path` come last.
    """
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
    """Return the fingerprint of each record by its id, "" if it has none; the last record with an id counts."""
    heads = (HEAD.match(line) for file in _files(path) for line in _lines(file))
    return {head.group(1).decode(): (head.group(2) or b"").decode() for head in heads if head}


def done_ids(path: Path, fingerprint: str | None = None) -> set[str]:
    """Return the ids of all records, or of the records with the given fingerprint."""
    return {name for name, mark in fingerprints(path).items() if fingerprint in (None, mark)}


@contextmanager
def claim(path: Path, run_id: str) -> Iterator[bool]:
    """Claim a run until the end of the block; the value is True if no other process holds the claim.

    A claim also ends with its process. After claiming, look at the records again: another runner may have finished the
    run in the meantime.
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
    # This line is reached only after a finished run. A process that claims the run now finds the record.
    with suppress(PermissionError):
        mark.unlink(missing_ok=True)


def rounded(value: Any) -> Any:
    """Return the value with all floats in nested dicts and lists rounded to six significant digits."""
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
    """Return the complete lines of a file, without a last line that is incomplete because a process was killed."""
    data = file.read_bytes()
    lines = (gzip.decompress(data) if file.suffix == ".gz" else data).splitlines(keepends=True)
    return [line for line in lines if line.strip() and (line.endswith(b"\n") or _is_json(line))]


def _mend(file: Any) -> None:
    """Remove an incomplete last line; if it is complete without a line end, add the line end."""
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
