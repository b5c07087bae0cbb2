"""The bootstrap: draw the site's rows (or groups of rows) with replacement many times, and estimate g from each draw.

A constant g is estimated from many draws in one batch. Other models are fitted to one draw at a time, and the fit
starts from the estimate.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import cycle
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sitewise.adaptation.cell_problem import ManyConstants, inside, solve_cells
from sitewise.adaptation.evidence import Evidence
from sitewise.adaptation.fit import Fit
from sitewise.adaptation.rows import Rows, Stream, to_ratio
from sitewise.arrays import Container, index_of, keep_freed_memory
from sitewise.calibration import Calibration
from sitewise.prevalence.base import ConstantPrevalence, Prevalence, finite, is_constant

BATCH = 2**20  # rows times draws that are processed at a time
DRAW_TOLERANCE = 1e-7  # of the KKT gap; the differences between draws are far larger

NOT_IN_MEMORY = (
    "bootstrap needs all rows in memory, and these are streamed: use interval(method='curvature'), which needs sums "
    "only, or give the rows as arrays if this family of g has no curvature"
)
NO_REFIT = "a {model} g is not bootstrapped: use model='auto' or 'additive'"
Encode = Callable[[Any], Tensor]


@dataclass(frozen=True)
class DrawnPrevalence:
    """The g estimated from one bootstrap resample of a site's rows.

    Parameters
    ----------
    prevalence : Prevalence
        The estimated g. Its method `log_prob` returns log g for codes of z.

    Examples
    --------
    >>> draw = next(iter(estimate.bootstrap(100)))
    >>> draw.marginal, draw.log_prevalence(Z)
    """

    prevalence: Prevalence
    _mean: Tensor = field(repr=False)
    _encode: Encode = field(repr=False)
    _container: Container = field(repr=False)

    @property
    def marginal(self) -> Any:
        """The estimate of P(Y) from this resample, (K,)."""
        return self._container.classes(self._mean)

    def log_prevalence(self, Z: Any) -> Any:
        """Return the estimate of log P(Y|Z).

        Parameters
        ----------
        Z : DataFrame or array of shape (n, V)
            Confounders, NaN where missing.

        Returns
        -------
        array of shape (n, K)
            log P(Y|Z) of each row of Z.
        """
        return self._container.rows(self.prevalence.log_prob(self._encode(Z)), index_of(Z))


@dataclass(frozen=True)
class Resamples:
    """The g estimated from each bootstrap resample of a site's rows; the result of `PrevalenceEstimate.bootstrap`.

    Parameters
    ----------
    draws : tuple of DrawnPrevalence
        The g of every resample.

    Examples
    --------
    >>> resamples = estimate.bootstrap(500, random_state=0)
    >>> resamples.interval()                                             # of P(Y)
    >>> resamples.interval(lambda g: g.marginal[1] / g.marginal[0])      # of a function of g
    """

    draws: tuple[DrawnPrevalence, ...] = field(repr=False)

    def __len__(self) -> int:
        return len(self.draws)

    def __iter__(self) -> Any:
        return iter(self.draws)

    @property
    def marginal(self) -> Any:
        """P(Y) of each of the B resamples, (B, K)."""
        return np.stack([np.asarray(draw._mean.cpu()) for draw in self.draws])

    def interval(
        self, function: Callable[[DrawnPrevalence], Any] | None = None, level: float = 0.95
    ) -> tuple[Any, Any]:
        """Compute an interval of a function of g, between two percentiles of its values in the resamples.

        Parameters
        ----------
        function : callable, optional
            Maps the `DrawnPrevalence` of a resample to a number or an array. By default it returns the P(Y) of the
            resample.
        level : float
            Confidence level of the interval.

        Returns
        -------
        low : number or array
            The lower bounds.
        high : number or array
            The upper bounds.
        """
        if not 0 < level < 1:
            raise ValueError(f"interval: level must lie between 0 and 1, got {level}")
        if function is None:
            low, high = self._percentiles(lambda draw: draw._mean.cpu(), level)
            classes = self.draws[0]._container.classes
            return classes(torch.tensor(low)), classes(torch.tensor(high))
        return self._percentiles(function, level)

    def _percentiles(self, function: Callable[[DrawnPrevalence], Any], level: float) -> tuple[Any, Any]:
        values = np.stack([np.asarray(function(draw), dtype=np.float64) for draw in self.draws])
        low, high = np.quantile(values, [0.5 - level / 2, 0.5 + level / 2], axis=0)
        return low, high


@dataclass(frozen=True)
class Draws:
    """Draws of rows, or of whole groups, with replacement.

    A draw is a weight for every row of `evidence.everything`; rows without z are last.
    """

    evidence: Evidence
    generator: torch.Generator

    def weights(self, n_draws: int) -> Tensor:
        """Return the weights of B draws, (B, n)."""
        chunks = list(self.evidence.everything)
        groups = [rows.groups for rows in chunks if rows.groups is not None]
        n_rows = sum(map(len, chunks))  # without rows of weight zero
        names, unit = (torch.unique(torch.cat(groups), return_inverse=True)) if groups else (None, None)
        n_units = n_rows if names is None else len(names)
        drawn = torch.randint(n_units, (n_draws, n_units), generator=self.generator)
        drawn += torch.arange(n_draws)[:, None] * n_units
        counts = torch.bincount(drawn.flatten(), minlength=n_draws * n_units).reshape(n_draws, n_units)
        counts = counts.to(self.evidence.device)
        counts = counts if unit is None else counts[:, unit]
        own = [rows.weight for rows in chunks if rows.weight is not None]
        return counts.double() * torch.cat(own) if own else counts.double()

    def with_some_z(self) -> Tensor:
        """Return the weights of one draw, (1, n); if it has no row with z, a random row with z is added."""
        weights, n_seen = self.weights(1), sum(map(len, self.evidence.rows))
        if n_seen and not weights[:, :n_seen].any():
            row = int(torch.randint(n_seen, (1,), generator=self.generator))
            own = [rows.weight for rows in self.evidence.rows if rows.weight is not None]
            weights[0, row] = torch.cat(own)[row] if own else 1.0
        return weights


def drawn_constants(evidence: Evidence, fit: Fit, draws: Draws, n_draws: int, pseudo: Tensor) -> Tensor:
    """Estimate the constant g of every draw, (B, K), in batches."""
    ratio = torch.cat([rows.ratio for rows in evidence.everything]).double()
    size = max(2, BATCH // evidence.n_rows)
    start = inside(fit.prevalence.log_prob(ratio.new_zeros(1, 0))[0].exp())
    keep_freed_memory()
    shares = []
    for first in range(0, n_draws, size):
        weights = draws.weights(min(size, n_draws - first))
        problem = ManyConstants(pseudo.expand(len(weights), -1), ratio, weights)
        shares.append(solve_cells(problem, start.expand(len(weights), -1), "auto", DRAW_TOLERANCE).point)
    return torch.cat(shares)


def reweighted(evidence: Evidence, weights: Tensor) -> Evidence:
    """Return the same rows with the given weights, (n,); the weights of rows without z are last."""
    parts = iter(weights.split([len(rows) for rows in (*evidence.rows, *evidence.blank)]))
    return _rebuilt(evidence, lambda rows: replace(rows, weight=next(parts)))


def recalibrated(evidence: Evidence, before: Calibration, after: Calibration) -> Evidence:
    """Return the same rows with the calibration `after` of f in place of `before`."""
    return rescored(evidence, lambda log_ratio, codes: after.apply(before.undo(log_ratio)))


def rescored(evidence: Evidence, change: Callable[[Tensor, Tensor], Tensor]) -> Evidence:
    """Return the same rows with a changed log f.

    `change` maps log f (n, K) and codes (n, V) to the new log f (n, K). Rows without z have codes (n, 0).
    """

    def apply(rows: Rows) -> Rows:
        return replace(rows, ratio=to_ratio(change(log_ratio_of(rows), rows.at_rows(rows.codes))))

    return _rebuilt(evidence, apply)


def log_ratio_of(rows: Rows) -> Tensor:
    """Invert `to_ratio`: return log f up to a constant in each row, (n, K)."""
    ratio = rows.ratio.double()
    return ratio.log() if ratio.shape[1] > 1 else torch.cat([torch.zeros_like(ratio), 2 * ratio.atanh()], dim=1)


def _rebuilt(evidence: Evidence, change: Callable[[Rows], Rows]) -> Evidence:
    rows, blank = [change(chunk) for chunk in evidence.rows], [change(chunk) for chunk in evidence.blank]
    everything = [chunk.without_codes() for chunk in (*rows, *blank)]
    return replace(
        evidence,
        rows=Stream(rows),
        blank=Stream(blank),
        everything=Stream(everything),
        seen_weight=sum(float(chunk.cell_weight.sum()) for chunk in rows),
        blank_weight=sum(float(chunk.cell_weight.sum()) for chunk in blank),
    )


def bootstrap_fit(
    evidence: Evidence, fit: Fit, n_resamples: int, generator: torch.Generator, calibration: Calibration | None
) -> Iterator[tuple[Prevalence, Tensor]]:
    """Estimate g from draws of the rows, and yield each estimated g with its mean over the drawn rows (K,).

    Model and strength are those of the fit. If a calibration is given, each draw
    uses another one of its resamples, and the first one again after the last.
    """
    if not evidence.in_memory:
        raise ValueError(NOT_IN_MEMORY)
    if fit.refit is None:
        raise ValueError(NO_REFIT.format(model=fit.prevalence.name))
    draws = Draws(evidence, generator)
    others = cycle(() if calibration is None else calibration.resamples())
    if fit.aim is not None and calibration is None:
        for point in drawn_constants(evidence, fit, draws, n_resamples, fit.strength * fit.aim):
            yield ConstantPrevalence(finite(point.log())), point
        return
    for _ in range(n_resamples):
        again = evidence if calibration is None else recalibrated(evidence, calibration, next(others))
        again = reweighted(again, draws.with_some_z()[0])
        model = fit.refit(again)
        yield model, _mean(model, again)


def _mean(model: Prevalence, evidence: Evidence) -> Tensor:
    if is_constant(model) or not evidence.seen_weight:
        return model.log_prob(torch.zeros(1, 0, dtype=torch.float64, device=evidence.device))[0].exp()
    return evidence.mean(lambda codes: model.log_prob(codes).exp())
