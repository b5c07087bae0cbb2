"""Fit g to labeled rows (equation 2): training sites, all sites together, held-out rows; variance between sites."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from sitewise.adaptation.families import FAMILIES
from sitewise.confounders import Confounders
from sitewise.estimator.source.reading import folds
from sitewise.prevalence import fit_constant
from sitewise.prevalence.base import Prevalence
from sitewise.prevalence.linear import NEWTON_LIMIT
from sitewise.prevalence.pooled import owners, pool_sites
from sitewise.rows import LabeledRows


def fit_prevalence(
    model: str,
    rows: LabeledRows,
    n_classes: int,
    schema: Confounders | None,
    knockout: float,
    seed: int,
    dropout: float = 0.0,
) -> Prevalence:
    """Fit g to labeled rows with the named model; "auto" means additive. Without z, g is constant."""
    targets = one_hot(rows.y, n_classes).double()
    weight = rows.weight.double()
    if schema is None:
        return fit_constant(targets, weight)
    family = FAMILIES["additive" if model == "auto" else model].with_dropout(dropout)
    return family.fit_labels(targets, rows.codes, weight, schema, knockout=knockout, seed=seed)


@dataclass(frozen=True)
class RowPrevalence:
    """Prevalences g of a fixed set of rows; each row has its own model, for example the g of its site."""

    rows: list[Tensor]
    models: list[Prevalence]

    def log_prob(self, codes: Tensor) -> Tensor:
        """Return log g of these rows (n, K) at the given codes of z, which may have hidden parts."""
        parts = [model.log_prob(codes[rows]) for rows, model in zip(self.rows, self.models, strict=True)]
        order = torch.cat(self.rows)
        return torch.empty_like(torch.cat(parts)).index_copy_(0, order, torch.cat(parts))


def by_site(site: Tensor, models: dict[int, Prevalence]) -> RowPrevalence:
    """Return the g of rows; the g of a row is that of its site, from `models` by the number of the site."""
    numbers = torch.unique(site).tolist()
    return RowPrevalence([(site == s).nonzero().flatten() for s in numbers], [models[s] for s in numbers])


def cross_fit(fit: Callable[[LabeledRows, int], Prevalence], rows: LabeledRows, seed: int) -> RowPrevalence:
    """Fit g to the rows of each site by cross-fitting: the model of a row was not fitted to its label."""
    held_rows, models = [], []
    for site in torch.unique(rows.site):
        inside = (rows.site == site).nonzero().flatten()
        own = rows.take(inside)
        for fold in folds(own, seed):
            others = torch.ones(len(own), dtype=torch.bool)
            others[fold] = False
            held_rows.append(inside[fold])
            models.append(fit(own.take(others) if others.any() else own, seed))
    return RowPrevalence(held_rows, models)


def between_sites(rows: LabeledRows, n_classes: int, schema: Confounders | None) -> Tensor | None:
    """Return the variances between sites of the coefficients of g(z), (D,), one for each feature of z.

    None if there is no z, if there is only one site, or if there are too many coefficients.
    """
    if schema is None or len(torch.unique(rows.site)) < 2 or len(owners(schema)) * (n_classes - 1) > NEWTON_LIMIT:
        return None
    return pool_sites(
        one_hot(rows.y, n_classes).double(), rows.codes, rows.weight.double(), rows.site, schema
    ).deviation
