"""The whole method in two classes: `GPAClassifier` trains and calibrates, `AdaptedClassifier` serves one site."""

from sitewise.estimator.adapted import AdaptedClassifier
from sitewise.estimator.gpa import EXPECTED_FAILED_CHECKS, GPAClassifier

__all__ = ["EXPECTED_FAILED_CHECKS", "AdaptedClassifier", "GPAClassifier"]
