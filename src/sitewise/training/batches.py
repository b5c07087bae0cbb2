"""Which rows make a batch, and how many steps a training takes."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sitewise.training.recipe import Recipe


@dataclass(frozen=True)
class Plan:
    """The rows of a step (of each site, with `per_site`), the steps of an epoch, and the epochs."""

    step_size: int
    steps_per_epoch: int
    epochs: int


def plan_training(sites: Tensor, recipe: Recipe) -> Plan:
    """How a recipe is applied to so many rows."""
    step_size = recipe.batch_size * recipe.accumulate
    if recipe.min_steps:
        step_size = min(step_size, max(16, math.ceil(len(sites) / 8)))
    steps_per_epoch = count_batches(sites, step_size, recipe.per_site)
    return Plan(step_size, steps_per_epoch, max(recipe.epochs, math.ceil(recipe.min_steps / steps_per_epoch)))


def count_batches(sites: Tensor, batch_size: int, per_site: bool) -> int:
    """How many batches make an epoch."""
    if per_site:
        return max(1, int(torch.bincount(sites).max()) // batch_size)
    return max(1, len(sites) // batch_size)


def batches(sites: Tensor, batch_size: int, per_site: bool, generator: torch.Generator) -> Tensor:
    """Row numbers of an epoch, a batch a row: all rows shuffled; or from every site alike, small sites over and over.

    A remainder too small for a row more in every batch is left out of the epoch, another one each time.
    """
    n_batches = count_batches(sites, batch_size, per_site)
    if not per_site:
        size = len(sites) // n_batches
        return torch.randperm(len(sites), generator=generator)[: n_batches * size].reshape(n_batches, size)
    parts = []
    for site in torch.unique(sites):
        rows = (sites == site).nonzero().flatten()
        rounds = math.ceil(n_batches * batch_size / len(rows))
        order = torch.cat([rows[torch.randperm(len(rows), generator=generator)] for _ in range(rounds)])
        parts.append(order[: n_batches * batch_size].reshape(n_batches, batch_size))
    return torch.cat(parts, dim=1)


def parts_of(rows: Tensor, n_parts: int) -> list[Tensor]:
    """The rows of a step in parts for one pass each, every site's rows spread over all of them."""
    n_parts = min(n_parts, len(rows))
    return [rows[i::n_parts] for i in range(n_parts)]
