"""`sitewise export`: write an adapted site as an ONNX file."""

from pathlib import Path
from typing import Annotated

import typer

from sitewise.cli.output import AsJson, Force, Output, Quiet, check_out


def export(
    site: Annotated[Path, typer.Argument(metavar="SITE", help="Folder made by `sitewise adapt`.")],
    out: Annotated[Path, typer.Option(help="The graph, .onnx.", show_default=False)],
    dtype: Annotated[
        str,
        typer.Option(
            help="Type of the input x: uint8, float32 or float64; auto is uint8 for images, otherwise float32."
        ),
    ] = "auto",
    force: Force = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Write the prediction at an adapted site as an ONNX graph, after a comparison with the model."""
    output = Output(quiet, as_json)
    check_out(out, force, suffixes=(".onnx",))
    with output.working(f"reading {site}"):
        from sitewise.cli.loading import load_site
        from sitewise.estimator.files.exporting import export_onnx

        content = export_onnx(load_site(site), out, dtype)
    inputs = "x and z" if content["z"] else "x"
    sentence = f"wrote {out}: {inputs} in, probability out; it differs from the model by {content['difference']:.1e}"
    output.tell({"graph": str(out), **content}, sentence)
