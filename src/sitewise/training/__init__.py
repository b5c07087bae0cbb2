"""Training: recipes, batches over sites, augmentation, checkpoints, and the training loop that all methods share."""

from sitewise.training.augmentation import AUGMENTATIONS, affine, flips
from sitewise.training.batches import Plan, batches, count_batches, plan_training
from sitewise.training.checkpoint import Checkpoint, digest
from sitewise.training.devices import (
    STRATEGIES,
    Share,
    Spread,
    device_problems,
    first_process,
    join_processes,
    launch,
    share_of,
    torchrun_processes,
)
from sitewise.training.loop import Objective, Training, train
from sitewise.training.recipe import PRECISIONS, RECIPES, Recipe, resolve_recipe

__all__ = [
    "AUGMENTATIONS",
    "PRECISIONS",
    "RECIPES",
    "STRATEGIES",
    "Checkpoint",
    "Objective",
    "Plan",
    "Recipe",
    "Share",
    "Spread",
    "Training",
    "affine",
    "batches",
    "count_batches",
    "device_problems",
    "digest",
    "first_process",
    "flips",
    "join_processes",
    "launch",
    "plan_training",
    "resolve_recipe",
    "share_of",
    "torchrun_processes",
    "train",
]
