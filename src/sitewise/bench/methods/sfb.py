"""Stable feature boosting."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

from sitewise.bench.methods.base import Method, Rule
from sitewise.bench.methods.card import Card
from sitewise.bench.methods.irm import mean_over_sites
from sitewise.bench.methods.network import Trained
from sitewise.bench.methods.objective import Batch, Prepared, mean_nll
from sitewise.bench.methods.weights import correct_pseudo_labels, hard
from sitewise.estimator.source.held_out import calibrate_rows
from sitewise.ratio import FUSION_WIDTH, RatioNetwork, weighted_nll
from sitewise.rows import LabeledRows

UNSTABLE_WIDTH = 32
FLOOR = 1e-6


def conditional_covariance(a: Tensor, b: Tensor, y: Tensor, n_classes: int) -> Tensor:
    """Return the mean square of the covariances of a (n, p) and b (n, q) given y, averaged over the classes.

    It is zero if a and b are uncorrelated given y, which follows from independence given y.
    """
    squares, counts = [], []
    for label in range(n_classes):
        inside = (y == label).to(a.dtype)
        count = inside.sum()
        left, right = ((part - inside @ part / count.clamp_min(1)) * inside[:, None] for part in (a, b))
        squares.append(((left.T @ right / count.clamp_min(1)) ** 2).mean())
        counts.append(count)
    return torch.stack(squares).sum() / (torch.stack(counts) > 0).sum()


class TwoHeads(nn.Module):
    """One backbone with a stable and an unstable head. Each head has its own hidden layers.

    The output is one matrix of stable logits, unstable logits and unstable features.
    """

    def __init__(self, network: RatioNetwork) -> None:
        super().__init__()
        self.stable = network
        first, last = network.fusion[0], network.fusion[-1]
        assert isinstance(first, nn.Linear)
        assert isinstance(last, nn.Linear)
        self.unstable = nn.Sequential(
            nn.Linear(first.in_features, FUSION_WIDTH), nn.ReLU(), nn.Linear(FUSION_WIDTH, UNSTABLE_WIDTH), nn.ReLU()
        )
        self.head = nn.Linear(UNSTABLE_WIDTH, last.out_features)

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        """Return stable logits, unstable logits and unstable features, (n, K + K + width)."""
        shared = torch.cat([self.stable.backbone(x), z], dim=1)
        unstable = self.unstable(shared)
        return torch.cat([self.stable.fusion(shared), self.head(unstable), unstable], dim=1)


def boost(log_stable: Tensor, unstable: Tensor, marginal: Tensor) -> Tensor:
    """Return log P(y|x), P(y|x) ∝ P(y|x_S) P(y|x_U) / P(y), for x_S and x_U that are independent given y, (n, K)."""
    combined = log_stable + unstable.clamp_min(FLOOR).log() - marginal.clamp_min(FLOOR).log()
    return torch.log_softmax(combined, dim=1)


def pseudo_given_true(probability: Tensor) -> Tensor:
    """Estimate M[k,j] = P(ŷ = j|y = k), (K, K), of the predicted classes ŷ of a classifier.

    The classifier's probabilities (n, K) must be calibrated, because M is computed from them alone.
    """
    joint = probability.T @ hard(probability)
    return joint / joint.sum(1, keepdim=True).clamp_min(1e-12)


@dataclass(kw_only=True, eq=False, repr=False)
class SFB(Method):
    """SFB [eastwood2023spuriosity]: a predictor from stable features x_S, and one from unstable features x_U by site.

    The first is the same at all sites; the second is fitted to the unlabeled rows of each new site.

    The network has a stable head, which predicts P(y|x_S), and an unstable head, whose features are x_U. The training
    loss is the sum of three terms: (1) the NLL of the stable head plus λ times its penalty as in `IRM`, averaged over
    sites; (2) the NLL of predictions by the sum of both heads' logits; (3) κ times the mean squared covariance of the
    stable logits and x_U given y. If λ > 1, the loss is divided by λ. With one training site there is no penalty.

    At a new site, let ŷ be the class that the stable head predicts. A logistic regression P(ŷ|x_U) is fitted to the
    rows of the site. The confusion M[k,j] = P(ŷ=j|y=k) and P(y) are estimated from the stable head's probabilities.
    P(y|x_U) is the solution of P(ŷ|x_U) = Mᵀ P(y|x_U), and the prediction is P(y|x) ∝ P(y|x_S) P(y|x_U) / P(y). Assumes
    that P(y|x_S) is the same at every site, and that x_S and x_U are independent given y.

    Parameters
    ----------
    stability : float
        The factor λ of the penalty of the stable head.
    independence : float
        The factor κ of the squared covariance of stable logits and unstable features given y.
    """

    stability: float = 10.0
    independence: float = 1.0
    card: ClassVar[Card] = Card(
        name="SFB", cite="eastwood2023spuriosity", estimates_g="no", note="adapts by pseudo-labels"
    )

    def build(self, network: RatioNetwork, n_domains: int, prepared: Prepared) -> nn.Module:
        """Return the network with its two heads, the stable and the unstable one."""
        return TwoHeads(network)

    def loss(self, module: nn.Module, batch: Batch, memory: Any) -> Tensor:
        """Return the sum of the three terms of the training loss (see the class), divided by λ if λ > 1."""
        stable, unstable, features = self._parts(module(batch.x, batch.z))
        invariant = mean_over_sites(stable, batch, self.stability if batch.n_sites > 1 else 0.0)
        joint = weighted_nll(stable + unstable, batch.y, batch.weight)
        dependence = conditional_covariance(stable, features, batch.y, stable.shape[1])
        return (invariant + joint + self.independence * dependence) / max(self.stability, 1.0)

    def validation_loss(self, outputs: Tensor, rows: LabeledRows, memory: Any) -> Tensor:
        """Return the NLL of the stable head: the unstable head is not used for predictions as trained."""
        return mean_nll(self._parts(outputs)[0], rows)

    def settle(self, trained: Trained) -> None:
        """Calibrate the stable head on the held-out rows."""
        outputs = trained.held_out_outputs
        n_classes = len(trained.classes)
        y, weight = trained.held_out.y, trained.held_out.weight.double()
        stable = outputs[:, :n_classes] if len(y) else torch.zeros(0, n_classes, dtype=torch.float64)
        even = torch.zeros_like(stable)
        self._calibration = calibrate_rows(stable, even, y, weight, "bias_corrected", n_classes)

    def log_proba(self, X: Any, Z: Any) -> Tensor:
        """Return log P(y|x) of the calibrated stable head, (n, K)."""
        return torch.log_softmax(self._calibration.apply(self._parts(self.outputs(X))[0]), dim=1)

    def rule_at(self, X: Any, Z: Any, y: Any, prevalence: Any) -> tuple[Rule, Any]:
        """Fit P(ŷ|x_U) to the rows of the site; return the rule that predicts P(y|x), and the estimate of P(Y).

        If the stable head predicts the same class for all rows, the rule predicts as trained.
        """
        log_stable = self.log_proba(X, None)
        probability = log_stable.exp()
        pseudo = probability.argmax(1).numpy()
        marginal = probability.mean(0)
        if len(np.unique(pseudo)) < 2:  # all rows have the same pseudo-label
            return self.log_proba, marginal.numpy()
        noise = pseudo_given_true(probability)
        features = self._parts(self.outputs(X))[2]
        scale = features.std(0).clamp_min(1e-6)
        model = LogisticRegression(max_iter=300).fit((features / scale).numpy(), pseudo)

        def rule(rows: Any, z: Any) -> Tensor:
            unstable = self._parts(self.outputs(rows))[2] / scale
            of_pseudo = torch.zeros(len(unstable), len(self.classes_), dtype=torch.float64)
            of_pseudo[:, torch.tensor(model.classes_)] = torch.tensor(model.predict_proba(unstable.numpy()))
            return boost(self.log_proba(rows, None), correct_pseudo_labels(of_pseudo, noise), marginal)

        return rule, marginal.numpy()

    def _parts(self, outputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Split outputs into stable logits, unstable logits and unstable features."""
        n_classes = (outputs.shape[1] - UNSTABLE_WIDTH) // 2
        return outputs[:, :n_classes], outputs[:, n_classes : 2 * n_classes], outputs[:, 2 * n_classes :]
