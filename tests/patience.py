"""Waiting and limits that hold on a machine of any speed, however busy it is."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LONG = 600  # seconds: only a hang takes so long
CPU_S = 60  # seconds of this process's own work, where a few are usual and a hang takes minutes or gigabytes


def wait_for(condition: Callable[[], object]) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < end, f"not within {LONG} s"
        time.sleep(0.01)


@contextmanager
def no_hang() -> Iterator[None]:
    """Fail where the block takes more work than a hang-free one could; other processes do not count."""
    start = time.process_time()
    yield
    assert time.process_time() - start < CPU_S
