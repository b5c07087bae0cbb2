"""The page of an evaluation: models beside each other by the labels of a site, as one HTML file."""

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from sitewise.report.page import wording
from sitewise.report.page.drawings import LEFT, RIGHT, TOP, WIDTH, percent_ticks, reliability_diagram
from sitewise.report.page.render import _environment, _own, content_policy
from sitewise.report.page.svg import Scale, element, path, picture, ticks
from sitewise.report.summary import metric_name

BOTTOM = 200.0


def render_evaluation(content: dict[str, Any], site: str) -> str:
    """The page as text: a function of `Evaluation.to_dict()` and the site's name."""
    style = _own("page.css")
    table: dict[str, dict[str, Any]] = {}
    for line in content["metrics"]:
        table.setdefault(line["metric"], {})[line["model"]] = line
    figures = [
        reliability_diagram(
            f"reliability-{number}",
            bins,
            f"Calibration of the model {name}",
            "Observed shares against mean predictions in ten bins of equal size, with intervals.",
        )
        for number, (name, bins) in enumerate(content["reliability"].items())
    ]
    return (
        _environment()
        .get_template("evaluation.html.jinja")
        .render(
            content=content,
            site=site,
            style=Markup(style),
            policy=content_policy(style, ""),
            table=table,
            reliability=list(zip(content["reliability"], figures, strict=True)),
            curve=None if content["decision_curve"] is None else net_benefit_figure(content["decision_curve"]),
            words=metric_name,
            percent=wording.percent,
        )
    )


def net_benefit_figure(lines: Sequence[dict[str, Any]]) -> tuple[Markup, list[tuple[Markup, str]]]:
    """Net benefit against the threshold, a curve for each strategy, and the entries of its legend."""
    names = [name for name in lines[0] if name != "threshold"]
    top = max(max(line[name] for name in names) for line in lines)
    low, high = -0.25 * max(top, 1e-3), 1.1 * max(top, 1e-3)
    across, up = Scale(0, 1, LEFT, WIDTH - RIGHT), Scale(low, high, BOTTOM, TOP)
    parts = []
    for value in ticks(low, high):
        y = float(up(value))
        parts.append(element("line", x1=float(LEFT), x2=float(WIDTH - RIGHT), y1=y, y2=y, class_="grid"))
        parts.append(element("text", f"{value:g}", x=float(LEFT - 6), y=y + 4, text_anchor="end"))
    for value, words in percent_ticks(1.0):
        parts.append(element("text", words, x=float(across(value)), y=BOTTOM + 17, text_anchor="middle"))
    legend = []
    for number, name in enumerate(names):
        inside = [line for line in lines if line[name] >= low]
        dashes = None if number == 0 else f"{2 + 2 * number} {2 + number}"
        points = [(across(line["threshold"]), up(line[name])) for line in inside]
        look = "after line" if number == 0 else "before line"
        if points:
            parts.append(element("path", d=path(points), class_=look, stroke_dasharray=dashes, fill="none"))
        drawn = element("line", x1=1, x2=23, y1=8, y2=8, class_=look, stroke_dasharray=dashes)
        legend.append((element("svg", drawn, viewBox="0 0 24 16", class_="sign", aria_hidden="true"), name))
    centre = (LEFT + WIDTH - RIGHT) / 2
    parts.append(element("text", "threshold", x=centre, y=BOTTOM + 34, text_anchor="middle", class_="axis-name"))
    description = "Net benefit of treating by each model, everybody and nobody, against the threshold."
    return picture("net-benefit", WIDTH, BOTTOM + 42, "Decision curve", description, *parts), legend
