"""Options that several commands have, said once."""

from pathlib import Path
from typing import Annotated

import typer

Data = Annotated[
    Path, typer.Argument(metavar="DATA", help="CSV (.csv, .csv.gz, .tsv) or Parquet, a row for each sample.")
]
Separator = Annotated[str | None, typer.Option(help="Between the columns of a CSV; a comma (.tsv: a tab) otherwise.")]
Encoding = Annotated[str | None, typer.Option(help="Of a CSV's text, latin-1 for example; UTF-8 otherwise.")]
Force = Annotated[bool, typer.Option("--force", help="Replace what is at --out.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of the summary.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")]
OutcomeName = Annotated[str | None, typer.Option(help="What the label is called where people read; its column else.")]
Positive = Annotated[str | None, typer.Option(help="What the second of two classes is called where people read.")]
Packed = Annotated[Path | None, typer.Option(help="Take images from this folder, made by `sitewise data pack`.")]
