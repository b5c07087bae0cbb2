"""A classifier two-sample test on the network's features, with the (y, z) mix of the source matched to the site's."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sitewise.diagnosis.matching import Matched

TRAINED_FIRST = (0.4, 0.6, 0.8)  # rows up to these shares are trained on, then the next are scored
SHRINKAGE = 0.1  # of the features' covariance towards its mean variance


@dataclass(frozen=True)
class Representation:
    """The test of the features: its p-value, and how well the classifier tells both samples apart (1/2: not at all)."""

    p_value: float
    auc: float


def compare_features(matched: Matched, source: Tensor, target: Tensor, random_state: int = 0) -> Representation | None:
    """Let a linear classifier tell target rows (n, D) from matched source rows (m, D) that it was not fitted to.

    Rows are scored in turns by a classifier of the rows before them. (Folds that are scored by each other's classifiers
    would not do: where there is no difference, their scores go together, and the standard error is too small.)
    The classifier may not use directions along which a change of g moves the features: an error of the estimated g
    is no shift. Its mean score on the one sample less that on the other is compared with its standard error.
    None where the features never vary.
    """
    everything = torch.cat([source, target]).double()
    spread = everything.std(dim=0)
    kept = spread > 1e-6 * spread.max().clamp_min(1e-12)
    if not kept.any():
        return None
    scaled = (everything - everything.mean(0))[:, kept] / spread[kept]
    source, target = scaled[: len(source)], scaled[len(source) :]
    rng = np.random.default_rng(random_state)
    steps = [torch.tensor(np.digitize(rng.random(len(rows)), TRAINED_FIRST)) for rows in (source, target)]
    scores = [torch.zeros(len(rows), 1, dtype=torch.float64) for rows in (source, target)]
    left, own, _ = matched.residuals(source, target)
    for step in range(1, len(TRAINED_FIRST) + 1):
        direction, offset = discriminant(matched, source, left, own, *(s < step for s in steps))
        for rows, step_of, score in zip((source, target), steps, scores, strict=True):
            score[step_of == step] = rows[step_of == step] @ direction[:, None] - offset
    found = matched.compare(*scores)
    error = float(found.covariance[0, 0]) ** 0.5
    p_value = 0.5 * math.erfc(float(found.mean[0]) / error / 2**0.5) if error > 0 else 1.0
    weights = (matched.source_weight, matched.target_weight)
    low, high = ((s[step > 0, 0], w[step > 0]) for s, w, step in zip(scores, weights, steps, strict=True))
    return Representation(p_value, weighted_auc(*low, *high))


def discriminant(
    matched: Matched, source: Tensor, left: Tensor, own: Tensor, of_source: Tensor, of_target: Tensor
) -> tuple[Tensor, Tensor]:
    """The direction (D,) that tells some rows of both samples apart, of unit variance, and its middle.

    It is found from residuals (m, D), (n, D): both samples agree on z as a whole, so what one fold has too much of it
    another has too little.
    """
    w_source, w_target = matched.source_weight * of_source, matched.target_weight * of_target
    w_source, w_target = w_source / w_source.sum(), w_target / w_target.sum()
    difference = w_target @ own - w_source @ left
    covariance = sum(
        (weight[:, None] * (rows - weight @ rows)).T @ (rows - weight @ rows) / 2
        for rows, weight in ((left, w_source), (own, w_target))
    )
    assert isinstance(covariance, Tensor)
    size = covariance.diagonal().mean().clamp_min(1e-12)
    shrunk = (1 - SHRINKAGE) * covariance + SHRINKAGE * size * torch.eye(len(covariance), dtype=torch.float64)
    tilts = matched.tilts(source * of_source[:, None], torch.ones(len(source), 1, dtype=torch.float64))
    solved = torch.linalg.solve(shrunk, torch.cat([difference[:, None], tilts], dim=1))
    free, along = solved[:, :1], solved[:, 1:]
    gram = tilts.T @ along
    free = free - along @ torch.linalg.pinv(gram, rtol=1e-9) @ (tilts.T @ free)
    direction = free[:, 0] / (free[:, 0] @ shrunk @ free[:, 0]).clamp_min(1e-300).sqrt()
    return direction, w_source @ source @ direction


def weighted_auc(low: Tensor, low_weight: Tensor, high: Tensor, high_weight: Tensor) -> float:
    """P(high > low) + ½ P(high = low) for weighted samples."""
    order = torch.argsort(low)
    values, reached = low[order], torch.cat([torch.zeros(1).double(), low_weight[order].cumsum(0)])
    below = reached[torch.searchsorted(values, high)]
    at_or_below = reached[torch.searchsorted(values, high, right=True)]
    total = high_weight @ ((below + at_or_below) / 2)
    return float(total / (high_weight.sum() * low_weight.sum()))
