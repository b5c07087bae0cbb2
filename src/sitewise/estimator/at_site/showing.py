"""Show an adapted site as text and HTML: outcome, verdict, and prevalence with its interval."""

import warnings
from html import escape
from typing import TYPE_CHECKING

from sitewise.report.wording import percent, plural

if TYPE_CHECKING:
    from sitewise.estimator.adapted import AdaptedClassifier
    from sitewise.estimator.model import SiteModel

SHOWN = 6  # with more than two classes: the number of most frequent classes that are shown
ABOUT = ("outcome_name", "positive", "intended_use", "contact")


def about(model: "SiteModel", name: str) -> str | None:
    """Return an entry of the model's `about_`, or None; "outcome_name" is by default the target column of its table."""
    name_of = model.about_.get(name)
    if name_of is None and name == "outcome_name":
        name_of = getattr(getattr(getattr(model, "table_reader_", None), "roles", None), "target", None)
    return None if name_of is None else str(name_of)


def class_names(model: "SiteModel") -> list[str]:
    """Return the names of the classes in texts.

    If `about_` has an outcome name, a class that is not a string is named "outcome name = class". With two classes, the
    second is named by the entry "positive" of `about_`, if there is one.
    """
    labels, outcome, positive = model.classes_.tolist(), about(model, "outcome_name"), about(model, "positive")
    names = [
        f"{outcome} = {label}" if outcome is not None and not isinstance(label, str) else str(label) for label in labels
    ]
    if positive is not None and len(names) == 2:
        names[1] = positive
    return names


def site_lines(here: "AdaptedClassifier") -> list[str]:
    """Return lines of text: the outcome with its reason, the risk, the verdict, and the share of each shown class."""
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
    """Return the number of rows that were passed to `adapt` as text; with Dask, also the size of the sample."""
    if here.n_rows_ is None:
        return plural(len(here.rows), "row")
    return f"{here.n_rows_} rows in partitions; checks and expected performance are from {len(here.rows)} of them"


def site_text(here: "AdaptedClassifier") -> str:
    """Return the text that `repr` shows."""
    name = f"{here.site_name}, " if here.site_name else ""
    head = f"{type(here).__name__} ({name}{counted_rows(here)})"
    return "\n  ".join([head, *site_lines(here)])


def site_html(here: "AdaptedClassifier") -> str:
    """Return the HTML that a notebook shows."""
    first, *others = site_lines(here)
    return f"<p><b>{escape(first)}</b></p>" + "".join(f"<p>{escape(line)}</p>" for line in others)
