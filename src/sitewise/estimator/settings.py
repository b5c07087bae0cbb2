"""Estimators with a network: read their settings, and build and train the network with these settings."""

import os
from typing import Any

from torch import nn

from sitewise.arrays import Problems
from sitewise.backbones.build import backbone_problems
from sitewise.confounders import Confounders
from sitewise.inputs import Inputs
from sitewise.ratio import RatioNetwork, build_ratio
from sitewise.training import Recipe
from sitewise.training.devices import device_problems
from sitewise.training.loop import Objective, Training, train
from sitewise.training.recipe import resolve_recipe

CHANGES = ("epochs", "batch_size", "learning_rate")


def read_network_settings(estimator: Any, problems: Problems) -> Recipe:
    """Return the recipe with the changes that the estimator's settings make; add wrong settings to `problems`."""
    for problem in backbone_problems(estimator.backbone, estimator.weights, estimator.normalize):
        problems.add(problem)
    for problem in device_problems(estimator.devices, estimator.nodes, estimator.strategy):
        problems.add(problem)
    if estimator.checkpoint is not None and not isinstance(estimator.checkpoint, str | os.PathLike):
        problems.add(f"checkpoint must be the path of a file or a folder, got {estimator.checkpoint!r}")
    changes = {name: getattr(estimator, name) for name in CHANGES}
    for name, value in changes.items():
        if value is not None and not value > 0:
            problems.add(f"{name} must be positive, got {value!r}")
    try:
        return resolve_recipe(estimator.recipe, **changes, min_steps=0 if estimator.epochs else None)
    except ValueError as error:
        problems.add(str(error))
        return Recipe()


def build_network(estimator: Any, X: Inputs, schema: Confounders | None, n_outputs: int, seed: int) -> RatioNetwork:
    """Build the network of an estimator for inputs like X, with random weights or the weights of a file."""
    own = {"weights": estimator.weights, "normalize": estimator.normalize}
    return build_ratio(estimator.backbone, X, schema, n_outputs, seed, **own)


def train_network(
    estimator: Any, module: nn.Module, objective: Objective, recipe: Recipe, seed: int, label: str, **checkpoint: Any
) -> Training:
    """Train a network on the devices that the estimator's settings name."""
    own = {name: getattr(estimator, name) for name in ("device", "devices", "nodes", "strategy", "verbose")}
    return train(module, objective, recipe, seed=seed, label=label, **own, **checkpoint)
