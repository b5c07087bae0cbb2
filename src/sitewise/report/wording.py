"""Sentences and number formats that the terminal, the page, the card and the reprs share."""

import math
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from sitewise.diagnosis.outcome import UNCHANGED

ELLIPSIS = "…"

# What was done at a site, by outcome and reason: the first sentence of every text about a site.
OUTCOMES = {
    ("adapted", "the rows"): "Adapted: the share of {name} is {here} here, {trained} as trained.",
    ("adapted", "asked"): (
        "Adapted to the rows alone, as requested (policy='rows'): the share of {name} is {here} here, {trained} as "
        "trained."
    ),
    ("partly adapted", "few rows"): (
        "Partly adapted: {applied} of the {change} that the rows suggest was made, because the rows are too few for "
        "more; the share of {name} {moves} {here} here, {trained} as trained, {rows} by the rows alone."
    ),
    ("partly adapted", "rehearsal"): (
        "Partly adapted: {applied} of the {change} that the rows suggest was made, because estimates at rehearsed "
        "sites had errors; the share of {name} {moves} {here} here, {trained} as trained, {rows} by the rows alone."
    ),
    ("as trained", "asked"): "As trained, as requested (policy='as trained'): the share of {name} is {here}.",
    ("as trained", "check"): (
        "As trained: the check of {failed} failed, so the rows here are not trusted; the share of {name} stays at "
        "{here}, {though}."
    ),
    ("as trained", "rehearsal"): (
        "As trained: estimates at rehearsed sites had errors, so the rows here are not trusted; the share of {name} "
        "stays at {here}, {though}."
    ),
    ("as trained", "nothing changed"): (
        "As trained: the rows here show the same prevalence as in training; the share of {name} is {here} here, "
        "{trained} as trained."
    ),
    ("as trained", "cannot tell"): (
        "As trained: the rows here do not show whether the prevalence differs from training; the share of {name} "
        "is {here} here, {trained} as trained."
    ),
}
NOTABLE_SLOPE = 0.05  # distance from one; a smaller change of log f is not mentioned
LESS_EXTREME = (
    "Probabilities are less extreme than as trained: at rehearsed sites the model was over-confident "
    "(log f times {slope:.2f})."
)
MORE_EXTREME = (
    "Probabilities are more extreme than as trained: at rehearsed sites the model was under-confident "
    "(log f times {slope:.2f})."
)
RISKS = {
    "check": "Trusting the rows would probably do harm: this site differs from training in more than prevalence.",
    "rehearsal": "Trusting the rows would probably do harm: at rehearsed sites it did not lower the log loss.",
    "rows": "Harm is possible: the rows are trusted as if the model were right here.",
    "no gain": "No gain is expected: the prevalence stays as trained.",
    "gain": "A gain is expected: log loss lower by about {gain:.3f} (rehearsal: {better} of {count} sites better).",
    "loss": "No gain is expected: log loss higher by about {loss:.3f} (rehearsal: {better} of {count} sites better).",
    "not rehearsed": "It is unknown whether a gain can be expected: adapting was not rehearsed at other sites.",
}
REHEARSALS = {
    None: "Adapting was not rehearsed (rehearsal=None): it is unknown how far the rows of a new site can be trusted.",
    "rows": (
        "Held-out rows, adapted to as if they came from a new site, have a log loss of {after:.3f} ({before:.3f} as "
        "trained); differences between sites were not rehearsed."
    ),
    "sites": ("Adapting to your own sites, each left out in turn, {change} ({better} of {count} sites better)."),
}
NO_SITES = (
    "fit: no sample_domain is given, so all rows count as one site: differences between sites cannot be learned, and "
    "the verdict is never 'adapt'. Give the site of each row as sample_domain"
)
CROSSING = (
    "Of {rows}, {changed} get another decision than as trained ({rule}): {gained} are now {name}, {lost} no longer."
)
NOT_CHECKED = {
    "word": "not checked",
    "sentence": "No checks were run, so it is unknown whether the adapted probabilities can be trusted.",
    "risk": "",
}

NOTHING = "–"
LONGEST = 60  # width of a name within a sentence
SEVERITY_WORDS = {"good": "fine", "unknown": "not known", "care": "care", "stop": "stop"}
GRAVEST_FIRST = ("stop", "care", "unknown", "good")

