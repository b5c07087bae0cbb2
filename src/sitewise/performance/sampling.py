"""Choose rows to label: a stratified sample with weights that keep estimates unbiased."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from sitewise.performance.expected import group_rows

Array = np.ndarray[Any, Any]
SCORE_BANDS = 5
LEAST_DEVIATION = 0.05  # lower limit of a label's standard deviation in a stratum
FEWEST = 2  # smallest number of rows to draw from a stratum, if possible; a variance needs two


@dataclass(frozen=True, eq=False)
class LabelSample:
    """A stratified sample of rows to label.

    Parameters
    ----------
    rows : array of shape (m,)
        The indices of the m drawn rows, among all rows of the site.
    stratum : array of shape (m,)
        The number of the stratum of each drawn row.
    weight : array of shape (m,)
        The number of rows of the site that each drawn row represents.

    Examples
    --------
    >>> sample = here.sample(100)
    >>> to_label = table.iloc[sample.rows].assign(weight=sample.weight)
    """

    rows: Array
    stratum: Array
    weight: Array

    def __len__(self) -> int:
        return len(self.rows)


def draw_sample(probability: Array, z: pd.DataFrame, n: int, *, seed: int = 0) -> LabelSample:
    """Draw a sample of n rows, stratified by score and z.

    More rows are drawn from strata with uncertain labels (Neyman's allocation). Every stratum is sampled, so that means
    over the sample with its `weight` are unbiased for the means over all rows.

    Parameters
    ----------
    probability : array of shape (N, K)
        Predictions of all rows.
    z : DataFrame
        Their confounders. A confounder is used only if the sample then still has two rows for each stratum.
    n : int
        The number of rows to draw.
    seed : int
        Seed of the draw.

    Returns
    -------
    LabelSample
        The rows with their strata and weights.
    """
    n_rows = len(probability)
    if n_rows < 2:
        raise ValueError(f"sample: the site has {n_rows} row; a sample needs at least 2 to draw from")
    if not 1 < n <= n_rows:
        raise ValueError(f"sample: the number of rows must lie from 2 to {n_rows:,}, got {n}")
    strata = strata_of(probability, z, n)
    size = np.bincount(strata)
    deviation = np.sqrt(np.bincount(strata, (1 - (probability**2).sum(axis=1)) / 2) / size)
    counts = allocate(size, np.maximum(deviation, LEAST_DEVIATION), n)
    rng = np.random.default_rng(seed)
    chosen = [rng.choice(np.flatnonzero(strata == h), count, replace=False) for h, count in enumerate(counts)]
    rows = np.sort(np.concatenate(chosen))
    own = strata[rows]
    return LabelSample(rows, own, (size / counts)[own])


def strata_of(probability: Array, z: pd.DataFrame, n: int) -> Array:
    """Return the stratum of every row: fifths of the score, crossed with groups of each confounder if n suffices.

    The score is P(y=1) for two classes, and the largest probability for more.
    """
    two = probability.shape[1] == 2
    score = probability[:, 1] if two else probability.max(axis=1)
    bands = max(1, min(SCORE_BANDS, n // FEWEST))
    place = np.argsort(np.argsort(score, kind="stable"), kind="stable")
    strata = place * bands // len(score)
    for name in z.columns:
        groups = group_rows(_halved(z[name]))
        own = np.empty(len(score), dtype=np.int64)
        for number, index in enumerate(groups.values()):
            own[index] = number
        finer = np.unique(strata * len(groups) + own, return_inverse=True)[1]
        if (finer.max() + 1) * FEWEST <= n:
            strata = finer
    return np.asarray(strata)


def _halved(column: pd.Series) -> pd.Series:
    """Convert a number to whether it is above its median; return other columns unchanged."""
    if pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column) and column.nunique() > 2:
        return (column > column.median()).astype(object).where(column.notna(), None)
    return column


def allocate(size: Array, deviation: Array, n: int) -> Array:
    """Return the number of rows to draw from each stratum: proportional to size × standard deviation, at least two.

    A stratum of one row gets one. If n is too small, every stratum gets at least one instead of two.
    """
    least = np.minimum(size, FEWEST) if np.minimum(size, FEWEST).sum() <= n else np.ones_like(size)
    counts, left = least.copy(), n - int(least.sum())
    wanted = size * deviation
    while left > 0:
        room = counts < size
        share = np.where(room, wanted, 0.0)
        ideal = n * wanted / wanted.sum()
        need = np.where(room, np.maximum(ideal - counts, 1e-9 * share), -np.inf)
        counts[int(need.argmax())] += 1
        left -= 1
    return np.asarray(counts)
