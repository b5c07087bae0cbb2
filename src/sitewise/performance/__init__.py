"""Performance without labels: expected metrics with intervals, and thresholds with what they cost."""

from sitewise.performance.choice import ThresholdChoice, choose_threshold
from sitewise.performance.estimate import believe, expected_performance
from sitewise.performance.expected import BelievedRows, Expected, ExpectedCounts, ExpectedPerformance, summarize
from sitewise.performance.labels import Direction, Part, calibration_directions, draw_labels
from sitewise.performance.metrics import EXPECTED_METRICS, Predictions, confusion_metrics, decide
from sitewise.performance.thresholds import best_f1_threshold, recall_threshold

__all__ = [
    "EXPECTED_METRICS",
    "BelievedRows",
    "Direction",
    "Expected",
    "ExpectedCounts",
    "ExpectedPerformance",
    "Part",
    "Predictions",
    "ThresholdChoice",
    "believe",
    "best_f1_threshold",
    "calibration_directions",
    "choose_threshold",
    "confusion_metrics",
    "decide",
    "draw_labels",
    "expected_performance",
    "recall_threshold",
    "summarize",
]
