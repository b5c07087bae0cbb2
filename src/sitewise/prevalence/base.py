"""Parts shared by all models of g: the protocol, the lower limit of log g, and sums over rows with equal z."""

import copy
import math
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from sitewise.arrays import distinct_rows
from sitewise.confounders import Confounders
from sitewise.confounders.schema import mask_patterns

FLOOR = math.log(1e-12)  # lower limit of log g
SMOOTHING = 1.0  # pseudo-rows with uniform labels, so that log g is finite even if only one class occurs


@runtime_checkable
class Prevalence(Protocol):
    """A fitted g, which returns log P(y|z) at rows of codes of z; any values of z may be missing."""

    @property
    def name(self) -> str:
        """The name of the family."""
        ...

    def log_prob(self, codes: Tensor) -> Tensor:
        """Return log P(y|z) at codes (n, V), (n, K); all entries are finite."""
        ...


def is_constant(model: Prevalence) -> bool:
    """Return whether a model of g declares that g is the same for every z."""
    return getattr(model, "is_constant", False)


@dataclass(frozen=True)
class Aggregate:
    """Weights and soft labels, summed over rows with equal z: the data for a fit to soft labels.

    U is the number of distinct values of z, V the number of variables.
    """

    codes: Tensor  # (U, V) distinct values of z
    index: Tensor  # (n,) position in `codes` of each row's z
    weight: Tensor  # (U,) sum of the rows' weights
    totals: Tensor  # (U, K) sum of the rows' weighted soft labels


def aggregate(targets: Tensor, codes: Tensor, weight: Tensor) -> Aggregate:
    """Sum weights and weighted soft labels over rows with equal z."""
    distinct, index = distinct_rows(codes)
    weights = torch.zeros(len(distinct), dtype=weight.dtype, device=weight.device).index_add_(0, index, weight)
    totals = torch.zeros(len(distinct), targets.shape[1], dtype=targets.dtype, device=targets.device)
    return Aggregate(distinct, index, weights, totals.index_add_(0, index, targets * weight[:, None]))


def masked_copies(data: Aggregate, schema: Confounders, knockout: float) -> Aggregate:
    """Copy the distinct values of z once for every knockout pattern, weighted by the probability of the pattern."""
    patterns = mask_patterns(len(schema.variables), knockout)
    if not patterns:
        return Aggregate(data.codes[:0], data.index[:0], data.weight[:0], data.totals[:0])
    codes = torch.cat([schema.knock_out(data.codes, mask.to(data.codes.device)) for mask, _ in patterns])
    weight = torch.cat([share * data.weight for _, share in patterns])
    share_of = torch.cat([data.totals / data.weight.clamp_min(1e-300)[:, None]] * len(patterns))
    return aggregate(share_of, codes, weight)


def smooth(targets: Tensor, weight: Tensor, smoothing: float) -> Tensor:
    """Mix soft labels (n, K) with the uniform distribution, with share smoothing / (total weight + smoothing)."""
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
    """Raise log-probabilities to at least FLOOR, and normalize them."""
    return torch.log_softmax(log_prob.clamp_min(FLOOR), dim=-1)


def mean_log_prob(log_prob: Tensor, weight: Tensor) -> Tensor:
    """Return the log of the weighted mean, over rows, of probabilities given as logs (n, K), (K,)."""
    return torch.logsumexp(log_prob + torch.log(weight / weight.sum())[:, None], dim=0)


@dataclass(frozen=True)
class ConstantPrevalence:
    """log g(z) = log P(y) for every z."""

    log_marginal: Tensor  # (K,)
    name: str = "constant"
    is_constant: ClassVar[bool] = True

    def log_prob(self, codes: Tensor) -> Tensor:
        """Return log P(y) for every row, (n, K)."""
        return self.log_marginal.expand(codes.shape[0], -1)  # `shape[0]` can be traced for export, `len` cannot


def fit_constant(targets: Tensor, weight: Tensor, *, smoothing: float = SMOOTHING) -> ConstantPrevalence:
    """Fit a constant g to soft labels: g is their weighted mean.

    Parameters
    ----------
    targets : Tensor of shape (n, K)
        The soft labels: probabilities of the classes for each row, for example one-hot labels or predictions.
    weight : Tensor of shape (n,)
        Weights of the rows.
    smoothing : float
        The weight of one more row, whose soft label is uniform. Because of it, no class has probability zero.

    Returns
    -------
    ConstantPrevalence
        The fitted g; `log_marginal` (K,) is log g.

    Examples
    --------
    >>> fit_constant(torch.eye(2)[y].double(), torch.ones(len(y)).double()).log_marginal.exp()
    """
    mean = weight @ smooth(targets, weight, smoothing) / weight.sum()
    return ConstantPrevalence(finite(mean.log()))
