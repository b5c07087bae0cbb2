"""Any quantifier of QuaPy by its name, used to correct a classifier's prior."""

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
ENERGY = ("EDy", "EnergyDistanceY")  # these solve a quadratic program
NO_WEIGHTS = "QuaPy's quantifiers take no sample weights: leave sample_weight out"
LEAST = 1e-12  # a probability, so that no quantifier takes the log of zero


class GivenPosteriors(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier whose inputs are its posteriors, because QuaPy requires a trained classifier."""

    def __init__(self, n_classes: int = 2) -> None:
        self.n_classes = n_classes
        self.classes_ = np.arange(n_classes)

    def fit(self, X: Array, y: Array) -> "GivenPosteriors":
        """Nothing to learn."""
        return self

    def predict_proba(self, X: Array) -> Array:
        """The posteriors, (n, K)."""
        return np.asarray(X)

    def predict(self, X: Array) -> Array:
        """The most probable class of each row."""
        return np.asarray(np.argmax(X, axis=1))


def find_quantifier(name: str) -> type:
    """The class of an aggregative quantifier of QuaPy; ValueError with the spelling that was meant."""
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
    """P(y) (K,) of rows with posteriors `here` (m, K), by a quantifier fitted to posteriors (n, K) of labeled rows.

    A quantifier of two classes only (HDy, DyS, SMM) is fitted to each class against the others, and what it says of
    them is scaled to sum to one.
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
        warnings.simplefilter("ignore")  # of numbers inside QuaPy
        quantifier.fit(held, y)
        return np.asarray(quantifier.predict(here), dtype=float)


def _against(posteriors: Array, k: int) -> Array:
    """The posteriors of one class and of all others, (n, 2)."""
    return np.stack([1 - posteriors[:, k], posteriors[:, k]], axis=1)


@dataclass(kw_only=True, eq=False, repr=False)
class Quantifier(LabelShift):
    """A quantifier of QuaPy [moreo2021quapy] by its name: P_b(y) from the classifier's posteriors, then Norm(f P_b(y)).

    `quantifier` is the name of any aggregative quantifier of QuaPy (ACC, PACC, HDy, EDy, KDEyML, KDEyHD, KDEyCS, EMQ
    ...), `options` are arguments of its constructor (`bandwidth`, `calib` ...). It is fitted to the posteriors of the
    held-out rows, calibrated where `calibration` says so, and applied to those of the new site. EDy needs quadprog.

    Parameters
    ----------
    quantifier : str
        The name of an aggregative quantifier of QuaPy.
    options : dict
        Arguments of its constructor.
    """

    quantifier: str = "KDEyML"
    options: dict[str, Any] = field(default_factory=dict)
    calibration: str = "none"
    packages: ClassVar[tuple[str, ...]] = ("quapy",)
    card: ClassVar[Card] = Card(
        name="Quantifier", cite="moreo2021quapy", estimates_g="indirectly, QuaPy's quantifier, one P(Y)"
    )

    def refusal(self, n_sites: int, confounders: Confounders | None, n_unlabeled: int) -> str | None:
        """Why this method cannot be used: a package is missing, or its ERM network cannot be trained on such data."""
        needed = ("quapy", "quadprog") if self.quantifier in ENERGY else ("quapy",)
        lacking = [name for name in needed if find_spec(name) is None]
        if lacking:
            return NOT_INSTALLED.format(quantifier=self.quantifier, package=" and ".join(lacking))
        return super().refusal(n_sites, confounders, n_unlabeled)

    def settle(self, trained: Trained) -> None:
        """Keep the held-out posteriors; a name that QuaPy does not have is an error here, before any site."""
        find_quantifier(self.quantifier)
        super().settle(trained)
        if not bool((self._held_weight == self._held_weight[0]).all()):
            raise ValueError(NO_WEIGHTS)

    def find_marginal(self, log_ratio: Tensor) -> Tensor:
        """The quantifier's answer."""
        held, here = (part.clamp_min(LEAST).numpy() for part in self._predictions(log_ratio, soft=True))
        options = dict(self.options)
        if "random_state" in signature(find_quantifier(self.quantifier)).parameters:
            options.setdefault("random_state", self.random_state)
        shares = quantify(self.quantifier, held, self._held_y.numpy(), here, options)
        return torch.tensor(shares).clamp_min(0)
