"""`sitewise diagnose`: show the outcome at an adapted site with its reason, and all checks."""

from pathlib import Path
from typing import Annotated

import typer

from sitewise.cli.output import AsJson, Output, Quiet, outcome_text


def diagnose(
    site: Annotated[Path, typer.Argument(metavar="SITE", help="Folder made by `sitewise adapt`.")],
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Show the outcome at a site with its reason and risk, the verdict, and all checks with numbers and advice."""
    output = Output(quiet, as_json)
    with output.working(f"reading {site}"):
        from sitewise.cli.loading import load_site

        here = load_site(site)
        diagnosis = here.diagnose()
        facts = diagnosis.to_dict()
        record = {
            "outcome": facts["outcome"],
            "verdict": diagnosis.verdict,
            "site": here.site_name or site.resolve().name,
            "findings": facts["findings"],
        }
    output.tell(record, outcome_text(diagnosis, all_findings=True))
