"""Checks of a site: is the assumption plausible, is g identified, did training cover z? With findings and a verdict."""

from sitewise.diagnosis.result import Diagnosis, Finding, Grounds, Outcome

__all__ = ["Diagnosis", "Finding", "Grounds", "Outcome"]
