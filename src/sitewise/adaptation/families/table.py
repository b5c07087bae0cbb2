"""The table family: a free distribution for each combination of categories of z. Its likelihood is concave."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, cast

import torch
from torch import Tensor

from sitewise.adaptation.cell_problem import find_cells, inside, table_problem
from sitewise.adaptation.cells import (
    Centre,
    constant_centre,
    fit_constant_cell,
    fit_table_cells,
    fixed_centre,
    tilted_centre,
)
from sitewise.adaptation.draws import CellDraws, draw_cells
from sitewise.adaptation.evidence import Evidence
from sitewise.adaptation.families.base import Family, Request
from sitewise.adaptation.fit import Fit, best, weigh_candidates
from sitewise.arrays import find_rows
from sitewise.artifacts import Record
from sitewise.confounders import Confounders
from sitewise.confounders.variables import Categorical
from sitewise.prevalence.base import Prevalence, is_constant
from sitewise.prevalence.table import TablePrevalence, fit_table
from sitewise.solvers import EM
from sitewise.uncertainty import Average, CellCurvature

PSEUDO_COUNTS = (1000.0, 300.0, 100.0, 30.0, 10.0, 3.0, 1.0)
MAX_CELLS = 1000
ROWS_A_CELL = 5.0  # mean number of rows per cell; with fewer, a table hardly differs from its shrinkage target


@dataclass(frozen=True)
class RefitTable:
    """A function that refits a table after a change of the rows' weights or of f.

    The constant g to which the table is shrunk is refitted as well.
    """

    cells: Tensor  # (C, V) codes of the C cells
    level: Tensor  # (K,) the constant g at which the refit of the constant g starts
    centre: Prevalence | None
    strength: float
    solver: str | EM

    def __call__(self, drawn: Evidence) -> Prevalence:
        """Return the refitted table."""
        own = fit_constant_cell(drawn, self.level, 0.0, "auto", self.level)
        aim = centred_cells(drawn, self.cells, own, self.centre)
        return fit_table_cells(drawn, self.cells, aim, self.strength, self.solver).prevalence


class Table(Family):
    """One distribution for each cell of z, shrunk to the site's constant g or to a given g."""

    name = "table"
    solvers = ("auto", "newton", "em")
    concave = True
    takes_strength = True
    advice = "raise strength, or use model='constant'"
    in_cells = True
    records: ClassVar[Mapping[str, Record]] = {
        "TablePrevalence": Record(TablePrevalence, methods=("agreement",)),
        "RefitTable": Record(RefitTable),
    }

    def fit_labels(
        self, targets: Tensor, codes: Tensor, weight: Tensor, schema: Confounders, *, knockout: float, seed: int
    ) -> TablePrevalence:
        """Return a table with the mean of the labels in each cell, shrunk to the overall mean."""
        return fit_table(targets, codes, weight, schema)

    def fit_rows(self, request: Request) -> Fit:
        """Fit at the given strength, or at the one with the highest left-out likelihood."""
        fits = table_candidates(request)
        return replace(best(fits), candidates=weigh_candidates(fits, request.evidence, self.finish))

    def candidates(self, request: Request) -> list[Fit]:
        """Return tables at every strength if z has few cells with enough rows on average; otherwise an empty list."""
        return table_candidates(request) if can_fill_a_table(request.evidence) else []

    def draw(self, evidence: Evidence, fit: Fit, n_draws: int, generator: torch.Generator) -> CellDraws:
        """Draw each cell from its likelihood (two classes), or from a normal distribution by its curvature (more)."""
        table = cast(TablePrevalence, fit.prevalence)
        assert fit.pseudo_counts is not None
        problem = table_problem(evidence, table.cells, fit.pseudo_counts)
        share = table.cell_weight / table.cell_weight.sum()
        return draw_cells(evidence, fit, problem, table.cell_log_prob.exp(), share, n_draws, generator)

    def whole_site(self, site: Evidence, fit: Fit) -> Average:
        """Return the mean of the cells, weighted by their shares of the site's rows."""
        weight = cast(TablePrevalence, fit.prevalence).cell_weight
        return replace(average_of_cells(fit, weight / weight.sum()), where=None)

    def cells_of(self, fit: Fit, codes: Tensor) -> Average:
        """Return the mean of the cells from which the g of a row is computed."""
        return average_of_cells(fit, cast(TablePrevalence, fit.prevalence).agreement(codes)[0])


def average_of_cells(fit: Fit, share: Tensor) -> Average:
    """Return the mean of a table's cells, weighted by shares (C,), in the form that intervals need."""
    table, curvature = cast(TablePrevalence, fit.prevalence), fit.curvature
    assert isinstance(curvature, CellCurvature)

    def where(codes: Tensor) -> Tensor:
        return (share > 0).to(share.dtype)[find_rows(codes, table.cells)][:, None]

    def direction(codes: Tensor, label: int) -> Tensor:
        return curvature.easiest(share, label)[find_rows(codes, table.cells)]

    return Average(lambda at: share @ at(table.cells), where, direction)


def table_candidates(request: Request) -> list[Fit]:
    """Return a table for every candidate strength, the strongest first."""
    evidence, constant, centre, solver = request.evidence, request.constant, request.centre, request.solver
    assert constant is not None
    cells = find_cells(evidence)
    aim = centred_cells(evidence, cells, constant, centre)
    strengths = PSEUDO_COUNTS if isinstance(request.strength, str) else (float(request.strength),)
    level = inside(constant.prevalence.log_prob(cells[:1])[0].exp())
    return [
        replace(
            fit_table_cells(evidence, cells, aim, value, solver),
            refit=RefitTable(cells, level, centre, value, solver),
        )
        for value in strengths
    ]


def can_fill_a_table(evidence: Evidence) -> bool:
    """Return whether a table is a candidate: z is discrete and has few cells, with enough rows on average."""
    assert evidence.schema is not None
    if not all(isinstance(v, Categorical) for v in evidence.schema.variables):
        return False
    n_cells = len(find_cells(evidence))
    return n_cells <= MAX_CELLS and evidence.seen_weight >= ROWS_A_CELL * n_cells


def centred_cells(evidence: Evidence, cells: Tensor, constant: Fit, centre: Prevalence | None) -> Centre:
    """Return the shrinkage targets: the constant g, a given constant, or a g(z) shifted to the site's level."""
    if centre is None:
        return constant_centre(cells, constant)
    if is_constant(centre):
        return fixed_centre(cells, centre.log_prob(cells[:1])[0].exp())
    return tilted_centre(evidence, cells, constant, centre)
