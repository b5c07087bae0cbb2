"""Label shift: P(y) changes and P(x|y) does not; EM, BBSE and RLLS on top of any ERM."""

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
    """The common part: log P(y|x) - log P(y) of an ERM, calibrated on held-out rows, plus the log of the new P(y).

    `base` is "erm", "erm_z" or "erm_c"; `calibration` as for `GPAClassifier`. Assumes that P(x|y) is the same at every
    site, which is wrong if the relation of z and y differs.

    Parameters
    ----------
    calibration : str
        How log f is scaled: "vector", "bias_corrected", "temperature" or "none".
    """

    calibration: str = "vector"

    def check(self, problems: Problems) -> None:
        """Note what is wrong with the settings."""
        super().check(problems)
        if self.calibration not in CALIBRATIONS:
            problems.add(f"calibration must be one of {', '.join(CALIBRATIONS)}, got {self.calibration!r}")

    def settle(self, trained: Trained) -> None:
        """Calibrate on the held-out rows, given their own shares of the classes."""
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
        """Calibrated log P(y|x)/P(y)."""
        return self._calibration.apply(self.outputs(X, Z) - self._log_shares)

    def rule_at(self, X: Any, Z: Any, y: Any, prevalence: Any) -> tuple[Rule, Any]:
        """Estimate the site's P(y), then apply it to each row."""
        marginal = self.find_marginal(self.log_ratio(X, Z))
        log_marginal = marginal.clamp_min(1e-12).log()
        return lambda rows, z: combine(self.log_ratio(rows, z), log_marginal), marginal.numpy()

    @abstractmethod
    def find_marginal(self, log_ratio: Tensor) -> Tensor:
        """P(y) of unlabeled rows, (K,): the step in which the methods differ."""

    def _predictions(self, log_ratio: Tensor, soft: bool) -> tuple[Tensor, Tensor]:
        """Predictions for held-out rows and for the site's rows, both with the prevalence of the held-out rows."""
        here = combine(log_ratio, self._source.log()).exp()
        return (self._held_proba, here) if soft else (hard(self._held_proba), hard(here))


@dataclass(kw_only=True, eq=False, repr=False)
class LabelShiftEM(LabelShift):
    """Label-shift EM [saerens2002adjusting; calibrated: alexandari2020maximum]: the maximum-likelihood P_b(y).

    π ← mean_n Norm(π P(y|x_n)/P(y)), solved until its KKT gap is small.
    """

    card: ClassVar[Card] = Card(name="EM", cite="saerens2002adjusting", estimates_g="indirectly, EM, one P(Y)")

    def find_marginal(self, log_ratio: Tensor) -> Tensor:
        """Maximum likelihood."""
        estimate = estimate_prevalence(log_ratio.numpy(), model="constant")
        return torch.tensor(np.asarray(estimate.marginal))


@dataclass(kw_only=True, eq=False, repr=False)
class BBSE(LabelShift):
    """BBSE [lipton2018detecting]: w = C⁻¹ μ, P_b(y) = w ∘ P_s(y).

    C[i,j] = P_s(ŷ = i, y = j) on the held-out rows s, μ the mean prediction at the new site; ŷ is the predicted class,
    or its probabilities if `soft`. w is relative to the held-out rows, not to the training rows.

    Parameters
    ----------
    soft : bool
        Whether predictions are probabilities instead of classes.
    """

    calibration: str = "none"
    soft: bool = False
    card: ClassVar[Card] = Card(name="BBSE", cite="lipton2018detecting", estimates_g="indirectly, confusion matrix")

    def find_marginal(self, log_ratio: Tensor) -> Tensor:
        """Solve the moment equations."""
        held, here = self._predictions(log_ratio, self.soft)
        weights = bbse(confusion(held, self._held_y, self._held_weight), here.mean(0))
        return prior_from_weights(weights, self._source)


@dataclass(kw_only=True, eq=False, repr=False)
class RLLS(LabelShift):
    """RLLS [azizzadenesheli2018regularized]: BBSE with w = 1 + γθ, θ shrunk towards zero if there are few rows.

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
        """Solve the moment equations with shrinkage."""
        held, here = self._predictions(log_ratio, self.soft)
        matrix = confusion(held, self._held_y, self._held_weight)
        weights = rlls(matrix, here.mean(0), len(held), alpha=self.alpha)
        return prior_from_weights(weights, self._source)


def _shares(y: Tensor, weight: Tensor, n_classes: int) -> Tensor:
    """Shares of the classes, with one uniform row added so that none is zero."""
    counts = (weight[:, None] * one_hot(y, n_classes)).sum(0) + 1 / n_classes
    return counts / counts.sum()
