"""How a network is trained, as a record; recipes by name."""

from dataclasses import dataclass, replace
from typing import Any, Literal

from sitewise.arrays import Problems
from sitewise.training.augmentation import AUGMENTATIONS

PRECISIONS = ("32-true", "bf16-mixed", "16-mixed")
SCHEDULES = ("one_cycle", "constant")


@dataclass(frozen=True)
class Recipe:
    """How a network is trained.

    `min_steps` lifts the number of epochs for small data, and batches are then smaller too (at least eight an epoch).
    `per_site` fills each batch with `batch_size` rows of every site; otherwise batches run over all rows alike.
    `augment` is "affine" (turned, scaled and shifted a little) or "flips" (mirrored, turned by right angles).
    `precision` is "32-true", "bf16-mixed" or "16-mixed". A step follows after `accumulate` batches: as one of
    `accumulate` times the rows would be, but for batch norm. Training stops when the validation loss has not improved
    for `patience` epochs. With `balance_validation` that loss is the mean over the classes of each class's own mean,
    so that a rare class counts as much as a frequent one in the choice of the snapshot.

    Recipes by name (`RECIPES`): "default"; "augmented", the same with moved images; and three for reproduction, all
    with Adam at a constant rate, no decay, no augmentation, the best validation snapshot. Of these the paper gives the
    last only: it states no optimizer of f, learning rate, batch size or number of epochs, and no rule for the snapshot.

    - "gpa2024" (digits): rate 1e-3, batches of 256, 15 epochs, of our own choice.
    - "gpa2024_resnet" (ResNets): rate 3e-5, 64 images of every site in a batch, 15 epochs, of our own choice.
    - "gpa2024_release": what the paper's published code takes for digits: rate 1e-4, 512 rows of a site, 20,000 steps.
      There every step has rows of one site and the sites take turns, and the snapshot is that of the highest macro F1;
      here every step has rows of all sites, and the snapshot is that of the lowest NLL.
    """

    epochs: int = 30
    batch_size: int = 256
    learning_rate: float = 3e-3
    schedule: Literal["one_cycle", "constant"] = "one_cycle"
    weight_decay: float = 1.0
    min_steps: int = 1500
    per_site: bool = False
    augment: Literal["affine", "flips"] | None = None
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] = "32-true"
    accumulate: int = 1
    patience: int | None = None
    balance_validation: bool = False

    def __post_init__(self) -> None:
        problems = Problems("recipe")
        for name, known in (("precision", PRECISIONS), ("schedule", SCHEDULES), ("augment", (None, *AUGMENTATIONS))):
            if getattr(self, name) not in known:
                names = ", ".join(map(repr, known))
                problems.add(f"{name} must be one of {names}, got {getattr(self, name)!r}")
        for name in ("accumulate", "patience"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int) and value >= 1):
                problems.add(f"{name} must be a whole number of at least 1, got {value!r}")
        problems.raise_if_any()


RECIPES = {
    "default": Recipe(),
    "augmented": Recipe(augment="affine"),
    "gpa2024": Recipe(epochs=15, learning_rate=1e-3, schedule="constant", weight_decay=0.0, min_steps=0),
    "gpa2024_resnet": Recipe(
        epochs=15,
        batch_size=64,
        learning_rate=3e-5,
        schedule="constant",
        weight_decay=0.0,
        min_steps=0,
        per_site=True,
    ),
    "gpa2024_release": Recipe(
        epochs=1,
        batch_size=512,
        learning_rate=1e-4,
        schedule="constant",
        weight_decay=0.0,
        min_steps=20_000,
        per_site=True,
    ),
}


def resolve_recipe(recipe: str | Recipe, **changes: Any) -> Recipe:
    """Look a recipe up by name and apply the changes that are not None."""
    if isinstance(recipe, str):
        if recipe not in RECIPES:
            raise ValueError(f"recipe must be one of {', '.join(RECIPES)} or a Recipe, got {recipe!r}")
        recipe = RECIPES[recipe]
    return replace(recipe, **{name: value for name, value in changes.items() if value is not None})
