"""Categories of a confounder with too few rows to learn from: they are found by leave-one-out, and count as missing.

A category with one row is not informative about other rows. Still, its coefficient increases the likelihood of its own
row. Equation 10 does not correct for this, because it is a first-order approximation. Here each row of a rare category
is left out in turn, and predicted from the other rows of its category.
"""

import warnings
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sitewise.adaptation.cell_problem import constant_problem, solve_cells
from sitewise.adaptation.evidence import Evidence
from sitewise.adaptation.rows import Rows
from sitewise.confounders import Confounders
from sitewise.confounders.variables import Categorical
from sitewise.posterior import contrasts

ROWS_A_LEVEL = 5  # a category with fewer rows is rare
RIDGES = (1000.0, 100.0, 10.0, 1.0, 0.1)
MARGIN = 1.0  # log-likelihood units by which rare categories must improve the prediction of left-out rows
MOST_COEFFICIENTS = 1000  # of all categories together; their covariance is a dense matrix
ENOUGH = 2**14  # at most about so many rows are left out in turn
STEPS = 30

RARE = (
    "confounder {name!r}: {pooled} of its {levels} levels have too few of the {rows:.0f} rows to learn from and count "
    "as missing. Group its levels, or leave it out, to choose otherwise"
)


@dataclass(frozen=True)
class Verdict:
    """The schema without rare categories, and the weakest ridge that should be tried with the remaining ones.

    The ridge is zero if no rare categories remain.
    """

    schema: Confounders
    weakest_ridge: float


