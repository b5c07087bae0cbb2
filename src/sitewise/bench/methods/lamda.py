"""LAMDA (label matching domain adaptation): optimal transport from source to target with a cost for data and labels."""

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax

from sitewise.bench.methods.card import Card
from sitewise.bench.methods.coral import FeatureNetwork
from sitewise.bench.methods.dann import DANN, reversal_schedule
from sitewise.bench.methods.objective import Batch, Prepared
from sitewise.bench.methods.tent import mean_entropy
from sitewise.confounders import Confounders
from sitewise.ratio import RatioNetwork, weighted_nll

NO_POT = "LAMDA solves a transport and needs POT: install sitewise[bench]"


def transport(cost: Tensor, source_weight: Tensor) -> Tensor:
    """Return the transport plan γ, (n, m), that minimizes Σ_ij γ_ij cost_ij.

    The row sums of γ are proportional to the weights of the source rows; its column sums are all 1/m.
    """
    ot = import_module("ot")
    share = source_weight.detach().double().cpu().numpy()
    even = torch.full((cost.shape[1],), 1 / cost.shape[1], dtype=torch.float64).numpy()
    plan = ot.emd(share / share.sum(), even, cost.detach().double().cpu().numpy())
    return torch.as_tensor(plan).to(cost)


def data_cost(source: Tensor, target: Tensor) -> Tensor:
    """Return the mean squared difference of features for each pair of a source row and a target row, (n, m)."""
    squares = source.square().sum(1)[:, None] + target.square().sum(1) - 2 * source @ target.T
    return squares.clamp_min(0) / source.shape[1]


def label_cost(y: Tensor, target_logits: Tensor) -> Tensor:
    """Return -log P(y_i|x_j) for each pair of a source label y_i and a target row x_j, (n, m)."""
    return -log_softmax(target_logits, dim=1).T[y]


@dataclass(kw_only=True, eq=False, repr=False)
class LAMDA(DANN):
    """LAMDA [le2021lamda]: minimize R + λ W + τ H, where W is the cost of transporting source rows to target rows.

    R is the NLL of y, and H the mean entropy of the predictions of target rows. Source rows are the rows of all
    training sites, and target rows the unlabeled rows of all sites. W is the minimum over transport plans γ of
    Σ_ij γ_ij (‖h_i - h_j‖²/D - β log P(y_i|x_j)). Here i is a source row and j a target row of the batch, γ_ij the
    share of the total weight that is moved from i to j, y_i the label of i, P the network's prediction, and h the D
    features. The first term of the cost is for a shift of the data, the second for a shift of the labels. The package
    POT computes the exact minimum; the gradient of W treats γ as constant. λ is `strength` · (2/(1 + e^(-10p)) - 1)
    after a share p of the training (`strength` as in `DANN`).

    Assumes that the distribution of the features can be made equal in source and target. The published method is for
    one source site and one target site. Only the abstract of the paper and the published code were read. In place of
    the transport, that code has a critic with K + 1 outputs. It also has virtual adversarial training, which is left
    out here.

    Parameters
    ----------
    label_weight : float
        The factor β of the second term of the transport cost.
    entropy_weight : float
        The factor τ of the entropy of the predictions of target rows.
    """

    label_weight: float = 1.0
    entropy_weight: float = 0.1
    packages: ClassVar[tuple[str, ...]] = ("ot",)
    card: ClassVar[Card] = Card(
        name="LAMDA",
        cite="le2021lamda",
        unlabeled_in_training=True,
        note="sites are pooled into one source and one target",
    )

    def refusal(self, n_sites: int, confounders: Confounders | None, n_unlabeled: int) -> str | None:
        """Return the reason why LAMDA cannot be trained, for example no unlabeled rows; None if it can."""
        if find_spec("ot") is None:
            return NO_POT
        if not n_unlabeled:
            return "LAMDA trains against unlabeled rows of the new site: give unlabeled="
        return super().refusal(n_sites, confounders, n_unlabeled)

    def build(self, network: RatioNetwork, n_domains: int, prepared: Prepared) -> nn.Module:
        """Return the network in a module that can also return its features."""
        return FeatureNetwork(network)

    def loss(self, module: nn.Module, batch: Batch, memory: Any) -> Tensor:
        """Return R + λ W + τ H of a batch; the factor λ of the transport cost increases during training."""
        logits, features = module(batch.all_x(), batch.all_z(), True)
        here = logits[batch.n :]
        cost = data_cost(features[: batch.n], features[batch.n :]) + self.label_weight * label_cost(batch.y, here)
        moved = (transport(cost, batch.weight) * cost).sum()
        risk = weighted_nll(logits[: batch.n], batch.y, batch.weight)
        scale = self.strength * reversal_schedule(batch.progress)
        return risk + scale * moved + self.entropy_weight * mean_entropy(here)
