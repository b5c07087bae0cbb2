"""The command line: parse, call, print. Whatever takes long to import is imported by the command that needs it."""

from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

import sitewise
from sitewise.cli import bench, data, demo, methods, plan

app = typer.Typer(
    help="Adapt a classifier to a new site with unlabeled data only.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(demo.demo)
app.command()(methods.methods)
app.command()(plan.plan)
app.add_typer(bench.app, name="bench")
app.add_typer(data.app, name="data")


def main() -> None:
    """Run the command line; wrong input ends with exit code 2 and one sentence, a failure of ours with 1."""
    try:
        app()
    except (ValueError, FileNotFoundError, ImportError) as error:
        Console(stderr=True).print(Text.assemble(("sitewise: ", "bold"), str(error)), soft_wrap=True)
        raise SystemExit(2) from error


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"sitewise {sitewise.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Adapt a classifier to a new site with unlabeled data only."""
