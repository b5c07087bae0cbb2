"""log f from a classifier's probabilities p, divided by the prevalence of its training data.

If z is an input of the classifier, it gives P_s(y|x,z), which is proportional to f(x,z) g_s(z); so
log f = log p - log g_s(z) (equation 1). If z is not an input, p depends on x only. Then log f is fitted to labeled rows
as a function of log p and z, given the g of each row (equation 3).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from sitewise.calibration.fit import centre
from sitewise.confounders import Confounders
from sitewise.estimator.source.held_out import calibrate_rows, smoothed_targets
from sitewise.posterior import combine, contrasts
from sitewise.prevalence.additive import features, missing_features
from sitewise.prevalence.base import Prevalence
from sitewise.prevalence.linear import fit_linear
from sitewise.rows import SiteRows

STRENGTHS = (0.3, 3.0, 30.0, 300.0, 1e4)  # ridge penalty on all terms with z; the last one almost removes them
LEAST_PENALTY = 1e-3  # ridge penalty on the slopes of the scores, which keeps them finite for separable rows
MISSING_PENALTY = 0.01
SELECTION_ROWS = 20_000  # rows used to choose the strength and whether the classifier sees z


class ScoreRatio(Protocol):
    """An object that computes log f before calibration."""

    def log_ratio(self, log_proba: Tensor, codes: Tensor) -> Tensor:
        """Return log f (n, K) from log-probabilities (n, K) and codes of z (n, V)."""
        ...


@dataclass(frozen=True)
class PooledRatio:
    """log f = log p - log g_s(z), where g_s is the prevalence of all source rows together."""

    prevalence: Prevalence

    def log_ratio(self, log_proba: Tensor, codes: Tensor) -> Tensor:
        """Return log f, (n, K)."""
        return log_proba - self.prevalence.log_prob(codes)


@dataclass(frozen=True)
class AdditiveRatio:
    """log f = b(z) + W(z) s, where s are K-1 contrasts of log p; b and W are additive in D features of z."""

    schema: Confounders
    coefficients: Tensor  # (K, D, K): effects of the features of z on each class, for b and for each score
    strength: float

    def log_ratio(self, log_proba: Tensor, codes: Tensor) -> Tensor:
        """Return log f, (n, K)."""
        at_z = features(codes, self.schema) @ self.coefficients.transpose(0, 1).flatten(1)
        parts = at_z.reshape(len(codes), *self.coefficients.shape[::2])
        return parts[:, 0] + (parts[:, 1:] * to_scores(log_proba)[:, :, None]).sum(dim=1)


def to_scores(log_proba: Tensor) -> Tensor:
    """Return the scores: contrasts of log p, (n, K-1); for two classes, log-odds divided by the square root of two."""
    return centre(log_proba) @ contrasts(log_proba.shape[1])


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class ProbabilityRows(SiteRows):
    """Labeled rows to which a ratio is fitted; the fields `masked_...` are for z with random parts hidden."""

    log_proba: Tensor  # (n, K)
    y: Tensor = field()
    weight: Tensor = field()
    log_prevalence: Tensor  # (n, K), by a g that was not fitted to the labels of these rows
    masked_codes: Tensor
    masked_log_prevalence: Tensor


def fit_additive_ratio(
    rows: ProbabilityRows, schema: Confounders, strength: float, *, hidden: bool = True
) -> AdditiveRatio:
    """Fit b and W by penalized maximum likelihood of equation 3, which is a convex problem.

    First, all terms are fitted to the rows as they are. Variables that are never missing in the rows then have no terms
    for missing values. If `hidden`, these terms are fitted to the rows with some of z hidden, as for g (equation 9).
    """
    n_classes = rows.log_proba.shape[1]
    basis = contrasts(n_classes)
    targets = smoothed_targets(rows.y, torch.bincount(rows.y, minlength=n_classes)) * rows.weight[:, None]
    scores = to_scores(rows.log_proba)
    scale = (rows.weight @ scores**2 / rows.weight.sum()).mean().sqrt().clamp_min(1e-12)
    scores = scores / scale
    design = products(scores, features(rows.codes, schema))
    n_features = design.shape[1] // n_classes
    penalty = torch.full((n_classes, n_features), strength, dtype=torch.float64)
    penalty[0, 0], penalty[1:, 0] = 0.0, LEAST_PENALTY
    flat = fit_linear(targets, rows.weight, design, penalty.flatten(), rows.log_prevalence).point
    coefficients = (flat.reshape(len(penalty.flatten()), -1) @ basis.T).reshape(n_classes, n_features, n_classes)
    never = ~schema.missing(rows.codes).any(dim=0)
    columns = [c for c, unseen in zip(missing_features(schema), never.tolist(), strict=True) if unseen]
    if columns and hidden:
        coefficients[:, columns] = 0.0
        at_z = features(rows.masked_codes, schema)
        fixed = products(scores, at_z) @ coefficients.flatten(0, 1)
        blanks = products(scores, at_z[:, columns])
        weak = torch.full((blanks.shape[1],), MISSING_PENALTY, dtype=torch.float64)
        flat = fit_linear(targets, rows.weight, blanks, weak, rows.masked_log_prevalence + fixed).point
        coefficients[:, columns] = (flat.reshape(blanks.shape[1], -1) @ basis.T).reshape(n_classes, -1, n_classes)
    coefficients[1:] /= scale
    return AdditiveRatio(schema, coefficients, strength)


def products(scores: Tensor, at_z: Tensor) -> Tensor:
    """Return the features of z, followed by their products with each score, (n, K D)."""
    return torch.cat([at_z, *(score[:, None] * at_z for score in scores.T)], dim=1)


@dataclass(frozen=True)
class CrossFitted:
    """Cross-fitted ratios: each scores the rows of one fold, to which it was not fitted; rows are given by number."""

    log_proba: Tensor  # (n, K)
    fold: Tensor  # (n,)
    ratios: Sequence[ScoreRatio]

    def log_ratio(self, rows: Tensor, codes: Tensor) -> Tensor:
        """Return log f (n, K) of the rows with these numbers at these codes of z, by the ratio of each row's fold."""
        log_ratio = torch.empty(len(rows), self.log_proba.shape[1], dtype=torch.float64)
        for number, ratio in enumerate(self.ratios):
            inside = self.fold[rows] == number
            log_ratio[inside] = ratio.log_ratio(self.log_proba[rows[inside]], codes[inside])
        return log_ratio

    def score(self, numbers: Any, codes: Tensor) -> tuple[Tensor, None, None]:
        """Return log f of rows by their numbers (n, 1), and None for features and their row numbers.

        `score_held_out` requires this form.
        """
        return self.log_ratio(numbers[:, 0], codes), None, None


