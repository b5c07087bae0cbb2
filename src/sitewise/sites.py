"""Sites as frozen records: what was measured where, with labels or without."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from sitewise.arrays import Problems, as_pandas
from sitewise.inputs import is_stored


@dataclass(frozen=True)
class Site:
    """One site's rows: inputs X, labels y (None where there are none), confounders Z, patients (groups), weights."""

    name: str
    X: Any
    y: Any = None
    Z: Any = None
    groups: Any = None
    sample_weight: Any = None

    def __post_init__(self) -> None:
        problems = Problems(f"site {self.name!r}")
        for field in ("y", "Z", "groups", "sample_weight"):
            value = getattr(self, field)
            if value is not None and len(value) != len(self.X):
                problems.add(f"{field} has {len(value)} row(s), X has {len(self.X)}")
        problems.raise_if_any()

    def __len__(self) -> int:
        return len(self.X)

    def take(self, rows: Any) -> "Site":
        """Some of the rows, by position."""
        parts = (self.X, self.y, self.Z, self.groups, self.sample_weight)
        return Site(self.name, *(take_rows(part, rows) for part in parts))

    def without_labels(self) -> "Site":
        """The same rows as a new site would show them."""
        return Site(self.name, self.X, None, self.Z, self.groups, self.sample_weight)


@dataclass(frozen=True)
class Sites:
    """Several sites, in order, each with a name of its own."""

    sites: tuple[Site, ...]

    def __post_init__(self) -> None:
        problems = Problems("sites")
        names = [site.name for site in self.sites]
        if not names:
            problems.add("at least one site is needed")
        for name in sorted({n for n in names if names.count(n) > 1}, key=str):
            problems.add(f"site {name!r} stands twice")
        problems.raise_if_any()

    @classmethod
    def split(
        cls,
        X: Any,
        y: Any = None,
        *,
        sample_domain: Any = None,
        Z: Any = None,
        groups: Any = None,
        sample_weight: Any = None,
    ) -> "Sites":
        """Split rows into sites by their name in `sample_domain`; None makes one site of them."""
        whole = Site("site", X, y, Z, groups, sample_weight)
        if sample_domain is None:
            return cls((whole,))
        names = pd.Series(sample_domain.cpu().numpy() if isinstance(sample_domain, Tensor) else sample_domain)
        problems = Problems("sites")
        if len(names) != len(whole):
            problems.add(f"sample_domain has {len(names)} row(s), X has {len(whole)}")
        elif names.isna().any():
            first = int(np.flatnonzero(names.isna().to_numpy())[0])
            problems.add(f"sample_domain is missing in {int(names.isna().sum())} row(s), first at row {first}")
        problems.raise_if_any()
        parts = []
        for name in sorted(names.unique(), key=lambda value: (str(type(value)), value)):
            part = whole.take(np.flatnonzero((names == name).to_numpy()))
            parts.append(Site(name, part.X, part.y, part.Z, part.groups, part.sample_weight))
        return cls(tuple(parts))

    @property
    def names(self) -> tuple[str, ...]:
        """The sites' names."""
        return tuple(site.name for site in self.sites)

    def __len__(self) -> int:
        return len(self.sites)

    def __iter__(self) -> Iterator[Site]:
        return iter(self.sites)

    def __getitem__(self, name: str) -> Site:
        for site in self.sites:
            if site.name == name:
                return site
        raise KeyError(f"no site {name!r}; the sites are {', '.join(map(str, self.names))}")


def take_rows(values: Any, rows: Any) -> Any:
    """Rows of any container by position; stored images stay on the disk."""
    if values is None:
        return None
    values = as_pandas(values)
    if isinstance(values, pd.DataFrame | pd.Series):
        return values.iloc[rows]
    if isinstance(values, dict):
        return {name: take_rows(column, rows) for name, column in values.items()}
    if isinstance(values, list | tuple):
        return [values[i] for i in np.arange(len(values))[rows]]
    return values.take(rows) if is_stored(values) else values[rows]
