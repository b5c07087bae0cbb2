"""Estimate a new site's g from unlabeled data, including the choice of model and strength."""

from sitewise.adaptation.answer import PrevalenceEstimate
from sitewise.adaptation.estimate import adjust, estimate_prevalence

__all__ = ["PrevalenceEstimate", "adjust", "estimate_prevalence"]