@dataclass(frozen=True)
class ChosenRatio:
    """The choice of whether the classifier sees z, the ratio, its cross-fitted version, and the NLL of each choice."""

    sees: str  # "x" or "xz"
    ratio: ScoreRatio
    cross_fitted: CrossFitted
    nll: dict[str, float]  # held-out NLL of "x" and "xz", as far as they were tried


def fit_ratio(
    rows: ProbabilityRows,
    schema: Confounders | None,
    pooled: Prevalence,
    *,
    sees: str,
    calibration: str,
    folds: Sequence[Tensor],
) -> ChosenRatio:
    """Fit log f for a classifier that sees "x" or "xz"; "auto" takes the case that predicts held-out labels better.

    Without z, both cases are the same: log f is log p minus the log prevalence of all source rows.
    """
    fold = torch.zeros(len(rows), dtype=torch.int64)
    for number, inside in enumerate(folds):
        fold[inside] = number
    subtracted = PooledRatio(pooled)
    simple = CrossFitted(rows.log_proba, fold, [subtracted] * len(folds))
    if schema is None:
        return ChosenRatio("x", subtracted, simple, {})
    everything = torch.arange(len(rows))
    stride = -(-len(rows) // SELECTION_ROWS)
    few, few_fold = rows.take(everything[::stride]), fold[::stride]
    nll: dict[str, float] = {}
    if sees in ("xz", "auto"):
        nll["xz"] = calibrated_nll(few, few_fold, subtracted.log_ratio(few.log_proba, few.codes), calibration)
    if sees == "xz":
        return ChosenRatio("xz", subtracted, simple, nll)
    strength, nll["x"] = choose_strength(few, few_fold, schema)
    if sees == "auto" and nll["xz"] <= nll["x"]:
        return ChosenRatio("xz", subtracted, simple, nll)
    ratios = [fit_additive_ratio(rows.take(fold != number), schema, strength) for number in range(len(folds))]
    whole = fit_additive_ratio(rows, schema, strength)
    return ChosenRatio("x", whole, CrossFitted(rows.log_proba, fold, ratios), nll)


def choose_strength(rows: ProbabilityRows, fold: Tensor, schema: Confounders) -> tuple[float, float]:
    """Return the strength with the smallest held-out NLL, and this NLL."""
    losses = {strength: 0.0 for strength in STRENGTHS}
    for number in torch.unique(fold).tolist():
        fitted, held = (rows.take(part) for part in (fold != number, fold == number))
        for strength in STRENGTHS:
            ratio = fit_additive_ratio(fitted, schema, strength, hidden=False)
            losses[strength] += total_nll(held, ratio.log_ratio(held.log_proba, held.codes))
    best = min(losses, key=lambda strength: losses[strength])
    return best, losses[best] / float(rows.weight.sum())


def calibrated_nll(rows: ProbabilityRows, fold: Tensor, raw_log_ratio: Tensor, calibration: str) -> float:
    """Return the mean NLL of rows; log f of a row is calibrated by a fit to the rows of the other folds."""
    total, n_classes = 0.0, raw_log_ratio.shape[1]
    for number in torch.unique(fold).tolist():
        inside, others = fold == number, (fold != number).nonzero().flatten()
        known = rows.take(others)
        fitted = calibrate_rows(
            raw_log_ratio[others], known.log_prevalence, known.y, known.weight, calibration, n_classes
        )
        total += total_nll(rows.take(inside), fitted.apply(raw_log_ratio[inside]))
    return total / float(rows.weight.sum())


def total_nll(rows: ProbabilityRows, log_ratio: Tensor) -> float:
    """Return the weighted sum of -log P(y|x,z) over rows (equation 3)."""
    return -float(rows.weight @ combine(log_ratio, rows.log_prevalence).gather(1, rows.y[:, None])[:, 0])
