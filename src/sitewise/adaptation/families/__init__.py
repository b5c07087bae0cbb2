"""Families of models of g, by name. To add a family, add a file and an entry of `FAMILIES`."""

from numbers import Real

from sitewise.adaptation.evidence import Evidence
from sitewise.adaptation.families.additive import Additive
from sitewise.adaptation.families.base import Family
from sitewise.adaptation.families.constant import Constant
from sitewise.adaptation.families.network import Network
from sitewise.adaptation.families.table import Table
from sitewise.adaptation.fit import Fit
from sitewise.solvers import EM

FAMILIES: dict[str, Family] = {
    "constant": Constant(),
    "additive": Additive(),
    "table": Table(),
    "network": Network(),
}
"""The families by name; an entry makes a family known to `prevalence=`, `model=`, saved folders and the tests."""

SOLVERS = ("auto", "newton", "lbfgs", "em")
SOLVERS_OF_AUTO = ("auto", "newton")


def finish(fit: Fit, evidence: Evidence) -> Fit:
    """Fit the g of rows with missing values, if the family does this after the other terms; return the new fit."""
    return FAMILIES[fit.prevalence.name].finish(fit, evidence)


def solver_problem(model: str, solver: str | EM) -> str | None:
    """Return a message if the solver is unknown or not available for this model of g, else None."""
    name = "em" if isinstance(solver, EM) else solver
    if name not in SOLVERS:
        return f"solver must be one of {', '.join(SOLVERS)} or an EM(...), got {solver!r}"
    known = {"auto": SOLVERS_OF_AUTO} | {family: FAMILIES[family].solvers for family in FAMILIES}
    if model not in known or name in known[model]:
        return None
    fitting = [own for own, solvers in known.items() if name in solvers]
    return f"solver={name!r} is available for model {' or '.join(fitting)}, got {model!r}"


def dropout_problem(model: str, dropout: float, name: str) -> str | None:
    """Return a message if the dropout is not valid or not available for this model of g, else None."""
    if isinstance(dropout, bool) or not (isinstance(dropout, Real) and 0 <= dropout < 1):
        return f"{name} must be a share from 0 to below 1, got {dropout!r}"
    return f"{name} is only for model network, got {model!r}" if dropout and model != "network" else None


def quick_model(name: str) -> str:
    """Return `name` if this model of g is fast enough to be fitted many times, else "auto"."""
    return name if name == "auto" or FAMILIES[name].quick else "auto"


__all__ = ["FAMILIES", "Family"]
