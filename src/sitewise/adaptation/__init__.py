"""A new site's g from unlabeled data: the choice of model and strength, and the estimate."""

from sitewise.adaptation.estimate import PrevalenceEstimate, adjust, estimate_prevalence

__all__ = ["PrevalenceEstimate", "adjust", "estimate_prevalence"]
