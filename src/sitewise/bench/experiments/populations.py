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
    """The population of a site: draws its rows, and knows its true P(y).

    A real site is its own population: each draw has all of its rows, and the true P(y) are the shares of its labels.

    Parameters
    ----------
    draw : callable
        `draw(n, seed)` returns a `Site` with n rows; n is None for a real site.
    marginal : ndarray of shape (K,)
        The true P(y).
    given_z : callable or None
        `given_z(Z)` returns the true P(y|z), (n, K); None if it is not known.
    """

    draw: Callable[[int | None, int], Site]
    marginal: Array
    given_z: Truth | None


def no_faults(*options: Options) -> list[str]:
    """Return an empty list of problems. It is `faults` or `data_faults` of a `Kind` whose options are not checked.

    Parameters
    ----------
    *options : dict
        The options, which are ignored.

    Returns
    -------
    list of str
        An empty list.
    """
    return []


@dataclass(frozen=True)
class Kind:
    """A kind of data for experiments: its options in the YAML file, their checks, and functions that make the sites.

    In the arguments of the functions, `data` are the options in the section `data` of the YAML file, and `options`
    those of a site. The role of a site is "training", "validation" or "test".

    Parameters
    ----------
    data : tuple of str
        The names of the options in the section `data`, without `kind`.
    site : tuple of str
        The names of the options of a site.
    faults : callable
        `faults(data, options)` returns a list of texts: what is wrong with the options of a site.
    populate : callable
        `populate(data, name, options, part, rng)` returns the `Population` of the site `name`. `part` is the part of
        the source for the site's role (None for simulated data). `rng` is a random generator for values that are drawn
        once for a site, such as its P(y).
    load : callable, optional
        `load(data, folder)` reads the source of all sites, for example a set of digits; None for simulated data.
    split : callable, optional
        `split(source, seed)` divides the source, and returns a dict with the part for each role; None for simulated
        data.
    real : bool
        Whether the sites are real. Real sites are used with all their rows, and nothing is drawn.
    data_faults : callable
        `data_faults(data)` returns a list of texts: what is wrong with the options in `data`.
    prepare : callable, optional
        `prepare(source, experiment)` is called before the first run, for example to check that the sites exist. If the
        experiment has variants, it is called once for each.
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
