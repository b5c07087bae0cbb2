"""TENT: fit the network's normalization to a new site by minimizing the entropy of its predictions at the site."""

import copy
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from sitewise.bench.methods.base import Rule
from sitewise.bench.methods.card import Card
from sitewise.bench.methods.erm import OverERM
from sitewise.inputs import Inputs
from sitewise.ratio import RatioNetwork, Scorer, for_network
from sitewise.training import Recipe
from sitewise.training.loop import train

RECIPE = Recipe(batch_size=200, schedule="constant", weight_decay=0.0, min_steps=0)


def mean_entropy(logits: Tensor) -> Tensor:
    """Return the mean over rows of the entropy -Σ_y p_y log p_y, with p = softmax(logits)."""
    log_proba = torch.log_softmax(logits, dim=1)
    return -(log_proba.exp() * log_proba).sum(1).mean()


class Modulated(nn.Module):
    """A last layer with a scale (at first one) and a shift (at first zero) for each of its inputs."""

    def __init__(self, last: nn.Module, width: int) -> None:
        super().__init__()
        self.last = last
        self.scale, self.shift = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, features: Tensor, z: Tensor) -> Tensor:
        """Return the logits; z is not used, because the features contain it."""
        logits: Tensor = self.last(self.scale * features + self.shift)
        return logits


@dataclass
class Certainty:
    """The objective of the training loop: the mean entropy of a module's outputs. There is no validation loss."""

    X: Inputs
    z: Tensor

    def __post_init__(self) -> None:
        self.sites = torch.zeros(len(self.X), dtype=torch.int64)
        self._device = torch.device("cpu")

    def to(self, device: torch.device) -> None:
        """Move the data to a device."""
        self.X, self.z, self._device = self.X.to(device), self.z.to(device), device

    def begin_epoch(self, generator: torch.Generator, progress: float) -> None:
        """Do nothing: the objective is the same in all epochs."""

    def reading(self, upcoming: Sequence[Tensor]) -> AbstractContextManager[None]:
        """Return an empty context: rows are read when `loss` needs them."""
        return nullcontext()

    def loss(self, module: nn.Module, rows: Tensor) -> Tensor:
        """Return the mean entropy of the outputs for some rows."""
        return mean_entropy(module(self.X[rows].to(self._device), self.z[rows]))

    def validation_loss(self, module: nn.Module) -> float | None:
        """Return None, because there are no labels."""
        return None

    def identity(self) -> dict[str, str]:
        """Return an empty dict, because no checkpoint is kept."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return an empty dict: the objective has no state."""
        return {}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Do nothing: the objective has no state."""


def sharpen(module: nn.Module, X: Inputs, z: Tensor, *, rate: float, passes: int, seed: int, device: str) -> nn.Module:
    """Train the parameters with `requires_grad` of a module to minimize the mean entropy of its outputs for the rows.

    Return the trained module; `rate` is the learning rate and `passes` the number of passes over the rows.
    """
    recipe = replace(RECIPE, epochs=passes, learning_rate=rate)
    return train(module, Certainty(X, z), recipe, device=device, seed=seed, verbose=False, label="TENT").module


@dataclass(kw_only=True, eq=False, repr=False)
class TENT(OverERM):
    """TENT [wang2021tent]: minimize the mean entropy of P(y|x) at the new site over the network's affine parameters.

    The affine parameters are the scale and shift of every batch normalization layer. The running mean and variance of
    these layers are replaced by those of the site. A network without batch normalization (for digits and for tables)
    gets a scale and a shift for each input of its last layer. The optimizer uses batches of 200 rows of the site. The
    adapted network then predicts each row independently. TENT and `LAME` represent test-time adaptation in the
    comparison. If P(y) differs between sites, predictions of low entropy can be wrong.

    Parameters
    ----------
    rate : float
        The learning rate of the adaptation.
    passes : int
        The number of passes over the site's rows.
    """

    rate: float = 1e-3
    passes: int = 1
    card: ClassVar[Card] = Card(name="TENT", cite="wang2021tent", note="changes the network at the new site")

    def rule_at(self, X: Any, Z: Any, y: Any, prevalence: Any) -> tuple[Rule, Any]:
        """Adapt a copy of the network; return the rule that predicts with it, and None, as P(Y) is not estimated."""
        module = copy.deepcopy(self.trained_.scorer.module).float()
        norms = [layer for layer in module.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
        device = self.trained_.scorer.device
        own = {"rate": self.rate, "passes": self.passes, "seed": int(self.random_state or 0), "device": device}
        module.requires_grad_(False)
        if not norms:
            assert isinstance(module, RatioNetwork)
            features = self.features(X, Z).float()
            head = sharpen(Modulated(module.fusion[-1], features.shape[1]), features, features[:, :0], **own)
            last = Scorer(head, device)

            def rule(rows: Any, z: Any) -> Tensor:
                features = self.features(rows, z).float()
                return torch.log_softmax(last(features, features[:, :0]), dim=1)

            return rule, None
        for layer in norms:
            layer.reset_running_stats()
            layer.momentum = None  # running statistics are then means over all batches
            layer.requires_grad_(True)
        inputs, z = self.network_rows(X, Z)
        scorer = Scorer(sharpen(module, for_network(inputs), z, **own), device)
        return lambda rows, at: torch.log_softmax(scorer(*self.network_rows(rows, at)), dim=1), None
