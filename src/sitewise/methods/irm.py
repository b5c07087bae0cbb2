"""Invariant risk minimization."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from sitewise.methods.base import Method
from sitewise.methods.card import Card
from sitewise.methods.objective import Batch
from sitewise.ratio import weighted_nll


def irm_penalty(logits: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """(d/dw R(w·logits) at w = 1)², R the mean NLL: zero where no rescaling of the logits would lower the risk.

    The derivative is the mean of Σ_k (softmax(logits)_k - [y = k]) logits_k.
    """
    excess = torch.softmax(logits, dim=1) - one_hot(y, logits.shape[1])
    slope = (excess * logits).sum(1)
    mean: Tensor = (weight * slope).sum() / weight.sum()
    return mean**2


@dataclass(kw_only=True, eq=False, repr=False)
class IRM(Method):
    """IRMv1 [arjovsky2019invariant]: the mean over sites of R_e + λ (dR_e(w·logits)/dw at 1)².

    λ is 1 for the first `warm_up` share of training and `penalty` afterwards, where the sum is divided by it, so that
    the step size stays. Assumes features with the same P(y|features) at every site, and at least two sites.
    """

    penalty: float = 100.0
    warm_up: float = 0.3
    card: ClassVar[Card] = Card(name="IRM", cite="arjovsky2019invariant", single_site=False)

    def loss(self, module: nn.Module, batch: Batch, memory: Any) -> Tensor:
        """Risk and penalty, averaged over the sites in the batch."""
        logits = module(batch.x, batch.z)
        strength = self.penalty if batch.progress >= self.warm_up else 1.0
        costs = []
        for rows in batch.by_site():
            part = (logits[rows], batch.y[rows], batch.weight[rows])
            costs.append(weighted_nll(*part) + strength * irm_penalty(*part))
        return torch.stack(costs).mean() / max(strength, 1.0)
