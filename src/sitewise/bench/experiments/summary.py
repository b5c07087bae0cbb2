"""Summary of final records: a table of means over seeds, with intervals and paired differences."""

import json
from collections.abc import Iterable, Mapping
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import t

from sitewise.bench.experiments.experiment import ALL_METRICS, Choice, Experiment
from sitewise.bench.experiments.plan import final_runs, make_method
from sitewise.bench.experiments.records import Record, rounded
from sitewise.bench.experiments.selection import choose_settings

LEVEL = 0.95
NOT_RUN = "not run yet"
COLUMNS = (
    "method",
    "site",
    "draw",
    "metric",
    "seeds",
    "mean",
    "low",
    "high",
    "difference",
    "difference_low",
    "difference_high",
    "told",
    "skipped",
)
# Settings that determine a network and its test sites.
TRAINING = ("seed", "target", "unlabeled", "digits", "data", "recipe", "network", "training", "validation", "tests")
Place = tuple[str, str, str, str]  # label, site, draw, metric


def final_records(experiment: Experiment, records: Iterable[Record]) -> list[Record]:
    """Return the records of the final runs, those with the chosen settings; tables and figures use only these.

    If a final run has no record, its results are taken from other records with the same training. Therefore existing
    results do not disappear when a row is added to the YAML. If the records have several sources of digits, the source
    of the last record is used.
    """
    known = {record["id"]: record for record in records}
    digits = next((record["digits"] for record in reversed(list(known.values()))), None)
    chosen = choose_settings(experiment, known.values(), digits)
    alike: dict[str, list[Record]] = {}
    for record in known.values():
        alike.setdefault(_training(record), []).append(record)
    runs = final_runs(experiment, chosen, digits)
    candidates = (known.get(run.id) or _from_others(run.plain(), alike.get(_training(run.plain()), [])) for run in runs)
    return [record for record in candidates if record is not None]


def _training(settings: Mapping[str, Any]) -> str:
    """Return the settings that determine a network and its test sites (`TRAINING`), as text."""
    return json.dumps(rounded({name: settings.get(name) for name in TRAINING}), sort_keys=True)


def _from_others(run: Mapping[str, Any], records: list[Record]) -> Record | None:
    """Combine records with the same training into a record of this run; None if they have no results for it.

    If several records have results of a method, the last one is used.
    """
    results: dict[str, Any] = {}
    for record in records:
        draws = [name for name, draw in run["draws"].items() if record["draws"].get(name) == draw]
        for label, method in run["methods"].items():
            result = record["results"].get(label)
            if record["methods"].get(label) != rounded(method) or result is None:
                continue
            if "skipped" in result:
                results[label] = result
            else:
                sites = {site: {draw: own[draw] for draw in draws} for site, own in result["sites"].items()}
                results[label] = {"sites": sites}
    return {"seed": run["seed"], "tests": run["tests"], "results": results} if results else None


def summarize(experiment: Experiment, records: Iterable[Record]) -> pd.DataFrame:
    """Summarize an experiment in a table with a row for each method, test site, draw and metric.

    The rows have the order of the experiment's YAML file. A draw says how many rows of a test site are scored, and on
    how many rows the methods are adapted.

    Parameters
    ----------
    experiment : Experiment
        The experiment, as `read_experiment` returns it.
    records : list of dict
        The records of its runs, as `run_experiment` returns them.

    Returns
    -------
    DataFrame
        The columns `method`, `site`, `draw` and `metric`, the number of seeds (`seeds`), and:

        - `mean`, `low`, `high`: the mean over seeds, and its 95% t-interval;
        - `difference`, `difference_low`, `difference_high`: the mean over seeds of the method's value minus that of the
          experiment's `reference` method with the same seed, and its 95% t-interval;
        - `told`: whether the method uses information that is not available at a new site;
        - `skipped`: the reason if the row has no numbers.

        Metrics that are undefined everywhere have no rows.
    """
    values, skipped = _collect(final_records(experiment, records))
    informed = {entry.label: is_informed(entry.candidates[0], experiment.recipe) for entry in experiment.methods}
    metrics = [metric for metric in ALL_METRICS if any(place[3] == metric for place in values)] or [experiment.metric]
    have_run = {place[:2] for place in values}
    sites, draws = ([part.name for part in parts] for parts in (experiment.tests, experiment.draws))
    rows = []
    for label, site, draw, metric in product(informed, sites, draws, metrics):
        mine = values.get((label, site, draw, metric), {})
        theirs = values.get((experiment.reference or "", site, draw, metric), {})
        gaps = [] if label == experiment.reference else [mine[seed] - theirs[seed] for seed in mine if seed in theirs]
        reason = skipped.get((label, site), "" if (label, site) in have_run else NOT_RUN)
        intervals = (*t_interval(list(mine.values())), *t_interval(gaps))
        rows.append((label, site, draw, metric, len(mine), *intervals, informed[label], reason))
    return pd.DataFrame(rows, columns=list(COLUMNS))


def t_interval(values: list[float], level: float = LEVEL) -> tuple[float, float, float]:
    """Return the mean m and the bounds m - t s/√n and m + t s/√n; an undefined value is NaN.

    s is the standard deviation of the n values, and t the quantile of Student's distribution with n-1 degrees of
    freedom.
    """
    if not values:
        return np.nan, np.nan, np.nan
    mean = float(np.mean(values))
    if len(values) == 1:
        return mean, np.nan, np.nan
    half = float(t.ppf((1 + level) / 2, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values)))
    return mean, mean - half, mean + half


def is_informed(choice: Choice, recipe: dict[str, Any]) -> bool:
    """Whether a method, or the trainer of its network, uses information that is not available at a new site."""
    method = make_method(choice, recipe, {})
    return bool(method.card.is_reference or method.trainer().card.is_reference)


def _collect(records: list[Record]) -> tuple[dict[Place, dict[int, float]], dict[tuple[str, str], str]]:
    """Return all numbers by place and seed, and the reasons for skipped results by label and site."""
    values: dict[Place, dict[int, float]] = {}
    skipped: dict[tuple[str, str], str] = {}
    for record in records:
        for label, result in record["results"].items():
            for site in record["tests"]:
                if "skipped" in result:
                    skipped[label, site] = result["skipped"]
                    continue
                for draw, scores in result["sites"][site].items():
                    for metric in ALL_METRICS:
                        if scores[metric] is not None:
                            values.setdefault((label, site, draw, metric), {})[record["seed"]] = scores[metric]
    return values, skipped
