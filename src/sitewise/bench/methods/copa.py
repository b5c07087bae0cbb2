"""Conditional Prevalence Adjustment (CoPA), the predecessor of GPA. It needs labels or P(Y) of the new site."""

import math
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from scipy.stats import qmc
from torch import Tensor

from sitewise.adaptation import PrevalenceEstimate, estimate_prevalence
from sitewise.arrays import Problems
from sitewise.bench.methods.base import Method, Rule, cross_fitted
from sitewise.bench.methods.card import Card
from sitewise.bench.methods.gpa import GPA, log_of
from sitewise.bench.methods.network import Array
from sitewise.confounders import Confounders
from sitewise.confounders.variables import Categorical
from sitewise.estimator.source.reading import read_partial_labels
from sitewise.posterior import combine
from sitewise.sites import take_rows

MAX_CELLS = 256
N_POINTS = 64  # values of z if z has a continuous variable or too many cells


def uniform_points(schema: Confounders, seed: int = 0) -> pd.DataFrame:
    """Return values of z that are spread evenly over its range, a row for each value.

    If all variables are categorical and have at most `MAX_CELLS` combinations of levels, these are all combinations.
    Otherwise they are 64 points of a scrambled Sobol sequence, with a coordinate for each variable.
    """
    levels = [v.levels if isinstance(v, Categorical) else None for v in schema.variables]
    if all(level is not None for level in levels):
        n_cells = int(np.prod([len(level or ()) for level in levels]))
        if n_cells <= MAX_CELLS:
            return pd.DataFrame(list(product(*(level or () for level in levels))), columns=list(schema.names))
    points = qmc.Sobol(len(levels), seed=seed).random(N_POINTS)
    columns: dict[str, Any] = {}
    for variable, share in zip(schema.variables, points.T, strict=True):
        if isinstance(variable, Categorical):
            columns[variable.name] = [variable.levels[int(s * len(variable.levels))] for s in share]
        else:
            columns[variable.name] = variable.low + share * (variable.high - variable.low)
    return pd.DataFrame(columns)


@dataclass(kw_only=True, eq=False, repr=False)
class CoPA(GPA):
    """CoPA [nguyen2024robust]: P_b(y|x,z) = Norm(f(x,z) g_b(z)), where g_b is fitted to labels and z of the new site.

    It is a reference in comparisons, because it needs labels of the new site. f is trained without knockout and not
    calibrated. The rows that `adapt` got are divided into five parts, and `AdaptedMethod.own_proba` predicts each part
    with a g_b that was fitted to the other four. Therefore no row is predicted with a g_b that was fitted to its label.
    """

    knockout: float = 0.0
    calibration: str = "none"
    card: ClassVar[Card] = Card(
        name="CoPA",
        cite="nguyen2024robust",
        input="X, Z",
        continuous_z=True,
        high_dimensional_z=True,
        z_at_test="needed",
        labels_at_test="labels",
        estimates_g="directly",
    )

    def trainer(self) -> Method:
        """Return a `GPA` with CoPA's settings, which trains f."""
        return GPA(**self.get_params(deep=False))

    def rule_at(self, X: Any, Z: Any, y: Any, prevalence: Any) -> tuple[Rule, Any]:
        """Fit g to the labels and z of the site; return the rule that predicts with it, and None for the P(Y)."""
        estimate = self._fit_g(Z, self._labels(y, len(X)), len(X))
        return lambda rows, z: combine(self.log_ratio(rows, z), _log_prevalence(estimate, z, len(rows))), None

    def own_log_proba(self, rule: Rule, X: Any, Z: Any, y: Any) -> Tensor:
        """Return log P(y|x,z) of each row, (n, K), predicted with a g that was fitted without its label."""
        labels, log_ratio = self._labels(y, len(X)), self.log_ratio(X, Z)

        def predict(seen: Array, scored: Array) -> Tensor:
            estimate = self._fit_g(take_rows(Z, seen), labels[seen], len(seen))
            z = take_rows(Z, scored)
            return combine(log_ratio[torch.tensor(scored)], _log_prevalence(estimate, z, len(scored)))

        return cross_fitted(len(X), int(self.random_state or 0), predict)

    def _labels(self, y: Any, n_rows: int) -> Array:
        if y is None:
            raise ValueError(f"{self.card.name} needs the site's labels: give adapt y=")
        problems = Problems("adapt")
        labels = read_partial_labels(y, self.classes_, n_rows, problems)
        problems.raise_if_any()
        return np.asarray(labels)

    def _fit_g(self, Z: Any, labels: Array, n_rows: int) -> PrevalenceEstimate:
        """Estimate g from labels and z alone; f is not used."""
        return estimate_prevalence(
            np.zeros((n_rows, len(self.classes_))),
            Z if self.model_.confounders_ is not None else None,
            model="auto" if Z is not None and self.model_.confounders_ is not None else "constant",
            confounders=self.model_.confounders_,
            y=labels,
        )


