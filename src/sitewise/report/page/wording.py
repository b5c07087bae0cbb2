"""Numbers and terms in words, for the page."""

import math
from typing import Any

from sitewise.report.page.svg import shorten

NOTHING = "–"
LONGEST = 60  # columns of a name within a sentence
SEVERITY_WORDS = {"good": "fine", "unknown": "not known", "care": "care", "stop": "stop"}
GRAVEST_FIRST = ("stop", "care", "unknown", "good")

GLOSSARY = (
    ("Site", "A place that data come from: a hospital, a scanner, a country. The new site is the one of this page."),
    (
        "Prevalence",
        "How common each class is. P(Y) is the share among all rows of a site, P(Y|z) the share among rows with a "
        "given value z of the confounders.",
    ),
    (
        "Confounder",
        "Something known of each row, such as age or sex, with which both the class and what the model looks at vary.",
    ),
    (
        "Adaptation",
        "The model learned at the training sites how strongly an input speaks for each class. The prevalence of the "
        "new site is estimated from its rows without any label, and the two are put together.",
    ),
    ("Before", "Probabilities with the prevalence of all training rows together, as if the new site were like them."),
    ("After", "Probabilities with the prevalence that was estimated at the new site."),
    (
        "Interval",
        "The range in which the true value lies in so many of a hundred cases such as this one, if the assumption "
        "holds. A wide interval means that the rows say little.",
    ),
    (
        "The assumption",
        "Among rows of the same class and the same confounders, inputs look the same at every site. Prevalence may "
        "differ. A new scanner or another way to prepare samples breaks it.",
    ),
    (
        "What the checks cannot see",
        "A change of the inputs that looks exactly like a change of prevalence. A few labels from the new site are "
        "the only protection against that.",
    ),
    (
        "Reliability",
        "Of all rows that were given a probability near 30%, about 30% should have the class. Measured on labeled "
        "training rows that the network did not learn from.",
    ),
    (
        "Expected performance",
        "What the metrics would be at this site if its labels were known. Computed from the adapted probabilities "
        "themselves, so it holds only where the assumption does.",
    ),
    (
        "Sensitivity (recall), specificity, precision",
        "The share of rows of the class that are called so; of the others that are not called so; and of those called "
        "so that are right.",
    ),
    (
        "F1",
        "A mean of precision and recall that is low when either is. Positive-class F1 is that of one class, macro F1 "
        "the average over all.",
    ),
    (
        "AUROC, AUPRC",
        "How well the probabilities rank rows of the class above others; 1 is perfect. By chance AUROC is 0.5 and "
        "AUPRC is the prevalence.",
    ),
    (
        "Brier score, calibration error",
        "How far probabilities are from what happens; 0 is perfect.",
    ),
)


def percent(share: float | None) -> str:
    """A share in percent, with as many digits as it needs to be told from nothing and from everything."""
    if share is None:
        return NOTHING
    value = 100 * share
    rest = min(value, 100 - value)
    if rest <= 0:
        return f"{value:.0f}%"
    if rest < 0.01:
        return "<0.01%" if value < 50 else ">99.99%"
    return f"{value:.{2 if rest < 1 else 1}f}%"


def round_percent(share: float) -> str:
    """A round share, such as a tick's, without the zeros."""
    return f"{100 * share:.6g}%"


def compact(value: Any) -> str:
    """A number in a few digits, thousands separated; other values as they are."""
    if value is None:
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if not isinstance(value, float):
        return str(value)
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    size = math.floor(math.log10(abs(value)))
    if size < -4 or size >= 15:
        return f"{value:.2g}"
    text = f"{value:,.{max(0, 2 - size)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def fixed(value: float | None) -> str:
    """A metric, to three digits."""
    return NOTHING if value is None else f"{value:.3f}"


def whole(count: float | None) -> str:
    """An expected count of rows."""
    return NOTHING if count is None else f"{count:,.0f}" if count >= 10 or count == int(count) else f"{count:.1f}"


def plural(count: int, one: str, many: str | None = None) -> str:
    """A count with its noun."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def quoted(name: str) -> str:
    """A name set off from the words around it, whatever direction it is written in; shortened where it is long."""
    return f"“\u2068{shorten(name, LONGEST)}\u2069”"
