"""What all models of g share: the protocol, the floor that keeps log g finite, and rows added up over equal z."""

import copy
import math
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from sitewise.arrays import distinct_rows
from sitewise.confounders import Confounders
from sitewise.confounders.schema import mask_patterns

FLOOR = math.log(1e-12)
SMOOTHING = 1.0  # pseudo-rows with uniform labels, so that g is finite at a site with one class only


@runtime_checkable
class Prevalence(Protocol):
    """A fitted g: log P(y|z) of rows of codes, of which any values may be missing."""

    @property
    def name(self) -> str:
        """The name of the family."""
        ...

    def log_prob(self, codes: Tensor) -> Tensor:
        """Return log P(y|z), (n, K), finite."""
        ...


def is_constant(model: Prevalence) -> bool:
    """Return whether a g declares itself to be the same for every z."""
    return getattr(model, "is_constant", False)


@dataclass(frozen=True)
class Aggregate:
    """Weights and soft labels added up over equal rows of z, which is all that a fit to soft labels needs."""

    codes: Tensor  # (U, V) distinct rows
    index: Tensor  # (n,) the distinct row of each row
    weight: Tensor  # (U,) their weight
    totals: Tensor  # (U, K) their weighted soft labels


def aggregate(targets: Tensor, codes: Tensor, weight: Tensor) -> Aggregate:
    """Sum weights and weighted soft labels over equal rows of z."""
    distinct, index = distinct_rows(codes)
    weights = torch.zeros(len(distinct), dtype=weight.dtype, device=weight.device).index_add_(0, index, weight)
    totals = torch.zeros(len(distinct), targets.shape[1], dtype=targets.dtype, device=targets.device)
    return Aggregate(distinct, index, weights, totals.index_add_(0, index, targets * weight[:, None]))


def masked_copies(data: Aggregate, schema: Confounders, knockout: float) -> Aggregate:
    """Copy the distinct rows once for every knockout pattern, weighted by its probability."""
    patterns = mask_patterns(len(schema.variables), knockout)
    if not patterns:
        return Aggregate(data.codes[:0], data.index[:0], data.weight[:0], data.totals[:0])
    codes = torch.cat([schema.knock_out(data.codes, mask.to(data.codes.device)) for mask, _ in patterns])
    weight = torch.cat([share * data.weight for _, share in patterns])
    share_of = torch.cat([data.totals / data.weight.clamp_min(1e-300)[:, None]] * len(patterns))
    return aggregate(share_of, codes, weight)


def smooth(targets: Tensor, weight: Tensor, smoothing: float) -> Tensor:
    """Mix soft labels with the uniform distribution, which counts as `smoothing` rows."""
    total = float(weight.sum())
    return (targets * total + smoothing / targets.shape[1]) / (total + smoothing)


def on_device(model: Prevalence, device: torch.device) -> Prevalence:
    """Return a copy of a fitted g with all its tensors on a device."""
    if not is_dataclass(model) or isinstance(model, type):
        return model
    moved: dict[str, Any] = {}
    for field in fields(model):
        value = getattr(model, field.name)
        if isinstance(value, Tensor):
            moved[field.name] = value.to(device)
        elif isinstance(value, nn.Module):
            moved[field.name] = copy.deepcopy(value).to(device)
        elif isinstance(value, Prevalence):
            moved[field.name] = on_device(value, device)
    return replace(model, **moved)


def finite(log_prob: Tensor) -> Tensor:
    """Raise log-probabilities to the floor and normalize them."""
    return torch.log_softmax(log_prob.clamp_min(FLOOR), dim=-1)


def mean_log_prob(log_prob: Tensor, weight: Tensor) -> Tensor:
    """Return the log of the weighted mean of probabilities over rows, (K,)."""
    return torch.logsumexp(log_prob + torch.log(weight / weight.sum())[:, None], dim=0)


@dataclass(frozen=True)
class ConstantPrevalence:
    """log g(z) = log P(y) for every z."""

    log_marginal: Tensor  # (K,)
    name: str = "constant"
    is_constant: ClassVar[bool] = True

    def log_prob(self, codes: Tensor) -> Tensor:
        """Return the marginal for every row."""
        return self.log_marginal.expand(codes.shape[0], -1)  # `shape[0]` can be traced for export, `len` cannot


def fit_constant(targets: Tensor, weight: Tensor, *, smoothing: float = SMOOTHING) -> ConstantPrevalence:
    """Fit a constant g to soft labels: their weighted mean.

    Parameters
    ----------
    targets : Tensor of shape (n, K)
        One-hot labels, or responsibilities.
    weight : Tensor of shape (n,)
        Weights of the rows.
    smoothing : float
        Rows of even labels that are added, so that no class has probability zero.

    Returns
    -------
    ConstantPrevalence
        Its `log_marginal` (K,) is log g.

    Examples
    --------
    >>> fit_constant(torch.eye(2)[y].double(), torch.ones(len(y)).double()).log_marginal.exp()
    """
    mean = weight @ smooth(targets, weight, smoothing) / weight.sum()
    return ConstantPrevalence(finite(mean.log()))
