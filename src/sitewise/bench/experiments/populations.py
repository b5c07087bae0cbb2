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
    """The population of a site: a function that draws n rows by a seed, the true P(y), and P(y|z) if known.

    A real site is its own population: its only draw is all of its rows, and its P(y) is that of its labels.

    Parameters
    ----------
    draw : callable
        From a number of rows and a seed to a `Site`.
    marginal : ndarray of shape (K,)
        The true P(y).
    given_z : callable or None
        From Z to the true P(y|z), (n, K).
    """

    draw: Callable[[int | None, int], Site]
    marginal: Array
    given_z: Truth | None


def no_faults(*options: Options) -> list[str]:
    """Find no problems: for kinds without options.

    Parameters
    ----------
    *options : dict
        The options of data and of a site.

    Returns
    -------
    list of str
        An empty list.
    """
    return []


@dataclass(frozen=True)
class Kind:
    """A kind of data: the options of `data` and of a site, the problems of a site's options, its population.

    Parameters
    ----------
    data : tuple of str
        The options of `data`.
    site : tuple of str
        The options of a site.
    faults : callable
        From the options of data and of a site to a list of problems.
    populate : callable
        `populate(data, name, options, part, rng)` returns the `Population` of a site. It gets the part of the site's
        role, and an rng for what a site draws once, before its rows.
    load : callable, optional
        `load(data, folder)` reads the source of the sites; None for simulated data.
    split : callable, optional
        From the source and a seed to the part of each role; None for simulated data.
    real : bool
        Whether sites are used with all rows, so that nothing is drawn.
    data_faults : callable
        From the options of data to a list of problems.
    prepare : callable, optional
        Called once, with what was loaded, before an experiment runs.
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
