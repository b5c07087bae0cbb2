"""The content of an experiment's YAML file: data, sites and their roles, methods with settings and grids, seeds."""

import itertools
from dataclasses import dataclass
from typing import Any

from sitewise.evaluation import METRICS

VALIDATION = "validation"  # the name of the validation site in `sample_domain`
TRAINING, TEST = "training", "test"
ALL = "all"  # all rows of a site
ESTIMATION_METRICS = ("prevalence_error", "weight_mse")
ALL_METRICS = (*METRICS, *ESTIMATION_METRICS)
LOWER_IS_BETTER = frozenset({"nll", "brier", "ece", *ESTIMATION_METRICS})


@dataclass(frozen=True)
class SiteSpec:
    """A site: its name, the options of its kind of data, and its number of rows n.

    n is None for real sites, which are used with all rows, and for test sites, whose draws give the numbers of rows.
    """

    name: str
    options: dict[str, Any]
    n: int | None = None

    def plain(self) -> dict[str, Any]:
        """Return the site as in the YAML, without its name."""
        return self.options | ({} if self.n is None else {"n": self.n})


@dataclass(frozen=True)
class Draw:
    """The numbers of rows of a test site that are scored, and of other rows that a method is adapted on.

    If `score` is None, all rows of a real site are scored. If `adapt` is None, methods are adapted on the scored rows.
    """

    name: str
    score: int | None
    adapt: int | None = None

    def plain(self) -> dict[str, Any]:
        """Return the draw as in the YAML, without its name."""
        return {"score": self.score or ALL} | ({} if self.adapt is None else {"adapt": self.adapt})


@dataclass(frozen=True)
class Choice:
    """A row of the results: its label, its method, and the settings that differ from the method's defaults."""

    label: str
    method: str
    settings: dict[str, Any]

    def plain(self) -> dict[str, Any]:
        """Return method and settings, without the label."""
        return {"method": self.method, "settings": self.settings}


@dataclass(frozen=True)
class Entry:
    """A row of the results before tuning. `grid` has the candidate values of each tuned setting; it may be empty."""

    label: str
    method: str
    settings: dict[str, Any]
    grid: dict[str, list[Any]]

    @property
    def candidates(self) -> tuple[Choice, ...]:
        """All combinations of the values in the grid; the value of the last setting varies fastest."""
        settings = (dict(zip(self.grid, values, strict=True)) for values in itertools.product(*self.grid.values()))
        return tuple(Choice(self.label, self.method, self.settings | chosen) for chosen in settings)


@dataclass(frozen=True)
class Tuning:
    """The metric at the validation site by which settings of a grid are chosen, and the number of seeds for tuning."""

    metric: str
    seeds: int


@dataclass(frozen=True)
class Experiment:
    """The content of an experiment's YAML file; `quick` is True for the reduced version of the experiment."""

    name: str
    title: str
    paper: dict[str, Any]
    data: dict[str, Any]
    recipe: dict[str, Any]
    network: dict[str, Any]
    seeds: int
    training: tuple[SiteSpec, ...]
    validation: SiteSpec
    tests: tuple[SiteSpec, ...]
    draws: tuple[Draw, ...]
    methods: tuple[Entry, ...]
    tuning: Tuning | None
    reference: str | None
    metric: str
    figure: dict[str, Any]
    quick: bool = False
    parts: tuple["Experiment", ...] = ()

    @property
    def variants(self) -> tuple["Experiment", ...]:
        """The variants of the YAML, each with its own test sites; the experiment itself if it has no variants."""
        return self.parts or (self,)
