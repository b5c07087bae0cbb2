"""GPA exactly as in the paper: its algorithms 1 to 3, without the additions of this package."""

import copy
import warnings
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from sklearn.utils import check_random_state
from torch import Tensor

from sitewise.adaptation import PrevalenceEstimate, estimate_prevalence
from sitewise.bench.methods.base import Method, Rule
from sitewise.bench.methods.card import Card
from sitewise.bench.methods.gpa import GPA, GPAStar, TrainedGPA, log_of, read_solver
from sitewise.bench.methods.network import Array
from sitewise.estimator import GPAClassifier
from sitewise.posterior import combine
from sitewise.prevalence.network import build_network
from sitewise.solvers import EM

PAPER_EM = EM(iterations=5)  # the paper's T
LIMIT = ".*g did not converge"  # the warning to ignore: like the paper, EM stops after T rounds


@dataclass(kw_only=True, eq=False, repr=False)
class GPAPaper(GPA):
    """GPA as published [nguyen2024adapting]: P_b(y|x,z) = Norm(f(x,z) g_b(z)), g_b by T = 5 rounds of EM on (x, z).

    Algorithm 3 (training): the g_e of each training site e is a network that is fitted to the site's (y, z) with
    knockout. f is trained with these g_e held fixed, and is calibrated by vector scaling on the validation rows.
    Algorithm 1 (adaptation): g_b is a network that starts from random weights. Each round computes the probabilities
    ŷ = Norm(f g_b) of the rows of the new site, and fits g_b to them by L-BFGS. The additions of this package are not
    used: f is not balanced, there is no prior and no rehearsal, and the estimated g_b is used at all z.
    `prevalence_dropout` (see `GPA`) is zero in the paper's networks for digits, and 0.5 in those for ISIC and CXR.

    The paper leaves some details open. This implementation fits g_e by 500 steps of Adam, with one row of uniform
    labels added because a site may have one class only. For a validation row, g_e is fitted without this row. L-BFGS
    uses a line search and 20 iterations in each round. With dropout, the masks do not change within the fit of a round,
    and ŷ is computed without dropout. f has two calibrations, one for rows with z and one for rows without z.
    """

    prevalence: str = "network"
    rehearsal: str | None = None
    balance: bool | str = False
    solver: Any = PAPER_EM
    card: ClassVar[Card] = Card(
        name="GPA, published",
        cite="nguyen2024adapting",
        input="X, Z",
        continuous_z=True,
        high_dimensional_z=True,
        z_at_test="optional",
        estimates_g="indirectly, EM (algorithm 1)",
        without_z="input knockout",
    )

    def trainer(self) -> Method:
        """Return a `GPAPaper` that trains the network of this method, so that `GPAPaperStar` uses the same f."""
        return self.with_network_of(GPAPaper)

    def train(self, X: Any, y: Any, domain: Any, Z: Any, groups: Any, weight: Any, unlabeled: Any) -> Any:
        """Fit a `GPAClassifier` that predicts rows without z by knockout, as in the paper."""
        classifier = GPAClassifier(**self.get_params(deep=False), missing="knockout")
        return TrainedGPA(classifier.fit(X, y, domain, Z, groups, weight))

    def attach(self, trained: TrainedGPA) -> Self:
        """Use a trained f, calibrated on all validation rows; return this method, fitted.

        Validation rows with a z at which a class never occurred in training are not left out of the calibration.
        """
        super().attach(trained)
        if self.model_.unsupported_:
            self.model_ = copy.copy(self.model_)
            self.model_.unsupported_ = ()
            self.model_ = self.model_.with_calibration(self.calibration)
        return self

    def rule_at(self, X: Any, Z: Any, y: Any, prevalence: Any) -> tuple[Rule, Any]:
        """Estimate g by EM from unlabeled rows; return the rule that predicts with it, and the estimate of P(Y)."""
        shown = self.shown(Z)
        estimate = self.estimate(self.log_ratio(X, shown), shown)

        def rule(rows: Any, z: Any) -> Tensor:
            at = self.shown(z)
            return combine(self.log_ratio(rows, at), self._log_prevalence(estimate, at, len(rows)))

        return rule, np.asarray(estimate.marginal)

    def estimate(self, log_ratio: Tensor, Z: Any) -> PrevalenceEstimate:
        """Return the estimate of g by the paper's algorithm 1, or by its algorithm 2 if there is no z.

        Both start from a network with random weights; algorithm 2 uses only the output of this network for missing z.
        """
        schema = self.model_.confounders_
        own: dict[str, Any] = {"model": "constant", "start": self._start()}
        if Z is not None and schema is not None:
            own = {"model": self.prevalence, "dropout": self.prevalence_dropout, "confounders": schema}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", LIMIT)
            return estimate_prevalence(
                log_ratio.numpy(),
                Z if schema is not None else None,
                solver=read_solver(self.solver),
                random_state=self.random_state,
                **own,
            )

    def _start(self) -> Array | None:
        """Return g(z₀) of a network with random weights, (K,); None if training had no z."""
        schema = self.model_.confounders_
        if schema is None:
            return None
        seed = int(check_random_state(self.random_state).randint(2**31))
        network = build_network(schema, len(self.classes_), seed=seed)
        with torch.no_grad():
            logits = network(schema.inputs(schema.missing_codes().reshape(1, -1)))
        return np.asarray(torch.softmax(logits, dim=1)[0].numpy())

    def _log_prevalence(self, estimate: PrevalenceEstimate, Z: Any, n_rows: int) -> Tensor:
        """Return log g of each row, (n, K)."""
        if estimate.confounders is None:
            return log_of(np.asarray(estimate.marginal)).expand(n_rows, -1)
        return torch.tensor(np.asarray(estimate.log_prevalence(Z)))


@dataclass(kw_only=True, eq=False, repr=False)
class GPAPaperStar(GPAPaper, GPAStar):
    """GPA* as published [nguyen2024adapting]: P_b(y|x) = Norm(f(x,z₀) g_b(z₀)), g_b(z₀) by T = 5 rounds of EM on x.

    z₀ stands for missing z. This is the paper's algorithm 2. Its M-step has a closed form: g_b(z₀) becomes the mean
    over rows of Norm(f(x,z₀) g_b(z₀)). `hidden` is the setting of `GPAStar`; if it hides only some variables of z,
    algorithm 1 is used with the others.
    """

    card: ClassVar[Card] = replace(
        GPAStar.card, name="GPA*, published", estimates_g="indirectly, EM (algorithm 2)", without_z="input knockout"
    )
