"""Names of the classes in texts for people: by the names of the outcome and of the positive class."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sitewise.estimator.model import SiteModel

ABOUT = ("outcome_name", "positive", "intended_use", "contact")


def about(model: "SiteModel", name: str) -> str | None:
    """An entry of the model's `about_`; for the outcome, by default the target column of its table."""
    found = model.about_.get(name)
    if found is None and name == "outcome_name":
        found = getattr(getattr(getattr(model, "table_reader_", None), "roles", None), "target", None)
    return None if found is None else str(found)


def class_names(model: "SiteModel") -> list[str]:
    """The classes in words: "positive" for the second of two, "outcome = 1" if a class is a number."""
    labels, outcome, positive = model.classes_.tolist(), about(model, "outcome_name"), about(model, "positive")
    names = [
        f"{outcome} = {label}" if outcome is not None and not isinstance(label, str) else str(label) for label in labels
    ]
    if positive is not None and len(names) == 2:
        names[1] = positive
    return names
