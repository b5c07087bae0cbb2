"""log f by a network, and the features of some rows that its last layer reads."""

import torch
from torch import Tensor, nn

from sitewise.estimator.source.splitting import evenly
from sitewise.inputs import Inputs, take_inputs
from sitewise.ratio import RatioNetwork, Scorer

FEATURE_ROWS = 2000  # of a sample; what the check of the representation looks at


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
