"""Sites as frozen records: the rows of each site, with or without labels."""

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
    """The rows of one site.

    Parameters
    ----------
    name : str
        The site's name.
    X : array, DataFrame or stored images
        The inputs, one for each row. Stored images are `PackedImages`.
    y : array, optional
        The labels, one for each row.
    Z : DataFrame or array, optional
        The confounders, one row for each row of X.
    groups : array, optional
        The group of each row, for example the patient.
    sample_weight : array, optional
        The weight of each row.

    Examples
    --------
    >>> oslo = Site("Oslo", X, y, Z=pd.DataFrame({"age": age}))
    >>> new = oslo.without_labels()
    """

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
        """Select rows by position.

        Parameters
        ----------
        rows : array of int
            Positions of the rows.

        Returns
        -------
        Site
            The same site with these rows only.
        """
        parts = (self.X, self.y, self.Z, self.groups, self.sample_weight)
        return Site(self.name, *(take_rows(part, rows) for part in parts))

    def without_labels(self) -> "Site":
        """Return the same rows without their labels.

        Returns
        -------
        Site
            The same site with `y=None`.
        """
        return Site(self.name, self.X, None, self.Z, self.groups, self.sample_weight)


@dataclass(frozen=True)
class Sites:
    """Several sites with distinct names, in order.

    Parameters
    ----------
    sites : tuple of Site
        The sites.

    Examples
    --------
    >>> sites = Sites.split(X, y, sample_domain=hospital, Z=Z)
    >>> sites.names
    ('Bergen', 'Oslo')
    >>> oslo = sites["Oslo"]
    """

    sites: tuple[Site, ...]

    def __post_init__(self) -> None:
        problems = Problems("sites")
        names = [site.name for site in self.sites]
        if not names:
            problems.add("at least one site is needed")
        for name in sorted({n for n in names if names.count(n) > 1}, key=str):
            problems.add(f"duplicate name: there are several sites {name!r}")
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
        """Split rows into sites by the site name of each row.

        Parameters
        ----------
        X : array, DataFrame or stored images
            The inputs of all rows. Stored images are `PackedImages`.
        y : array, optional
            The labels.
        sample_domain : array, optional
            The name of the site of each row. If it is None, all rows belong to one site.
        Z : DataFrame or array, optional
            The confounders, one row for each row of X.
        groups : array, optional
            The group of each row, for example the patient.
        sample_weight : array, optional
            The weight of each row.

        Returns
        -------
        Sites
            The sites, sorted by name.
        """
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
        sites = []
        for name in sorted(names.unique(), key=lambda value: (str(type(value)), value)):
            site = whole.take(np.flatnonzero((names == name).to_numpy()))
            sites.append(Site(name, site.X, site.y, site.Z, site.groups, site.sample_weight))
        return cls(tuple(sites))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the sites, in order."""
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
    """Select rows of any container by position; stored images stay on the disk."""
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
