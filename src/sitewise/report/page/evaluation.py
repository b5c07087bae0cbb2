"""The page of an evaluation: models compared on the labels of a site, as one HTML file."""

from typing import Any

from markupsafe import Markup

from sitewise.evaluation import metric_name
from sitewise.report.page.drawings import net_benefit_figure, reliability_diagram
from sitewise.report.page.render import content_policy, environment, own_file


def render_evaluation(content: dict[str, Any], site: str) -> str:
    """The HTML of the page, from `Evaluation.to_dict()` and the name of the site."""
    style = own_file("page.css")
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
        environment()
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
        )
    )
