"""What labeled source rows say about the next site: the prior of its g, before any rehearsal."""

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from sitewise.confounders import Confounders
from sitewise.prevalence import Prevalence, SitePrior, missing_information, pool_sites
from sitewise.prevalence.linear import NEWTON_LIMIT
from sitewise.prevalence.pooled import owners
from sitewise.rows import HeldOut, LabeledRows

ROWS = 100_000  # are enough


def describe_source(held: HeldOut, log_ratio: Tensor, pooled: Prevalence, deviation: Tensor | None) -> SitePrior:
    """The source's g with the error of f: held-out groups count as groups, and labels that f does not explain (18b)."""
    missing = missing_information(log_ratio, pooled.log_prob(held.codes), held.weight)
    return SitePrior(pooled, deviation=deviation, n_source=min(effective_rows(held), ROWS), missing=missing)


def effective_rows(held: HeldOut) -> float:
    """How many independent rows the held-out ones are worth: groups, not rows, where there are groups."""
    unit = torch.arange(len(held)) if held.groups is None else torch.unique(held.groups, return_inverse=True)[1]
    mass = torch.zeros(int(unit.max()) + 1, dtype=torch.float64).index_add_(0, unit, held.weight)
    return float(mass.sum() ** 2 / mass.square().sum())


def between_sites(rows: LabeledRows, n_classes: int, schema: Confounders | None) -> Tensor | None:
    """How far sites differ in the coefficients of g(z), (D,) variances; None where one site cannot tell."""
    if schema is None or len(torch.unique(rows.site)) < 2 or len(owners(schema)) * (n_classes - 1) > NEWTON_LIMIT:
        return None
    return pool_sites(
        one_hot(rows.y, n_classes).double(), rows.codes, rows.weight.double(), rows.site, schema
    ).deviation
