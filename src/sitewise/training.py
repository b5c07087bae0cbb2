"""The only training loop: batches over sites, a schedule, the best snapshot by validation, seeds, devices.

What is minimized comes in as an `Objective`; no method owns an optimizer or a loop.
"""

import copy
import logging
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from sitewise.arrays import keep_freed_memory

try:
    from lightning_fabric import Fabric
except ImportError:  # the same package inside the larger distribution
    from lightning.fabric import Fabric  # type: ignore[import-not-found, no-redef]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Recipe:
    """How a network is trained.

    `min_steps` lifts the number of epochs for small data, and batches are then smaller too (at least eight an epoch).
    `per_site` fills each batch with `batch_size` rows of every site; otherwise batches run over all rows alike.
    """

    epochs: int = 30
    batch_size: int = 256
    learning_rate: float = 3e-3
    schedule: Literal["one_cycle", "constant"] = "one_cycle"
    weight_decay: float = 1.0
    min_steps: int = 1500
    per_site: bool = False
    augment: Literal["affine"] | None = None


RECIPES = {
    "default": Recipe(),
    "augmented": Recipe(augment="affine"),
    # The paper's own: Adam at a constant rate, no decay, no augmentation, the best validation snapshot.
    "gpa2024": Recipe(epochs=15, learning_rate=1e-3, schedule="constant", weight_decay=0.0, min_steps=0),
}


def resolve_recipe(recipe: str | Recipe, **changes: Any) -> Recipe:
    """Look a recipe up by name and apply the changes that are not None."""
    if isinstance(recipe, str):
        if recipe not in RECIPES:
            raise ValueError(f"recipe must be one of {', '.join(RECIPES)} or a Recipe, got {recipe!r}")
        recipe = RECIPES[recipe]
    return replace(recipe, **{name: value for name, value in changes.items() if value is not None})


class Objective(Protocol):
    """What a method trains: a loss on rows, and a validation loss to choose the snapshot by."""

    @property
    def sites(self) -> Tensor:
        """The site of every training row, (n,), as numbers from 0."""
        ...

    def to(self, device: torch.device) -> None:
        """Move the data to a device."""
        ...

    def begin_epoch(self, generator: torch.Generator, progress: float) -> None:
        """Draw what changes from epoch to epoch (knockout masks); `progress` is the share of epochs behind."""
        ...

    def loss(self, module: nn.Module, rows: Tensor) -> Tensor:
        """The mean loss of some rows."""
        ...

    def validation_loss(self, module: nn.Module) -> float | None:
        """The loss on held-out rows; None where there are none."""
        ...


@dataclass(frozen=True)
class Training:
    """A trained module, in evaluation mode, and how it came about."""

    module: nn.Module
    best_epoch: int
    history: list[dict[str, float]] = field(repr=False)


