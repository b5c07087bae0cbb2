"""Methods for label shift (P(y) changes, P(x|y) does not): EM, BBSE and RLLS, which adjust any ERM."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from sitewise.adaptation import estimate_prevalence
from sitewise.arrays import Problems
from sitewise.bench.methods.base import Rule
from sitewise.bench.methods.card import Card
from sitewise.bench.methods.erm import OverERM
from sitewise.bench.methods.network import Trained
from sitewise.bench.methods.weights import bbse, confusion, hard, prior_from_weights, rlls
from sitewise.calibration.fit import METHODS as CALIBRATIONS
from sitewise.estimator.source.held_out import calibrate_rows
from sitewise.posterior import combine


@dataclass(kw_only=True, eq=False, repr=False)
class LabelShift(OverERM, ABC):
    """Base class of methods that replace the P(y) of a trained ERM: P_b(y|x) = Norm(f(x) P_b(y)).

    log f(x) = log P(y|x) - log P(y) is computed from the ERM and calibrated on held-out rows. A subclass estimates the
    P_b(y) of the new site b; Norm scales to sum to one over y. Assumes that P(x|y) is the same at every site, which is
    wrong if P(z|y) differs between sites.

    Parameters
    ----------
    calibration : str
        How log f is scaled: "vector", "bias_corrected", "temperature" or "none", as for `GPAClassifier`.
    """

    calibration: str = "vector"

    def check(self, problems: Problems) -> None:
        """Add the errors of the settings to `problems`."""
        super().check(problems)
        if self.calibration not in CALIBRATIONS:
            problems.add(f"calibration must be one of {', '.join(CALIBRATIONS)}, got {self.calibration!r}")

    def settle(self, trained: Trained) -> None:
        """Calibrate log f on the held-out rows, with the class shares of these rows as P(y)."""
        self._log_shares = trained.shares.clamp_min(1e-12).log()
        y, weight = trained.held_out.y, trained.held_out.weight.double()
        if not len(y):
            raise ValueError(f"{self.card.name} needs held-out rows: set validation to a share or a site")
        self._source = _shares(y, weight, len(trained.classes))
        log_source = self._source.log().expand(len(y), -1)
        raw = trained.held_out_outputs - self._log_shares
        self._calibration = calibrate_rows(raw, log_source, y, weight, self.calibration, len(trained.classes))
        self._held_proba = combine(self._calibration.apply(raw), self._source.log()).exp()
        self._held_y, self._held_weight = y, weight

    def log_ratio(self, X: Any, Z: Any) -> Tensor:
        """Return calibrated log f = log(P(y|x) / P(y)), (n, K)."""
        return self._calibration.apply(self.outputs(X, Z) - self._log_shares)

    def rule_at(self, X: Any, Z: Any, y: Any, prevalence: Any) -> tuple[Rule, Any]:
        """Estimate the site's P(y); return the rule that predicts with it, and the estimate."""
        marginal = self.find_marginal(self.log_ratio(X, Z))
        log_marginal = marginal.clamp_min(1e-12).log()
        return lambda rows, z: combine(self.log_ratio(rows, z), log_marginal), marginal.numpy()

    @abstractmethod
    def find_marginal(self, log_ratio: Tensor) -> Tensor:
        """Estimate P(y) of the site from calibrated log f of its rows, (K,)."""

    def _predictions(self, log_ratio: Tensor, soft: bool) -> tuple[Tensor, Tensor]:
        """Return predictions of the held-out rows and of the site's rows, both with the P(y) of the held-out rows.

        They are probabilities if `soft`, otherwise one-hot rows of the predicted class.
        """
        here = combine(log_ratio, self._source.log()).exp()
        return (self._held_proba, here) if soft else (hard(self._held_proba), hard(here))


@dataclass(kw_only=True, eq=False, repr=False)
class LabelShiftEM(LabelShift):
    """Label-shift EM [saerens2002adjusting; calibrated: alexandari2020maximum]: the maximum-likelihood P_b(y).

    P_b(y) is the fixed point of π ← mean_n Norm(π P(y|x_n)/P(y)), solved until the optimality gap is small.
    """

    card: ClassVar[Card] = Card(name="EM", cite="saerens2002adjusting", estimates_g="indirectly, EM, one P(Y)")

    def find_marginal(self, log_ratio: Tensor) -> Tensor:
        """Estimate P(y) by maximum likelihood."""
        estimate = estimate_prevalence(log_ratio.numpy(), model="constant")
        return torch.tensor(np.asarray(estimate.marginal))


@dataclass(kw_only=True, eq=False, repr=False)
class BBSE(LabelShift):
    """BBSE [lipton2018detecting]: w = C⁻¹ μ, P_b(y) = w ∘ P_s(y).

    C[i,j] = P_s(ŷ = i, y = j) is estimated from the held-out rows s, and μ is the mean prediction at the new site. ŷ is
    the predicted class; if `soft`, the predicted probabilities take its place. w is relative to the class shares of the
    held-out rows, not of the training rows.

    Parameters
    ----------
    soft : bool
        Whether predictions are probabilities instead of classes.
    """

    calibration: str = "none"
    soft: bool = False
    card: ClassVar[Card] = Card(name="BBSE", cite="lipton2018detecting", estimates_g="indirectly, confusion matrix")

    def find_marginal(self, log_ratio: Tensor) -> Tensor:
        """Solve the moment equations C w = μ."""
        held, here = self._predictions(log_ratio, self.soft)
        weights = bbse(confusion(held, self._held_y, self._held_weight), here.mean(0))
        return prior_from_weights(weights, self._source)


@dataclass(kw_only=True, eq=False, repr=False)
class RLLS(LabelShift):
    """RLLS [azizzadenesheli2018regularized]: BBSE with w = 1 + θ, and θ shrunk towards zero if held-out rows are few.

    Parameters
    ----------
    soft : bool
        Whether predictions are probabilities instead of classes.
    alpha : float
        The factor of the penalty of θ.
    """

    calibration: str = "none"
    soft: bool = False
    alpha: float = 0.01
    card: ClassVar[Card] = Card(
        name="RLLS", cite="azizzadenesheli2018regularized", estimates_g="indirectly, confusion matrix"
    )

    def find_marginal(self, log_ratio: Tensor) -> Tensor:
        """Solve the moment equations C w = μ with shrinkage."""
        held, here = self._predictions(log_ratio, self.soft)
        matrix = confusion(held, self._held_y, self._held_weight)
        weights = rlls(matrix, here.mean(0), len(held), alpha=self.alpha)
        return prior_from_weights(weights, self._source)


def _shares(y: Tensor, weight: Tensor, n_classes: int) -> Tensor:
    """Return the weighted class shares, (K,), with one row of uniform labels added so that no share is zero."""
    counts = (weight[:, None] * one_hot(y, n_classes)).sum(0) + 1 / n_classes
    return counts / counts.sum()
