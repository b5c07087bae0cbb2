"""The objective of the training loop: it makes a batch of rows, and a hook of the method computes the loss."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, is_dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from sitewise.confounders import Confounders
from sitewise.inputs import Inputs, fingerprint
from sitewise.ratio import RatioNetwork, RowReader, digest_rows, network_inputs, score, weighted_nll
from sitewise.rows import LabeledRows
from sitewise.training.checkpoint import digest
from sitewise.training.devices import Share, share_of


@dataclass(frozen=True)
class Batch:
    """Labeled rows, unlabeled rows of each site that has some, and the progress of training.

    Each unlabeled site contributes as many rows as a training site does on average. If several processes share a batch,
    `x` and `unlabeled` have the rows of this process, and all other fields have all rows: the module reads the inputs
    of this process, gathers the outputs of all processes, and returns outputs for all rows.
    """

    x: Tensor
    z: Tensor  # (n, 0) for methods that do not use z
    y: Tensor
    weight: Tensor
    site: Tensor  # numbers from 0; unlabeled sites follow the training sites
    columns: dict[str, Tensor]  # `Prepared.columns` of these rows
    unlabeled: Tensor | None
    unlabeled_site: Tensor | None
    progress: Tensor  # the share of finished epochs, a number on the device
    n_sites: int  # the number of training sites
    n_domains: int  # the number of training sites and unlabeled sites

    @property
    def n(self) -> int:
        """The number of labeled rows."""
        return len(self.y)

    def all_x(self) -> Tensor:
        """Return the labeled inputs, followed by the unlabeled inputs."""
        return self.x if self.unlabeled is None else torch.cat([self.x, self.unlabeled])

    def all_z(self) -> Tensor:
        """Return z for the rows of `all_x`. With unlabeled rows it is all zeros: their z is unknown."""
        if self.unlabeled_site is None:
            return self.z
        return self.z.new_zeros(self.n + len(self.unlabeled_site), self.z.shape[1])

    def all_sites(self) -> Tensor:
        """Return the site of each row of `all_x`."""
        return self.site if self.unlabeled_site is None else torch.cat([self.site, self.unlabeled_site])

    def site_weights(self) -> list[Tensor]:
        """Return for each training site the weights of the labeled rows, (n,), with zero for rows of other sites.

        A mask instead of indices needs no synchronization with a GPU.
        """
        return [self.weight * (self.site == s) for s in range(self.n_sites)]


@dataclass
class Prepared:
    """Values that a method computes before training: columns for the training rows, and `memory` for all else."""

    columns: dict[str, Tensor] = field(default_factory=dict)
    memory: Any = None


class Trains(Protocol):
    """The hooks of a method that trains a network."""

    def build(self, network: RatioNetwork, n_domains: int, prepared: Prepared) -> nn.Module:
        """Return the module to train."""
        ...

    def loss(self, module: nn.Module, batch: Batch, memory: Any) -> Tensor:
        """Return the loss of a batch."""
        ...

    def validation_loss(self, outputs: Tensor, rows: LabeledRows, memory: Any) -> Tensor:
        """Return the loss of the held-out rows, given the network's outputs for them."""
        ...

    def begin_epoch(self, memory: Any) -> None:
        """Update `memory` at the start of an epoch."""
        ...


