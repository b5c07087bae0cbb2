"""The interface of all kinds of data: populations that sites draw from, and what a kind must define."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sitewise.bench.experiments.experiment import Experiment
from sitewise.sites import Site

Array = np.ndarray[Any, Any]
Folder = str | None
Options = dict[str, Any]
Truth = Callable[[Any], Array]  # Z -> P(y|z), (n, K)


@dataclass(frozen=True)
class Population:
    """What the rows of a site are drawn from: a draw of n rows by a seed, the true P(y), and P(y|z) if known.

    A real site is its own population: its only draw is all of its rows, and its P(y) is that of its labels.
    """

    draw: Callable[[int | None, int], Site]
    marginal: Array
    given_z: Truth | None


def no_faults(*options: Options) -> list[str]:
    """No problems, for kinds without options."""
    return []


@dataclass(frozen=True)
class Kind:
    """A kind of data: the options of `data` and of a site, the problems of a site's options, its population.

    `load(data, folder)` reads the source of the sites, and `split` gives for a seed the part of each role; both are
    None for simulated data. `populate(data, name, options, part, rng)` gets a role's part, and an rng for what a site
    draws once, before its rows. Sites of a `real` kind are used with all rows; nothing is drawn. `data_faults` gives
    the problems of `data` itself; `prepare` is called once, with what was loaded, before an experiment runs.
    """

    data: tuple[str, ...]
    site: tuple[str, ...]
    faults: Callable[[Options, Options], list[str]]
    populate: Callable[[Options, str, Options, Any, np.random.Generator], Population]
    load: Callable[[Options, Folder], Any] | None = None
    split: Callable[[Any, int], dict[str, Any]] | None = None
    real: bool = False
    data_faults: Callable[[Options], list[str]] = no_faults
    prepare: Callable[[Any, Experiment], None] | None = None
