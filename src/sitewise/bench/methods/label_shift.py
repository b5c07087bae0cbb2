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

    log f(x) = log P(y|x) - log P(y), where P(y|x) is the prediction of the ERM and P(y) are the class shares of the
    training rows. It is calibrated on held-out rows. Each subclass estimates P_b(y), the P(y) of the new site b, in its
    way; Norm scales to sum to one over y. Assumes that P(x|y) is the same at every site. This is wrong if x depends on
    z and P(z|y) differs between sites.

    Parameters
    ----------
    calibration : str
        How log f is calibrated: "vector", "bias_corrected", "temperature" or "none", as for `GPAClassifier`.
    """

    calibration: str = "vector"

    def check(self, problems: Problems) -> None:
        """Add a message to `problems` for each wrong setting."""
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
        """Return the calibrated log f of each row, (n, K)."""
        return self._calibration.apply(self.outputs(X, Z) - self._log_shares)

    def rule_at(self, X: Any, Z: Any, y: Any, prevalence: Any) -> tuple[Rule, Any]:
        """Estimate the site's P(y) by `find_marginal`; return the rule that predicts with it, and the estimate."""
        marginal = self.find_marginal(self.log_ratio(X, Z))
        log_marginal = marginal.clamp_min(1e-12).log()
        return lambda rows, z: combine(self.log_ratio(rows, z), log_marginal), marginal.numpy()

    @abstractmethod
    def find_marginal(self, log_ratio: Tensor) -> Tensor:
        """Return an estimate of the site's P(y), (K,), from the calibrated log f of its rows."""

    def _predictions(self, log_ratio: Tensor, soft: bool) -> tuple[Tensor, Tensor]:
        """Return predictions of the held-out rows and of the site's rows, both with the P(y) of the held-out rows.

        They are probabilities if `soft`, otherwise one-hot rows of the predicted class.
        """
        here = combine(log_ratio, self._source.log()).exp()
        return (self._held_proba, here) if soft else (hard(self._held_proba), hard(here))


@dataclass(kw_only=True, eq=False, repr=False)
class LabelShiftEM(LabelShift):
    """Label-shift EM [saerens2002adjusting; calibrated: alexandari2020maximum]: P_b(y) by maximum likelihood.

    P_b(y) is the fixed point of P_b(y) ← mean_n Norm(P_b(y) f(x_n)), the mean over the site's rows n of the adapted
    predictions. It is computed by a solver that stops when the optimality gap is small.
    """

    card: ClassVar[Card] = Card(name="EM", cite="saerens2002adjusting", estimates_g="indirectly, EM, one P(Y)")

    def find_marginal(self, log_ratio: Tensor) -> Tensor:
        """Return the maximum likelihood estimate of P(y), (K,)."""
        estimate = estimate_prevalence(log_ratio.numpy(), model="constant")
        return torch.tensor(np.asarray(estimate.marginal))


@dataclass(kw_only=True, eq=False, repr=False)
class BBSE(LabelShift):
    """BBSE [lipton2018detecting]: P_b(y) = w_y P_v(y), where the class weights w are the solution of C w = μ.

    C[i,j] = P_v(ŷ = i, y = j) is the joint distribution of predicted class ŷ and true class y in the held-out rows v,
    and μ the distribution of ŷ at the new site. P_v(y) are the class shares of the held-out rows, not of the training
    rows. Negative weights are set to zero, and P_b(y) is scaled to sum to one.

    Parameters
    ----------
    soft : bool
        If true, C and μ are computed from predicted probabilities instead of predicted classes.
    """

    calibration: str = "none"
    soft: bool = False
    card: ClassVar[Card] = Card(name="BBSE", cite="lipton2018detecting", estimates_g="indirectly, confusion matrix")

    def find_marginal(self, log_ratio: Tensor) -> Tensor:
        """Return the estimate of P(y), (K,), from the solution of C w = μ."""
        held, here = self._predictions(log_ratio, self.soft)
        weights = bbse(confusion(held, self._held_y, self._held_weight), here.mean(0))
        return prior_from_weights(weights, self._source)


@dataclass(kw_only=True, eq=False, repr=False)
class RLLS(LabelShift):
    """RLLS [azizzadenesheli2018regularized]: BBSE with shrinkage of the class weights w towards one.

    w = 1 + θ, and θ is fitted to the equations C w = μ of `BBSE` with a penalty on its size. The fewer held-out rows
    there are, the larger the penalty is.

    Parameters
    ----------
    soft : bool
        If true, C and μ are computed from predicted probabilities instead of predicted classes.
    alpha : float
        The factor of the penalty on θ.
    """

    calibration: str = "none"
    soft: bool = False
    alpha: float = 0.01
    card: ClassVar[Card] = Card(
        name="RLLS", cite="azizzadenesheli2018regularized", estimates_g="indirectly, confusion matrix"
    )

    def find_marginal(self, log_ratio: Tensor) -> Tensor:
        """Return the estimate of P(y), (K,), from the shrunk solution of C w = μ."""
        held, here = self._predictions(log_ratio, self.soft)
        matrix = confusion(held, self._held_y, self._held_weight)
        weights = rlls(matrix, here.mean(0), len(held), alpha=self.alpha)
        return prior_from_weights(weights, self._source)


def _shares(y: Tensor, weight: Tensor, n_classes: int) -> Tensor:
    """Return the weighted class shares, (K,), with one row of uniform labels added so that no share is zero."""
    counts = (weight[:, None] * one_hot(y, n_classes)).sum(0) + 1 / n_classes
    return counts / counts.sum()
