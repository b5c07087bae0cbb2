"""An adapted site as text and HTML: outcome, verdict, prevalence with its interval, the classes in words."""

import warnings
from html import escape
from typing import TYPE_CHECKING

from sitewise.report.wording import percent, plural

if TYPE_CHECKING:
    from sitewise.estimator.adapted import AdaptedClassifier
    from sitewise.estimator.model import SiteModel

SHOWN = 6  # the most frequent classes
ABOUT = ("outcome_name", "positive", "intended_use", "contact")


def about(model: "SiteModel", name: str) -> str | None:
    """An entry of the model's `about_`; for the outcome, by default the target column of its table."""
    name_of = model.about_.get(name)
    if name_of is None and name == "outcome_name":
        name_of = getattr(getattr(getattr(model, "table_reader_", None), "roles", None), "target", None)
    return None if name_of is None else str(name_of)


def class_names(model: "SiteModel") -> list[str]:
    """The classes in words: "positive" for the second of two, "outcome = 1" if a class is a number."""
    labels, outcome, positive = model.classes_.tolist(), about(model, "outcome_name"), about(model, "positive")
    names = [
        f"{outcome} = {label}" if outcome is not None and not isinstance(label, str) else str(label) for label in labels
    ]
    if positive is not None and len(names) == 2:
        names[1] = positive
    return names


def site_lines(here: "AdaptedClassifier") -> list[str]:
    """The outcome with its reason and risk, the verdict, and the share of each class."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # `adapt` has already warned about these rows
        outcome, verdict = here.outcome, here.diagnose().verdict
        share, (low, high) = here.prevalence(), here.prevalence_interval()
    names = class_names(here.model)
    shown = [1] if len(names) == 2 else sorted(range(len(names)), key=lambda k: -share[k])[:SHOWN]
    lines = [
        f"share of {names[k]}: {percent(float(share[k]))} "
        f"(95% interval {percent(float(low[k]))} to {percent(float(high[k]))})"
        for k in shown
    ]
    return [outcome.sentence, outcome.risk, f"verdict: {verdict}", *lines]


def counted_rows(here: "AdaptedClassifier") -> str:
    """How many rows were passed to `adapt`, and how many of them checks are made from."""
    if here.n_rows_ is None:
        return plural(len(here.rows), "row")
    return f"{here.n_rows_} rows in partitions; checks and expected performance are from {len(here.rows)} of them"


def site_text(here: "AdaptedClassifier") -> str:
    """The representation as text."""
    name = f"{here.site_name}, " if here.site_name else ""
    head = f"{type(here).__name__} ({name}{counted_rows(here)})"
    return "\n  ".join([head, *site_lines(here)])


def site_html(here: "AdaptedClassifier") -> str:
    """The representation as HTML."""
    first, *others = site_lines(here)
    return f"<p><b>{escape(first)}</b></p>" + "".join(f"<p>{escape(line)}</p>" for line in others)
