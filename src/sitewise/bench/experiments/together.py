"""The processes of torchrun on one run after another: the first decides and records, the others take part."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from sitewise.bench.experiments.plan import Run
from sitewise.bench.experiments.records import Record

Do = Callable[[Run], Record]


@contextmanager
def leading(fabric: Any, do: Do) -> Iterator[Do]:
    """A way to do a run together with those that follow; at the end of the block they are told that it was the last."""

    def together(run: Run) -> Record:
        fabric.broadcast(run)
        return do(run)

    yield together
    fabric.broadcast(None)


def follow(fabric: Any, do: Do) -> None:
    """Do the runs that the first process names, and forget their records: it has the same."""
    for run in _named(fabric):
        do(run)


def _named(fabric: Any) -> Iterable[Run]:
    while (run := fabric.broadcast(None)) is not None:
        yield run
