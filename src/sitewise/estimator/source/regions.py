"""Regions of z where f cannot be known, for some class never occurs there in training."""

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from sitewise.confounders import Categorical, Confounders
from sitewise.rows import LabeledRows

EXPECTED_ROWS = 10.0  # that many of a class were to be expected in a level before their absence means anything
KEPT = (
    "at {where} class {label!r} never occurs at any training site, so f says nothing about it there: "
    "the training prevalence is kept in {count} row(s)"
)


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


def region_counts(codes: Tensor, regions: tuple[Region, ...]) -> list[int]:
    """How many rows lie in each region."""
    return [int((codes[:, region.variable] == region.code).sum()) for region in regions]


def warn_kept(counts: list[int], regions: tuple[Region, ...], schema: Confounders, classes: list[object]) -> None:
    """Say where the training prevalence is kept, and why."""
    for region, count in zip(regions, counts, strict=True):
        variable = schema.variables[region.variable]
        assert isinstance(variable, Categorical)
        if count:
            where = f"{variable.name} = {variable.levels[int(region.code)]!r}"
            warnings.warn(KEPT.format(where=where, label=classes[region.label], count=count), stacklevel=4)
