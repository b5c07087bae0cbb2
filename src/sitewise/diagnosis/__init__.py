"""Is the assumption plausible at this site, is g identified, what of z is new: findings and a verdict."""

from sitewise.diagnosis.coverage import TrainingTable
from sitewise.diagnosis.diagnose import diagnose_site
from sitewise.diagnosis.result import FALLBACKS, Diagnosis, Finding, conclude
from sitewise.diagnosis.samples import SourceSample, TargetSample

__all__ = [
    "FALLBACKS",
    "Diagnosis",
    "Finding",
    "SourceSample",
    "TargetSample",
    "TrainingTable",
    "conclude",
    "diagnose_site",
]
