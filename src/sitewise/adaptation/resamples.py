"""What the bootstrap found: g of every draw, and intervals for anything that can be made of it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sitewise.arrays import Container, index_of
from sitewise.prevalence import Prevalence

Encode = Callable[[Any], Tensor]


@dataclass(frozen=True)
class DrawnPrevalence:
    """g as one draw of the rows has it."""

    prevalence: Prevalence
    _mean: Tensor = field(repr=False)
    _encode: Encode = field(repr=False)
    _container: Container = field(repr=False)

    @property
    def marginal(self) -> Any:
        """P(Y), (K,)."""
        return self._container.classes(self._mean)

    def log_prevalence(self, Z: Any) -> Any:
        """log P(Y|Z), (n, K)."""
        return self._container.rows(self.prevalence.log_prob(self._encode(Z)), index_of(Z))


@dataclass(frozen=True)
class Resamples:
    """The draws of a bootstrap.

    Examples
    --------
    >>> resamples = estimate.bootstrap(500, random_state=0)
    >>> resamples.interval()                        # of P(Y)
    >>> resamples.interval(lambda g: g.marginal[1] / g.marginal[0])      # of anything else that g decides
    """

    draws: tuple[DrawnPrevalence, ...] = field(repr=False)

    def __len__(self) -> int:
        return len(self.draws)

    def __iter__(self) -> Any:
        return iter(self.draws)

    @property
    def marginal(self) -> Any:
        """P(Y) of every draw, (B, K)."""
        return np.stack([np.asarray(draw._mean.cpu()) for draw in self.draws])

    def interval(
        self, function: Callable[[DrawnPrevalence], Any] | None = None, level: float = 0.95
    ) -> tuple[Any, Any]:
        """The percentile interval of a function of g (a number or an array); of the marginal where none is given."""
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
