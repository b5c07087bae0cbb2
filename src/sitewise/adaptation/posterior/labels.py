"""The likelihood of known labels of a site, P(y|x,z), as a function of level, factor and the slope of log f.

The slope is integrated out on a few nodes. The density of x of a labeled row is part of the likelihood of unlabeled
rows (section 20 of docs/maths.md).
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, one_hot

from sitewise.adaptation.evidence import Evidence
from sitewise.adaptation.posterior.points import ENTRIES, Points
from sitewise.adaptation.rows import Rows, know_labels, to_ratio
from sitewise.arrays import Problems, read_groups, read_labels, read_weight, view_matrix
from sitewise.posterior import contrasts, normalize
from sitewise.prevalence import SitePrior
from sitewise.prevalence.linear import fit_linear
from sitewise.prevalence.prior import FREEDOM
from sitewise.rows import SiteRows
from sitewise.sites import take_rows

SURE = 40.0  # normalized log f is at least minus this number
NODES = 15  # number of nodes of the slope
SEARCHED, REACH = 49, 8.0  # slopes tried to place the nodes, and their range in scales of the prior of log T
ALIVE = 12.0  # decrease of the log-density beyond which a slope is left out


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class KnownLabels(SiteRows):
    """The rows of the site with known labels."""

    log_ratio: Tensor  # (n, K)
    y: Tensor = field()
    weight: Tensor = field()

    def __post_init__(self) -> None:
        object.__setattr__(self, "log_ratio", normalize(self.log_ratio.double()).clamp_min(-SURE))

    def without_confounders(self) -> "KnownLabels":
        """Return the same rows without z."""
        return replace(self, codes=self.codes[:, :0])


@dataclass(frozen=True)
class LabelLikelihood:
    """log P(y|x,z) of labeled rows at points of the posterior, with the slope T of log f integrated out.

    Predictions are softmax(T log f + log g + (T_0 - T) pivot), equation 20a. The pivot is a mean of log f. At log f =
    pivot, predictions do not depend on the slope. Shapes: M points of the posterior, J nodes of T, K classes.
    """

    rows: KnownLabels
    slope: Tensor  # (J,) nodes of T
    log_prior: Tensor  # (J,) logs of the nodes' prior weights
    best: float  # the most likely T, given labels and prior
    usual: float  # T_0, the typical slope
    pivot: Tensor  # (K,)

    def turned(self, slope: Tensor) -> Tensor:
        """Return the term (T_0 - T) pivot, (M, K), at slopes T (M,)."""
        return (self.usual - slope)[:, None] * self.pivot

    def at_slopes(self, points: Points) -> Tensor:
        """Return the log-likelihood at every point and node, (M, J)."""
        rows, n_classes = self.rows, len(self.pivot)
        size = max(1, ENTRIES // (len(points) * n_classes))
        total = points.level.new_zeros(len(points), len(self.slope))
        for start in range(0, len(rows), size):
            chunk = slice(start, start + size)
            log_g = points.log_probs(rows.codes[chunk])
            turned = zip(self.slope, self.turned(self.slope), strict=True)
            at_nodes = [self._of_rows(chunk, log_g, slope, turn) for slope, turn in turned]
            total = total + torch.stack(at_nodes, dim=1)
        return total

    def _of_rows(self, chunk: slice, log_g: Tensor, slope: Tensor, turn: Tensor) -> Tensor:
        """Return the log-likelihood of some rows at one slope and log g (n or 1, M, K), (M,)."""
        log_ratio, y, weight = (values[chunk] for values in (self.rows.log_ratio, self.rows.y, self.rows.weight))
        own = slope * log_ratio + turn
        if log_g.shape[2] == 2:
            odds = (own[:, 1] - own[:, 0])[:, None] + (log_g[:, :, 1] - log_g[:, :, 0])
            return weight @ logsigmoid(torch.where((y == 1)[:, None], odds, -odds))
        log_p = torch.log_softmax(own[:, None, :] + log_g, dim=2)
        return weight @ log_p.gather(2, y[:, None, None].expand(-1, log_p.shape[1], 1))[:, :, 0]

    def __call__(self, points: Points) -> Tensor:
        """Return the log-likelihood at every point, with the slope integrated out, (M,)."""
        return torch.logsumexp(self.at_slopes(points) + self.log_prior, dim=1)

    def slopes_at(self, points: Points, uniform: Tensor) -> Tensor:
        """Return for each of the M points one quantile of the slope T given the labels and this point, (M,).

        `uniform` (M,) has the probability of each quantile.
        """
        if len(self.slope) == 1:
            return self.slope.expand(len(points)).contiguous()
        share = torch.softmax(self.at_slopes(points) + self.log_prior, dim=1)
        upper = torch.cumsum(share, dim=1) - share / 2.0
        after = (upper < uniform[:, None]).sum(1, keepdim=True).clamp(1, len(self.slope) - 1)
        first, last = upper.gather(1, after - 1)[:, 0], upper.gather(1, after)[:, 0]
        share_of_step = ((uniform - first) / (last - first).clamp_min(1e-300)).clamp(0.0, 1.0)
        log_slope = self.slope.log()
        low, high = log_slope[after[:, 0] - 1], log_slope[after[:, 0]]
        return (low + share_of_step * (high - low)).exp()

    def with_slopes(self, points: Points, slope: Tensor) -> Points:
        """Return the same points, each with its own slope of log f, (M,)."""
        return replace(points, slope=slope, shift=self.turned(slope))

    def as_evidence(self, chosen: Tensor) -> tuple[Rows, Rows]:
        """Return log P(y|x,z) of some rows at the best slope, up to a constant, as log g_y - log Σ_k f_k g_k.

        The two terms are returned as rows of known class, and as rows with negative weights.
        """
        rows = self.rows
        mixed = to_ratio(self.best * rows.log_ratio[chosen] + (self.usual - self.best) * self.pivot)
        certain = mixed.clone()
        know_labels(certain, torch.arange(len(certain), device=certain.device), rows.y[chosen])
        codes, weight = rows.codes[chosen], rows.weight[chosen]
        return Rows(certain, weight, codes, None, None), Rows(mixed, -weight, codes, None, None)


def read_label_likelihood(rows: KnownLabels, as_trained: Points, prior: SitePrior) -> LabelLikelihood:
    """Return the likelihood of labels. The nodes of the slope T are placed where the labels make T likely.

    For each value of T that is tried, the level is fitted to the labels. The level is relative to `as_trained`, the
    source's g at this site. The weights of rows are divided by the design effect of groups.
    """
    log_g = as_trained.log_probs(rows.codes)[:, 0].expand(len(rows), -1)
    n_classes = log_g.shape[1]
    labels = one_hot(rows.y, n_classes).double()
    pivot = _pivot(rows, prior.slope, log_g)
    scale = prior.slope_scale
    steps = torch.linspace(-REACH, REACH, SEARCHED if scale else 1, dtype=torch.float64, device=log_g.device)
    slopes = prior.slope * (scale * steps).exp() if scale else log_g.new_full((1,), prior.slope)
    height, residual = [], []
    for slope, step in zip(slopes.tolist(), steps, strict=True):
        offset = slope * rows.log_ratio + log_g + (prior.slope - slope) * pivot
        log_p, penalty = _with_level(offset, labels, rows.weight, prior.level_scale)
        height.append(float(rows.weight @ (labels * log_p).sum(1)) - penalty + float(_log_slope_prior(step)))
        residual.append(labels - log_p.exp())
    heights = log_g.new_tensor(height)
    best = int(heights.argmax())
    weight = rows.weight / _design_effect(residual[best], rows.weight, rows.groups)
    nodes, log_prior = slopes, torch.zeros_like(slopes)
    if scale:
        alive = (heights > heights.max() - ALIVE).nonzero().flatten()
        low, high = float(steps[max(int(alive.min()) - 1, 0)]), float(steps[min(int(alive.max()) + 1, SEARCHED - 1)])
        place = torch.linspace(low, high, NODES, dtype=torch.float64, device=log_g.device)
        nodes = prior.slope * (scale * place).exp()
        log_prior = torch.log_softmax(_log_slope_prior(place), dim=0)
    own = replace(rows, weight=weight)
    return LabelLikelihood(own, nodes, log_prior, float(slopes[best]), prior.slope, pivot)


def _log_slope_prior(step: Tensor) -> Tensor:
    """Return the log-density of Student's prior of the log slope, in units of its scale; FREEDOM is as for levels."""
    return -0.5 * (FREEDOM + 1.0) * torch.log1p(step.square() / FREEDOM)


