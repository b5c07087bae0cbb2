"""What an adapted model keeps of the rows it was adapted on: scores and codes, never the inputs."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sitewise.inputs import Inputs, take_inputs
from sitewise.ratio import RatioNetwork, Scorer

FEATURE_ROWS = 2000  # of a sample; what the check of the representation looks at


@dataclass(frozen=True)
class KeptRows:
    """The rows of one site, in the order they came: calibrated log f, codes of z, and what was said about them.

    Rows where f is not identified (`supported` is false) took no part in the estimate. `features` are what the
    network's last layer reads of the rows `feature_rows`, None where the model was adapted from log-ratios alone.
    """

    log_ratio: Tensor  # (n, K)
    codes: Tensor  # (n, V)
    supported: Tensor  # (n,) bool
    weight: Tensor | None = None  # (n,)
    groups: Tensor | None = None  # (n,) numbers
    labels: Tensor | None = None  # (n,) class numbers, NaN where unknown
    features: Tensor | None = None  # (m, D) float32
    feature_rows: Tensor | None = None  # (m,)
    without_z: Tensor | None = None  # (n, K) log f(x, missing) where a joint model speaks for rows that lack z

    def __len__(self) -> int:
        return len(self.log_ratio)


class ScoreAndFeatures(nn.Module):
    """log f and, behind its K columns, the features that the last layer reads."""

    def __init__(self, network: RatioNetwork) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        """(n, K + D)."""
        features = self.network.features(x, z)
        return torch.cat([self.network.fusion[-1](features), features], dim=1)


def score_keeping_features(scorer: Scorer, X: Inputs, z: Tensor, n_classes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Raw log f of all rows (n, K), and the features (m, D) of at most FEATURE_ROWS of them with their numbers (m,).

    Each row goes through the network once.
    """
    chosen = evenly(len(X), FEATURE_ROWS)
    assert isinstance(scorer.module, RatioNetwork)
    both = Scorer(ScoreAndFeatures(scorer.module), scorer.device)(take_inputs(X, chosen), z[chosen])
    raw_log_ratio = both.new_empty(len(X), n_classes)
    raw_log_ratio[chosen] = both[:, :n_classes]
    rest = torch.ones(len(X), dtype=torch.bool)
    rest[chosen] = False
    others = rest.nonzero().flatten()
    if len(others):
        raw_log_ratio[others] = scorer(take_inputs(X, others), z[others])
    return raw_log_ratio, both[:, n_classes:].float(), chosen


def evenly(n_rows: int, at_most: int) -> Tensor:
    """Row numbers spread evenly over n rows, all of them where they are few."""
    return torch.arange(n_rows) if n_rows <= at_most else torch.arange(at_most) * n_rows // at_most
