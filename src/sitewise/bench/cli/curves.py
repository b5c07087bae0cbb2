"""Read `figure:` of an experiment: points, or a curve along a number of its draws or test sites."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sitewise.arrays import Problems
from sitewise.bench.report.summary import meant

KINDS = ("points", "curve")
OVER = ("draws", "tests")
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
    kind, over, key = spec.get("kind", "points"), spec.get("over", "draws"), str(spec.get("key", ""))
    for name, value, known in (("kind", kind, KINDS), ("over", over, OVER)):
        if value not in known:
            problems.add(f"{name} must be {' or '.join(known)}, got {value!r}{meant(str(value), known)}")
    if kind == "curve" and over == "tests":
        _check_key(key, tests, problems)
    problems.raise_if_any()
    if kind == "points":
        return None
    log = bool(spec.get("log", False))
    if over == "draws":
        sizes = {name: float(draw.get("adapt") or draw["score"]) for name, draw in draws.items()}
        return Curve("draw", sizes, str(spec.get("label", "unlabeled samples")), log)
    numbers = {name: float(site[key]) for name, site in tests.items() if _is_number(site.get(key))}
    return Curve("site", numbers, str(spec.get("label", key)), log)


def _check_key(key: str, tests: Mapping[str, Mapping[str, Any]], problems: Problems) -> None:
    """Note a key that is a number at no test site."""
    options = sorted({option for site in tests.values() for option, value in site.items() if _is_number(value)})
    if key not in options:
        problems.add(f"key must name an option of the test sites that is a number, got {key!r}{meant(key, options)}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
