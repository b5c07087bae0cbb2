"""What a site's rows say of many candidate g at once, in one pass over them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sitewise.adaptation.evidence import Evidence
from sitewise.adaptation.posterior.points import ENTRIES, Points
from sitewise.adaptation.rows import Rows, Stream

TINIEST = 1e-300

Choose = Callable[[Rows], Tensor]  # which of a stretch's rows


@dataclass(frozen=True)
class Sums:
    """Of every point: the rows' log-likelihood (M,), the mean of g, and the mean of predictions, (M, K)."""

    log_likelihood: Tensor
    mean: Tensor  # over rows with z
    predicted: Tensor  # over all rows; zero where no slope was given


def evaluate_points(evidence: Evidence, points: Points, slope: float | None = None) -> Sums:
    """Go through the rows once (equation 7); predictions are averaged where a `slope` on log f is given."""
    stream = evidence.rows if points.depends_on_z else evidence.everything
    seen = evidence.total(_sums(rows, points, slope) for rows in stream)
    mean = seen[1] / seen[1].sum(1, keepdim=True)
    if points.depends_on_z and evidence.blank_weight:
        blank = evidence.total(_sums(rows, points, slope, mean) for rows in evidence.blank)
        seen = tuple(one + other for one, other in zip(seen, blank, strict=True))
    return Sums(seen[0], mean, seen[2] / evidence.total_weight)


def _sums(rows: Rows, points: Points, slope: float | None, mean: Tensor | None = None) -> tuple[Tensor, ...]:
    """The log-likelihood and the sums of g and of predictions over a stretch; `mean` is the g of blank rows."""
    log_likelihood, of_g, of_y = points.weight.new_zeros(len(points)), 0.0 * points.level, 0.0 * points.level
    for part in _chunks(rows, points.level.numel()):
        g = _prevalence(points, part.codes) if mean is None else mean[None]
        weight = part.ratio.new_ones(len(part)) if part.weight is None else part.weight
        log_likelihood = log_likelihood + weight @ _mixture(part, g).clamp_min(TINIEST).log()
        of_g = of_g + torch.einsum("u,umk->mk", part.cell_weight, g.expand(len(part.codes), -1, -1))
        if slope is not None:
            of_y = of_y + _predicted(part, g, slope, weight)
    return log_likelihood, of_g, of_y


def subset(evidence: Evidence, at_most: int) -> Evidence:
    """Some of the rows, evenly spread, each with its own weight."""
    step = -(-evidence.n_rows // at_most)
    return evidence if step == 1 else _picked(evidence, lambda rows: _every(rows, step))


def split_labeled(evidence: Evidence) -> tuple[Evidence | None, Evidence | None]:
    """The rows without a known label, and those with one; None where there are none."""
    if all(rows.known is None for rows in evidence.everything):
        return evidence, None
    parts = []
    for wanted in (False, True):

        def chosen(rows: Rows, wanted: bool = wanted) -> Tensor:
            known = rows.ratio.new_zeros(len(rows), dtype=torch.bool) if rows.known is None else rows.known
            return (known == wanted).nonzero().flatten()

        part = _picked(evidence, chosen)
        parts.append(part if part.total_weight else None)
    return parts[0], parts[1]


def _every(rows: Rows, step: int) -> Tensor:
    return torch.arange(0, len(rows), step, device=rows.ratio.device)


def _picked(evidence: Evidence, choose: Choose) -> Evidence:
    rows, blank, everything = (
        Stream([_take(part, choose(part)) for part in stream])
        for stream in (evidence.rows, evidence.blank, evidence.everything)
    )
    sums = [sum(float(part.cell_weight.sum()) for part in stream) for stream in (rows, blank)]
    sums.append(float(sum(len(part) for part in everything)))
    seen_weight, blank_weight, n_rows = evidence.reduce(everything.kept[0].codes.new_tensor(sums)).tolist()
    return replace(
        evidence,
        rows=rows,
        blank=blank,
        everything=everything,
        n_rows=int(n_rows),
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
    weight, known = (None if part is None else part[chosen] for part in (rows.weight, rows.known))
    return Rows(rows.ratio[chosen], weight, codes, cell, None, known)


def _chunks(rows: Rows, entries_a_row: int) -> Iterator[Rows]:
    """Rows in stretches so short that all points fit beside them."""
    size = max(1, ENTRIES // entries_a_row)
    for start in range(0, len(rows), size):
        part = _take(rows, torch.arange(start, min(start + size, len(rows)), device=rows.ratio.device))
        yield replace(part, ratio=part.ratio.double())


def _prevalence(points: Points, codes: Tensor) -> Tensor:
    """g of every point, (U, M, K)."""
    if not points.depends_on_z:
        return points.log_marginal.exp()[None]
    logits = points.logits(codes)
    if logits.shape[2] == 2:
        second = torch.sigmoid(logits[:, :, 1] - logits[:, :, 0])
        return torch.stack([1.0 - second, second], dim=2)
    return torch.softmax(logits, dim=2)


def _mixture(rows: Rows, g: Tensor) -> Tensor:
    """m = Σ_y f_y g_y of every row and point, (n, M), for g (U, M, K)."""
    if rows.ratio.shape[1] == 1:
        lean = g[:, :, 1] - g[:, :, 0]
        return 0.5 + 0.5 * rows.ratio * (lean if len(lean) == 1 else rows.at_rows(lean))
    if len(g) == 1:
        return rows.ratio @ g[0].T
    return torch.einsum("nk,nmk->nm", rows.ratio, rows.at_rows(g))


def _predicted(rows: Rows, g: Tensor, slope: float, weight: Tensor) -> Tensor:
    """The weighted sum over rows of every point's predictions, (M, K)."""
    at_rows = (g if len(g) == 1 else rows.at_rows(g)).clamp_min(TINIEST)
    if rows.ratio.shape[1] == 1:
        odds = slope * (torch.log1p(rows.ratio) - torch.log1p(-rows.ratio)).clamp(-700, 700)
        second = weight @ torch.sigmoid(odds + (at_rows[:, :, 1] / at_rows[:, :, 0]).log())
        return torch.stack([weight.sum() - second, second], dim=1)
    joint = slope * rows.ratio.clamp_min(TINIEST).log()[:, None, :] + at_rows.log()
    return torch.einsum("n,nmk->mk", weight, torch.softmax(joint, dim=2))
