"""Features of tables, prepared by scikit-learn: missing values, categories, scaling.

A missing number is replaced by the median; numbers are scaled to mean 0 and standard deviation 1 (`SimpleImputer`,
`StandardScaler`). A category becomes one column for each level; all of them are zero for a level that was not in the
training rows (`OneHotEncoder`). A column with missing values in training gets another column that marks them
(`MissingIndicator`).

Only the numbers that the `ColumnTransformer` learned are saved; it is built from them again. A saved folder is plain
JSON: it has no types that must be trusted, and does not depend on the private state of scikit-learn's classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count

import numpy as np
import pandas as pd
import pyarrow as pa
from pyarrow import compute as pc
from sklearn.compose import ColumnTransformer
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from sitewise.arrays import Problems
from sitewise.tables.values import LARGEST, Array, Place, Rows, known_text, levels, numbers, plain

NUMBERS = "numbers"
MOST_LEVELS = 100  # levels of a feature; a column of text with more of them looks like names
MOSTLY = 0.5  # if more than this share of a column's cells are numbers, text among them is an error

NO_VALUES = "{where} has no values: leave it out"
DECIMAL_COMMAS = "{where} holds numbers with decimal commas, such as {value!r}: write them with a point"
DECIMAL_COMMA = r"^[+-]?\d+,\d+$"
TOO_MANY = "{where} has {count} different values of text, which looks like names or notes: leave it out"


@dataclass(frozen=True)
class NumberFeature:
    """A number feature: its median, its mean and standard deviation after imputation, and whether values were missing.

    `gaps` is true if values were missing in training.
    """

    name: str
    median: float
    mean: float
    spread: float
    gaps: bool

    def __post_init__(self) -> None:
        learned = (self.median, self.mean, self.spread)
        if not all(abs(number) <= LARGEST for number in learned) or not self.spread > 0:
            raise ValueError(f"median, mean and spread of {self.name!r} cannot be {learned}")

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns of X that the feature becomes."""
        return (self.name, f"{self.name} missing") if self.gaps else (self.name,)

    def read(self, rows: Rows, place: Place, problems: Problems) -> Array:
        """Read the values (n,) of the feature, NaN where missing."""
        return numbers(rows, self.name, place, problems)


@dataclass(frozen=True)
class CategoryFeature:
    """A category feature with its levels as text; `gaps` is true if values were missing in training."""

    name: str
    levels: tuple[str, ...]
    gaps: bool

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns of X that the feature becomes."""
        known = tuple(f"{self.name}={level}" for level in self.levels)
        return (*known, f"{self.name} missing") if self.gaps else known

    def read(self, rows: Rows, place: Place, problems: Problems) -> Array:
        """Read the number of each row's level, (n,): 0..L-1 for L levels, L if missing, L + 1 for an unknown level."""
        values = levels(rows, self.name, place, problems)
        missing, unseen = len(self.levels), len(self.levels) + 1
        code_of = {level: code for code, level in enumerate(self.levels)}
        translate = np.array([*(code_of.get(value, unseen) for value in values.categories), missing], dtype=np.float64)
        codes: Array = translate[values.codes]
        return codes


Feature = NumberFeature | CategoryFeature


def learn_features(
    rows: Rows, names: Sequence[str], categorical: Sequence[str], place: Place, problems: Problems
) -> tuple[Feature, ...]:
    """Learn the features of the columns from training rows; return an empty tuple if there are problems."""
    before = len(problems.messages)
    kinds = [_kind(rows, name, name in categorical, place, problems) for name in names]
    features = tuple(feature for feature in kinds if feature is not None)
    if not features or len(problems.messages) > before:
        return ()
    values = read_values(features, rows, place, problems)
    transformer = _unfitted(features).fit(values)
    if NUMBERS not in transformer.named_transformers_:
        return features
    imputer, scaler = transformer.named_transformers_[NUMBERS]
    learned = iter(np.stack([imputer.statistics_, scaler.mean_, scaler.scale_], axis=1).tolist())

    def known(feature: Feature) -> Feature:
        if isinstance(feature, CategoryFeature):
            return feature
        median, mean, spread = next(learned)
        return replace(feature, median=median, mean=mean, spread=spread)

    return tuple(known(feature) for feature in features)


