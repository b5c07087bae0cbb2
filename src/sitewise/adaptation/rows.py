"""Chunks of unlabeled rows, and the sums over rows that solvers need.

A large f is stored in single precision. Sums are computed in double precision, one chunk of rows at a time, so that a
pass over the rows needs little memory.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from itertools import chain
from typing import Generic, TypeVar

import torch
from torch import Tensor

from sitewise.arrays import keep_freed_memory
from sitewise.posterior import Moments, binary_direction, normalize

STRETCH = 2**20  # entries of f in a chunk: enough to keep all threads busy, few enough for the cache
WIDE_STRETCH = 2**18  # entries of f in single precision that are converted to double precision at a time
GPU_STRETCH = 2**28
MODERATE = 40.0  # log-ratios of smaller size can be exponentiated without scaling
LARGE = 2**20  # a larger number of entries of f is stored in single precision

T = TypeVar("T")
S = TypeVar("S")


@dataclass(frozen=True)
class Rows:
    """A chunk of n rows; rows with equal z can share a row of `codes`.

    U is the number of rows of `codes`, V the number of variables of z, K the number of classes.
    """

    ratio: Tensor  # (n, K) f, each row scaled to sum to one; with two classes (n, 1): f_1 - f_0
    weight: Tensor | None  # (n,); None means ones
    codes: Tensor  # (U, V) codes of z
    cell: Tensor | None  # (n,) index of each row's z in `codes`; None if U = 1 or U = n
    groups: Tensor | None  # (n,) the group of each row

    def __len__(self) -> int:
        return len(self.ratio)

    @property
    def n_classes(self) -> int:
        """The number of classes K."""
        return max(2, self.ratio.shape[1])

    @cached_property
    def cell_weight(self) -> Tensor:
        """The weight of the rows with each z of `codes`, (U,)."""
        if self.weight is None and len(self.codes) == 1:
            return self.codes.new_full((1,), float(len(self)))
        return self.by_cell(self.codes.new_ones(len(self)) if self.weight is None else self.weight)

    def at_rows(self, values: Tensor) -> Tensor:
        """Expand values at each z of `codes` (U, ...) to the rows, (n, ...)."""
        return values.expand(len(self), *values.shape[1:]) if self.cell is None else values[self.cell]

    def by_cell(self, values: Tensor) -> Tensor:
        """Sum values of the rows (n, ...) over rows with equal z, (U, ...)."""
        if self.cell is None:
            return values.sum(0, keepdim=True) if len(self.codes) == 1 else values
        if values.ndim == 1:
            return torch.bincount(self.cell, values, minlength=len(self.codes))
        return values.new_zeros(len(self.codes), *values.shape[1:]).index_add_(0, self.cell, values)

    def weighted(self, values: Tensor) -> Tensor:
        """Multiply values of the rows (n, ...) by their weights."""
        return values if self.weight is None else values * self.weight.reshape(-1, *[1] * (values.ndim - 1))

    def pick(self, index: Tensor | slice) -> "Rows":
        """Select rows of a chunk without z."""
        assert self.cell is None
        assert len(self.codes) == 1
        weight, groups = (None if column is None else column[index] for column in (self.weight, self.groups))
        return Rows(self.ratio[index], weight, self.codes, None, groups)

    def take(self, start: int, stop: int, step: int = 1) -> "Rows":
        """Select every `step`-th row from `start` to `stop`, in a chunk without z."""
        return self.pick(slice(start, stop, step))

    def without_codes(self) -> "Rows":
        """Return the same rows without z, for a constant g."""
        return replace(self, codes=self.codes.new_zeros(1, 0), cell=None)

    def in_single_precision(self) -> "Rows":
        """Return the same rows with f in single precision."""
        return replace(self, ratio=self.ratio.float())

    def n_bytes(self) -> int:
        """Return the number of bytes of all tensors."""
        parts = (self.ratio, self.weight, self.codes, self.cell, self.groups)
        return sum(part.nelement() * part.element_size() for part in parts if part is not None)


class Stream(Generic[T]):
    """A re-iterable sequence: items kept in memory, followed by items that are made again in each pass."""

    def __init__(self, kept: Iterable[T], rest: Callable[[], Iterable[T]] = tuple) -> None:
        self.kept = list(kept)
        self.rest = rest

    def __iter__(self) -> Iterator[T]:
        yield from self.kept
        yield from self.rest()

    @property
    def in_memory(self) -> bool:
        """Whether all items are kept in memory."""
        return self.rest is tuple

    def map(self, function: Callable[[T], S], *, keep: bool = True) -> "Stream[S]":
        """Return the stream of the results of a function.

        It is applied now to the items in memory, and in each pass to the other items. If `keep` is false, it is applied
        to all items in each pass.
        """
        if keep:
            rest = tuple if self.in_memory else lambda: map(function, self.rest())
            return Stream(map(function, self.kept), rest)
        return Stream((), lambda: map(function, self))

    def followed_by(self, other: "Stream[T]") -> "Stream[T]":
        """Return a stream of the items of both streams."""
        if self.in_memory and other.in_memory:
            return Stream([*self.kept, *other.kept])
        return Stream((), lambda: chain(self, other))

    def sums(self, function: Callable[[Iterable[T]], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """Apply a function that sums over items, and return its sums.

        All rows of a group are in the same call of the function. A stream in partitions calls the function once for
        each partition and adds up the results.
        """
        return function(self)

    def total(self, function: Callable[[T], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """Apply a function to each item and add up the results; return an empty tuple if there are no items."""
        return self.sums(partial(_sum_each, function))

    def collect(self, function: Callable[[T], S]) -> list[S]:
        """Return the results of a function for all items, in order; the results should be small."""
        return [function(thing) for thing in self]

    def any(self, function: Callable[[T], bool]) -> bool:
        """Return whether a condition holds for any item."""
        return any(map(function, self))


def _sum_each(function: Callable[[T], tuple[Tensor, ...]], things: Iterable[T]) -> tuple[Tensor, ...]:
    return add_up(map(function, things))


def add_up(summands: Iterable[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """Add up tuples of tensors, position by position; empty tuples are ignored."""
    sums: tuple[Tensor, ...] = ()
    for more in summands:
        sums = tuple(total + value for total, value in zip(sums, more, strict=True)) if sums and more else sums or more
    return sums


def to_ratio(log_ratio: Tensor) -> Tensor:
    """Convert log f (n, K) without NaN to f as it is stored in `Rows`.

    Rows are scaled as in `normalize`. A large f is rounded to single precision.
    """
    dtype = torch.float64
    if log_ratio.nelement() > LARGE:
        dtype = torch.float32
        keep_freed_memory()
    if log_ratio.shape[1] == 2:
        return _to_contrast(log_ratio).to(dtype)[:, None]
    ratio = log_ratio.new_empty(log_ratio.shape, dtype=dtype)
    low, high = log_ratio.aminmax()
    moderate = bool((low > -MODERATE) & (high < MODERATE))
    for part, into in zip(_stretches(log_ratio), _stretches(ratio), strict=True):
        into.copy_(part if moderate else part - part.amax(1, keepdim=True))
        total = into.exp_().sum(1, keepdim=True)
        into.div_(total)
        odd = total[:, 0].isnan()  # infinities
        if odd.any():
            into[odd] = normalize(part[odd].double()).exp().to(dtype)
    return ratio


def _to_contrast(log_ratio: Tensor) -> Tensor:
    contrast = (log_ratio[:, 1] - log_ratio[:, 0]).mul_(0.5).tanh_()
    odd = contrast.isnan()
    if odd.any():
        certain = normalize(log_ratio[odd].double()).exp()
        contrast[odd] = (certain[:, 1] - certain[:, 0]).to(contrast.dtype)
    return contrast


def know_labels(ratio: Tensor, rows: Tensor, classes: Tensor) -> None:
    """Set f of the labeled rows, in place, to one for the known class and zero for all others (equation 7b)."""
    if ratio.shape[1] == 1:
        ratio[rows, 0] = (2 * classes - 1).to(ratio.dtype)
        return
    ratio[rows] = 0.0
    ratio[rows, classes] = 1.0


def stretch_size(values: Tensor, width: int) -> int:
    """Return the number of rows of a chunk, for rows with `width` entries; larger on a GPU, to launch fewer kernels."""
    return max(1, (GPU_STRETCH if values.is_cuda else STRETCH) // width)


def _stretches(values: Tensor) -> tuple[Tensor, ...]:
    return torch.split(values, stretch_size(values, values.shape[1]))


def mixture(rows: Rows, prevalence: Tensor) -> tuple[Tensor, Tensor]:
    """Return f in double precision, (n, J), and m = Σ_y f_y g_y of every row, (n,), for g (U, K)."""
    ratio = rows.ratio.double()
    if ratio.shape[1] == 1:
        lean = rows.at_rows(prevalence[:, 1] - prevalence[:, 0])
        return ratio, (ratio[:, 0] * lean).add_(1.0).mul_(0.5)
    if len(prevalence) == 1:
        return ratio, ratio @ prevalence[0]
    return ratio, (ratio * rows.at_rows(prevalence)).sum(1)


def rough_moments(rows: Rows, prevalence: Tensor, order: int) -> Moments:
    """Return `moments` of rows with one z, computed in the precision of f: faster, with about six correct digits."""
    mixed = rows.ratio @ prevalence[0].to(rows.ratio.dtype)
    log_likelihood = rows.weighted(mixed.log()).sum(dtype=torch.float64)
    sums = (total.double() for total in _sums_of_one_z(rows, rows.ratio, mixed, order))
    return Moments(prevalence, rows.cell_weight, log_likelihood[None], *sums)


def moments(rows: Rows, prevalence: Tensor, order: int) -> Moments:
    """Return sums over the rows at g (U, K), for each z.

    These are the log-likelihood, its slope in g if `order` is at least 1, and its curvature if `order` is 2.
    """
    if len(rows.codes) == 1 and rows.ratio.shape[1] == 1:
        lean = prevalence[0, 1] - prevalence[0, 0]
        number_sums_of = sums_of_numbers(rows.ratio.device.type, rows.ratio.dtype)
        numbers = number_sums_of(rows.ratio[:, 0], rows.weight, lean)[: order + 1]
        shaped = (number.reshape((1,) * (place + 1)) for place, number in enumerate(numbers))
        return Moments(prevalence, rows.cell_weight, *shaped)
    one_z = len(rows.codes) == 1 and rows.cell is None
    if one_z and rows.ratio.dtype == torch.float32 and not rows.ratio.is_cuda:  # converted parts fit into the cache
        size = max(1, WIDE_STRETCH // rows.ratio.shape[1])
        parts = (rows.take(start, start + size) for start in range(0, max(1, len(rows)), size))
        return Moments(prevalence, rows.cell_weight, *add_up(_moments(part, prevalence, order) for part in parts))
    return Moments(prevalence, rows.cell_weight, *_moments(rows, prevalence, order))


def _moments(rows: Rows, prevalence: Tensor, order: int) -> tuple[Tensor, ...]:
    """Return the sums of `moments`, computed from all rows of the chunk at once."""
    ratio, mixed = mixture(rows, prevalence)
    log_likelihood = rows.by_cell(rows.weighted(mixed.log()))
    if order == 0:
        return (log_likelihood,)
    sums = _sums_of_one_z if len(rows.codes) == 1 else _sums_by_cell
    return log_likelihood, *sums(rows, ratio, mixed, order)


def number_sums(contrast: Tensor, weight: Tensor | None, lean: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return Σ w log m, Σ w u and Σ w u² (see `Moments`) for two classes and rows with one z.

    `contrast` (n,) is f_1 - f_0, and `lean` is g_1 - g_0.
    """
    contrast = contrast.double()
    mixed = (contrast * lean).add_(1.0).mul_(0.5)
    score = contrast / mixed
    log_mixed = mixed.log_()
    if weight is None:
        return log_mixed.sum(), score.sum(), torch.dot(score, score)
    return torch.dot(weight, log_mixed), torch.dot(weight, score), torch.dot(weight * score, score)


