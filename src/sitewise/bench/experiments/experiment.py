"""An experiment: data, sites and their roles, methods with their settings and grids, seeds, as a YAML file says it."""

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
    """A site: its name, the options its kind of data knows, and its size.

    None stands for all rows of a real site, and at a test site for what the draws say.
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

    Where `adapt` is None the scored rows themselves are.
    """

    name: str
    score: int | None
    adapt: int | None = None

    def plain(self) -> dict[str, Any]:
        """Without its name, as in the YAML."""
        return {"score": self.score or ALL} | ({} if self.adapt is None else {"adapt": self.adapt})


@dataclass(frozen=True)
class Choice:
    """A row of the results: its label, the method behind it and all settings that differ from the method's own."""

    label: str
    method: str
    settings: dict[str, Any]

    def plain(self) -> dict[str, Any]:
        """Without its label."""
        return {"method": self.method, "settings": self.settings}


@dataclass(frozen=True)
class Entry:
    """A row of the results with the settings among which it may choose; no grid, no choice."""

    label: str
    method: str
    settings: dict[str, Any]
    grid: dict[str, list[Any]]

    @property
    def candidates(self) -> tuple[Choice, ...]:
        """Every setting of the grid, the last name varying fastest."""
        settings = (dict(zip(self.grid, values, strict=True)) for values in itertools.product(*self.grid.values()))
        return tuple(Choice(self.label, self.method, self.settings | chosen) for chosen in settings)


@dataclass(frozen=True)
class Tuning:
    """The metric at the validation site that decides among a grid's settings, and over how many seeds."""

    metric: str
    seeds: int


@dataclass(frozen=True)
class Experiment:
    """Everything an experiment's YAML says; `quick` where its reduced version was asked for."""

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
        """The parts whose trainings differ, each with its own test sites; the experiment itself where it has none."""
        return self.parts or (self,)
