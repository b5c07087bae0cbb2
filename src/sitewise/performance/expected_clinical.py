"""Expected clinical measures of predictions on unlabeled rows, with intervals."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from sitewise.arrays import Problems
from sitewise.evaluation import Ranking
from sitewise.performance.clinical import (
    calibration_in_the_large,
    calibration_line,
    net_benefit,
    number_needed_to_evaluate,
    observed_to_expected,
    sensitivity_at,
    treat_all,
)
from sitewise.performance.expected import DrawnRows, Expected, drawn_truths, expected_value
from sitewise.performance.metrics import decide

Array = np.ndarray[Any, Any]
THRESHOLDS = tuple(round(0.01 * k, 2) for k in range(1, 100))
SPECIFICITY = 0.9
CLINICAL = (
    "net_benefit",
    "net_benefit_treat_all",
    "calibration_in_the_large",
    "calibration_slope",
    "oe_ratio",
    "sensitivity_at_specificity",
    "number_needed_to_evaluate",
)


def clinical_performance(
    rows: DrawnRows,
    *,
    threshold: float | None = None,
    specificity: float = SPECIFICITY,
    level: float = 0.95,
) -> dict[str, Expected]:
    """Compute the expected values of seven clinical measures of two classes, with intervals.

    They are: the net benefit of the predictions and that of treating all rows, calibration in the large, calibration
    slope, the ratio of observed to expected events, the sensitivity at a specificity, and the number needed to evaluate
    (rows called positive for each true positive).

    Parameters
    ----------
    rows : DrawnRows
        The rows with the predictions to evaluate, as in `ExpectedPerformance.rows`.
    threshold : float, optional
        Rows whose predicted P(y=1) is at or above the threshold are treated; 0.5 by default. If `rows` contain
        decisions of another model, the rows are treated by these decisions instead. In the net benefit, the harm of a
        false positive is the odds of the threshold, threshold / (1 - threshold), times the benefit of a true positive.
    specificity : float
        The smallest allowed specificity. The reported sensitivity is the highest one that is possible with it.
    level : float
        Confidence level of the intervals.

    Returns
    -------
    dict of str to Expected
        The estimate and interval of each measure: (estimate, low, high). If `rows` contain decisions without
        probabilities, measures of probabilities are undefined (None).

    Examples
    --------
    >>> rows = here.expected_performance().rows
    >>> clinical_performance(rows, threshold=0.2)["net_benefit"]
    """
    problems = Problems("clinical_performance")
    _check_classes(rows, problems)
    if threshold is not None and not 0 < threshold < 1:
        problems.add(f"threshold must lie between 0 and 1, got {threshold}")
    if not 0 < specificity < 1:
        problems.add(f"specificity must lie between 0 and 1, got {specificity}")
    if not 0 < level < 1:
        problems.add(f"level must lie between 0 and 1, got {level}")
    problems.raise_if_any()
    at = np.array([0.5 if threshold is None else threshold])
    score = None if rows.probability is None else rows.probability[:, 1]
    called = rows.decided if rows.decided is not None else decide(rows.probability, float(at[0]))  # type: ignore[arg-type]
    ranking = None if score is None else Ranking.of(score)

    def measure(event: Array) -> dict[str, Array]:
        values = {
            "net_benefit": net_benefit(event, called[:, None] == 1, rows.weight, at)[:, 0],
            "net_benefit_treat_all": treat_all(event, rows.weight, at)[:, 0],
            "number_needed_to_evaluate": number_needed_to_evaluate(event, called == 1, rows.weight),
        }
        if score is not None and ranking is not None:
            values |= {
                "calibration_in_the_large": calibration_in_the_large(event, score, rows.weight),
                "calibration_slope": calibration_line(event, score, rows.weight)[:, 1],
                "oe_ratio": observed_to_expected(event, score, rows.weight),
                "sensitivity_at_specificity": sensitivity_at(event, ranking, rows.weight, specificity),
            }
        return {name: values.get(name, np.full(len(event), np.nan)) for name in CLINICAL}

    value, drawn = _with_draws(rows, measure)
    return {name: expected_value(float(value[name][0]), drawn[name], level) for name in CLINICAL}


def decision_curve(rows: DrawnRows, thresholds: Any = THRESHOLDS, *, level: float = 0.95) -> pd.DataFrame:
    """Compute the expected net benefit of three strategies: treat by the predictions, treat all rows, or treat none.

    Parameters
    ----------
    rows : DrawnRows
        The rows with the predictions to evaluate, as in `ExpectedPerformance.rows`; for two classes. If `rows` contain
        decisions of another model, rows are treated by these decisions at every threshold.
    thresholds : sequence of float
        Thresholds between 0 and 1; 0.01 to 0.99 by default.
    level : float
        Confidence level of the intervals.

    Returns
    -------
    DataFrame
        One row for each threshold: `threshold`; the expected net benefit of the predictions (`net_benefit`) and of
        treating all rows (`treat_all`), each with the ends of its interval (`_low` and `_high` appended to the name);
        `treat_none` (zero); and `best`, the strategy with the highest expected net benefit.

    Examples
    --------
    >>> curve = decision_curve(here.expected_performance().rows, [0.1, 0.2, 0.3])
    >>> curve[["threshold", "net_benefit", "best"]]
    """
    problems = Problems("decision_curve")
    _check_classes(rows, problems)
    at = np.atleast_1d(np.asarray(thresholds, dtype=float))
    if at.ndim != 1 or not len(at) or not ((at > 0) & (at < 1)).all():
        problems.add("thresholds must be numbers between 0 and 1")
    if rows.probability is None and rows.decided is None:
        problems.add("there is nothing to decide by")
    problems.raise_if_any()
    if rows.decided is not None:
        called = np.repeat(rows.decided[:, None] == 1, len(at), axis=1)
    else:
        assert rows.probability is not None
        called = rows.probability[:, 1, None] >= at

    def measure(event: Array) -> dict[str, Array]:
        own = net_benefit(event, called, rows.weight, at)
        return {"net_benefit": own, "treat_all": treat_all(event, rows.weight, at)}

    value, drawn = _with_draws(rows, measure)
    columns: dict[str, Any] = {"threshold": at}
    for name in ("net_benefit", "treat_all"):
        low, high = np.quantile(drawn[name], [(1 - level) / 2, (1 + level) / 2], axis=0)
        own = value[name][0]
        columns |= {name: own, f"{name}_low": np.minimum(low, own), f"{name}_high": np.maximum(high, own)}
    columns["treat_none"] = np.zeros(len(at))
    names = np.array(["net_benefit", "treat_all", "treat_none"])
    best = np.stack([columns[name] for name in names]).argmax(axis=0)
    columns["best"] = np.array(["predictions", "treat all", "treat none"])[best]
    return pd.DataFrame(columns)


def _check_classes(rows: DrawnRows, problems: Problems) -> None:
    if rows.belief.shape[1] != 2:
        problems.add(f"two classes are needed, there are {rows.belief.shape[1]}")


def _with_draws(
    rows: DrawnRows, measure: Callable[[Array], dict[str, Array]]
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return the measures of the beliefs, (1, ...) each, and of each of B draws of the labels, (B, ...) each."""
    drawn = [measure(truth[:, 1]) for truth in drawn_truths(rows.labels, 2)]
    together = {name: np.concatenate([chunk[name] for chunk in drawn]) for name in drawn[0]}
    return measure(rows.belief[None, :, 1]), together
