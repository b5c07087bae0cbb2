"""The likelihood of many candidate g, computed in one pass over a site's rows."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sitewise.adaptation.evidence import Evidence
from sitewise.adaptation.posterior.points import ENTRIES, Points
from sitewise.adaptation.rows import Rows, Stream

TINIEST = 1e-300

Choose = Callable[[Rows], Tensor]  # selects rows of a chunk


@dataclass(frozen=True)
class Sums:
    """The rows' log-likelihood at each of M points, and, if requested, the means of g and of predictions."""

    log_likelihood: Tensor  # (M,)
    mean: Tensor  # (M, K) mean of g over rows with z
    predicted: Tensor  # (M, K) mean of predictions over all rows


def evaluate_points(evidence: Evidence, points: Points, *, means: bool = True, slope: float | None = None) -> Sums:
    """Evaluate points in one pass over the rows (equation 7).

    With `means`, the mean of g is computed. With a `slope` of log f, the mean of predictions is computed.
    """
    blank = points.depends_on_z and evidence.blank_weight > 0
    stream = evidence.rows if points.depends_on_z else evidence.everything
    wanted = means or blank
    seen = stream.total(lambda rows: _sums(rows, points, wanted, slope))
    mean = seen[1] / seen[1].sum(1, keepdim=True) if wanted else seen[1]
    if blank:
        more = evidence.blank.total(lambda rows: _sums(rows, points, wanted, slope, mean))
        seen = tuple(one + other for one, other in zip(seen, more, strict=True))
    return Sums(seen[0], mean, seen[2] / evidence.total_weight)


def _sums(
    rows: Rows, points: Points, means: bool, slope: float | None, mean: Tensor | None = None
) -> tuple[Tensor, ...]:
    """Return the log-likelihood and the sums of g and of predictions over a chunk.

    For a chunk of blank rows, `mean` (M, K) is their g.
    """
    summed = _sums_of_two if points.level.shape[1] == 2 else _sums_of_many
    total: tuple[Tensor, ...] = (points.weight.new_zeros(len(points)), 0.0 * points.level, 0.0 * points.level)
    for part in _chunks(rows, points.level.numel()):
        weight = part.ratio.new_ones(len(part)) if part.weight is None else part.weight
        sums = summed(part, weight, points, means, slope, mean)
        total = tuple(one + other for one, other in zip(total, sums, strict=True))
    return total


def _sums_of_two(
    rows: Rows, weight: Tensor, points: Points, means: bool, slope: float | None, mean: Tensor | None
) -> tuple[Tensor, ...]:
    """Compute the sums for two classes from the log-odds of g, with m = (1 + (f_1 - f_0)(g_1 - g_0)) / 2 (7d)."""
    if mean is not None:
        odds = (mean[:, 1] / mean[:, 0].clamp_min(TINIEST)).clamp_min(TINIEST).log()[None]
    elif points.depends_on_z:
        odds = points.log_odds(rows.codes)
    else:
        odds = (points.log_marginal[:, 1] - points.log_marginal[:, 0])[None]
    lean = torch.sigmoid(odds).mul_(2.0).sub_(1.0)  # g_1 - g_0; several times faster than tanh
    at_rows = lean if len(lean) == 1 else rows.at_rows(lean)
    log_likelihood = weight @ (0.5 * rows.ratio * at_rows).add_(0.5).clamp_min_(TINIEST).log_()
    of_g = of_y = 0.0 * points.level
    if means:
        second = 0.5 * (rows.cell_weight.sum() + rows.cell_weight @ lean.expand(len(rows.codes), -1))
        of_g = torch.stack([rows.cell_weight.sum() - second, second], dim=1)
    if slope is not None:
        own = (torch.log1p(rows.ratio) - torch.log1p(-rows.ratio)).clamp(-700.0, 700.0)
        own = (slope if points.slope is None else points.slope) * own
        shifted = odds if points.shift is None else odds + (points.shift[:, 1] - points.shift[:, 0])
        second = weight @ torch.sigmoid(own + (shifted if len(shifted) == 1 else rows.at_rows(shifted)))
        of_y = torch.stack([weight.sum() - second, second], dim=1)
    return log_likelihood, of_g, of_y


