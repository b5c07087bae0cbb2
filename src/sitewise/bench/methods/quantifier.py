"""Label shift with any quantifier of QuaPy: it estimates P(y) of a new site, which replaces the classifier's prior."""

import warnings
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from inspect import signature
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from torch import Tensor

from sitewise.arrays import did_you_mean
from sitewise.bench.methods.card import Card
from sitewise.bench.methods.label_shift import LabelShift
from sitewise.bench.methods.network import Array, Trained
from sitewise.confounders import Confounders

NOT_INSTALLED = "{quantifier} needs {package}: install sitewise[bench]"
ENERGY = ("EDy", "EnergyDistanceY")  # quantifiers that solve a quadratic program and need quadprog
NO_WEIGHTS = "QuaPy's quantifiers take no sample weights: leave sample_weight out"
LEAST = 1e-12  # the least probability, so that no quantifier takes the log of zero


class GivenPosteriors(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier that returns its inputs as predicted probabilities, because QuaPy requires a trained classifier."""

    def __init__(self, n_classes: int = 2) -> None:
        self.n_classes = n_classes
        self.classes_ = np.arange(n_classes)

    def fit(self, X: Array, y: Array) -> "GivenPosteriors":
        """Return the classifier itself: there is nothing to learn."""
        return self

    def predict_proba(self, X: Array) -> Array:
        """Return the inputs, which are probabilities, (n, K)."""
        return np.asarray(X)

    def predict(self, X: Array) -> Array:
        """Return the most probable class of each row, (n,)."""
        return np.asarray(np.argmax(X, axis=1))


def find_quantifier(name: str) -> type:
    """Return QuaPy's class of an aggregative quantifier; the ValueError for an unknown name suggests a similar one."""
    if find_spec("quapy") is None:
        raise ImportError(NOT_INSTALLED.format(quantifier=name, package="quapy"))
    module = import_module("quapy.method.aggregative")
    known = {
        key: value
        for key, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, module.AggregativeQuantifier)
    }
    if name not in known:
        raise ValueError(f"quantifier must be one of QuaPy's, got {name!r}{did_you_mean(name, known)}")
    return known[name]


def quantify(name: str, held: Array, y: Array, here: Array, options: dict[str, Any]) -> Array:
    """Estimate P(y) of unlabeled rows by a quantifier of QuaPy, (K,).

    The quantifier is fitted to the predicted probabilities `held` (n, K) and labels `y` of labeled rows, and applied to
    the probabilities `here` (m, K). With more than two classes, a quantifier for two classes only (HDy, DyS, SMM) is
    fitted to each class against all others, and the estimates are scaled to sum to one.
    """
    kind = find_quantifier(name)
    binary = import_module("quapy.method.base").BinaryQuantifier
    n_classes = held.shape[1]
    if issubclass(kind, binary) and n_classes > 2:
        alone = [
            quantify(name, _against(held, k), (y == k).astype(int), _against(here, k), options)[1]
            for k in range(n_classes)
        ]
        return np.asarray(np.array(alone) / max(sum(alone), LEAST))
    quantifier = kind(classifier=GivenPosteriors(n_classes), fit_classifier=False, val_split=(held, y), **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numerical warnings inside QuaPy
        quantifier.fit(held, y)
        return np.asarray(quantifier.predict(here), dtype=float)


def _against(posteriors: Array, k: int) -> Array:
    """Return the probability of all other classes, then that of class k, (n, 2)."""
    return np.stack([1 - posteriors[:, k], posteriors[:, k]], axis=1)


@dataclass(kw_only=True, eq=False, repr=False)
class Quantifier(LabelShift):
    """A quantifier of QuaPy [moreo2021quapy] estimates P_b(y), and P_b(y|x) = Norm(f(x) P_b(y)).

    A quantifier is an estimator of class shares from predicted probabilities. It is fitted to the predicted
    probabilities and labels of the held-out rows, and applied to the predicted probabilities of the new site's rows.
    EDy needs the package quadprog.

    Parameters
    ----------
    quantifier : str
        The name of an aggregative quantifier of QuaPy, such as ACC, PACC, HDy, EDy, KDEyML, KDEyHD, KDEyCS or EMQ.
    options : dict
        Arguments of the quantifier's constructor, such as `bandwidth` or `calib`.
    """

    quantifier: str = "KDEyML"
    options: dict[str, Any] = field(default_factory=dict)
    calibration: str = "none"
    packages: ClassVar[tuple[str, ...]] = ("quapy",)
    card: ClassVar[Card] = Card(
        name="Quantifier", cite="moreo2021quapy", estimates_g="indirectly, QuaPy's quantifier, one P(Y)"
    )

    def refusal(self, n_sites: int, confounders: Confounders | None, n_unlabeled: int) -> str | None:
        """Return the reason why this method cannot be used, for example a missing package; None if it can."""
        needed = ("quapy", "quadprog") if self.quantifier in ENERGY else ("quapy",)
        lacking = [name for name in needed if find_spec(name) is None]
        if lacking:
            return NOT_INSTALLED.format(quantifier=self.quantifier, package=" and ".join(lacking))
        return super().refusal(n_sites, confounders, n_unlabeled)

    def settle(self, trained: Trained) -> None:
        """Calibrate log f, and keep the predictions of the held-out rows.

        A ValueError is raised if QuaPy has no such quantifier, or if the weights of the held-out rows are not equal.
        """
        find_quantifier(self.quantifier)
        super().settle(trained)
        if not bool((self._held_weight == self._held_weight[0]).all()):
            raise ValueError(NO_WEIGHTS)

    def find_marginal(self, log_ratio: Tensor) -> Tensor:
        """Return the quantifier's estimate of P(y), (K,)."""
        held, here = (part.clamp_min(LEAST).numpy() for part in self._predictions(log_ratio, soft=True))
        options = dict(self.options)
        if "random_state" in signature(find_quantifier(self.quantifier)).parameters:
            options.setdefault("random_state", self.random_state)
        shares = quantify(self.quantifier, held, self._held_y.numpy(), here, options)
        return torch.tensor(shares).clamp_min(0)
