"""Test whether the relation of a column to the classes differs between sites, given all other columns.

If P(x|y,z) is stable, the log-odds of y given everything are log f(x,z) + log g_s(z). Sites then differ only in the
term of z. So a column whose interaction with the site is not zero belongs to z. It is found by the score test of that
interaction in a logistic model with the main effects of all columns (equation 22a).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.stats import chi2
from torch import Tensor
from torch.nn.functional import one_hot

from sitewise.posterior import contrasts
from sitewise.prevalence.linear import fit_linear, information

MOST_LEVELS = 12  # of a category, by frequency; rarer ones are merged
POWERS = 3  # of a number in main effects; one less in interactions with sites
REACH = 3.0  # standard deviations at which a number is clipped
RIDGE = 1e-3  # on main effects, in rows: keeps them finite if classes are separated
SMALLEST = 1e-9  # relative information below which a direction is ignored


@dataclass(frozen=True)
class ScoreTest:
    """A score test: its statistic, degrees of freedom and p-value."""

    statistic: float
    freedom: int
    p_value: float


def column_features(column: pd.Series) -> tuple[Tensor, Tensor]:
    """Return a column's features for main effects and for interactions: powers of a number, or frequent levels."""
    missing = column.isna().to_numpy()
    gaps = [missing.astype(float)] if missing.any() else []
    numeric = pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column)
    if numeric and column.nunique() > 2:
        values = column.to_numpy(dtype=float, na_value=np.nan)
        deviation = np.nanstd(values)
        scaled = np.clip((values - np.nanmean(values)) / (deviation if deviation > 0 else 1.0), -REACH, REACH)
        powers = [np.where(missing, 0.0, scaled**power) for power in range(1, POWERS + 1)]
        powers = [power - power.mean() for power in powers]
        return _stacked([*powers, *gaps], len(column)), _stacked([*powers[:-1], *gaps], len(column))
    counts = column.value_counts()
    levels = counts.index[:MOST_LEVELS]
    left_out = 0 if len(counts) <= len(levels) else None  # reference: the rare levels, else the most frequent one
    marks = [(column == level).to_numpy(dtype=float, na_value=0.0) for i, level in enumerate(levels) if i != left_out]
    features = _stacked([*marks, *gaps], len(column))
    return features, features


def _stacked(columns: list[Any], n_rows: int) -> Tensor:
    return torch.tensor(np.stack(columns, axis=1)) if columns else torch.zeros(n_rows, 0, dtype=torch.float64)


def site_interactions(
    main: Tensor,
    columns: Sequence[Tensor],
    y: Tensor,
    site: Tensor,
    weight: Tensor,
    n_classes: int,
    chosen: Sequence[int] = (),
) -> list[ScoreTest | None]:
    """Test for each column (features (n, d) each) whether its effect on the classes differs between sites.

    The model has an intercept for each site, the main effects (n, D) of all columns, and the interactions of the
    columns that are already `chosen`, for which None is returned.
    """
    marks = one_hot(site).double()
    design = torch.cat([marks, main, *(_by_site(columns[j], marks) for j in chosen)], dim=1)
    penalty = torch.full((design.shape[1],), RIDGE, dtype=torch.float64)
    labels = one_hot(y, n_classes).double()
    offset = torch.zeros(len(y), n_classes, dtype=torch.float64)
    fitted = fit_linear(labels * weight[:, None], weight, design, penalty, offset).point
    basis = contrasts(n_classes)
    probability = torch.softmax(design @ fitted.reshape(design.shape[1], -1) @ basis.T, dim=1)
    residual = weight[:, None] * (labels - probability) @ basis
    tests: list[ScoreTest | None] = []
    for j, column in enumerate(columns):
        tests.append(
            None if j in chosen else _score_test(design, _by_site(column, marks), residual, weight, probability)
        )
    return tests


def _by_site(column: Tensor, marks: Tensor) -> Tensor:
    """Return the column's features at every site but the first, (n, d (S-1))."""
    return (column[:, :, None] * marks[:, None, 1:]).flatten(1)


def _score_test(design: Tensor, added: Tensor, residual: Tensor, weight: Tensor, probability: Tensor) -> ScoreTest:
    """Rao's score test that features added to a fitted design have no effect."""
    if not added.shape[1]:
        return ScoreTest(0.0, 0, 1.0)
    width = probability.shape[1] - 1
    both = information(torch.cat([design, added], dim=1), weight, probability)
    n_old = design.shape[1] * width
    old = both[:n_old, :n_old] + RIDGE * torch.eye(n_old, dtype=torch.float64)
    across, own = both[:n_old, n_old:], both[n_old:, n_old:]
    variance = own - across.T @ torch.linalg.solve(old, across)
    values, vectors = torch.linalg.eigh((variance + variance.T) / 2)
    telling = values > SMALLEST * max(float(values.max()), 1.0)
    score = vectors.T @ (added.T @ residual).reshape(-1)
    statistic = float((score[telling] ** 2 / values[telling]).sum())
    freedom = int(telling.sum())
    return ScoreTest(statistic, freedom, float(chi2.sf(statistic, freedom)) if freedom else 1.0)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return Holm's adjusted p-values: the chance of any false rejection is at most the level."""
    order = np.argsort(p_values, kind="stable")
    adjusted = np.empty(len(p_values))
    highest = 0.0
    for rank, place in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * float(p_values[place])))
        adjusted[place] = highest
    return [float(value) for value in adjusted]
