"""Generalized Prevalence Adjustment and its variants: one f, and g estimated, kept constant, or given.

`GPA` is the method of this package; `GPAPaper` (in `gpa_paper`) implements the paper's algorithms exactly.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from sitewise.adaptation import estimate_prevalence
from sitewise.arrays import did_you_mean
from sitewise.bench.methods.base import Method, Rule
from sitewise.bench.methods.card import Card
from sitewise.bench.methods.network import Array
from sitewise.estimator import GPAClassifier
from sitewise.posterior import combine
from sitewise.solvers import EM

FROM_ROWS = "indirectly, from (x, z)"
POOLED = "all training sites"


@dataclass
class TrainedGPA:
    """A fitted `GPAClassifier`, shared by the methods that use its f."""

    classifier: GPAClassifier
    remembered: dict[tuple[Any, ...], tuple[Any, Any, Tensor]] | None = None

    def __post_init__(self) -> None:
        self.classes = self.classifier.classes_
        self.input_shape, self.n_features = self.classifier.input_shape_, self.classifier.n_features_in_


@dataclass(kw_only=True, eq=False, repr=False)
class GPA(Method):
    """GPA [nguyen2024adapting]: P_b(y|x,z) = Norm(f(x,z) g_b(z)), averaged over the posterior of g_b given (x, z).

    f is trained with knockout while g of each site is held fixed. It is then calibrated on held-out rows; the prior of
    g_b is learned by rehearsal on the training sites. This is `GPAClassifier`, with its settings and in addition
    `balance`, `solver` and `prevalence_dropout`; `solver` may be the settings of an `EM` by name. Assumes that P(x|y,z)
    is the same at every site.

    Parameters
    ----------
    prevalence : str
        The family of g: "auto", "constant", "table", "additive" or "network".
    knockout : float
        The probability that a variable of z is made missing while f and g are fitted.
    calibration : str
        How log f is scaled: "vector", "bias_corrected", "temperature" or "none".
    rehearsal : str or None
        What is left out in turn to learn the prior: "auto", "sites", "rows" or None.
    balance : bool or str
        Whether the mean of f is made the same for all classes at every z: True, False or "auto".
    solver : str, EM or dict
        How g of a new site is estimated; a dict has the settings of an `EM`.
    prevalence_dropout : float
        The dropout of a network g.
    """

    prevalence: str = "auto"
    knockout: float = 0.5
    calibration: str = "vector"
    rehearsal: str | None = "auto"
    balance: bool | str = "auto"
    solver: Any = "auto"
    prevalence_dropout: float = 0.0
    card: ClassVar[Card] = Card(
        name="GPA",
        cite="nguyen2024adapting",
        input="X, Z",
        continuous_z=True,
        high_dimensional_z=True,
        z_at_test="optional",
        estimates_g=FROM_ROWS + ", posterior",
        without_z="input knockout",
    )

    def refusal(self, n_sites: int, confounders: Any, n_unlabeled: int) -> str | None:
        """Never refused: without confounders g is one number for each class."""
        return None

    def trainer(self) -> Method:
        """The method with the same network, which may differ in what happens after training."""
        return self.with_network_of(GPA)

    def with_network_of(self, kind: type["GPA"]) -> Method:
        """A method of that kind with the settings that determine the network."""
        known = kind().get_params()
        settings = {name: value for name, value in self.get_params(deep=False).items() if name in known}
        return kind(**settings | {"calibration": "vector", "balance": kind.balance, "solver": "auto"})

    def train(self, X: Any, y: Any, domain: Any, Z: Any, groups: Any, weight: Any, unlabeled: Any) -> Any:
        """Fit a `GPAClassifier`."""
        classifier = GPAClassifier(**self.get_params(deep=False) | {"solver": read_solver(self.solver)})
        return TrainedGPA(classifier.fit(X, y, domain, Z, groups, weight))

    def attach(self, trained: TrainedGPA) -> Self:
        """Use a trained f, balanced and calibrated as this method needs it."""
        model = trained.classifier
        if (model.calibration, model.balance) != (self.calibration, self.balance):
            model = model.with_calibration(self.calibration, balance=self.balance)
        if self.solver != model.solver:
            model = copy.copy(model)
            model.solver = read_solver(self.solver)
        self.model_ = model
        return super().attach(trained)

    def log_proba(self, X: Any, Z: Any) -> Tensor:
        """log P(y|x,z) with the g of all training rows."""
        return torch.tensor(np.log(self.model_.predict_proba(X, sample_confounder=self.shown(Z))))

    def rule_at(self, X: Any, Z: Any, y: Any, prevalence: Any) -> tuple[Rule, Any]:
        """Estimate g(z) from unlabeled rows."""
        shown = self.shown(Z)
        here = self.model_.adapt_log_ratio(self.log_ratio(X, shown), shown).unchecked()

        def rule(rows: Any, z: Any) -> Tensor:
            at = self.shown(z)
            return torch.tensor(np.log(here.adjust(self.log_ratio(rows, at), at)))

        return rule, here.prevalence()

    def shown(self, Z: Any) -> Any:
        """The part of z that the method uses at a new site; None if it uses none."""
        return Z

    def log_ratio(self, X: Any, Z: Any) -> Tensor:
        """Calibrated log f, kept as long as the runner needs it."""
        remembered = self.trained_.remembered
        key = (id(X), id(Z), self.calibration, self.balance)
        if remembered is not None and key in remembered:
            return remembered[key][2]  # type: ignore[no-any-return]
        computed = torch.tensor(np.asarray(self.model_.log_ratio(X, sample_confounder=Z)))
        if remembered is not None:
            remembered[key] = (X, Z, computed)
        return computed


@dataclass(kw_only=True, eq=False, repr=False)
class GPAStar(GPA):
    """GPA*: P_b(y|x) = Norm(f(x,z₀) ĝ_b(z₀)), z hidden at the new site; ĝ_b(z₀) from unlabeled x alone.

    f(x,z₀) is what f learned by knockout for missing z: an approximation if P(z|y) shifts. `hidden` names the variables
    of z that the new site lacks; None means all.

    Parameters
    ----------
    hidden : list of str, optional
        The variables of z that the new site lacks; None means all.
    """

    hidden: list[str] | None = None
    card: ClassVar[Card] = Card(
        name="GPA*",
        cite="nguyen2024adapting",
        continuous_z=True,
        high_dimensional_z=True,
        estimates_g="indirectly, from x, posterior of one P(Y)",
        without_z="input knockout",
    )

    def shown(self, Z: Any) -> Any:
        """The part of z that the new site has; None if it has none."""
        if Z is None or self.hidden is None:
            return None
        unknown = [name for name in self.hidden if name not in Z]
        if unknown:
            known = list(Z)
            meant = did_you_mean(unknown[0], known)
            raise ValueError(f"{self.card.name}: hidden has {unknown}, the variables of z are {known}{meant}")
        nowhere = np.zeros(len(Z), dtype=bool)
        return Z.assign(**{name: Z[name].where(nowhere) for name in self.hidden})


@dataclass(kw_only=True, eq=False, repr=False)
class GPAJoint(GPAStar):
    """GPA, joint: P_b(y|x) ∝ Σ_m ŵ_my r(x,y,z_m), z hidden at the new site.

    ŵ is the site's joint distribution P(z, y), estimated from x alone. r(x,y,z) = P(x|y,z) / P_s(x) comes from the same
    f and a critic of P_s(z|x) / P_s(z) on its features; exact where GPA* approximates. `missing="auto"` chooses between
    this and GPA* (see `GPAClassifier`).

    Parameters
    ----------
    missing : str
        What predicts rows without z: "joint", "knockout" or "auto".
    """

    missing: str = "joint"
    card: ClassVar[Card] = Card(
        name="GPA, joint",
        cite="nguyen2024adapting",
        continuous_z=True,
        high_dimensional_z=None,
        estimates_g="indirectly, P(Y, Z)",
        without_z="sum over a bank of z",
    )

    def rule_at(self, X: Any, Z: Any, y: Any, prevalence: Any) -> tuple[Rule, Any]:
        """Estimate P(z, y) from x alone; if training had no z, predict as GPA*."""
        if self.model_.joint_ is None:
            return super().rule_at(X, Z, y, prevalence)
        model = copy.copy(self.model_)
        model.missing = self.missing
        here = model.adapt(X, self.shown(Z)).unchecked()
        return lambda rows, z: log_of(here.predict_proba(rows, self.shown(z))), here.prevalence()


@dataclass(kw_only=True, eq=False, repr=False)
class GPAConstant(GPA):
    """GPA with constant g: P_b(y|x,z) = Norm(f(x,z) π), π from unlabeled (x, z); a comparison for g(z)."""

    card: ClassVar[Card] = replace(GPA.card, name="GPA, constant g", estimates_g=FROM_ROWS + ", one P(Y)")

    def rule_at(self, X: Any, Z: Any, y: Any, prevalence: Any) -> tuple[Rule, Any]:
        """Estimate one prevalence for all z."""
        estimate = estimate_prevalence(self.log_ratio(X, Z).numpy(), model="constant")
        log_marginal = torch.tensor(np.log(np.clip(estimate.marginal, 1e-300, None)))
        return lambda rows, z: combine(self.log_ratio(rows, z), log_marginal), estimate.marginal


@dataclass(kw_only=True, eq=False, repr=False)
class GPAGuarded(GPA):
    """GPA, guarded: as GPA, but g is that of the training rows if a check of the assumption fails.

    The diagnosis uses no labels: it checks whether f is informative here, and whether its values are a mixture of those
    of held-out rows, as they must be if P(x|y,z) is stable.
    """

    card: ClassVar[Card] = replace(
        GPA.card, name="GPA, guarded", estimates_g=FROM_ROWS + ", posterior, unless diagnosed"
    )

    def rule_at(self, X: Any, Z: Any, y: Any, prevalence: Any) -> tuple[Rule, Any]:
        """Estimate g(z) and use it if the diagnosis allows it; otherwise no P(Y) is reported."""
        here = self.model_.adapt_log_ratio(self.log_ratio(X, Z), Z, policy="auto")
        marginal = None if here.outcome == "as trained" else here.prevalence()
        return lambda rows, z: torch.tensor(np.log(here.adjust(self.log_ratio(rows, z), z))), marginal


@dataclass(kw_only=True, eq=False, repr=False)
class GPAOracle(GPA):
    """GPA with the true g: P_b(y|x,z) = Norm(f(x,z) P_b(y|z)); a reference: the same f with the true g.

    `adapt` is given the true g as `prevalence=`, a function of Z that returns P_b(y|z), (n, K).
    """

    card: ClassVar[Card] = Card(
        name="GPA, true g",
        cite="nguyen2024adapting",
        input="X, Z",
        continuous_z=True,
        high_dimensional_z=True,
        z_at_test="needed",
        labels_at_test="true g",
        estimates_g="given",
    )

    def rule_at(self, X: Any, Z: Any, y: Any, prevalence: Any) -> tuple[Rule, Any]:
        """Use the given g."""
        if not callable(prevalence):
            raise ValueError(
                "GPA, true g needs the true prevalence: give adapt a function prevalence(Z) -> P(y|z), (n, K)"
            )

        def rule(rows: Any, z: Any) -> Tensor:
            return combine(self.log_ratio(rows, z), log_of(prevalence(z)))

        return rule, None


def read_solver(solver: Any) -> str | EM:
    """A solver by its name, or an EM by its settings, as experiments write them."""
    if not isinstance(solver, Mapping):
        return solver  # type: ignore[no-any-return]
    known = [setting.name for setting in fields(EM)]
    unknown = [name for name in solver if name not in known]
    if unknown:
        raise ValueError(f"solver: {unknown} are not settings of EM; there are {', '.join(known)}")
    return EM(**solver)


def log_of(probability: Array) -> Tensor:
    """Logs of probabilities, at least log 1e-12."""
    return torch.tensor(np.log(np.clip(np.asarray(probability, dtype=float), 1e-12, None)))


@dataclass(kw_only=True, eq=False, repr=False)
class GPAPooled(GPA):
    """GPA with one g for all training sites: f is fitted with the g(z) of all their rows together.

    The paper does not describe this case. One g is estimated from more rows than the g of a single site. But if P(y|z)
    differs between the sites, f absorbs the difference. Only rows can be rehearsed, because all rows count as one site.
    """

    card: ClassVar = replace(GPA.card, name="GPA, one g")

    def trainer(self) -> Method:
        """The same f with and without z at the new site."""
        return self.with_network_of(GPAPooled)

    def train(self, X: Any, y: Any, domain: Any, Z: Any, groups: Any, weight: Any, unlabeled: Any) -> Any:
        """Fit a `GPAClassifier` with all rows as one training site."""
        if domain is not None:
            held = np.asarray(domain, dtype=object) == self.validation
            domain = np.where(held, domain, POOLED)
        return super().train(X, y, domain, Z, groups, weight, unlabeled)


@dataclass(kw_only=True, eq=False, repr=False)
class GPAPooledStar(GPAPooled, GPAStar):
    """GPA* with one g for all training sites: as GPA with one g, z hidden at the new site."""

    card: ClassVar = replace(GPAStar.card, name="GPA*, one g")


@dataclass(kw_only=True, eq=False, repr=False)
class GPAAsTrained(GPA):
    """GPA, as trained: P(y|x,z) = Norm(f(x,z) g(z)), g that of all training rows together; without adaptation."""

    card: ClassVar = replace(GPA.card, name="GPA, as trained", estimates_g="no")

    def rule_at(self, X: Any, Z: Any, y: Any, prevalence: Any) -> tuple[Rule, Any]:
        """Predict as trained, without an estimate of P(Y)."""
        return self.log_proba, None
