"""The formats of tables, and how they reach the terminal."""

from enum import StrEnum
from typing import TYPE_CHECKING

import typer
from rich.console import Console, RenderableType
from rich.text import Text

if TYPE_CHECKING:
    from sitewise.diagnosis import Diagnosis

VERDICT_STYLES = {"adapt": "bold green", "care": "bold yellow", "do not adapt": "bold red"}


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


def outcome_text(diagnosis: "Diagnosis", *, all_findings: bool = False) -> Text:
    """What was done at a site and why, the risk, the verdict, and the findings that are not good, with advice."""
    assert diagnosis.outcome is not None
    said = Text.assemble((diagnosis.outcome.sentence, "bold"), f"\n{diagnosis.outcome.risk}\nverdict: ")
    said.append(diagnosis.verdict, VERDICT_STYLES[diagnosis.verdict])
    for finding in diagnosis.findings:
        if all_findings:
            said.append(f"\n  {finding}")
        elif finding.severity in ("care", "stop"):
            said.append(f"\n  {finding.name}: {finding.sentence} {finding.advice}".rstrip())
    return said
