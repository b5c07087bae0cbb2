"""The classes of a target column, with a check for typing errors."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from sitewise.arrays import Problems, did_you_mean
from sitewise.tables.features import holds_numbers
from sitewise.tables.values import Place, Rows, as_label, labels, levels, spelling

MOST_CLASSES = 50
RARE = 0.01  # a label with a smaller share of the rows, spelled almost like another one, counts as a typing error

SLIP = (
    "{where}: {value!r} in {row}{more} looks like a typing error{meant} Correct it, or list all classes with "
    "--classes if it is a class"
)
MIXED = (
    "{where}: expected a number as in most rows, got {value!r} in {row}{more}: correct it, or list all classes with "
    "--classes if it is a class"
)
ABSENT = "{where} has no row of {absent}, which --classes names: leave it out, or correct its spelling"
ONE_CLASS = "{where} holds one class only ({value!r}): two or more are needed"
MANY = (
    "{where} has {count} different values, too many for classes: name a column of classes, or cut the numbers into "
    "classes first"
)


def learn_classes(rows: Rows, name: str, given: Sequence[str], place: Place, problems: Problems) -> tuple[Any, ...]:
    """Return the sorted classes: `given`, or the labels of the column if none are given.

    Missing labels and, if no classes are given, probable typing errors are added to `problems`.
    """
    if given:
        classes = sort_labels([as_label(spelling(label) or label) for label in given])
        seen = set(labels(rows, name, classes, place, problems).tolist())
        absent = [label for label in classes if label not in seen]
        if absent:
            problems.add(ABSENT.format(where=place.column(name), absent=", ".join(map(repr, absent))))
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
    """Return a hint that names a more frequent label of which this one may be a misspelling; "" if there is none.

    For a rare label, any similar label is considered; otherwise only labels that differ in upper and lower case.
    """
    counts = np.bincount(values.codes[values.codes >= 0], minlength=len(values.categories))
    value = values.categories[number]
    others = [other for other, count in zip(values.categories, counts, strict=True) if count > counts[number]]
    if counts[number] > max(1, RARE * len(values.codes)):
        others = [other for other in others if other.casefold() == value.casefold()]
    return did_you_mean(value, others)


def sort_labels(values: Sequence[Any]) -> tuple[Any, ...]:
    """Sort labels without duplicates: numerically if all are whole numbers, otherwise all as text."""
    if all(isinstance(value, int) for value in values):
        return tuple(sorted(set(values)))
    return tuple(sorted({str(value) for value in values}))


def _is_number(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True
