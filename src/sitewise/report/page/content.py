"""The content of a report as plain numbers and texts. Both the page and its JSON file are written from it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sitewise.arrays import Problems
from sitewise.evaluation import reliability
from sitewise.performance.choice import wilson
from sitewise.performance.metrics import decide
from sitewise.report.wording import NOT_CHECKED, crossing_sentence

Array = np.ndarray[Any, Any]
Content = dict[str, Any]
FORMAT = "sitewise report 1"
MOST_LEVELS, MOST_CLASSES = 24, 4
N_BINS = 20


@dataclass(frozen=True)
class TrainingSite:
    """A training site: its number of rows, and the share of each class, (K,)."""

    name: Any
    rows: int
    prevalence: Array


@dataclass(frozen=True)
class Profile:
    """The mean prediction at the site for each value of one confounder, as trained (`before`) and adapted (`after`).

    `values` are levels, or increasing numbers if `is_number`. `before`, `after` and the interval of `after` (`low` and
    `high`) have the shape (values, K). `rows` counts the rows here at each level or nearest to each number,
    `rows_missing` the rows without a value. `left_out` is the number of levels that are not listed, and of their rows.
    """

    name: Any
    values: Sequence[Any]
    rows: Array
    before: Array
    after: Array
    low: Array
    high: Array
    is_number: bool = False
    rows_missing: int = 0
    left_out: tuple[int, int] = (0, 0)
    notes: tuple[str, ...] = ()


def build_content(
    *,
    site: Any,
    classes: Sequence[Any],
    prevalence: Array,
    low: Array,
    high: Array,
    pooled: Array,
    before: Array,
    after: Array,
    training_sites: Sequence[TrainingSite] = (),
    profiles: Sequence[Profile] = (),
    held_out: tuple[Any, Any] | None = None,
    performance: Mapping[str, Any] | None = None,
    subgroups: Sequence[Mapping[str, Any]] = (),
    diagnosis: Mapping[str, Any] | None = None,
    rehearsal: Mapping[str, Any] | None = None,
    about: Mapping[str, str | None] | None = None,
    kind: str = "tables",
    done: Mapping[str, Mapping[str, Any]] | None = None,
    threshold: float | None = None,
    sample_weight: Array | None = None,
    level: float = 0.95,
    made: str = "",
) -> Content:
    """Build the content of a report from arrays; the result holds only what JSON can hold.

    Parameters
    ----------
    site : str
        The name of the site.
    classes : sequence of str
        The names of the K classes.
    prevalence : array-like of shape (K,)
        P(Y) at the site.
    low : array-like of shape (K,)
        The lower bound of the interval of P(Y).
    high : array-like of shape (K,)
        The upper bound of the interval of P(Y).
    pooled : array-like of shape (K,)
        P(Y) of all training rows together.
    before : array-like of shape (n, K)
        Predictions for the site's rows by the model as trained.
    after : array-like of shape (n, K)
        Predictions for the site's rows by the adapted model.
    training_sites : sequence of TrainingSite
        The training sites.
    profiles : sequence of Profile
        The mean predictions by each confounder.
    held_out : tuple of arrays, optional
        Class indices (m,) and predictions (m, K) of held-out training rows, for the reliability diagram.
    performance : dict, optional
        `ExpectedPerformance.to_dict()`.
    subgroups : sequence of dict
        Groups of rows. Each has its column, name, rows and note, and the expected "prevalence" of each class, "metrics"
        and "calibration". These three are empty if they were not estimated.
    diagnosis : dict, optional
        `Diagnosis.to_dict()`.
    rehearsal : dict, optional
        The "sentence" about the rehearsal, and "sites": for each site its rows and the log loss "before", "after" and
        with known P(y) ("told").
    about : dict, optional
        Entries of the model's `about_`: outcome_name, positive, intended_use, contact.
    kind : {"images", "tables"}
        The kind of data, which determines some words on the page.
    done : dict of dict
        Facts about training and adaptation: for each heading, values by name.
    threshold : float, optional
        For two classes, the probability from which the second class is predicted.
    sample_weight : array-like of shape (n,), optional
        Weights of the rows.
    level : float
        The level of the intervals.
    made : str, optional
        The date of the report.

    Returns
    -------
    dict
        The content.
    """
    before, after = np.asarray(before, dtype=np.float64), np.asarray(after, dtype=np.float64)
    _check(len(classes), before, after, (prevalence, low, high, pooled), profiles)
    verdict, outcome = _conclusion(diagnosis)
    content = {
        "format": FORMAT,
        "site": str(site),
        "made": made,
        "classes": [str(name) for name in classes],
        "focus": _focus(np.asarray(prevalence)),
        "rows": len(after),
        "level": level,
        "threshold": threshold,
        "outcome": outcome,
        "verdict": verdict,
        "about": dict(about or {}),
        "kind": kind,
        "crossing": _crossing(before, after, sample_weight, threshold, [str(name) for name in classes]),
        "rehearsal": None if rehearsal is None else dict(rehearsal),
        "diagnosis": None if diagnosis is None else dict(diagnosis),
        "prevalence": _prevalence(prevalence, low, high, pooled, training_sites),
        "confounders": [_profile(profile) for profile in profiles],
        "probabilities": _probabilities({"before": before, "after": after}, sample_weight, threshold),
        "reliability": None if held_out is None or not len(held_out[0]) else _reliability(*held_out, level),
        "performance": None if performance is None else dict(performance),
        "subgroups": [dict(group) for group in subgroups],
        "done": [
            {"heading": heading, "entries": [{"name": name, "value": value} for name, value in entries.items()]}
            for heading, entries in (done or {}).items()
        ],
    }
    return {name: plain(value) for name, value in content.items()}


def _conclusion(diagnosis: Mapping[str, Any] | None) -> tuple[str, Mapping[str, Any]]:
    """The verdict and the outcome; an estimate from arrays alone has a verdict but no outcome."""
    if diagnosis is None:
        return "not checked", NOT_CHECKED
    verdict = str(diagnosis["verdict"])
    stated = diagnosis.get("outcome") or {"word": verdict, "sentence": diagnosis["sentence"], "risk": ""}
    return verdict, {name: stated[name] for name in ("word", "sentence", "risk")}


def plain(value: Any) -> Any:
    """The value in types of JSON: lists, dicts, finite numbers, None for NaN and infinity, valid text."""
    if isinstance(value, Mapping):
        return {plain(str(name)): plain(entry) for name, entry in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, list | tuple | set):
        return [plain(entry) for entry in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int):
        return value
    return str(value).encode("utf-8", "replace").decode().replace("\x00", "\ufffd")


def _check(
    n_classes: int, before: Array, after: Array, marginals: Sequence[Array], profiles: Sequence[Profile]
) -> None:
    problems = Problems("build_content")
    for name, matrix in (("before", before), ("after", after)):
        if matrix.ndim != 2 or matrix.shape[1] != n_classes or not len(matrix):
            problems.add(f"{name} must be (rows, {n_classes}) with at least one row, got {matrix.shape}")
    for name, vector in zip(("prevalence", "low", "high", "pooled"), marginals, strict=True):
        if np.shape(vector) != (n_classes,):
            problems.add(f"{name} must have a number for each of the {n_classes} classes, got {np.shape(vector)}")
    for profile in profiles:
        expected = (len(profile.values), n_classes)
        for name in ("before", "after", "low", "high"):
            if np.shape(getattr(profile, name)) != expected:
                came = np.shape(getattr(profile, name))
                problems.add(f"confounder {profile.name!r}: {name} must be {expected}, got {came}")
    problems.raise_if_any()


def _focus(prevalence: Array) -> list[int]:
    """The classes that are drawn: the second of two, otherwise the most frequent here."""
    return [1] if len(prevalence) == 2 else most_frequent(prevalence, MOST_CLASSES)


def _prevalence(
    prevalence: Array, low: Array, high: Array, pooled: Array, sites: Sequence[TrainingSite]
) -> dict[str, Any]:
    return {
        "estimate": prevalence,
        "low": low,
        "high": high,
        "training": pooled,
        "sites": [{"name": str(site.name), "rows": site.rows, "prevalence": site.prevalence} for site in sites],
    }


def _crossing(
    before: Array, after: Array, weight: Array | None, threshold: float | None, names: list[str]
) -> dict[str, Any]:
    """The number of rows whose predicted class differs from that as trained: in total, gained and lost by one class."""
    counts = np.ones(len(after)) if weight is None else np.asarray(weight, dtype=np.float64)
    first, then = (decide(matrix, threshold) for matrix in (before, after))
    k = 1 if len(names) == 2 else int(np.argmax([((first == j) != (then == j)) @ counts for j in range(len(names))]))
    changed, gained, lost = (
        float(rows @ counts) for rows in (first != then, (first != k) & (then == k), (first == k) & (then != k))
    )
    numbers = {"rows": float(counts.sum()), "changed": changed, "gained": gained, "lost": lost}
    return {**numbers, "sentence": crossing_sentence(name=names[k], threshold=threshold, **numbers)}


def _probabilities(probability: Mapping[str, Array], weight: Array | None, threshold: float | None) -> dict[str, Any]:
    """The distribution of probabilities before and after, their means, and the shares of predicted classes."""
    called = {side: called_shares(matrix, weight, threshold) for side, matrix in probability.items()}
    mean = {side: np.average(matrix, axis=0, weights=weight) for side, matrix in probability.items()}
    shares = {side: probability_shares(matrix, weight) for side, matrix in probability.items()}
    return {"edges": np.linspace(0, 1, N_BINS + 1), **shares, "called": called, "mean": mean}


def _profile(profile: Profile) -> dict[str, Any]:
    """The numbers of a confounder: a whole curve, or the most frequent levels and the number of others."""
    rows = np.asarray(profile.rows, dtype=np.int64)
    shown = list(range(len(rows))) if profile.is_number else most_frequent(rows, MOST_LEVELS)
    points = [
        {"value": profile.values[i], "rows": rows[i]}
        | {name: getattr(profile, name)[i] for name in ("before", "after", "low", "high")}
        for i in shown
    ]
    return {
        "name": str(profile.name),
        "kind": "number" if profile.is_number else "levels",
        "points": points,
        "more": {
            "levels": len(rows) - len(shown) + profile.left_out[0],
            "rows": int(rows.sum() - rows[shown].sum()) + profile.left_out[1],
        },
        "rows_missing": profile.rows_missing,
        "notes": profile.notes,
    }


def _reliability(y: Any, probability: Any, level: float) -> dict[str, Any]:
    """The bins of a reliability diagram of held-out rows: predicted and observed shares, with Wilson's interval."""
    curve = reliability(y, probability)
    bins = []
    for predicted, observed, count in zip(*(curve[c] for c in ("mean_predicted", "observed", "count")), strict=True):
        low, high = wilson(observed, count, level)
        ends = {"low": min(low, observed), "high": max(high, observed)}  # the interval contains it despite rounding
        bins.append({"predicted": predicted, "observed": observed, **ends, "rows": int(count)})
    return {"rows": sum(bin["rows"] for bin in bins), "bins": bins}


def probability_shares(probability: Array, weight: Array | None = None, n_bins: int = N_BINS) -> Array:
    """The share of rows whose P(y) is in each of equal bins of [0, 1], (K, bins); the shares of a class sum to one."""
    n_rows, n_classes = probability.shape
    weights = np.ones(n_rows) if weight is None else np.asarray(weight, dtype=np.float64)
    place = np.clip((probability * n_bins).astype(np.int64), 0, n_bins - 1)
    counts = [np.bincount(place[:, k], weights=weights, minlength=n_bins) for k in range(n_classes)]
    return np.asarray(np.stack(counts) / weights.sum())


def called_shares(probability: Array, weight: Array | None = None, threshold: float | None = None) -> Array:
    """The share of rows for which each class is predicted, (K,), as in `decide`."""
    counts = np.bincount(decide(probability, threshold), weights=weight, minlength=probability.shape[1])
    return np.asarray(counts / counts.sum())


def most_frequent(rows: Array, limit: int) -> list[int]:
    """The indices of the `limit` largest counts, in increasing order; among equal counts the first ones are taken."""
    largest = np.argsort(-np.asarray(rows), kind="stable")[:limit]
    return sorted(largest.tolist())
