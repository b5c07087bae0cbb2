"""Several models judged by the labels of one site: metrics with intervals by patient, differences, calibration."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from sitewise.performance.believed_clinical import THRESHOLDS
from sitewise.performance.choice import wilson
from sitewise.performance.clinical import (
    calibration_in_the_large,
    calibration_line,
    net_benefit,
    observed_to_expected,
    treat_all,
)
from sitewise.performance.expected import Expected, ExpectedPerformance, expected_value
from sitewise.performance.metrics import EXPECTED_METRICS, Predictions

Array = np.ndarray[Any, Any]
N_RESAMPLES = 200
N_BINS = 10


@dataclass(frozen=True, eq=False)
class Judged:
    """One model's metrics by labels, with what the resamples of patients make of them."""

    values: dict[str, float]
    resampled: dict[str, Array]  # (R,) each


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation:
    """An adapted model beside others on labeled rows of its site, and whether what was expected came true.

    Attributes
    ----------
    table : DataFrame
        A row for each metric and model: `value`, `low`, `high`, and the `difference` of the first model to this one
        with `difference_low`, `difference_high`. Intervals are those of resampled rows, or of whole groups (patients).
    expected : ExpectedPerformance
        What was expected of the first model on these rows before their labels were seen.
    held : DataFrame
        For each metric the expected value with its interval, the observed value, and whether it lies inside.
    reliability : dict
        For each model the bins of its calibration plot.
    decision_curve : DataFrame or None
        Net benefit of each model, of treating all and none; for two classes.
    n_rows, n_groups, level, threshold
        Rows with labels, groups among them, the level of the intervals, and the threshold, None for the most probable
        class.

    Examples
    --------
    >>> found = here.evaluate(X_labeled, y_labeled, sample_confounder=Z_labeled, groups=patient)
    >>> found.table.loc["brier"]
    >>> found.held
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
        """Plain numbers, ready for JSON."""

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
    """Judge models by labels (n,) and compare the first one with the others and with what was `expected` of it."""
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
    """How often each row counts when whole units are drawn with replacement, one resample at a time."""
    n_units = int(units.max()) + 1
    if n_units < 2:
        return
    rng = np.random.default_rng(seed)
    for _ in range(n_resamples):
        yield np.bincount(rng.integers(n_units, size=n_units), minlength=n_units)[units].astype(float)


def judge(probability: Array, y: Array, weight: Array, draws: list[Array], threshold: float | None) -> Judged:
    """Every metric of one model by labels, and under each resample of the rows."""
    n_classes = probability.shape[1]
    predictions = Predictions.of(probability, threshold)
    truth = np.eye(n_classes)[y].T[None]

    def measure(weights: Array) -> dict[str, float]:
        found = {name: float(value[0]) for name, value in predictions.metrics(truth, weights).items()}
        if n_classes == 2:
            score, event, at = probability[:, 1], truth[:, 1], np.array([0.5 if threshold is None else threshold])
            found["calibration_in_the_large"] = float(calibration_in_the_large(event, score, weights)[0])
            found["calibration_slope"] = float(calibration_line(event, score, weights)[0, 1])
            found["oe_ratio"] = float(observed_to_expected(event, score, weights)[0])
            found["net_benefit"] = float(net_benefit(event, predictions.predicted[:, None] == 1, weights, at)[0, 0])
        return found

    values = measure(weight)
    resampled = [measure(weight * counts) for counts in draws]
    return Judged(values, {name: np.array([one[name] for one in resampled]) for name in values})


def _interval(value: float, samples: Array, level: float) -> Expected:
    """A value with the interval of its resamples; without an interval where there are none (one group alone)."""
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
    """Ten bins of equal mass: mean prediction, observed share with Wilson's interval, rows."""
    two = probability.shape[1] == 2
    score = probability[:, 1] if two else probability.max(axis=1)
    event = (y == 1) if two else (probability.argmax(axis=1) == y)
    order = np.argsort(score, kind="stable")
    found = []
    for rows in np.array_split(order, min(N_BINS, len(order))):
        mass = weight[rows].sum()
        if mass <= 0:
            continue
        share = float(weight[rows] @ event[rows] / mass)
        low, high = wilson(share, float(mass**2 / (weight[rows] ** 2).sum()), level)
        predicted = float(weight[rows] @ score[rows] / mass)
        found.append({"predicted": predicted, "observed": share, "low": low, "high": high, "rows": float(len(rows))})
    return found


def _curves(probabilities: Mapping[str, Array], y: Array, weight: Array) -> pd.DataFrame:
    at = np.array(THRESHOLDS)
    event = (y == 1).astype(float)[None]
    columns = {name: net_benefit(event, p[:, 1, None] >= at, weight, at)[0] for name, p in probabilities.items()}
    everybody = treat_all(event, weight, at)[0]
    return pd.DataFrame({"threshold": at, **columns, "treat all": everybody, "treat none": np.zeros(len(at))})
