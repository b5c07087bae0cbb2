"""Group distributionally robust optimization."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sitewise.bench.methods.base import Method
from sitewise.bench.methods.card import Card, refuse
from sitewise.bench.methods.cells import Cells
from sitewise.bench.methods.objective import Batch, Prepared
from sitewise.confounders import Confounders
from sitewise.rows import LabeledRows


def reweight(share: Tensor, losses: Tensor, step: float) -> Tensor:
    """Return new weights of the G groups, (G,): each weight q_g in `share` is multiplied by exp(step · loss_g).

    The results are scaled to sum to one. A loss of NaN marks a group without rows in the batch; it counts as zero.
    """
    grown = share * torch.exp(step * torch.where(losses.isnan(), 0.0, losses))
    return grown / grown.sum()


def group_losses(losses: Tensor, weight: Tensor, group: Tensor, n_groups: int) -> Tensor:
    """Return the weighted mean loss of each group, (G,); NaN for a group without rows."""
    mass = torch.zeros(n_groups, dtype=losses.dtype, device=losses.device).index_add_(0, group, weight)
    total = torch.zeros_like(mass).index_add_(0, group, weight * losses)
    return torch.where(mass > 0, total / mass.clamp_min(1e-30), torch.nan)


@dataclass
class GroupShares:
    """The weights q of the groups, kept from batch to batch."""

    share: Tensor


@dataclass(kw_only=True, eq=False, repr=False)
class GroupDRO(Method):
    """GroupDRO [sagawa2019distributionally]: minimize Σ_j q_j R_j, where groups j with a large loss get a large weight.

    R_j is the mean NLL of the rows of group j, and q_j the weight of the group. In each batch, q_j is multiplied by
    exp(η R_j), and the weights are scaled to sum to one. A group is a class in a cell of z (`groups="cells"`) or a
    class at a site ("sites"). A cell is a combination of values of z; rows whose z is incomplete form one more cell.
    Assumes that a new site has the same groups with other shares.

    Parameters
    ----------
    groups : str
        "cells": a group for each class in each cell of z. "sites": a group for each class at each site.
    step : float
        The step size η of the update of the weights.
    bins : int or None
        The number of bins into which a continuous variable of z is cut, each with equally many training rows. With
        None, a continuous variable is an error if `groups` is "cells".
    """

    groups: str = "cells"
    step: float = 0.01
    bins: int | None = 4
    card: ClassVar[Card] = Card(
        name="GroupDRO",
        cite="sagawa2019distributionally",
        continuous_z=False,
        high_dimensional_z=True,
        note="continuous z in quartiles",
    )

    def refusal(self, n_sites: int, confounders: Confounders | None, n_unlabeled: int) -> str | None:
        """Return the reason why GroupDRO cannot be trained with these sites and confounders; None if it can.

        A continuous z is accepted if `bins` is not None, or if `groups` is "sites".
        """
        if self.groups not in ("cells", "sites"):
            return f"groups must be 'cells' or 'sites', got {self.groups!r}"
        binned = self.bins is not None or self.groups == "sites"
        return refuse(self.card, n_sites, None if binned else confounders)

    def prepare(self, training: LabeledRows, held: LabeledRows, schema: Confounders | None, n: int) -> Prepared:
        """Compute the group of each training row; all groups start with the same weight."""
        if self.groups == "sites":
            cell = training.site
        else:
            cell = Cells.learn(schema, training.codes, self.bins).number(training.codes)
        group = torch.unique((cell + 1) * n + training.y, return_inverse=True)[1]
        n_groups = int(group.max()) + 1
        return Prepared({"group": group}, GroupShares(torch.full((n_groups,), 1 / n_groups)))

    def loss(self, module: nn.Module, batch: Batch, memory: GroupShares) -> Tensor:
        """Update the weights by the mean losses of the groups in the batch; return the weighted sum of these losses."""
        if memory.share.device != batch.x.device:
            memory.share = memory.share.to(batch.x.device)
        each = cross_entropy(module(batch.x, batch.z), batch.y, reduction="none")
        by_group = group_losses(each, batch.weight, batch.columns["group"], len(memory.share))
        memory.share.copy_(reweight(memory.share, by_group.detach(), self.step))
        return (memory.share.clone() * torch.where(by_group.isnan(), 0.0, by_group)).sum()
