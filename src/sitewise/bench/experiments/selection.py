"""Choice of the settings of each grid by the validation site alone, by pure functions of records."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from sitewise.bench.experiments.experiment import LOWER_IS_BETTER, VALIDATION, Choice, Entry, Experiment
from sitewise.bench.experiments.plan import is_tuned, tuning_runs
from sitewise.bench.experiments.records import Record


def choose_settings(
    experiment: Experiment, records: Iterable[Record], digits: str | None = None
) -> dict[str, dict[str, Any]]:
    """Return for each label the settings with the best mean of the validation metric over the tuning seeds.

    If settings are equally good, the first in the grid is chosen. A setting with an undefined metric counts as worst. A
    label whose tuning is not finished is left out.
    """
    known = {record["id"]: record for record in records}
    values: dict[str, dict[str, list[float]]] = {}  # label -> settings -> a value for each seed
    unfinished = set()
    for run in tuning_runs(experiment, digits):
        choice = run.methods[0]
        if run.id not in known:
            unfinished.add(choice.label)
            continue
        value = _validation_value(known[run.id], experiment, choice)
        values.setdefault(choice.label, {}).setdefault(repr(choice.settings), []).append(value)
    return {
        entry.label: _best(entry, values[entry.label]).settings
        for entry in experiment.methods
        if is_tuned(entry) and entry.label in values and entry.label not in unfinished
    }


def _validation_value(record: Record, experiment: Experiment, choice: Choice) -> float:
    """Return the metric at the validation site with a sign such that larger is better; -inf if it is undefined."""
    assert experiment.tuning is not None
    metric = experiment.tuning.metric
    value = record["results"][choice.label].get(VALIDATION, {}).get(metric)
    if value is None:
        return -np.inf
    return -value if metric in LOWER_IS_BETTER else float(value)


def _best(entry: Entry, values: dict[str, list[float]]) -> Choice:
    means = [float(np.mean(values[repr(candidate.settings)])) for candidate in entry.candidates]
    return entry.candidates[int(np.argmax(means))]
