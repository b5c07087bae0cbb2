"""g for training sites and for held-out data."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from sitewise.adaptation.families import FAMILIES
from sitewise.confounders import Confounders
from sitewise.estimator.source.splitting import folds
from sitewise.prevalence import Prevalence, fit_constant
from sitewise.rows import LabeledRows


def fit_prevalence(
    model: str, rows: LabeledRows, n_classes: int, schema: Confounders | None, knockout: float, seed: int
) -> Prevalence:
    """Fit g to labeled rows: the model asked for, additive by default, constant where there is no z."""
    targets = one_hot(rows.y, n_classes).double()
    weight = rows.weight.double()
    if schema is None:
        return fit_constant(targets, weight)
    family = FAMILIES["additive" if model == "auto" else model]
    return family.fit_labels(targets, rows.codes, weight, schema, knockout=knockout, seed=seed)


@dataclass(frozen=True)
class RowPrevalence:
    """log g of certain rows, each by the model that belongs to it: its site's, or one that did not see its label."""

    rows: list[Tensor]
    models: list[Prevalence]

    def log_prob(self, codes: Tensor) -> Tensor:
        """log g of those rows, at these codes of theirs (knocked out or not)."""
        parts = [model.log_prob(codes[rows]) for rows, model in zip(self.rows, self.models, strict=True)]
        order = torch.cat(self.rows)
        return torch.empty_like(torch.cat(parts)).index_copy_(0, order, torch.cat(parts))


def cross_fit(
    model: str,
    rows: LabeledRows,
    n_classes: int,
    schema: Confounders | None,
    knockout: float,
    seed: int,
) -> RowPrevalence:
    """Fit g for each site of held-out rows without the very rows it will be used on."""
    held_rows, models = [], []
    for site in torch.unique(rows.site):
        inside = (rows.site == site).nonzero().flatten()
        own = rows.take(inside)
        for fold in folds(own, seed):
            others = torch.ones(len(own), dtype=torch.bool)
            others[fold] = False
            held_rows.append(inside[fold])
            source = own.take(others) if others.any() else own
            models.append(fit_prevalence(model, source, n_classes, schema, knockout, seed))
    return RowPrevalence(held_rows, models)


def by_site(site: Tensor, models: dict[int, Prevalence]) -> RowPrevalence:
    """Let every row have its own site's g."""
    numbers = torch.unique(site).tolist()
    return RowPrevalence([(site == s).nonzero().flatten() for s in numbers], [models[s] for s in numbers])
