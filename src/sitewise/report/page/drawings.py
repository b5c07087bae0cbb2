"""The figures of the page as SVG, each 360 units wide so that text is readable on a phone.

Colours are set by the page, through class names.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup, escape

from sitewise.report.wording import compact, round_percent, shorten

WIDTH = 360
LEFT, RIGHT, TOP = 42, 20, 10
GUTTER, LETTERS, LETTER = (
    124,
    16,
    7.0,
)  # width for names at the left, letters of a name that fit in it, width of a letter
ROW = 26
MANY = 14  # a chart with more rows has labels of its axis at both ends
CURVE_BOTTOM = 200.0  # y coordinate of the lower end of a decision curve
ROOTS = (0.01, 0.1, 0.25, 0.5, 1.0)  # ticks of a square-root axis


def element(tag: str, *children: Any, **attributes: Any) -> Markup:
    """An SVG element. Attributes, and children that are not markup, are escaped. `class_` becomes class."""
    written = "".join(
        f' {escape(name.rstrip("_").replace("_", "-"))}="{escape(number(value))}"'
        for name, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{tag}{written}>{''.join(escape(child) for child in children)}</{tag}>")


def number(value: Any) -> str:
    """A float rounded to two decimals, anything else as text."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def picture(key: str, width: float, height: float, title: str, description: str, *children: Any) -> Markup:
    """An image with its text alternative; `key` makes its ids unique."""
    return element(
        "svg",
        element("title", title, id=f"{key}-title"),
        element("desc", description, id=f"{key}-desc"),
        *children,
        viewBox=f"0 0 {number(float(width))} {number(float(height))}",
        role="img",
        aria_labelledby=f"{key}-title {key}-desc",
    )


def path(points: list[tuple[float, float]], closed: bool = False) -> str:
    """The attribute `d` of an SVG path through points."""
    steps = " L".join(f"{number(float(x))} {number(float(y))}" for x, y in points)
    return f"M{steps}{'Z' if closed else ''}"


