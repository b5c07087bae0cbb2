"""Weight held-out source rows to the new site's distribution of (y, z) under the estimated g (docs/checks.md).

This is entropy balancing within each class: among all weights for which the means of simple features of z equal those
at the new site, the weights closest to uniform are taken. A row of the new site counts g(z)_y times for class y. The
compared functions are also regressed on these features, which removes differences that the weights leave.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from sitewise.confounders import Confounders
from sitewise.confounders.variables import Categorical
from sitewise.diagnosis.samples import add_up, number, scatter
from sitewise.posterior import contrasts
from sitewise.solvers import newton

RIDGE = 1e-3  # penalty on the coefficients of log-weights: keeps them finite if the goal cannot be reached
MANY_LEVELS = 12  # most frequent levels of a variable that are used; the last of them has no column of features
FEWEST = 20  # source rows of a class, and rows in a stratum, that a test needs; groups, if there are any
EFFECTIVE = 50.0  # effective source rows of a class that a test needs; with fewer, errors are not normal


def z_features(codes: Tensor, like: Tensor, schema: Confounders | None) -> Tensor:
    """Return simple features of z, (n, D): a constant, a number and its square, and a column for each frequent level.

    A variable with missing values has a column that marks them. The codes `like` determine the scale of numbers, the
    frequent levels, and which variables have missing values.
    """
    columns = [torch.ones(len(codes), 1, dtype=torch.float64)]
    for j, variable in enumerate(() if schema is None else schema.variables):
        known, known_like = codes[:, j] != variable.missing_code, like[:, j] != variable.missing_code
        if isinstance(variable, Categorical):
            columns.append((codes[:, j, None] == frequent(like[:, j], len(variable.levels))[:-1]).double())
        elif known_like.sum() > 1:
            middle, deviation = like[known_like, j].mean(), like[known_like, j].std().clamp_min(1e-6)
            scaled = torch.where(known, (codes[:, j] - middle) / deviation, 0.0)
            columns.append(torch.stack([scaled, torch.where(known, scaled**2 - 1, 0.0)], dim=1))
        if not known_like.all():
            columns.append((~known).double()[:, None])
    return torch.cat(columns, dim=1)


def frequent(column: Tensor, n_levels: int) -> Tensor:
    """Return the codes of the most frequent levels, most frequent first."""
    counts = torch.bincount(column.long(), minlength=n_levels + 1)[:n_levels]
    order = torch.argsort(counts, descending=True, stable=True)[:MANY_LEVELS]
    return order[counts[order] > 0].double()


def balance(features: Tensor, base: Tensor, goal: Tensor) -> Tensor:
    """Return weights base · exp(features · λ), (m,), with Σ weights · features = goal, by entropy balancing.

    `features` (m, D) has a constant first column, `base` (m,) has the initial weights, and `goal` (D,) the wanted sums.
    λ (D,) has a small ridge penalty, so the sums differ a little from the goal.
    """
    total = goal[0]  # the first feature is constant

    def weights(points: Tensor) -> Tensor:
        return base * torch.exp((points @ features.T).clamp(max=50.0))

    def loss(points: Tensor) -> Tensor:
        return weights(points).sum(1) - points @ goal + 0.5 * RIDGE * total * (points**2).sum(1)

    def derivatives(points: Tensor) -> tuple[Tensor, Tensor]:
        w = weights(points)
        gradient = w @ features - goal + RIDGE * total * points
        hessian = torch.einsum("bn,nd,ne->bde", w, features, features)
        return gradient, hessian + RIDGE * total * torch.eye(len(goal), dtype=torch.float64)

    start = torch.zeros(1, len(goal), dtype=torch.float64)
    solution = newton(loss, derivatives, start, tolerance=1e-10, max_iter=100)
    return weights(solution.point)[0]


@dataclass(frozen=True)
class Matched:
    """Weighted source rows and target rows, with methods that compare means of functions over both.

    Shapes: m source rows, n rows of the target (the new site), D features of z, K classes.
    """

    source_features: Tensor  # (m, D) features of z
    target_features: Tensor  # (n, D)
    y: Tensor  # (m,) class indices of the source's rows
    prevalence: Tensor  # (n, K) g at the target's rows
    source_prevalence: Tensor  # (m, K) the target's g at the source's z
    source_weight: Tensor  # (m,), sums to one
    target_weight: Tensor  # (n,), sums to one
    source_groups: Tensor | None = None  # (m,)
    target_groups: Tensor | None = None  # (n,)

    def effective_rows(self, strata: Tensor | None = None) -> Tensor:
        """Return the effective number of source rows of each class in each of the strata (m, S), as (S, K).

        With groups, it is the effective number of groups.
        """
        marks = torch.ones(len(self.y), 1, dtype=torch.float64) if strata is None else strata
        one_hot = torch.nn.functional.one_hot(self.y, self.prevalence.shape[1]).double()
        weighted = self.source_weight[:, None] * one_hot
        squares = marks.T @ weighted**2
        if self.source_groups is not None:
            by_class = [(add_up(marks * own[:, None], self.source_groups) ** 2).sum(0) for own in weighted.T]
            squares = torch.stack(by_class, dim=1)
        effective: Tensor = (marks.T @ weighted) ** 2 / squares.clamp_min(1e-300)
        return effective

    def residuals(self, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return residuals of M functions, (m, M) and (n, M), given z and class, and the source's leverage, (m, 1).

        A regression on the features of z is fitted to the weighted source rows of each class. The prediction for a
        target row is the mean over classes, weighted by the row's g. Rows of one group and class all have the leverage
        of one row with their mean features and their total weight.
        """
        left, own, leverage = torch.empty_like(source), target.clone(), torch.empty_like(source[:, :1])
        for label in range(self.prevalence.shape[1]):
            rows = (self.y == label).nonzero().flatten()
            design, weight = self.source_features[rows], self.source_weight[rows, None]
            gram = design.T @ (weight * design)
            gram = gram + RIDGE * weight.sum() * torch.eye(len(gram), dtype=torch.float64)
            coefficients = torch.linalg.solve(gram, design.T @ (weight * source[rows]))
            left[rows] = source[rows] - design @ coefficients
            if self.source_groups is None:
                leverage[rows] = (weight * design * torch.linalg.solve(gram, design.T).T).sum(1, keepdim=True)
            else:
                own_groups = self.source_groups[rows]
                together, mass = add_up(weight * design, own_groups), add_up(weight, own_groups).clamp_min(1e-300)
                pulled = (together * torch.linalg.solve(gram, together.T).T).sum(1, keepdim=True) / mass
                leverage[rows] = pulled[number(own_groups)[0]]
            own -= self.prevalence[:, label, None] * (self.target_features @ coefficients)
        return left, own, leverage

    def compare(self, source: Tensor, target: Tensor) -> "Difference":
        """Return the means of functions over the target (n, M) minus those over the source (m, M), with covariance.

        The functions are first regressed on z and class (`residuals`). Groups are taken into account.
        """
        left, own, leverage = self.residuals(source, target)
        mean = self.target_weight @ own
        target_terms = self.target_weight[:, None] * (own - mean)
        source_terms = self.source_weight[:, None] * left / (1 - leverage.clamp(max=0.9))  # HC3
        covariance = scatter(target_terms, self.target_groups) + scatter(source_terms, self.source_groups)
        return Difference(mean - self.source_weight @ left, covariance)

    def tilts(self, source: Tensor, strata: Tensor) -> Tensor:
        """Return the derivatives of the source's means of M functions (m, M) by the log-odds of g in S strata (m, S).

        The result has shape (M, S (K-1)).
        """
        basis = contrasts(self.prevalence.shape[1])
        one_hot = torch.nn.functional.one_hot(self.y, self.prevalence.shape[1]).double()
        scores = (one_hot - self.source_prevalence) @ basis  # (m, K-1)
        columns = strata[:, :, None] * scores[:, None, :]
        return source.T @ (self.source_weight[:, None] * columns.flatten(1))


