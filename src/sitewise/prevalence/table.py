"""g as a free table over discrete z: one distribution for each combination of levels."""

from dataclasses import dataclass

import torch
from torch import Tensor

from sitewise.arrays import distinct_rows, find_rows
from sitewise.confounders import Confounders
from sitewise.confounders.variables import Continuous
from sitewise.prevalence.base import SMOOTHING, aggregate, finite, mean_log_prob, smooth

NOT_DISCRETE = (
    "model='table' needs categorical confounders, but {names} is continuous: "
    "use model='additive', or name it in categorical="
)


@dataclass(frozen=True)
class TablePrevalence:
    """One distribution for each of C cells of z; a row outside them gets the mean of the cells it agrees with."""

    schema: Confounders
    cells: Tensor  # (C, V) codes
    cell_log_prob: Tensor  # (C, K)
    cell_weight: Tensor  # (C,) weight of the site's rows in each cell
    name: str = "table"

    @property
    def log_marginal(self) -> Tensor:
        """The log of the site's mean of g, (K,), which is used for rows with all values missing."""
        return mean_log_prob(self.cell_log_prob, self.cell_weight)

    def log_prob(self, codes: Tensor) -> Tensor:
        """Return log g at rows of codes, (n, K).

        The g of a row is that of its own cell. If it has no cell, it is the mean over the cells that agree with its
        known values, or over all cells if none agrees.
        """
        distinct, index = distinct_rows(codes)
        own = self._own_cell(distinct)
        log_prob = self.cell_log_prob[own.clamp_min(0)]
        stray = own < 0
        if stray.any():
            log_prob[stray] = torch.log(self.agreement(distinct[stray]) @ self.cell_log_prob.exp())
        return log_prob[index]

    def traceable(self) -> "AgreeingTable":
        """Return the same g in a form that can be traced for export."""
        return AgreeingTable(self)

    def _own_cell(self, codes: Tensor) -> Tensor:
        """Return the index of each row's own cell, -1 if it has none, without comparing all pairs of rows and cells."""
        place = find_rows(codes, self.cells)
        empty = self.cell_weight[place.clamp_min(0)] <= 0
        return torch.where(self.schema.missing(codes).all(dim=1) | empty, -1, place)

    def agreement(self, codes: Tensor) -> Tensor:
        """Return the weight of each cell in the mean for each row, (n, C); the cells are chosen as in `log_prob`."""
        unknown = self.schema.missing(codes)
        equal = codes[:, None, :] == self.cells
        own = equal.all(dim=2) & ~unknown.all(dim=1, keepdim=True)
        agree = (equal | unknown[:, None, :]).all(dim=2)
        chosen = (own | (agree & ~own.any(dim=1, keepdim=True))) * self.cell_weight
        lost = chosen.sum(dim=1, keepdim=True) <= 0
        chosen = torch.where(lost, self.cell_weight, chosen)
        return chosen / chosen.sum(dim=1, keepdim=True)


@dataclass(frozen=True)
class AgreeingTable:
    """The g of a table, computed for every row as a weighted mean over cells, without looking up the row's own cell."""

    table: TablePrevalence
    name: str = "table"

    def log_prob(self, codes: Tensor) -> Tensor:
        """Return log g of rows, (n, K)."""
        return torch.log(self.table.agreement(codes) @ self.table.cell_log_prob.exp())


def require_discrete(schema: Confounders) -> None:
    """Raise ValueError if a variable is continuous."""
    continuous = [v.name for v in schema.variables if isinstance(v, Continuous)]
    if continuous:
        raise ValueError(NOT_DISCRETE.format(names=", ".join(map(repr, continuous))))


def fit_table(
    targets: Tensor,
    codes: Tensor,
    weight: Tensor,
    schema: Confounders,
    *,
    strength: float = 1.0,
    smoothing: float = SMOOTHING,
) -> TablePrevalence:
    """Fit to soft labels (n, K): the mean of each cell, shrunk to the overall mean by `strength` pseudo-rows.

    Knockout is not needed, because g of a row with missing values is computed from the cells.
    """
    require_discrete(schema)
    data = aggregate(smooth(targets, weight, smoothing), codes, weight)
    overall = data.totals.sum(0) / data.weight.sum()
    cells = (data.totals + strength * overall) / (data.weight + strength).clamp_min(1e-300)[:, None]
    return TablePrevalence(schema, data.codes, finite(cells.log()), data.weight)
