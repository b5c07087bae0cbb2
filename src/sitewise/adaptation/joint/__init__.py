"""Estimate a new site's joint distribution of (z, y) from unlabeled x without z: equations 15 to 15d."""

from sitewise.adaptation.joint.answer import JointEstimate
from sitewise.adaptation.joint.estimate import estimate_joint

__all__ = ["JointEstimate", "estimate_joint"]
