"""The public door to a prior from labeled training sites: the g of a typical one, and how far others differ from it."""

from numbers import Integral
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from sitewise.arrays import Problems, numbers_of, read_column, read_labels, read_weight
from sitewise.confounders import Confounders
from sitewise.prevalence import SitePrior, pool_sites
from sitewise.prevalence.additive import missing_features

Array = np.ndarray[Any, Any]

ONE_SITE = (
    "sample_domain must name at least two sites with rows of positive weight, got {count}: "
    "one site does not show how sites differ; estimate_prevalence takes another estimate as its prior too"
)
MOST_COEFFICIENTS = 2000  # a site's are solved for together: their covariance is a full matrix
TOO_MANY = (
    "{features} features of the confounders (splines, levels) for {classes} classes are more than {most:,} "
    "coefficients: join rare levels or classes, or leave confounders out"
)
TWICE = "categorical is given, but confounders says already which variables are categorical: leave one of them out"


def pool_prevalence(
    y: Any,
    sample_confounder: Any,
    sample_domain: Any,
    *,
    n_classes: int | None = None,
    confounders: Confounders | None = None,
    categorical: Any = None,
    sample_weight: Any = None,
) -> SitePrior:
    """Learn from labeled training sites what to expect of a new site's P(Y|Z), as a prior for its estimate.

    The additive g of the typical site, and for the level and each confounder how much sites differ in it: a new site
    is then shrunk little where training sites differ, and much where they agree (equation 13).

    Parameters
    ----------
    y : (n,) class indices 0..K-1, all of them known.
    sample_confounder : (n, V) array or DataFrame of confounders, NaN where missing.
    sample_domain : (n,) the site of each row, at least two of them; four or five say more about how sites differ.
    n_classes : K, where not every class occurs in y; None takes the highest of y plus one.
    confounders : the schema to read confounders by; None learns one from `sample_confounder`.
    categorical : names or positions of columns to take as categorical, where the schema is learned here.
    sample_weight : (n,) frequency weights: a row of weight two counts as two rows.

    Examples
    --------
    >>> prior = pool_prevalence(y, Z_train, site)
    >>> estimate = estimate_prevalence(log_ratio, Z, prior=prior)
    """
    problems = Problems("pool_prevalence")
    labels, count = _read_known_labels(y, n_classes, problems)
    n_rows = len(labels)
    weight = read_weight(sample_weight, n_rows, problems)
    site = _read_sites(sample_domain, weight, problems)
    schema, codes = _read_confounders(sample_confounder, confounders, categorical, n_rows, problems)
    if schema is not None:
        n_features = missing_features(schema)[-1] + 1
        if n_features * (count - 1) > MOST_COEFFICIENTS:
            problems.add(TOO_MANY.format(features=n_features, classes=count, most=MOST_COEFFICIENTS))
    problems.raise_if_any()
    assert schema is not None
    targets = torch.nn.functional.one_hot(torch.tensor(labels, dtype=torch.int64), count).double()
    return pool_sites(targets, codes, weight, site, schema)


def _read_known_labels(y: Any, n_classes: Any, problems: Problems) -> tuple[Array, int]:
    """Every row's class index, none of them missing, and the number of classes K."""
    n_rows = int(np.shape(y)[0]) if np.ndim(y) else 0
    if not n_rows:
        problems.add(f"y must hold a class index for each row, at least one, got {y!r}")
        problems.raise_if_any()  # nothing else can be checked against it
    column = read_column(y, "y", n_rows, problems)
    if n_classes is not None and (not isinstance(n_classes, Integral) or n_classes < 2):
        problems.add(f"n_classes must be a whole number from 2 up, or None, got {n_classes!r}")
        n_classes = None
    if column is None:
        return np.zeros(n_rows), 2
    if column.isna().any():
        first = int(np.flatnonzero(column.isna().to_numpy())[0])
        problems.add(f"y is missing in {int(column.isna().sum())} row(s), first at row {first}: leave those rows out")
    count = _count_classes(column, problems) if n_classes is None else int(n_classes)
    return read_labels(column, n_rows, count, problems), count


def _count_classes(column: pd.Series, problems: Problems) -> int:
    """The highest class index plus one; an index beyond the number of rows is none."""
    numbers = numbers_of(column)
    if (numbers == 0).all():
        problems.add("y holds class 0 only: say how many classes there are with n_classes=")
    return 1 + int(np.clip(np.nan_to_num(numbers, nan=0.0), 1, max(len(numbers) - 1, 1)).max())


def _read_sites(sample_domain: Any, weight: Tensor, problems: Problems) -> Tensor:
    """Every row's site as a number 0..E-1, at least two of them."""
    column = read_column(sample_domain, "sample_domain", len(weight), problems)
    if column is None:
        return torch.zeros(len(weight), dtype=torch.int64)
    numbers, _ = pd.factorize(column)
    if (numbers < 0).any():
        first = int(np.flatnonzero(numbers < 0)[0])
        problems.add(f"sample_domain is missing in {int((numbers < 0).sum())} row(s), first at row {first}")
    n_sites = len(np.unique(numbers[weight.numpy() > 0]))
    if n_sites < 2:
        problems.add(ONE_SITE.format(count=n_sites))
    return torch.tensor(numbers, dtype=torch.int64)


def _read_confounders(
    Z: Any, schema: Any, categorical: Any, n_rows: int, problems: Problems
) -> tuple[Confounders | None, Tensor]:
    """The schema given or learned here, and the codes of all rows."""
    nothing = torch.zeros(n_rows, 0, dtype=torch.float64)
    if schema is not None and not isinstance(schema, Confounders):
        problems.add(f"confounders must be a schema, such as Confounders.learn(Z), got {type(schema).__name__}")
        return None, nothing
    if schema is not None and categorical is not None:
        problems.add(TWICE)
    if Z is None:
        problems.add("sample_confounder is None: a prior for P(Y|Z) needs confounders")
        return None, nothing
    try:
        schema = Confounders.learn(Z, categorical) if schema is None else schema
        codes, _ = schema.encode(Z)
    except ValueError as error:
        problems.add(str(error))
        return None, nothing
    if len(codes) != n_rows:
        problems.add(f"sample_confounder has {len(codes)} row(s), y has {n_rows}")
    return schema, codes
