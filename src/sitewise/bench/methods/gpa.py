"""Generalized Prevalence Adjustment (GPA) and its variants.

The variants differ in the g of the new site: it is a g(z) that is estimated, one estimated g for all z, or the true g.
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

    The g of each training site is fitted first. Then f is trained with knockout, with these g held fixed, and
    calibrated on held-out rows. The prior of g_b, the g of the new site b, is learned by rehearsal on the training
    sites. The rehearsal also decides how far the rows of a new site are trusted. The checks of the assumption have no
    influence (see `GPAGuarded`). The network is that of a `GPAClassifier` with the same settings. Assumes that P(x|y,z)
    is the same at every site.

    Parameters
    ----------
    prevalence : str
        The model of g: "auto", "constant", "table", "additive" or "network".
    knockout : float
        The probability that a variable of z is hidden in a training row while f and g are fitted.
    calibration : str
        How log f is calibrated: "vector", "bias_corrected", "temperature" or "none".
    rehearsal : str or None
        How the prior is learned. "sites": from training sites that are left out in turn. "rows": from held-out rows
        only. "auto": "sites" if there are several sites, otherwise "rows". None: there is no rehearsal.
    balance : bool or str
        Whether f is balanced (its mean over held-out rows is made the same for all classes, at each z): True, False or
        "auto" (if `calibration` is not "none").
    solver : str, EM or dict
        How g of a new site is estimated, as in `estimate_prevalence`; a dict has the settings of an `EM`.
    prevalence_dropout : float
        The share of hidden units of g that are dropped while it is fitted, if g is a network.
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
        """Return None, because GPA can always be trained. Without confounders, g is one number for each class."""
        return None

    def trainer(self) -> Method:
        """Return a `GPA` that trains the network of this method."""
        return self.with_network_of(GPA)

    def with_network_of(self, kind: type["GPA"]) -> Method:
        """Return a method of the class `kind` that trains the network of this method.

        It has the settings of this method, except that `calibration`, `balance` and `solver` get fixed values. These
        three do not change the network, so methods that differ only in them can share it.
        """
        known = kind().get_params()
        settings = {name: value for name, value in self.get_params(deep=False).items() if name in known}
        return kind(**settings | {"calibration": "vector", "balance": kind.balance, "solver": "auto"})

    def train(self, X: Any, y: Any, domain: Any, Z: Any, groups: Any, weight: Any, unlabeled: Any) -> Any:
        """Fit a `GPAClassifier` with the settings of this method. The arguments are those of `fit`."""
        classifier = GPAClassifier(**self.get_params(deep=False) | {"solver": read_solver(self.solver)})
        return TrainedGPA(classifier.fit(X, y, domain, Z, groups, weight))

    def attach(self, trained: TrainedGPA) -> Self:
        """Use a trained f, balanced and calibrated by the settings of this method; return this method, fitted."""
        model = trained.classifier
        if (model.calibration, model.balance) != (self.calibration, self.balance):
            model = model.with_calibration(self.calibration, balance=self.balance)
        if self.solver != model.solver:
            model = copy.copy(model)
            model.solver = read_solver(self.solver)
        self.model_ = model
        return super().attach(trained)

    def log_proba(self, X: Any, Z: Any) -> Tensor:
        """Return log P(y|x,z) as trained, (n, K): with the g of all training rows together."""
        return torch.tensor(np.log(self.model_.predict_proba(X, sample_confounder=self.shown(Z))))

    def rule_at(self, X: Any, Z: Any, y: Any, prevalence: Any) -> tuple[Rule, Any]:
        """Estimate g(z) from unlabeled rows; return the rule that predicts with it, and the estimate of P(Y)."""
        shown = self.shown(Z)
        here = self.model_.adapt_log_ratio(self.log_ratio(X, shown), shown).unchecked()

        def rule(rows: Any, z: Any) -> Tensor:
            at = self.shown(z)
            return torch.tensor(np.log(here.adjust(self.log_ratio(rows, at), at)))

        return rule, here.prevalence()

    def shown(self, Z: Any) -> Any:
        """Return the part of Z that the method uses at a new site, by default all of Z; None if it uses no z."""
        return Z

    def log_ratio(self, X: Any, Z: Any) -> Tensor:
        """Return the calibrated log f of each row, (n, K)."""
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
    """GPA*: GPA at a new site where z is hidden, P_b(y|x) = Norm(f(x,z₀) g_b(z₀)).

    z₀ stands for missing z. f(x,z₀) is learned by knockout, and g_b(z₀), one prevalence of the new site, is estimated
    from x alone. The formula is an approximation if P(z|y) differs between sites. If only some variables of z are
    hidden, the others are used in f and in g.

    Parameters
    ----------
    hidden : list of str, optional
        The variables of z that are hidden at the new site; None means all.
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
        """Return Z with the hidden variables missing; None if all are hidden."""
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
    """GPA, joint: the joint model at a new site where z is hidden, P_b(y|x) ∝ Σ_c π_cy r(x,y,z_c).

    The values z_c of some training rows represent all values of z. π_cy is the probability of z_c and y at the new
    site, estimated from x alone. r(x,y,z) = P(x|y,z) / P_s(x) is computed from f and from a critic: a second network,
    which estimates P_s(z|x) / P_s(z) from the features of f. s stands for all training sites together. The formula is
    exact, while that of `GPAStar` is an approximation.

    Parameters
    ----------
    missing : str
        How rows that lack z are predicted: "joint" (by this formula), "knockout" (as in `GPAStar`) or "auto" (chosen as
        in `GPAClassifier`).
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
        """Estimate P(z, y) from x alone; return the rule that predicts with it, and the estimate of P(Y).

        If there is no joint model, because training had no z, the result is that of `GPAStar`.
        """
        if self.model_.joint_ is None:
            return super().rule_at(X, Z, y, prevalence)
        model = copy.copy(self.model_)
        model.missing = self.missing
        here = model.adapt(X, self.shown(Z)).unchecked()
        return lambda rows, z: log_of(here.predict_proba(rows, self.shown(z))), here.prevalence()


@dataclass(kw_only=True, eq=False, repr=False)
class GPAConstant(GPA):
    """GPA with constant g: P_b(y|x,z) = Norm(f(x,z) π), with one prevalence π for all z.

    b is the new site, and Norm scales to sum to one over y. π is estimated from x and z of the rows of the new site, by
    maximum likelihood. The comparison with `GPA` shows what a g that depends on z contributes.
    """

    card: ClassVar[Card] = replace(GPA.card, name="GPA, constant g", estimates_g=FROM_ROWS + ", one P(Y)")

    def rule_at(self, X: Any, Z: Any, y: Any, prevalence: Any) -> tuple[Rule, Any]:
        """Estimate one prevalence for all z; return the rule that predicts with it, and this estimate."""
        estimate = estimate_prevalence(self.log_ratio(X, Z).numpy(), model="constant")
        log_marginal = torch.tensor(np.log(np.clip(estimate.marginal, 1e-300, None)))
        return lambda rows, z: combine(self.log_ratio(rows, z), log_marginal), estimate.marginal


@dataclass(kw_only=True, eq=False, repr=False)
class GPAGuarded(GPA):
    """GPA, guarded: GPA that predicts as trained if a check of the assumption fails at the new site.

    This is what `GPAClassifier.adapt` does by default. The checks use no labels of the new site. One of them tests, for
    example, whether the distribution of f at the new site is a mixture of its distributions in the single classes of
    the held-out rows with the same z. It is such a mixture if P(x|y,z) is the same at every site.
    """

    card: ClassVar[Card] = replace(
        GPA.card, name="GPA, guarded", estimates_g=FROM_ROWS + ", posterior, unless diagnosed"
    )

    def rule_at(self, X: Any, Z: Any, y: Any, prevalence: Any) -> tuple[Rule, Any]:
        """Estimate g(z), and use it as far as rehearsal and checks allow; return the rule, and the estimate of P(Y).

        The estimate is None if the outcome is *as trained*.
        """
        here = self.model_.adapt_log_ratio(self.log_ratio(X, Z), Z, policy="auto")
        marginal = None if here.outcome == "as trained" else here.prevalence()
        return lambda rows, z: torch.tensor(np.log(here.adjust(self.log_ratio(rows, z), z))), marginal


@dataclass(kw_only=True, eq=False, repr=False)
class GPAOracle(GPA):
    """GPA with the true g: P_b(y|x,z) = Norm(f(x,z) P_b(y|z)).

    It is a reference in comparisons, because the true g is not known at a real site. `adapt` needs it as `prevalence=`:
    a function from Z to P_b(y|z), (n, K).
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
        """Return the rule that predicts with the given g, and None for the P(Y)."""
        if not callable(prevalence):
            raise ValueError(
                "GPA, true g needs the true prevalence: give adapt a function prevalence(Z) -> P(y|z), (n, K)"
            )

        def rule(rows: Any, z: Any) -> Tensor:
            return combine(self.log_ratio(rows, z), log_of(prevalence(z)))

        return rule, None


