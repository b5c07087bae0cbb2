"""MAPLS: label-shift EM with a prior whose strength depends on the distance of the estimate from equal shares."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from sitewise.adaptation import estimate_prevalence
from sitewise.bench.methods.card import Card
from sitewise.bench.methods.label_shift import LabelShift

HALF = 0.5  # the divergence d at which `confidence` is `at_half`
AT_HALF = 0.2  # `at_half` for the divergence of the source's P(y) from equal shares
TOWARDS_EVEN, FROM_SOURCE = 0.9, 0.1  # weights of the estimate's two divergences in `data_share`


def divergence(p: Tensor, q: Tensor) -> float:
    """Return KL(p ‖ q) of two distributions."""
    return float(torch.special.entr(p).sum().neg() - (p * q.clamp_min(1e-8).log()).sum())


def confidence(distance: float, at_half: float) -> float:
    """Return γd / (1 + γd), where γ makes it `at_half` at d = 1/2. If `at_half` is 1, return 1 for d > 0, else 0."""
    if at_half >= 1:
        return float(distance > 0)
    gamma = (1 / (1 - at_half) - 1) / HALF
    return gamma * distance / (1 + gamma * distance)


def data_share(estimate: Tensor, source: Tensor) -> float:
    """Return λ, the weight of the rows against a prior of equal shares.

    It is computed from the maximum likelihood estimate of P(y) and the source's P(y).
    """
    even = torch.full_like(estimate, 1 / len(estimate))
    anchor = 1 - confidence(divergence(source, even), AT_HALF)
    from_even = confidence(divergence(estimate, even), anchor)
    from_source = confidence(divergence(estimate, source), anchor)
    return TOWARDS_EVEN * from_even + FROM_SOURCE * (1 - from_source)


@dataclass(kw_only=True, eq=False, repr=False)
class MAPLS(LabelShift):
    """MAPLS [ye2024mapls]: maximum a posteriori (MAP) estimate of P(y) with a Dirichlet prior around equal shares.

    P_b(y), the P(y) of the new site, is the fixed point of P_b(y) ← λ mean_n Norm(P_b(y) f(x_n)) + (1 - λ)/K, where n
    are the N rows of the site. The prior has the effect of N(1-λ)/λ rows with uniform labels in addition to these rows.
    λ (`share`) is high if the maximum likelihood estimate of P_b(y) is far from equal shares, and low if it is near
    them. The rule for λ and its constants are those of the published code; the paper itself was not read.

    Parameters
    ----------
    share : float, optional
        The factor λ, between 0 and 1. None: it is computed from the rows of the site.
    """

    share: float | None = None
    card: ClassVar[Card] = Card(name="MAPLS", cite="ye2024mapls", estimates_g="indirectly, MAP EM, one P(Y)")

    def find_marginal(self, log_ratio: Tensor) -> Tensor:
        """Return the MAP estimate of P(y), (K,); if `share` is None, λ is computed first."""
        share = self.share
        if share is None:
            likeliest = estimate_prevalence(log_ratio.numpy(), model="constant").marginal
            share = data_share(torch.tensor(np.asarray(likeliest)), self._source)
        if share <= 0:
            return torch.full_like(self._source, 1 / len(self._source))
        even = np.full(log_ratio.shape[1], 1 / log_ratio.shape[1])
        strength = len(log_ratio) * (1 - share) / share
        estimate = estimate_prevalence(log_ratio.numpy(), model="constant", strength=strength, prior=even)
        return torch.tensor(np.asarray(estimate.marginal))
