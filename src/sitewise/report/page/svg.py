"""SVG elements with escaping, scales and ticks. Colours are set by the page, through class names."""

import math
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup, escape


def element(tag: str, *children: Any, **attributes: Any) -> Markup:
    """An element; children that are not markup are escaped, attributes always. `class_` becomes class."""
    written = "".join(
        f' {escape(name.rstrip("_").replace("_", "-"))}="{escape(number(value))}"'
        for name, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{tag}{written}>{''.join(escape(child) for child in children)}</{tag}>")


def number(value: Any) -> str:
    """A coordinate to a hundredth, anything else as text."""
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
    """The `d` of a path through points."""
    steps = " L".join(f"{number(float(x))} {number(float(y))}" for x, y in points)
    return f"M{steps}{'Z' if closed else ''}"


@dataclass(frozen=True)
class Scale:
    """A linear map from values to coordinates."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """The coordinate of a value, clipped to the ends."""
        if self.high <= self.low:
            return (self.start + self.end) / 2
        share = min(max((value - self.low) / (self.high - self.low), 0.0), 1.0)
        return self.start + share * (self.end - self.start)


def nice_step(span: float, wanted: int) -> float:
    """A step of 1, 2, 2.5 or 5 times a power of ten that divides a span into about `wanted` parts."""
    if not span > 0:
        return 1.0
    raw = span / wanted
    power = 10.0 ** math.floor(math.log10(raw))
    return next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * (1 - 1e-9))


def ticks(low: float, high: float, wanted: int = 4) -> list[float]:
    """Round numbers within [low, high], from two to about twice as many as wanted."""
    step = nice_step(high - low, wanted)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{i * step:.12g}") for i in range(first, last + 1)]


def ceiling(value: float, wanted: int = 4) -> float:
    """The end of an axis of probabilities that starts at zero: round, positive, at most one."""
    top = min(max(value, 1e-4), 1.0)
    step = nice_step(top, wanted)
    return min(step * math.ceil(top / step - 1e-9), 1.0)