@dataclass(kw_only=True, eq=False, repr=False)
class CoPAStar(CoPA):
    """CoPA* [nguyen2024robust]: P_b(y|x) is approximated by the mean over z of Norm(f(x,z) P_b(y)).

    The values of z in the mean are spread evenly over its range. CoPA* is a reference in comparisons, because it is
    given P_b(y), which is not known at a new site. `adapt` needs P_b(y) as `prevalence=` (K numbers), or labels `y=`,
    from which P_b(y) is computed. Assumes that P(z|x) is uniform and that P_b(y|z) is close to P_b(y).
    """

    card: ClassVar[Card] = Card(
        name="CoPA*",
        cite="nguyen2024robust",
        continuous_z=True,
        high_dimensional_z=False,
        labels_at_test="P(Y)",
        estimates_g="directly",
        without_z="Monte-Carlo",
    )

    def log_proba(self, X: Any, Z: Any) -> Tensor:
        """Return log P(y|x) as trained, (n, K): P(y|x,z) is averaged over values of z spread evenly over its range."""
        if self.model_.confounders_ is None:
            return super().log_proba(X, None)
        points = uniform_points(self.model_.confounders_)
        stack = torch.stack(
            [super(CoPAStar, self).log_proba(X, _repeat(points, i, len(X))) for i in range(len(points))]
        )
        return _log_mean(stack)

    def rule_at(self, X: Any, Z: Any, y: Any, prevalence: Any) -> tuple[Rule, Any]:
        """Return the rule with the given P(Y), or with the class shares of the given labels, and None for the P(Y)."""
        if prevalence is None or callable(prevalence):
            labels = self._labels(y, len(X))
            known = labels[~np.isnan(labels)].astype(int)
            prevalence = np.bincount(known, minlength=len(self.classes_)) / len(known)
        log_marginal = log_of(prevalence)
        return lambda rows, z: self._average(rows, log_marginal), None

    def own_log_proba(self, rule: Rule, X: Any, Z: Any, y: Any) -> Tensor:
        """Return log P(y|x) of the rows, (n, K), by the rule itself: P(Y) counts as known, so no label is left out."""
        return rule(X, None)

    def _average(self, X: Any, log_marginal: Tensor) -> Tensor:
        """Return the log of the mean over z of Norm(P(Y) f(x,z)), (n, K)."""
        schema = self.model_.confounders_
        if schema is None:
            return combine(self.log_ratio(X, None), log_marginal)
        remembered = self.trained_.remembered
        key = (id(X), "uniform z", self.calibration)
        if remembered is not None and key in remembered:
            stack: Tensor = remembered[key][2]
        else:
            points = uniform_points(schema)
            stack = torch.stack([self.log_ratio(X, _repeat(points, i, len(X))) for i in range(len(points))])
            if remembered is not None:
                remembered[key] = (X, None, stack)
        return _log_mean(combine(stack, log_marginal))


def _log_mean(log_values: Tensor) -> Tensor:
    """Return the log of the mean of exp(log_values) over the first dimension."""
    total = torch.logsumexp(log_values, dim=0)
    return total - math.log(len(log_values))


def _repeat(points: pd.DataFrame, i: int, n_rows: int) -> pd.DataFrame:
    """Return a table of z in which all rows have the value of point i."""
    return points.iloc[np.full(n_rows, i)].reset_index(drop=True)


def _log_prevalence(estimate: PrevalenceEstimate, Z: Any, n_rows: int) -> Tensor:
    if Z is None or estimate.confounders is None:
        return log_of(estimate.marginal).expand(n_rows, -1)
    return torch.tensor(np.asarray(estimate.log_prevalence(Z)))
