"""The confounders z: the schema of their variables, and their values as codes."""

from sitewise.confounders.schema import Confounders

__all__ = ["Confounders"]
