"""An experiment: data, sites and their roles, methods with settings and grids, seeds, as in its YAML file."""

import itertools
from dataclasses import dataclass
from typing import Any

from sitewise.evaluation import METRICS

VALIDATION = "validation"  # the name of the validation site among the rows of a training
TRAINING, TEST = "training", "test"
ALL = "all"  # rows
ESTIMATION_METRICS = ("prevalence_error", "weight_mse")
ALL_METRICS = (*METRICS, *ESTIMATION_METRICS)
LOWER_IS_BETTER = frozenset({"nll", "brier", "ece", *ESTIMATION_METRICS})


@dataclass(frozen=True)
class SiteSpec:
    """A site: its name, the options of its kind of data, and its size.

    None means all rows of a real site, and at a test site the size of the draws.
    """

    name: str
    options: dict[str, Any]
    n: int | None = None

    def plain(self) -> dict[str, Any]:
        """Without its name, as in the YAML."""
        return self.options | ({} if self.n is None else {"n": self.n})


@dataclass(frozen=True)
class Draw:
    """How many rows of a test site are scored (None: all of a real site), and how many others are adapted on.

    If `adapt` is None, the scored rows are adapted on.
    """

    name: str
    score: int | None
    adapt: int | None = None

    def plain(self) -> dict[str, Any]:
        """Without its name, as in the YAML."""
        return {"score": self.score or ALL} | ({} if self.adapt is None else {"adapt": self.adapt})


@dataclass(frozen=True)
class Choice:
    """A row of the results: its label, its method, and all settings that differ from the method's defaults."""

    label: str
    method: str
    settings: dict[str, Any]

    def plain(self) -> dict[str, Any]:
        """Without its label."""
        return {"method": self.method, "settings": self.settings}


@dataclass(frozen=True)
class Entry:
    """A row of the results, with the grid of settings to choose from; empty if there is nothing to tune."""

    label: str
    method: str
    settings: dict[str, Any]
    grid: dict[str, list[Any]]

    @property
    def candidates(self) -> tuple[Choice, ...]:
        """All settings of the grid, the last name varying fastest."""
        settings = (dict(zip(self.grid, values, strict=True)) for values in itertools.product(*self.grid.values()))
        return tuple(Choice(self.label, self.method, self.settings | chosen) for chosen in settings)


@dataclass(frozen=True)
class Tuning:
    """The metric at the validation site that chooses among the settings of a grid, and the number of seeds."""

    metric: str
    seeds: int


@dataclass(frozen=True)
class Experiment:
    """The content of an experiment's YAML; `quick` if it is the reduced version."""

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
        """The parts with different trainings, each with its own test sites; the experiment itself if there are none."""
        return self.parts or (self,)
