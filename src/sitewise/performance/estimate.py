"""Compute beliefs about the labels, and the expected performance, from log-ratios and an estimated g."""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.utils import check_random_state
from torch import Tensor

from sitewise.adaptation import PrevalenceEstimate
from sitewise.adaptation.draws import PrevalenceDraws
from sitewise.arrays import Problems, read_labels, read_matrix, read_weight
from sitewise.calibration import Calibration
from sitewise.performance.expected import DrawnRows, ExpectedPerformance, summarize
from sitewise.performance.labels import (
    Direction,
    OpenShape,
    ResampledCalibration,
    calibration_directions,
    draw_labels,
    every_row,
)
from sitewise.performance.unlearned import Learned
from sitewise.posterior import normalize

Array = np.ndarray[Any, Any]
MOST_ROWS = 30_000  # evenly spaced rows that represent a larger site; the sampling error of a share is below 0.003
MOST_DRAWS, FEWEST_DRAWS = 400, 200
DRAWN_LABELS = 5 * 10**6  # largest number of drawn labels (draws times rows), unless FEWEST_DRAWS draws need more


def expected_performance(
    log_ratio: Any,
    estimate: PrevalenceEstimate,
    sample_confounder: Any = None,
    *,
    y: Any = None,
    sample_weight: Any = None,
    calibration: Calibration | None = None,
    threshold: float | None = None,
    classes: Any = None,
    level: float = 0.95,
    n_draws: int | None = None,
    random_state: Any = None,
) -> ExpectedPerformance:
    """Estimate the performance of the probabilities `estimate.predict_proba(log_ratio, Z)` without labels.

    Parameters
    ----------
    log_ratio : array of shape (n, K)
        Calibrated log f of the rows.
    estimate : PrevalenceEstimate
        The estimated g of the site of these rows, from `estimate_prevalence`.
    sample_confounder : DataFrame or array of shape (n, V), optional
        The confounders z of the rows, if g depends on z.
    y : array of shape (n,), optional
        Known labels as class indices; NaN for rows without a label.
    sample_weight : array of shape (n,), optional
        One weight for each row.
    calibration : Calibration, optional
        The calibration that was applied to `log_ratio`, with resamples. With it, the intervals include the uncertainty
        of the calibration.
    threshold : float, optional
        For two classes: class 1 is predicted for rows whose P(y=1) is at or above the threshold. By default, the most
        probable class is predicted.
    classes : sequence, optional
        Names of the classes; 0..K-1 by default.
    level : float
        Confidence level of the intervals.
    n_draws : int, optional
        The number of draws from which intervals are computed; each draw consists of g, a calibration and labels. By
        default 400, and above 12,500 rows fewer, but at least 200.
    random_state : int, RandomState or None
        Seed of the draws.

    Returns
    -------
    ExpectedPerformance
        The estimate of each metric with its interval.

    Examples
    --------
    >>> estimate = estimate_prevalence(log_ratio, Z)
    >>> expected_performance(log_ratio, estimate, Z)["accuracy"]
    """
    problems = Problems("expected_performance")
    ratios = read_matrix(log_ratio, "log_ratio", problems)
    if ratios is None:
        problems.raise_if_any()
    assert ratios is not None
    n_rows, n_classes = ratios.shape
    weight = read_weight(sample_weight, n_rows, problems)
    known = None if y is None else read_labels(y, n_rows, n_classes, problems)
    codes = ratios.new_zeros(n_rows, 0)
    z = None
    if estimate.confounders is not None:
        codes = estimate.confounders.missing_codes(ratios.device).expand(n_rows, -1)
        if sample_confounder is not None:
            codes = estimate.confounders.encode(sample_confounder, ratios.device)[0]
            z = estimate.confounders.decode(codes)
    if len(codes) != n_rows:
        problems.add(f"sample_confounder has {len(codes)} row(s), log_ratio has {n_rows}")
    if calibration is not None and not calibration.resamples():
        problems.add("calibration must carry resamples: fit it by calibrate_log_ratio(..., n_resamples=200)")
    names = tuple(range(n_classes)) if classes is None else tuple(classes)
    if len(names) != n_classes:
        problems.add(f"classes must be {n_classes} names, got {len(names)}")
    problems.raise_if_any()
    rows = draw_rows(
        normalize(ratios),
        codes,
        estimate,
        calibrations=[] if calibration is None else [ResampledCalibration(calibration, every_row)],
        known=known,
        weight=weight,
        z=z,
        n_draws=n_draws,
        random_state=random_state,
    )
    return summarize(rows, names, threshold, level)


