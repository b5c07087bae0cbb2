"""Settings of all estimators with a network: backbone, weights, normalization, devices, recipe."""

import os
from typing import Any

from sitewise.arrays import Problems
from sitewise.backbones.build import backbone_problems
from sitewise.training import Recipe
from sitewise.training.devices import device_problems
from sitewise.training.recipe import resolve_recipe

CHANGES = ("epochs", "batch_size", "learning_rate")


def read_network_settings(estimator: Any, problems: Problems) -> Recipe:
    """The recipe with the estimator's changes; wrong settings are added to `problems`."""
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
