"""The confounders z: the schema of their variables, and their values as codes."""

from sitewise.confounders.schema import Confounders, Encoded, mask_patterns
from sitewise.confounders.variables import Categorical, Continuous, Notes, Variable

__all__ = ["Categorical", "Confounders", "Continuous", "Encoded", "Notes", "Variable", "mask_patterns"]
