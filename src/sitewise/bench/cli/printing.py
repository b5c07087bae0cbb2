"""The formats of tables, and how they reach the terminal."""

from enum import StrEnum

import typer
from rich.console import Console, RenderableType


class TableFormat(StrEnum):
    """How a table is written."""

    TERMINAL = "terminal"
    MARKDOWN = "markdown"
    CSV = "csv"
    LATEX = "latex"


class FigureFormat(StrEnum):
    """The file a figure is written to."""

    PNG = "png"
    PDF = "pdf"


def show(table: RenderableType) -> None:
    """Print a table: text as it is, anything else as wide as the terminal."""
    if isinstance(table, str):
        typer.echo(table, nl=False)
    else:
        Console().print(table)
