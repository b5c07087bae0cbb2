"""Features that a critic reads: those of a backbone, and those of its earlier layers.

f does not need what x shows about z, because z is given. Its last features lose this information (for example the
colour of a digit); earlier layers keep it.
"""

from typing import Any

import torch
from torch import Tensor, nn

from sitewise.estimator.source.splitting import evenly
from sitewise.inputs import Inputs
from sitewise.ratio import RatioNetwork, Scorer

CHANNELS = 256  # of one block at most; only late blocks are wider, and the features represent them


def blocks_of(backbone: nn.Module) -> list[nn.Module]:
    """The trainable blocks of a backbone, in order: its children, or those of its only child."""
    learning = [part for part in backbone.children() if any(True for _ in part.parameters())]
    return blocks_of(learning[0]) if len(learning) == 1 and any(True for _ in learning[0].children()) else learning


def over_places(output: Tensor) -> Tensor:
    """The mean of each channel over all positions, (n, C): of images (n, C, ...) or tokens (n, positions, C)."""
    if output.ndim == 3:
        return output.mean(1)
    return output.flatten(2).mean(2) if output.ndim > 3 else output


class Layers(nn.Module):
    """A backbone's features (n, W), followed by the channel means of each trainable block."""

    def __init__(self, network: RatioNetwork) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        """(n, W + W')."""
        seen: dict[int, Tensor] = {}

        def keep(part: nn.Module, inputs: Any, output: Any) -> None:
            if isinstance(output, Tensor) and output.ndim >= 2 and len(output) == len(x):
                means = over_places(output)
                seen[id(part)] = means if means.shape[1] <= CHANNELS else means[:, evenly(means.shape[1], CHANNELS)]

        backbone = self.network.backbone
        hooks = [part.register_forward_hook(keep) for part in blocks_of(backbone)]
        try:
            features = backbone(x)
        finally:
            for hook in hooks:
                hook.remove()
        return torch.cat([features, *(part for part in seen.values() if part is not features)], dim=1)


def layer_features(scorer: Scorer, X: Inputs) -> Tensor:
    """The critic's features of each row, (n, W + W'), on the CPU; the first W columns are those of the fusion."""
    assert isinstance(scorer.module, RatioNetwork)
    return Scorer(Layers(scorer.module), scorer.device)(X, torch.zeros(len(X), 0))
