"""The kinds of data an experiment can have: what its YAML may say of them, and the populations that sites draw from."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import softmax

from sitewise.datasets.digits import (
    ALPHA,
    CAUSAL_MODELS,
    COLORINGS,
    FLIPPED,
    colored_site,
    label_shift_site,
    shifted_prevalence,
    true_joint,
)
from sitewise.datasets.mnist import Digits
from sitewise.datasets.simulated import AGE_RANGE, SimulatedFamily
from sitewise.sites import Site

Array = np.ndarray[Any, Any]
Options = dict[str, Any]
Truth = Callable[[Any], Array]  # Z -> P(y|z), (n, K)
SHIFTS = ("dirichlet", "tweak_one")
N_DIGITS = 10


@dataclass(frozen=True)
class Population:
    """What the rows of a site are drawn from: a draw of n rows by a seed, the true P(y), and P(y|z) where known."""

    draw: Callable[[int, int], Site]
    marginal: Array
    given_z: Truth | None


@dataclass(frozen=True)
class Kind:
    """A kind of data: the options of `data` and of a site, what is wrong with a site's options, its population.

    `populate(data, name, options, digits, rng)`; `digits` is the part that the site may draw from, None where the kind
    needs none; `rng` is for what a site draws once, before its rows.
    """

    data: tuple[str, ...]
    site: tuple[str, ...]
    faults: Callable[[Options, Options], list[str]]
    populate: Callable[[Options, str, Options, Digits | None, np.random.Generator], Population]
    needs_digits: bool = True


def colored_faults(data: Options, options: Options) -> list[str]:
    """What is wrong with a site of colored digits."""
    found = _choice("data.model", data.get("model", "confounded"), tuple(CAUSAL_MODELS))
    found += _choice("data.coloring", data.get("coloring", "binary"), COLORINGS)
    if ("beta" in options) == ("joint" in options):
        found.append("give either beta, for the causal model, or joint, a table P(y, z) or `flipped`")
    if isinstance(options.get("joint"), str):
        found += _choice("joint", options["joint"], ("flipped",))
    return found


def colored_population(
    data: Options, name: str, options: Options, digits: Digits | None, rng: np.random.Generator
) -> Population:
    """Colored digits: a causal model at β, or a table P(y, z)."""
    assert digits is not None
    part, model, alpha = digits, data.get("model", "confounded"), data.get("alpha", ALPHA)
    coloring = data.get("coloring", "binary")
    given = dict(options)
    if given.get("joint") == "flipped":
        given["joint"] = FLIPPED
    table = np.asarray(given["joint"]) if "joint" in given else true_joint(model, alpha, given["beta"])
    given_z = table / table.sum(axis=0)

    def draw(n: int, seed: int) -> Site:
        return colored_site(part, n, model=model, alpha=alpha, coloring=coloring, name=name, seed=seed, **given)

    def truth(Z: pd.DataFrame) -> Array:
        return np.asarray(given_z.T[(Z["color"] == "red").to_numpy().astype(int)])

    return Population(draw, table.sum(axis=1), truth if coloring == "binary" else None)


def digits_faults(data: Options, options: Options) -> list[str]:
    """What is wrong with a site of ten classes."""
    found = _choice("shift", options["shift"], SHIFTS) if "shift" in options else []
    if ("shift" in options) != ("parameter" in options):
        found.append("shift and parameter go together, as in {shift: dirichlet, parameter: 0.1}")
    if "shift" in options and "prevalence" in options:
        found.append("give either shift, which draws P(y), or prevalence")
    return found


def digits_population(
    data: Options, name: str, options: Options, digits: Digits | None, rng: np.random.Generator
) -> Population:
    """Digits of ten classes, P(y) given, even, or drawn once for each site and seed; there is no z."""
    assert digits is not None
    part = digits
    if "shift" in options:
        marginal = shifted_prevalence(options["shift"], options["parameter"], N_DIGITS, rng)
    else:
        marginal = np.asarray(options.get("prevalence", np.full(N_DIGITS, 1 / N_DIGITS)), dtype=float)

    def draw(n: int, seed: int) -> Site:
        return label_shift_site(part, n, marginal, name, seed)

    return Population(draw, marginal, None)


def simulated_population(
    data: Options, name: str, options: Options, digits: Digits | None, rng: np.random.Generator
) -> Population:
    """Simulated sites with mixed confounders; P(y|z) is known where nothing is missing."""
    family = SimulatedFamily(**data | ({"levels": tuple(data["levels"])} if "levels" in data else {}))
    even = np.full(family.n_classes, 1 / family.n_classes)
    marginal = np.asarray(options.get("prevalence", even), dtype=float)
    dependence = options.get("dependence", 1.0)

    def draw(n: int, seed: int) -> Site:
        return family.site(n, name=name, seed=seed, **options).site

    def truth(Z: pd.DataFrame) -> Array:
        low, high = AGE_RANGE
        columns = [
            (Z[name] - low) / (high - low) if j < family.n_continuous else Z[name].str.removeprefix("level ")
            for j, name in enumerate(family.names)
        ]
        z = np.stack([column.to_numpy(dtype=float) for column in columns], axis=1)
        level = family._level(marginal, dependence, options.get("z_shift", 0.0))
        return np.asarray(softmax(level + dependence * family._effect(z), axis=1))

    return Population(draw, marginal, None if options.get("missing") else truth)


def _choice(name: str, value: Any, known: tuple[str, ...]) -> list[str]:
    return [] if value in known else [f"{name} must be one of {', '.join(known)}, got {value!r}"]


KINDS: dict[str, Kind] = {
    "colored_digits": Kind(
        data=("model", "alpha", "coloring"),
        site=("beta", "joint", "hidden"),
        faults=colored_faults,
        populate=colored_population,
    ),
    "digits": Kind(
        data=(), site=("shift", "parameter", "prevalence"), faults=digits_faults, populate=digits_population
    ),
    "simulated": Kind(
        data=("n_classes", "n_continuous", "levels", "signal", "coupling", "effect", "seed"),
        site=("prevalence", "dependence", "z_shift", "missing"),
        faults=lambda data, options: [],
        populate=simulated_population,
        needs_digits=False,
    ),
}
