"""Write the page from its content, as one HTML file that loads nothing from the network."""

import base64
import hashlib
import json
import os
from functools import cache
from importlib.resources import files
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from sitewise.evaluation import metric_name
from sitewise.report import wording
from sitewise.report.page import figures
from sitewise.report.page.content import Content
from sitewise.report.page.drawings import sign
from sitewise.tables.writing import whole_file

BEGINNING = b'{\n "format": "sitewise report'  # the first bytes of the JSON file of a report
NOT_OURS = (
    "write_report: the numbers of {page} would be written to {beside}, which exists and is not a report: "
    "choose another name for the page, or move that file; nothing was written"
)
SEVERITY_OF = {"adapt": "good", "care": "care", "do not adapt": "stop"}


def write_report(content: Content, path: str | os.PathLike[str]) -> Path:
    """Write the page to `path` and the same content as JSON next to it; return the path of the page."""
    page = Path(path)
    if page.suffix.lower() == ".json":
        raise ValueError(f"write_report: {page} is the name of the JSON file; choose a page name such as report.html")
    if page.is_dir():
        raise ValueError(f"write_report: {page} is a folder; name the page in it, such as {page / 'report.html'}")
    beside = page.with_suffix(".json")
    if beside.exists() and not _is_ours(beside):
        raise FileExistsError(NOT_OURS.format(page=page, beside=beside))
    html = render(content)
    numbers = json.dumps(content, indent=1, allow_nan=False)
    for file, text in ((page, html), (beside, numbers)):
        with whole_file(file) as part:
            part.write_text(text, encoding="utf-8")
    return page


def _is_ours(numbers: Path) -> bool:
    """Whether a file is the JSON of a report: it begins as such files do."""
    if not numbers.is_file():
        return False
    with numbers.open("rb") as file:
        return file.read(len(BEGINNING)) == BEGINNING


def render(content: Content) -> str:
    """The HTML of the page; it depends on the content alone."""
    style, script = own_file("page.css"), own_file("page.js")
    findings = (content["diagnosis"] or {}).get("findings", [])
    return (
        environment()
        .get_template("page.html.jinja")
        .render(
            content=content,
            style=Markup(style),  # our own files, without user text
            script=Markup(script),
            policy=content_policy(style, script),
            severity=SEVERITY_OF.get(content["verdict"], "unknown"),
            findings=sorted(findings, key=lambda f: wording.GRAVEST_FIRST.index(f["severity"])),
            prevalence_figure=figures.prevalence_figure(content),
            confounder_figures=figures.confounder_figures(content),
            probability_figures=figures.probability_figures(content),
            reliability_figure=figures.reliability_figure(content),
            decision_figure=figures.decision_figure(content),
            subgroups=[(name, list(groups)) for name, groups in groupby(content["subgroups"], itemgetter("column"))],
            subgroup_columns=list(
                dict.fromkeys(n for g in content["subgroups"] for n in (*g["metrics"], *g["calibration"]))
            ),
            glossary=wording.glossary(content["kind"]),
            severity_words=wording.SEVERITY_WORDS,
        )
    )


def content_policy(style: str, script: str) -> str:
    """A Content-Security-Policy that allows this style and this script only, and no requests."""

    def digest(text: str) -> str:
        return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

    return (
        f"default-src 'none'; style-src 'sha256-{digest(style)}'; script-src 'sha256-{digest(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )


@cache
def own_file(name: str) -> str:
    """Return the text of a file of this package."""
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


@cache
def environment() -> Environment:
    """Return the Jinja environment of the pages, with this package's templates."""
    pages = Environment(
        autoescape=True,
        loader=FunctionLoader(own_file),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    words: dict[str, Any] = {
        name: getattr(wording, name) for name in ("percent", "round_percent", "compact", "fixed", "plural", "whole")
    }
    pages.filters.update(words | {"metric_name": metric_name, "table_points": figures.table_points})
    said = {name: getattr(wording, name) for name in ("known_labels", "rows_here", "by_labels")}
    pages.globals.update(words | said | {"sign": sign})
    return pages
