"""What the classes are called where people read: by the outcome's name and that of the positive class."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sitewise.estimator.model import SiteModel

ABOUT = ("outcome_name", "positive", "intended_use", "contact")


def about(model: "SiteModel", name: str) -> str | None:
    """One of the things that were said about a model; a table's target names the outcome where nothing else does."""
    found = model.about_.get(name)
    if found is None and name == "outcome_name":
        found = getattr(getattr(getattr(model, "table_reader_", None), "roles", None), "target", None)
    return None if found is None else str(found)


def class_names(model: "SiteModel") -> list[str]:
    """The classes in words: "positive" for the second of two, and "outcome = 1" where a class is a mere number."""
    labels, outcome, positive = model.classes_.tolist(), about(model, "outcome_name"), about(model, "positive")
    names = [
        f"{outcome} = {label}" if outcome is not None and not isinstance(label, str) else str(label) for label in labels
    ]
    if positive is not None and len(names) == 2:
        names[1] = positive
    return names