def train(
    module: nn.Module,
    objective: Objective,
    recipe: Recipe,
    *,
    device: str = "auto",
    seed: int = 0,
    verbose: bool | None = None,
    label: str = "training",
) -> Training:
    """Train a module; the same seed gives the same bits on a CPU.

    `device` is "auto", "cpu", "cuda" or any other that Fabric knows; `verbose` None shows a bar on a terminal.
    """
    fabric = Fabric(accelerator=device, devices=1)
    if fabric.device.type == "cpu":
        keep_freed_memory()
    generator = torch.Generator().manual_seed(seed)
    sites = objective.sites
    batch_size = min(recipe.batch_size, max(16, math.ceil(len(sites) / 8))) if recipe.min_steps else recipe.batch_size
    steps_per_epoch = count_batches(sites, batch_size, recipe.per_site)
    epochs = max(recipe.epochs, math.ceil(recipe.min_steps / steps_per_epoch))
    module.to(fabric.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    fused = fabric.device.type == "cuda" or None  # one launch a step
    optimizer = torch.optim.AdamW(
        module.parameters(), lr=recipe.learning_rate, weight_decay=recipe.weight_decay, fused=fused
    )
    scheduler = _schedule(optimizer, recipe, epochs * steps_per_epoch)
    fitted, optimizer = fabric.setup(module, optimizer)
    objective.to(fabric.device)
    best_loss, best_epoch, best_state = math.inf, 0, None
    history: list[dict[str, float]] = []
    with _random_state(seed), _progress(label, epochs, verbose) as advance:
        for epoch in range(1, epochs + 1):
            fitted.train()  # validation leaves the module in evaluation mode
            objective.begin_epoch(generator, (epoch - 1) / epochs)
            total = torch.zeros((), device=fabric.device)
            for rows in batches(sites, batch_size, recipe.per_site, generator).to(fabric.device):
                optimizer.zero_grad()
                loss = objective.loss(fitted, rows)
                fabric.backward(loss)
                optimizer.step()
                scheduler.step()
                total += loss.detach()
            fitted.eval()
            with torch.no_grad():
                held_out = objective.validation_loss(fitted)
            history.append({"epoch": epoch, "loss": float(total) / steps_per_epoch})
            if held_out is not None:
                history[-1]["validation_loss"] = held_out
            if held_out is None or held_out < best_loss:
                best_loss = math.inf if held_out is None else held_out
                best_epoch, best_state = epoch, copy.deepcopy(module.state_dict())
            advance(history[-1])
            logger.debug("%s: %s", label, history[-1])
    if best_state is None:
        raise FloatingPointError(f"{label} diverged: the validation loss was never a number; lower the learning rate")
    module.load_state_dict(best_state)
    return Training(module.cpu().eval(), best_epoch, history)


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


def affine(images: Tensor) -> Tensor:
    """Turn, scale and shift each image a little: up to 15 degrees, 10 percent, 2 pixels in 28."""
    n, device = len(images), images.device
    angle = (torch.rand(n, device=device) * 2 - 1) * math.radians(15)
    scale = 1 + (torch.rand(n, device=device) * 2 - 1) * 0.1
    shift = (torch.rand(n, 2, device=device) * 2 - 1) * 4 / 28
    cosine, sine = scale * torch.cos(angle), scale * torch.sin(angle)
    matrix = torch.stack([torch.stack([cosine, -sine, shift[:, 0]], 1), torch.stack([sine, cosine, shift[:, 1]], 1)], 1)
    grid = nn.functional.affine_grid(matrix, list(images.shape), align_corners=False)
    floats = images.float() / 255 if images.dtype == torch.uint8 else images
    return nn.functional.grid_sample(floats, grid, align_corners=False)


AUGMENTATIONS = {"affine": affine}


def _schedule(optimizer: torch.optim.Optimizer, recipe: Recipe, n_steps: int) -> Any:
    if recipe.schedule == "constant":
        return torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=recipe.learning_rate, total_steps=n_steps)


@contextmanager
def _random_state(seed: int) -> Iterator[None]:
    """Fix torch's global generators for dropout and augmentation, and give them back afterwards."""
    devices = list(range(torch.cuda.device_count()))
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield


@contextmanager
def _progress(label: str, epochs: int, verbose: bool | None) -> Iterator[Any]:
    """A progress bar on a terminal, nothing elsewhere."""
    if not (sys.stderr.isatty() if verbose is None else verbose):
        yield lambda record: None
        return
    from rich.console import Console
    from rich.progress import Progress, TextColumn, TimeRemainingColumn

    columns = (*Progress.get_default_columns()[:3], TimeRemainingColumn(), TextColumn("{task.fields[note]}"))
    console = Console(stderr=True)  # elsewhere than on a terminal the bar is printed once, when it is full
    with Progress(*columns, console=console, transient=console.is_terminal) as bar:
        task = bar.add_task(label, total=epochs, note="")

        def advance(record: dict[str, float]) -> None:
            note = " ".join(f"{name} {value:.3f}" for name, value in record.items() if name != "epoch")
            bar.update(task, advance=1, note=note)

        yield advance
