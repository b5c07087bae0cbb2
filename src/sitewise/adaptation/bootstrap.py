"""The weighted bootstrap: the site's rows (or groups of them) drawn again many times, and g estimated from each draw.

A constant g is estimated from many draws in one batch; other models one draw after the other, each from the estimate.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import cycle

import torch
from torch import Tensor

from sitewise.adaptation.cell_problem import CellProblem, inside, solve_cells
from sitewise.adaptation.evidence import Evidence
from sitewise.adaptation.fit import Fit
from sitewise.adaptation.rows import Moments, Rows, Stream, to_ratio
from sitewise.arrays import keep_freed_memory
from sitewise.calibration import Calibration
from sitewise.prevalence import ConstantPrevalence, Prevalence
from sitewise.prevalence.base import finite

BATCH = 2**20  # rows times draws that are worked on at once
DRAW_TOLERANCE = 1e-7  # draws differ by far more than this

NOT_IN_MEMORY = (
    "bootstrap needs all rows in memory, and these are streamed: use interval(), whose curvature needs sums only"
)
NO_REFIT = "a {model} g is not bootstrapped: use model='auto' or 'additive'"


@dataclass(frozen=True)
class Draws:
    """Weights of all rows, blank ones last, in any number of draws with replacement, of rows or of whole groups."""

    evidence: Evidence
    generator: torch.Generator

    def weights(self, n_draws: int) -> Tensor:
        """Draw, (B, n)."""
        stretches = list(self.evidence.everything)
        groups = [part.groups for part in stretches if part.groups is not None]
        n_rows = sum(map(len, stretches))  # those of weight zero are gone
        names, unit = (torch.unique(torch.cat(groups), return_inverse=True)) if groups else (None, None)
        n_units = n_rows if names is None else len(names)
        drawn = torch.randint(n_units, (n_draws, n_units), generator=self.generator)
        drawn += torch.arange(n_draws)[:, None] * n_units
        counts = torch.bincount(drawn.flatten(), minlength=n_draws * n_units).reshape(n_draws, n_units)
        counts = counts.to(self.evidence.device)
        counts = counts if unit is None else counts[:, unit]
        own = [part.weight for part in stretches if part.weight is not None]
        return counts.double() * torch.cat(own) if own else counts.double()

    def with_some_z(self) -> Tensor:
        """One draw, (1, n); where rows with z are so few that none is in it, one of them is put in."""
        weights, n_seen = self.weights(1), sum(map(len, self.evidence.rows))
        if n_seen and not weights[:, :n_seen].any():
            row = int(torch.randint(n_seen, (1,), generator=self.generator))
            own = [part.weight for part in self.evidence.rows if part.weight is not None]
            weights[0, row] = torch.cat(own)[row] if own else 1.0
        return weights


@dataclass(frozen=True)
class DrawnCells(CellProblem):
    """The constant g of many draws of the same rows: each draw is a cell."""

    ratio: Tensor = field(default_factory=lambda: torch.empty(0))  # (n, J)
    weights: Tensor = field(default_factory=lambda: torch.empty(0))  # (B, n)

    @property
    def cell_weight(self) -> Tensor:
        """The weight of the rows in each draw, (B,)."""
        return self.weights.sum(1)

    def moments(self, prevalence: Tensor, order: int) -> Moments:
        """Sums over the rows of each draw (equation 7c): products of weights (B, n) and scores."""
        last = self._last.get("moments")
        if last is not None and torch.equal(last.prevalence, prevalence):
            return last
        n_columns = self.ratio.shape[1]
        if n_columns == 1:
            lean = (prevalence[:, 1] - prevalence[:, 0])[:, None]
            mixed = (lean * self.ratio[:, 0]).add_(1.0).mul_(0.5)
        else:
            mixed = prevalence @ self.ratio.T
        log_likelihood = torch.linalg.vecdot(self.weights, mixed.log())
        relative = self.weights / mixed
        first = relative @ self.ratio
        relative.div_(mixed)
        columns = [(relative * self.ratio[:, j]) @ self.ratio for j in range(n_columns)]
        found = Moments(prevalence, self.cell_weight, log_likelihood, first, torch.stack(columns, dim=1))
        self._last["moments"] = found
        return found


def drawn_constants(evidence: Evidence, fit: Fit, draws: Draws, n_draws: int, pseudo: Tensor) -> Tensor:
    """The constant g of every draw, (B, K), in batches."""
    assert isinstance(fit.prevalence, ConstantPrevalence)
    ratio = torch.cat([part.ratio for part in evidence.everything]).double()
    size = max(2, BATCH // evidence.n_rows)
    start = inside(fit.prevalence.log_marginal.exp())
    keep_freed_memory()
    found = []
    for first in range(0, n_draws, size):
        weights = draws.weights(min(size, n_draws - first))
        rows: Stream[tuple[Rows, Tensor]] = Stream(())
        problem = DrawnCells(evidence, rows, pseudo.expand(len(weights), -1), ratio=ratio, weights=weights)
        found.append(solve_cells(problem, start.expand(len(weights), -1), "auto", DRAW_TOLERANCE).point)
    return torch.cat(found)


def reweighted(evidence: Evidence, weights: Tensor) -> Evidence:
    """The same rows with other weights, (n,), blank ones last."""
    parts = iter(weights.split([len(rows) for rows in (*evidence.rows, *evidence.blank)]))
    return _rebuilt(evidence, lambda rows: replace(rows, weight=next(parts)))


def recalibrated(evidence: Evidence, before: Calibration, after: Calibration) -> Evidence:
    """The same rows as another calibration of f would have them."""

    return rescored(evidence, lambda log_ratio, codes: after.apply(before.undo(log_ratio)))


def rescored(evidence: Evidence, change: Callable[[Tensor, Tensor], Tensor]) -> Evidence:
    """The same rows with another log f (n, K), made from the one they have and their codes (n, V or, blank, 0)."""

    def apply(rows: Rows) -> Rows:
        return replace(rows, ratio=to_ratio(change(log_ratio_of(rows), rows.at_rows(rows.codes))))

    return _rebuilt(evidence, apply)


def log_ratio_of(rows: Rows) -> Tensor:
    """log f as it was before `to_ratio`, up to a constant in each row, (n, K)."""
    ratio = rows.ratio.double()
    return ratio.log() if ratio.shape[1] > 1 else torch.cat([torch.zeros_like(ratio), 2 * ratio.atanh()], dim=1)


def _rebuilt(evidence: Evidence, change: Callable[[Rows], Rows]) -> Evidence:
    rows, blank = [change(part) for part in evidence.rows], [change(part) for part in evidence.blank]
    everything = [part.without_codes() for part in (*rows, *blank)]
    return replace(
        evidence,
        rows=Stream(rows),
        blank=Stream(blank),
        everything=Stream(everything),
        seen_weight=sum(float(part.cell_weight.sum()) for part in rows),
        blank_weight=sum(float(part.cell_weight.sum()) for part in blank),
    )


def bootstrap_fit(
    evidence: Evidence, fit: Fit, n_resamples: int, generator: torch.Generator, calibration: Calibration | None
) -> Iterator[tuple[Prevalence, Tensor]]:
    """Estimate g from draws of the rows: the model of each, and the mean over its rows (K,).

    Model and strength are those of the fit. With a calibration that carries resamples, each draw has another of them.
    """
    if not evidence.in_memory:
        raise ValueError(NOT_IN_MEMORY)
    if fit.refit is None:
        raise ValueError(NO_REFIT.format(model=fit.prevalence.name))
    draws = Draws(evidence, generator)
    others = cycle(() if calibration is None else calibration.resamples())
    if isinstance(fit.prevalence, ConstantPrevalence) and calibration is None:
        assert fit.aim is not None
        for point in drawn_constants(evidence, fit, draws, n_resamples, fit.strength * fit.aim):
            yield ConstantPrevalence(finite(point.log())), point
        return
    for _ in range(n_resamples):
        again = evidence if calibration is None else recalibrated(evidence, calibration, next(others))
        again = reweighted(again, draws.with_some_z()[0])
        model = fit.refit(again)
        yield model, _mean(model, again)


def _mean(model: Prevalence, evidence: Evidence) -> Tensor:
    if isinstance(model, ConstantPrevalence) or not evidence.seen_weight:
        return model.log_prob(torch.zeros(1, 0, dtype=torch.float64, device=evidence.device))[0].exp()
    return evidence.mean(lambda codes: model.log_prob(codes).exp())
