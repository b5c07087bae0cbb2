"""The confounders z: the schema of their variables, and the conversion of their values to codes."""

from sitewise.confounders.schema import Confounders

__all__ = ["Confounders"]
