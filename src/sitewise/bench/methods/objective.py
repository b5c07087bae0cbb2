"""The loss of a method for the training loop: rows become a batch, and the method's hook computes the loss."""

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
    """Labeled rows, as many unlabeled rows of each site that has them, and the progress of training.

    If several processes share a batch, inputs are those of this process's rows and everything else is of all rows: the
    module reads the former and returns outputs for the latter.
    """

    x: Tensor
    z: Tensor  # (n, 0) for methods that do not use z
    y: Tensor
    weight: Tensor
    site: Tensor  # numbers from 0; unlabeled sites follow the training sites
    columns: dict[str, Tensor]  # columns that the method prepared for all rows
    unlabeled: Tensor | None
    unlabeled_site: Tensor | None
    progress: Tensor  # the share of finished epochs, a number on the device
    n_sites: int  # of training
    n_domains: int  # training sites and unlabeled sites

    @property
    def n(self) -> int:
        """The number of labeled rows."""
        return len(self.y)

    def all_x(self) -> Tensor:
        """Labeled inputs, then unlabeled ones."""
        return self.x if self.unlabeled is None else torch.cat([self.x, self.unlabeled])

    def all_z(self) -> Tensor:
        """z for `all_x`: unlabeled rows have none, so such methods do not use z."""
        if self.unlabeled_site is None:
            return self.z
        return self.z.new_zeros(self.n + len(self.unlabeled_site), self.z.shape[1])

    def all_sites(self) -> Tensor:
        """The site of each row of `all_x`."""
        return self.site if self.unlabeled_site is None else torch.cat([self.site, self.unlabeled_site])

    def site_weights(self) -> list[Tensor]:
        """For each training site the weights of its rows, zero for the others; needs no synchronization on a GPU."""
        return [self.weight * (self.site == s) for s in range(self.n_sites)]


@dataclass
class Prepared:
    """What a method computes before training: columns for the training rows, and other values."""

    columns: dict[str, Tensor] = field(default_factory=dict)
    memory: Any = None


class Trains(Protocol):
    """The hooks of a method that trains a network."""

    def build(self, network: RatioNetwork, n_domains: int, prepared: Prepared) -> nn.Module:
        """The module to train."""
        ...

    def loss(self, module: nn.Module, batch: Batch, memory: Any) -> Tensor:
        """The loss of a batch."""
        ...

    def validation_loss(self, outputs: Tensor, rows: LabeledRows, memory: Any) -> Tensor:
        """The loss of held-out rows, given the network's outputs for them."""
        ...

    def begin_epoch(self, memory: Any) -> None:
        """What the method does between epochs."""
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
    settings: dict[str, str] = field(default_factory=dict)  # of the method itself

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
        """Note the progress of training."""
        self._progress.fill_(progress)
        self.method.begin_epoch(self.prepared.memory)

    def reading(self, upcoming: Sequence[Tensor]) -> AbstractContextManager[None]:
        """Read images on disk ahead of `loss`; unlabeled ones are read when drawn."""
        return self._read.reading(self.training.X, upcoming, self._device)

    def loss(self, module: nn.Module, rows: Tensor) -> Tensor:
        """The method's loss of some rows."""
        return self.method.loss(module, self._batch(rows, share_of(module)), self.prepared.memory)

    def validation_loss(self, module: nn.Module) -> float | None:
        """The method's loss of the held-out rows."""
        if not len(self.validation):
            return None
        outputs = score(module, self.validation.X, self._held_z, self._device)
        return float(self.method.validation_loss(outputs, self.validation, self.prepared.memory))

    def identity(self) -> dict[str, str]:
        """The method's settings, and the data."""
        return {
            **{f"method.{name}": value for name, value in self.settings.items()},
            "training rows": digest_rows(self.training),
            "validation rows": digest_rows(self.validation),
            "unlabeled rows": digest(*map(fingerprint, self.unlabeled)),
            "columns": digest(*self.prepared.columns.values()),
        }

    def state_dict(self) -> dict[str, Any]:
        """The tensors that the method keeps from batch to batch."""
        memory = self.prepared.memory
        kept = vars(memory) if is_dataclass(memory) else {}
        return {name: value for name, value in kept.items() if isinstance(value, Tensor)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore them."""
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
    """The NLL of rows by softmax(logits)."""
    return weighted_nll(logits, rows.y, rows.weight)
