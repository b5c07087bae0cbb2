"""The classes of a target column, with a check for typing errors."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from sitewise.arrays import Problems, did_you_mean
from sitewise.tables.features import holds_numbers
from sitewise.tables.values import Place, Rows, as_label, labels, levels, spelling

MOST_CLASSES = 50
RARE = 0.01  # share of rows below which a label with almost the same spelling as another is a typing error

SLIP = (
    "{where}: {value!r} in {row}{more} looks like a typing error{meant} Correct it, or list all classes with "
    "--classes if it is a class"
)
MIXED = (
    "{where}: expected a number as in most rows, got {value!r} in {row}{more}: correct it, or list all classes with "
    "--classes if it is a class"
)
ONE_CLASS = "{where} holds one class only ({value!r}): two or more are needed"
MANY = (
    "{where} has {count} different values, too many for classes: name a column of classes, or cut the numbers into "
    "classes first"
)


def learn_classes(rows: Rows, name: str, given: Sequence[str], place: Place, problems: Problems) -> tuple[Any, ...]:
    """The classes, sorted: the given ones, otherwise those of the column; probable typing errors are reported."""
    if given:
        classes = sort_labels([as_label(spelling(label) or label) for label in given])
        labels(rows, name, classes, place, problems)
        return classes
    values = levels(rows, name, place, problems)
    classes = sort_labels([as_label(value) for value in values.categories])
    where = place.column(name)
    if len(classes) == 1:
        problems.add(ONE_CLASS.format(where=where, value=classes[0]))
    elif len(classes) > MOST_CLASSES:
        problems.add(MANY.format(where=where, count=len(classes)))
    else:
        mostly_numbers = holds_numbers(rows, name)
        for number, value in enumerate(values.categories):
            said = {"where": where, "value": value, **place.row(np.flatnonzero(values.codes == number))}
            meant = _meant(values, number)
            if mostly_numbers and not _is_number(value):
                problems.add(MIXED.format(**said))
            elif meant and not _is_number(value):
                problems.add(SLIP.format(meant=meant, **said))
    labels(rows, name, classes, place, problems)  # reports missing labels
    return classes


def _meant(values: pd.Categorical, number: int) -> str:
    """A more frequent label that one is a misspelling of, as a hint: any near one where it is rare, else by case."""
    counts = np.bincount(values.codes[values.codes >= 0], minlength=len(values.categories))
    value = values.categories[number]
    others = [other for other, count in zip(values.categories, counts, strict=True) if count > counts[number]]
    if counts[number] > max(1, RARE * len(values.codes)):
        others = [other for other in others if other.casefold() == value.casefold()]
    return did_you_mean(value, others)


def sort_labels(values: Sequence[Any]) -> tuple[Any, ...]:
    """Sorted labels: whole numbers by size; all as text if one is text."""
    if all(isinstance(value, int) for value in values):
        return tuple(sorted(set(values)))
    return tuple(sorted({str(value) for value in values}))


def _is_number(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True
