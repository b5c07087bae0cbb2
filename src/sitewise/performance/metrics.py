"""Metrics of predictions against beliefs about the labels: equations 16 and 16a of docs/maths.md.

The truth of a row is a distribution over classes. If it is a label (one-hot), these are the metrics of `evaluation`. If
it is P(y|x,z), they are the expected metrics without labels.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from sitewise.evaluation import (
    ECE_BINS,
    METRICS,
    SMALLEST_PROBABILITY,
    Ranking,
    areas_under_curves,
    bin_of_runs,
    divide,
    mean_of_defined,
)

Array = np.ndarray[Any, Any]
EXPECTED_METRICS = (*METRICS[:4], "precision", "recall", "specificity", *METRICS[4:])


def decide(probability: Array, threshold: float | None = None) -> Array:
    """Return the predicted class of every row: the most probable one, or 1 if P(y=1) is at or above the threshold."""
    if threshold is None:
        return np.asarray(probability.argmax(axis=1))
    return (probability[:, 1] >= threshold).astype(np.int64)


@dataclass(frozen=True, eq=False)
class Predictions:
    """Probabilities (n, K) and predicted classes, with all quantities that do not depend on the truth.

    Without probabilities, metrics of probabilities are undefined (NaN).
    """

    probability: Array | None
    predicted: Array  # (n,)
    n_classes: int
    rankings: tuple[Ranking, ...] = ()  # by P(y=1) for two classes, otherwise by the probability of each class
    confidence: Ranking | None = None  # by P(y=1) for two classes, otherwise by the largest probability

    @classmethod
    def of(
        cls,
        probability: Array | None,
        threshold: float | None = None,
        decided: Array | None = None,
        n_classes: int | None = None,
    ) -> "Predictions":
        """Predict classes, unless decisions (n,) are given, and sort the scores once for all truths."""
        if probability is None:
            assert decided is not None
            assert n_classes is not None
            return cls(None, decided, n_classes)
        n_classes = probability.shape[1]
        rankings = tuple(Ranking.of(probability[:, k]) for k in ([1] if n_classes == 2 else range(n_classes)))
        confidence = rankings[0] if n_classes == 2 else Ranking.of(probability.max(axis=1))
        predicted = decide(probability, threshold) if decided is None else decided
        return cls(probability, predicted, n_classes, rankings, confidence)

    def confusion(self, truth: Array, weight: Array) -> Array:
        """Return the expected confusion matrices (R, K, K) for R truths (R, K, n); their rows are the true classes."""
        called = np.eye(self.n_classes)[self.predicted] * weight[:, None]
        return np.asarray(truth @ called)

    def metrics(self, truth: Array, weight: Array) -> dict[str, Array]:
        """Compute every metric for each of R truths (R, K, n) with row weights (n,), NaN where undefined.

        Means over rows are exact expectations. Ratios of counts are ratios of expected counts.
        """
        counted = confusion_metrics(self.confusion(truth, weight))
        if self.probability is None:
            return counted | {name: np.full(len(truth), np.nan) for name in EXPECTED_METRICS if name not in counted}
        two = self.n_classes == 2
        flat = truth.reshape(len(truth), -1)
        log_probability = np.log(np.clip(self.probability.T, SMALLEST_PROBABILITY, 1))
        squares = (self.probability**2).sum(axis=1) - 2 * self.probability.T + 1  # (K, n), for each true class
        areas = [
            areas_under_curves(ranking, truth[:, 1 if two else k], weight) for k, ranking in enumerate(self.rankings)
        ]
        return {
            **counted,
            "nll": flat @ (-weight * log_probability).ravel() / weight.sum(),
            "brier": flat @ (weight * squares).ravel() / weight.sum() / (2 if two else 1),
            "auroc": mean_of_defined(np.stack([roc for roc, _ in areas], axis=1)),
            "auprc": mean_of_defined(np.stack([precision_recall for _, precision_recall in areas], axis=1)),
            "ece": self._calibration_error(truth, weight),
        }

    def _calibration_error(self, truth: Array, weight: Array) -> Array:
        """Return the calibration error (R,) in bins of equal mass of P(y=1), or of the largest P(y) for K > 2."""
        assert self.probability is not None
        assert self.confidence is not None
        best = self.probability.argmax(axis=1)
        score = self.probability[:, 1] if self.n_classes == 2 else self.probability.max(axis=1)
        event = truth[:, 1] if self.n_classes == 2 else truth[:, best, np.arange(len(best))]
        ranking = self.confidence
        run = np.zeros(len(weight), dtype=np.int64)
        run[ranking.starts] = 1
        bins = bin_of_runs(ranking.mass(weight[None]), ECE_BINS)[0][np.cumsum(run) - 1]
        member = np.zeros((len(weight), ECE_BINS))
        member[ranking.order, bins] = weight[ranking.order]
        return np.asarray(np.abs(event @ member - score @ member).sum(axis=1) / weight.sum())


def confusion_metrics(counts: Array) -> dict[str, Array]:
    """Compute metrics of confusion matrices (R, K, K).

    Precision, recall and specificity are those of class 1 for K = 2. For K > 2 they are means over the classes, each
    against the rest.
    """
    right = np.diagonal(counts, axis1=1, axis2=2)
    true, called, total = counts.sum(axis=2), counts.sum(axis=1), counts.sum(axis=(1, 2))
    rest = total[:, None] - true
    f1 = divide(2 * right, true + called)
    recall, precision = divide(right, true), divide(right, called)
    specificity = divide(rest - (called - right), rest)
    if counts.shape[1] == 2:
        one = {"precision": precision[:, 1], "recall": recall[:, 1], "specificity": specificity[:, 1]}
    else:
        every = {"precision": precision, "recall": recall, "specificity": specificity}
        one = {name: mean_of_defined(values) for name, values in every.items()}
    return {
        "accuracy": divide(right.sum(axis=1), total),
        "positive_f1": f1[:, 1] if counts.shape[1] == 2 else np.full(len(counts), np.nan),
        "macro_f1": mean_of_defined(f1),
        "balanced_accuracy": mean_of_defined(recall),
        **one,
    }
