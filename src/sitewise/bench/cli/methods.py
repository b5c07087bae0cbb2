"""`sitewise methods`."""

from dataclasses import asdict
from typing import Annotated

import typer

from sitewise.bench.cli.printing import TableFormat, show


def methods(
    format: Annotated[TableFormat, typer.Option(help="Format of the table.")] = TableFormat.TERMINAL,
) -> None:
    """List what each method needs (sites, z, labels), and how it estimates P(y|z) at a new site."""
    from sitewise.bench.methods import METHODS
    from sitewise.bench.report.tables import methods_table

    show(methods_table({key: asdict(method.card) for key, method in METHODS.items()}, format.value))
