"""The command line: parse, call, print. Whatever takes long to import is imported by the command that needs it."""

from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

import sitewise
from sitewise.bench.cli import bench, data, demo, methods
from sitewise.cli import adapt, export, fit, init, monitor, plan, predict, report

app = typer.Typer(
    help="Adapt a classifier to a new site with unlabeled data only.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(demo.demo)
app.command()(init.init)
app.command()(fit.fit)
app.command()(adapt.adapt)
app.command()(predict.predict)
app.command()(report.report)
app.command()(export.export)
app.command()(monitor.monitor)
app.command()(methods.methods)
app.command()(plan.plan)
app.add_typer(bench.app, name="bench")
app.add_typer(data.app, name="data")


def main() -> None:
    """Run the command line; wrong input ends with exit code 2 and one sentence, a failure of ours with 1."""
    try:
        app()
    except (ValueError, OSError, ImportError) as error:
        Console(stderr=True).print(Text.assemble(("sitewise: ", "bold"), _words(error)), soft_wrap=True)
        raise SystemExit(2) from error


def _words(error: Exception) -> str:
    """An error's words, without the number that the system gives it."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)


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
