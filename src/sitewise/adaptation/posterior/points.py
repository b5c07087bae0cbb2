"""Weighted points that represent the posterior of g; predictions are averaged over them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sitewise.confounders import Confounders
from sitewise.posterior import normalize
from sitewise.prevalence.additive import features
from sitewise.prevalence.base import FLOOR, Prevalence, is_constant

ENTRIES = 2**21  # rows times points times classes that are processed at a time


@dataclass(frozen=True)
class Strata:
    """S disjoint strata of z: a stratum is a half-open range of codes (low ≤ code < high) of each of V variables."""

    low: Tensor  # (S, V)
    high: Tensor  # (S, V)

    def holds(self, codes: Tensor) -> Tensor:
        """Return whether each row of codes is in each stratum, (n, S), as zeros and ones."""
        inside = (codes[:, None, :] >= self.low) & (codes[:, None, :] < self.high)
        return inside.all(dim=2).to(codes.dtype)


@dataclass(frozen=True)
class Points:
    """Weighted points log g_i(z) = log-softmax of a_i (S(z) - centre) + level_i + deviation_i(z) (equation 18f).

    S is the source's log g, centred over the classes, and `centre` is its mean over the site's rows. For a row with all
    z missing, g_i is its mean over the site. As a model of g, the points stand for their weighted mean.

    Shapes: M points, K classes, V variables of z, D additive features, R directions, S strata of z.
    """

    source: Prevalence
    centre: Tensor  # (K,)
    factor: Tensor  # (M,)
    level: Tensor  # (M, K), each row sums to zero
    deviation: Tensor | None  # (M, D, K) coefficients of the additive features; or, with `along`, (R, D, K) directions
    weight: Tensor  # (M,) sums to one
    log_marginal: Tensor  # (M, K) log P(Y) of every point over the site's rows
    schema: Confounders | None
    along: Tensor | None = None  # (M, R) the points' coordinates along the directions in `deviation`
    slope: Tensor | None = None  # (M,) factor on log f in predictions, if there are labels; None: one for all points
    strata: Strata | None = None  # parts of z with known prevalence
    step: Tensor | None = None  # (M, S, K) added to log g in each stratum
    shift: Tensor | None = (
        None  # (M, K) added to log g in predictions: the error of f's level (with labels or a known prevalence)
    )
    name: str = "posterior"

    def __len__(self) -> int:
        return len(self.weight)

    @property
    def depends_on_z(self) -> bool:
        """Whether g depends on z."""
        flat = self.deviation is None and self.step is None and is_constant(self.source)
        return self.schema is not None and not flat

    def logits(self, codes: Tensor) -> Tensor:
        """Return unnormalized log g of every point at rows of codes, (n, M, K).

        The result is not valid for rows with all z missing.
        """
        shape = shape_of(self.source, codes) - self.centre
        total = self.factor[:, None] * shape[:, None, :] + self.level
        if self.deviation is not None:
            assert self.schema is not None
            n_directions, n_features, n_classes = self.deviation.shape
            coefficients = self.deviation.permute(1, 0, 2).reshape(n_features, -1)
            added = (features(codes, self.schema) @ coefficients).reshape(codes.shape[0], n_directions, n_classes)
            total = total + (added if self.along is None else torch.einsum("nrk,mr->nmk", added, self.along))
        if self.strata is not None and self.step is not None:
            total = total + torch.einsum("ns,msk->nmk", self.strata.holds(codes), self.step)
        return total

    def log_odds(self, codes: Tensor) -> Tensor:
        """Return the log-odds of g of every point at rows of codes, (n, M), for two classes.

        As for `logits`, the result is not valid for rows with all z missing.
        """
        shape = shape_of(self.source, codes) - self.centre
        total = (shape[:, 1] - shape[:, 0])[:, None] * self.factor + (self.level[:, 1] - self.level[:, 0])
        if self.deviation is not None:
            assert self.schema is not None
            added = features(codes, self.schema) @ (self.deviation[:, :, 1] - self.deviation[:, :, 0]).T
            total = total + (added if self.along is None else added @ self.along.T)
        if self.strata is not None and self.step is not None:
            total = total + self.strata.holds(codes) @ (self.step[:, :, 1] - self.step[:, :, 0]).T
        return total

    def log_probs(self, codes: Tensor) -> Tensor:
        """Return log g of every point at rows of codes, (n, M, K), or (1, M, K) if g does not depend on z."""
        if not self.depends_on_z:
            return self.log_marginal[None]
        assert self.schema is not None
        all_missing = self.schema.missing(codes).all(dim=1)[:, None, None]
        log_g = torch.log_softmax(self.logits(codes), dim=2).clamp_min(FLOOR)
        return torch.where(all_missing, self.log_marginal, log_g)

    def log_prob(self, codes: Tensor) -> Tensor:
        """Return the log of the posterior mean of g at rows of codes, (n, K)."""
        if not self.depends_on_z:
            return self.mean_log_marginal.expand(codes.shape[0], -1)
        return self._in_chunks(
            codes, lambda chunk: torch.einsum("nmk,m->nk", self.log_probs(chunk).exp(), self.weight).log()
        )

    @property
    def mean_log_marginal(self) -> Tensor:
        """The log of the posterior mean of P(Y) over the site's rows, (K,)."""
        return torch.logsumexp(self.log_marginal + self.weight.log()[:, None], dim=0)

    def average(self, log_ratio: Tensor, codes: Tensor, slope: float = 1.0) -> Tensor:
        """Return P(y|x,z) averaged over the points, (n, K), for log f (n, K): equation 18g."""
        common = slope if self.slope is None else 1.0
        scaled = common * normalize(log_ratio)
        if common == 0.0:
            scaled = torch.zeros_like(log_ratio)
        if not self.depends_on_z:
            codes = codes[:, :0]
        if log_ratio.shape[1] == 2:
            return self._in_chunks(codes, self._average_of_two, scaled)
        return self._in_chunks(codes, self._average_of_many, scaled)

    def _average_of_two(self, codes: Tensor, scaled: Tensor) -> Tensor:
        odds = (self.log_marginal[:, 1] - self.log_marginal[:, 0])[None]
        if self.depends_on_z:
            assert self.schema is not None
            all_missing = self.schema.missing(codes).all(dim=1)[:, None]
            odds = torch.where(all_missing, odds, self.log_odds(codes).clamp(FLOOR, -FLOOR))
        if self.shift is not None:
            odds = odds + (self.shift[:, 1] - self.shift[:, 0])
        own = (scaled[:, 1] - scaled[:, 0])[:, None]
        odds = (own if self.slope is None else own * self.slope) + odds
        return torch.stack([torch.sigmoid(-odds) @ self.weight, torch.sigmoid(odds) @ self.weight], dim=1)

    def _average_of_many(self, codes: Tensor, scaled: Tensor) -> Tensor:
        own, log_g = scaled[:, None, :], self.log_probs(codes)
        if self.shift is not None:
            log_g = log_g + self.shift
        joint = (own if self.slope is None else own * self.slope[:, None]) + log_g
        return torch.einsum("nmk,m->nk", torch.softmax(joint, dim=2), self.weight)

    def _in_chunks(self, codes: Tensor, function: Callable[..., Tensor], *others: Tensor) -> Tensor:
        if torch.jit.is_tracing():  # type: ignore[attr-defined]
            return function(codes, *others)
        results = [function(*chunk) for chunk in _chunks(len(self) * len(self.centre), codes, *others)]
        return results[0] if len(results) == 1 else torch.cat(results)


