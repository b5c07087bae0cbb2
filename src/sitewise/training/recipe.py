"""Recipes, which are the settings for training a network; the number of steps; and the rows of each batch."""

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from sitewise.arrays import Problems
from sitewise.training.augmentation import AUGMENTATIONS

PRECISIONS = ("32-true", "bf16-mixed", "16-mixed")
SCHEDULES = ("one_cycle", "constant")


@dataclass(frozen=True)
class Recipe:
    """Settings for training a network with AdamW.

    The loss of the held-out rows (validation loss) is computed after each epoch. The result of the training is the
    network as it was after the epoch with the lowest validation loss (the best snapshot). Without held-out rows it is
    the network after the last epoch.

    Parameters
    ----------
    epochs : int
        The number of passes over the training rows; `min_steps` may increase it.
    batch_size : int
        The number of rows of a batch; `min_steps` may reduce it.
    learning_rate : float
        The learning rate; for the schedule "one_cycle", its maximum.
    schedule : {"one_cycle", "constant"}
        How the learning rate changes in training. "one_cycle": it rises to its maximum and then falls (`OneCycleLR` of
        torch). "constant": it does not change.
    weight_decay : float
        The weight decay of AdamW.
    min_steps : int
        The smallest number of steps of the optimizer. If there are few training rows, the number of epochs is increased
        until this number is reached, and the batches are made smaller: a step uses at most an eighth of the training
        rows, or 16 rows if that is more. With 0, `epochs` and `batch_size` are used as they are.
    per_site : bool
        If true, each batch has `batch_size` rows of every site. If false, batches are drawn from the rows of all sites
        together.
    augment : {"affine", "flips"}, optional
        Random changes of training images: "affine" rotates, scales and shifts them slightly; "flips" flips them and
        rotates them by right angles. None: images are not changed.
    precision : {"32-true", "bf16-mixed", "16-mixed"}
        The numerical precision of the training. "32-true": single precision. "bf16-mixed" and "16-mixed": partly
        bfloat16 or half precision (torch's automatic mixed precision).
    accumulate : int
        The number of batches for one step of the optimizer. Apart from batch norm, this has the same result as a batch
        that is larger by this factor.
    patience : int, optional
        Stop if the validation loss has not improved for this number of epochs. None: all epochs are done.
    balance_validation : bool
        If true, the validation loss is the mean over classes of each class's mean loss, so that a rare class has the
        same weight as a frequent one in the choice of the snapshot.

    Notes
    -----
    There are five recipes with a name: "default"; "augmented", which is the default with `augment="affine"`; and three
    for the reproduction of the paper. These three have a constant learning rate, no weight decay and no augmentation.
    The paper states only that the best snapshot by validation is used. It does not state the optimizer of f, the
    learning rate, the batch size, the number of epochs, or the criterion for the best snapshot.

    - "gpa2024" (digits): learning rate 1e-3, batches of 256, 15 epochs. These values are our own choice.
    - "gpa2024_resnet" (ResNets): learning rate 3e-5, 64 images of every site in a batch, 15 epochs. These values are
      also our own choice.
    - "gpa2024_release": the values of the paper's published code for digits: learning rate 1e-4, 512 rows of a site in
      a step, 20,000 steps. In that code, a step has rows of one site, the sites alternate, and the best snapshot is the
      one with the highest macro F1. Here, a step has 512 rows of every site, and the best snapshot is the one with the
      lowest NLL.

    Examples
    --------
    >>> model = GPAClassifier(recipe=Recipe(epochs=50, augment="flips", patience=10))
    """

    epochs: int = 30
    batch_size: int = 256
    learning_rate: float = 3e-3
    schedule: Literal["one_cycle", "constant"] = "one_cycle"
    weight_decay: float = 1.0
    min_steps: int = 1500
    per_site: bool = False
    augment: Literal["affine", "flips"] | None = None
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] = "32-true"
    accumulate: int = 1
    patience: int | None = None
    balance_validation: bool = False

    def __post_init__(self) -> None:
        problems = Problems("recipe")
        for name, known in (("precision", PRECISIONS), ("schedule", SCHEDULES), ("augment", (None, *AUGMENTATIONS))):
            if getattr(self, name) not in known:
                names = ", ".join(map(repr, known))
                problems.add(f"{name} must be one of {names}, got {getattr(self, name)!r}")
        for name in ("accumulate", "patience"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int) and value >= 1):
                problems.add(f"{name} must be a whole number of at least 1, got {value!r}")
        problems.raise_if_any()


RECIPES = {
    "default": Recipe(),
    "augmented": Recipe(augment="affine"),
    "gpa2024": Recipe(epochs=15, learning_rate=1e-3, schedule="constant", weight_decay=0.0, min_steps=0),
    "gpa2024_resnet": Recipe(
        epochs=15,
        batch_size=64,
        learning_rate=3e-5,
        schedule="constant",
        weight_decay=0.0,
        min_steps=0,
        per_site=True,
    ),
    "gpa2024_release": Recipe(
        epochs=1,
        batch_size=512,
        learning_rate=1e-4,
        schedule="constant",
        weight_decay=0.0,
        min_steps=20_000,
        per_site=True,
    ),
}


def resolve_recipe(recipe: str | Recipe, **changes: Any) -> Recipe:
    """Return a recipe, which may be given by name, with those changes that are not None."""
    if isinstance(recipe, str):
        if recipe not in RECIPES:
            raise ValueError(f"recipe must be one of {', '.join(RECIPES)} or a Recipe, got {recipe!r}")
        recipe = RECIPES[recipe]
    return replace(recipe, **{name: value for name, value in changes.items() if value is not None})


@dataclass(frozen=True)
class Plan:
    """The number of rows of a step (of each site if `per_site` is set), of steps per epoch, and of epochs."""

    step_size: int
    steps_per_epoch: int
    epochs: int


def plan_training(sites: Tensor, recipe: Recipe) -> Plan:
    """Return the plan of a training by a recipe, given the site of each training row."""
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

    By default, all rows are shuffled. If `per_site` is true, each batch has `batch_size` rows of every site, and the
    rows of small sites are repeated. All batches have the same size. The remaining rows, which differ between epochs,
    are left out.
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
    """Divide the rows of a step into parts, one for each pass. Batches by site are divided within each site."""
    n_parts = min(n_parts, len(rows))
    return [rows[i::n_parts] for i in range(n_parts)]