def _pivot(rows: KnownLabels, slope: float, log_g: Tensor) -> Tensor:
    """Return the mean log f of every class, (K,), weighted by the uncertainty p (1 - p) of its prediction."""
    probability = torch.softmax(slope * rows.log_ratio + log_g, dim=1)
    uncertainty = rows.weight[:, None] * (probability * (1.0 - probability)).clamp_min(1e-12)
    mean = (uncertainty * (rows.log_ratio - rows.log_ratio.mean(1, keepdim=True))).sum(0) / uncertainty.sum(0)
    return mean - mean.mean()


def _with_level(offset: Tensor, labels: Tensor, weight: Tensor, scale: float) -> tuple[Tensor, float]:
    """Return log P(y|x,z) with the level fitted to the labels, (n, K), and the prior's penalty on this level."""
    penalty = offset.new_full((1,), 2.0 / scale**2)
    one = torch.ones_like(offset[:, :1])
    level = fit_linear(labels * weight[:, None], weight, one, penalty, offset).point
    log_p = torch.log_softmax(offset + level @ contrasts(offset.shape[1], offset.device).T, dim=1)
    return log_p, float(0.5 * penalty * level.square().sum())


def _design_effect(residual: Tensor, weight: Tensor, groups: Tensor | None) -> float:
    """Return the design effect of groups, at least 1: the level score's variance relative to independent rows."""
    if groups is None:
        return 1.0
    names, place = torch.unique(groups, return_inverse=True)
    if len(names) < 2:
        return max(1.0, float(weight.sum()))
    weighted = weight[:, None] * residual
    sums = residual.new_zeros(len(names), residual.shape[1]).index_add_(0, place, weighted)
    alone = float((weighted * residual).sum())
    together = float(sums.square().sum()) * len(names) / (len(names) - 1)
    return max(1.0, together / max(alone, 1e-300))


