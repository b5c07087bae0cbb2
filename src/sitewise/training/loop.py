"""The training loop of all methods: batches over sites, a schedule, the best snapshot by validation, seeds, devices.

A method provides an `Objective`; it has no optimizer or loop of its own. Several trainings can run at the same time on
one GPU if its memory suffices.
"""

import copy
import logging
import math
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from sitewise.arrays import keep_freed_memory
from sitewise.training.checkpoint import Checkpoint, Stateful, identify, open_checkpoint
from sitewise.training.devices import (
    DistributedNetwork,
    Share,
    check_agreement,
    launch,
    precision_of,
    share_of,
    shared_batch_norm,
    torchrun_processes,
)
from sitewise.training.recipe import Plan, Recipe, batches, parts_of, plan_training

logger = logging.getLogger(__name__)
ALIKE = (
    "Give every process the same data, settings and random_state (a number); all must find the same checkpoint, or none"
)
FEW_ROWS = "{n} row(s) of a batch can't be shared by {of} processes: take larger batches, or fewer devices"
CONTEXT = 2**29  # bytes that every process needs on a GPU in addition to its tensors

Result = TypeVar("Result")


class Objective(Protocol):
    """The objective of a method: a loss on rows, and a validation loss that selects the snapshot."""

    @property
    def sites(self) -> Tensor:
        """The site of every training row, (n,), as indices from 0."""
        ...

    def to(self, device: torch.device) -> None:
        """Move the data to a device."""
        ...

    def begin_epoch(self, generator: torch.Generator, progress: float) -> None:
        """Draw random quantities of the epoch, such as knockout masks; `progress` is the share of epochs completed."""
        ...

    def reading(self, upcoming: Sequence[Tensor]) -> AbstractContextManager[None]:
        """Open a context in which `loss` is called with these batches in this order, so that they are read in advance.

        The row numbers in `upcoming` are on the CPU.
        """
        ...

    def loss(self, module: nn.Module, rows: Tensor) -> Tensor:
        """Return the mean loss of some rows."""
        ...

    def validation_loss(self, module: nn.Module) -> float | None:
        """Return the loss on held-out rows; None if there are no held-out rows."""
        ...

    def identity(self) -> dict[str, str]:
        """Return the identity of this objective: its settings, and hashes of its data."""
        ...

    def state_dict(self) -> Mapping[str, Any]:
        """Return the objective's own state that changes in training, for checkpoints."""
        ...

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore the state."""
        ...


@dataclass(frozen=True)
class Training:
    """A trained module in evaluation mode, with the history of its training."""

    module: nn.Module
    best_epoch: int
    history: list[dict[str, float]] = field(repr=False)
    checkpoint: Path | None = None  # with `keep_checkpoint`


@dataclass
class _Course:
    """The state of a training: epochs completed, losses, and the best snapshot so far."""

    epoch: int = 0
    best_loss: float = math.inf
    best_epoch: int = 0
    best_state: dict[str, Tensor] | None = None
    history: list[dict[str, float]] = field(default_factory=list)

    def note(self, record: dict[str, float], module: nn.Module) -> None:
        """Record an epoch; without a validation loss, the latest snapshot counts as the best."""
        self.epoch += 1
        self.history.append(record)
        held_out = record.get("validation_loss")
        if held_out is None or held_out < self.best_loss:
            self.best_loss = math.inf if held_out is None else held_out
            self.best_epoch, self.best_state = self.epoch, copy.deepcopy(module.state_dict())

    def ended(self, epochs: int, patience: int | None) -> bool:
        """Return whether all epochs are completed, or `patience` epochs without a better snapshot."""
        return self.epoch >= epochs or (patience is not None and self.epoch - self.best_epoch >= patience)

    def state_dict(self) -> dict[str, Any]:
        """Return all fields, for a checkpoint."""
        return dict(vars(self))

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore all fields."""
        vars(self).update(state_dict)


