"""What every model of this package does once it is fitted: predict at its own sites, adapt to others, plan, save."""

import copy
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from numbers import Real
from types import MappingProxyType
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin
from sklearn.metrics import accuracy_score
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from sitewise.adaptation import estimate_prevalence
from sitewise.adaptation.known import Known, read_known
from sitewise.arrays import Problems, did_you_mean, read_groups, read_weight
from sitewise.calibration import METHODS, Calibration
from sitewise.confounders import Confounders
from sitewise.diagnosis import TrainingTable
from sitewise.estimator.adapted import AdaptedClassifier
from sitewise.estimator.at_site.kept import KeptRows
from sitewise.estimator.at_site.planning import plan_from_held_out, plan_labels_from_held_out
from sitewise.estimator.at_site.policies import read_policy
from sitewise.estimator.source.balance import Balance, fit_balance
from sitewise.estimator.source.held_out import HeldOut
from sitewise.estimator.source.prevalences import by_site
from sitewise.estimator.source.prior import describe_source
from sitewise.estimator.source.reading import Array, read_domain, read_partial_labels
from sitewise.estimator.source.regions import Region, in_regions, warn_kept
from sitewise.estimator.source.splitting import folds
from sitewise.estimator.source.summary import TrainingSummary
from sitewise.posterior import combine
from sitewise.prevalence import Prevalence, SitePrior
from sitewise.samplesize import LabelPlan, SamplePlan
from sitewise.sites import take_rows

CROSS_SEED = 0  # of the folds in which held-out rows are calibrated by others


