"""Families of models of g, by the names that users write: a new family is one file and one entry of `FAMILIES`."""

from sitewise.adaptation.evidence import Evidence
from sitewise.adaptation.families.additive import Additive
from sitewise.adaptation.families.base import Family, Request, constant_level
from sitewise.adaptation.families.constant import Constant
from sitewise.adaptation.families.network import Network
from sitewise.adaptation.families.table import Table
from sitewise.adaptation.fit import Fit

FAMILIES: dict[str, Family] = {
    "constant": Constant(),
    "additive": Additive(),
    "table": Table(),
    "network": Network(),
}


def finish(fit: Fit, evidence: Evidence) -> Fit:
    """The fit with what its g says of rows that lack part of z."""
    return FAMILIES[fit.prevalence.name].finish(fit, evidence)


def quick_model(name: str) -> str:
    """The model itself where fitting it many times over is affordable, else "auto"."""
    return name if name == "auto" or FAMILIES[name].quick else "auto"


__all__ = ["FAMILIES", "Family", "Request", "constant_level", "finish", "quick_model"]
