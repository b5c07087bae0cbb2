"""Read `figure:` of an experiment: points, or a curve along a number of its draws or test sites."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sitewise.arrays import Problems
from sitewise.bench.report.summary import meant

KINDS = ("points", "curve")
KEYS = ("kind", "over", "key", "label", "log")


@dataclass(frozen=True)
class Curve:
    """A curve over the draws or the test sites: the number of each, and the axis."""

    over: Literal["draw", "site"]
    numbers: dict[str, float]
    label: str
    log: bool


def read_curve(
    spec: Mapping[str, Any], draws: Mapping[str, Mapping[str, Any]], tests: Mapping[str, Mapping[str, Any]]
) -> Curve | None:
    """The curve of `figure: {kind: curve, ...}`, None for points.

    The number of a draw is its `adapt`, otherwise its `score`; that of a test site is the option that `key` names.
    Sites without that option are not drawn.
    """
    problems = Problems("figure")
    for unknown in (key for key in spec if key not in KEYS):
        problems.add(f"{unknown} is not a key here{meant(str(unknown), KEYS)}")
    kind, over = spec.get("kind", "points"), spec.get("over", "draws")
    if kind not in KINDS:
        problems.add(f"kind must be points or curve, got {kind!r}{meant(str(kind), KINDS)}")
    if over not in ("draws", "tests"):
        problems.add(f"over must be draws or tests, got {over!r}{meant(str(over), ('draws', 'tests'))}")
    key = str(spec.get("key", ""))
    numbers: dict[str, float] = {}
    if over == "draws" and kind == "curve":
        numbers = {name: float(draw.get("adapt") or draw["score"]) for name, draw in draws.items()}
    elif over == "tests" and kind == "curve":
        numbers = {name: float(site[key]) for name, site in tests.items() if _is_number(site.get(key))}
        if not numbers:
            options = sorted({option for site in tests.values() for option, value in site.items() if _is_number(value)})
            problems.add(
                f"key must name an option of the test sites that is a number, got {key!r}{meant(key, options)}"
            )
    problems.raise_if_any()
    if kind == "points":
        return None
    label = spec.get("label", "unlabeled samples" if over == "draws" else key)
    return Curve("draw" if over == "draws" else "site", numbers, str(label), bool(spec.get("log", False)))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