def read_labeled(
    chunks: Iterable[Any], y: Any, weight: Any, groups: Any, evidence: Evidence, problems: Problems
) -> KnownLabels | None:
    """Read the labeled rows of positive weight from chunks of (log_ratio, Z); return None if there are none."""
    if y is None:
        return None
    device, schema = evidence.device, evidence.schema
    n_rows = len(y)
    labels = torch.tensor(read_labels(y, n_rows, evidence.n_classes, problems), device=device)
    weights, names = read_weight(weight, n_rows, problems, device), read_groups(groups, n_rows, problems, device)
    ratios, codes, start = [], [], 0
    picked = ~labels.isnan() & (weights > 0)
    for chunk in chunks:
        matrix = view_matrix(chunk[0], "log_ratio", problems, device)
        if matrix is None:
            return None
        own = picked[start : start + len(matrix)].nonzero().flatten()
        start += len(matrix)
        ratios.append(matrix[own].double())
        blank = ratios[-1].new_zeros(0) if schema is None else schema.missing_codes(device)
        at = blank.expand(len(own), -1)
        if schema is not None and chunk[1] is not None and len(own):
            at = schema.encode(take_rows(chunk[1], own.cpu().numpy()), device, quiet=True)[0]
        codes.append(at)
    if start != n_rows:
        problems.add(f"y must have one entry a row ({start}), got {n_rows}")
        return None
    if not len(classes := labels[picked].long()):
        return None
    return KnownLabels(
        log_ratio=torch.cat(ratios),
        codes=torch.cat(codes),
        y=classes,
        weight=weights[picked],
        groups=None if names is None else names[picked],
    )
