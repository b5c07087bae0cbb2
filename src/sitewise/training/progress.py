"""How far a training has come, on a terminal."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def progress_bar(label: str, epochs: int, verbose: bool | None) -> Iterator[Any]:
    """A progress bar on a terminal, nothing elsewhere."""
    if not (sys.stderr.isatty() if verbose is None else verbose):
        yield lambda record: None
        return
    from rich.console import Console
    from rich.progress import Progress, TextColumn, TimeRemainingColumn

    columns = (*Progress.get_default_columns()[:3], TimeRemainingColumn(), TextColumn("{task.fields[note]}"))
    console = Console(stderr=True)  # elsewhere than on a terminal the bar is printed once, when it is full
    with Progress(*columns, console=console, transient=console.is_terminal) as bar:
        task = bar.add_task(label, total=epochs, note="")

        def advance(record: dict[str, float]) -> None:
            note = " ".join(f"{name} {value:.3f}" for name, value in record.items() if name != "epoch")
            bar.update(task, advance=1, note=note)

        yield advance
