"""A new site's g from unlabeled data: the choice of model and strength, and the estimate."""

from sitewise.adaptation.answer import PrevalenceEstimate
from sitewise.adaptation.estimate import adjust, estimate_prevalence

__all__ = ["PrevalenceEstimate", "adjust", "estimate_prevalence"]
