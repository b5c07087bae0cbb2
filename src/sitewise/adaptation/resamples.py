"""The result of a bootstrap: g of every draw, and percentile intervals of functions of g."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sitewise.arrays import Container, index_of
from sitewise.prevalence.base import Prevalence

Encode = Callable[[Any], Tensor]


@dataclass(frozen=True)
class DrawnPrevalence:
    """g estimated from one bootstrap draw of the rows.

    Parameters
    ----------
    prevalence : Prevalence
        The model of g.

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
        """The estimate of P(Y), (K,)."""
        return self._container.classes(self._mean)

    def log_prevalence(self, Z: Any) -> Any:
        """Return the estimate of log P(Y|Z).

        Parameters
        ----------
        Z : DataFrame or array of shape (n, V)
            Confounders.

        Returns
        -------
        array of shape (n, K)
            log P(Y|Z) of each row.
        """
        return self._container.rows(self.prevalence.log_prob(self._encode(Z)), index_of(Z))


@dataclass(frozen=True)
class Resamples:
    """The draws of a bootstrap, made by `PrevalenceEstimate.bootstrap`.

    Parameters
    ----------
    draws : tuple of DrawnPrevalence
        g of every draw.

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
        """P(Y) of every draw, (B, K)."""
        return np.stack([np.asarray(draw._mean.cpu()) for draw in self.draws])

    def interval(
        self, function: Callable[[DrawnPrevalence], Any] | None = None, level: float = 0.95
    ) -> tuple[Any, Any]:
        """Compute the percentile interval of a function of g.

        Parameters
        ----------
        function : callable, optional
            Maps a `DrawnPrevalence` to a number or an array; by default its marginal P(Y).
        level : float
            Level of the interval.

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
