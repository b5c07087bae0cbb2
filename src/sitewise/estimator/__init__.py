"""The estimators: `GPAClassifier` trains a network, `PrevalenceAdjuster` wraps any classifier; both adapt to sites."""

from sitewise.estimator.adapted import AdaptedClassifier
from sitewise.estimator.adjuster import PrevalenceAdjuster
from sitewise.estimator.gpa import EXPECTED_FAILED_CHECKS, GPAClassifier

__all__ = ["EXPECTED_FAILED_CHECKS", "AdaptedClassifier", "GPAClassifier", "PrevalenceAdjuster"]
