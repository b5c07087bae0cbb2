"""The figures of a page, made from its content alone."""

from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from sitewise.report.page.content import Content
from sitewise.report.page.drawings import Row, curve, histograms, intervals, net_benefit_figure, reliability_diagram
from sitewise.report.wording import compact, percent, plural, quoted

MOST_ROWS = 12
TABLE_STEPS = 7  # steps between the points of a curve in its table, which has one point more


@dataclass(frozen=True)
class Figure:
    """A drawing, its caption, and the class that it shows if there are more than two classes."""

    drawing: Markup
    caption: str
    about: str | None = None


def prevalence_figure(content: Content) -> Figure:
    """P(Y) here with its interval, and at the training sites: a line for each site, or for each class if K > 2."""
    numbers, classes = content["prevalence"], content["classes"]
    if len(classes) == 2:
        rows = [
            Row("this site", None, numbers["estimate"][1], numbers["low"][1], numbers["high"][1]),
            Row("training rows", numbers["training"][1]),
            *(Row(s["name"], others=(s["prevalence"][1],)) for s in numbers["sites"]),
        ]
        caption = (
            f"Share of {quoted(classes[1])} at this site, in all training rows together, and at each training site."
        )
    else:
        rows = [
            Row(
                name,
                numbers["training"][k],
                numbers["estimate"][k],
                numbers["low"][k],
                numbers["high"][k],
                tuple(s["prevalence"][k] for s in numbers["sites"]),
            )
            for k, name in enumerate(classes)
        ]
        caption = "Share of each class at this site, in all training rows together, and at each training site."
    spoken = "; ".join(
        f"{name}: {_here(numbers, k)}, training rows {percent(numbers['training'][k])}"
        for k, name in enumerate(classes)
        if len(classes) > 2 or k == 1
    )
    return Figure(intervals("prevalence", rows, "Prevalence here and at the training sites", spoken), caption)


def confounder_figures(content: Content) -> list[list[Figure]]:
    """For each confounder, a figure for each class in focus."""
    return [
        [_confounder_figure(content, number, confounder, label) for label in content["focus"] if confounder["points"]]
        for number, confounder in enumerate(content["confounders"])
    ]


def _confounder_figure(content: Content, number: int, confounder: dict[str, Any], label: int) -> Figure:
    name, key = content["classes"][label], f"confounder-{number}-{label}"
    points = confounder["points"]
    title = f"Share of {name} given {confounder['name']}, before and after"
    spoken = "; ".join(
        f"{compact(p['value'])}: training {percent(p['before'][label])}, here {_here(p, label, 'after')}"
        for p in table_points(confounder)
    )
    about = name if len(content["classes"]) > 2 else None
    if confounder["kind"] == "number":
        drawing = curve(key, points, label, confounder["name"], title, spoken)
        return Figure(drawing, f"Share of {quoted(name)} by {quoted(confounder['name'])}.", about)
    rows = [
        Row(compact(p["value"]), p["before"][label], p["after"][label], p["low"][label], p["high"][label])
        for p in most_rows(points)
    ]
    left = len(points) + confounder["more"]["levels"] - len(rows)
    caption = f"Share of {quoted(name)} by {quoted(confounder['name'])}" + (
        f"; the {len(rows)} most frequent levels, {plural(left, 'more level')} not drawn." if left else "."
    )
    return Figure(intervals(key, rows, title, spoken), caption, about)


def most_rows(points: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The levels with the most rows, in their original order."""
    chosen = sorted(range(len(points)), key=lambda i: -points[i]["rows"])[:MOST_ROWS]
    return [points[i] for i in sorted(chosen)]


def table_points(confounder: dict[str, Any]) -> list[dict[str, Any]]:
    """The points in a confounder's table: all levels, or up to eight evenly spaced points of a curve."""
    points: list[dict[str, Any]] = confounder["points"]
    if confounder["kind"] != "number":
        return points
    steps = min(TABLE_STEPS, len(points) - 1)
    return [points[round(i * (len(points) - 1) / steps)] for i in range(steps + 1)]


def probability_figures(content: Content) -> list[Figure]:
    """For each class in focus, the distribution of its probabilities before and after."""
    shares, figures = content["probabilities"], []
    for label in content["focus"]:
        name = content["classes"][label]
        before, after = shares["before"][label], shares["after"][label]
        half = len(after) // 2
        spoken = (
            f"Rows with a probability of at least one half: before {percent(sum(before[half:]))}, "
            f"after {percent(sum(after[half:]))}"
        )
        title = f"Distribution of the probability of {name}, before and after"
        drawing = histograms(f"spread-{label}", before, after, content["threshold"], title, spoken)
        figures.append(
            Figure(drawing, f"Probability of {quoted(name)}.", name if len(content["classes"]) > 2 else None)
        )
    return figures


def reliability_figure(content: Content) -> Figure | None:
    """Observed against predicted shares on held-out rows."""
    numbers = content["reliability"]
    if numbers is None:
        return None
    spoken = "; ".join(
        f"predicted {percent(b['predicted'])}, observed {percent(b['observed'])}" for b in numbers["bins"]
    )
    what = (
        f"probability of {quoted(content['classes'][1])}"
        if len(content["classes"]) == 2
        else "probability of the most probable class"
    )
    drawing = reliability_diagram("reliability", numbers["bins"], "Reliability on held-out training rows", spoken)
    return Figure(drawing, f"Predicted {what} against how often it was right, {plural(numbers['rows'], 'row')}.")


def _here(numbers: dict[str, Any], label: int, name: str = "estimate") -> str:
    low, high = percent(numbers["low"][label]), percent(numbers["high"][label])
    return f"{percent(numbers[name][label])} ({low} to {high})"


def decision_figure(content: Content) -> tuple[Markup, list[tuple[Markup, str]]] | None:
    """The expected decision curve with its legend; None if there is none."""
    lines = (content["performance"] or {}).get("decision_curve")
    return net_benefit_figure(lines) if lines else None
