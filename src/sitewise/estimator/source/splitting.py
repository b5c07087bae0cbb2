"""Choose rows: held-out rows, folds, and evenly spread subsets."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from sitewise.estimator.source.reading import TrainingData
from sitewise.rows import SiteRows

CROSS_FIT_FOLDS = 5


def split_validation(data: TrainingData, validation: Any, seed: int) -> tuple[Tensor, Tensor]:
    """Row numbers to train on and to hold out: a share of each site and class (groups kept whole), or one site."""
    everything = torch.arange(len(data.rows))
    if validation is None or (not isinstance(validation, str) and validation == 0):
        return everything, everything[:0]
    if not isinstance(validation, float):
        if validation not in data.site_names:
            raise ValueError(f"validation names the site {validation!r}; the sites are {data.site_names}")
        held = data.rows.site == data.site_names.index(validation)
        if held.all():
            raise ValueError(f"validation={validation!r} is the only site: nothing is left to train on")
        return everything[~held], everything[held]
    if not 0 < validation < 1:
        raise ValueError(f"validation must be a share between 0 and 1, a site's name or None, got {validation}")
    rng = np.random.default_rng(seed)
    stratum = data.rows.site * (int(data.rows.y.max()) + 1) + data.rows.y
    groups = data.rows.groups
    units = everything if groups is None else groups
    held = torch.zeros(len(everything), dtype=torch.bool)
    apart = stratum if groups is None else data.rows.site
    for value in torch.unique(apart):
        inside = apart == value
        names = torch.unique(units[inside]).numpy()
        chosen = rng.permutation(names)[: int(validation * len(names))]
        held |= inside & torch.isin(units, torch.tensor(chosen, dtype=units.dtype))
    # A group with rows at several sites goes where its first site puts it.
    if groups is not None:
        held = torch.isin(groups, torch.unique(groups[held]))
    return everything[~held], everything[held]


def folds(rows: SiteRows, seed: int) -> list[Tensor]:
    """The rows of each fold: groups are kept whole, and each row is in one fold."""
    units = torch.arange(len(rows)) if rows.groups is None else torch.unique(rows.groups, return_inverse=True)[1]
    n_units = int(units.max()) + 1
    order = torch.tensor(np.random.default_rng(seed).permutation(n_units))
    fold_of_unit = order % min(CROSS_FIT_FOLDS, n_units)
    return [(fold_of_unit[units] == fold).nonzero().flatten() for fold in range(int(fold_of_unit.max()) + 1)]


def evenly(n_rows: int, at_most: int) -> Tensor:
    """Row numbers spread evenly over n rows; all of them if there are at most `at_most`."""
    return torch.arange(n_rows) if n_rows <= at_most else torch.arange(at_most) * n_rows // at_most
