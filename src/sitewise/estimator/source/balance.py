"""Balance of f: at each z its mean over source rows must be the same for all classes (section 18).

If f carries little information, errors of g_s(z) are large compared with it. An unbalanced f looks like another
prevalence, at the source and at any other site.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from sitewise.calibration.scaling import centre
from sitewise.confounders import Confounders
from sitewise.estimator.source.held_out import ENOUGH_TO_CALIBRATE, calibrate_rows
from sitewise.estimator.source.splitting import evenly
from sitewise.posterior import contrasts
from sitewise.prevalence.additive import features, ridge
from sitewise.prevalence.linear import fit_linear
from sitewise.rows import HeldOut

RIDGE = 0.01
LEAST_SLOPE = 0.1  # slope of log f below which nothing is balanced
ROWS = 100_000  # the most rows used
ROUNDS = 3  # alternating steps: the slope of the balanced f, and the balance at that slope


@dataclass(frozen=True)
class Balance:
    """log h(z), a sum of one term for each variable, for rows with all of z; other rows are not changed."""

    schema: Confounders
    coefficients: Tensor  # (D, K), each row sums to zero

    def log_mean(self, codes: Tensor) -> Tensor:
        """log h at codes, (n, K), to be subtracted from log f."""
        lacking = self.schema.missing(codes).any(dim=1, keepdim=True)
        return torch.where(lacking, 0.0, features(codes, self.schema) @ self.coefficients)


def fit_balance(held: HeldOut, schema: Confounders | None, n_classes: int) -> Balance | None:
    """h(z), the mean of f at z among labeled rows (equation 18a); None if too few rows have all of z.

    g and h are fitted to the same labels, so that their common noise cancels. It is large compared with a weak f.
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