@dataclass(frozen=True)
class Difference:
    """A difference of the means of M functions, (M,), and its covariance, (M, M)."""

    mean: Tensor
    covariance: Tensor


def match(
    source_codes: Tensor,
    y: Tensor,
    source_weight: Tensor,
    target_codes: Tensor,
    target_weight: Tensor,
    prevalence: Tensor,
    source_prevalence: Tensor,
    schema: Confounders | None,
    source_groups: Tensor | None = None,
    target_groups: Tensor | None = None,
) -> Matched:
    """Weight the m source rows to the distribution of (y, z) at the n target rows.

    `prevalence` (n, K) is g at the target rows, and `source_prevalence` (m, K) the same g at the source rows.
    """
    share = target_weight / target_weight.sum()
    n_units = len(target_codes) if target_groups is None else number(target_groups)[1]
    floor = 0.5 / n_units  # a class estimated at zero may still occur
    prevalence = prevalence.clamp_min(floor) / prevalence.clamp_min(floor).sum(1, keepdim=True)
    target_features = z_features(target_codes, target_codes, schema)
    source_features = z_features(source_codes, target_codes, schema)
    weight = torch.zeros_like(source_weight)
    for label in range(prevalence.shape[1]):
        rows = (y == label).nonzero().flatten()
        goal = (share * prevalence[:, label]) @ target_features
        base = source_weight[rows] / source_weight[rows].sum() * goal[0]
        weight[rows] = balance(source_features[rows], base, goal)
    weight, groups = weight / weight.sum(), (source_groups, target_groups)
    return Matched(source_features, target_features, y, prevalence, source_prevalence, weight, share, *groups)
