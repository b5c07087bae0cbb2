"""Importance-weighted domain-adversarial training."""

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sitewise.bench.methods.card import Card
from sitewise.bench.methods.dann import DANN, AdversarialNetwork, reversal_schedule
from sitewise.bench.methods.objective import Batch, Prepared
from sitewise.bench.methods.weights import bbse
from sitewise.confounders import Confounders
from sitewise.ratio import RatioNetwork, weighted_nll
from sitewise.rows import LabeledRows

MEMORY = 0.5  # share of the old class weights that is kept after an epoch


@dataclass
class ClassWeights:
    """Class weights w = P_b(y)/P_s(y), and sums over the current epoch, from which the next weights are computed."""

    weight: Tensor
    joint: Tensor = field(init=False)  # (K, K), sum over labeled rows of predicted probability × true class
    predicted: Tensor = field(init=False)  # (K,), sum over unlabeled rows of predicted probability
    mass: Tensor = field(init=False)  # the numbers of labeled and unlabeled rows

    def __post_init__(self) -> None:
        n = len(self.weight)
        self.joint = self.weight.new_zeros(n, n)
        self.predicted, self.mass = self.weight.new_zeros(n), self.weight.new_zeros(2)

    def to(self, device: torch.device) -> None:
        """Move all tensors to a device."""
        self.weight, self.joint, self.predicted, self.mass = (
            part.to(device) for part in (self.weight, self.joint, self.predicted, self.mass)
        )

    def add(self, labeled: Tensor, y: Tensor, unlabeled: Tensor) -> None:
        """Add the predicted probabilities of a batch to the sums."""
        self.joint.index_add_(1, y, labeled.T)
        self.predicted += unlabeled.sum(0)
        self.mass[0] += len(labeled)
        self.mass[1] += len(unlabeled)

    def update(self) -> None:
        """Set w to the mean of its old value and BBSE's w from the confusion matrix of the epoch; reset the sums."""
        if float(self.mass.min()) > 0:
            weights = bbse((self.joint / self.mass[0]).cpu(), (self.predicted / self.mass[1]).cpu())
            self.weight.copy_(MEMORY * self.weight + (1 - MEMORY) * weights.to(self.weight))
        for sums in (self.joint, self.predicted, self.mass):
            sums.zero_()


@dataclass(kw_only=True, eq=False, repr=False)
class IWDANN(DANN):
    """IWDANN [tachet2020domain]: DANN in which a labeled row has the weight w_y, an estimate of P_b(y)/P_s(y).

    The weight is used in the NLL of y and in the loss of the critic. The critic separates the source (the training rows
    of all sites) from the target (the unlabeled rows of all sites), which is needed in training. After each epoch, w is
    replaced by the mean of w and the solution of C w = μ. C_ij is the share of source rows that are predicted as class
    i and have class j (predictions are probabilities), and μ is the mean prediction of target rows, both in this epoch.
    Assumes that P(features|y) can be made equal in source and target. The published method is for one source site and
    one target site.
    """

    card: ClassVar[Card] = Card(
        name="IWDANN",
        cite="tachet2020domain",
        unlabeled_in_training=True,
        estimates_g="indirectly, confusion matrix",
        note="sites are pooled into one source and one target",
    )

    def refusal(self, n_sites: int, confounders: Confounders | None, n_unlabeled: int) -> str | None:
        """Return the reason why IWDANN cannot be trained, for example no unlabeled rows; None if it can."""
        if not n_unlabeled:
            return "IWDANN trains against unlabeled rows of the new site: give unlabeled="
        return super().refusal(n_sites, confounders, n_unlabeled)

    def prepare(self, training: LabeledRows, held: LabeledRows, schema: Confounders | None, n: int) -> Prepared:
        """Start with a weight of one for each class."""
        return Prepared({}, ClassWeights(torch.ones(n, dtype=torch.float64)))

    def build(self, network: RatioNetwork, n_domains: int, prepared: Prepared) -> nn.Module:
        """Return the network with a critic that has two outputs, one for the source and one for the target."""
        return AdversarialNetwork(network, 2)

    def begin_epoch(self, memory: ClassWeights) -> None:
        """Update the class weights w with the predictions of the previous epoch."""
        memory.update()

    def loss(self, module: nn.Module, batch: Batch, memory: ClassWeights) -> Tensor:
        """Return the NLL of y plus the loss of the critic; in both, labeled rows are weighted by w."""
        assert batch.unlabeled_site is not None
        memory.to(batch.x.device)
        scale = self.strength * reversal_schedule(batch.progress)
        logits, critic = module(batch.all_x(), batch.all_z(), scale)
        probability = torch.softmax(logits.detach().double(), dim=1)
        memory.add(probability[: batch.n], batch.y, probability[batch.n :])
        importance = memory.weight.to(logits.dtype)[batch.y] * batch.weight
        risk = (importance * cross_entropy(logits[: batch.n], batch.y, reduction="none")).sum() / batch.weight.sum()
        source = torch.zeros_like(batch.y)
        target = torch.ones_like(batch.unlabeled_site)
        from_source = weighted_nll(critic[: batch.n], source, importance.clamp_min(1e-12))
        return risk + (from_source + cross_entropy(critic[batch.n :], target)) / 2
