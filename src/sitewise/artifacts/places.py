"""Write files and folders atomically, one writer at a time.

A writer locks a file beside its path. The operating system releases the lock when the process ends. If the holder of
the lock finds unfinished files there, a killed writer has left them, and the holder removes them.
"""

import ctypes
import errno
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

AT_FDCWD, RENAME_EXCHANGE = -100, 2  # their numbers in fcntl.h and stdio.h of Linux
MOST_READS, PAUSE = 100, 0.01  # attempts to read a folder that is being replaced; seconds between attempts

BUSY = "another program is writing there at this moment: try again when it has finished"
REPLACED = "{path} is being replaced again and again by another program: load it again when that has finished"

Read = TypeVar("Read")


@contextmanager
def sole_writer(place: Path) -> Iterator[Path]:
    """Lock a path for writing, and provide a temporary path for the new file or folder.

    `put_in_place` moves the new file or folder to its path; if that was not done, it is removed at the end. Files left
    by killed writers are removed at the start. Raises BlockingIOError if another process is writing there.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    lock = _take_lock(place)
    own = secrets.token_hex(4)
    try:
        if lock is not None:
            _tidy(place)
        yield _beside(place, "part", own)
    finally:
        _tidy(place, own)
        if lock is not None:
            _hidden(place, "lock").unlink(missing_ok=True)
            os.close(lock)


def put_in_place(part: Path, place: Path) -> None:
    """Move a file or folder from its temporary name to its path.

    The move is atomic, except if a folder replaces another folder on a system that cannot exchange two folders. On such
    a system two renames are needed. If the process is killed between them, the old folder remains under another name,
    where `read_unchanged` and the next writer find it.
    """
    if not part.is_dir() or not place.exists():
        part.replace(place)
    elif not _exchange(part, place):
        place.rename(part.with_name(part.name.replace(".part-", ".old-")))
        part.rename(place)
    make_durable(place.parent)


def read_unchanged(place: Path, read: Callable[[Path], Read]) -> tuple[Read, Path]:
    """Read a folder, and read it again if it was replaced meanwhile; return the result and the path that was read.

    The path that was read is `place`, with one exception: if a writer was killed between the two renames of
    `put_in_place`, it is the path of the renamed old folder.
    """
    for _ in range(MOST_READS):
        source = _whereabouts(place)
        with _pinned(source) as number:
            try:
                return read(source), source
            except (ValueError, OSError):
                if number == _number(source):
                    raise
        time.sleep(PAUSE)
    raise ValueError("load: " + REPLACED.format(path=place))


def make_durable(folder: Path) -> None:
    """Flush the entries of a folder to the disk."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _take_lock(place: Path) -> int | None:
    """Open and lock a file beside the path; return None if the system or its disk does not support locks."""
    if fcntl is None:
        return None
    path = _hidden(place, "lock")
    while True:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(lock).st_ino == _number(path):
                return lock
            os.close(lock)  # another writer has just finished and removed the file
        except OSError as error:
            os.close(lock)
            if error.errno in (errno.EAGAIN, errno.EACCES):
                raise BlockingIOError(errno.EAGAIN, BUSY) from error
            path.unlink(missing_ok=True)
            return None


def _tidy(place: Path, own: str = "") -> None:
    """Restore the old folder if nothing is at its path, and remove unfinished files: those of `own`, or all."""
    asides = _leftovers(place, "old", own)
    if asides and not place.exists():
        asides.pop().rename(place)
    for entry in (*asides, *_leftovers(place, "part", own)):
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)


def _leftovers(place: Path, what: str, own: str = "") -> list[Path]:
    """Return the temporary files of the writer `own`, or those of all unfinished writers, the latest last."""
    if own:
        entry = _beside(place, what, own)
        return [entry] if entry.exists() else []
    name = re.compile(rf"(?s)\.{re.escape(place.name)}\.{what}-[0-9a-f]{{8}}")
    entries = [place.parent / entry for entry in os.listdir(place.parent) if name.fullmatch(entry)]
    return sorted(entries, key=lambda entry: entry.lstat().st_mtime_ns)


def _whereabouts(place: Path) -> Path:
    """Return the path of a folder: `place`, or its new name if a writer was killed before the second rename."""
    if place.exists():
        return place
    home = place.resolve()
    if not home.parent.is_dir() or not _leftovers(home, "old"):
        return place
    time.sleep(PAUSE)  # a running writer may be about to move the new folder to the path
    asides = _leftovers(home, "old")
    return place if home.exists() or not asides else asides[-1]


@contextmanager
def _pinned(folder: Path) -> Iterator[int | None]:
    """Hold a folder open, so that its inode number is not reused, and provide this number; None without a folder."""
    if os.name != "posix":
        yield _number(folder)
        return
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        yield _number(folder)
        return
    try:
        yield os.fstat(handle).st_ino
    finally:
        os.close(handle)


def _number(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None


def _beside(place: Path, what: str, own: str) -> Path:
    return _hidden(place, f"{what}-{own}")


def _hidden(place: Path, what: str) -> Path:
    return place.with_name(f".{place.name}.{what}")


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two paths atomically (Linux); return False if that is not supported."""
    try:
        rename = ctypes.CDLL(None).renameat2
    except (OSError, AttributeError, TypeError):
        return False
    done: int = rename(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE)
    return done == 0
