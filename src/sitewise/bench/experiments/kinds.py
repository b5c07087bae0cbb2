"""The kinds of data of experiments: their options in YAML, and the populations that sites draw from."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from sitewise.bench.datasets.digits import (
    ALPHA,
    CAUSAL_MODELS,
    COLORINGS,
    FLIPPED,
    colored_site,
    label_shift_site,
    shifted_prevalence,
    true_joint,
)
from sitewise.bench.datasets.mixed_densities import MixedSite
from sitewise.bench.datasets.mnist import Digits, load_digits
from sitewise.bench.datasets.small_images import (
    ISIC64_CENTRES,
    SiteRoles,
    SmallImages,
    cxr64_roles,
    isic64_centre_roles,
    isic64_roles,
    load_cxr64,
    load_isic64,
)
from sitewise.bench.experiments.experiment import TEST, TRAINING, VALIDATION
from sitewise.bench.experiments.images import IMAGE_KINDS, needed_folder
from sitewise.bench.experiments.populations import Array, Folder, Kind, Options, Population, no_faults
from sitewise.datasets.simulated import SimulatedFamily
from sitewise.sites import Site

SHIFTS = ("dirichlet", "tweak_one", "app")
N_DIGITS = 10
NONE = "none"  # value of `left_out` if no centre is left out


def colored_faults(data: Options, options: Options) -> list[str]:
    """Return the problems of the options of a site of colored digits."""
    faults = _choice("data.model", data.get("model", "confounded"), tuple(CAUSAL_MODELS))
    faults += _choice("data.coloring", data.get("coloring", "binary"), COLORINGS)
    if ("beta" in options) == ("joint" in options):
        faults.append("give either beta, for the causal model, or joint, a table P(y, z) or `flipped`")
    if isinstance(options.get("joint"), str):
        faults += _choice("joint", options["joint"], ("flipped",))
    missing = options.get("missing", 0.0)
    if isinstance(missing, bool) or not isinstance(missing, int | float) or not 0 <= missing <= 1:
        faults.append(f"missing must be a share between 0 and 1, got {missing!r}")
    return faults


def colored_population(
    data: Options, name: str, options: Options, digits: Digits | None, rng: np.random.Generator
) -> Population:
    """Return a population of colored digits, given by a causal model with β or by a table P(y, z)."""
    assert digits is not None
    part, model, alpha = digits, data.get("model", "confounded"), data.get("alpha", ALPHA)
    coloring = data.get("coloring", "binary")
    given = {key: value for key, value in options.items() if key != "missing"}
    if given.get("joint") == "flipped":
        given["joint"] = FLIPPED
    table = np.asarray(given["joint"]) if "joint" in given else true_joint(model, alpha, given["beta"])
    given_z = table / table.sum(axis=0)

    def draw(n: int | None, seed: int) -> Site:
        assert n is not None
        site = colored_site(part, n, model=model, alpha=alpha, coloring=coloring, name=name, seed=seed, **given)
        return hide_some(site, options.get("missing", 0.0), seed)

    def truth(Z: pd.DataFrame) -> Array:
        return np.asarray(given_z.T[(Z["color"] == "red").to_numpy().astype(int)])

    return Population(draw, table.sum(axis=1), truth if coloring == "binary" else None)


def hide_some(site: Site, share: float, seed: int) -> Site:
    """Return the site with z missing completely at random in a share of its rows.

    With the same seed, rows that miss z at one share also miss it at every larger share.
    """
    assert isinstance(site.Z, pd.DataFrame)
    if not share:
        return site
    hidden = np.random.default_rng([seed, 1]).random(len(site)) < share
    return replace(site, Z=site.Z.mask(np.broadcast_to(hidden[:, None], site.Z.shape)))


def digits_faults(data: Options, options: Options) -> list[str]:
    """Return the problems of the options of a site of digits with ten classes."""
    faults = _choice("shift", options["shift"], SHIFTS) if "shift" in options else []
    if ("shift" in options) != ("parameter" in options):
        faults.append("shift and parameter go together, as in {shift: dirichlet, parameter: 0.1}")
    if "shift" in options and "prevalence" in options:
        faults.append("give either shift, which draws P(y), or prevalence")
    return faults


def digits_population(
    data: Options, name: str, options: Options, digits: Digits | None, rng: np.random.Generator
) -> Population:
    """Return a population of digits with ten classes and without z.

    P(y) is given, uniform, or drawn once for each site and seed.
    """
    assert digits is not None
    part = digits
    if "shift" in options:
        marginal = shifted_prevalence(options["shift"], options["parameter"], N_DIGITS, rng)
    else:
        marginal = np.asarray(options.get("prevalence", np.full(N_DIGITS, 1 / N_DIGITS)), dtype=float)

    def draw(n: int | None, seed: int) -> Site:
        assert n is not None
        return label_shift_site(part, n, marginal, name, seed)

    return Population(draw, marginal, None)


def simulated_population(
    data: Options, name: str, options: Options, digits: Digits | None, rng: np.random.Generator
) -> Population:
    """Return a simulated population with continuous and categorical confounders; P(y|z) is known if z is complete."""
    family = SimulatedFamily(**data | ({"levels": tuple(data["levels"])} if "levels" in data else {}))
    even = np.full(family.n_classes, 1 / family.n_classes)
    marginal = np.asarray(options.get("prevalence", even), dtype=float)
    shape = {key: options[key] for key in ("prevalence", "dependence", "z_shift") if key in options}

    def draw(n: int | None, seed: int) -> Site:
        assert n is not None
        return family.site(n, name=name, seed=seed, **options).site

    def truth(Z: pd.DataFrame) -> Array:
        return np.exp(family.log_prevalence(Z, **shape))

    return Population(draw, marginal, None if options.get("missing") else truth)


def mixed_faults(data: Options, options: Options) -> list[str]:
    """Return the problems of the options of a site with known densities."""
    faults = [] if _is_positive(data.get("blur", 1.0)) else [f"data.blur must be above zero, got {data['blur']!r}"]
    for name, size in (("coefficients", 4), ("ages", 2), ("scanners", 3)):
        given = options.get(name, [] if name == "coefficients" else [1] * size)
        numbers = isinstance(given, list) and all(isinstance(part, int | float) for part in given)
        if not numbers or len(given) != size:
            faults.append(f"{name} must be {size} numbers, got {given!r}")
        elif name != "coefficients" and not all(map(_is_positive, given)):
            faults.append(f"{name} must be above zero, got {given}")
    return faults


def mixed_population(
    data: Options, name: str, options: Options, digits: Digits | None, rng: np.random.Generator
) -> Population:
    """Return a population with known densities, whose confounders are age, sex and scanner."""
    shares = np.asarray(options.get("scanners", (1, 1, 1)), dtype=float)
    site = MixedSite(
        coefficients=tuple(options["coefficients"]),
        ages=tuple(options.get("ages", (2.0, 2.0))),
        scanners=tuple(shares / shares.sum()),
        blur=data.get("blur", 1.0),
    )

    def draw(n: int | None, seed: int) -> Site:
        assert n is not None
        return site.draw(n, seed, name)

    return Population(draw, site.marginal, site.given_z)


def split_digits(digits: Digits, seed: int) -> dict[str, Digits]:
    """Split the digits into those of each role; no digit has two roles."""
    return dict(zip((TRAINING, VALIDATION, TEST), digits.split(seed), strict=True))


def from_folder(load: Callable[[str], Any]) -> Callable[[Options, Folder], Any]:
    """Return a loader that calls `load` with the folder of the data, and raises ValueError if there is no folder."""
    return lambda data, folder: load(needed_folder(data, folder))


@dataclass(frozen=True)
class Lesions:
    """The isic64 images, and the options of their data.

    The option `left_out` names the centre of HAM10000 that is left out of training, or is "none". Without this option,
    the roles are those of `isic64_roles`.
    """

    images: SmallImages
    data: Options
    name: str = "isic64"

    @classmethod
    def load(cls, data: Options, folder: str) -> "Lesions":
        """Read the images and their table from a folder."""
        return cls(load_isic64(folder), data)

    def roles(self, seed: int) -> SiteRoles:
        """Return the training sites, the validation site and the test sites."""
        if "left_out" not in self.data:
            return isic64_roles(self.images)
        left_out = self.data["left_out"]
        return isic64_centre_roles(self.images, None if left_out == NONE else left_out, seed)


def isic64_faults(data: Options) -> list[str]:
    """Return the problems of the option `left_out`."""
    return _choice("left_out", data["left_out"], (NONE, *ISIC64_CENTRES)) if "left_out" in data else []


def real_parts(roles: SiteRoles) -> dict[str, dict[str, Site]]:
    """Return the real sites of each role, by name."""
    return {
        TRAINING: {site.name: site for site in roles.training},
        VALIDATION: {VALIDATION: roles.validation},
        TEST: {site.name: site for site in roles.tests},
    }


def real_population(
    data: Options, name: str, options: Options, sites: dict[str, Site], rng: np.random.Generator
) -> Population:
    """Return the population of a real site; each draw is all of its rows."""
    wanted = options.get("site", name)
    if wanted not in sites:
        raise ValueError(f"there is no site {wanted!r} for this role in {data['kind']}: it has {', '.join(sites)}")
    real = sites[wanted]
    site = Site(name, real.X, real.y, real.Z, real.groups)
    return Population(lambda n, seed: site, np.bincount(site.y, minlength=2) / len(site), None)


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def _choice(name: str, value: Any, known: tuple[str, ...]) -> list[str]:
    return [] if value in known else [f"{name} must be one of {', '.join(known)}, got {value!r}"]


KINDS: dict[str, Kind] = {
    "colored_digits": Kind(
        data=("model", "alpha", "coloring"),
        site=("beta", "joint", "hidden", "missing"),
        faults=colored_faults,
        populate=colored_population,
        load=lambda data, folder: load_digits(folder),
        split=split_digits,
    ),
    "digits": Kind(
        data=(),
        site=("shift", "parameter", "prevalence"),
        faults=digits_faults,
        populate=digits_population,
        load=lambda data, folder: load_digits(folder),
        split=split_digits,
    ),
    "isic64": Kind(
        data=("left_out",),
        site=("site",),
        faults=no_faults,
        populate=real_population,
        load=lambda data, folder: Lesions.load(data, needed_folder(data, folder)),
        split=lambda lesions, seed: real_parts(lesions.roles(seed)),
        real=True,
        data_faults=isic64_faults,
    ),
    "cxr64": Kind(
        data=(),
        site=(),
        faults=no_faults,
        populate=real_population,
        load=from_folder(load_cxr64),
        split=lambda images, seed: real_parts(cxr64_roles(images, seed)),
        real=True,
    ),
    "simulated": Kind(
        data=("n_classes", "n_continuous", "levels", "signal", "coupling", "effect", "seed"),
        site=("prevalence", "dependence", "z_shift", "missing"),
        faults=no_faults,
        populate=simulated_population,
    ),
    "mixed_densities": Kind(
        data=("blur",),
        site=("coefficients", "ages", "scanners"),
        faults=mixed_faults,
        populate=mixed_population,
    ),
    **IMAGE_KINDS,
}
"""The kinds of data by name, as `data: {kind: ...}` of an experiment."""
