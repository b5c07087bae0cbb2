"""The base class of all models: predict at training sites, adapt to new sites, plan, save."""

import copy
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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

from sitewise.adaptation import PrevalenceEstimate, estimate_prevalence
from sitewise.adaptation.families import FAMILIES, dropout_problem, quick_model, solver_problem
from sitewise.adaptation.known import read_known
from sitewise.adaptation.posterior.known import Known
from sitewise.arrays import Problems, did_you_mean, read_groups, read_weight, view_tensor
from sitewise.calibration import Calibration
from sitewise.calibration.fit import METHODS
from sitewise.confounders import Confounders
from sitewise.confounders.schema import Encoded
from sitewise.confounders.variables import Notes
from sitewise.diagnosis.coverage import TrainingTable
from sitewise.estimator.adapted import AdaptedClassifier
from sitewise.estimator.at_site.partitioned import adapt_partitions
from sitewise.estimator.source.held_out import Balance, calibrate, describe_source, fit_balance
from sitewise.estimator.source.prevalences import between_sites, by_site, fit_prevalence
from sitewise.estimator.source.reading import (
    Array,
    TrainingData,
    TrainingSummary,
    folds,
    read_domain,
    read_partial_labels,
    split_confounders,
    summarize_training,
)
from sitewise.estimator.source.regions import Region, find_unsupported, in_regions, region_counts, warn_kept
from sitewise.estimator.without_z.predicting import fit_site_joint, rows_with_joint
from sitewise.partitions import is_dask, map_rows
from sitewise.posterior import combine
from sitewise.prevalence import SitePrior
from sitewise.prevalence.base import Prevalence
from sitewise.rows import HeldOut, LabeledRows, ScoredRows, SiteRows
from sitewise.samplesize import LabelPlan, SamplePlan, plan_labels, plan_sample_size
from sitewise.solvers import EM

CROSS_SEED = 0  # seed of the folds for cross-calibration
POLICIES = ("auto", "as trained", "rows")
OLD_NAME = (
    "fallback={value!r} is what policy='auto' does: if a check fails, predictions are as trained. Leave fallback out"
)
GONE = (
    "fallback='marginal' was removed: it trusted rows that the checks had rejected. Leave it out for "
    "policy='auto', which predicts as trained there, or use policy='rows'"
)
NOTHING_HELD_OUT = (
    "plan: the model has no held-out rows (validation=None): train with validation=0.2, "
    "or call calibrate with a separate site"
)