def without_rare_levels(evidence: Evidence, *, judged: bool = True, fixed: bool = False) -> Verdict:
    """Remove categories from the schema that do not help to predict left-out rows.

    If too many categories remain, the rarest are removed as well. Removed categories count as missing; all categories
    of a variable may be removed. If `judged` is false (because the caller has given the strength), only the number of
    categories is limited. If `fixed` is true (because the caller has given the schema), all categories are kept.
    """
    schema = evidence.schema
    assert schema is not None
    counts = {j: level_counts(evidence, j) for j, v in enumerate(schema.variables) if isinstance(v, Categorical)}
    kept = {j: torch.ones_like(count, dtype=torch.bool) for j, count in counts.items()}
    weakest = 0.0
    for j, count in counts.items():
        rare = count < ROWS_A_LEVEL
        if (
            not judged or len(count) < 2 or 2 * int(rare.sum()) <= len(count)
        ):  # equation 10 is accurate for categories with many rows
            continue
        gain, ridge = gain_of_levels(evidence, j, rare)
        useful = gain > MARGIN
        kept[j] = ~rare | ((count > 1) & useful)
        weakest = max(weakest, ridge) if useful else weakest
    if fixed:
        return Verdict(schema, weakest)
    _limit(kept, counts, MOST_COEFFICIENTS // (evidence.n_classes - 1))
    if all(bool(keep.all()) for keep in kept.values()):
        return Verdict(schema, weakest)
    variables = list(schema.variables)
    for j, keep in kept.items():
        variable = variables[j]
        assert isinstance(variable, Categorical)
        if bool(keep.all()):
            continue
        n_pooled, n_rows = int((~keep).sum()), float(counts[j].sum())
        text = RARE.format(name=variable.name, pooled=n_pooled, levels=len(keep), rows=n_rows)
        warnings.warn(text, stacklevel=4)
        levels = tuple(level for level, stays in zip(variable.levels, keep.tolist(), strict=True) if stays)
        variables[j] = replace(variable, levels=levels, others_missing=True)
    return Verdict(Confounders(tuple(variables)), weakest)


def level_counts(evidence: Evidence, j: int) -> Tensor:
    """Return the number of rows of each of the L categories of variable j, (L,); a row of weight w > 1 counts as w."""
    assert evidence.schema is not None
    n_levels = int(evidence.schema.variables[j].missing_code)
    counts = evidence.rows.total(
        lambda rows: (torch.bincount(rows.codes[:, j].long(), rows.by_cell(_row_counts(rows)), n_levels + 1),)
    )
    return (counts[0] if counts else torch.zeros(n_levels, dtype=torch.float64, device=evidence.device))[:n_levels]


def _row_counts(rows: Rows) -> Tensor:
    return rows.codes.new_ones(len(rows)) if rows.weight is None else rows.weight.clamp_min(1.0)


def gain_of_levels(evidence: Evidence, j: int, rare: Tensor) -> tuple[float, float]:
    """Return the gain of the leave-one-out log-likelihood due to coefficients of rare categories, and the best ridge.

    `rare` (L,) marks the rare categories of variable j. Each of their rows is predicted from the other rows of its
    category, compared with the constant g. If there are very many rare categories, a sample of them is used.
    """
    step = 1 + int(rare.sum()) * (ROWS_A_LEVEL - 1) // ENOUGH
    chosen = rare & (torch.cumsum(rare, 0) % step == 0)
    ratio, weight, level = _rows_of(evidence, j, chosen)
    if not len(level):
        return 0.0, RIDGES[0]
    order = torch.argsort(level, stable=True)
    ratio, weight, level = ratio[order], weight[order], level[order]
    first = torch.searchsorted(level, level)
    beside = first[:, None] + torch.arange(ROWS_A_LEVEL - 1, device=level.device)
    same = (beside < len(level)) & (level[beside.clamp_max(len(level) - 1)] == level[:, None])
    beside = beside.clamp_max(len(level) - 1)
    itself = beside == torch.arange(len(level), device=level.device)[:, None]
    counted = torch.where(same, torch.where(itself, (weight[:, None] - 1.0).clamp_min(0.0), weight[beside]), 0.0)
    log_level = _constant_level(evidence).log()
    basis = contrasts(len(log_level), log_level.device)
    others = ratio[beside]  # (n, 4, K)

    def own(move: Tensor) -> Tensor:
        return (ratio * torch.softmax(log_level + move @ basis.T, dim=1)).sum(1).clamp_min(1e-300).log()

    move = ratio.new_zeros(len(ratio), basis.shape[1])
    without, best = own(move), (0.0, RIDGES[0])
    for ridge in RIDGES:
        for _ in range(STEPS):  # ½ bounds the curvature of log-softmax: no step decreases the penalized likelihood
            g = torch.softmax(log_level + move @ basis.T, dim=1)
            joint = others * g[:, None, :]
            residual = joint / joint.sum(2, keepdim=True).clamp_min(1e-300) - g[:, None, :]
            slope = torch.einsum("nm,nmk->nk", counted, residual) @ basis
            move = move + (slope - ridge * move) / (0.5 * counted.sum(1) + ridge)[:, None]
        best = max(best, (step * float(weight @ (own(move) - without)), ridge))
    return best


def _rows_of(evidence: Evidence, j: int, chosen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return f (n, K), weights (n,) and categories (n,) of the rows whose category of variable j is chosen."""
    marked = torch.cat([chosen, chosen.new_zeros(1)])
    nothing = evidence.sample.ratio[:0].double(), evidence.sample.codes.new_zeros(0), marked[:0].long()

    def of_levels(rows: Rows) -> tuple[Tensor, Tensor, Tensor]:
        level = rows.at_rows(rows.codes[:, j]).long()
        place = marked[level].nonzero().flatten()
        weight = rows.codes.new_ones(len(place)) if rows.weight is None else rows.weight[place]
        return rows.ratio[place].double(), weight, level[place]

    collected = [nothing, *evidence.rows.collect(of_levels)]
    ratio, weights, levels = (torch.cat(parts) for parts in zip(*collected, strict=True))
    ratio = torch.cat([0.5 * (1.0 - ratio), 0.5 * (1.0 + ratio)], dim=1) if ratio.shape[1] == 1 else ratio
    return ratio, weights, levels


def _constant_level(evidence: Evidence) -> Tensor:
    """Return the constant g (K,) that maximizes the likelihood with one uniform pseudo-row; all shares are positive."""
    even = torch.full((evidence.n_classes,), 1.0 / evidence.n_classes, dtype=torch.float64, device=evidence.device)
    solution = solve_cells(constant_problem(evidence, even), even[None], "auto", tolerance=1e-6)
    return solution.point[0].clamp_min(1e-12)


def _limit(kept: dict[int, Tensor], counts: dict[int, Tensor], most: int) -> None:
    """Remove, in place, the rarest categories of all variables, so that at most `most` categories remain in total."""
    stay = sum(int(keep.sum()) for keep in kept.values())
    if stay <= most:
        return
    sizes = torch.cat([torch.where(keep, counts[j], 0.0) for j, keep in kept.items()])
    stay_on = torch.zeros_like(sizes, dtype=torch.bool)
    stay_on[torch.sort(sizes, descending=True, stable=True).indices[:most]] = True
    for j, part in zip(kept, stay_on.split([len(keep) for keep in kept.values()]), strict=True):
        kept[j] = part
