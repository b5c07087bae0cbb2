"""The plan of an experiment: a list of runs. A run is one training with all methods that share it."""

import hashlib
import json
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from sitewise.bench.experiments.experiment import VALIDATION, Choice, Draw, Entry, Experiment, SiteSpec
from sitewise.bench.methods import METHODS, Method
from sitewise.bench.methods.base import training_key
from sitewise.training import Recipe
from sitewise.training.recipe import resolve_recipe


@dataclass(frozen=True)
class Run:
    """One training with one seed, and the methods that use its network.

    If the training uses unlabeled rows of a test site, `target` is the name of this site, and methods are scored at
    this site only; otherwise it is None. `digits` is the name of the set of digits or images, for
    example "mnist"; it is None for simulated data.
    """

    experiment: str
    data: dict[str, Any]
    recipe: dict[str, Any]
    training: tuple[SiteSpec, ...]
    validation: SiteSpec
    tests: tuple[SiteSpec, ...]
    draws: tuple[Draw, ...]
    methods: tuple[Choice, ...]
    seed: int
    target: str | None = None
    digits: str | None = None
    network: dict[str, Any] = field(default_factory=dict)

    @property
    def unlabeled(self) -> Draw | None:
        """The draw of the target whose adaptation rows the training uses; None without a target."""
        return None if self.target is None else self.draws[0]

    def plain(self) -> dict[str, Any]:
        """Return all settings that determine the result, for JSON; tests, draws and methods are dicts by name."""
        return {
            "seed": self.seed,
            "target": self.target,
            "unlabeled": self.unlabeled.name if self.unlabeled else None,
            "digits": self.digits,
            "data": self.data,
            "recipe": self.recipe,
            **({"network": self.network} if self.network else {}),
            "training": [{"name": site.name, **site.plain()} for site in self.training],
            "validation": self.validation.plain(),
            "tests": {site.name: site.plain() for site in self.tests},
            "draws": {draw.name: draw.plain() for draw in self.draws},
            "methods": {choice.label: choice.plain() for choice in self.methods},
        }

    @cached_property
    def id(self) -> str:
        """A hash of `plain`, which is the same in all processes and versions."""
        text = json.dumps(self.plain(), sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def label(self) -> str:
        """A readable name of this run."""
        site = f" for {self.target!r}" if self.target else ""
        names = ", ".join(choice.label for choice in self.methods)
        settings = f" {self.methods[0].settings}" if len(self.methods) == 1 and self.methods[0].settings else ""
        return f"{names}{settings}{site}, seed {self.seed}"


def make_method(
    choice: Choice,
    recipe: dict[str, Any],
    network: dict[str, Any],
    seed: int = 0,
    device: str = "auto",
    **processes: Any,
) -> Method:
    """Return the unfitted method of a choice, with the recipe, network and devices that all methods share."""
    return METHODS[choice.method](
        **network | choice.settings,
        recipe=make_recipe(recipe),
        validation=VALIDATION,
        random_state=seed,
        device=device,
        **processes,
        verbose=False,
    )


def make_recipe(recipe: dict[str, Any]) -> Recipe:
    """Return the recipe called `recipe["name"]`, changed by the other entries."""
    changes = dict(recipe)
    return resolve_recipe(changes.pop("name"), **changes)


def tuning_runs(experiment: Experiment, digits: str | None = None) -> tuple[Run, ...]:
    """Return a run for each setting of each grid (if it has more than one) and each of the first seeds.

    All grids have the same number of settings and so of trainings. Each run has one setting, so that the runs of the
    chosen setting are also final runs. A method that is trained for one test site is tuned with the training for the
    first test site.
    """
    if experiment.tuning is None:
        return ()
    return tuple(
        _runs(experiment, (candidate,), seed, digits)[0]
        for seed in range(experiment.tuning.seeds)
        for entry in experiment.methods
        if is_tuned(entry)
        for candidate in entry.candidates
    )


def final_runs(experiment: Experiment, chosen: dict[str, dict[str, Any]], digits: str | None = None) -> tuple[Run, ...]:
    """Return the runs of all methods with the chosen settings (label -> settings) and all seeds.

    A label that has a grid but no chosen settings is left out.
    """
    choices = settled(experiment, chosen)
    tuned = {entry.label for entry in experiment.methods if is_tuned(entry)}
    groups: dict[tuple[str, ...], list[Choice]] = {}
    for choice in choices:
        key = (
            choice.label
            if choice.label in tuned
            else training_key(make_method(choice, experiment.recipe, experiment.network))
        )
        groups.setdefault((key, *METHODS[choice.method].packages), []).append(choice)
    return tuple(
        run
        for seed in range(experiment.seeds)
        for group in groups.values()
        for part in experiment.variants
        for run in _runs(part, tuple(group), seed, digits)
    )


def settled(experiment: Experiment, chosen: dict[str, dict[str, Any]]) -> tuple[Choice, ...]:
    """Return a choice for each label that has no grid or whose settings are chosen, in the experiment's order."""
    return tuple(
        Choice(entry.label, entry.method, chosen[entry.label]) if is_tuned(entry) else entry.candidates[0]
        for entry in experiment.methods
        if not is_tuned(entry) or entry.label in chosen
    )


def is_tuned(entry: Entry) -> bool:
    """Whether an entry has more than one setting to choose from."""
    return len(entry.candidates) > 1


def _runs(experiment: Experiment, methods: tuple[Choice, ...], seed: int, digits: str | None) -> list[Run]:
    """Return the runs of methods that share a training.

    There is one run; if the training uses unlabeled rows of test sites, there is one for each test site.
    """
    trainer = make_method(methods[0], experiment.recipe, experiment.network).trainer()
    by_site = [(site,) for site in experiment.tests] if trainer.card.unlabeled_in_training else [experiment.tests]
    return [
        Run(
            experiment=experiment.name,
            data=experiment.data,
            recipe=experiment.recipe,
            network=experiment.network,
            training=experiment.training,
            validation=experiment.validation,
            tests=tests,
            draws=experiment.draws,
            methods=methods,
            seed=seed,
            target=tests[0].name if trainer.card.unlabeled_in_training else None,
            digits=digits,
        )
        for tests in by_site
    ]
