"""`sitewise report`: write a page about an adapted site."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sitewise.cli.output import AsJson, Encoding, Force, OutcomeName, Output, Positive, Quiet, Separator, check_out

if TYPE_CHECKING:
    import pandas as pd

NO_SUBGROUPS = "name the columns with --subgroups age,sex: --bands and --data need them"


def report(
    site: Annotated[Path, typer.Argument(metavar="SITE", help="Folder made by `sitewise adapt`.")],
    out: Annotated[Path, typer.Option(help="The page, .html.", show_default=False)],
    site_name: Annotated[str | None, typer.Option(help="Name of the site on the page.")] = None,
    outcome_name: OutcomeName = None,
    positive: Positive = None,
    level: Annotated[float, typer.Option(min=0.5, max=0.999, help="Confidence level of the intervals.")] = 0.95,
    subgroups: Annotated[
        str | None, typer.Option(help="Columns for subgroups, such as age,sex: confounders, or columns of --data.")
    ] = None,
    bands: Annotated[
        list[str] | None,
        typer.Option(
            help="Edges between the groups of a numeric column, such as age=50,65; otherwise quartiles. Repeated."
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="The rows that were passed to adapt, in the same order, with the columns of --subgroups."),
    ] = None,
    only_site: Annotated[
        str | None, typer.Option("--site", help="Use only the rows of this site, if --data holds several sites.")
    ] = None,
    separator: Separator = None,
    encoding: Encoding = None,
    force: Force = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Write a site's report: one HTML file without external files. --json prints its numbers, unrounded."""
    output = Output(quiet, as_json)
    check_out(out, force, suffixes=(".html", ".htm"))
    with output.working(f"reading {site}"):
        from sitewise.cli.expect import read_rows
        from sitewise.cli.loading import load_site
        from sitewise.estimator.at_site.reporting import report_content
        from sitewise.report.page.render import render
        from sitewise.tables.roles import split_names
        from sitewise.tables.writing import whole_file

        here, edges = load_site(site), read_bands(bands or [])
        if subgroups is None and (edges or data is not None):
            raise ValueError(NO_SUBGROUPS)
        by: Any = None if subgroups is None else list(split_names(subgroups))
        if data is not None:
            rows, _ = read_rows(here, site, data, by, only_site, separator, encoding)
            by = rows.to_pandas().apply(as_numbers)
        said = {"outcome_name": outcome_name, "positive": positive}
        here.rename({name: value for name, value in said.items() if value is not None})
        name = site_name or here.site_name or site.resolve().name
        content = report_content(here, name, level, subgroups=by, bands=edges or None)
        with whole_file(out) as part:
            part.write_text(render(content), encoding="utf-8")
    output.tell(json.loads(json.dumps(content)), here.outcome.sentence, f"wrote {out}")


def as_numbers(column: "pd.Series") -> "pd.Series":
    """Convert a column of a file to numbers if all its known values are numbers; empty cells are missing."""
    import pandas as pd

    from sitewise.tables.values import MISSING

    known = column.mask(column.isin(MISSING))
    numbers = pd.to_numeric(known, errors="coerce")
    return numbers if bool((numbers.notna() == known.notna()).all()) else known


def read_bands(given: list[str]) -> dict[str, list[float]]:
    """Read texts such as `age=50,65` as the edges between the groups of each column."""
    bands = {}
    for text in given:
        name, _, edges = text.partition("=")
        try:
            bands[name.strip()] = [float(edge) for edge in edges.split(",")]
        except ValueError:
            raise ValueError(f"--bands must be a column and numbers, such as age=50,65, got {text!r}") from None
    return bands
