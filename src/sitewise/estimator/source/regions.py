"""Regions of z where f is not identified, because some class never occurs there in training."""

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from sitewise.confounders import Confounders
from sitewise.confounders.variables import Categorical
from sitewise.rows import LabeledRows

EXPECTED_ROWS = 10.0  # fewest expected rows of a class in a category for which its absence is not chance
KEPT = (
    "at {where} class {label!r} never occurs at any training site, so f is not identified there: "
    "the training prevalence is kept in {count} row(s)"
)


@dataclass(frozen=True)
class Region:
    """A category of a confounder at which a class never occurs in training."""

    variable: int
    code: float
    label: int


def find_unsupported(rows: LabeledRows, n_classes: int, schema: Confounders | None) -> tuple[Region, ...]:
    """Find categories of confounders in which a class never occurs, although 10 or more of its rows are expected.

    The expected number is the number of rows of the category times the share of the class in all training rows. f was
    never trained on the class in this category, so it is not identified there, whatever the network returns.
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
    """Return which rows lie in one of the regions, (n,)."""
    inside = torch.zeros(len(codes), dtype=torch.bool)
    for region in regions:
        inside |= codes[:, region.variable] == region.code
    return inside


def region_counts(codes: Tensor, regions: tuple[Region, ...]) -> list[int]:
    """Return the number of rows in each region."""
    return [int((codes[:, region.variable] == region.code).sum()) for region in regions]


def warn_kept(counts: list[int], regions: tuple[Region, ...], schema: Confounders, classes: list[object]) -> None:
    """Warn about each region with rows: the training prevalence is kept there, because f is not identified."""
    for region, count in zip(regions, counts, strict=True):
        variable = schema.variables[region.variable]
        assert isinstance(variable, Categorical)
        if count:
            where = f"{variable.name} = {variable.levels[int(region.code)]!r}"
            warnings.warn(KEPT.format(where=where, label=classes[region.label], count=count), stacklevel=4)
