"""What an attack is, the families of them, and how one is made and judged."""

import faulthandler
import signal
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

Attack = Callable[[np.random.Generator], str]
PATIENCE = 10
GRACE_S = 60  # beyond the limit, for a hang in native code, which no signal of Python's ends


class HangError(Exception):
    """An attack took longer than its family allows."""


@dataclass(frozen=True)
class Family:
    """Attacks of one kind: seed n always makes the same one.

    `attack(rng)` draws its input, calls the library and checks what came back. It returns a word for how it ended
    ("answered", "refused", ...), which is counted; whatever it raises is a failure of the library.
    """

    name: str
    attack: Attack
    short: int  # how many belong to the short run
    limit_s: float  # for one attack
    every: int = 1  # rounds of the long run, one attack


@dataclass(frozen=True)
class Result:
    """How one attack ended."""

    family: str
    seed: int
    ending: str  # the attack's own word, or "FAILED"
    seconds: float
    failure: str = ""  # the traceback

    @property
    def failed(self) -> bool:
        """Whether the library did what it must not."""
        return bool(self.failure)


FAMILIES: dict[str, Family] = {}


def family(*, short: int, limit_s: float = 60.0, every: int = 1) -> Callable[[Attack], Attack]:
    """Register a function of a random generator as a family of attacks, under the function's name."""

    def register(attack: Attack) -> Attack:
        name = attack.__name__
        assert name not in FAMILIES, f"two families are called {name}"
        FAMILIES[name] = Family(name, attack, short, limit_s, every)
        return attack

    return register


def make_attack(chosen: Family, seed: int) -> Result:
    """Make one attack. Warnings are the attack's own business: one that minds them records them itself."""
    start = time.perf_counter()
    try:
        with within(chosen.limit_s), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ending = chosen.attack(np.random.default_rng([seed, *chosen.name.encode()]))
    except Exception:
        return Result(chosen.name, seed, "FAILED", time.perf_counter() - start, traceback.format_exc())
    return Result(chosen.name, seed, ending, time.perf_counter() - start)


@contextmanager
def within(limit_s: float) -> Iterator[None]:
    """Raise `HangError` after so many seconds; a hang in native code ends the process and prints its stack.

    The seconds are of this process's own work: a shared machine may be slow. Without work they are ten times as many.
    """
    start, worked = time.monotonic(), time.process_time()

    def interrupt(number: int, frame: Any) -> None:
        if max(time.process_time() - worked, (time.monotonic() - start) / PATIENCE) >= limit_s:
            signal.setitimer(signal.ITIMER_REAL, 0.0)  # once: a second error would come while the first is handled
            raise HangError(f"more than {limit_s:g} s")

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, limit_s, 0.1 * limit_s)
    faulthandler.dump_traceback_later(PATIENCE * limit_s + GRACE_S, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
