"""Performance without labels: expected metrics with intervals, and thresholds with their expected performance."""

from sitewise.performance.believed_clinical import CLINICAL, THRESHOLDS, clinical_performance, decision_curve
from sitewise.performance.choice import ThresholdChoice, choose_threshold
from sitewise.performance.conformal import PredictionSets, score_thresholds
from sitewise.performance.estimate import believe, expected_performance
from sitewise.performance.evaluated import Evaluation, compare_models
from sitewise.performance.expected import BelievedRows, Expected, ExpectedCounts, ExpectedPerformance, summarize
from sitewise.performance.labels import Direction, OpenShape, Part, calibration_directions, draw_labels
from sitewise.performance.metrics import EXPECTED_METRICS, Predictions, confusion_metrics, decide
from sitewise.performance.others import judged_instead
from sitewise.performance.recalibration import RECALIBRATIONS, recalibrate
from sitewise.performance.sampling import LabelSample, draw_sample
from sitewise.performance.subgroups import Subgroup, subgroups
from sitewise.performance.thresholds import best_f1_threshold, net_benefit_threshold, recall_threshold

__all__ = [
    "CLINICAL",
    "EXPECTED_METRICS",
    "RECALIBRATIONS",
    "THRESHOLDS",
    "BelievedRows",
    "Direction",
    "Evaluation",
    "Expected",
    "ExpectedCounts",
    "ExpectedPerformance",
    "LabelSample",
    "OpenShape",
    "Part",
    "PredictionSets",
    "Predictions",
    "Subgroup",
    "ThresholdChoice",
    "believe",
    "best_f1_threshold",
    "calibration_directions",
    "choose_threshold",
    "clinical_performance",
    "compare_models",
    "confusion_metrics",
    "decide",
    "decision_curve",
    "draw_labels",
    "draw_sample",
    "expected_performance",
    "judged_instead",
    "net_benefit_threshold",
    "recalibrate",
    "recall_threshold",
    "score_thresholds",
    "subgroups",
    "summarize",
]
