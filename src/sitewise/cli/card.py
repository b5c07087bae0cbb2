"""`sitewise card`: write a site's CHAI applied model card and TRIPOD+AI checklist, and show its change control."""

import tomllib
from pathlib import Path
from typing import Annotated, Any

import typer

from sitewise.cli.output import AsJson, Force, Output, Quiet, check_out


def card(
    site: Annotated[Path, typer.Argument(metavar="SITE", help="Folder made by `sitewise adapt`.")],
    out: Annotated[Path, typer.Option(help="The CHAI applied model card, .xml.", show_default=False)],
    checklist: Annotated[Path | None, typer.Option(help="Write the TRIPOD+AI checklist to this file, .md.")] = None,
    author: Annotated[
        Path | None, typer.Option(help="TOML with the author's fields (developer, funding, ...).")
    ] = None,
    site_name: Annotated[str | None, typer.Option(help="Name of the site on the card.")] = None,
    level: Annotated[float, typer.Option(min=0.5, max=0.999, help="Confidence level of the intervals.")] = 0.95,
    alarm_level: Annotated[
        float,
        typer.Option(min=1e-6, max=0.5, help="Probability of an alarm by `monitor` in any window if nothing changed."),
    ] = 0.01,
    force: Force = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Write a site's applied model card (CHAI) and TRIPOD+AI checklist; --json prints checklist and change control."""
    output = Output(quiet, as_json)
    check_out(out, force, suffixes=(".xml",))
    if checklist is not None:
        check_out(checklist, force, suffixes=(".md",))
    given = {} if author is None else _read_author(author)
    with output.working(f"reading {site}"):
        from sitewise.cli.loading import load_site
        from sitewise.estimator.at_site.reporting import report_content
        from sitewise.report.standards import (
            applied_model_card,
            change_control,
            checklist_markdown,
            tripod_checklist,
        )
        from sitewise.tables.writing import whole_file

        here = load_site(site)
        content = report_content(here, site_name or here.site_name or site.resolve().name, level)
        items, changes = tripod_checklist(content), change_control(content, alarm_level)
        texts = {out: applied_model_card(content, given)}
        if checklist is not None:
            texts[checklist] = checklist_markdown(items)
        for path, text in texts.items():
            with whole_file(path) as part:
                part.write_text(text, encoding="utf-8")
    filled = sum(item["filled"] is not None for item in items)
    record = {"out": str(out), "checklist": items, "change_control": changes}
    said = [f"wrote {path}" for path in texts]
    said.append(f"TRIPOD+AI: {filled} of {len(items)} items filled in, the author fills in the others")
    said += [f"{line['trigger']}: {line['rule']} -> {line['action']}" for line in changes]
    output.tell(record, *said)


def _read_author(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path} is not TOML: {error}") from None
