"""Test whether the new site's log-ratios are a mixture of those of held-out rows of each class at the same z."""

from dataclasses import dataclass

import torch
from torch import Tensor

from sitewise.confounders import Confounders
from sitewise.confounders.variables import Categorical
from sitewise.diagnosis.discrepancy import leave_out, quadratic_p_value
from sitewise.diagnosis.matching import EFFECTIVE, FEWEST, Matched, frequent
from sitewise.diagnosis.samples import count

STRATA_SHARE = 0.5  # weight of all strata of z together in the statistic; the whole site has weight 1
STRATA = 4  # largest number of levels of one variable that are strata
STEADY = 0.25  # weight of a threshold's own variance; the mean variance in its stratum has the rest


@dataclass(frozen=True)
class Stability:
    """The result of the test of log-ratios: p-value, largest gap between distribution functions, and test statistic."""

    p_value: float
    gap: float
    statistic: float


def compare_log_ratios(
    matched: Matched, source: Tensor, target: Tensor, source_strata: Tensor, target_strata: Tensor
) -> Stability:
    """Compare the distributions of centred log-ratios, (m, K) and (n, K), overall and in S strata of z.

    Strata are columns of zeros and ones, (m, S) and (n, S). The first stratum is the whole site. The other strata are
    used if they have enough effective source rows of every class. Distribution functions are compared on a grid of
    thresholds. The part of the difference that a change of g in the strata could explain is removed first, so that an
    error of the estimated g does not count.
    """
    kept = (matched.effective_rows(source_strata) >= EFFECTIVE).all(dim=1)
    kept[0] = True
    source_strata, target_strata = source_strata[:, kept], target_strata[:, kept]
    cuts = thresholds(matched, source, target)
    below_source, below_target = (indicators(rows, cuts) for rows in (source, target))
    products = [
        (below_source * s[:, None], below_target * t[:, None])
        for s, t in zip(source_strata.T, target_strata.T, strict=True)
    ]
    functions, values = (torch.cat(columns, dim=1) for columns in zip(*products, strict=True))
    difference = matched.compare(functions, values)
    width = below_source.shape[1]
    variance = difference.covariance.diagonal().reshape(-1, width)
    steady = STEADY * variance + (1 - STEADY) * variance.mean(1, keepdim=True)  # variances of rare events are unstable
    metric = (importance(target_strata, matched.target_weight)[:, None] / steady.clamp_min(1e-300)).flatten()
    out = leave_out(matched.tilts(functions, source_strata), metric)
    left, covariance = out @ difference.mean, out @ difference.covariance @ out.T
    statistic = float(metric @ left**2)
    root = metric.sqrt()
    eigenvalues = torch.linalg.eigvalsh(root[:, None] * covariance * root)
    return Stability(quadratic_p_value(statistic, eigenvalues), float(left[:width].abs().max()), statistic)


def thresholds(matched: Matched, source: Tensor, target: Tensor) -> list[Tensor]:
    """Return quantiles of both samples together: of the first column for two classes, otherwise of every column."""
    n_classes = source.shape[1]
    n_cuts = {2: 15, 3: 9, 4: 7}.get(n_classes, 5)
    weight = torch.cat([matched.source_weight, matched.target_weight])
    cuts = []
    for column in range(1 if n_classes == 2 else n_classes):
        values, order = torch.sort(torch.cat([source[:, column], target[:, column]]))
        reached = weight[order].cumsum(0) / weight.sum()
        places = torch.searchsorted(reached, torch.arange(1, n_cuts + 1).double() / (n_cuts + 1))
        cuts.append(torch.unique(values[places.clamp(max=len(values) - 1)]))
    return cuts


def indicators(rows: Tensor, cuts: list[Tensor]) -> Tensor:
    """Return whether each row is at or below each of M thresholds, (n, M)."""
    return torch.cat([(rows[:, j, None] <= cut).double() for j, cut in enumerate(cuts)], dim=1)


def importance(strata: Tensor, weight: Tensor) -> Tensor:
    """Return the weight of each of S strata in the statistic, (S,).

    It is 1 for the whole site. The other strata share STRATA_SHARE in proportion to their size.
    """
    size = weight @ strata
    inner = size[1:] / size[1:].sum().clamp_min(1e-300)
    return torch.cat([torch.ones(1, dtype=torch.float64), STRATA_SHARE * inner])


def make_strata(
    source: Tensor,
    target: Tensor,
    schema: Confounders | None,
    source_groups: Tensor | None = None,
    target_groups: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return S strata of z in both samples, as columns of zeros and ones, (m, S) and (n, S).

    The strata are all rows; for each categorical variable, the rows of each frequent level; and for each number, the
    rows up to the target's median and those above it. A stratum with too few rows (or groups) in a sample is left out.
    """
    both = [[torch.ones(len(codes), dtype=torch.bool)] for codes in (source, target)]
    for j, variable in enumerate(() if schema is None else schema.variables):
        if isinstance(variable, Categorical):
            levels = frequent(target[:, j], len(variable.levels))[:STRATA].tolist()
            marks = [[codes[:, j] == level for level in levels] for codes in (source, target)]
        else:
            known = target[target[:, j] != variable.missing_code, j]
            middle = known.median() if len(known) else torch.tensor(1.5)
            marks = [
                [(codes[:, j] <= middle) & (codes[:, j] != variable.missing_code), codes[:, j] > middle]
                for codes in (source, target)
            ]
        for s, t in zip(*marks, strict=True):
            if min(count(source_groups, s), count(target_groups, t)) >= FEWEST and not (s.all() and t.all()):
                both[0].append(s)
                both[1].append(t)
    first, second = (torch.stack(columns, dim=1).double() for columns in both)
    return first, second
