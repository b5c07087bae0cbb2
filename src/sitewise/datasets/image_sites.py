"""Sites from a manifest and its images, in memory or packed on the disk."""

from collections.abc import Iterable
from typing import Any, Protocol, runtime_checkable

import numpy as np

from sitewise.sites import Site, Sites
from sitewise.tables.manifest import Manifest
from sitewise.tables.manifest.table import BINARY


@runtime_checkable
class ImagesById(Protocol):
    """Images that can be selected by id, such as `PackedImages`."""

    def by_id(self, ids: Iterable[str]) -> Any:
        """Return the images of some ids, in their order."""
        ...


def to_sites(manifest: Manifest, images: Any) -> Sites:
    """Make sites from a manifest and its images; labels, confounders and groups come from the manifest.

    `images` are packed images, which are selected by id and stay on the disk, or an array with one image for each row.
    """
    return Sites(tuple(to_site(manifest, images, name) for name in manifest.sites))


def to_site(manifest: Manifest, images: Any, name: str | None = None) -> Site:
    """Return one of the sites; `name` may be omitted if there is only one."""
    if name is None and len(manifest.sites) > 1:
        raise ValueError(f"name one of the {len(manifest.sites)} sites: {', '.join(manifest.sites)}")
    if not isinstance(images, ImagesById) and len(images) != len(manifest):
        raise ValueError(f"images must be one for each of {len(manifest)} row(s), got {len(images)}")
    chosen = manifest.at(name or manifest.sites[0])
    rows = np.flatnonzero((manifest.table["site"] == chosen.sites[0]).to_numpy())
    labels = chosen.table["y"].to_numpy() if chosen.labeled else None
    return Site(
        chosen.sites[0],
        X=images.by_id(chosen.table["id"]) if isinstance(images, ImagesById) else images[rows],
        y=labels.astype(np.int64) if labels is not None and chosen.classes == BINARY else labels,
        Z=chosen.table[list(chosen.confounders)] if chosen.confounders else None,
        groups=chosen.table["group"].to_numpy() if "group" in chosen.table else None,
    )