def fitted_transformer(features: Sequence[Feature]) -> ColumnTransformer:
    """Build the fitted transformer of these features. Its input is the array that `read_values` returns."""
    own = [feature for feature in features if isinstance(feature, NumberFeature)]
    full = np.array([feature.median if isinstance(feature, NumberFeature) else 0.0 for feature in features])
    with_gaps = [np.nan if isinstance(f, NumberFeature) and f.gaps else v for f, v in zip(features, full, strict=True)]
    transformer = _unfitted(features).fit(np.stack([full, with_gaps]))  # two rows with these medians and gaps
    if own:
        scaler = transformer.named_transformers_[NUMBERS][-1]
        scaler.mean_, scaler.scale_ = np.array([(feature.mean, feature.spread) for feature in own]).T
        scaler.var_ = scaler.scale_**2
    return transformer


def column_order(features: Sequence[Feature]) -> list[int]:
    """Return the positions of the columns of X in the output of the transformer.

    The output has the columns of all numbers first, then the missing indicators, then the categories.
    """
    own = [feature for feature in features if isinstance(feature, NumberFeature)]
    value, gap, level = count(), count(len(own)), count(sum(len(feature.columns) for feature in own))
    order: list[int] = []
    for feature in features:
        if isinstance(feature, NumberFeature):
            order += [next(value), *([next(gap)] if feature.gaps else [])]
        else:
            order += [next(level) for _ in feature.columns]
    return order


def read_values(features: Sequence[Feature], rows: Rows, place: Place, problems: Problems) -> Array:
    """Return the values of F features, (n, F): numbers, and numbers of levels."""
    return np.stack([feature.read(rows, place, problems) for feature in features], axis=1)


def _unfitted(features: Sequence[Feature]) -> ColumnTransformer:
    own = [place for place, feature in enumerate(features) if isinstance(feature, NumberFeature)]
    categories = {place: feature for place, feature in enumerate(features) if isinstance(feature, CategoryFeature)}
    codes = [np.arange(len(feature.columns), dtype=np.float64) for feature in categories.values()]
    steps = (
        (NUMBERS, make_pipeline(SimpleImputer(strategy="median"), StandardScaler()), own),
        ("gaps", MissingIndicator(error_on_new=False), own),
        ("categories", OneHotEncoder(categories=codes, handle_unknown="ignore", sparse_output=False), [*categories]),
    )
    transformer = ColumnTransformer([step for step in steps if step[-1]], sparse_threshold=0)
    return transformer.set_output(transform="default")  # arrays, despite any global setting of scikit-learn


def _kind(rows: Rows, name: str, categorical: bool, place: Place, problems: Problems) -> Feature | None:
    """Return the feature of a column: its kind, its levels, and whether values are missing; None for a problem."""
    if refuse_decimal_commas(rows, name, place, problems):
        return None
    if categorical or not holds_numbers(rows, name):
        values = levels(rows, name, place, problems)
        if not len(values.categories):
            problems.add(NO_VALUES.format(where=place.column(name)))
            return None
        if len(values.categories) > MOST_LEVELS and not categorical:
            problems.add(TOO_MANY.format(where=place.column(name), count=len(values.categories)))
            return None
        return CategoryFeature(name, tuple(values.categories), bool((values.codes < 0).any()))
    before = len(problems.messages)
    missing = np.isnan(numbers(rows, name, place, problems))
    if len(problems.messages) > before:
        return None
    if missing.all():
        problems.add(NO_VALUES.format(where=place.column(name)))
        return None
    return NumberFeature(name, median=0.0, mean=0.0, spread=1.0, gaps=bool(missing.any()))


def refuse_decimal_commas(rows: Rows, name: str, place: Place, problems: Problems) -> bool:
    """Return whether most values of a text column are numbers with decimal commas.

    If so, this is added to `problems`, because such numbers would be read as categories.
    """
    cells = plain(rows.column(name))
    if not (pa.types.is_string(cells.type) or pa.types.is_large_string(cells.type)):
        return False
    known = known_text(cells).drop_null()
    with_commas = known.filter(pc.match_substring_regex(known, DECIMAL_COMMA))
    if 2 * len(with_commas) <= len(known):
        return False
    problems.add(DECIMAL_COMMAS.format(where=place.column(name), value=with_commas[0].as_py()))
    return True


def holds_numbers(rows: Rows, name: str) -> bool:
    """Return whether a column should hold numbers: by its type, or because most of its text is numeric."""
    column = plain(rows.column(name))
    kind = column.type
    if pa.types.is_boolean(kind):
        return False
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return True
    if pa.types.is_temporal(kind):
        return True  # rejected later, as dates
    cells = known_text(column).drop_null()
    counted = cells.value_counts()
    values, counts = counted.field(0).to_pandas(), counted.field(1).to_numpy()
    readable = pd.to_numeric(values, errors="coerce").notna().to_numpy()
    return len(cells) == 0 or float(counts[readable].sum()) > MOSTLY * float(counts.sum())
