"""Training: recipes, batches over sites, augmentation, checkpoints, and the one loop that all methods share."""

from sitewise.training.augmentation import AUGMENTATIONS, affine, flips
from sitewise.training.batches import Plan, batches, count_batches, plan_training
from sitewise.training.checkpoint import Checkpoint, digest
from sitewise.training.loop import Objective, Training, train
from sitewise.training.recipe import PRECISIONS, RECIPES, Recipe, resolve_recipe

__all__ = [
    "AUGMENTATIONS",
    "PRECISIONS",
    "RECIPES",
    "Checkpoint",
    "Objective",
    "Plan",
    "Recipe",
    "Training",
    "affine",
    "batches",
    "count_batches",
    "digest",
    "flips",
    "plan_training",
    "resolve_recipe",
    "train",
]
