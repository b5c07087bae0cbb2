"""Simulated sites with known f and g, for tests, benchmarks and documentation.

A family has one P(x|y,z), which is the same at all its sites. Each site has its own P(y), dependence of P(y|z) on z,
P(z), and share of missing values.
"""

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from sitewise.sites import Site

Array = np.ndarray[Any, Any]
REFERENCE = 4000  # number of draws of z from which a site's level is computed
KEPT_LEVELS = 256  # number of sites whose level is cached, because computing it takes longer than drawing the rows
AGE_RANGE = (20.0, 90.0)


@dataclass(frozen=True)
class SimulatedSite:
    """A simulated site with the true log f of every row, the true log g at its complete z, and the site's P(y)."""

    site: Site
    log_ratio: Array  # (n, K)
    log_prevalence: Array  # (n, K)
    marginal: Array  # (K,)

    @property
    def X(self) -> Array:
        """The inputs, (n, d)."""
        return self.site.X  # type: ignore[no-any-return]

    @property
    def y(self) -> Array:
        """The labels, (n,)."""
        return self.site.y  # type: ignore[no-any-return]

    @property
    def Z(self) -> pd.DataFrame:
        """The observed confounders, NaN or None where missing."""
        return self.site.Z  # type: ignore[no-any-return]


@dataclass(frozen=True)
class SimulatedFamily:
    """Simulated sites that share P(x|y,z), with known f and g.

    Parameters
    ----------
    n_classes : int
        The number of classes K.
    n_continuous : int
        The number of continuous confounders, with values from 20 to 90.
    levels : tuple of int
        The number of levels of each categorical confounder.
    signal : float
        Strength of f: the distance between two classes' means of the first K features of x, in standard deviations.
    coupling : float
        How far a confounder shifts the feature of x that belongs to it (see Notes), in standard deviations: by
        -`coupling` at the smallest value of the confounder, and by +`coupling` at the largest.
    effect : float
        Strength of the dependence of P(y|z) on z: a factor on the log-odds that z adds to each class.
    seed : int
        Seed of the numbers that are drawn once for the family: how P(y|z) depends on z, and how y shifts the features
        that belong to confounders.

    Notes
    -----
    x has K features that depend on y only, followed by one feature for each confounder. The feature of a confounder
    depends on this confounder and on y. If a confounder is missing in a row, the true log f of the row is computed
    without the feature of this confounder.

    Examples
    --------
    >>> family = SimulatedFamily(n_continuous=1, levels=(2,))
    >>> hospital = family.site(500, prevalence=[0.9, 0.1], seed=1)
    >>> estimate = estimate_prevalence(hospital.log_ratio, hospital.Z)
    """

    n_classes: int = 2
    n_continuous: int = 1
    levels: tuple[int, ...] = (2, 3)
    signal: float = 2.0
    coupling: float = 1.0
    effect: float = 1.0
    seed: int = 0
    _shapes: dict[str, Array] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.n_classes < 2 or self.n_continuous < 0 or self.n_variables < 1 or min(self.levels, default=2) < 2:
            raise ValueError(
                "a simulated family needs n_classes ≥ 2, at least one confounder and two levels for a categorical one, "
                f"got n_classes={self.n_classes}, n_continuous={self.n_continuous}, levels={self.levels}"
            )
        object.__setattr__(self, "levels", tuple(self.levels))
        rng = np.random.default_rng(self.seed)
        shapes = {
            "own_signal": rng.normal(0, 0.5, (self.n_variables, self.n_classes)),
            "slope": rng.normal(0, 1, (self.n_continuous, self.n_classes)),
            "bend": rng.normal(0, 0.5, (self.n_continuous, self.n_classes)),
        }
        for j, n_levels in enumerate(self.levels):
            shapes[f"level{j}"] = rng.normal(0, 0.7, (n_levels, self.n_classes))
        object.__setattr__(self, "_shapes", shapes)

    @property
    def n_variables(self) -> int:
        """The number of confounders."""
        return self.n_continuous + len(self.levels)

    @property
    def names(self) -> list[str]:
        """The names of the confounders."""
        return [f"age{j}" for j in range(self.n_continuous)] + [f"group{j}" for j in range(len(self.levels))]

    def site(
        self,
        n_rows: int,
        *,
        prevalence: Any = None,
        dependence: float = 1.0,
        z_shift: float = 0.0,
        missing: float = 0.0,
        name: str = "site",
        seed: int = 0,
    ) -> SimulatedSite:
        """Draw a site.

        Parameters
        ----------
        n_rows : int
            The number of rows.
        prevalence : array of shape (K,), optional
            P(y) at the site; uniform by default.
        dependence : float
            Factor on the dependence of P(y|z) on z that the family has: 0 removes the dependence, -1 reverses it.
        z_shift : float
            Shift of P(z). If it is positive, high values and levels of the confounders are more frequent; if it is
            negative, low ones are.
        missing : float
            The probability that a value of z is missing, independently for each value.
        name : str
            The site's name.
        seed : int
            Seed of the draw.

        Returns
        -------
        SimulatedSite
            The rows (`X`, `y`, `Z`), their true log f (`log_ratio`) and log g (`log_prevalence`), the site's P(y)
            (`marginal`), and the rows as a `Site` (`site`).
        """
        rng = np.random.default_rng(seed)
        target = self._read_prevalence(prevalence)
        level = _level(self, tuple(target), dependence, z_shift, REFERENCE)
        z = self._draw_z(n_rows, z_shift, rng)
        log_prevalence = _log_softmax(level + dependence * self._effect(z))
        y = (rng.random((n_rows, 1)) > np.cumsum(np.exp(log_prevalence), axis=1)[:, :-1]).sum(axis=1)
        x = self._means(z)[np.arange(n_rows), y] + rng.normal(size=(n_rows, self.n_classes + self.n_variables))
        hidden = np.asarray(rng.random(z.shape) < missing)
        record = Site(name, x, y, self._as_frame(z, hidden))
        return SimulatedSite(record, self._log_ratio(x, z, hidden), log_prevalence, target)

    def log_prevalence(
        self, Z: pd.DataFrame, *, prevalence: Any = None, dependence: float = 1.0, z_shift: float = 0.0
    ) -> Array:
        """Return the true log g of a site at any z. Give the settings of the site as in `site`.

        Parameters
        ----------
        Z : DataFrame
            Confounders without missing values; their columns are `names`.
        prevalence : array of shape (K,), optional
            P(y) at the site.
        dependence : float
            The site's factor on the dependence of P(y|z) on z.
        z_shift : float
            The site's shift of P(z).

        Returns
        -------
        ndarray of shape (n, K)
            log P(y|z).
        """
        level = _level(self, tuple(self._read_prevalence(prevalence)), dependence, z_shift, REFERENCE)
        return _log_softmax(level + dependence * self._effect(self._from_frame(Z)[0]))

    def log_ratio(self, X: Any, Z: pd.DataFrame) -> Array:
        """Return the true log f of any rows, for example of rows whose x was changed.

        Parameters
        ----------
        X : array of shape (n, K + V)
            Inputs: K features, and one for each of the V confounders.
        Z : DataFrame
            The confounders of these rows, NaN or None where missing.

        Returns
        -------
        ndarray of shape (n, K)
            log P(x|y,z), up to a constant for each row. Where a confounder is missing, the feature that belongs to it
            is left out of x.
        """
        return self._log_ratio(np.asarray(X), *self._from_frame(Z))

    def means(self, Z: pd.DataFrame) -> Array:
        """Return the expectation of x in every class, at the z of each row.

        Parameters
        ----------
        Z : DataFrame
            Confounders, without missing values.

        Returns
        -------
        ndarray of shape (n, K, K + V)
            E[x|y,z] of the K + V features of x, where V is the number of confounders.
        """
        return self._means(self._from_frame(Z)[0])

    def _read_prevalence(self, prevalence: Any) -> Array:
        target = (
            np.full(self.n_classes, 1 / self.n_classes) if prevalence is None else np.asarray(prevalence, dtype=float)
        )
        if target.shape != (self.n_classes,) or (target <= 0).any() or abs(target.sum() - 1) > 1e-6:
            raise ValueError(
                f"prevalence must be {self.n_classes} positive probabilities that sum to one, got {prevalence}"
            )
        return target

    def _draw_z(self, n_rows: int, z_shift: float, rng: np.random.Generator) -> Array:
        """Draw z (n, V): continuous variables in [0, 1], then levels as numbers."""
        columns = [
            rng.beta(2 * np.exp(z_shift / 2), 2 * np.exp(-z_shift / 2), n_rows) for _ in range(self.n_continuous)
        ]
        for n_levels in self.levels:
            odds = np.exp(z_shift * np.linspace(-1, 1, n_levels))
            columns.append(rng.choice(n_levels, n_rows, p=odds / odds.sum()).astype(float))
        return np.stack(columns, axis=1)

    def _effect(self, z: Array) -> Array:
        """Return the log-odds that z adds to each class, (n, K)."""
        total = np.zeros((len(z), self.n_classes))
        for j in range(self.n_continuous):
            total += np.outer(2 * z[:, j] - 1, self._shapes["slope"][j])
            total += np.outer(np.sin(2 * np.pi * z[:, j]), self._shapes["bend"][j])
        for j in range(len(self.levels)):
            total += self._shapes[f"level{j}"][z[:, self.n_continuous + j].astype(int)]
        return self.effect * total

    def _means(self, z: Array) -> Array:
        """Return E[x|y,z] for every class, (n, K, d)."""
        own = self.signal / 2 * self._shapes["own_signal"]
        means = np.zeros((len(z), self.n_classes, self.n_classes + self.n_variables))
        means[:, :, : self.n_classes] = self.signal / np.sqrt(2) * np.eye(self.n_classes)
        largest = np.array([1.0] * self.n_continuous + [n - 1.0 for n in self.levels])
        means[:, :, self.n_classes :] = self.coupling * (2 * z / largest - 1)[:, None, :] + own.T
        return means

    def _log_ratio(self, x: Array, z: Array, hidden: Array) -> Array:
        """Return log f, (n, K), as `log_ratio`; `hidden` (n, V) marks the missing values of z."""
        squares = (x[:, None, :] - self._means(z)) ** 2
        kept = np.concatenate([np.ones((len(x), self.n_classes), dtype=bool), ~hidden], axis=1)
        return np.asarray(-0.5 * (squares * kept[:, None, :]).sum(axis=2))

    def _as_frame(self, z: Array, hidden: Array) -> pd.DataFrame:
        low, high = AGE_RANGE
        columns: dict[str, Any] = {}
        for j, name in enumerate(self.names):
            if j < self.n_continuous:
                columns[name] = np.where(hidden[:, j], np.nan, low + (high - low) * z[:, j])
            else:
                labels = np.array([f"level {int(v)}" for v in z[:, j]], dtype=object)
                columns[name] = pd.Series(labels).mask(hidden[:, j], None)
        return pd.DataFrame(columns)

    def _from_frame(self, Z: pd.DataFrame) -> tuple[Array, Array]:
        """Return z (n, V) in the form of `_draw_z`, 0 where missing, and a mask (n, V) of the missing values."""
        low, high = AGE_RANGE
        hidden = Z[self.names].isna().to_numpy()
        ages = [(Z[name].to_numpy(dtype=float) - low) / (high - low) for name in self.names[: self.n_continuous]]
        levels = [Z[name].str.removeprefix("level ").astype(float) for name in self.names[self.n_continuous :]]
        return np.where(hidden, 0.0, np.stack([*ages, *levels], axis=1)), hidden


@lru_cache(KEPT_LEVELS)
def _level(family: SimulatedFamily, target: tuple[float, ...], dependence: float, z_shift: float, n: int) -> Array:
    """Return the intercepts (K,) of log g with which the mean of g over n draws of z is the given P(y)."""
    wanted = np.log(np.asarray(target))
    effect = dependence * family._effect(family._draw_z(n, z_shift, np.random.default_rng(family.seed)))
    level: Array = wanted
    for _ in range(200):
        level = level + wanted - np.log(np.exp(_log_softmax(level + effect)).mean(axis=0))
    level.flags.writeable = False
    return level


def _log_softmax(logits: Array) -> Array:
    shifted = logits - logits.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))
