"""The progress bar of a training."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def progress_bar(label: str, epochs: int, verbose: bool | None) -> Iterator[Any]:
    """Show a progress bar if `verbose`; None means on a terminal only."""
    if not (sys.stderr.isatty() if verbose is None else verbose):
        yield lambda record: None
        return
    from rich.console import Console
    from rich.progress import Progress, TextColumn, TimeRemainingColumn

    columns = (*Progress.get_default_columns()[:3], TimeRemainingColumn(), TextColumn("{task.fields[note]}"))
    console = Console(stderr=True)  # without a terminal the bar is printed once, at the end
    with Progress(*columns, console=console, transient=console.is_terminal) as bar:
        task = bar.add_task(label, total=epochs, note="")

        def advance(record: dict[str, float]) -> None:
            note = " ".join(f"{name} {value:.3f}" for name, value in record.items() if name != "epoch")
            bar.update(task, advance=1, note=note)

        yield advance