KINDS = {  # words that depend on the kind of data
    "images": {"sites": "a hospital, a scanner, a country", "change": "A new scanner or another way to prepare images"},
    "tables": {
        "sites": "a hospital, a clinic, a country",
        "change": "Another way to measure or to record, or different patients within a class,",
    },
}
GLOSSARY = (
    ("Site", "A place that data come from, such as {sites}. The new site is the one of this page."),
    (
        "Adapted, partly adapted, as trained",
        "What was done here: the prevalence that the rows of this site suggest was used, used in part, or not used. "
        "If not, the mean prediction is that of the model as it was trained.",
    ),
    (
        "Rehearsal",
        "Each training site was left out once, adapted to as if it had no labels, and then compared with its labels. "
        "This shows how far estimates at a site that the model has not seen can be trusted.",
    ),
    (
        "Prevalence",
        "How common each class is. P(Y) is the share among all rows of a site, P(Y|z) the share among rows with a "
        "given value z of the confounders.",
    ),
    (
        "Confounder",
        "Something known of each row, such as age or sex, that is related both to the class and to the model's inputs.",
    ),
    (
        "Adaptation",
        "The model learned at the training sites how strongly an input indicates each class. The prevalence of the "
        "new site is estimated from its rows without any label, and both are combined.",
    ),
    ("Before", "Probabilities with the prevalence of all training rows together, as if the new site were like them."),
    ("After", "Probabilities with the prevalence that was estimated at the new site."),
    (
        "Interval",
        "The range that contains the true value with the given probability, if the assumption holds. A wide "
        "interval means that the rows contain little information.",
    ),
    (
        "The assumption",
        "Among rows of the same class and the same confounders, the distribution of the inputs is the same at every "
        "site. Prevalence may differ. {change} violates it.",
    ),
    (
        "What the checks cannot see",
        "A change of the inputs that looks exactly like a change of prevalence. A few labels from the new site are "
        "the only protection against that.",
    ),
    (
        "Reliability",
        "Of all rows that were given a probability near 30%, about 30% should have the class. Measured on labeled "
        "training rows that the model did not learn from.",
    ),
    (
        "Expected performance",
        "What the metrics would be at this site if its labels were known. Computed from the adapted probabilities "
        "themselves, so it holds only where the assumption does.",
    ),
    (
        "Sensitivity (recall), specificity, precision",
        "Sensitivity: the share of rows of the class that are predicted as this class. Specificity: the share of the "
        "other rows that are not. Precision: the share of the predicted rows that have the class.",
    ),
    (
        "F1",
        "The harmonic mean of precision and recall. Positive-class F1 is for one class; macro F1 is the average over "
        "all classes.",
    ),
    (
        "AUROC, AUPRC",
        "How well the probabilities rank rows of the class above others; 1 is perfect. By chance AUROC is 0.5 and "
        "AUPRC is the prevalence.",
    ),
    (
        "Brier score, calibration error",
        "The distance between probabilities and true classes; 0 is perfect.",
    ),
)


def glossary(kind: str) -> list[tuple[str, str]]:
    """The terms and their meaning; `kind` is "images" or "tables"."""
    return [(word, meaning.format_map(KINDS[kind])) for word, meaning in GLOSSARY]


def percent(share: float | None) -> str:
    """A share in percent, with enough digits to differ from 0% and from 100%."""
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
    """A round share, such as the label of a tick, in percent without trailing zeros."""
    return f"{100 * share:.6g}%"


def compact(value: Any) -> str:
    """A number in a few digits, with thousands separators; other values unchanged."""
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
    """A metric with three decimals."""
    return NOTHING if value is None else f"{round(value, 3) + 0.0:.3f}"  # never -0.000


def whole(count: float | None) -> str:
    """An expected count of rows, with a decimal only if it is below ten and not whole."""
    return NOTHING if count is None else f"{count:,.0f}" if count >= 10 or count == int(count) else f"{count:.1f}"


