"""Domain-adversarial training."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sitewise.bench.methods.base import Method
from sitewise.bench.methods.card import Card
from sitewise.bench.methods.objective import Batch, Prepared
from sitewise.confounders import Confounders
from sitewise.ratio import FUSION_WIDTH, RatioNetwork, weighted_nll


class _Reversal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: Tensor, scale: Tensor) -> Tensor:
        ctx.scale = scale
        return features.view_as(features)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return -ctx.scale * gradient, None


def reverse_gradient(features: Tensor, scale: Tensor) -> Tensor:
    """Return the features unchanged; their gradient is multiplied by -scale."""
    reversed_features: Tensor = _Reversal.apply(features, scale)
    return reversed_features


def reversal_schedule(progress: Tensor) -> Tensor:
    """Return 2 / (1 + exp(-10 p)) - 1: zero at the start, and almost one from about half of the training (p = 0.5)."""
    return 2 / (1 + torch.exp(-10 * progress)) - 1


class AdversarialNetwork(nn.Module):
    """A network, and a critic that predicts the site of a row from its features."""

    def __init__(self, network: RatioNetwork, n_domains: int) -> None:
        super().__init__()
        self.network = network
        self.critic = nn.Sequential(
            nn.Linear(FUSION_WIDTH, FUSION_WIDTH), nn.ReLU(), nn.Linear(FUSION_WIDTH, n_domains)
        )

    def forward(self, x: Tensor, z: Tensor, scale: Tensor | None = None) -> Any:
        """Return the logits of y; with a scale, also the logits of the critic, with reversed gradient for features."""
        if scale is None:
            return self.network(x, z)
        features = self.network.features(x, z)
        return self.network.fusion[-1](features), self.critic(reverse_gradient(features, scale))


@dataclass(kw_only=True, eq=False, repr=False)
class DANN(Method):
    """DANN [ganin2016domain]: the features minimize R - λ R_site, where R_site is the loss of a critic.

    R is the NLL of y. The critic is a second network, which predicts the site of a row from its features. It is trained
    to minimize R_site, its NLL, while gradient reversal trains the features to maximize R_site. λ is
    `strength` · (2/(1 + e^(-10p)) - 1) after a share p of the training. Unlabeled rows of other sites contribute to
    R_site. Assumes that features with the same distribution at all sites are sufficient to predict y. This is
    impossible if P(y) differs between sites.

    Parameters
    ----------
    strength : float
        The value of λ at the end of training.
    """

    strength: float = 1.0
    card: ClassVar[Card] = Card(name="DANN", cite="ganin2016domain", unlabeled_in_training=True)

    def refusal(self, n_sites: int, confounders: Confounders | None, n_unlabeled: int) -> str | None:
        """Return the reason why this method cannot be trained, for example only one site; None if it can."""
        if n_sites < 2 and not n_unlabeled:
            return f"{self.card.name} aligns sites: give at least two, or unlabeled rows of another"
        return super().refusal(n_sites, confounders, n_unlabeled)

    def build(self, network: RatioNetwork, n_domains: int, prepared: Prepared) -> nn.Module:
        """Return the network with the critic."""
        return AdversarialNetwork(network, n_domains)

    def loss(self, module: nn.Module, batch: Batch, memory: Any) -> Tensor:
        """Return the NLL of y plus the critic's NLL of the site, whose gradient is reversed for the features."""
        scale = self.strength * reversal_schedule(batch.progress)
        logits, site_logits = module(batch.all_x(), batch.all_z(), scale)
        risk = weighted_nll(logits[: batch.n], batch.y, batch.weight)
        return risk + cross_entropy(site_logits, batch.all_sites())
