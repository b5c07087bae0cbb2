"""The formats of tables and figures, and the printing of tables."""

from enum import StrEnum

import typer
from rich.console import Console, RenderableType


class TableFormat(StrEnum):
    """The format of a table."""

    TERMINAL = "terminal"
    MARKDOWN = "markdown"
    CSV = "csv"
    LATEX = "latex"


class FigureFormat(StrEnum):
    """The format of a figure's file."""

    PNG = "png"
    PDF = "pdf"


def show(table: RenderableType) -> None:
    """Print a table: text is printed unchanged, a rich table is fitted to the width of the terminal."""
    if isinstance(table, str):
        typer.echo(table, nl=False)
    else:
        Console().print(table)
