"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

Data = Annotated[
    Path, typer.Argument(metavar="DATA", help="CSV (.csv, .csv.gz, .tsv) or Parquet, a row for each sample.")
]
Separator = Annotated[str | None, typer.Option(help="Separator of a CSV; by default a comma (.tsv: a tab).")]
Encoding = Annotated[str | None, typer.Option(help="Encoding of a CSV, for example latin-1; by default UTF-8.")]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing --out.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of the summary.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")]
OutcomeName = Annotated[str | None, typer.Option(help="Name of the outcome in reports; by default its column.")]
Positive = Annotated[str | None, typer.Option(help="Name of the second of two classes in reports.")]
Packed = Annotated[Path | None, typer.Option(help="Read images from this folder, made by `sitewise data pack`.")]
