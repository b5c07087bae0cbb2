"""The rows of each batch, and the number of steps of a training."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sitewise.training.recipe import Recipe


@dataclass(frozen=True)
class Plan:
    """The number of rows of a step (for each site with `per_site`), of steps per epoch, and of epochs."""

    step_size: int
    steps_per_epoch: int
    epochs: int


def plan_training(sites: Tensor, recipe: Recipe) -> Plan:
    """Apply a recipe to the training rows, given their sites."""
    step_size = recipe.batch_size * recipe.accumulate
    if recipe.min_steps:
        step_size = min(step_size, max(16, math.ceil(len(sites) / 8)))
    steps_per_epoch = count_batches(sites, step_size, recipe.per_site)
    return Plan(step_size, steps_per_epoch, max(recipe.epochs, math.ceil(recipe.min_steps / steps_per_epoch)))


def count_batches(sites: Tensor, batch_size: int, per_site: bool) -> int:
    """Return the number of batches of an epoch."""
    if per_site:
        return max(1, int(torch.bincount(sites).max()) // batch_size)
    return max(1, len(sites) // batch_size)


def batches(sites: Tensor, batch_size: int, per_site: bool, generator: torch.Generator) -> Tensor:
    """Return the rows of an epoch, one batch in each row of the result.

    Either all rows are shuffled, or with `per_site` each batch has the same number of rows of every site, and the rows
    of small sites are repeated. All batches have the same size; the remaining rows are left out, others in each epoch.
    """
    n_batches = count_batches(sites, batch_size, per_site)
    if not per_site:
        size = len(sites) // n_batches
        return torch.randperm(len(sites), generator=generator)[: n_batches * size].reshape(n_batches, size)
    by_site = []
    for site in torch.unique(sites):
        rows = (sites == site).nonzero().flatten()
        rounds = math.ceil(n_batches * batch_size / len(rows))
        order = torch.cat([rows[torch.randperm(len(rows), generator=generator)] for _ in range(rounds)])
        by_site.append(order[: n_batches * batch_size].reshape(n_batches, batch_size))
    return torch.cat(by_site, dim=1)


def parts_of(rows: Tensor, n_parts: int) -> list[Tensor]:
    """Divide the rows of a step into parts, one for each pass; the rows of every site are in all parts."""
    n_parts = min(n_parts, len(rows))
    return [rows[i::n_parts] for i in range(n_parts)]