class SiteModel(ClassifierMixin, TransformerMixin, BaseEstimator, ABC):  # type: ignore[misc]
    """A fitted f with the g of its training sites; where f comes from is a subclass's business.

    A subclass reads inputs (`_read`) and scores them (`_raw_log_ratio`, `_score`); its `fit` sets all that is declared
    here.
    """

    prevalence: str
    calibration: str
    rehearsal: str | None
    random_state: Any
    about_: Mapping[str, str] = MappingProxyType(
        {}
    )  # what people call the outcome and its positive class, intended use, contact
    classes_: Array
    sites_: list[Any]
    confounders_: Confounders | None
    training_summary_: TrainingSummary
    _site_prevalences: dict[Any, Prevalence]
    _pooled_prevalence: Prevalence
    _unsupported: tuple[Region, ...]
    _training_table: TrainingTable
    _held_out: tuple[HeldOut, HeldOut]  # with all of z, and with z hidden
    _calibrations: tuple[Calibration, Calibration]
    _balance: Balance | None = None  # the mean of f at z, which is divided out
    _deviation: Tensor | None = None  # (D,) how far the training sites' g differ, feature by feature
    _prior: SitePrior  # what the training sites say about a new one

    @abstractmethod
    def _check_settings(self) -> Any:
        """Raise a ValueError that names every setting that is wrong."""

    @abstractmethod
    def adapt(self, X: Any, sample_confounder: Any = None) -> AdaptedClassifier:
        """Adapt to a new site from unlabeled rows; the model is unchanged."""

    @abstractmethod
    def _read(self, X: Any) -> Any:
        """X as scoring wants it, checked; it has a length."""

    @abstractmethod
    def _raw_log_ratio(self, X: Any, codes: Tensor) -> Tensor:
        """log f before calibration, (n, K)."""

    @abstractmethod
    def _score(self, X: Any, codes: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """log f before calibration, and the features of some of the rows with their numbers, if there are features."""

    @abstractmethod
    def _facts(self) -> dict[str, Any]:
        """How f came about, by heading, for reports."""

    def log_ratio(self, X: Any, sample_confounder: Any = None) -> Any:
        """Calibrated log f(x,z), (n, K), for the array-level functions; z missing in part or whole is averaged out."""
        check_is_fitted(self)
        inputs = self._read(X)
        return _like(X, self._log_ratio(inputs, self._codes(sample_confounder, len(inputs))))

    def transform(self, X: Any, sample_confounder: Any = None) -> Any:
        """What is stable from site to site, the same as `log_ratio`; a frame after `set_output(transform="pandas")`."""
        return self.log_ratio(X, sample_confounder)

    def get_feature_names_out(self, input_features: Any = None) -> Array:
        """The names of the columns that `transform` gives."""
        check_is_fitted(self)
        return np.array([f"log_ratio_{label}" for label in self.classes_.tolist()], dtype=object)

    def predict_proba(self, X: Any, sample_domain: Any = None, sample_confounder: Any = None) -> Any:
        """P(y|x,z) with the g of each row's training site; without `sample_domain`, of all training rows together."""
        check_is_fitted(self)
        inputs = self._read(X)
        codes = self._codes(sample_confounder, len(inputs))
        if sample_domain is None:
            log_prevalence = self._pooled_prevalence.log_prob(codes)
        else:
            log_prevalence = self._training_prevalence(sample_domain, codes)
        return _like(X, combine(self._log_ratio(inputs, codes), log_prevalence).exp())

    def predict(self, X: Any, sample_domain: Any = None, sample_confounder: Any = None) -> Any:
        """The most probable class of every row."""
        probability = self.predict_proba(X, sample_domain=sample_domain, sample_confounder=sample_confounder)
        return self.classes_[np.asarray(probability).argmax(axis=1)]

    def _hold_out(self, held: tuple[HeldOut, HeldOut]) -> None:
        """Keep held-out rows: f is balanced on them, then calibrated; without calibration it stays as it is."""
        self._balance = None
        if self.calibration != "none":
            self._balance = fit_balance(held[0], self.confounders_, len(self.classes_))
        if self._balance is not None:
            held = held[0].balanced(self._balance.log_mean), held[1].balanced(self._balance.log_mean)
        self._held_out = held
        self._calibrate_held_out()

    def _calibrate_held_out(self) -> None:
        """Calibrate f on the rows held out, and note what they say of its error."""
        self._calibrations = self._fit_calibrations()
        telling = self._telling_rows()
        which = not len(telling[0].y)
        rows = telling[which]
        self._prior = SitePrior(self._pooled_prevalence, deviation=self._deviation)
        if len(rows.y):
            calibrated = self._calibrations[which].apply(rows.raw_log_ratio)
            self._prior = describe_source(rows, calibrated, self._pooled_prevalence, self._deviation)

    def _cross_calibrated(self, held: HeldOut) -> Tensor:
        """log f (n, K) of held-out rows, each balanced and calibrated by other ones."""
        if self.calibration == "none":
            return held.raw_log_ratio
        raw = held if self._balance is None else held.shifted(self._balance.log_mean)
        found = torch.empty_like(raw.raw_log_ratio)
        for fold in folds(len(raw.y), raw.groups, CROSS_SEED):
            others = torch.ones(len(raw.y), dtype=torch.bool)
            others[fold] = False
            apart, own = raw.take(others.nonzero().flatten()), raw.take(fold)
            balance = None if self._balance is None else fit_balance(apart, self.confounders_, len(self.classes_))
            if balance is not None:
                apart, own = apart.balanced(balance.log_mean), own.balanced(balance.log_mean)
            calibration = apart.calibrate(self.calibration, len(self.classes_))
            found[fold] = calibration.apply(own.raw_log_ratio)
        return found

    def _fit_calibrations(self) -> tuple[Calibration, Calibration]:
        """Calibrations for rows with all of z and for rows that lack some of it."""
        complete, hidden = self._telling_rows()
        n_classes = len(self.classes_)
        first = complete.calibrate(self.calibration, n_classes)
        return first, first if hidden is complete else hidden.calibrate(self.calibration, n_classes)

    def _telling_rows(self) -> tuple[HeldOut, HeldOut]:
        """The held-out rows that tell about f: where a class cannot occur, its rows would push f away from it."""
        complete, hidden = self._held_out
        pushing = in_regions(complete.codes, self._unsupported)
        return (complete.take((~pushing).nonzero().flatten()) if bool(pushing.any()) else complete), hidden

    def with_calibration(self, calibration: str) -> Self:
        """The same f in a model of its own, calibrated otherwise on the same held-out rows."""
        check_is_fitted(self)
        if calibration not in METHODS:  # other settings served their purpose, their files may be gone
            meant = did_you_mean(calibration, METHODS)
            raise ValueError(f"calibration must be one of {', '.join(METHODS)}, got {calibration!r}{meant}")
        other = copy.copy(self)
        other.calibration = calibration
        if (calibration == "none") == (self.calibration == "none"):  # the same balance
            other._calibrate_held_out()
            return other
        complete, hidden = self._held_out
        if self._balance is not None:
            complete, hidden = complete.shifted(self._balance.log_mean), hidden.shifted(self._balance.log_mean)
        other._hold_out((complete, hidden))
        return other

    def score(
        self, X: Any, y: Any, sample_domain: Any = None, sample_confounder: Any = None, sample_weight: Any = None
    ) -> float:
        """The accuracy of `predict`, for scikit-learn's cross-validation."""
        predicted = self.predict(X, sample_domain=sample_domain, sample_confounder=sample_confounder)
        return float(accuracy_score(y, predicted, sample_weight=sample_weight))

    def plan(self, **wanted: Any) -> SamplePlan:
        """Say how many unlabeled rows a new site needs, from the labeled rows that were held out.

        `width=`, `kl=` or `f1_loss=` says what is wanted, `prevalence=` what is assumed of the site; these and
        `level=`, `sizes=`, `n_simulations=`, `random_state=` are those of `plan_sample_size`.
        """
        check_is_fitted(self)
        return plan_from_held_out(self, **wanted)

    def plan_labels(self, **wanted: Any) -> LabelPlan:
        """Say how many of a new site's rows to label, from the labeled rows that were held out.

        `width=` or `log_loss=` says what is wanted, `rows=` how many rows the site has, `prevalence=` what is assumed
        of it; these and `level=`, `labels=`, `n_simulations=`, `random_state=` are those of `plan_labels`.
        """
        check_is_fitted(self)
        return plan_labels_from_held_out(self, **wanted)

    def adapt_log_ratio(
        self,
        log_ratio: Any,
        sample_confounder: Any = None,
        y: Any = None,
        groups: Any = None,
        sample_weight: Any = None,
        fallback: str | None = None,
        policy: str = "auto",
        level_scale: float | None = None,
        known_prevalence: Any = None,
    ) -> AdaptedClassifier:
        """Adapt as `adapt` does, given what `log_ratio` said of the rows with this very z: f is computed once."""
        check_is_fitted(self)
        policy = read_policy(policy, fallback)
        ratios = torch.as_tensor(log_ratio).double().cpu()
        n_rows = len(ratios)
        codes = self._quiet_codes(sample_confounder, n_rows)  # what is odd about Z is said by the estimation below
        labels = None if y is None else read_partial_labels(y, self.classes_, n_rows)
        kept = in_regions(codes, self._unsupported)
        if self.confounders_ is not None:
            warn_kept(codes, self._unsupported, self.confounders_, self.classes_.tolist())
        use = (~kept).nonzero().flatten()
        if not len(use):
            raise ValueError("adapt: every row lies where some class never occurs in training; nothing can be learned")
        rows = use.numpy()
        known = self._read_known(known_prevalence, policy)
        problems = Problems("adapt")
        weight = None if sample_weight is None else read_weight(sample_weight, n_rows, problems)
        estimate = estimate_prevalence(
            ratios[use].numpy(),
            take_rows(sample_confounder, rows),
            model="constant" if sample_confounder is None else self.prevalence,
            prior=None if policy == "rows" else self._prior_of(policy, level_scale),
            confounders=self.confounders_,
            y=take_rows(labels, rows),
            groups=take_rows(groups, rows),
            sample_weight=take_rows(sample_weight, rows),
            known_prevalence=self._where_supported(known, ratios, codes, ~kept, weight),
            random_state=self.random_state,
        )
        told = None if labels is None else torch.tensor(labels)
        own = KeptRows(ratios, codes, ~kept, weight, read_groups(groups, n_rows, problems), told)
        here = AdaptedClassifier(self, estimate, own, policy, level_scale)
        here.known_prevalence = known
        return here

    def _read_known(self, value: Any, policy: str) -> Known | None:
        """A known prevalence by class labels, or by strata of z."""
        problems = Problems("adapt")
        known = read_known(value, self.classes_.tolist(), self.confounders_, problems)
        if known is not None and policy != "auto":
            problems.add(
                f"known_prevalence is data of the posterior, which policy={policy!r} leaves out: give one of them"
            )
        problems.raise_if_any()
        return known

    def _where_supported(
        self, known: Known | None, log_ratio: Tensor, codes: Tensor, supported: Tensor, weight: Tensor | None
    ) -> Known | None:
        """A known prevalence of the site as that of its rows outside of the regions where the training g is kept."""
        if known is None or known.strata is not None or bool(supported.all()):
            return known
        own = torch.ones(len(codes), dtype=torch.float64) if weight is None else weight
        share, inside = own / own.sum(), ~supported
        kept = combine(log_ratio[inside], self._pooled_prevalence.log_prob(codes[inside])).exp()
        left = (known.share - share[inside] @ kept).clamp_min(1e-6)
        return replace(known, share=left / left.sum(1, keepdim=True))

    def _prior_of(self, policy: str, level_scale: float | None = None) -> SitePrior:
        """What is expected of a new site: as rehearsed, or with its rows believed as if f were right there."""
        problems = Problems("adapt")
        if level_scale is not None and not (isinstance(level_scale, Real) and 0 < level_scale < float("inf")):
            problems.add(f"level_scale must be a number above 0 (log-odds), got {level_scale!r}")
        problems.raise_if_any()
        prior = self._prior if level_scale is None else self._prior.widened(float(level_scale))
        if policy != "rows":
            return prior
        return replace(prior, slope=1.0, level_error=0.0, trusted_rows=float("inf"))

    def _quiet_codes(self, Z: Any, n_rows: int) -> Tensor:
        """Codes of z, without a word about what is odd in it."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return self._codes(Z, n_rows)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the model as a folder that `sitewise.load` reads: JSON, safetensors and a card, nothing that runs code.

        The folder is written whole or not at all; another saved model at that place is replaced, nothing else is.
        """
        from sitewise.estimator.files.saving import save

        save(self, path)

    def _training_prevalence(self, sample_domain: Any, codes: Tensor) -> Tensor:
        problems = Problems("predict")
        names, site = read_domain(sample_domain, len(codes), problems)
        unknown = [name for name in names if name not in self._site_prevalences]
        if unknown:
            known = list(self._site_prevalences)
            problems.add(f"unknown sample_domain {unknown}; f was trained at {known}. Use adapt() for a new site")
        problems.raise_if_any()
        return by_site(site, {s: self._site_prevalences[name] for s, name in enumerate(names)}).log_prob(codes)

    def _codes(self, Z: Any, n_rows: int) -> Tensor:
        if self.confounders_ is None:
            if Z is not None:
                raise ValueError("sample_confounder is given, but the model was trained without confounders")
            return torch.zeros(n_rows, 0, dtype=torch.float64)
        if Z is None:
            return self.confounders_.missing_codes().expand(n_rows, -1)
        codes, _ = self.confounders_.encode(Z)
        if len(codes) != n_rows:
            raise ValueError(f"sample_confounder has {len(codes)} row(s), X has {n_rows}")
        return codes

    def _log_ratio(self, X: Any, codes: Tensor) -> Tensor:
        return self._calibrated(self._raw_log_ratio(X, codes), codes)

    def _balanced(self, raw_log_ratio: Tensor, codes: Tensor) -> Tensor:
        """log f (..., n, K) with its mean at each row's z divided out (equation 18a)."""
        return raw_log_ratio if self._balance is None else raw_log_ratio - self._balance.log_mean(codes)

    def _calibrated(self, raw_log_ratio: Tensor, codes: Tensor) -> Tensor:
        balanced = self._balanced(raw_log_ratio, codes)
        complete, incomplete = (calibration.apply(balanced) for calibration in self._calibrations)
        if self.confounders_ is None:
            return complete
        lacking = self.confounders_.missing(codes).any(dim=1, keepdim=True)
        return torch.where(lacking, incomplete, complete)


def _like(X: Any, values: Tensor) -> Any:
    """A tensor for a caller who came with one, numpy for everybody else."""
    return values.to(X.device) if isinstance(X, Tensor) else values.numpy()
