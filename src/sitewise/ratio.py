"""The ratio f: a network on x and z, and its training loss given each site's log g (equation 4)."""

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from sitewise.backbones.build import build_backbone
from sitewise.confounders import Confounders
from sitewise.inputs import Inputs, fingerprint, read_ahead
from sitewise.prevalence.base import Prevalence
from sitewise.rows import LabeledRows
from sitewise.training.checkpoint import digest
from sitewise.training.devices import share_of

FUSION_WIDTH = 100
CHANGING = threading.RLock()  # held while a network is converted, moved, or put in evaluation mode
SCORING_BATCH = 2048
SCORED_VALUES = 2**26  # largest number of values of x in a batch: a batch of large images has fewer rows


class RatioNetwork(nn.Module):
    """log f(x,z) up to a constant: backbone(x) concatenated with z, then Lin(100), ReLU, Lin(100), ReLU, Lin(K)."""

    def __init__(self, backbone: nn.Module, width: int, n_inputs: int, n_classes: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.fusion = nn.Sequential(
            nn.Linear(width + n_inputs, FUSION_WIDTH),
            nn.ReLU(),
            nn.Linear(FUSION_WIDTH, FUSION_WIDTH),
            nn.ReLU(),
            nn.Linear(FUSION_WIDTH, n_classes),
        )

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        """Return the log-ratios (n, K) of inputs x and of z as encoded by `Confounders.inputs`."""
        return self.fusion[-1](self.features(x, z))  # type: ignore[no-any-return]

    def features(self, x: Tensor, z: Tensor) -> Tensor:
        """Return the inputs of the last layer, (n, 100)."""
        return self.fusion[:-1](torch.cat([self.backbone(x), z], dim=1))  # type: ignore[no-any-return]


def build_ratio(
    backbone: str | nn.Module,
    X: Inputs,
    schema: Confounders | None,
    n_classes: int,
    seed: int,
    *,
    weights: str | os.PathLike[str] | None = None,
    normalize: str | None = None,
) -> RatioNetwork:
    """Build the network of f for inputs like X, with random weights drawn from a seed.

    `weights` is a file with weights of the backbone, which then replace the random ones.
    """
    n_inputs = 0 if schema is None else schema.missing_columns()[-1] + 1
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # weights are drawn on the CPU; other generators stay unchanged
        module, width = build_backbone(backbone, X, weights=weights, normalize=normalize)
        return RatioNetwork(module, width, n_inputs, n_classes)


def digest_rows(rows: LabeledRows) -> str:
    """Return a short hash of training rows."""
    return digest(fingerprint(rows.X), rows.y, rows.weight, rows.site, rows.codes)


class RowReader:
    """Returns the inputs of rows during training; stored images are read in advance."""

    def __init__(self) -> None:
        self._read: Callable[[Tensor], Tensor] | None = None

    @contextmanager
    def reading(self, X: Inputs, upcoming: Sequence[Tensor], device: torch.device) -> Iterator[None]:
        """Open a context in which the batches `upcoming` are requested in this order."""
        with read_ahead(X, upcoming, device) as self._read:
            try:
                yield
            finally:
                self._read = None

    def __call__(self, X: Inputs, rows: Tensor) -> Tensor:
        """Return the inputs of some rows on the device of the row indices."""
        return X[rows].to(rows.device) if self._read is None else self._read(rows)


@dataclass
class RatioObjective:
    """The training loss of f: the NLL of equation 3 with fixed g. The same parts of z are hidden from f and from g.

    If `prevalences` is None, log g is zero, and the loss is that of plain empirical risk minimization.
    """

    training: LabeledRows
    validation: LabeledRows | None
    schema: Confounders | None
    prevalences: Sequence[Prevalence] | None
    validation_log_prevalence: Tensor | None
    knockout: float
    augment: Callable[[Tensor], Tensor] | None = None
    _inputs: Tensor = field(init=False, repr=False)
    _log_prevalence: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.sites = self.training.site
        self._device = torch.device("cpu")
        self._read = RowReader()

    def to(self, device: torch.device) -> None:
        """Copy labels, and inputs if they fit, to the device; the codes of z stay on the device of g."""
        self._device, self.training = device, self.training.to(device)
        self.validation = None if self.validation is None else self.validation.to(device)

    def begin_epoch(self, generator: torch.Generator, progress: float) -> None:
        """Draw the knockout masks of z (equation 5), the same for f and g; compute log g and inputs of f from them."""
        codes = self.training.codes
        if self.schema is not None:
            mask = torch.rand(codes.shape, generator=generator) < self.knockout
            codes = self.schema.knock_out(codes, mask)
        self._inputs = network_inputs(self.schema, codes).to(self._device)
        self._log_prevalence = self._site_log_prevalence(codes).float().to(self._device)

    def reading(self, upcoming: Sequence[Tensor]) -> AbstractContextManager[None]:
        """Read the stored images of the upcoming batches before `loss` requests them."""
        return self._read.reading(self.training.X, upcoming, self._device)

    def loss(self, module: nn.Module, rows: Tensor) -> Tensor:
        """Return the weighted mean NLL of some rows."""
        x = self._read(self.training.X, share_of(module)(rows))
        if self.augment is not None:
            x = self.augment(x)
        logits = module(x, self._inputs[rows]) + self._log_prevalence[rows]
        return weighted_nll(logits, self.training.y[rows], self.training.weight[rows])

    def validation_loss(self, module: nn.Module) -> float | None:
        """Return the NLL of the held-out rows without knockout; None if there are no held-out rows."""
        if self.validation is None or not len(self.validation):
            return None
        log_ratio = score(module, self.validation.X, network_inputs(self.schema, self.validation.codes), self._device)
        assert self.validation_log_prevalence is not None
        logits = log_ratio + self.validation_log_prevalence.float().to(self._device)
        return float(weighted_nll(logits, self.validation.y, self.validation.weight))

    def identity(self) -> dict[str, str]:
        """Return the knockout probability, the models of g, and hashes of the data."""
        given = self.validation_log_prevalence
        return {
            "knockout": str(self.knockout),
            "g": "none" if self.prevalences is None else ", ".join(g.name for g in self.prevalences),
            "training rows": digest_rows(self.training),
            "validation rows": "none" if self.validation is None else digest_rows(self.validation),
            "validation g": "none" if given is None else digest(given),
        }

    def state_dict(self) -> dict[str, Any]:
        """Return an empty state: masks are drawn again in every epoch."""
        return {}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Do nothing: there is no state."""

    def _site_log_prevalence(self, codes: Tensor) -> Tensor:
        if self.prevalences is None:
            return torch.zeros(len(codes), 1)
        log_prevalence: Tensor | None = None
        for site, prevalence in enumerate(self.prevalences):
            rows = self.sites == site
            if not rows.any():
                continue
            own = prevalence.log_prob(codes[rows])
            if log_prevalence is None:
                log_prevalence = own.new_zeros(len(codes), own.shape[1])
            log_prevalence[rows] = own
        assert log_prevalence is not None
        return log_prevalence


def weighted_nll(logits: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """Return the NLL of labels: the weighted mean over rows of -log softmax(logits)_y.

    Parameters
    ----------
    logits : Tensor of shape (n, K)
        Outputs of a network, or log f + log g.
    y : Tensor of shape (n,)
        Class indices.
    weight : Tensor of shape (n,)
        Weights of the rows.

    Returns
    -------
    Tensor
        The loss, a number.

    Examples
    --------
    >>> weighted_nll(torch.tensor([[2.0, 0.0]]), torch.tensor([0]), torch.ones(1))
    tensor(0.1269)
    """
    losses = nn.functional.cross_entropy(logits, y, reduction="none")
    return (weight * losses).sum() / weight.sum()


def for_network(X: Inputs) -> Inputs:
    """Convert inputs for training: tables to single precision; images are unchanged."""
    return X.float() if isinstance(X, Tensor) and X.dtype == torch.float64 else X


def network_inputs(schema: Confounders | None, codes: Tensor) -> Tensor:
    """Return the D input columns of z for f, (n, D) in float32; D is 0 without confounders."""
    return codes.new_zeros(len(codes), 0).float() if schema is None else schema.inputs(codes).float()


def score(module: nn.Module, X: Inputs, z: Tensor, device: torch.device | None = None) -> Tensor:
    """Return the outputs of a network for rows, computed in batches.

    The network is in evaluation mode, so that the outputs of a row do not depend on the other rows.
    """
    was_training = module.training
    if any(layer.training for layer in module.modules()):
        module.eval()
    size = min(SCORING_BATCH, max(1, SCORED_VALUES // max(1, X.shape[1:].numel())))
    places = [slice(start, start + size) for start in range(0, len(X), size)]
    own = [share_of(module).within(place, len(X)) for place in places]
    with torch.no_grad(), read_ahead(X, own, device) as read:
        scores = [module(read(share).to(device), z[place].to(device)) for share, place in zip(own, places, strict=True)]
    if was_training:
        module.train()
    return torch.cat(scores)


@dataclass(frozen=True)
class Scorer:
    """A trained network that scores rows, on a GPU if there is one. Between calls it is on the CPU.

    Tables in float64 are scored in float64, so that the score of a row is the same in any batch. Several threads may
    call it at the same time. While one thread converts or moves the network, the others wait, because a network that is
    only partly converted gives wrong scores.
    """

    module: nn.Module
    device: str = "auto"

    def __call__(self, X: Inputs, z: Tensor) -> Tensor:
        """Return the network's outputs, (n, m) in float64 on the CPU."""
        device = scoring_device(self.device)
        dtype = torch.float64 if X.dtype == torch.float64 else torch.float32
        z = z.to(X.dtype) if X.is_floating_point() else z
        with CHANGING:
            module = self.module if _is_ready(self.module, device, dtype) else self.module.to(device, dtype)
            if device.type != "cpu":
                outputs = score(module, X, z, device).double().cpu()
                self.module.to("cpu")
                return outputs
        return score(module, X, z, device).double()


def _is_ready(module: nn.Module, device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether a module has this device and precision. For one row, this check is faster than `Module.to`."""
    values = chain(module.parameters(), module.buffers())
    return all(value.device == device and value.dtype in (dtype, torch.int64) for value in values)


def scoring_device(device: str) -> torch.device:
    """Return the GPU if it is requested and available, else the CPU."""
    return torch.device("cuda" if device in ("auto", "cuda", "gpu") and torch.cuda.is_available() else "cpu")