def plural(count: int, one: str, many: str | None = None) -> str:
    """A count with its noun."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def quoted(name: str) -> str:
    """A name in quotation marks, safe for any writing direction, and shortened if it is long."""
    short = shorten(name, LONGEST)
    return f"“{short}”" if short.isascii() else f"“\u2068{short}\u2069”"


def shorten(text: str, width: int) -> str:
    """A text on one line of at most `width` columns. If it is too long, its middle is left out."""
    line = " ".join(text.split())
    if columns(line) <= width:
        return line
    start, end = line, ""
    tail = (width - 1) // 3  # names often differ at their ends
    while columns(line[-1 - len(end) :]) <= tail:
        end = line[-1 - len(end) :]
    while columns(start) > width - 1 - columns(end):
        start = start[:-1]
    return start.rstrip() + ELLIPSIS + end.lstrip()


def columns(text: str) -> int:
    """The number of columns that a text needs; wide letters need two."""
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)


def outcome_sentence(
    word: str,
    reason: str,
    *,
    names: Sequence[str],
    here: Sequence[float],
    as_trained: Sequence[float],
    rows_alone: Sequence[float],
    applied_share: float,
    slope: float,
    failed: str | None,
) -> str:
    """The sentence that says what was done at a site and why.

    It gives the share of the second of two classes. With more classes, it gives the share of the class that changes
    most by the rows alone. `applied_share` is about the shares of the classes, or, if the rows alone hardly change
    them, about the predictions (`at_site.outcome.site_grounds`).
    """
    moves = [abs(rows - trained) for rows, trained in zip(rows_alone, as_trained, strict=True)]
    k = 1 if len(names) == 2 else moves.index(max(moves))
    steps = [abs(_log_odds(rows) - _log_odds(trained)) for rows, trained in zip(rows_alone, as_trained, strict=True)]
    by_share = max(steps) >= UNCHANGED
    asked = percent(rows_alone[k])
    though = "as the rows alone suggest" if asked == percent(here[k]) else f"although the rows alone suggest {asked}"
    said = OUTCOMES[word, reason].format(
        name=quoted(names[k]),
        here=percent(here[k]),
        trained=percent(as_trained[k]),
        rows=asked,
        applied=f"{100 * applied_share:.0f}%",
        change="change" if by_share else "change of the predictions",
        moves="is" if by_share else "hardly changes:",
        though=though,
        failed=failed,
    )
    if reason == "asked" or abs(slope - 1.0) < NOTABLE_SLOPE:
        return said
    return f"{said} {(LESS_EXTREME if slope < 1.0 else MORE_EXTREME).format(slope=slope)}"


def _log_odds(share: float) -> float:
    inside = min(max(share, 1e-12), 1.0 - 1e-12)
    return math.log(inside) - math.log1p(-inside)


def risk_sentence(word: str, reason: str, gains: Sequence[float]) -> str:
    """The sentence about the expected effect. `gains` are decreases of the log loss at rehearsed sites, or empty."""
    if (word, reason) == ("adapted", "asked"):
        return RISKS["rows"]
    if word == "as trained":
        return RISKS[reason if reason in ("check", "rehearsal") else "no gain"]
    if not gains:
        return RISKS["not rehearsed"]
    gain, counts = sum(gains) / len(gains), {"better": sum(one > 0 for one in gains), "count": len(gains)}
    return RISKS["gain"].format(gain=gain, **counts) if gain > 0 else RISKS["loss"].format(loss=-gain, **counts)


def rehearsal_sentence(kind: str | None, before: float, after: float, better: int, count: int) -> str:
    """The sentence about a rehearsal; `before` and `after` are the log loss as trained and adapted."""
    change = f"{'lowered' if after < before else 'raised'} the log loss from {before:.3f} to {after:.3f}"
    if f"{before:.3f}" == f"{after:.3f}":
        change = f"left the log loss at {after:.3f}"
    return REHEARSALS[kind].format(change=change, before=before, after=after, better=better, count=count)


def known_labels(content: Mapping[str, Any]) -> int:
    """The number of rows with a known label in the content of a report."""
    entries = [entry for part in content["done"] for entry in part["entries"]]
    return next((entry["value"] for entry in entries if entry["name"] == "rows with a known label"), 0)


def rows_here(count: int, labels: int) -> str:
    """The rows of a site, and how many of them have a known label."""
    return f"{plural(count, 'row')}, {labels:,} with a label" if labels else plural(count, "unlabeled row")


def by_labels(labels: int) -> str:
    """The words that say whether labels of the site were used."""
    return f"with {plural(labels, 'known label')}" if labels else "without labels"


def crossing_sentence(
    *, rows: float, changed: float, gained: float, lost: float, name: str, threshold: float | None
) -> str:
    """The sentence about the number of decisions that differ from those as trained."""
    counts = {"changed": whole(changed), "gained": whole(gained), "lost": whole(lost)}
    rule = "the most probable class" if threshold is None else f"threshold {percent(threshold)}"
    return CROSSING.format(rows=f"{whole(rows)} rows", rule=rule, name=quoted(name), **counts)