@dataclass(frozen=True)
class Scale:
    """A linear map from values in [low, high] to coordinates in [start, end]."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """The coordinate of a value, clipped to [start, end]."""
        if self.high <= self.low:
            return (self.start + self.end) / 2
        share = min(max((value - self.low) / (self.high - self.low), 0.0), 1.0)
        return self.start + share * (self.end - self.start)


def nice_step(span: float, wanted: int) -> float:
    """The smallest step of 1, 2, 2.5 or 5 times a power of ten that divides a span into at most `wanted` parts."""
    if not span > 0:
        return 1.0
    raw = span / wanted
    power = 10.0 ** math.floor(math.log10(raw))
    return next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * (1 - 1e-9))


def ticks(low: float, high: float, wanted: int = 4) -> list[float]:
    """Round numbers within [low, high]: at most `wanted` + 1, and about half as many or more."""
    step = nice_step(high - low, wanted)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{i * step:.12g}") for i in range(first, last + 1)]


def ceiling(value: float, wanted: int = 4) -> float:
    """Return the upper end of an axis from zero to at least `value`: a round positive number, at most one.

    The axis gets about `wanted` ticks.
    """
    top = min(max(value, 1e-4), 1.0)
    step = nice_step(top, wanted)
    return min(step * math.ceil(top / step - 1e-9), 1.0)


@dataclass(frozen=True)
class Row:
    """A line of a chart of intervals: the value before, the value after with its interval, and other values."""

    label: str
    before: float | None = None
    after: float | None = None
    low: float | None = None
    high: float | None = None
    others: tuple[float, ...] = ()


def mark(kind: str, x: float, y: float) -> Markup:
    """The symbol of a series: a hollow square for "before", a filled circle for "after", a thin tick for "other"."""
    if kind == "before":
        return element("rect", x=x - 5.5, y=y - 5.5, width=11, height=11, class_="before hollow")
    if kind == "after":
        return element("circle", cx=x, cy=y, r=3.8, class_="after filled")
    return element("line", x1=x, x2=x, y1=y - 6.0, y2=y + 6.0, class_="other")


def sign(kind: str) -> Markup:
    """The symbol of a series for the legend; the text next to it is its text alternative."""
    drawn = {
        "before": [mark("before", 12.0, 8.0)],
        "after": [element("line", x1=1, x2=23, y1=8, y2=8, class_="after line"), mark("after", 12.0, 8.0)],
        "other": [mark("other", 12.0, 8.0)],
        "before-line": [element("line", x1=1, x2=23, y1=8, y2=8, class_="before line dashed")],
        "after-line": [
            element("rect", x=1, y=2, width=22, height=12, class_="band"),
            element("line", x1=1, x2=23, y1=8, y2=8, class_="after line"),
        ],
        "before-bar": [element("rect", x=4, y=2, width=16, height=12, class_="before bar")],
        "after-bar": [element("rect", x=4, y=2, width=16, height=12, class_="after bar")],
        "rows": [element("rect", x=4, y=4, width=16, height=8, class_="rows")],
        "ideal": [element("line", x1=3, x2=21, y1=14, y2=2, class_="ideal")],
        "threshold": [element("line", x1=12, x2=12, y1=1, y2=15, class_="threshold")],
    }[kind]
    return element("svg", *drawn, viewBox="0 0 24 16", class_="sign", aria_hidden="true", focusable="false")


def intervals(key: str, rows: Sequence[Row], title: str, description: str) -> Markup:
    """A chart of intervals: names at the left, probabilities at the bottom, a symbol for each value of a row."""
    numbers = [v for row in rows for v in (row.before, row.after, row.high, *row.others) if v is not None]
    names = [shorten(str(row.label), LETTERS) for row in rows]  # names of sites may be numbers
    gutter = min(GUTTER, 16 + LETTER * max(len(name) for name in names))
    scale = Scale(0, ceiling(max(numbers, default=1.0)), gutter, WIDTH - RIGHT)
    marks = percent_ticks(scale.high)
    top = TOP if len(rows) <= MANY else TOP + 18
    bottom = top + ROW * len(rows)
    parts: list[Markup] = _across(scale, top, bottom, marks)
    if len(rows) > MANY:  # in a long chart only one end is visible
        parts += [_text(scale(value), top - 6, words, "middle") for value, words in marks]
    for i, row in enumerate(rows):
        y = top + ROW * (i + 0.5)
        parts.append(_text(gutter - 10, y + 4, names[i], "end"))
        parts += [mark("other", scale(value), y) for value in row.others]
        if row.low is not None and row.high is not None:
            parts.append(_whisker(scale(row.low), scale(row.high), y))
        if row.before is not None:
            parts.append(mark("before", scale(row.before), y))
        if row.after is not None:
            parts.append(mark("after", scale(row.after), y))
    return picture(key, WIDTH, bottom + 26, title, description, *parts)


def curve(key: str, points: Sequence[dict[str, Any]], label: int, name: str, title: str, description: str) -> Markup:
    """A chart of P(y|z) against a number z: dashed before, with a band after, and the number of rows near each z."""
    z = [point["value"] for point in points]
    before, after, low, high = ([p[side][label] for p in points] for side in ("before", "after", "low", "high"))
    plot, strip = (TOP, 172.0), (180.0, 204.0)
    across = Scale(z[0], z[-1], LEFT, WIDTH - RIGHT)
    up = Scale(0, ceiling(max(*before, *after, *high)), plot[1], plot[0])
    parts: list[Markup] = _up(up, LEFT, WIDTH - RIGHT, percent_ticks(up.high))
    parts += _across(across, plot[1], plot[1], [(t, compact(t)) for t in ticks(z[0], z[-1])], strip[1])
    edge = [(across(v), up(p)) for v, p in zip(z, high, strict=True)]
    edge += [(across(v), up(p)) for v, p in reversed(list(zip(z, low, strict=True)))]
    parts.append(element("path", d=path(edge, closed=True), class_="band"))
    for series, values, look in (("before", before, "before line dashed"), ("after", after, "after line")):
        along = [(across(v), up(p)) for v, p in zip(z, values, strict=True)]
        parts.append(element("path", d=path(along), class_=look, data_series=series))
    parts += _rug(across, points, strip)
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, strip[1] + 34, shorten(name, 44), "middle", "axis-name"))
    return picture(key, WIDTH, strip[1] + 40, title, description, *parts)


def histograms(
    key: str, before: Sequence[float], after: Sequence[float], threshold: float | None, title: str, description: str
) -> Markup:
    """Histograms of probabilities: "before" in the upper panel, "after" in the lower one.

    The heights (shares of the rows) are drawn on a square-root scale.
    """
    across = Scale(0, 1, LEFT, WIDTH - RIGHT)
    top = max(*before, *after, 0.01) ** 0.5
    panels = ((14.0, 84.0, "before", before), (98.0, 168.0, "after", after))
    parts: list[Markup] = []
    for high, low, series, shares in panels:
        up = Scale(0, top, low, high)
        levels = [(0.0, "0"), *((r**0.5, round_percent(r)) for r in ROOTS if r**0.5 <= top * 1.001)]
        parts += _up(up, LEFT, WIDTH - RIGHT, _spread(levels, up))
        width = (across.end - across.start) / len(shares)
        for i, share in enumerate(shares):
            y = up(share**0.5)
            if share > 0:
                x = across.start + i * width
                bar = {"x": x + 0.5, "y": min(y, low - 1), "width": width - 1, "height": max(low - y, 1.0)}
                parts.append(element("rect", **bar, class_=f"{series} bar"))
    if threshold is not None:
        parts.append(element("line", x1=across(threshold), x2=across(threshold), y1=8, y2=168, class_="threshold"))
    parts += _across(across, 168.0, 168.0, percent_ticks(1.0))
    return picture(key, WIDTH, 194, title, description, *parts)


def reliability_diagram(key: str, bins: Sequence[dict[str, Any]], title: str, description: str) -> Markup:
    """A diagram of observed against predicted shares, with intervals; the diagonal is perfect calibration."""
    across, up = Scale(0, 1, LEFT, WIDTH - RIGHT), Scale(0, 1, 290, TOP)
    parts: list[Markup] = _up(up, LEFT, WIDTH - RIGHT, percent_ticks(1.0))
    parts += _across(across, 290, 290, percent_ticks(1.0))
    parts.append(element("line", x1=across(0), y1=up(0), x2=across(1), y2=up(1), class_="ideal"))
    for point in bins:
        x = across(point["predicted"])
        parts.append(element("line", x1=x, x2=x, y1=up(point["low"]), y2=up(point["high"]), class_="after line"))
    parts += [mark("after", across(point["predicted"]), up(point["observed"])) for point in bins]
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, 324, "predicted", "middle", "axis-name"))
    return picture(key, WIDTH, 332, title, description, *parts)


def net_benefit_figure(lines: Sequence[dict[str, Any]]) -> tuple[Markup, list[tuple[Markup, str]]]:
    """A figure of net benefit against the threshold, with a curve for each strategy, and the entries of its legend."""
    names = [name for name in lines[0] if name != "threshold"]
    top = max(max(line[name] for name in names) for line in lines)
    low, high = -0.25 * max(top, 1e-3), 1.1 * max(top, 1e-3)
    across, up = Scale(0, 1, LEFT, WIDTH - RIGHT), Scale(low, high, CURVE_BOTTOM, TOP)
    parts = []
    for value in ticks(low, high):
        y = float(up(value))
        parts.append(element("line", x1=float(LEFT), x2=float(WIDTH - RIGHT), y1=y, y2=y, class_="grid"))
        parts.append(element("text", f"{value:g}", x=float(LEFT - 6), y=y + 4, text_anchor="end"))
    for value, words in percent_ticks(1.0):
        parts.append(element("text", words, x=float(across(value)), y=CURVE_BOTTOM + 17, text_anchor="middle"))
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
    parts.append(element("text", "threshold", x=centre, y=CURVE_BOTTOM + 34, text_anchor="middle", class_="axis-name"))
    description = "Net benefit against the threshold: of treating by each model, of treating all, and of treating none."
    return picture("net-benefit", WIDTH, CURVE_BOTTOM + 42, "Decision curve", description, *parts), legend


def percent_ticks(top: float) -> list[tuple[float, str]]:
    """Ticks of an axis of probabilities from zero to `top`."""
    return [(t, round_percent(t)) for t in ticks(0, top)]


def _text(x: float, y: float, words: str, anchor: str, look: str | None = None) -> Markup:
    return element("text", words, x=float(x), y=float(y), text_anchor=anchor, class_=look)


def _whisker(start: float, end: float, y: float) -> Markup:
    d = f"M{start:.1f} {y - 4:.1f}v8M{end:.1f} {y - 4:.1f}v8M{start:.1f} {y:.1f}H{end:.1f}"
    return element("path", d=d, class_="after line")


def _across(
    scale: Scale, top: float, bottom: float, marks: list[tuple[float, str]], base: float | None = None
) -> list[Markup]:
    """A horizontal axis: vertical grid lines from top to bottom, the axis line at `base`, and labels below it."""
    base = bottom if base is None else base
    parts = [element("line", x1=float(scale.start), x2=float(scale.end), y1=base, y2=base, class_="axis")]
    for value, words in marks:
        x = float(scale(value))
        if bottom > top:
            parts.append(element("line", x1=x, x2=x, y1=float(top), y2=float(bottom), class_="grid"))
        parts.append(_text(x, base + 17, words, "middle"))
    return parts


def _up(scale: Scale, left: float, right: float, marks: list[tuple[float, str]]) -> list[Markup]:
    """A vertical axis: horizontal grid lines from left to right, and labels to the left of them."""
    parts = []
    for value, words in marks:
        y = float(scale(value))
        parts.append(element("line", x1=float(left), x2=float(right), y1=y, y2=y, class_="grid"))
        parts.append(_text(left - 6, y + 4, words, "end"))
    return parts


def _spread(marks: list[tuple[float, str]], scale: Scale) -> list[tuple[float, str]]:
    """The marks whose labels do not overlap, from the top down."""
    kept: list[tuple[float, str]] = []
    for value, words in reversed(marks):
        if not kept or abs(scale(value) - scale(kept[-1][0])) >= 13:
            kept.append((value, words))
    return kept


def _rug(across: Scale, points: Sequence[dict[str, Any]], strip: tuple[float, float]) -> list[Markup]:
    """Bars for the number of rows near each value."""
    most = max(point["rows"] for point in points)
    if not most:
        return []
    width = (across.end - across.start) / (len(points) - 1)
    bars = []
    for point in points:
        height = (strip[1] - strip[0]) * point["rows"] / most
        start = max(across(point["value"]) - width / 2 + 0.5, across.start)
        end = min(across(point["value"]) + width / 2 - 0.5, across.end)
        if height > 0:
            bars.append(element("rect", x=start, y=strip[1] - height, width=end - start, height=height, class_="rows"))
    return bars
