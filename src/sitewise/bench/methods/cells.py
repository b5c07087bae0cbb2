"""Cells of z: all combinations of levels that occur. Continuous variables are cut into bins."""

from dataclasses import dataclass

import torch
from torch import Tensor

from sitewise.arrays import distinct_rows, find_rows
from sitewise.confounders import Confounders
from sitewise.confounders.variables import Continuous


@dataclass(frozen=True)
class Cells:
    """The C cells of V variables z; the edges of the bins are quantiles of the training rows."""

    schema: Confounders | None
    edges: dict[int, Tensor]  # inner edges of the bins, by column of a continuous variable
    table: Tensor  # (C, V), the levels of each cell; one row without columns if there are no confounders

    @classmethod
    def learn(cls, schema: Confounders | None, codes: Tensor, bins: int | None) -> "Cells":
        """Find the cells of the rows whose z is complete; continuous variables get `bins` bins of equally many rows."""
        if schema is None:
            return cls(None, {}, codes.new_zeros(1, 0))
        complete = codes[~schema.missing(codes).any(dim=1)]
        shares = torch.linspace(0, 1, (bins or 1) + 1, dtype=codes.dtype)[1:-1]
        edges = {
            j: torch.quantile(complete[:, j], shares) if len(complete) else shares
            for j, variable in enumerate(schema.variables)
            if isinstance(variable, Continuous)
        }
        empty = cls(schema, edges, codes[:0])
        return cls(schema, edges, distinct_rows(empty.levels(complete))[0])

    def __len__(self) -> int:
        return len(self.table)

    def levels(self, codes: Tensor) -> Tensor:
        """Return the codes with the number of the bin for continuous variables, and -1 for missing values, (n, V)."""
        if self.schema is None:
            return codes[:, :0]
        levels = codes.clone()
        for j, edges in self.edges.items():
            levels[:, j] = torch.bucketize(codes[:, j].contiguous(), edges).to(codes.dtype)
        return torch.where(self.schema.missing(codes), -1.0, levels)

    def number(self, codes: Tensor) -> Tensor:
        """Return the number of each row's cell, (n,); -1 if part of z is missing or `learn` did not see the cell."""
        return find_rows(self.levels(codes), self.table)

    def possible(self, codes: Tensor) -> Tensor:
        """Return which cells agree with the known part of each row's z, (n, C); all cells if none agrees."""
        levels = self.levels(codes)
        agree = ((levels[:, None, :] == self.table) | (levels[:, None, :] < 0)).all(dim=2)
        return agree | ~agree.any(dim=1, keepdim=True)
