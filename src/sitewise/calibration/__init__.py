"""Calibration of log f on held-out labeled rows whose g is known (equation 6), and its bootstrap resamples (6a).

Only log f is scaled, never log f + log g, so that f does not depend on the prior of the calibration data.
"""

from sitewise.calibration.calibrate import calibrate_log_ratio
from sitewise.calibration.fit import Calibration

__all__ = ["Calibration", "calibrate_log_ratio"]
