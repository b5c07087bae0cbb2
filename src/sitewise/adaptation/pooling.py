"""`pool_prevalence` learns the prior of a new site's g from labeled training sites."""

from numbers import Integral
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from sitewise.arrays import Problems, numbers_of, read_column, read_labels, read_weight
from sitewise.confounders import Confounders
from sitewise.prevalence import SitePrior
from sitewise.prevalence.additive import missing_features
from sitewise.prevalence.pooled import pool_sites

Array = np.ndarray[Any, Any]

ONE_SITE = (
    "sample_domain must name at least two sites with rows of positive weight, got {count}: "
    "one site does not show how sites differ; estimate_prevalence also accepts another estimate as its prior"
)
MOST_COEFFICIENTS = 2000  # of a site; their covariance is a dense matrix
TOO_MANY = (
    "{features} features of the confounders (splines, levels) for {classes} classes are more than {most:,} "
    "coefficients: merge rare levels or classes, or leave confounders out"
)
TWICE = "categorical is given, but confounders already defines which variables are categorical: leave one of them out"


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
    """Learn the prior of a new site's P(Y|Z) from labeled training sites.

    The prior has two parts: the additive g of a typical site, and variances that say how much the level and the effect
    of each confounder differ between sites. The estimate at a new site is shrunk strongly where the training sites
    agree, and weakly where they differ (equation 13).

    Parameters
    ----------
    y : array of shape (n,)
        Class indices 0..K-1, without missing values.
    sample_confounder : DataFrame or array of shape (n, V)
        Confounders, NaN where missing.
    sample_domain : array of shape (n,)
        The site of each row. There must be at least two sites; with four or more, the variances are more reliable.
    n_classes : int, optional
        The number of classes K. By default it is the largest index in y plus one; give it if the last class does not
        occur in y.
    confounders : Confounders, optional
        The schema of the confounders; by default it is learned from `sample_confounder`.
    categorical : str, int or sequence of these, optional
        Names or positions of columns to treat as categorical, if the schema is learned.
    sample_weight : array of shape (n,), optional
        Frequency weights: a row of weight two counts as two rows.

    Returns
    -------
    SitePrior
        The prior, for the argument `prior` of `estimate_prevalence`.

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
    """Read the class index of every row, and the number of classes K; a missing label is a problem."""
    n_rows = int(np.shape(y)[0]) if np.ndim(y) else 0
    if not n_rows:
        problems.add(f"y must hold a class index for each row, at least one, got {y!r}")
        problems.raise_if_any()  # nothing else can be checked without the number of rows
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
    """Return the largest class index plus one; at least 2, and at most the number of rows (or 2)."""
    numbers = numbers_of(column)
    if (numbers == 0).all():
        problems.add("y holds class 0 only: say how many classes there are with n_classes=")
    return 1 + int(np.clip(np.nan_to_num(numbers, nan=0.0), 1, max(len(numbers) - 1, 1)).max())


def _read_sites(sample_domain: Any, weight: Tensor, problems: Problems) -> Tensor:
    """Read the site of every row as a number 0..E-1; fewer than two sites are a problem."""
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
    """Return the given or learned schema, and the codes of all rows."""
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
