"""Test whether the relation of a column to the classes differs between sites, given all other columns.

With labels: if P(x|y,z) is the same at all sites, the logits of y given all columns are log f(x,z) + log g(z), and only
g differs between sites. So a column whose interaction with the site is not zero belongs to z. It is found by a score
test of this interaction in a logistic model with the main effects of all columns (equation 22a).

Without labels: g is taken with the shape of the training sites and the site's own level. Row n then has the score
s_n = P(y|x_n,z_n) - g(z_n). If this g is right, the scores are unrelated to every column. If the shape of g differs
from that of the training sites along a column, the scores are related to this column (equation 22b).
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

from sitewise.posterior import combine, contrasts
from sitewise.prevalence.linear import fit_linear, information

MOST_LEVELS = 12  # most frequent levels of a category with a column of their own; the others are the reference
POWERS = 3  # powers of a number in main effects; one less in interactions with sites
REACH = 3.0  # standard deviations at which a number is clipped
RIDGE = 1e-3  # penalty on main effects, in rows: keeps them finite if classes are separated
SMALLEST = 1e-9  # relative information below which a direction is ignored
STEPS = 500
CLOSE = 1e-10


@dataclass(frozen=True)
class ScoreTest:
    """A score test: its statistic, degrees of freedom and p-value."""

    statistic: float
    freedom: int
    p_value: float


def column_features(column: pd.Series) -> tuple[Tensor, Tensor]:
    """Return a column's features for main effects and for interactions: powers of a number, or frequent levels.

    Each tensor has a row for each of the n rows. If values are missing, one of its columns marks them.
    """
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
    by_count = sorted(zip(counts.index, counts, strict=True), key=lambda pair: (-pair[1], str(pair[0])))
    levels = [level for level, _ in by_count[:MOST_LEVELS]]
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

    The model has an intercept for each site, the main effects of all columns (their D features, `main` (n, D)), and the
    interactions of the columns in `chosen` with the site. The result has None for the chosen columns.
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
    """Return the products of d features with the indicators of the S sites except the first, (n, d (S-1))."""
    return (column[:, :, None] * marks[:, None, 1:]).flatten(1)


def _score_test(design: Tensor, added: Tensor, residual: Tensor, weight: Tensor, probability: Tensor) -> ScoreTest:
    """Return Rao's score test of the hypothesis that the features `added` to a fitted design have no effect."""
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


def shift_concentration(
    log_ratio: Tensor, log_prevalence: Tensor, columns: Sequence[Tensor], weight: Tensor
) -> list[ScoreTest]:
    """Test for each column (features (n, d)) whether g differs along it from the training sites' g (n, K).

    `log_ratio` (n, K) is log f, and `log_prevalence` (n, K) is log g of the training sites. The level of g is estimated
    from the rows, so that a shift of the level alone does not count.
    """
    log_g = with_own_level(log_ratio, log_prevalence, weight)
    basis = contrasts(log_ratio.shape[1])
    scores = (combine(log_ratio, log_g).exp() - log_g.exp()) @ basis  # (n, K-1)
    tests = []
    for column in columns:
        centred = column - (weight @ column) / weight.sum()
        products = weight[:, None] * (centred[:, :, None] * scores[:, None, :]).flatten(1)
        values, vectors = torch.linalg.eigh(products.T @ products)
        telling = values > SMALLEST * values.max().clamp_min(1e-300) if len(values) else values > 0
        total = vectors.T @ products.sum(0)
        statistic = float((total[telling] ** 2 / values[telling]).sum())
        freedom = int(telling.sum())
        tests.append(ScoreTest(statistic, freedom, float(chi2.sf(statistic, freedom)) if freedom else 1.0))
    return tests


def with_own_level(log_ratio: Tensor, log_prevalence: Tensor, weight: Tensor) -> Tensor:
    """Return log g (n, K) of the training sites with its level moved to that of these rows.

    At this level, the predictions and g have the same mean over the rows.
    """
    level = torch.zeros(log_ratio.shape[1], dtype=torch.float64)
    log_g = log_prevalence
    for _ in range(STEPS):
        log_g = torch.log_softmax(log_prevalence + level, dim=1)
        predicted, expected = weight @ combine(log_ratio, log_g).exp(), weight @ log_g.exp()
        step = predicted.clamp_min(1e-300).log() - expected.clamp_min(1e-300).log()
        level = level + step - step.mean()
        if float(step.abs().max()) < CLOSE:
            break
    return log_g
