"""g as a free table over discrete z: one distribution for each combination of levels."""

from dataclasses import dataclass

import torch
from torch import Tensor

from sitewise.arrays import distinct_rows, find_rows
from sitewise.confounders import Confounders, Continuous
from sitewise.prevalence.base import SMOOTHING, aggregate, finite, mean_log_prob, smooth

NOT_DISCRETE = (
    "model='table' needs categorical confounders, but {names} is continuous: "
    "use model='additive', or name it in categorical="
)


@dataclass(frozen=True)
class TablePrevalence:
    """A distribution for each cell of z, and the average of the cells that agree with what is known of a row."""

    schema: Confounders
    cells: Tensor  # (C, V) codes
    cell_log_prob: Tensor  # (C, K)
    cell_weight: Tensor  # (C,) how much of the site lies in each cell
    name: str = "table"

    @property
    def log_marginal(self) -> Tensor:
        """The mean over the site, (K,): what a row with everything missing gets."""
        return mean_log_prob(self.cell_log_prob, self.cell_weight)

    def log_prob(self, codes: Tensor) -> Tensor:
        """Look rows up: their own cell, else the mean over agreeing cells, else over all of them."""
        distinct, index = distinct_rows(codes)
        own = self._own_cell(distinct)
        log_prob = self.cell_log_prob[own.clamp_min(0)]
        stray = own < 0
        if stray.any():
            log_prob[stray] = torch.log(self.agreement(distinct[stray]) @ self.cell_log_prob.exp())
        return log_prob[index]

    def traceable(self) -> "AgreeingTable":
        """The same g for a graph that is traced."""
        return AgreeingTable(self)

    def _own_cell(self, codes: Tensor) -> Tensor:
        """Each row's own cell by a join, -1 where it has none (n rows times C cells would be too many to compare)."""
        place = find_rows(codes, self.cells)
        empty = self.cell_weight[place.clamp_min(0)] <= 0
        return torch.where(self.schema.missing(codes).all(dim=1) | empty, -1, place)

    def agreement(self, codes: Tensor) -> Tensor:
        """How much each cell counts for a row, (n, C): its own cell alone, or the share of each cell that agrees."""
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
    """A table's g without looking rows up one by one: the mean over the cells that agree with a row."""

    table: TablePrevalence
    name: str = "table"

    def log_prob(self, codes: Tensor) -> Tensor:
        """(n, K)."""
        return torch.log(self.table.agreement(codes) @ self.table.cell_log_prob.exp())


def require_discrete(schema: Confounders) -> None:
    """Raise where a table is asked for over a continuous variable."""
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
    """Fit to soft labels (n, K): each cell's mean, with `strength` rows of the overall mean added to it.

    Missing is exact here and needs no knockout: a row's unknown part is averaged over the site's own cells.
    """
    require_discrete(schema)
    data = aggregate(smooth(targets, weight, smoothing), codes, weight)
    overall = data.totals.sum(0) / data.weight.sum()
    cells = (data.totals + strength * overall) / (data.weight + strength).clamp_min(1e-300)[:, None]
    return TablePrevalence(schema, data.codes, finite(cells.log()), data.weight)
