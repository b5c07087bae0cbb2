"""Every sentence that more than one surface says, and numbers in words, for terminal, page, card and reprs."""

import math
import unicodedata
from collections.abc import Sequence
from typing import Any

ELLIPSIS = "…"

# What was done at a site, by outcome and reason: the first sentence of everything that speaks about a site.
OUTCOMES = {
    ("adapted", "the rows"): "Adapted: the share of {name} is {here} here, {trained} as trained.",
    ("adapted", "asked"): (
        "Adapted to the rows alone, as asked for (policy='rows'): the share of {name} is {here} here, {trained} as "
        "trained."
    ),
    ("partly adapted", "few rows"): (
        "Partly adapted: of the change that the rows ask for {believed} is believed, for so few rows leave the rest "
        "open; the share of {name} is {here} here, {trained} as trained, {rows} by the rows alone."
    ),
    ("partly adapted", "rehearsal"): (
        "Partly adapted: of the change that the rows ask for {believed} is believed, for estimates at rehearsed sites "
        "were off; the share of {name} is {here} here, {trained} as trained, {rows} by the rows alone."
    ),
    ("as trained", "asked"): "As trained, as asked for (policy='as trained'): the share of {name} is {here}.",
    ("as trained", "check"): (
        "As trained: the check of {failed} failed, so the rows here are not believed; the share of {name} stays at "
        "{here}, where the rows alone say {rows}."
    ),
    ("as trained", "rehearsal"): (
        "As trained: estimates at rehearsed sites were off, so the rows here are not believed; the share of {name} "
        "stays at {here}, where the rows alone say {rows}."
    ),
    ("as trained", "nothing changed"): (
        "As trained: the rows here show no other prevalence than training did; the share of {name} is {here} here, "
        "{trained} as trained."
    ),
    ("as trained", "cannot tell"): (
        "As trained: the rows here cannot tell whether the prevalence is another than in training; the share of "
        "{name} is {here} here, {trained} as trained."
    ),
}
NOTABLE_SLOPE = 0.05  # from one: a smaller change of log f is not worth a sentence
LESS_EXTREME = (
    "Probabilities are less extreme than as trained: at rehearsed sites the model was too sure "
    "(log f times {slope:.2f})."
)
MORE_EXTREME = (
    "Probabilities are more extreme than as trained: at rehearsed sites the model was not sure enough "
    "(log f times {slope:.2f})."
)
RISKS = {
    "check": "Harm is likely if the rows were believed: this site differs from training in more than prevalence.",
    "rehearsal": "Harm is likely if the rows were believed: at rehearsed sites that did not lower the log loss.",
    "rows": "Harm is possible: the rows are believed as if the model were right here.",
    "no gain": "No gain is expected: the prevalence stays as trained.",
    "gain": "A gain is expected: log loss about −{gain:.3f} (rehearsal: {better} of {count} sites better).",
    "loss": "No gain is expected: log loss about +{loss:.3f} (rehearsal: {better} of {count} sites better).",
    "not rehearsed": "Whether a gain can be expected is not known: adapting was not rehearsed at other sites.",
}
REHEARSALS = {
    None: "Adapting was not rehearsed (rehearsal=None): how far the rows of a new site can be believed is not known.",
    "rows": (
        "Held-out rows, adapted to as if they came from a new site, have a log loss of {after:.3f} ({before:.3f} as "
        "trained); how sites differ was not rehearsed."
    ),
    "sites": (
        "Adapting to your own sites, each left out in turn, {verb} the log loss from {before:.3f} to {after:.3f} "
        "({better} of {count} sites better)."
    ),
}
NO_SITES = (
    "fit: no sample_domain is given, so the rows are taken for one site: how sites differ cannot be learned, and "
    "verdicts are at most 'care'. Name the site of every row by sample_domain"
)
CROSSING = (
    "Of {rows} {changed} get another decision than as trained ({rule}): {gained} now called {name}, {lost} no longer."
)
NOT_CHECKED = {
    "word": "not checked",
    "sentence": "No checks were run, so nothing here says whether the adapted probabilities can be trusted.",
    "risk": "",
}

NOTHING = "–"
LONGEST = 60  # columns of a name within a sentence
SEVERITY_WORDS = {"good": "fine", "unknown": "not known", "care": "care", "stop": "stop"}
GRAVEST_FIRST = ("stop", "care", "unknown", "good")