@dataclass(frozen=True)
class Posterior:
    """The posterior of a site's g: weighted points that represent it, and R draws of P(Y) for intervals."""

    points: Points
    marginals: Tensor = field(repr=False)  # (R, K) draws of the population's P(Y)
    slope: float  # factor on log f in predictions
    power: float  # exponent of the unlabeled rows' likelihood
    n_labels: float = 0.0  # weight of the labeled rows
    against: "Contradiction | None" = None  # comparison of the rows with a known prevalence, if one was given

    def interval(self, level: float) -> tuple[Tensor, Tensor]:
        """Return an interval for P(Y) from quantiles: lower and upper bounds, (K,) each."""
        return _bounds(self.marginals, self.marginals.new_full((len(self.marginals),), 1.0), level)

    def interval_at(self, codes: Tensor, level: float) -> tuple[Tensor, Tensor]:
        """Return an interval for P(Y|z) at rows of codes from quantiles: lower and upper bounds, (n, K) each."""
        values = self.points.log_probs(codes).exp().expand(len(codes), -1, -1)
        return _bounds(values.transpose(0, 1), self.points.weight, level)


@dataclass(frozen=True)
class Contradiction:
    """The comparison of a known prevalence with the posterior that does not use it.

    The p-value is two-sided, for the class with the largest difference, and corrected for the number of classes. With
    strata, it is that of the stratum with the largest difference, times the number of strata.
    """

    without: Tensor  # (3, K) mean and 95% interval of P(Y) in the posterior that does not use it
    share: Tensor  # (K,) the known P(Y)
    name: str  # of the site, or of the stratum with the largest difference
    p_value: float


def _bounds(values: Tensor, weight: Tensor, level: float) -> tuple[Tensor, Tensor]:
    """Return the bounds of an interval: weighted quantiles over the first axis of values (M, ...), interpolated."""
    ordered, order = torch.sort(values, dim=0)
    share = (weight / weight.sum())[order]
    middle = torch.cumsum(share, dim=0) - share / 2.0

    def quantile(at: float) -> Tensor:
        after = (middle < at).sum(0, keepdim=True).clamp(1, len(ordered) - 1)
        low, high = ordered.gather(0, after - 1)[0], ordered.gather(0, after)[0]
        first, last = middle.gather(0, after - 1)[0], middle.gather(0, after)[0]
        return low + (high - low) * ((at - first) / (last - first).clamp_min(1e-300)).clamp(0.0, 1.0)

    tail = (1.0 - level) / 2.0
    return quantile(tail), quantile(1.0 - tail)


def _chunks(entries_a_row: int, *columns: Tensor) -> Iterator[tuple[Tensor, ...]]:
    size = max(1, ENTRIES // entries_a_row)
    if len(columns[0]) <= size:
        yield columns
        return
    for start in range(0, max(len(columns[0]), 1), size):
        yield tuple(column[start : start + size] for column in columns)


def shape_of(source: Prevalence, codes: Tensor) -> Tensor:
    """Return the source's log g at rows of codes, centred over the classes, (n, K)."""
    log_g = source.log_prob(codes)
    return log_g - log_g.mean(dim=1, keepdim=True)
