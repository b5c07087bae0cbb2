"""The constant family: one g for all z, as in the paper's algorithm 2. Its likelihood is concave."""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from sitewise.adaptation.cell_problem import constant_problem
from sitewise.adaptation.cells import RefitConstant, fit_constant_cell, one_cell
from sitewise.adaptation.draws import CellDraws, draw_cells
from sitewise.adaptation.evidence import Evidence
from sitewise.adaptation.families.base import Family, Request, constant_level
from sitewise.adaptation.fit import Fit
from sitewise.artifacts import Record
from sitewise.confounders import Confounders
from sitewise.prevalence import fit_constant
from sitewise.prevalence.base import ConstantPrevalence
from sitewise.uncertainty import Average, CellCurvature


class Constant(Family):
    """g(z) = P(y) for every z. With `strength="auto"` it is estimated by maximum likelihood."""

    name = "constant"
    needs_z = False
    solvers = ("auto", "newton", "em")
    concave = True
    takes_strength = True
    advice = "raise strength"
    records: ClassVar[Mapping[str, Record]] = {
        "ConstantPrevalence": Record(ConstantPrevalence),
        "one_cell": Record(one_cell),
        "RefitConstant": Record(RefitConstant),
    }

    def fit_labels(
        self, targets: Tensor, codes: Tensor, weight: Tensor, schema: Confounders, *, knockout: float, seed: int
    ) -> ConstantPrevalence:
        """Return the mean of the labels."""
        return fit_constant(targets, weight)

    def fit_rows(self, request: Request) -> Fit:
        """Maximize the penalized log-likelihood of all rows together, until the gap of equation 8 is small."""
        strength = 0.0 if isinstance(request.strength, str) else request.strength
        return fit_constant_cell(request.evidence, request.aim, strength, request.solver, request.begin)

    def draw(self, evidence: Evidence, fit: Fit, n_draws: int, generator: torch.Generator) -> CellDraws:
        """Draw g from its likelihood (two classes), or from a normal distribution by its curvature (more)."""
        assert fit.pseudo_counts is not None
        problem = constant_problem(evidence, fit.pseudo_counts[0])
        level = constant_level(fit)[None]
        return draw_cells(evidence, fit, problem, level, level.new_ones(1), n_draws, generator)

    def whole_site(self, site: Evidence, fit: Fit) -> Average:
        """Return the site's mean of g."""
        curvature = fit.curvature
        assert isinstance(curvature, CellCurvature)
        return Average(site.mean, None, lambda codes, label: curvature.covariance[:, label])
