"""Compare several models on labeled rows of one site: metrics, their differences, intervals and calibration."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from sitewise.performance.choice import wilson
from sitewise.performance.clinical import (
    calibration_in_the_large,
    calibration_line,
    net_benefit,
    observed_to_expected,
    treat_all,
)
from sitewise.performance.expected import Expected, ExpectedPerformance, expected_value
from sitewise.performance.expected_clinical import THRESHOLDS
from sitewise.performance.metrics import EXPECTED_METRICS, Predictions

Array = np.ndarray[Any, Any]
N_RESAMPLES = 200
N_BINS = 10


@dataclass(frozen=True, eq=False)
class Judged:
    """One model's metrics on labeled rows, and their values in R bootstrap resamples of rows or groups."""

    values: dict[str, float]
    resampled: dict[str, Array]  # (R,) each


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation:
    """The evaluation of an adapted model on labeled rows of its site.

    The model is compared with other models, and with its expected performance.

    Parameters
    ----------
    table : DataFrame
        One row for each metric and model: `value`, `low`, `high`, and `difference`, the value of the adapted model
        minus the value of the model in this row, with `difference_low` and `difference_high`. The intervals are from a
        bootstrap of rows, or of whole groups (patients) if there are groups.
    expected : ExpectedPerformance
        The expected performance of the adapted model on these rows, computed without their labels.
    held : DataFrame
        One row for each metric of the adapted model: the expected value with its interval (`expected`, `expected_low`,
        `expected_high`), the `observed` value, which the labels show, and whether the interval contains the observed
        value (`held`).
    reliability : dict
        The calibration plot of each model: a list of bins, each with the mean prediction (`predicted`), the `observed`
        share with its interval (`low`, `high`), and the number of rows (`rows`).
    decision_curve : DataFrame or None
        One row for each threshold: the net benefit of each model, of treating all and of treating none. None for more
        than two classes.
    n_rows : int
        The number of labeled rows.
    n_groups : int
        The number of groups of these rows. Without groups, each row counts as one.
    level : float
        Confidence level of the intervals.
    threshold : float or None
        The threshold of the decisions on P(y=1). None: the most probable class is predicted.
    models : tuple of str
        The names of the models; the first one is the adapted model.

    Examples
    --------
    >>> evaluation = here.evaluate(X_labeled, y_labeled, sample_confounder=Z_labeled, groups=patient)
    >>> evaluation.table.loc["brier"]
    >>> evaluation.held
    """

    table: pd.DataFrame
    expected: ExpectedPerformance
    held: pd.DataFrame
    reliability: dict[str, list[dict[str, float]]]
    decision_curve: pd.DataFrame | None
    n_rows: int
    n_groups: int
    level: float
    threshold: float | None
    models: tuple[str, ...] = field(default=())

    def __repr__(self) -> str:
        values = self.table["value"].unstack("model")[list(self.models)]
        head = f"evaluation on {self.n_rows:,} labeled rows of {self.n_groups:,} group(s)"
        inside = f"{int(self.held['held'].sum())} of {len(self.held)} expected intervals hold what the labels show"
        return f"{head}\n{values.round(3).to_string()}\n{inside}"

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain numbers for JSON.

        Returns
        -------
        dict
            All fields. Tables are lists of records, one for each row of the table.
        """

        def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
            plain = frame.astype(object).where(frame.notna(), None).to_dict("records")
            return [{str(key): value for key, value in line.items()} for line in plain]

        return {
            "rows": self.n_rows,
            "groups": self.n_groups,
            "level": self.level,
            "threshold": self.threshold,
            "models": list(self.models),
            "metrics": records(self.table.reset_index()),
            "expected": self.expected.to_dict(),
            "held": records(self.held.reset_index()),
            "reliability": self.reliability,
            "decision_curve": None if self.decision_curve is None else records(self.decision_curve),
        }


def compare_models(
    probabilities: Mapping[str, Array],
    y: Array,
    expected: ExpectedPerformance,
    *,
    weight: Array,
    units: Array,
    threshold: float | None = None,
    level: float = 0.95,
    n_resamples: int = N_RESAMPLES,
    seed: int = 0,
) -> Evaluation:
    """Evaluate models on labeled rows, and compare the first one with the others and with its `expected` performance.

    `probabilities` holds P(y) (n, K) by each model. `y` (n,) are class indices, `weight` (n,) row weights, and `units`
    (n,) the group of each row as a number from 0.
    """
    draws = list(resampled_weights(units, n_resamples, seed))
    judged = {name: judge(p, y, weight, draws, threshold) for name, p in probabilities.items()}
    first = next(iter(judged.values()))
    lines = []
    for metric in first.values:
        for name, model in judged.items():
            own = _interval(model.values[metric], model.resampled[metric], level)
            difference = first.values[metric] - model.values[metric]
            apart = _interval(difference, first.resampled[metric] - model.resampled[metric], level)
            if own.estimate is not None:
                lines.append({"metric": metric, "model": name, **_named(own, ""), **_named(apart, "difference")})
    table = pd.DataFrame(lines).set_index(["metric", "model"])
    return Evaluation(
        table,
        expected,
        _held(expected, first.values),
        {name: _bins(p, y, weight, level) for name, p in probabilities.items()},
        _curves(probabilities, y, weight) if len(expected.classes) == 2 else None,
        len(y),
        int(units.max()) + 1,
        level,
        threshold,
        tuple(probabilities),
    )


def resampled_weights(units: Array, n_resamples: int, seed: int) -> Iterator[Array]:
    """Draw whole units with replacement, and yield for each resample how often each row occurs, (n,).

    Nothing is yielded if there is only one unit.
    """
    n_units = int(units.max()) + 1
    if n_units < 2:
        return
    rng = np.random.default_rng(seed)
    for _ in range(n_resamples):
        yield np.bincount(rng.integers(n_units, size=n_units), minlength=n_units)[units].astype(float)


def judge(probability: Array, y: Array, weight: Array, draws: list[Array], threshold: float | None) -> Judged:
    """Compute every metric of one model on the labeled rows, and in each of the resamples `draws`."""
    n_classes = probability.shape[1]
    predictions = Predictions.of(probability, threshold)
    truth = np.eye(n_classes)[y].T[None]

    def measure(weights: Array) -> dict[str, float]:
        metrics = {name: float(value[0]) for name, value in predictions.metrics(truth, weights).items()}
        if n_classes == 2:
            score, event, at = probability[:, 1], truth[:, 1], np.array([0.5 if threshold is None else threshold])
            metrics["calibration_in_the_large"] = float(calibration_in_the_large(event, score, weights)[0])
            metrics["calibration_slope"] = float(calibration_line(event, score, weights)[0, 1])
            metrics["oe_ratio"] = float(observed_to_expected(event, score, weights)[0])
            metrics["net_benefit"] = float(net_benefit(event, predictions.predicted[:, None] == 1, weights, at)[0, 0])
        return metrics

    values = measure(weight)
    resampled = [measure(weight * counts) for counts in draws]
    return Judged(values, {name: np.array([one[name] for one in resampled]) for name in values})


def _interval(value: float, samples: Array, level: float) -> Expected:
    """Return a value with the interval of its resamples; the bounds are None without resamples (a single group)."""
    if np.isnan(value) or not np.isnan(samples).all():
        return expected_value(value, samples, level)
    return Expected(value, None, None)


def _held(expected: ExpectedPerformance, seen: dict[str, float]) -> pd.DataFrame:
    lines = []
    for metric in EXPECTED_METRICS:
        value = expected.metrics.get(metric)
        if value is None or value.low is None or value.high is None or np.isnan(seen[metric]):
            continue
        inside = value.low - 1e-12 <= seen[metric] <= value.high + 1e-12
        lines.append({"metric": metric, **_named(value, "expected"), "observed": seen[metric], "held": bool(inside)})
    return pd.DataFrame(lines).set_index("metric")


def _named(value: Expected, name: str) -> dict[str, float | None]:
    prefix = f"{name}_" if name else ""
    return {name or "value": value.estimate, f"{prefix}low": value.low, f"{prefix}high": value.high}


def _bins(probability: Array, y: Array, weight: Array, level: float) -> list[dict[str, float]]:
    """Return ten bins of equally many rows: mean prediction, observed share with Wilson's interval, number of rows.

    The prediction is P(y=1) for two classes, and the probability of the most probable class for more.
    """
    two = probability.shape[1] == 2
    score = probability[:, 1] if two else probability.max(axis=1)
    event = (y == 1) if two else (probability.argmax(axis=1) == y)
    order = np.argsort(score, kind="stable")
    bins = []
    for rows in np.array_split(order, min(N_BINS, len(order))):
        mass = weight[rows].sum()
        if mass <= 0:
            continue
        share = float(weight[rows] @ event[rows] / mass)
        low, high = wilson(share, float(mass**2 / (weight[rows] ** 2).sum()), level)
        predicted = float(weight[rows] @ score[rows] / mass)
        bins.append({"predicted": predicted, "observed": share, "low": low, "high": high, "rows": float(len(rows))})
    return bins


def _curves(probabilities: Mapping[str, Array], y: Array, weight: Array) -> pd.DataFrame:
    at = np.array(THRESHOLDS)
    event = (y == 1).astype(float)[None]
    columns = {name: net_benefit(event, p[:, 1, None] >= at, weight, at)[0] for name, p in probabilities.items()}
    everybody = treat_all(event, weight, at)[0]
    return pd.DataFrame({"threshold": at, **columns, "treat all": everybody, "treat none": np.zeros(len(at))})
