"""Deep CORAL: training that makes means and covariances of the features equal at all sites."""

from dataclasses import dataclass
from itertools import combinations
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from sitewise.bench.methods.card import Card
from sitewise.bench.methods.dann import DANN
from sitewise.bench.methods.objective import Batch, Prepared
from sitewise.ratio import RatioNetwork, weighted_nll


def moments(features: Tensor, inside: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean (d,) and covariance (d, d) of the rows for which `inside` (n,) is one."""
    count = inside.sum()
    mean = inside @ features / count.clamp_min(1)
    centred = (features - mean) * inside[:, None]
    return mean, centred.T @ centred / (count - 1).clamp_min(1)


def coral_distance(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> Tensor:
    """Return the distance between two sites' moments: mean squared difference of means, plus that of covariances."""
    return ((a[0] - b[0]) ** 2).mean() + ((a[1] - b[1]) ** 2).mean()


class FeatureNetwork(nn.Module):
    """A network that also returns the inputs of its last layer."""

    def __init__(self, network: RatioNetwork) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor, z: Tensor, with_features: bool = False) -> Any:
        """Return the logits; if `with_features`, logits and features."""
        if not with_features:
            return self.network(x, z)
        features = self.network.features(x, z)
        return self.network.fusion[-1](features), features


@dataclass(kw_only=True, eq=False, repr=False)
class CORAL(DANN):
    """Deep CORAL [sun2016deep]: minimize R + λ D, where D is a distance between the features of the sites.

    R is the NLL of y. The distance between two sites is the mean squared difference between the means of their features
    plus that between the covariances, and D is its mean over all pairs of sites, those with unlabeled rows included.
    Assumes, like DANN, that features with the same distribution at all sites are sufficient to predict y.

    Parameters
    ----------
    strength : float
        The factor λ of the distance D.
    """

    strength: float = 1.0
    card: ClassVar[Card] = Card(name="CORAL", cite="sun2016deep", unlabeled_in_training=True)

    def build(self, network: RatioNetwork, n_domains: int, prepared: Prepared) -> nn.Module:
        """Return the network in a module that can also return its features."""
        return FeatureNetwork(network)

    def loss(self, module: nn.Module, batch: Batch, memory: Any) -> Tensor:
        """Return R + λ D of a batch; sites with fewer than two rows in the batch are left out of D."""
        logits, features = module(batch.all_x(), batch.all_z(), True)
        risk = weighted_nll(logits[: batch.n], batch.y, batch.weight)
        sites = batch.all_sites()
        insides = [(sites == s).to(features.dtype) for s in range(batch.n_domains)]
        parts = [moments(features, inside) for inside in insides]
        gaps = torch.stack([coral_distance(a, b) for a, b in combinations(parts, 2)])
        both = torch.stack([(a.sum() > 1) & (b.sum() > 1) for a, b in combinations(insides, 2)])
        return risk + self.strength * (gaps * both).sum() / both.sum().clamp_min(1)