KINDS = {  # words that depend on the kind of data
    "images": {"sites": "a hospital, a scanner, a country", "change": "A new scanner or another way to prepare images"},
    "tables": {
        "sites": "a hospital, a clinic, a country",
        "change": "Another way to measure or to record, or other patients within a class,",
    },
}
GLOSSARY = (
    ("Site", "A place that data come from, such as {sites}. The new site is the one of this page."),
    (
        "Adapted, partly adapted, as trained",
        "What was done here: the prevalence that the rows of this site ask for was believed, believed in part, or not. "
        "As trained, predictions have the mean of the model as it was trained.",
    ),
    (
        "Rehearsal",
        "Each training site was left out once, adapted to as if it had no labels, and then compared with its labels: "
        "so far can estimates at a site that the model has not seen be believed.",
    ),
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
        "differ. {change} breaks it.",
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


def glossary(kind: str) -> list[tuple[str, str]]:
    """Terms and what they mean, for images or tables."""
    return [(word, meaning.format_map(KINDS[kind])) for word, meaning in GLOSSARY]


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
    return NOTHING if value is None else f"{round(value, 3) + 0.0:.3f}"  # never -0.000


def whole(count: float | None) -> str:
    """An expected count of rows."""
    return NOTHING if count is None else f"{count:,.0f}" if count >= 10 or count == int(count) else f"{count:.1f}"


def plural(count: int, one: str, many: str | None = None) -> str:
    """A count with its noun."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def quoted(name: str) -> str:
    """A name set off from the words around it, whatever direction it is written in; shortened where it is long."""
    short = shorten(name, LONGEST)
    return f"“{short}”" if short.isascii() else f"“\u2068{short}\u2069”"


def shorten(text: str, width: int) -> str:
    """A text in at most `width` columns on one line, its middle left out where it is longer; wide letters take two."""
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
    """How many columns a text takes."""
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)


def outcome_sentence(
    word: str,
    reason: str,
    *,
    names: Sequence[str],
    here: Sequence[float],
    as_trained: Sequence[float],
    rows_alone: Sequence[float],
    believed: float,
    slope: float,
    failed: str | None,
) -> str:
    """What was done at a site and why, about the second of two classes, or the one whose share changes most."""
    moves = [abs(rows - trained) for rows, trained in zip(rows_alone, as_trained, strict=True)]
    k = 1 if len(names) == 2 else moves.index(max(moves))
    said = OUTCOMES[word, reason].format(
        name=quoted(names[k]),
        here=percent(here[k]),
        trained=percent(as_trained[k]),
        rows=percent(rows_alone[k]),
        believed=f"{100 * believed:.0f}%",
        failed=failed,
    )
    if reason == "asked" or abs(slope - 1.0) < NOTABLE_SLOPE:
        return said
    return f"{said} {(LESS_EXTREME if slope < 1.0 else MORE_EXTREME).format(slope=slope)}"


def risk_sentence(word: str, reason: str, gains: Sequence[float]) -> str:
    """What to expect, from how much adapting lowered the log loss at each rehearsed site (none: not rehearsed)."""
    if (word, reason) == ("adapted", "asked"):
        return RISKS["rows"]
    if word == "as trained":
        return RISKS[reason if reason in ("check", "rehearsal") else "no gain"]
    if not gains:
        return RISKS["not rehearsed"]
    gain, counts = sum(gains) / len(gains), {"better": sum(one > 0 for one in gains), "count": len(gains)}
    return RISKS["gain"].format(gain=gain, **counts) if gain > 0 else RISKS["loss"].format(loss=-gain, **counts)


def rehearsal_sentence(kind: str | None, before: float, after: float, better: int, count: int) -> str:
    """What a rehearsal found."""
    verb = "lowered" if after < before else "raised"
    return REHEARSALS[kind].format(verb=verb, before=before, after=after, better=better, count=count)


def crossing_sentence(
    *, rows: float, changed: float, gained: float, lost: float, name: str, threshold: float | None
) -> str:
    """How many decisions are others than as trained."""
    counts = {"changed": whole(changed), "gained": whole(gained), "lost": whole(lost)}
    rule = "the most probable class" if threshold is None else f"threshold {percent(threshold)}"
    return CROSSING.format(rows=f"{whole(rows)} rows", rule=rule, name=quoted(name), **counts)
