"""Invariant risk minimization."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sitewise.bench.methods.base import Method
from sitewise.bench.methods.card import Card
from sitewise.bench.methods.objective import Batch

TINY = 1e-12  # the weight of a site that is not in the batch: all its sums are zero


def irm_penalty(logits: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """(d/dw R(w·logits) at w = 1)², R the mean NLL: zero if no rescaling of the logits lowers the risk.

    The derivative is the mean of Σ_k softmax(logits)_k logits_k - logits_y.
    """
    slope = (torch.softmax(logits, dim=1) * logits).sum(1) - logits.gather(1, y[:, None])[:, 0]
    mean: Tensor = (weight * slope).sum() / weight.sum().clamp_min(TINY)
    return mean**2


def mean_over_sites(logits: Tensor, batch: Batch, penalty: Tensor | float) -> Tensor:
    """The mean over the sites in the batch of R_e + penalty · (dR_e(w·logits)/dw)²."""
    each = cross_entropy(logits, batch.y, reduction="none")
    weights = batch.site_weights()
    masses = torch.stack([weight.sum() for weight in weights])
    risks = torch.stack([(weight * each).sum() for weight in weights]) / masses.clamp_min(TINY)
    penalties = torch.stack([irm_penalty(logits, batch.y, weight) for weight in weights])
    return (risks + penalty * penalties).sum() / (masses > 0).sum()


@dataclass(kw_only=True, eq=False, repr=False)
class IRM(Method):
    """IRMv1 [arjovsky2019invariant]: the mean over sites of R_e + λ (dR_e(w·logits)/dw at 1)².

    λ is 1 in the first part of training (`warm_up`), and `penalty` afterwards. Then the whole loss is divided by λ, so
    that the step size stays the same. Needs at least two sites, and assumes features with the same P(y|features) at all
    of them.

    Parameters
    ----------
    penalty : float
        The factor λ of the penalty after the warm-up.
    warm_up : float
        The share of training with λ = 1.
    """

    penalty: float = 100.0
    warm_up: float = 0.3
    card: ClassVar[Card] = Card(name="IRM", cite="arjovsky2019invariant", single_site=False)

    def loss(self, module: nn.Module, batch: Batch, memory: Any) -> Tensor:
        """Risk and penalty, averaged over the sites in the batch."""
        logits = module(batch.x, batch.z)
        strength = 1.0 + (self.penalty - 1.0) * (batch.progress >= self.warm_up)
        return mean_over_sites(logits, batch, strength) / strength.clamp_min(1.0)
