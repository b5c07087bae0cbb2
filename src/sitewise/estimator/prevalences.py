"""g for training sites and for held-out data, and the regions of z where f cannot be known."""

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from sitewise.confounders import Categorical, Confounders
from sitewise.estimator.reading import folds
from sitewise.prevalence import Prevalence, fit_additive, fit_constant, fit_network, fit_table
from sitewise.ratio import LabeledRows

EXPECTED_ROWS = 10.0  # that many of a class were to be expected in a level before their absence means anything

KEPT = (
    "at {where} class {label!r} never occurs at any training site, so f says nothing about it there: "
    "the training prevalence is kept in {count} row(s)"
)


def fit_prevalence(
    model: str, rows: LabeledRows, n_classes: int, schema: Confounders | None, knockout: float, seed: int
) -> Prevalence:
    """Fit g to labeled rows: the model asked for, additive by default, constant where there is no z."""
    targets = one_hot(rows.y, n_classes).double()
    weight = rows.weight.double()
    if schema is None or model == "constant":
        return fit_constant(targets, weight)
    if model == "table":
        return fit_table(targets, rows.codes, weight, schema)
    if model == "network":
        return fit_network(targets, rows.codes, weight, schema, knockout=knockout, seed=seed)
    return fit_additive(targets, rows.codes, weight, schema, knockout=knockout)


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
    groups: Tensor | None,
    n_classes: int,
    schema: Confounders | None,
    knockout: float,
    seed: int,
) -> RowPrevalence:
    """Fit g for each site of held-out rows without the very rows it will be used on."""
    held_rows, models = [], []
    for site in torch.unique(rows.site):
        inside = (rows.site == site).nonzero().flatten()
        for fold in folds(len(inside), None if groups is None else groups[inside], seed):
            others = torch.ones(len(inside), dtype=torch.bool)
            others[fold] = False
            source = inside[others] if others.any() else inside
            held_rows.append(inside[fold])
            models.append(fit_prevalence(model, rows.take(source), n_classes, schema, knockout, seed))
    return RowPrevalence(held_rows, models)


def by_site(site: Tensor, models: dict[int, Prevalence]) -> RowPrevalence:
    """Let every row have its own site's g."""
    numbers = torch.unique(site).tolist()
    return RowPrevalence([(site == s).nonzero().flatten() for s in numbers], [models[s] for s in numbers])


@dataclass(frozen=True)
class Region:
    """A level of a categorical confounder at which a class never occurs in training."""

    variable: int
    code: float
    label: int


def find_unsupported(rows: LabeledRows, n_classes: int, schema: Confounders | None) -> tuple[Region, ...]:
    """Levels where a class is absent from all training sites though its overall share would have made it appear.

    There f has never seen the class: its ratio is not identified, whatever the network says.
    """
    regions = []
    for j, variable in enumerate(() if schema is None else schema.variables):
        if not isinstance(variable, Categorical):
            continue
        for code in range(len(variable.levels)):
            inside = rows.codes[:, j] == code
            for label in range(n_classes):
                is_label = rows.y == label
                expected = float(inside.sum()) * float(is_label.float().mean())
                if expected >= EXPECTED_ROWS and not bool((inside & is_label).any()):
                    regions.append(Region(j, float(code), label))
    return tuple(regions)


def in_regions(codes: Tensor, regions: tuple[Region, ...]) -> Tensor:
    """Tell which rows lie in an unsupported region."""
    inside = torch.zeros(len(codes), dtype=torch.bool)
    for region in regions:
        inside |= codes[:, region.variable] == region.code
    return inside


def warn_kept(codes: Tensor, regions: tuple[Region, ...], schema: Confounders, classes: list[object]) -> None:
    """Say where the training prevalence is kept, and why."""
    for region in regions:
        count = int((codes[:, region.variable] == region.code).sum())
        variable = schema.variables[region.variable]
        assert isinstance(variable, Categorical)
        if count:
            where = f"{variable.name} = {variable.levels[int(region.code)]!r}"
            warnings.warn(KEPT.format(where=where, label=classes[region.label], count=count), stacklevel=4)