def read_solver(solver: Any) -> str | EM:
    """Return an `EM` if `solver` is a mapping with its settings, as in an experiment's YAML; otherwise `solver`."""
    if not isinstance(solver, Mapping):
        return solver  # type: ignore[no-any-return]
    known = [setting.name for setting in fields(EM)]
    unknown = [name for name in solver if name not in known]
    if unknown:
        raise ValueError(f"solver: {unknown} are not settings of EM; there are {', '.join(known)}")
    return EM(**solver)


def log_of(probability: Array) -> Tensor:
    """Return the logarithms of probabilities, which are clipped to at least 1e-12."""
    return torch.tensor(np.log(np.clip(np.asarray(probability, dtype=float), 1e-12, None)))


@dataclass(kw_only=True, eq=False, repr=False)
class GPAPooled(GPA):
    """GPA with one g for all training sites: f is fitted with the g(z) of all their rows together.

    The paper does not describe this case. One g is estimated from more rows than the g of a single site. But if P(y|z)
    differs between the sites, f absorbs the difference. All rows count as one site, so the rehearsal leaves out rows
    instead of sites.
    """

    card: ClassVar = replace(GPA.card, name="GPA, one g")

    def trainer(self) -> Method:
        """Return a `GPAPooled` with the same network, so that `GPAPooledStar` uses the same f."""
        return self.with_network_of(GPAPooled)

    def train(self, X: Any, y: Any, domain: Any, Z: Any, groups: Any, weight: Any, unlabeled: Any) -> Any:
        """Fit a `GPAClassifier` with all rows as one training site."""
        if domain is not None:
            held = np.asarray(domain, dtype=object) == self.validation
            domain = np.where(held, domain, POOLED)
        return super().train(X, y, domain, Z, groups, weight, unlabeled)


@dataclass(kw_only=True, eq=False, repr=False)
class GPAPooledStar(GPAPooled, GPAStar):
    """GPA* with one g for all training sites: `GPAPooled` that does not get z at the new site."""

    card: ClassVar = replace(GPAStar.card, name="GPA*, one g")


@dataclass(kw_only=True, eq=False, repr=False)
class GPAAsTrained(GPA):
    """GPA, as trained: P(y|x,z) = Norm(f(x,z) g(z)) with the g of all training rows together, without adaptation."""

    card: ClassVar = replace(GPA.card, name="GPA, as trained", estimates_g="no")

    def rule_at(self, X: Any, Z: Any, y: Any, prevalence: Any) -> tuple[Rule, Any]:
        """Predict as trained, without an estimate of P(Y)."""
        return self.log_proba, None
