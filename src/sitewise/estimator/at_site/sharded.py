"""A site's rows that several processes hold parts of: each scores its own, then all know the scores of all."""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from sitewise.estimator.scoring.features import FEATURE_ROWS
from sitewise.estimator.source.splitting import evenly
from sitewise.training import join_processes


@dataclass(frozen=True)
class SiteRows:
    """Scored rows of a site, with what the caller said of them, and the features of some of them."""

    log_ratio: Tensor
    Z: Any
    y: Any
    groups: Any
    weight: Any
    features: Tensor
    feature_rows: Tensor


def gather_rows(own: SiteRows, device: str) -> SiteRows:
    """The rows of all processes, one process after the other; inputs are not among what travels, scores are.

    Raise ValueError, in every process, where some give z, y, groups or weights and others do not.
    """
    fabric = join_processes(device)
    if fabric.world_size == 1:
        return own
    parts: list[Any] = [None] * fabric.world_size
    torch.distributed.all_gather_object(parts, _portable(own))
    for name in ("Z", "y", "groups", "weight"):
        given = [getattr(part, name) is not None for part in parts]
        if any(given) and not all(given):
            lacking = [rank for rank, there in enumerate(given) if not there]
            raise ValueError(f"adapt: the processes {lacking} give no {name}, the others do: all of them must, or none")
    first = np.cumsum([0, *(len(part.log_ratio) for part in parts[:-1])])
    numbers = torch.cat([part.feature_rows + int(before) for part, before in zip(parts, first, strict=True)])
    chosen = evenly(len(numbers), FEATURE_ROWS)
    return SiteRows(
        log_ratio=torch.cat([part.log_ratio for part in parts]),
        **{name: _join([getattr(part, name) for part in parts]) for name in ("Z", "y", "groups", "weight")},
        features=torch.cat([part.features for part in parts])[chosen],
        feature_rows=numbers[chosen],
    )


def _portable(rows: SiteRows) -> SiteRows:
    """The same on the CPU, so that no process looks for another's GPU."""
    parts = {field.name: getattr(rows, field.name) for field in fields(rows)}
    return SiteRows(**{name: part.cpu() if isinstance(part, Tensor) else part for name, part in parts.items()})


def _join(parts: list[Any]) -> Any:
    """Arrays, tensors, lists or pandas objects, one after the other."""
    if parts[0] is None:
        return None
    if isinstance(parts[0], pd.DataFrame | pd.Series):
        return pd.concat(parts, ignore_index=True)
    return np.concatenate([np.asarray(part) for part in parts])
