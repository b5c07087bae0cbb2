"""`sitewise serve`: serve a saved model or site by MLflow's scoring server."""

from pathlib import Path
from typing import Annotated

import typer

from sitewise.cli.output import Output, Quiet


def serve(
    site: Annotated[Path, typer.Argument(metavar="SITE", help="Folder made by `sitewise adapt` or `sitewise fit`.")],
    host: Annotated[
        str, typer.Option(help="Address to listen at; 0.0.0.0: all addresses of this machine.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen at.")] = 5001,
    workers: Annotated[int, typer.Option(min=1, help="Processes, each with a copy of the model.")] = 1,
    trust: Annotated[
        list[str] | None, typer.Option(help="A type of the classifier inside that may be loaded; repeat it for more.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Serve predictions over HTTP: post rows as JSON, CSV or Parquet to /invocations (needs the extra mlflow)."""
    output = Output(quiet, False)
    with output.working(f"reading {site}"):
        from sitewise.integrations import serving

        serving.check_address(host, port)
        pyfunc = serving.prepare(site, trust or ())
    names = ", ".join(column.name + ("" if column.needed else " (may be missing)") for column in pyfunc.frames.columns)
    output.tell({}, f"rows with the columns {names} are taken at http://{host}:{port}/invocations; stop with Ctrl+C")
    serving.serve(pyfunc, host, port, workers)
