"""Choose a threshold on P(y=1) (equation 16b), and report its expected performance.

There are three rules: the threshold with the highest expected F1, the highest threshold with a required sensitivity,
and the threshold with the highest expected net benefit.
"""

from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from sitewise.performance.expected import DrawnRows, Expected, ExpectedPerformance, summarize

COSTS = ("recall", "specificity", "precision", "positive_f1")
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class ThresholdChoice:
    """A threshold on P(y=1), the rule by which it was chosen, and its expected performance.

    Parameters
    ----------
    threshold : float
        Rows whose P(y=1), the probability of the second class, is at or above the threshold are called positive.
    rule : str
        The rule in words.
    performance : ExpectedPerformance
        The expected performance with this threshold.
    called_positive : Expected
        The share of rows that are called positive. Its interval is for the share among further rows of the same site.
    n_called : int
        The number of rows called positive, among the rows from which the threshold was chosen (at most 30,000).

    Examples
    --------
    >>> choice = here.choose_threshold(sensitivity=0.9)
    >>> choice.threshold, choice.costs["precision"]
    """

    threshold: float
    rule: str
    performance: ExpectedPerformance
    called_positive: Expected
    n_called: int

    def __str__(self) -> str:
        lines = [f"threshold {self.threshold:.4g} ({self.rule}): calls {self.n_called:,} row(s) positive"]
        for name, value in self.costs.items():
            if value.estimate is not None:
                lines.append(f"  {name:<18}{value.estimate:.3f}  [{value.low:.3f}, {value.high:.3f}]")
        return "\n".join(lines)

    @property
    def costs(self) -> dict[str, Expected]:
        """The share of rows called positive, recall, specificity, precision and F1, by name, each with its interval."""
        return {"called_positive": self.called_positive, **{name: self.performance[name] for name in COSTS}}

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain numbers for JSON.

        Returns
        -------
        dict
            The threshold, the rule, the number of rows called positive, and `costs`.
        """
        return {
            "threshold": self.threshold,
            "rule": self.rule,
            "n_called": self.n_called,
            "costs": {name: value._asdict() for name, value in self.costs.items()},
        }


def choose_threshold(
    rows: DrawnRows,
    classes: tuple[Any, ...],
    *,
    sensitivity: float | None = None,
    harm_to_benefit: float | None = None,
    level: float = 0.95,
) -> ThresholdChoice:
    """Choose the threshold with the highest expected F1, or by one of two other rules.

    If `sensitivity` is given, the highest threshold whose expected sensitivity (recall) is at least this value is
    chosen. If `harm_to_benefit` is given, the threshold with the highest expected net benefit is chosen. The harm of a
    false positive is then `harm_to_benefit` times the benefit of a true positive.
    """
    if len(classes) != 2:
        raise ValueError(f"choose_threshold: a threshold needs two classes, there are {len(classes)}")
    if sensitivity is not None and not 0 < sensitivity <= 1:
        raise ValueError(f"choose_threshold: sensitivity must lie above 0 and at most at 1, got {sensitivity!r}")
    if harm_to_benefit is not None and not 0 < harm_to_benefit < float("inf"):
        raise ValueError(f"choose_threshold: harm_to_benefit must be a number above 0, got {harm_to_benefit!r}")
    if harm_to_benefit is not None and sensitivity is not None:
        raise ValueError("choose_threshold: give sensitivity or harm_to_benefit, not both")
    assert rows.probability is not None
    score, truth = rows.probability[:, 1], rows.belief[:, 1]
    if harm_to_benefit is not None:
        threshold = net_benefit_threshold(score, truth, rows.weight, harm_to_benefit)
        rule = f"highest expected net benefit, a false positive costing {harm_to_benefit:g} true positives"
    elif sensitivity is None:
        threshold, rule = best_f1_threshold(score, truth, rows.weight), "highest expected F1"
    else:
        threshold = recall_threshold(score, truth, rows.weight, sensitivity)
        rule = f"expected sensitivity of at least {sensitivity:g}"
    called = score >= threshold
    share = float(rows.weight @ called / rows.weight.sum())
    effective = float(rows.weight.sum() ** 2 / (rows.weight**2).sum())
    return ThresholdChoice(
        threshold,
        rule,
        summarize(rows, classes, threshold, level),
        Expected(share, *wilson(share, effective, level)),
        int(np.count_nonzero(called)),
    )


def wilson(share: float, n: float, level: float) -> tuple[float, float]:
    """Return the ends of Wilson's interval of a share that was observed among n rows."""
    z = NormalDist().inv_cdf(0.5 + level / 2)
    middle = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * (share * (1 - share) / n + z**2 / (4 * n**2)) ** 0.5
    return max(0.0, middle - half), min(1.0, middle + half)


def best_f1_threshold(score: Array, truth: Array, weight: Array) -> float:
    """Return the threshold with the highest expected F1 of class 1; the highest such threshold if several tie.

    `score` (n,) is compared with the threshold, `truth` (n,) is the belief P(y=1), and `weight` (n,) holds the row
    weights. The threshold is halfway between two scores, so that rounding does not change a decision.
    """
    values, hits, called = _from_the_top(score, truth, weight)
    f1 = 2 * hits / np.maximum(called + hits[-1], np.finfo(float).tiny)
    best = int(np.argmax(f1 >= f1.max() * (1 - 1e-12)))
    return _below(values, best)


def recall_threshold(score: Array, truth: Array, weight: Array, recall: float) -> float:
    """Return the highest threshold whose expected recall of class 1 is at least `recall`."""
    values, hits, _ = _from_the_top(score, truth, weight)
    enough = hits >= recall * hits[-1] * (1 - 1e-12)
    return _below(values, int(np.argmax(enough)))


def net_benefit_threshold(score: Array, truth: Array, weight: Array, harm_to_benefit: float) -> float:
    """Return the threshold with the highest expected net benefit.

    The harm of a false positive is h = `harm_to_benefit` times the benefit of a true positive. The threshold
    h / (1 + h) is returned if no other has a higher net benefit. This is the case if the scores equal the beliefs.
    """
    values, hits, called = _from_the_top(score, truth, weight)
    gain = np.concatenate([[0.0], hits - harm_to_benefit * (called - hits)])  # the first entry calls no row
    plain = harm_to_benefit / (1 + harm_to_benefit)
    best = int(gain.argmax())
    if gain[np.count_nonzero(values >= plain)] >= gain[best] - 1e-12 * weight.sum():
        return plain
    return 1.0 if best == 0 else _below(values, best - 1)


def _from_the_top(score: Array, truth: Array, weight: Array) -> tuple[Array, Array, Array]:
    """Return the distinct scores, highest first, and for each the weight of positives and of all rows at or above it.

    The weight of positives is the expected one under the beliefs `truth`.
    """
    values, index = np.unique(-score, return_inverse=True)
    n_values = len(values)
    hits = np.cumsum(np.bincount(index, weight * truth, n_values))
    return -values, hits, np.cumsum(np.bincount(index, weight, n_values))


def _below(values: Array, last: int) -> float:
    """Return a threshold between the score at `last` and the next lower one."""
    following = values[last + 1] if last + 1 < len(values) else 0.0
    return float((values[last] + following) / 2)
