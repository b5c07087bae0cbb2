"""TENT: the network's normalization is fitted to a new site by making its predictions there certain."""

import copy
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from sitewise.bench.methods.base import Rule
from sitewise.bench.methods.card import Card
from sitewise.bench.methods.erm import OverERM
from sitewise.inputs import Inputs
from sitewise.ratio import RatioNetwork, Scorer, for_network, scoring_device

BATCH = 200  # rows of a step


def mean_entropy(logits: Tensor) -> Tensor:
    """The mean over rows of -Σ_y p_y log p_y, p = softmax(logits)."""
    log_proba = torch.log_softmax(logits, dim=1)
    return -(log_proba.exp() * log_proba).sum(1).mean()


class Modulated(nn.Module):
    """A last layer whose inputs are scaled and shifted, channel by channel; at first by one and zero."""

    def __init__(self, last: nn.Module, width: int) -> None:
        super().__init__()
        self.last = last
        self.scale, self.shift = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, features: Tensor, z: Tensor) -> Tensor:
        """Logits; z was read before."""
        logits: Tensor = self.last(self.scale * features + self.shift)
        return logits


def sharpen(
    module: nn.Module, chosen: list[nn.Parameter], X: Inputs, z: Tensor, *, rate: float, passes: int, seed: int
) -> None:
    """Lower the mean entropy of a module's outputs for rows by Adam, over some of its parameters."""
    optimizer = torch.optim.Adam(chosen, lr=rate)
    device, generator = chosen[0].device, torch.Generator().manual_seed(seed)
    for _ in range(passes):
        for rows in torch.randperm(len(X), generator=generator).split(BATCH):
            optimizer.zero_grad()
            mean_entropy(module(X[rows].to(device), z[rows].to(device))).backward()
            optimizer.step()


@dataclass(kw_only=True, eq=False, repr=False)
class TENT(OverERM):
    """TENT [wang2021tent]: minimize the mean entropy of P(y|x) at the new site over the network's affine parameters.

    These are the scale and shift of every batch norm, whose mean and variance become the site's own; in a network
    without batch norm (those for digits and tables) a scale and a shift of each input of the last layer. Adam with
    `rate`, `passes` over the site's rows in batches of 200; rows are then predicted one by one with what was found.
    A reference of test-time adaptation: certain predictions are not right ones where P(y) shifts.
    """

    rate: float = 1e-3
    passes: int = 1
    card: ClassVar[Card] = Card(name="TENT", cite="wang2021tent", note="changes the network at the new site")

    def rule_at(self, X: Any, Z: Any, y: Any, prevalence: Any) -> tuple[Rule, Any]:
        """Adapt a copy of the network."""
        module = copy.deepcopy(self.trained_.scorer.module).float()
        norms = [layer for layer in module.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
        own: dict[str, Any] = {"rate": self.rate, "passes": self.passes, "seed": int(self.random_state or 0)}
        device = self.trained_.scorer.device
        if not norms:
            head = self._adapt_last(module, X, Z, own)
            return lambda rows, z: torch.log_softmax(head(self.features(rows, z).float(), z).double(), dim=1), None
        inputs, z = self.network_rows(X, Z)
        module = module.requires_grad_(False).to(scoring_device(device)).eval()
        for layer in norms:
            layer.reset_running_stats()
            layer.momentum = None  # the mean over all batches
            layer.requires_grad_(True).train()
        sharpen(module, [p for layer in norms for p in layer.parameters()], for_network(inputs), z, **own)
        scorer = Scorer(module.eval().cpu(), device)
        return lambda rows, at: torch.log_softmax(scorer(*self.network_rows(rows, at)), dim=1), None

    def _adapt_last(self, module: nn.Module, X: Any, Z: Any, own: dict[str, Any]) -> Modulated:
        """Scale and shift of the last layer's inputs."""
        features = self.features(X, Z).float()
        assert isinstance(module, RatioNetwork)
        head = Modulated(module.fusion[-1].cpu(), features.shape[1])
        head.last.requires_grad_(False)
        sharpen(head, [head.scale, head.shift], features, features[:, :0], **own)
        return head.requires_grad_(False)
