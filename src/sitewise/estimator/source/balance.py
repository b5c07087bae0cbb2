"""The balance of f: at every z its mean over source rows must be the same for all classes (section 18).

Of a weak f little is left once g_s(z) is divided out, and an error of g_s is large beside that little: an f out of
balance looks like another prevalence, at the source itself and wherever it goes.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from sitewise.calibration import centre
from sitewise.confounders import Confounders
from sitewise.estimator.source.held_out import ENOUGH_TO_CALIBRATE, calibrate_rows
from sitewise.estimator.source.splitting import evenly
from sitewise.posterior import contrasts
from sitewise.prevalence.additive import features, ridge
from sitewise.prevalence.linear import fit_linear
from sitewise.rows import HeldOut

RIDGE = 0.01
LEAST_SLOPE = 0.1  # of log f, below which there is nothing to balance
ROWS = 100_000  # are enough
ROUNDS = 3  # in which the slope of a balanced f and the balance at that slope find each other


@dataclass(frozen=True)
class Balance:
    """log h(z) = Σ of one term for each variable, for rows that have all of z; others are left as they are."""

    schema: Confounders
    coefficients: Tensor  # (D, K), each row sums to zero

    def log_mean(self, codes: Tensor) -> Tensor:
        """log h at rows of codes, (n, K), what is to be taken from log f."""
        lacking = self.schema.missing(codes).any(dim=1, keepdim=True)
        return torch.where(lacking, 0.0, features(codes, self.schema) @ self.coefficients)


def fit_balance(held: HeldOut, schema: Confounders | None, n_classes: int) -> Balance | None:
    """h(z), the mean of f at z among labeled rows (equation 18a); None where too few of them have all of z.

    g and h are fitted to the very same labels, so that their noise, which is much more than f says where f is weak,
    does not count.
    """
    if schema is None or not len(held):
        return None
    finite = torch.isfinite(held.raw_log_ratio).all(dim=1).nonzero().flatten()
    rows = finite[evenly(len(finite), ROWS)]
    y, weight, codes, raw = held.y[rows], held.weight[rows], held.codes[rows], centre(held.raw_log_ratio[rows])
    if int(torch.bincount(y, minlength=n_classes).min()) < ENOUGH_TO_CALIBRATE:
        return None
    totals = one_hot(y, n_classes).double() * weight[:, None]
    design, basis = features(codes, schema), contrasts(n_classes)
    penalty = ridge(RIDGE, design.shape[1])

    def fitted(offset: Tensor) -> Tensor:
        return fit_linear(totals, weight, design, penalty, offset).point.reshape(design.shape[1], -1) @ basis.T

    log_g = torch.log_softmax(design @ fitted(torch.zeros_like(raw)), dim=1)
    lacking = torch.zeros(design.shape[1], n_classes, dtype=torch.float64)
    for _ in range(ROUNDS):
        balanced = raw + design @ lacking
        slope = calibrate_rows(balanced, log_g, y, weight, "temperature", n_classes).slope[0]
        if float(slope) < LEAST_SLOPE:
            return None
        lacking = fitted(slope * raw + log_g) / slope
    return Balance(schema, -lacking)