def draw_rows(
    log_ratio: Tensor,
    codes: Tensor,
    estimate: PrevalenceEstimate,
    *,
    log_prevalence: Tensor | None = None,
    supported: Tensor | None = None,
    by_marginal: Tensor | None = None,
    probability: Array | None = None,
    calibrations: Sequence[ResampledCalibration] = (),
    known: Array | None = None,
    weight: Tensor | None = None,
    z: pd.DataFrame | None = None,
    n_draws: int | None = None,
    source: tuple[float, Array] | None = None,
    shape: OpenShape | None = None,
    random_state: Any = None,
) -> DrawnRows:
    """Compute the beliefs P(y|x,z) about the labels of a site's rows, and draw labels from them.

    A site of more than 30,000 rows is represented by 30,000 evenly spaced rows.

    Parameters
    ----------
    log_ratio : Tensor of shape (n, K)
        Calibrated log f.
    codes : Tensor of shape (n, V)
        Codes of z.
    estimate : PrevalenceEstimate
        The estimated g of the site.
    log_prevalence : Tensor of shape (n, K), optional
        log g of the rows. By default, `estimate` gives it.
    supported : Tensor of bool, shape (n,), optional
        Rows for which g is drawn; the other rows have the same g in all draws. By default, g is drawn for all rows.
    by_marginal : Tensor of bool, shape (n,), optional
        Rows whose g is one P(y) for all z. In each draw, its logarithm changes by as much as that of the estimated
        P(y). By default, no rows.
    probability : array of shape (n, K), optional
        P(y|x,z) of the rows. By default, `estimate` gives it.
    calibrations : sequence of ResampledCalibration
        The calibrations of log f. Each of them marks the rows to which it was applied.
    known : array of shape (n,), optional
        Known labels, NaN elsewhere.
    weight : Tensor of shape (n,), optional
        One weight for each row.
    z : DataFrame, optional
        The confounders, to group rows by.
    n_draws : int, optional
        The number of draws, as in `expected_performance`.
    source : tuple of float and array, optional
        The number of rows that f was learned from, and P(y|x,z) (n, K) of the given rows by the model as trained. It is
        needed to judge the predictions of other models.
    shape : OpenShape, optional
        The uncertainty of the shape of g over z, if the draws of `estimate` do not include it.
    random_state : int, RandomState or None
        Seed of the draws.

    Returns
    -------
    DrawnRows
        The rows with their predictions, beliefs and drawn labels.
    """
    n_site = len(log_ratio)
    kept = evenly(n_site, MOST_ROWS)
    if len(kept) < n_site:
        log_ratio, codes = log_ratio[kept], codes[kept]
        given = (log_prevalence, supported, by_marginal, weight)
        log_prevalence, supported, by_marginal, weight = (None if part is None else part[kept] for part in given)
        chosen = kept.numpy()
        probability, known = (None if values is None else values[chosen] for values in (probability, known))
        source = None if source is None else (source[0], source[1][chosen])
        z = None if z is None else z.iloc[chosen].reset_index(drop=True)
    n_rows = len(log_ratio)
    n_draws = number_of_draws(n_rows) if n_draws is None else n_draws
    rng = np.random.default_rng(check_random_state(random_state).randint(2**31))
    here = estimate.prevalence.log_prob(codes) if log_prevalence is None else log_prevalence
    adjusted = estimate.average(log_ratio, codes).cpu().numpy() if probability is None else probability
    drawn_g = estimate.draws(n_draws, random_state=int(rng.integers(2**31)))
    row_weight = log_ratio.new_ones(n_rows) if weight is None else weight.to(log_ratio)
    slope = _slopes(log_ratio, estimate.slope, supported, by_marginal)
    draw = LabelDraws(
        log_ratio=log_ratio,
        codes=codes,
        log_prevalence=here,
        weight=row_weight,
        slope=slope,
        drawn=drawn_g,
        applied=estimate.slope,
        directions=_directions(log_ratio, slope, codes, estimate, calibrations, supported),
        shape=shape,
        by_marginal=by_marginal,
        moves=_moves_of_marginal(by_marginal, drawn_g, estimate),
        supported=None if supported is None or bool(supported.all()) else supported,
        known=known,
        seed=None if shape is None else int(rng.integers(2**31)),
        rng=rng,
    )
    return DrawnRows(
        adjusted,
        _knowing(adjusted, known),
        draw(),
        row_weight.cpu().numpy(),
        pd.DataFrame(index=range(n_rows)) if z is None else z,
        kept.numpy(),
        n_site,
        identified=None if supported is None else supported.cpu().numpy(),
        learned=None if source is None else Learned(*source, draw),
    )