@dataclass
class MethodObjective:
    """The objective of a method that trains one network on labeled rows, with or without unlabeled rows."""

    method: Trains
    training: LabeledRows
    validation: LabeledRows
    schema: Confounders | None  # None for methods that do not use z
    prepared: Prepared
    unlabeled: list[Inputs]
    augment: Callable[[Tensor], Tensor] | None = None
    settings: dict[str, str] = field(default_factory=dict)  # `Method.own_settings`

    def __post_init__(self) -> None:
        self.sites = self.training.site
        self._device = torch.device("cpu")
        self._progress = torch.zeros(())
        self._read = RowReader()
        self._n_sites = int(self.sites.max()) + 1
        self._z = network_inputs(self.schema, self.training.codes)
        self._held_z = network_inputs(self.schema, self.validation.codes)

    def to(self, device: torch.device) -> None:
        """Move everything that a batch needs to the device, except images that do not fit."""
        self._device = device
        self.training, self.validation = self.training.to(device), self.validation.to(device)
        self._z, self._held_z, self._progress = (part.to(device) for part in (self._z, self._held_z, self._progress))
        self.unlabeled = [x.to(device) for x in self.unlabeled]
        self.prepared.columns = {name: column.to(device) for name, column in self.prepared.columns.items()}

    def begin_epoch(self, generator: torch.Generator, progress: float) -> None:
        """Store the progress of training, and call the hook of the method."""
        self._progress.fill_(progress)
        self.method.begin_epoch(self.prepared.memory)

    def reading(self, upcoming: Sequence[Tensor]) -> AbstractContextManager[None]:
        """Read labeled images from disk before `loss` needs them; unlabeled images are read when they are drawn."""
        return self._read.reading(self.training.X, upcoming, self._device)

    def loss(self, module: nn.Module, rows: Tensor) -> Tensor:
        """Return the method's loss of a batch of these rows."""
        return self.method.loss(module, self._batch(rows, share_of(module)), self.prepared.memory)

    def validation_loss(self, module: nn.Module) -> float | None:
        """Return the method's loss of the held-out rows; None if there are none."""
        if not len(self.validation):
            return None
        outputs = score(module, self.validation.X, self._held_z, self._device)
        return float(self.method.validation_loss(outputs, self.validation, self.prepared.memory))

    def identity(self) -> dict[str, str]:
        """Return the method's settings and digests of the data, by which a checkpoint is recognized."""
        return {
            **{f"method.{name}": value for name, value in self.settings.items()},
            "training rows": digest_rows(self.training),
            "validation rows": digest_rows(self.validation),
            "unlabeled rows": digest(*map(fingerprint, self.unlabeled)),
            "columns": digest(*self.prepared.columns.values()),
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the tensors in the method's memory, which it keeps from batch to batch."""
        memory = self.prepared.memory
        kept = vars(memory) if is_dataclass(memory) else {}
        return {name: value for name, value in kept.items() if isinstance(value, Tensor)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore the tensors of `state_dict`."""
        for name, value in state_dict.items():
            setattr(self.prepared.memory, name, value.to(getattr(self.prepared.memory, name).device))

    def _batch(self, rows: Tensor, share: Share) -> Batch:
        x, site = self._read(self.training.X, share(rows)), self.training.site[rows]
        unlabeled = unlabeled_site = None
        if self.unlabeled:
            n_each = math.ceil(len(rows) / self._n_sites)
            before = range(len(rows), len(rows) + n_each * len(self.unlabeled), n_each)
            drawn = [
                pool[share(torch.randint(len(pool), (n_each,), device=self._device), first)]
                for pool, first in zip(self.unlabeled, before, strict=True)
            ]
            unlabeled = torch.cat(drawn).to(self._device)
            numbers = torch.arange(self._n_sites, self._n_sites + len(drawn), device=self._device)
            unlabeled_site = numbers.repeat_interleave(n_each)
        if self.augment is not None:
            x = self.augment(x)
            unlabeled = None if unlabeled is None else self.augment(unlabeled)
        columns = {name: column[rows] for name, column in self.prepared.columns.items()}
        y, weight = self.training.y[rows], self.training.weight[rows]
        return Batch(
            x=x,
            z=self._z[rows],
            y=y,
            weight=weight,
            site=site,
            columns=columns,
            unlabeled=unlabeled,
            unlabeled_site=unlabeled_site,
            progress=self._progress,
            n_sites=self._n_sites,
            n_domains=self._n_sites + len(self.unlabeled),
        )


def mean_nll(logits: Tensor, rows: LabeledRows) -> Tensor:
    """Return the weighted mean NLL of rows under softmax(logits)."""
    return weighted_nll(logits, rows.y, rows.weight)
