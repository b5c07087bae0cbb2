"""Rows of sites as the method sees them: one frozen record, read and encoded at the door of fit and adapt.

Each stage adds columns to those before it: inputs to train on (`LabeledRows`), log f of a site's rows (`ScoredRows`) or
of labeled ones that were held out (`HeldOut`). Taking, joining and averaging are the same for all of them. `field()`
makes a column required that others may lack: without it the default is inherited.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self, TypeVar

import torch
from torch import Tensor

from sitewise.inputs import Inputs, StoredImages, take_inputs

OF_SOME = {"of_some": True}  # columns that not every row has
Kind = TypeVar("Kind", bound="SiteRows")


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class SiteRows:
    """Rows in the order they came, with a column for whatever is known of them, None where nothing is."""

    codes: Tensor  # (n, V) of z; V = 0 without confounders
    weight: Tensor | None = None  # (n,)
    y: Tensor | None = None  # (n,) class numbers, NaN where one is not known
    groups: Tensor | None = None  # (n,) numbers of patients, say
    site: Tensor | None = None  # (n,) numbers

    def __len__(self) -> int:
        return len(self.codes)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} rows)"

    @property
    def weights(self) -> Tensor:
        """The weight of every row in double precision: one where none was given."""
        return torch.ones(len(self), dtype=torch.float64) if self.weight is None else self.weight.double()

    def weighted_mean(self, values: Tensor) -> Tensor:
        """The mean over rows of values (n, ...)."""
        weights = self.weights
        return weights @ values / weights.sum()

    def take(self, rows: Tensor) -> Self:
        """Some of the rows, by number or mask; stored images stay on the disk, features are left behind."""
        rows = rows.nonzero().flatten() if rows.dtype == torch.bool else rows

        def some(value: Any) -> Any:
            return take_inputs(value, rows) if isinstance(value, Tensor | StoredImages) else value

        return self._each(lambda name, of_some: None if of_some else some(getattr(self, name)))

    def join(self, other: Self) -> Self:
        """The rows of both, these first.

        A weight or label that only one of them has is one, or unknown, in the other. Groups are numbers without names:
        none of the one is a group of the other, and a row without one is its own.
        """

        def both(name: str, _: bool) -> Any:
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine is None and theirs is None:
                return None
            mine, theirs = self._or_default(name, mine), other._or_default(name, theirs)
            if mine is None or theirs is None:
                return None
            if name == "groups":
                theirs = theirs + int(mine.max()) + 1
            return torch.cat([mine, theirs + len(self) if name == "feature_rows" else theirs])

        return self._each(both)

    def _or_default(self, name: str, column: Tensor | None) -> Tensor | None:
        """A column, or what rows have where only others were given one; None where there is no such thing."""
        if column is not None or name not in ("weight", "y", "groups"):
            return column
        if name == "groups":
            return torch.arange(len(self))
        return torch.full((len(self),), 1.0 if name == "weight" else torch.nan, dtype=torch.float64)

    def extended(self, kind: type[Kind], **more: Any) -> Kind:
        """The same rows with more columns, as a record of another kind."""
        own = {f.name for f in fields(kind)} - set(more)
        return kind(**{f.name: getattr(self, f.name) for f in fields(self) if f.name in own}, **more)

    def _each(self, change: Callable[[str, bool], Any]) -> Self:
        return replace(self, **{f.name: change(f.name, bool(f.metadata)) for f in fields(self)})


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class LabeledRows(SiteRows):
    """Rows to train or validate on."""

    X: Inputs
    y: Tensor = field()
    weight: Tensor = field()
    site: Tensor = field()

    def balanced(self) -> "LabeledRows":
        """The same rows, weighted so that every class counts alike in a mean."""
        mass = torch.zeros(int(self.y.max()) + 1 if len(self) else 0).index_add_(0, self.y, self.weight.float())
        return replace(self, weight=self.weight / mass[self.y].clamp_min(1e-30))

    def to(self, device: torch.device) -> "LabeledRows":
        """The same on a device, inputs where they fit; codes stay where g is."""
        y, weight, site = (part.to(device) for part in (self.y, self.weight, self.site))
        return replace(self, X=self.X.to(device), y=y, weight=weight, site=site)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class ScoredRows(SiteRows):
    """A site's rows once f has seen them: scores, never the inputs.

    Rows where f is not identified (`supported` is false) take no part in an estimate. `features` are what the network's
    last layer reads of the rows `feature_rows`, None where there is no network.
    """

    log_ratio: Tensor  # (n, K) calibrated
    supported: Tensor  # (n,) bool
    features: Tensor | None = field(default=None, metadata=OF_SOME)  # (m, D) float32
    feature_rows: Tensor | None = field(default=None, metadata=OF_SOME)  # (m,)
    without_z: Tensor | None = None  # (n, K) log f(x, missing), if replaced

    def by_knockout(self) -> "ScoredRows":
        """The rows as they are without the joint model: log f(x, missing) where z is missing."""
        return self if self.without_z is None else replace(self, log_ratio=self.without_z)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class HeldOut(SiteRows):
    """Labeled rows that were held out: log f before calibration, and log g by models that saw none of their labels."""

    raw_log_ratio: Tensor  # (n, K)
    log_prevalence: Tensor  # (n, K)
    y: Tensor = field()
    weight: Tensor = field()
    features: Tensor | None = field(default=None, metadata=OF_SOME)  # (m, D) float32
    feature_rows: Tensor | None = field(default=None, metadata=OF_SOME)  # (m,)
    known_codes: Tensor | None = None  # of z where some of it is hidden in `codes`

    def shifted(self, shift: Callable[[Tensor], Tensor]) -> Self:
        """The same rows with something of their codes, (n, K), added to log f."""
        return replace(self, raw_log_ratio=self.raw_log_ratio + shift(self.codes)) if len(self) else self

    def balanced(self, log_mean: Callable[[Tensor], Tensor]) -> Self:
        """The same rows with the mean of f at their codes divided out (equation 18a)."""
        return self.shifted(lambda codes: -log_mean(codes))
