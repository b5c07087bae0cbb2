"""`sitewise report`: an adapted site as one page."""

import json
from pathlib import Path
from typing import Annotated

import typer

from sitewise.cli.options import AsJson, Force, OutcomeName, Positive, Quiet
from sitewise.cli.output import Output, check_out


def report(
    site: Annotated[Path, typer.Argument(metavar="SITE", help="Folder made by `sitewise adapt`.")],
    out: Annotated[Path, typer.Option(help="The page, .html.", show_default=False)],
    site_name: Annotated[str | None, typer.Option(help="What the page calls the site.")] = None,
    outcome_name: OutcomeName = None,
    positive: Positive = None,
    level: Annotated[float, typer.Option(min=0.5, max=0.999, help="Of the intervals.")] = 0.95,
    force: Force = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Write a site's report: one HTML file that needs nothing else. --json prints its numbers, unrounded."""
    output = Output(quiet, as_json)
    check_out(out, force, suffixes=(".html", ".htm"))
    with output.working(f"reading {site}"):
        from sitewise.cli.loading import load_site
        from sitewise.estimator.at_site.reporting import report_content
        from sitewise.report.page import render
        from sitewise.tables import whole_file

        here = load_site(site)
        said = {"outcome_name": outcome_name, "positive": positive}
        here.rename({name: value for name, value in said.items() if value is not None})
        content = report_content(here, site_name or here.site_name or site.resolve().name, level)
        with whole_file(out) as part:
            part.write_text(render(content), encoding="utf-8")
    output.tell(json.loads(json.dumps(content)), here.outcome.sentence, f"wrote {out}")
