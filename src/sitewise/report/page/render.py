"""The page: content in, one HTML file out that asks nothing of the network."""

import base64
import hashlib
import json
import os
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from sitewise.evaluation import metric_name
from sitewise.report.page import figures, wording
from sitewise.report.page.content import Content
from sitewise.report.page.drawings import sign
from sitewise.tables.writing import whole_file

SEVERITY_OF = {"adapt": "good", "care": "care", "do not adapt": "stop"}


def write_report(content: Content, path: str | os.PathLike[str]) -> Path:
    """Write the page to `path` and the same content as JSON beside it, ending in .json; return the page's path."""
    page = Path(path)
    if page.suffix.lower() == ".json":
        raise ValueError(f"write_report: {page} is where the numbers would go; name the page, such as report.html")
    if page.is_dir():
        raise ValueError(f"write_report: {page} is a folder; name the page in it, such as {page / 'report.html'}")
    html = render(content)
    numbers = json.dumps(content, indent=1, allow_nan=False)
    for file, text in ((page, html), (page.with_suffix(".json"), numbers)):
        with whole_file(file) as part:
            part.write_text(text, encoding="utf-8")
    return page


def render(content: Content) -> str:
    """The page as text: a function of the content and nothing else."""
    style, script = _own("page.css"), _own("page.js")
    findings = (content["diagnosis"] or {}).get("findings", [])
    return (
        _environment()
        .get_template("page.html.jinja")
        .render(
            content=content,
            style=Markup(style),  # our own files: no user's words are in them
            script=Markup(script),
            policy=content_policy(style, script),
            severity=SEVERITY_OF.get(content["verdict"]["word"], "unknown"),
            findings=sorted(findings, key=lambda f: wording.GRAVEST_FIRST.index(f["severity"])),
            prevalence_figure=figures.prevalence_figure(content),
            confounder_figures=figures.confounder_figures(content),
            probability_figures=figures.probability_figures(content),
            reliability_figure=figures.reliability_figure(content),
            glossary=wording.GLOSSARY,
            severity_words=wording.SEVERITY_WORDS,
        )
    )


def content_policy(style: str, script: str) -> str:
    """A Content-Security-Policy under which only this very style and script run and nothing is fetched."""

    def digest(text: str) -> str:
        return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

    return (
        f"default-src 'none'; style-src 'sha256-{digest(style)}'; script-src 'sha256-{digest(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )


@cache
def _own(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


@cache
def _environment() -> Environment:
    environment = Environment(
        autoescape=True,
        loader=FunctionLoader(_own),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    words: dict[str, Any] = {
        name: getattr(wording, name) for name in ("percent", "round_percent", "compact", "fixed", "plural", "whole")
    }
    environment.filters.update(words | {"metric_name": metric_name, "table_points": figures.table_points})
    environment.globals.update(words | {"sign": sign})
    return environment
