"""Invariant risk minimization."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sitewise.bench.methods.base import Method
from sitewise.bench.methods.card import Card
from sitewise.bench.methods.objective import Batch

TINY = 1e-12  # divisor for a site without rows in the batch, whose sums are all zero


def irm_penalty(logits: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """Return the squared derivative of R(w·logits) with respect to w at w = 1, where R is the mean NLL.

    The penalty is zero if no rescaling of the logits lowers the risk. The derivative is the mean over rows of
    Σ_k softmax(logits)_k logits_k - logits_y.
    """
    slope = (torch.softmax(logits, dim=1) * logits).sum(1) - logits.gather(1, y[:, None])[:, 0]
    mean: Tensor = (weight * slope).sum() / weight.sum().clamp_min(TINY)
    return mean**2


def mean_over_sites(logits: Tensor, batch: Batch, penalty: Tensor | float) -> Tensor:
    """Return the mean of R_e + penalty · (dR_e(w·logits)/dw at w = 1)² over the sites e in the batch."""
    each = cross_entropy(logits, batch.y, reduction="none")
    weights = batch.site_weights()
    masses = torch.stack([weight.sum() for weight in weights])
    risks = torch.stack([(weight * each).sum() for weight in weights]) / masses.clamp_min(TINY)
    penalties = torch.stack([irm_penalty(logits, batch.y, weight) for weight in weights])
    return (risks + penalty * penalties).sum() / (masses > 0).sum()


@dataclass(kw_only=True, eq=False, repr=False)
class IRM(Method):
    """IRMv1 [arjovsky2019invariant]: minimize the mean over sites e of R_e + λ (dR_e(w·logits)/dw at w = 1)².

    R_e is the NLL of the rows of site e, and R_e(w·logits) their NLL if all logits are multiplied by a number w. The
    second term is the penalty. λ is 1 in the first part of training (`warm_up`), and `penalty` afterwards. If λ > 1,
    the loss is divided by λ, so that gradients do not become larger. Needs at least two sites. Assumes that some
    features have the same P(y|features) at all sites.

    Parameters
    ----------
    penalty : float
        The factor λ of the penalty after the first part of training.
    warm_up : float
        The first part of training, in which λ is 1, as a share of the epochs.
    """

    penalty: float = 100.0
    warm_up: float = 0.3
    card: ClassVar[Card] = Card(name="IRM", cite="arjovsky2019invariant", single_site=False)

    def loss(self, module: nn.Module, batch: Batch, memory: Any) -> Tensor:
        """Return the mean over the sites in the batch of the NLL plus λ times the penalty, divided by λ if λ > 1."""
        logits = module(batch.x, batch.z)
        strength = 1.0 + (self.penalty - 1.0) * (batch.progress >= self.warm_up)
        return mean_over_sites(logits, batch, strength) / strength.clamp_min(1.0)
