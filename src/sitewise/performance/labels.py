"""Draw labels of a site's rows from their posterior: equation 16c of docs/maths.md.

Three things are uncertain: g, for which there are draws; the calibration of f, whose errors change log f and log g
along a few directions; and the label of each row, given f and g.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sitewise.calibration import Calibration
from sitewise.confounders import Confounders
from sitewise.posterior import contrasts
from sitewise.prevalence.additive import features
from sitewise.prevalence.linear import NEWTON_LIMIT, information
from sitewise.prevalence.pooled import RIDGE

Array = np.ndarray[Any, Any]
NO_DIRECTION = 1e-8  # a smaller standard deviation is ignored


@dataclass(frozen=True, eq=False)
class Direction:
    """The change of log f and of log g, each (n, K), for one standard deviation along a direction of uncertainty."""

    log_ratio: Array
    log_prevalence: Array


@dataclass(frozen=True)
class ResampledCalibration:
    """A calibration with resamples, and a function of the codes of z that marks the rows to which it was applied."""

    calibration: Calibration
    applies: Callable[[Tensor], Tensor]  # codes (n, V) -> (n,) bool


def every_row(codes: Tensor) -> Tensor:
    """Return a mask (n,) of all rows of codes (n, V), for a calibration that is applied at every z."""
    return codes.new_ones(len(codes), dtype=torch.bool)


def draw_labels(
    log_ratio: Array,
    log_prevalences: Iterable[Array],
    rng: np.random.Generator,
    directions: Sequence[Direction] = (),
    known: Array | None = None,
) -> Array:
    """Draw a label for each row and each of B versions of log g, (n, K); return the labels (B, n).

    A label is drawn from P(y|x,z), the product of f and g. In each draw, f and g also have an error along every one of
    `directions`: its change times a standard normal number. `known` (n,) has known labels, and NaN for other rows.
    """
    drawn = []
    for log_prevalence in log_prevalences:
        logits = log_ratio + log_prevalence
        for direction, amount in zip(directions, rng.standard_normal(len(directions)), strict=True):
            logits = logits + amount * (direction.log_ratio + direction.log_prevalence)
        drawn.append(_draw(logits, rng))
    labels = np.stack(drawn)
    if known is not None:
        labeled = ~np.isnan(known)
        labels[:, labeled] = known[labeled].astype(labels.dtype)
    return labels


def _draw(logits: Array, rng: np.random.Generator) -> Array:
    """Draw a class for each row of logits (n, K), in the smallest integer type."""
    kind = np.int8 if logits.shape[1] <= 127 else np.int16
    if logits.shape[1] == 2:
        odds = np.clip(logits[:, 1] - logits[:, 0], -700, 700)
        return np.asarray(rng.random(len(odds)) * (1 + np.exp(-odds)) < 1, dtype=kind)
    return np.asarray((logits + rng.gumbel(size=logits.shape)).argmax(axis=1), dtype=kind)


def calibration_directions(
    log_ratio: Tensor,
    codes: Tensor,
    calibrations: Sequence[ResampledCalibration],
    refit: Callable[[Callable[[Tensor, Tensor], Tensor]], Callable[[Tensor], Tensor]],
) -> list[Direction]:
    """Return the change of log f and log g along each principal direction of the calibrations' resamples.

    `refit` takes a function of (log f, codes) that changes log f. It estimates g again from the changed log f, and
    returns a function from codes to log g. Log f and log g are taken as linear in the parameters of the calibration
    between minus and plus one standard deviation.
    """
    directions = []
    for own in calibrations:
        before = own.calibration
        if bool((before.slope == 0).any()) or not bool(own.applies(codes).any()):
            continue
        for step in _principal_steps(before):
            moved = []
            for sign in (-1.0, 1.0):
                after = _moved(before, sign * step)

                def change(
                    old: Tensor, at: Tensor, after: Calibration = after, own: ResampledCalibration = own
                ) -> Tensor:
                    return torch.where(own.applies(at)[:, None], after.apply(own.calibration.undo(old)), old)

                moved.append((change(log_ratio, codes), refit(change)(codes)))
            (low_ratio, low_g), (high_ratio, high_g) = moved
            directions.append(Direction(_half(high_ratio, low_ratio), _half(high_g, low_g)))
    return directions


@dataclass(frozen=True)
class OpenShape:
    """The uncertainty of the shape of g over z.

    `schema` is the schema of z. `n_rows` is the effective number of labeled rows that the shape was estimated from
    (N_eff in equation 16e).
    """

    schema: Confounders
    n_rows: float

    def moves(self, log_prevalence: Tensor, codes: Tensor, weight: Tensor, n_draws: int, seed: int) -> Iterator[Tensor]:
        """Yield for each draw the term that is added to log g of the rows, (n, K) (equation 16e).

        The coefficients are normal. The features are centred over the rows, so that the level does not change. The
        terms are zero if g has no or too many coefficients.
        """
        basis = contrasts(log_prevalence.shape[1], log_prevalence.device)
        design = features(codes, self.schema)[:, 1:]
        width = design.shape[1] * basis.shape[1]
        if not 0 < width <= NEWTON_LIMIT:
            yield from (torch.zeros_like(log_prevalence) for _ in range(n_draws))
            return
        share = weight / weight.sum()
        design = design - share @ design
        precision = self.n_rows * information(design, share, log_prevalence.exp()) + RIDGE * torch.eye(width).to(design)
        values, vectors = torch.linalg.eigh(precision)
        noise = torch.randn(n_draws, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        drawn = (noise.to(values) / values.sqrt()) @ vectors.T
        for coefficients in drawn.reshape(n_draws, design.shape[1], -1):
            yield design @ coefficients @ basis.T


def _half(high: Tensor, low: Tensor) -> Array:
    """Return half the difference of two log-ratios, centred over classes, (n, K)."""
    difference = (high - low) / 2
    centred = difference - difference.mean(1, keepdim=True)
    return np.asarray(torch.nan_to_num(centred, nan=0.0).cpu().numpy())  # infinite log-ratios stay unchanged


def _principal_steps(calibration: Calibration) -> list[Tensor]:
    """Return a step of one standard deviation along each principal direction of the resampled (slope, bias), (2K,)."""
    resamples = calibration.resamples()
    if len(resamples) < 2:
        return []
    parameters = torch.stack([torch.cat([refit.slope, refit.bias]) for refit in resamples])
    centred = parameters - parameters.mean(0)
    _, values, vectors = torch.linalg.svd(centred / (len(resamples) - 1) ** 0.5, full_matrices=False)
    return [value * vector for value, vector in zip(values, vectors, strict=True) if float(value) > NO_DIRECTION]


def _moved(calibration: Calibration, step: Tensor) -> Calibration:
    slope, bias = (torch.cat([calibration.slope, calibration.bias]) + step).chunk(2)
    return Calibration(calibration.method, slope.clamp_min(1e-6), bias)
