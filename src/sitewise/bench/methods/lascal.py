"""LaSCal: choose a temperature for the new site without labels, by an estimate of the calibration error at the site."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from sitewise.adaptation import estimate_prevalence
from sitewise.bench.methods.base import Rule
from sitewise.bench.methods.card import Card
from sitewise.bench.methods.label_shift import LabelShift
from sitewise.posterior import combine

N_BINS = 15
TEMPERATURES = np.geomspace(0.1, 20.0, 200)


def shifted_calibration_error(
    held: Tensor, y: Tensor, here: Tensor, weights: Tensor, n_bins: int = N_BINS, row_weight: Tensor | None = None
) -> Tensor:
    """Estimate the squared calibration error CE_k² of each class at a site without its labels, (K,).

    CE_k² is the mean over the site's rows of (p_k - P_b(y = k | bin of p_k))². Each bin has equally many rows of the
    site. In a bin B, P_b(y = k | B) = w_k P_s(y = k, B) / P_b(B). Under label shift the numerator can be estimated from
    labeled rows s of other sites; the denominator is the share of the site's rows. `held` (n, K) and `here` (m, K) are
    predicted probabilities of the labeled rows and of the site's rows, and `weights` are w_k = P_b(k)/P_s(k).
    """
    row_weight = here.new_ones(len(held)) if row_weight is None else row_weight
    errors = []
    for k in range(here.shape[1]):
        edges = torch.quantile(here[:, k], torch.linspace(0, 1, n_bins + 1, dtype=here.dtype)[1:-1])
        own, theirs = torch.bucketize(here[:, k].contiguous(), edges), torch.bucketize(held[:, k].contiguous(), edges)
        labeled = row_weight * (y == k) / row_weight.sum()
        numerator = here.new_zeros(n_bins).index_add_(0, theirs, labeled)
        share = torch.bincount(own, minlength=n_bins).to(here) / len(here)
        truth = weights[k] * numerator / share.clamp_min(1e-300)
        errors.append((here[:, k] - truth[own]).square().mean())
    return torch.stack(errors)


@dataclass(kw_only=True, eq=False, repr=False)
class LaSCal(LabelShift):
    """LaSCal [popordanoska2024lascal]: P_b(y|x) = Norm(f(x)^(1/T) P_b(y)).

    P_b(y) is estimated by label-shift EM. The temperature T minimizes an estimate of the calibration error at the new
    site: the mean of CE_k² over the classes k. For CE_k², the rows of the site are divided into 15 bins of equally many
    rows by the predicted probability of class k. CE_k² is the mean over these rows of the squared difference between
    this probability and the frequency of class k in the bin of the row. The frequency is estimated without labels of
    the site: it is the share of held-out rows that have class k and are in the bin, times w_k = P_b(k)/P_v(k), divided
    by the share of the site's rows in the bin. P_v are the class shares of the held-out rows.

    The published method divides the logits, which include the training prior, by T. Here only log f is divided by T,
    and log P_b(y) is added afterwards. The estimate of the error follows the paper's abstract and its published code;
    the paper itself was not read.
    """

    calibration: str = "none"
    card: ClassVar[Card] = Card(
        name="LaSCal",
        cite="popordanoska2024lascal",
        estimates_g="indirectly, EM, one P(Y)",
        note="calibrated at the new site without labels",
    )

    def rule_at(self, X: Any, Z: Any, y: Any, prevalence: Any) -> tuple[Rule, Any]:
        """Estimate the site's P(y), and choose T; return the rule that predicts with both, and the estimate."""
        log_ratio = self.log_ratio(X, Z)
        marginal = self.find_marginal(log_ratio)
        log_marginal = marginal.clamp_min(1e-12).log()
        slope = 1 / self.temperature(log_ratio, marginal)
        return lambda rows, z: combine(slope * self.log_ratio(rows, z), log_marginal), marginal.numpy()

    def find_marginal(self, log_ratio: Tensor) -> Tensor:
        """Return the maximum likelihood estimate of P(y), (K,)."""
        return torch.tensor(np.asarray(estimate_prevalence(log_ratio.numpy(), model="constant").marginal))

    def temperature(self, log_ratio: Tensor, marginal: Tensor) -> float:
        """Return the T from 0.1 to 20 with the smallest estimated calibration error, given the site's P(y)."""
        log_marginal, weights = marginal.clamp_min(1e-12).log(), marginal / self._source
        held = self._calibration.apply(self.trained_.held_out_outputs - self._log_shares)

        def error(temperature: float) -> float:
            scaled = (combine(part / temperature, log_marginal).exp() for part in (held, log_ratio))
            own, here = scaled
            return float(
                shifted_calibration_error(own, self._held_y, here, weights, row_weight=self._held_weight).mean()
            )

        return float(min(TEMPERATURES, key=error))
