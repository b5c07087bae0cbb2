"""The command line: parse arguments, call the library, print results. A command makes its slow imports itself."""

import os
import traceback
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

import sitewise
from sitewise.bench.cli import bench, data, demo, methods
from sitewise.cli import (
    adapt,
    card,
    diagnose,
    evaluate,
    expect,
    export,
    fit,
    init,
    monitor,
    plan,
    predict,
    rehearse,
    report,
    sample,
    serve,
)

TRACEBACK = "SITEWISE_TRACEBACK"
MOST_LETTERS = 500
OURS = (
    "this is an error in sitewise, not in your data ({error}). Please report it as an issue of the project, with the "
    "command and what it prints with {variable}=1, without patients' data"
)

app = typer.Typer(
    help="Adapt a classifier to a new site with unlabeled data only.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command()(demo.demo)
app.command()(init.init)
app.command()(fit.fit)
app.command()(adapt.adapt)
app.command()(predict.predict)
app.command()(diagnose.diagnose)
app.command()(rehearse.rehearse)
app.command()(report.report)
app.command()(expect.expect)
app.command()(evaluate.evaluate)
app.command()(sample.sample)
app.command()(card.card)
app.command()(export.export)
app.command()(serve.serve)
app.command()(monitor.monitor)
app.command()(methods.methods)
app.command()(plan.plan)
app.add_typer(bench.app, name="bench")
app.add_typer(data.app, name="data")


def main() -> None:
    """Run the command line. The exit code is 2, with a message, for wrong input, and 1 for an error in sitewise."""
    try:
        app()
    except (ValueError, OSError, ImportError) as error:
        _say(_words(error))
        raise SystemExit(2) from error
    except Exception as error:  # anything else is an error in sitewise
        if os.environ.get(TRACEBACK):
            traceback.print_exc()
        said = " ".join(f"{type(error).__name__}: {error}".split())[:MOST_LETTERS]
        _say(OURS.format(error=said, variable=TRACEBACK))
        raise SystemExit(1) from error


def _say(words: str) -> None:
    """Print a message to the error stream; characters that cannot be encoded are escaped."""
    written = words.encode("utf-8", "backslashreplace").decode()
    Console(stderr=True).print(Text.assemble(("sitewise: ", "bold"), written), soft_wrap=True)


def _words(error: Exception) -> str:
    """Return the message of an error, without its system number."""
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