def quick_number_sums(contrast: Tensor, weight: Tensor | None, lean: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the sums of `number_sums` on a GPU, where divisions and logarithms in double precision are slow.

    A single-precision reciprocal and one Newton step give u with fifteen correct digits. log m of each row is rounded
    to single precision before it is summed.
    """
    wide = contrast.double()
    mixed = 0.5 * (1.0 + wide * lean)
    rounded = mixed.float()
    inverse = rounded.reciprocal().double()
    score = wide * inverse * (2.0 - mixed * inverse)
    log_mixed = rounded.log().double()
    if weight is None:
        return log_mixed.sum(), score.sum(), (score * score).sum()
    return (weight * log_mixed).sum(), (weight * score).sum(), (weight * score * score).sum()


@cache
def sums_of_numbers(device_type: str, dtype: torch.dtype) -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    """Return `number_sums`, or on a GPU a compiled kernel that computes the same sums and reads the rows only once."""
    if device_type != "cuda":
        return number_sums
    return torch.compile(quick_number_sums if dtype == torch.float32 else number_sums, dynamic=True)


def _sums_of_one_z(rows: Rows, ratio: Tensor, mixed: Tensor, order: int) -> tuple[Tensor, ...]:
    """Return Σ w u (1, J) and Σ w u uᵀ (1, J, J) of rows with one z by matrix products; J is 1 if K = 2, else K."""
    per_row = rows.weighted(mixed.reciprocal()).to(ratio.dtype)
    first = (per_row @ ratio)[None]
    if order == 1:
        return (first,)
    return first, (ratio.T @ (ratio * (per_row / mixed)[:, None]))[None]


def _sums_by_cell(rows: Rows, ratio: Tensor, mixed: Tensor, order: int) -> tuple[Tensor, ...]:
    """Return Σ w u (U, J) and Σ w u uᵀ (U, J, J), computed by columns to avoid a tensor of shape (n, J, J)."""
    scores = ratio / mixed[:, None]
    weighted = rows.weighted(scores)
    first = rows.by_cell(weighted)
    if order == 1:
        return (first,)
    columns = [rows.by_cell(weighted[:, j : j + 1] * scores) for j in range(scores.shape[1])]
    return first, torch.stack(columns, dim=1)


def scores(rows: Rows, prevalence: Tensor) -> Tensor:
    """Return f / m, (n, K), for g (U, K): the derivative of each row's log-likelihood with respect to the row's g."""
    ratio, mixed = mixture(rows, prevalence)
    relative = ratio / mixed[:, None]
    return relative if relative.shape[1] > 1 else 1.0 + relative * rows.at_rows(binary_direction(prevalence))