def _moves_of_marginal(
    by_marginal: Tensor | None, drawn: PrevalenceDraws, estimate: PrevalenceEstimate
) -> Tensor | None:
    """Return the change of log P(y) in each draw, (B, K); None if no row has P(y) as its g."""
    if by_marginal is None or not bool(by_marginal.any()):
        return None
    return torch.tensor(np.log(drawn.marginal / np.asarray(estimate.marginal)))


@dataclass(frozen=True, eq=False)
class LabelDraws:
    """Draw labels (B, n), one row for each of B draws of g.

    Every call starts from the same state of the random generator; calls differ only in the directions that are added.
    """

    log_ratio: Tensor  # (n, K)
    codes: Tensor
    log_prevalence: Tensor  # (n, K) estimated
    weight: Tensor  # (n,)
    slope: Array  # (n, 1) factor on log f
    drawn: PrevalenceDraws
    applied: float  # the estimate's factor on log f
    directions: tuple[Direction, ...]
    shape: OpenShape | None
    by_marginal: Tensor | None  # (n,) rows whose g is one P(y)
    moves: Tensor | None  # (B, K) changes of log P(y) at these rows
    supported: Tensor | None  # (n,) rows whose g is drawn; None means all
    known: Array | None
    seed: int | None  # for the draws of the shape
    rng: np.random.Generator

    def __call__(self, more: Sequence[Direction] = ()) -> Array:
        """Draw labels; `more` are further directions of uncertainty in the logits."""
        log_ratio = self.slope * self.log_ratio.cpu().numpy()
        log_prevalences = (drawn.cpu().numpy() for drawn in self._log_prevalences())
        return draw_labels(log_ratio, log_prevalences, copy.deepcopy(self.rng), [*self.directions, *more], self.known)

    def _log_prevalences(self) -> Iterator[Tensor]:
        draws = self.drawn.added(self.log_ratio, self.codes, self.applied)
        if self.shape is not None and self.seed is not None:
            moved = self.shape.moves(self.log_prevalence, self.codes, self.weight, len(self.drawn), self.seed)
            draws = (drawn + move for drawn, move in zip(draws, moved, strict=True))
        if self.by_marginal is not None and self.moves is not None:
            own, pairs = self.by_marginal[:, None], zip(draws, self.moves, strict=True)
            draws = (torch.where(own, self.log_prevalence + move, drawn) for drawn, move in pairs)
        if self.supported is not None:
            identified, kept = self.supported[:, None], self.log_prevalence
            draws = (torch.where(identified, drawn, kept) for drawn in draws)
        return draws


def _slopes(log_ratio: Tensor, slope: float, supported: Tensor | None, by_marginal: Tensor | None) -> Array:
    """Return the factor on log f of each row, (n, 1): `slope`, or one at rows whose g is not the estimate's."""
    own = torch.ones(len(log_ratio), dtype=torch.bool) if supported is None else supported
    own = own if by_marginal is None else own & ~by_marginal
    return np.where(own.cpu().numpy()[:, None], slope, 1.0)


def number_of_draws(n_rows: int) -> int:
    """Return the number of draws for a site of n rows; large sites have fewer, which limits the memory."""
    return int(min(MOST_DRAWS, max(FEWEST_DRAWS, DRAWN_LABELS // max(n_rows, 1))))


def evenly(n_rows: int, at_most: int) -> Tensor:
    """Return at most `at_most` evenly spaced indices of n rows."""
    return torch.arange(n_rows) if n_rows <= at_most else torch.arange(at_most) * n_rows // at_most


def _directions(
    log_ratio: Tensor,
    slope: Array,
    codes: Tensor,
    estimate: PrevalenceEstimate,
    calibrations: Sequence[ResampledCalibration],
    supported: Tensor | None,
) -> tuple[Direction, ...]:
    """Return the directions in which the uncertainty of the calibrations changes log f and log g.

    g is refitted to the changed log f. It is left unchanged if the estimate cannot be refitted, or if it already allows
    for errors of f.
    """

    def refit(change: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        if estimate.allows_for_ratio_error or not estimate.can_refit:
            return estimate.prevalence.log_prob
        again = estimate.refit(change)
        if supported is None:
            return again.log_prob
        return lambda at: torch.where(supported[:, None], again.log_prob(at), 0.0)

    moved = calibration_directions(log_ratio, codes, calibrations, refit)
    return tuple(replace(direction, log_ratio=slope * direction.log_ratio) for direction in moved)


def _knowing(probability: Array, known: Array | None) -> Array:
    """Replace the probabilities of rows with known labels by 0 and 1."""
    if known is None:
        return probability
    labeled = ~np.isnan(known)
    belief = probability.copy()
    belief[labeled] = np.eye(probability.shape[1])[known[labeled].astype(np.int64)]
    return belief
