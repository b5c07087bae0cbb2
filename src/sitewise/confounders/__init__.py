"""Z: its variables, how a table of it becomes codes, and what missing looks like."""

from sitewise.confounders.schema import Confounders, Encoded, mask_patterns
from sitewise.confounders.variables import Categorical, Continuous, Notes, Variable

__all__ = ["Categorical", "Confounders", "Continuous", "Encoded", "Notes", "Variable", "mask_patterns"]
