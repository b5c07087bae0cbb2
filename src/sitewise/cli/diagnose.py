"""`sitewise diagnose`: what was done at an adapted site and why, with every check."""

from pathlib import Path
from typing import Annotated

import typer

from sitewise.cli.options import AsJson, Quiet
from sitewise.cli.outcome import outcome_text
from sitewise.cli.output import Output


def diagnose(
    site: Annotated[Path, typer.Argument(metavar="SITE", help="Folder made by `sitewise adapt`.")],
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """What was done at a site and why, what it risks, the verdict, and every check with its number and advice."""
    output = Output(quiet, as_json)
    with output.working(f"reading {site}"):
        from sitewise.cli.loading import load_site

        here = load_site(site)
        diagnosis = here.diagnose()
        found = diagnosis.to_dict()
        record = {
            "outcome": found["outcome"],
            "verdict": diagnosis.verdict,
            "site": here.site_name or site.resolve().name,
            "findings": found["findings"],
        }
    output.tell(record, outcome_text(diagnosis, all_findings=True))
