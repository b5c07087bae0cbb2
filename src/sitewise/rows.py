"""Rows of sites as frozen records, read and encoded once by `fit` and `adapt`.

Each stage adds columns: inputs to train on (`LabeledRows`), log f of a site's rows (`ScoredRows`), or log f of held-out
labeled rows (`HeldOut`). All of them are selected, joined and averaged in the same way. A column that a subclass
requires is declared with `field()`, because otherwise it would inherit the default None.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self, TypeVar

import torch
from torch import Tensor

from sitewise.inputs import Inputs, StoredImages, take_inputs

OF_SOME = {"of_some": True}  # marks fields that have entries for only some of the rows
Kind = TypeVar("Kind", bound="SiteRows")


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class SiteRows:
    """Rows in their original order, with one field for each known column and None for the others."""

    codes: Tensor  # (n, V) codes of z; V = 0 without confounders
    weight: Tensor | None = None  # (n,)
    y: Tensor | None = None  # (n,) class indices, NaN where unknown
    groups: Tensor | None = None  # (n,) indices of groups, for example patients
    site: Tensor | None = None  # (n,) indices of sites

    def __len__(self) -> int:
        return len(self.codes)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} rows)"

    @property
    def weights(self) -> Tensor:
        """The weight of every row, (n,) in double precision; all are one if no weights were given."""
        return torch.ones(len(self), dtype=torch.float64) if self.weight is None else self.weight.double()

    def weighted_mean(self, values: Tensor) -> Tensor:
        """Return the weighted mean over rows of values (n, ...)."""
        weights = self.weights
        return weights @ values / weights.sum()

    def take(self, rows: Tensor) -> Self:
        """Select rows by position or mask; stored images stay on the disk, and features are dropped."""
        rows = rows.nonzero().flatten() if rows.dtype == torch.bool else rows

        def some(value: Any) -> Any:
            return take_inputs(value, rows) if isinstance(value, Tensor | StoredImages) else value

        return self._each(lambda name, of_some: None if of_some else some(getattr(self, name)))

    def join(self, other: Self) -> Self:
        """Append the rows of another record.

        If only one record has weights, the weights of the other are one; if only one has labels, the labels of the
        other are unknown. Groups of the two records are different, even if they have the same number. If only one
        record has groups, each row of the other is a group of its own. Other columns that one record lacks are dropped.
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
        """Return a column; if it is None, return its default values, or None if it has no default."""
        if column is not None or name not in ("weight", "y", "groups"):
            return column
        if name == "groups":
            return torch.arange(len(self))
        return torch.full((len(self),), 1.0 if name == "weight" else torch.nan, dtype=torch.float64)

    def extended(self, kind: type[Kind], **more: Any) -> Kind:
        """Return the same rows with more columns, as a record of another class."""
        own = {f.name for f in fields(kind)} - set(more)
        return kind(**{f.name: getattr(self, f.name) for f in fields(self) if f.name in own}, **more)

    def _each(self, change: Callable[[str, bool], Any]) -> Self:
        return replace(self, **{f.name: change(f.name, bool(f.metadata)) for f in fields(self)})


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class LabeledRows(SiteRows):
    """Labeled rows for training or validation."""

    X: Inputs
    y: Tensor = field()
    weight: Tensor = field()
    site: Tensor = field()

    def balanced(self) -> "LabeledRows":
        """Return the same rows with weights that give every class the same total."""
        mass = torch.zeros(int(self.y.max()) + 1 if len(self) else 0).index_add_(0, self.y, self.weight.float())
        return replace(self, weight=self.weight / mass[self.y].clamp_min(1e-30))

    def to(self, device: torch.device) -> "LabeledRows":
        """Copy labels, weights, sites, and inputs if they fit, to a device; codes of z stay on the device of g."""
        y, weight, site = (column.to(device) for column in (self.y, self.weight, self.site))
        return replace(self, X=self.X.to(device), y=y, weight=weight, site=site)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class ScoredRows(SiteRows):
    """A site's rows with their log f, without the inputs.

    Rows at which f is not identified (`supported` is false) are not used to estimate g. `features` are the inputs of
    the network's last layer for the rows `feature_rows`; both are None without a network.
    """

    log_ratio: Tensor  # (n, K) calibrated
    supported: Tensor  # (n,) bool
    features: Tensor | None = field(default=None, metadata=OF_SOME)  # (m, D) float32
    feature_rows: Tensor | None = field(default=None, metadata=OF_SOME)  # (m,)
    without_z: Tensor | None = None  # (n, K) log f(x, missing), if the joint model replaced it in `log_ratio`

    def by_knockout(self) -> "ScoredRows":
        """Return the rows with log f(x, missing) where z is missing, in place of the result of the joint model."""
        return self if self.without_z is None else replace(self, log_ratio=self.without_z)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class HeldOut(SiteRows):
    """Held-out labeled rows: log f before calibration, and log g of models that were fitted without these labels."""

    raw_log_ratio: Tensor  # (n, K)
    log_prevalence: Tensor  # (n, K)
    y: Tensor = field()
    weight: Tensor = field()
    features: Tensor | None = field(default=None, metadata=OF_SOME)  # (m, D) float32
    feature_rows: Tensor | None = field(default=None, metadata=OF_SOME)  # (m,)
    known_codes: Tensor | None = None  # the full codes of z, if some are masked in `codes`

    def shifted(self, shift: Callable[[Tensor], Tensor]) -> Self:
        """Return the same rows with `shift(codes)`, (n, K), added to log f."""
        return replace(self, raw_log_ratio=self.raw_log_ratio + shift(self.codes)) if len(self) else self

    def balanced(self, log_mean: Callable[[Tensor], Tensor]) -> Self:
        """Return the same rows after dividing f by its mean at their codes of z (equation 18a)."""
        return self.shifted(lambda codes: -log_mean(codes))