@dataclass(frozen=True)
class _Loop:
    """The objects and settings that an epoch of training uses."""

    fabric: Any
    network: Any  # as set up by Fabric
    fitted: nn.Module  # the same, distributed if there are several processes
    optimizer: Any
    scheduler: Any
    objective: Objective
    recipe: Recipe
    plan: Plan
    generator: torch.Generator
    seed: int

    def epoch(self, number: int) -> dict[str, float]:
        """Train for an epoch and validate."""
        share = share_of(self.fitted)
        if share.of > 1:
            torch.manual_seed(own_seed(self.seed, number, share))
        self.fitted.train()  # validation leaves the module in evaluation mode
        sites, device = self.objective.sites, self.fabric.device
        self.objective.begin_epoch(self.generator, (number - 1) / self.plan.epochs)
        total = torch.zeros((), device=device)
        order = batches(sites, self.plan.step_size, self.recipe.per_site, self.generator)
        if order.shape[1] // self.recipe.accumulate < share.of:
            raise ValueError(FEW_ROWS.format(n=order.shape[1] // self.recipe.accumulate, of=share.of))
        upcoming = [share(part) for rows in order for part in parts_of(rows, self.recipe.accumulate)]
        with self.objective.reading(upcoming):
            for rows in order.to(device):
                total += self.step(rows)
        record = {"epoch": number, "loss": float(total) / self.plan.steps_per_epoch}
        self.fitted.eval()
        with torch.no_grad():
            held_out = self.fabric.broadcast(self.objective.validation_loss(self.fitted))
        return record if held_out is None else {**record, "validation_loss": held_out}

    def step(self, rows: Tensor) -> Tensor:
        """Take one step of the optimizer, in `recipe.accumulate` passes, and return the mean loss of its rows."""
        self.optimizer.zero_grad()
        total = torch.zeros((), device=rows.device)
        parts = parts_of(rows, self.recipe.accumulate)
        for number, part in enumerate(parts, 1):
            with self.fabric.no_backward_sync(self.network, enabled=number < len(parts)):
                loss = self.objective.loss(self.fitted, part) * (len(part) / len(rows))
                self.fabric.backward(loss)
            total += loss.detach()
        self.optimizer.step()
        self.scheduler.step()
        return total


def train(
    module: nn.Module,
    objective: Objective,
    recipe: Recipe,
    *,
    device: str = "auto",
    devices: int | str = 1,
    nodes: int = 1,
    strategy: str = "auto",
    seed: int = 0,
    verbose: bool | None = None,
    label: str = "training",
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: int = 1,
    keep_checkpoint: bool = False,
) -> Training:
    """Train a module. On a CPU, the same seed gives bitwise the same result.

    Parameters
    ----------
    module : nn.Module
        The network; its weights are replaced by the best snapshot.
    objective : Objective
        The loss to minimize.
    recipe : Recipe
        The settings of the training.
    device : {"auto", "cpu", "cuda", "mps"}
        Where to train; "auto" is a GPU if there is one.
    devices : int or "auto"
        The number of devices of each machine. They share the rows of every step. The result is that of one device, up
        to rounding.
    nodes : int
        The number of machines.
    strategy : {"auto", "ddp", "ddp_spawn"}
        "auto" uses the processes that torchrun started, or starts new ones without torchrun. "ddp" uses only the
        processes of torchrun, "ddp_spawn" only new ones.
    seed : int
        Seed of all random numbers.
    verbose : bool, optional
        Whether to show a progress bar; by default only on a terminal.
    label : str
        Name of the training, for the progress bar and the checkpoint.
    checkpoint : path, optional
        A file, or a folder for the files of several trainings. If the file of an interrupted training exists, the
        training is continued.
    checkpoint_every : int
        The number of epochs after which the checkpoint is written again.
    keep_checkpoint : bool
        Keep the checkpoint at the end; a further call then returns the result without training.

    Returns
    -------
    Training
        The trained module and its history.
    """
    result = launch(
        _train_here,
        _Task(module, objective, recipe, seed, verbose, label, checkpoint, checkpoint_every, keep_checkpoint),
        device=device,
        devices=devices,
        nodes=nodes,
        strategy=strategy,
        precision=recipe.precision,
    )
    course = _Course(**result["course"])
    if course.best_state is None:
        raise FloatingPointError(f"{label} diverged: the validation loss was never a number; lower the learning rate")
    module.load_state_dict(course.best_state)
    return Training(module.cpu().eval(), course.best_epoch, course.history, result["checkpoint"])


def own_seed(seed: int, epoch: int, share: Share) -> int:
    """Return the seed of a process in an epoch, for dropout, augmentation and unlabeled rows."""
    return (seed * 1_000_003 + epoch * 10_007 + share.rank) % 2**63


@dataclass(frozen=True)
class _Task:
    """The arguments of `train` for every process."""

    module: nn.Module
    objective: Objective
    recipe: Recipe
    seed: int
    verbose: bool | None
    label: str
    checkpoint: str | os.PathLike[str] | None
    checkpoint_every: int
    keep_checkpoint: bool


def _train_here(fabric: Any, task: _Task) -> dict[str, Any]:
    """Train in this process, together with the others if there are any; return the state at the end."""
    share = Share(fabric.global_rank, fabric.world_size)
    module, objective, recipe = task.module, task.objective, task.recipe
    if share.of > 1:
        module = shared_batch_norm(copy.deepcopy(module), fabric.device)
    if fabric.device.type == "cpu":
        keep_freed_memory()
    plan = plan_training(objective.sites, recipe)
    module.to(fabric.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = _optimizer(module, recipe, fabric.device)
    scheduler = _schedule(optimizer, recipe, plan.epochs * plan.steps_per_epoch)
    network, stepper = fabric.setup(module, optimizer)  # all processes start with the weights of the first
    fitted = DistributedNetwork(network, share) if share.of > 1 else network
    identity = _identify(task, module) if share.of > 1 or task.checkpoint is not None else {}
    saved = None if task.checkpoint is None else open_checkpoint(task.checkpoint, task.label, identity)
    objective.to(fabric.device)
    generator = torch.Generator().manual_seed(task.seed)
    course = _Course()
    loop = _Loop(fabric, network, fitted, stepper, scheduler, objective, recipe, plan, generator, task.seed)
    parts: dict[str, Stateful] = {
        "module": module,
        "optimizer": optimizer,
        "schedule": scheduler,
        "precision": precision_of(fabric),
        "objective": objective,
        "course": course,
    }
    bar = progress_bar(task.label, plan.epochs, task.verbose if share.rank == 0 else False)
    with _random_state(task.seed), _fastest_convolutions(), bar as advance:
        if saved is not None:
            saved.restore(parts, generator)
        if share.of > 1:
            check_agreement(fabric, {**identity, "epochs behind": str(course.epoch)}, ALIKE)
        for record in course.history:
            advance(record)
        while not course.ended(plan.epochs, recipe.patience):
            course.note(loop.epoch(course.epoch + 1), module)
            advance(course.history[-1])
            logger.debug("%s: %s", task.label, course.history[-1])
            if saved is not None and share.rank == 0 and course.epoch % task.checkpoint_every == 0:
                saved.save(parts, generator)
    return {"course": course.state_dict(), "checkpoint": _kept(saved, task, share)}


def _kept(saved: Checkpoint | None, task: _Task, share: Share) -> Path | None:
    """Return the file of the checkpoint if it is kept after the training; otherwise the first process removes it."""
    if saved is None or task.keep_checkpoint:
        return None if saved is None else saved.path
    if share.rank == 0:
        saved.remove()
    return None


def _identify(task: _Task, module: nn.Module) -> dict[str, str]:
    """Return the identity of this training, without the devices, so that other devices can continue the training."""
    recipe = {f"recipe.{name}": value for name, value in asdict(task.recipe).items()}
    return identify(module, {"training": task.label, "seed": task.seed, **recipe, **task.objective.identity()})


def _optimizer(module: nn.Module, recipe: Recipe, device: torch.device) -> torch.optim.AdamW:
    fused = device.type == "cuda" or None  # one launch a step
    return torch.optim.AdamW(
        module.parameters(), lr=recipe.learning_rate, weight_decay=recipe.weight_decay, fused=fused
    )


def _schedule(optimizer: torch.optim.Optimizer, recipe: Recipe, n_steps: int) -> Any:
    if recipe.schedule == "constant":
        return torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=recipe.learning_rate, total_steps=n_steps)


@contextmanager
def _fastest_convolutions() -> Iterator[None]:
    """Let cuDNN search for the fastest convolution; all batches have one size, so it searches once."""
    before, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


@contextmanager
def _random_state(seed: int) -> Iterator[None]:
    """Seed torch's global generators for dropout and augmentation, and restore them afterwards."""
    devices = list(range(torch.cuda.device_count()))
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield


@contextmanager
def progress_bar(label: str, epochs: int, verbose: bool | None) -> Iterator[Any]:
    """Show a progress bar if `verbose`; None means on a terminal only."""
    if not (sys.stderr.isatty() if verbose is None else verbose):
        yield lambda record: None
        return
    from rich.console import Console
    from rich.progress import Progress, TextColumn, TimeRemainingColumn

    columns = (*Progress.get_default_columns()[:3], TimeRemainingColumn(), TextColumn("{task.fields[note]}"))
    console = Console(stderr=True)  # without a terminal the bar is printed once, at the end
    with Progress(*columns, console=console, transient=console.is_terminal) as bar:
        task = bar.add_task(label, total=epochs, note="")

        def advance(record: dict[str, float]) -> None:
            note = " ".join(f"{name} {value:.3f}" for name, value in record.items() if name != "epoch")
            bar.update(task, advance=1, note=note)

        yield advance


def count_parallel(n_tasks: int, device: str, devices: int | str = 1, nodes: int = 1) -> int:
    """Return how many trainings like the last one fit on the GPU at the same time; 1 without a GPU.

    It is also 1 in a worker process of a pool, because the processes of the pool already share the GPU.
    """
    on_gpu = device in ("auto", "cuda", "gpu") and torch.cuda.is_available()
    alone = devices == 1 and nodes == 1 and torchrun_processes() is None and multiprocessing.parent_process() is None
    if not (on_gpu and alone):
        return 1
    free, _ = torch.cuda.mem_get_info()
    return max(1, min(n_tasks, os.cpu_count() or 1, free // (torch.cuda.max_memory_reserved() + CONTEXT)))


def run_side_by_side(
    function: Callable[..., Result], tasks: Sequence[tuple[Any, ...]], n_parallel: int, label: str, verbose: bool | None
) -> Iterator[Result]:
    """Yield function(*task) for every task, in order.

    It is computed in `n_parallel` processes, or in this process if `n_parallel` is 1.
    """
    if n_parallel == 1:
        yield from (function(*task) for task in tasks)
        return
    from joblib import Parallel, delayed

    with progress_bar(label, len(tasks), verbose) as advance:
        for result in Parallel(n_parallel, return_as="generator")(delayed(function)(*task) for task in tasks):
            advance({})
            yield result
