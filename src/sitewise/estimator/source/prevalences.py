"""g of labeled rows (equation 2): of each training site, of all sites together, of held-out rows; its variation."""

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
    """Fit g to labeled rows: the chosen model; "auto" is additive, or constant without z."""
    targets = one_hot(rows.y, n_classes).double()
    weight = rows.weight.double()
    if schema is None:
        return fit_constant(targets, weight)
    family = FAMILIES["additive" if model == "auto" else model].with_dropout(dropout)
    return family.fit_labels(targets, rows.codes, weight, schema, knockout=knockout, seed=seed)


@dataclass(frozen=True)
class RowPrevalence:
    """log g of a fixed set of rows, each by its own model: its site's, or one that did not see its label."""

    rows: list[Tensor]
    models: list[Prevalence]

    def log_prob(self, codes: Tensor) -> Tensor:
        """log g of these rows at the given codes of z (knocked out or not)."""
        parts = [model.log_prob(codes[rows]) for rows, model in zip(self.rows, self.models, strict=True)]
        order = torch.cat(self.rows)
        return torch.empty_like(torch.cat(parts)).index_copy_(0, order, torch.cat(parts))


def by_site(site: Tensor, models: dict[int, Prevalence]) -> RowPrevalence:
    """log g of each row by the model of its site."""
    numbers = torch.unique(site).tolist()
    return RowPrevalence([(site == s).nonzero().flatten() for s in numbers], [models[s] for s in numbers])


def cross_fit(fit: Callable[[LabeledRows, int], Prevalence], rows: LabeledRows, seed: int) -> RowPrevalence:
    """g of held-out rows: fitted for each site, each row by a model that did not see its label."""
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
    """Variances (D,) between sites of the coefficients of g(z); None if there is one site only."""
    if schema is None or len(torch.unique(rows.site)) < 2 or len(owners(schema)) * (n_classes - 1) > NEWTON_LIMIT:
        return None
    return pool_sites(
        one_hot(rows.y, n_classes).double(), rows.codes, rows.weight.double(), rows.site, schema
    ).deviation