class SiteModel(ClassifierMixin, TransformerMixin, BaseEstimator, ABC):  # type: ignore[misc]
    """Base class of models, which consist of f and the g of the training sites; subclasses define how f is computed.

    A subclass reads inputs (`inputs_of`) and scores them (`raw_log_ratio`, `score_raw`); its `fit` sets all attributes
    that are declared here. Other modules of the package use only

    - learned attributes: `pooled_prevalence_` and `site_prevalences_` (g), `unsupported_` (regions where f is not
      identified), `held_out_` (rows), `balance_`, `calibrations_`, `prior_` (of a new site), `joint_` (for rows that
      lack z);
    - methods that read rows: `read_site` (with inputs), `read_rows`, `codes_of`;
    - methods that compute log f: `calibrated_log_ratio`, or in steps `raw_log_ratio`, `balanced`, `calibrated`;
    - `estimate_rows`, which estimates g from scored rows, and `fit_prevalence`, which fits g to labeled rows;
    - `telling_rows` and `cross_calibrated`, which give held-out rows and their calibrated log f;
    - `prior_of`, which gives the prior of a new site for a policy.
    """

    prevalence: str
    prevalence_dropout: float
    solver: str | EM
    calibration: str
    balance: bool | str
    missing: str
    knockout: float
    rehearsal: str | None
    random_state: Any
    about_: Mapping[str, str] = MappingProxyType(
        {}
    )  # texts for reports: names of the predicted condition and of the positive class, intended use, contact
    classes_: Array
    sites_: list[Any]
    confounders_: Confounders | None
    training_summary_: TrainingSummary
    site_prevalences_: dict[Any, Prevalence]
    pooled_prevalence_: Prevalence
    unsupported_: tuple[Region, ...]
    training_table_: TrainingTable
    held_out_: tuple[HeldOut, HeldOut]  # rows with all of z; all rows, z hidden where a row has all of it
    calibrations_: tuple[Calibration, Calibration]
    balance_: Balance | None = None  # the mean of f at z, which is divided out
    deviation_: Tensor | None = None  # (D,) variances between the training sites' g, for each feature of z
    joint_: Any = None  # the joint model (equation 15), for rows that lack z
    prior_: SitePrior  # prior of a new site, from the training sites

    @abstractmethod
    def _check_settings(self) -> Any:
        """Raise a ValueError that names all wrong settings."""

    @abstractmethod
    def inputs_of(self, X: Any) -> Any:
        """Check X and return it in the form that `raw_log_ratio` reads; the result has a length."""

    @abstractmethod
    def raw_log_ratio(self, X: Any, codes: Tensor) -> Tensor:
        """Return log f before calibration, (n, K)."""

    @abstractmethod
    def score_raw(self, X: Any, codes: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return log f before calibration (n, K), features of some rows (m, D), and the indices of these rows (m,).

        The second and the third are None if the model has no features.
        """

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """Return facts about f and its training by heading, for reports."""

    # Learning from labeled rows, in the order of a fit.

    def _check_prevalence(self, problems: Problems) -> None:
        """Add the problems of the settings of g to `problems`."""
        if self.prevalence not in ("auto", *FAMILIES):
            meant = did_you_mean(self.prevalence, FAMILIES)
            problems.add(f"prevalence must be one of auto, {', '.join(FAMILIES)}, got {self.prevalence!r}{meant}")
        for wrong in (
            solver_problem(self.prevalence, self.solver),
            dropout_problem(self.prevalence, self.prevalence_dropout, "prevalence_dropout"),
        ):
            if wrong is not None:
                problems.add(wrong)

    def _check_scaling(self, problems: Problems) -> None:
        """Add the problems of the settings of calibration and balance to `problems`."""
        if self.calibration not in METHODS:
            meant = did_you_mean(self.calibration, METHODS)
            problems.add(f"calibration must be one of {', '.join(METHODS)}, got {self.calibration!r}{meant}")
        if not (isinstance(self.balance, bool) or self.balance == "auto"):
            problems.add(f"balance must be True, False or 'auto', got {self.balance!r}")

    def _learn_sites(self, data: TrainingData, training: LabeledRows, seed: int) -> None:
        """Fit g of each training site and of all rows together, and find the regions where f is not identified."""
        rows, schema, n_classes = data.rows, data.schema, len(data.classes)
        self.classes_, self.sites_, self.confounders_ = data.classes, data.site_names, schema
        self.training_summary_ = summarize_training(data)
        self.site_prevalences_ = {
            data.site_names[s]: self.fit_prevalence(training.take(training.site == s), seed)
            for s in torch.unique(training.site).tolist()
        }
        self.pooled_prevalence_ = self.fit_prevalence(rows, seed)
        self.unsupported_ = find_unsupported(rows, n_classes, schema)
        self.deviation_ = between_sites(rows, n_classes, schema)
        names = tuple(map(str, data.site_names))
        self.training_table_ = TrainingTable.of(rows.codes, rows.y, rows.site, names, n_classes, schema)

    def fit_prevalence(self, rows: LabeledRows, seed: int) -> Prevalence:
        """Fit g to labeled rows, with the model of g that `prevalence` names."""
        own = (len(self.classes_), self.confounders_, self.knockout, seed, self.prevalence_dropout)
        return fit_prevalence(self.prevalence, rows, *own)

    def _balance_and_calibrate(self, held: tuple[HeldOut, HeldOut]) -> None:
        """Store the held-out rows; balance f on them if the setting `balance` requires it, then calibrate f."""
        self.balance_ = fit_balance(held[0], self.confounders_, len(self.classes_)) if self._balances else None
        if self.balance_ is not None:
            held = held[0].balanced(self.balance_.log_mean), held[1].balanced(self.balance_.log_mean)
        self.held_out_ = held
        self._calibrate()

    @property
    def _balances(self) -> bool:
        """Whether f is balanced; for `balance="auto"`, it is balanced if it is calibrated."""
        return self.calibration != "none" if self.balance == "auto" else bool(self.balance)

    def _calibrate(self) -> None:
        """Calibrate f on the held-out rows, with all of z and with z hidden, and set the prior of a new site."""
        complete, hidden = self.telling_rows()
        with_z = calibrate(complete, self.calibration, len(self.classes_))
        without_z = with_z if hidden is complete else calibrate(hidden, self.calibration, len(self.classes_))
        self.calibrations_ = with_z, without_z
        rows, calibration = (complete, with_z) if len(complete) else (hidden, without_z)
        self.prior_ = SitePrior(self.pooled_prevalence_, deviation=self.deviation_)
        if len(rows):
            calibrated = calibration.apply(rows.raw_log_ratio)
            self.prior_ = describe_source(rows, calibrated, self.pooled_prevalence_, self.deviation_)

    def telling_rows(self) -> tuple[HeldOut, HeldOut]:
        """Return the held-out rows for calibration: the rows with all of z, and all rows with z hidden.

        The first have no rows at z where a class never occurs, because these rows would bias f.
        """
        complete, hidden = self.held_out_
        pushing = in_regions(complete.codes, self.unsupported_)
        return (complete.take(~pushing) if bool(pushing.any()) else complete), hidden

    def cross_calibrated(self, held: HeldOut) -> Tensor:
        """Return log f (n, K) of held-out rows; each row is balanced and calibrated by a fit to the other folds."""
        if self.calibration == "none" and self.balance_ is None:
            return held.raw_log_ratio
        raw = held if self.balance_ is None else held.shifted(self.balance_.log_mean)
        calibrated = torch.empty_like(raw.raw_log_ratio)
        for fold in folds(raw, CROSS_SEED):
            others = torch.ones(len(raw), dtype=torch.bool)
            others[fold] = False
            apart, own = raw.take(others), raw.take(fold)
            balance = None if self.balance_ is None else fit_balance(apart, self.confounders_, len(self.classes_))
            if balance is not None:
                apart, own = apart.balanced(balance.log_mean), own.balanced(balance.log_mean)
            calibration = calibrate(apart, self.calibration, len(self.classes_))
            calibrated[fold] = calibration.apply(own.raw_log_ratio)
        return calibrated

    def _keep_rehearsed(self) -> None:
        """Put the numbers of the rehearsal into the prior again, after `_calibrate` has replaced the prior."""
        if (rehearsal := getattr(self, "rehearsal_", None)) is not None:  # None in folders of early versions
            self.prior_ = rehearsal.numbers.put_into(self.prior_)

    def with_calibration(self, calibration: str, *, balance: bool | str | None = None) -> Self:
        """Return a copy of this model with another calibration, fitted to the same held-out rows.

        Parameters
        ----------
        calibration : {"vector", "bias_corrected", "temperature", "none"}
            The kind of calibration, as for `GPAClassifier`.
        balance : bool or "auto", optional
            Whether f is balanced before it is calibrated, as for `GPAClassifier`. None: as in this model.

        Returns
        -------
        GPAClassifier or PrevalenceAdjuster
            A new model, with the same f before balance and calibration. The original model is not changed.
        """
        check_is_fitted(self)
        other = copy.copy(self)
        other.calibration, other.balance = calibration, self.balance if balance is None else balance
        problems = Problems("with_calibration")  # other settings are not checked again: their files may no longer exist
        other._check_scaling(problems)
        problems.raise_if_any()
        if other._balances == self._balances:
            other._calibrate()
            other._keep_rehearsed()
            return other
        complete, hidden = self.held_out_
        if self.balance_ is not None:
            complete, hidden = complete.shifted(self.balance_.log_mean), hidden.shifted(self.balance_.log_mean)
        other._balance_and_calibrate((complete, hidden))
        other._keep_rehearsed()
        return other

    # log f of rows.

    def log_ratio(self, X: Any, sample_confounder: Any = None) -> Any:
        """Compute calibrated log f(x,z), for the functions that work on arrays (`estimate_prevalence`, `adjust`).

        Parameters
        ----------
        X : array-like
            Rows in the same format as for `fit`.
        sample_confounder : DataFrame or array-like of shape (n, V), optional
            The confounders z of the rows; missing values are allowed.

        Returns
        -------
        ndarray of shape (n, K)
            log f, a column for each class; a tensor if X is a tensor, a Dask collection if X is one.
        """
        check_is_fitted(self)
        if is_dask(X):
            return map_rows(self.log_ratio, X, sample_confounder, columns=self.get_feature_names_out().tolist())
        inputs = self.inputs_of(X)
        return _like(X, self.calibrated_log_ratio(inputs, self.codes_of(sample_confounder, len(inputs))))

    def transform(self, X: Any, sample_confounder: Any = None) -> Any:
        """Compute calibrated log f(x,z), the part of the prediction that is the same at all sites, as `log_ratio` does.

        Parameters
        ----------
        X : array-like
            Rows in the same format as for `fit`.
        sample_confounder : DataFrame or array-like of shape (n, V), optional
            The confounders z of the rows; missing values are allowed.

        Returns
        -------
        ndarray or DataFrame of shape (n, K)
            log f; a frame after `set_output(transform="pandas")`.
        """
        return self.log_ratio(X, sample_confounder)

    def get_feature_names_out(self, input_features: Any = None) -> Array:
        """Return the names of the columns of `transform`."""
        check_is_fitted(self)
        return np.array([f"log_ratio_{label}" for label in self.classes_.tolist()], dtype=object)

    def calibrated_log_ratio(self, X: Any, codes: Tensor) -> Tensor:
        """Return calibrated log f, (n, K)."""
        return self.calibrated(self.raw_log_ratio(X, codes), codes)

    def score_calibrated(self, X: Any, codes: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return calibrated log f (n, K), and features of some rows with their row numbers, as `score_raw` does."""
        raw_log_ratio, features, feature_rows = self.score_raw(X, codes)
        return self.calibrated(raw_log_ratio, codes), features, feature_rows

    def balanced(self, raw_log_ratio: Tensor, codes: Tensor) -> Tensor:
        """Return log f minus the log of the mean of f at each row's z, (..., n, K) (equation 18a)."""
        return raw_log_ratio if self.balance_ is None else raw_log_ratio - self.balance_.log_mean(codes)

    def calibrated(self, raw_log_ratio: Tensor, codes: Tensor) -> Tensor:
        """Balance (equation 18a) and calibrate log f. Rows that lack some of z use the calibration for such rows."""
        balanced = self.balanced(raw_log_ratio, codes)
        complete, incomplete = (calibration.apply(balanced) for calibration in self.calibrations_)
        if self.confounders_ is None:
            return complete
        lacking = self.confounders_.missing(codes).any(dim=1, keepdim=True)
        return torch.where(lacking, incomplete, complete)

    # Predictions at the training sites.

    def predict_proba(self, X: Any, sample_domain: Any = None, sample_confounder: Any = None) -> Any:
        """Predict P(y|x,z) at training sites. For a new site, use `adapt`.

        Parameters
        ----------
        X : array-like
            Rows in the same format as for `fit`.
        sample_domain : array-like of shape (n,), optional
            The training site of each row; a row is predicted with the g of its site. None: all rows are predicted with
            the g of all training rows together.
        sample_confounder : DataFrame or array-like of shape (n, V), optional
            The confounders z of the rows; missing values are allowed.

        Returns
        -------
        ndarray of shape (n, K)
            Probabilities, a column for each class; a tensor if X is a tensor.
        """
        check_is_fitted(self)
        inputs = self.inputs_of(X)
        codes = self.codes_of(sample_confounder, len(inputs))
        if sample_domain is None:
            log_prevalence = self.pooled_prevalence_.log_prob(codes)
        else:
            log_prevalence = self._training_prevalence(sample_domain, codes)
        return _like(X, combine(self.calibrated_log_ratio(inputs, codes), log_prevalence).exp())

    def predict(self, X: Any, sample_domain: Any = None, sample_confounder: Any = None) -> Any:
        """Predict the most probable class of each row at training sites.

        Parameters
        ----------
        X : array-like
            Rows in the same format as for `fit`.
        sample_domain : array-like of shape (n,), optional
            The training site of each row, as in `predict_proba`.
        sample_confounder : DataFrame or array-like of shape (n, V), optional
            The confounders z of the rows; missing values are allowed.

        Returns
        -------
        ndarray of shape (n,)
            The predicted classes.
        """
        probability = self.predict_proba(X, sample_domain=sample_domain, sample_confounder=sample_confounder)
        return self.classes_[np.asarray(probability).argmax(axis=1)]

    def score(
        self, X: Any, y: Any, sample_domain: Any = None, sample_confounder: Any = None, sample_weight: Any = None
    ) -> float:
        """Return the accuracy of `predict`, for scikit-learn's cross-validation.

        Parameters
        ----------
        X : array-like
            Rows in the same format as for `fit`.
        y : array-like of shape (n,)
            The labels of the rows.
        sample_domain : array-like of shape (n,), optional
            The training site of each row, as in `predict_proba`.
        sample_confounder : DataFrame or array-like of shape (n, V), optional
            The confounders z of the rows.
        sample_weight : array-like of shape (n,), optional
            Weights of the rows.

        Returns
        -------
        float
            The share of correct predictions.
        """
        predicted = self.predict(X, sample_domain=sample_domain, sample_confounder=sample_confounder)
        return float(accuracy_score(y, predicted, sample_weight=sample_weight))

    def _training_prevalence(self, sample_domain: Any, codes: Tensor) -> Tensor:
        problems = Problems("predict")
        names, site = read_domain(sample_domain, len(codes), problems)
        unknown = [name for name in names if name not in self.site_prevalences_]
        if unknown:
            known = list(self.site_prevalences_)
            problems.add(f"unknown sample_domain {unknown}; the training sites are {known}. Use adapt() for a new site")
        problems.raise_if_any()
        return by_site(site, {s: self.site_prevalences_[name] for s, name in enumerate(names)}).log_prob(codes)

    def codes_of(self, Z: Any, n_rows: int) -> Tensor:
        """Return the codes of z (n, V) of rows to predict; unusual values give a warning."""
        codes, notes = self._encode(Z, n_rows)
        notes.warn(stacklevel=4)
        return codes

    def _encode(self, Z: Any, n_rows: int) -> tuple[Tensor, Notes]:
        """Return the codes of z (n, V), and notes about unusual values."""
        if self.confounders_ is None:
            if Z is not None:
                raise ValueError("sample_confounder is given, but the model was trained without confounders")
            return torch.zeros(n_rows, 0, dtype=torch.float64), Notes()
        if Z is None:
            return self.confounders_.missing_codes().expand(n_rows, -1), Notes()
        codes, notes = self.confounders_.encode(Z, quiet=True)
        if len(codes) != n_rows:
            raise ValueError(f"sample_confounder has {len(codes)} row(s), X has {n_rows}")
        return codes, notes

    # A new site, in the order of `adapt`.

    def adapt(
        self,
        X: Any,
        sample_confounder: Any = None,
        y: Any = None,
        groups: Any = None,
        sample_weight: Any = None,
        fallback: str | None = None,
        policy: str = "auto",
        level_scale: float | None = None,
        confounder_columns: Any = None,
        known_prevalence: Any = None,
    ) -> AdaptedClassifier:
        """Adapt to a new site with unlabeled rows, and with labels of some rows if there are any.

        The model is unchanged.

        Parameters
        ----------
        X : array-like
            Rows of the site in the same format as for `fit`: inputs, or probabilities if a `PrevalenceAdjuster` was
            fitted to probabilities.
        sample_confounder : DataFrame or array-like of shape (n, V), optional
            The confounders z of the rows; missing values are allowed.
        y : array-like of shape (n,), optional
            Known labels; NaN or None for rows without a label.
        groups : array-like of shape (n,), optional
            The patient (or other group) of each row. Checks and intervals of the prevalence take into account that rows
            of one patient are similar. In intervals of the expected performance, only the uncertainty of the prevalence
            takes it into account.
        sample_weight : array-like of shape (n,), optional
            Weights of the rows.
        fallback : str, optional
            Deprecated; use `policy`.
        policy : {"auto", "as trained", "rows"}
            How far the rows are trusted. "auto": as far as the rehearsal allows, and not at all if a check of the
            assumption fails; `outcome` says what was done and why. "as trained": not at all; predictions are those of
            the model without adaptation. "rows": fully; g is the maximum likelihood estimate from the rows (for
            research).
        level_scale : float, optional
            The prior scale of the difference in prevalence between the training sites and this site, in log-odds. None:
            the scale that was learned from the differences between training sites. Use 3 for a site that may be very
            different. If the given scale is larger than the learned one, more rows may be trusted (see
            `SitePrior.widened`).
        confounder_columns : list, optional
            The columns of X that hold z, instead of `sample_confounder`. Predictions at the site then read z from these
            columns too.
        known_prevalence : float, tuple, dict or DataFrame, optional
            P(y) of the site, if it is known from another source. A number: the share of the second of two classes. A
            tuple `(value, low, high)`: this share with a 95% interval. A dict: such a number or tuple for each class. A
            DataFrame: a row for each stratum of z, with columns of z, "prevalence" and, if known, "low" and "high" (see
            docs/known_labels.md, also for more than two classes). Without an interval, the mean prediction is exactly
            this prevalence. With an interval, the prevalence is combined with the rows. A warning is given if the rows
            contradict it. With a known prevalence, rows that lack values of z are always predicted by knockout, and
            `policy` must be "auto".

        Returns
        -------
        AdaptedClassifier
            The model at this site.

        Examples
        --------
        >>> here = model.adapt(X_new, sample_confounder=Z_new)
        >>> here.outcome, here.predict_proba(X_new, sample_confounder=Z_new)
        """
        check_is_fitted(self)
        policy = read_policy(policy, fallback)
        X, Z = split_confounders(X, sample_confounder, confounder_columns, self)
        inputs, rows, notes = self.read_site(X, Z, y, groups, sample_weight, "adapt")
        known = self._read_known(known_prevalence, policy)
        joint = fit_site_joint(self, inputs, rows) if known is None else None
        rows = rows_with_joint(self, joint, inputs, rows)
        columns = None if confounder_columns is None else list(confounder_columns)
        own = {"joint": joint, "confounder_columns": columns}
        return self._at_site(rows, notes if Z is not None else None, policy, level_scale, known, **own)

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
        """Adapt as `adapt` does, but from log f that was computed before, without the inputs X.

        Without X, rows that lack values of z are always predicted by knockout, and the check "representation" is not
        possible. With Dask collections, g and the mean of the predictions are computed from all rows; checks and
        expected performance are computed from a sample of about 20,000 rows, which the site keeps.

        Parameters
        ----------
        log_ratio : array-like of shape (n, K), or a Dask DataFrame or array
            The result of `log_ratio` for the rows of the site. If it is a Dask collection, every other argument with
            one entry for each row must be a Dask collection with the same partitions.
        sample_confounder : DataFrame or array-like of shape (n, V), optional
            The confounders z that were given to `log_ratio`.
        y : array-like of shape (n,), optional
            Known labels; NaN or None for rows without a label.
        groups : array-like of shape (n,), optional
            The patient (or other group) of each row, as in `adapt`.
        sample_weight : array-like of shape (n,), optional
            Weights of the rows.
        fallback : str, optional
            Deprecated; use `policy`.
        policy : {"auto", "as trained", "rows"}
            How far the rows are trusted, as in `adapt`.
        level_scale : float, optional
            The prior scale of the difference in prevalence between the training sites and this site, as in `adapt`.
        known_prevalence : float, tuple, dict or DataFrame, optional
            P(y) of the site, as in `adapt`; not supported with Dask collections.

        Returns
        -------
        AdaptedClassifier
            The model at this site.
        """
        check_is_fitted(self)
        policy, Z = read_policy(policy, fallback), sample_confounder
        if is_dask(log_ratio):
            beside = {"sample_confounder": Z, "y": y, "groups": groups, "sample_weight": sample_weight}
            known = self._read_known(known_prevalence, policy)
            adapted = adapt_partitions(self, log_ratio, beside, policy, level_scale, known)
            here = AdaptedClassifier(self, adapted.estimate, adapted.rows, policy, level_scale)
            here.n_rows_, here.mean_probability_ = adapted.n_rows, adapted.mean_probability
            return here
        ratios = view_tensor(log_ratio).double().cpu()
        given, notes = self.read_rows(len(ratios), Z, y, groups, sample_weight, "adapt")
        rows, known = self._with_log_ratio(given, ratios), self._read_known(known_prevalence, policy)
        return self._at_site(rows, notes if Z is not None else None, policy, level_scale, known)

    def read_site(self, X: Any, Z: Any, y: Any, groups: Any, weight: Any, call: str) -> tuple[Any, ScoredRows, Notes]:
        """Read, encode and score the rows of a site; return inputs, scored rows and notes about unusual z."""
        inputs = self.inputs_of(X)
        given, notes = self.read_rows(len(inputs), Z, y, groups, weight, call)
        log_ratio, features, feature_rows = self.score_calibrated(inputs, given.codes)
        return inputs, self._with_log_ratio(given, log_ratio, features=features, feature_rows=feature_rows), notes

    def read_rows(self, n_rows: int, Z: Any, y: Any, groups: Any, weight: Any, call: str) -> tuple[SiteRows, Notes]:
        """Check Z, labels, groups and weights of rows; return them encoded, with notes about unusual values of z.

        Unusual values of z give a warning.
        """
        problems = Problems(call)
        codes, notes = self._encode(Z, n_rows)
        rows = SiteRows(
            codes=codes,
            weight=None if weight is None else read_weight(weight, n_rows, problems),
            groups=read_groups(groups, n_rows, problems),
            y=read_partial_labels(y, self.classes_, n_rows, problems),
        )
        problems.raise_if_any()
        notes.warn(stacklevel=5)
        return rows, notes

    def _with_log_ratio(self, rows: SiteRows, log_ratio: Tensor, **features: Tensor | None) -> ScoredRows:
        """Return the rows with log f; warn if there are rows at which f is not identified."""
        if self.confounders_ is not None:
            counts = region_counts(rows.codes, self.unsupported_)
            warn_kept(counts, self.unsupported_, self.confounders_, self.classes_.tolist())
        supported = ~in_regions(rows.codes, self.unsupported_)
        return rows.extended(ScoredRows, log_ratio=log_ratio, supported=supported, **features)

    def _read_known(self, value: Any, policy: str) -> Known | None:
        """Read and check a known prevalence, given by class or by stratum of z; None if there is none."""
        problems = Problems("adapt")
        known = read_known(value, self.classes_.tolist(), self.confounders_, problems)
        if known is not None and policy != "auto":
            problems.add(
                f"known_prevalence is data of the posterior, which policy={policy!r} does not use: give one of them"
            )
        problems.raise_if_any()
        return known

    def _at_site(
        self,
        rows: ScoredRows,
        notes: Notes | None,
        policy: str,
        level_scale: float | None,
        known: Known | None,
        **own: Any,
    ) -> AdaptedClassifier:
        """Return the model adapted to these rows; `notes` is None if they were given without z."""
        if not bool(rows.supported.any()):
            raise ValueError(
                "adapt: all rows have values of z where some class never occurs in training; nothing can be estimated"
            )
        prior = None if policy == "rows" else self.prior_of(policy, level_scale)
        estimate = self.estimate_rows(rows, prior=prior, known=known, notes=notes)
        return AdaptedClassifier(self, estimate, rows, policy, level_scale, known_prevalence=known, **own)

    def prior_of(self, policy: str, level_scale: float | None = None) -> SitePrior:
        """Return the prior for a new site, as the rehearsal learned it; for policy "rows", f is treated as exact."""
        problems = Problems("adapt")
        if level_scale is not None and not (isinstance(level_scale, Real) and 0 < level_scale < float("inf")):
            problems.add(f"level_scale must be a number above 0 (log-odds), got {level_scale!r}")
        problems.raise_if_any()
        prior = self.prior_ if level_scale is None else self.prior_.widened(float(level_scale))
        if policy != "rows":
            return prior
        return replace(prior, slope=1.0, level_error=0.0, trusted_rows=float("inf"))

    def estimate_rows(
        self, rows: ScoredRows, *, prior: SitePrior | None, known: Known | None = None, notes: Notes | None = None
    ) -> PrevalenceEstimate:
        """Estimate g from a site's rows with this prior; by maximum likelihood if `prior` is None.

        A `known` prevalence enters the posterior as data. `notes` list the unusual values of z.
        """
        own, schema = rows.take(rows.supported), self.confounders_
        knows_z = notes is not None or (schema is not None and not bool(schema.missing(own.codes).all()))
        g = self.prevalence if knows_z else "constant"
        return estimate_prevalence(
            own.log_ratio.numpy(),
            Encoded(schema, own.codes, notes or Notes()) if schema is not None and knows_z else None,
            model=g,
            solver=self.solver if solver_problem(g, self.solver) is None else "auto",
            dropout=self.prevalence_dropout if g == "network" else 0.0,
            prior=prior,
            confounders=schema,
            y=None if own.y is None else own.y.numpy(),
            groups=None if own.groups is None else own.groups.numpy(),
            sample_weight=own.weight,
            known_prevalence=None if prior is None else self.where_supported(known, rows),
            random_state=self.random_state,
        )

    def where_supported(self, known: Known | None, rows: ScoredRows) -> Known | None:
        """Convert the known prevalence of the whole site to the prevalence of the rows at which f is identified."""
        if known is None or known.strata is not None or bool(rows.supported.all()):
            return known
        share, inside = rows.weights / rows.weights.sum(), ~rows.supported
        kept = combine(rows.log_ratio[inside], self.pooled_prevalence_.log_prob(rows.codes[inside])).exp()
        left = (known.share - share[inside] @ kept).clamp_min(1e-6)
        return replace(known, share=left / left.sum(1, keepdim=True))

    # Plans and folders.

    def plan(self, **wanted: Any) -> SamplePlan:
        """Plan how many unlabeled rows of a new site are enough. The held-out labeled rows represent the new site.

        Parameters
        ----------
        **wanted : object
            The wanted accuracy: one of `width=`, `kl=` and `f1_loss=`. Optional further arguments of
            `plan_sample_size` are `prevalence=`, `level=`, `sizes=`, `n_simulations=` and `random_state=`.

        Returns
        -------
        SamplePlan
            The number of rows that is enough for the wanted accuracy, with a table of the numbers that were tried.
        """
        check_is_fitted(self)
        return plan_sample_size(**_labeled_rows(self), **wanted)

    def plan_labels(self, **wanted: Any) -> LabelPlan:
        """Plan how many rows of a new site to label. The held-out labeled rows represent the new site.

        Parameters
        ----------
        **wanted : object
            The wanted accuracy: `width=` or `log_loss=`. Optional further arguments of the function
            `sitewise.plan_labels` are `rows=`, `prevalence=`, `level=`, `labels=`, `n_simulations=` and
            `random_state=`.

        Returns
        -------
        LabelPlan
            The number of labels that is enough for the wanted accuracy, with a table of the numbers that were tried.
        """
        check_is_fitted(self)
        return plan_labels(**_labeled_rows(self), **wanted)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the model as a folder that `sitewise.load` reads.

        The folder contains JSON, safetensors and a model card, but no code. It is written completely or not at all. An
        earlier saved model at the same path is replaced; any other existing file or folder raises an error.

        Parameters
        ----------
        path : path
            The folder.
        """
        from sitewise.estimator.files.saving import save

        save(self, path)


@contextmanager
def unchanged_on_error(model: BaseEstimator) -> Iterator[None]:
    """Restore all attributes if a fit fails, so that no half-fitted model is left."""
    before = dict(vars(model))
    try:
        yield
    except BaseException:
        model.__dict__.clear()
        model.__dict__.update(before)
        raise


def _like(X: Any, values: Tensor) -> Any:
    """Return the values as a tensor on X's device if X is a tensor, otherwise as an array."""
    return values.to(X.device) if isinstance(X, Tensor) else values.numpy()


def read_policy(policy: str, fallback: str | None = None) -> str:
    """Check the policy and return it; `fallback`, its old name, is accepted with a warning."""
    problems = Problems("adapt")
    if policy not in POLICIES:
        problems.add(f"policy must be one of {', '.join(POLICIES)}, got {policy!r}{did_you_mean(policy, POLICIES)}")
    if fallback == "marginal":
        problems.add(GONE)
    elif fallback not in (None, "pooled"):
        problems.add(f"fallback must be None or 'pooled', got {fallback!r}{did_you_mean(fallback, ['pooled'])}")
    problems.raise_if_any()
    if fallback is not None:
        warnings.warn(OLD_NAME.format(value=fallback), DeprecationWarning, stacklevel=3)
    return policy


def _labeled_rows(model: SiteModel) -> dict[str, Any]:
    """Return the arguments of `plan_sample_size` and `plan_labels` that describe the held-out rows.

    The rows are those with all of z; if there are none, all held-out rows with z hidden.
    """
    complete, hidden = model.held_out_
    held, calibration = (complete, model.calibrations_[0]) if len(complete) else (hidden, model.calibrations_[1])
    if not len(held):
        raise ValueError(NOTHING_HELD_OUT)
    schema = model.confounders_ if held is complete else None
    return {
        "log_ratio": calibration.apply(held.raw_log_ratio),
        "y": held.y,
        "sample_confounder": None if schema is None else schema.decode(held.codes),
        "prior": model.prior_,
        "confounders": schema,
        "sample_weight": held.weight,
        "model": "auto" if schema is None else quick_model(model.prevalence),
    }
