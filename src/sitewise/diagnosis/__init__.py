"""Is the assumption plausible at this site, is g identified, what of z is new: findings and a verdict."""

from sitewise.diagnosis.result import FALLBACKS, Diagnosis, Finding, conclude

__all__ = ["FALLBACKS", "Diagnosis", "Finding", "conclude"]
