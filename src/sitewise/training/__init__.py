"""Training: recipes, batches over sites, augmentation, checkpoints, and the training loop that all methods share."""

from sitewise.training.devices import first_process
from sitewise.training.recipe import Recipe

__all__ = ["Recipe", "first_process"]
