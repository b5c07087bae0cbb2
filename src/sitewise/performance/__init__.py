"""Performance at a site: expected metrics and thresholds without labels, evaluation with labels, prediction sets."""

from sitewise.performance.choice import ThresholdChoice
from sitewise.performance.conformal import PredictionSets
from sitewise.performance.estimate import expected_performance
from sitewise.performance.evaluated import Evaluation
from sitewise.performance.expected import ExpectedPerformance
from sitewise.performance.expected_clinical import clinical_performance, decision_curve
from sitewise.performance.sampling import LabelSample
from sitewise.performance.subgroups import Subgroup

__all__ = [
    "Evaluation",
    "ExpectedPerformance",
    "LabelSample",
    "PredictionSets",
    "Subgroup",
    "ThresholdChoice",
    "clinical_performance",
    "decision_curve",
    "expected_performance",
]