def _sums_of_many(
    rows: Rows, weight: Tensor, points: Points, means: bool, slope: float | None, mean: Tensor | None
) -> tuple[Tensor, ...]:
    """Compute the sums for more than two classes from g (U, M, K)."""
    if mean is not None:
        g = mean[None]
    elif points.depends_on_z:
        g = torch.softmax(points.logits(rows.codes), dim=2)
    else:
        g = points.log_marginal.exp()[None]
    mixed = rows.ratio @ g[0].T if len(g) == 1 else torch.einsum("nk,nmk->nm", rows.ratio, rows.at_rows(g))
    log_likelihood = weight @ mixed.clamp_min(TINIEST).log()
    of_g = of_y = 0.0 * points.level
    if means:
        of_g = torch.einsum("u,umk->mk", rows.cell_weight, g.expand(len(rows.codes), -1, -1))
    if slope is not None:
        slopes = points.weight.new_tensor([slope]) if points.slope is None else points.slope
        shifted = g if points.shift is None else g * points.shift.exp()
        sharp = rows.ratio.clamp_min(TINIEST)[:, None, :] ** slopes[:, None]  # (n, 1 or M, K)
        of_y = _mean_predictions(weight, sharp, shifted if len(shifted) == 1 else rows.at_rows(shifted))
    return log_likelihood, of_g, of_y


def _mean_predictions(weight: Tensor, ratio: Tensor, g: Tensor) -> Tensor:
    """Return the weighted sum over rows of f g / Σ_y f g, (M, K), for f (n, 1 or M, K) and g (1 or n, M, K)."""
    if len(g) > 1 or ratio.shape[1] > 1:
        joint = ratio * g
        return torch.einsum("n,nmk->mk", weight, joint / joint.sum(2, keepdim=True).clamp_min(TINIEST))
    mixed = (ratio[:, 0] @ g[0].T).clamp_min(TINIEST)
    return g[0] * ((weight[:, None] / mixed).T @ ratio[:, 0])


def subset(evidence: Evidence, at_most: int) -> Evidence:
    """Return evenly spaced rows with their weights, about `at_most` of them."""
    step = -(-evidence.n_rows // at_most)
    return evidence if step == 1 and evidence.in_memory else _picked(evidence, lambda rows: _every(rows, step))


def _every(rows: Rows, step: int) -> Tensor:
    return torch.arange(0, len(rows), step, device=rows.ratio.device)


def _picked(evidence: Evidence, choose: Choose) -> Evidence:
    rows, blank, everything = (
        Stream(stream.collect(lambda part: _take(part, choose(part))))
        for stream in (evidence.rows, evidence.blank, evidence.everything)
    )
    seen_weight, blank_weight = (sum(float(part.cell_weight.sum()) for part in stream) for stream in (rows, blank))
    return replace(
        evidence,
        rows=rows,
        blank=blank,
        everything=everything,
        n_rows=sum(len(part) for part in everything),
        seen_weight=seen_weight,
        blank_weight=blank_weight,
    )


def _take(rows: Rows, chosen: Tensor) -> Rows:
    codes, cell = rows.codes, rows.cell
    if cell is not None:
        kept, cell = torch.unique(cell[chosen], return_inverse=True)
        codes = codes[kept]
    elif len(codes) == len(rows) and codes.shape[1]:
        codes = codes[chosen]
    return Rows(rows.ratio[chosen], None if rows.weight is None else rows.weight[chosen], codes, cell, None)


def _chunks(rows: Rows, entries_a_row: int) -> Iterator[Rows]:
    """Yield parts of a chunk that are small enough to be combined with all points; f is in double precision."""
    size = max(1, ENTRIES // entries_a_row)
    for start in range(0, len(rows), size):
        part = _take(rows, torch.arange(start, min(start + size, len(rows)), device=rows.ratio.device))
        yield replace(part, ratio=part.ratio.double())
