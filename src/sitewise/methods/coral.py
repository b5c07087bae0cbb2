"""Deep CORAL: the same means and covariances of the features at every site."""

from dataclasses import dataclass
from itertools import combinations
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from sitewise.methods.card import Card
from sitewise.methods.dann import DANN
from sitewise.methods.objective import Batch, Prepared
from sitewise.ratio import RatioNetwork, weighted_nll


def coral_distance(a: Tensor, b: Tensor) -> Tensor:
    """How far the first two moments of features (n, d) and (m, d) are apart: mean squares of both differences."""
    mean_gap = a.mean(0) - b.mean(0)
    covariance_gap = torch.cov(a.T) - torch.cov(b.T)
    return (mean_gap**2).mean() + (covariance_gap**2).mean()


class FeatureNetwork(nn.Module):
    """A network that also shows what its last layer reads."""

    def __init__(self, network: RatioNetwork) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor, z: Tensor, with_features: bool = False) -> Any:
        """Logits, and the features where asked for."""
        if not with_features:
            return self.network(x, z)
        features = self.network.features(x, z)
        return self.network.fusion[-1](features), features


@dataclass(kw_only=True, eq=False, repr=False)
class CORAL(DANN):
    """Deep CORAL [sun2016deep]: R + λ · the mean over pairs of sites of the distance between their moments.

    λ is `strength`. Unlabeled rows of further sites count as sites. Assumes, like DANN, that features with one
    distribution at all sites suffice.
    """

    strength: float = 1.0
    card: ClassVar[Card] = Card(name="CORAL", cite="sun2016deep", unlabeled_in_training=True)

    def build(self, network: RatioNetwork, n_domains: int, prepared: Prepared) -> nn.Module:
        """Show the features."""
        return FeatureNetwork(network)

    def loss(self, module: nn.Module, batch: Batch, memory: Any) -> Tensor:
        """The NLL of y, and how far apart the sites' features are."""
        logits, features = module(batch.all_x(), batch.all_z(), True)
        risk = weighted_nll(logits[: batch.n], batch.y, batch.weight)
        sites = batch.all_sites()
        parts = [features[sites == s] for s in torch.unique(sites)]
        gaps = [coral_distance(a, b) for a, b in combinations([part for part in parts if len(part) > 1], 2)]
        return risk + self.strength * torch.stack(gaps).mean() if gaps else risk
