"""Checks of a site: is the assumption plausible, is g identified, is z covered by training; findings and a verdict."""

from sitewise.diagnosis.coverage import TrainingTable
from sitewise.diagnosis.diagnose import diagnose_site
from sitewise.diagnosis.outcome import decide, failed_check, follows
from sitewise.diagnosis.result import Diagnosis, Finding, Grounds, Outcome, conclude
from sitewise.diagnosis.samples import SourceSample, TargetSample

__all__ = [
    "Diagnosis",
    "Finding",
    "Grounds",
    "Outcome",
    "SourceSample",
    "TargetSample",
    "TrainingTable",
    "conclude",
    "decide",
    "diagnose_site",
    "failed_check",
    "follows",
]
