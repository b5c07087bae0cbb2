"""The interface of all kinds of data: the population of a site, and the definition of a kind."""

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
    """The population of a site, from which rows are drawn.

    A real site is its own population: each draw is all of its rows, and P(y) is computed from its labels.

    Parameters
    ----------
    draw : callable
        `draw(n, seed)` returns a `Site` with n rows.
    marginal : ndarray of shape (K,)
        The true P(y).
    given_z : callable or None
        `given_z(Z)` returns the true P(y|z), (n, K); None if it is not known.
    """

    draw: Callable[[int | None, int], Site]
    marginal: Array
    given_z: Truth | None


def no_faults(*options: Options) -> list[str]:
    """Return no problems: for kinds without options or without checks of them.

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
    """A kind of data: its options in the YAML, their checks, and the functions that make the population of a site.

    Parameters
    ----------
    data : tuple of str
        The names of the options in `data`.
    site : tuple of str
        The names of the options of a site.
    faults : callable
        `faults(data, options)` returns a list of problems of a site's options.
    populate : callable
        `populate(data, name, options, part, rng)` returns the `Population` of a site. `part` is the part of the source
        that belongs to the site's role; `rng` is for values that are drawn once for a site, such as its P(y).
    load : callable, optional
        `load(data, folder)` reads the source of the sites; None for simulated data.
    split : callable, optional
        `split(source, seed)` returns the part of the source for each role, as a dict; None for simulated data.
    real : bool
        Whether sites are real: then they are used with all their rows, and nothing is drawn.
    data_faults : callable
        `data_faults(data)` returns a list of problems of the options in `data`.
    prepare : callable, optional
        `prepare(source, experiment)` is called before the first run, once for each variant of the experiment.
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
