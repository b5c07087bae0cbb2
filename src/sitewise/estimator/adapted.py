"""A model adapted to one site: predictions for each row, and the site's prevalence with its interval."""

import copy
import os
import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import numpy as np
import pandas as pd
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils import Tags, get_tags
from torch import Tensor

from sitewise.adaptation import PrevalenceEstimate
from sitewise.adaptation.joint import JointEstimate
from sitewise.adaptation.posterior.known import Known
from sitewise.arrays import in_stretches, view_tensor
from sitewise.diagnosis import Diagnosis, Finding, Outcome
from sitewise.diagnosis.outcome import failed_check, follows
from sitewise.diagnosis.result import conclude
from sitewise.estimator.at_site.diagnosing import check_site, checked_without_z, shift_by_column
from sitewise.estimator.at_site.evaluating import evaluate_site
from sitewise.estimator.at_site.label_draws import drawn_rows
from sitewise.estimator.at_site.outcome import rehearsed_breaches, site_outcome
from sitewise.estimator.at_site.reporting import report_content
from sitewise.estimator.at_site.sets import WeightedRows, predict_sets, weighted_rows
from sitewise.estimator.at_site.showing import site_html, site_text
from sitewise.estimator.at_site.updating import update
from sitewise.estimator.at_site.watching import watch
from sitewise.estimator.source.reading import split_confounders
from sitewise.estimator.source.regions import in_regions
from sitewise.estimator.without_z.predicting import lacking, with_joint
from sitewise.monitoring import ALARM_LEVEL
from sitewise.partitions import is_dask, map_rows
from sitewise.performance import (
    Evaluation,
    ExpectedPerformance,
    LabelSample,
    PredictionSets,
    Subgroup,
    ThresholdChoice,
    clinical_performance,
    decision_curve,
)
from sitewise.performance.choice import choose_threshold
from sitewise.performance.expected import DrawnRows, Expected, summarize
from sitewise.performance.expected_clinical import THRESHOLDS
from sitewise.performance.metrics import decide
from sitewise.performance.others import judged_instead
from sitewise.performance.sampling import draw_sample
from sitewise.performance.subgroups import subgroups
from sitewise.posterior import combine
from sitewise.prevalence import SitePrior
from sitewise.report.page.render import write_report
from sitewise.rows import ScoredRows
from sitewise.uncertainty import stretched

if TYPE_CHECKING:
    from sitewise.estimator.model import SiteModel


NOT_FITTED = (
    "fit: an adapted classifier is made by adapt() and not fitted to labels; for scikit-learn tools that call fit "
    "(cross-validation, voting), wrap it: FrozenEstimator(here)"
)
SAMPLE_ONLY = (
    "{call} needs every row that was passed to adapt; of this site's {total} rows, which were in Dask partitions, "
    "{kept} are kept: adapt again with all of them"
)
LEAST_TRUST = 1e-4  # the smallest weight of the rows; with it the interval is almost [0, 1]


class AdaptedClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A model adapted to one site, returned by `GPAClassifier.adapt` and `PrevalenceAdjuster.adapt`.

    It is a fitted scikit-learn classifier. scikit-learn's display classes, `permutation_importance` and
    `FrozenEstimator` accept it, and `clone` returns it unchanged. There are two ways to pass confounders z: as
    `sample_confounder` (also by scikit-learn's metadata routing), or as columns of X, which `confounder_columns` names.
    The original model is not changed and can be adapted to other sites.

    Parameters
    ----------
    model : GPAClassifier or PrevalenceAdjuster
        The fitted model.
    estimate : PrevalenceEstimate
        The estimated prevalence g of the site.
    rows : ScoredRows
        The site's rows: log f, codes of z, weights, groups, known labels and, for some rows, features. The inputs X are
        not kept.
    policy : {"auto", "as trained", "rows"}
        How far the site's rows are trusted, see `GPAClassifier.adapt`.
    level_scale : float, optional
        The prior scale of the difference in prevalence between the training sites and this site, see
        `GPAClassifier.adapt`.
    confounder_columns : list, optional
        The columns of X that hold z, used when `sample_confounder` is not given: column names of a DataFrame, or column
        indices of an array. None: z is read from `sample_confounder` only.
    known_prevalence : Known, optional
        The known prevalence that was given to `adapt`.
    joint : JointEstimate, optional
        The joint distribution P(z, y) of the site, with which rows that lack values of z are predicted. None: these
        rows are predicted by knockout.

    Attributes
    ----------
    classes_ : ndarray of shape (K,)
        The classes, in order.
    threshold_ : float or None
        For two classes: `predict` returns the second class if its probability reaches this threshold. None: the most
        probable class.
    site_name : str or None
        The name of the site in reports. None: "New site".

    Examples
    --------
    >>> here = model.adapt(frame, confounder_columns=["age", "sex"])
    >>> RocCurveDisplay.from_estimator(here, frame_test, y_test)
    """

    # Metadata that scikit-learn passes to these methods.
    __metadata_request__predict: ClassVar = {"sample_confounder": True}
    __metadata_request__predict_proba: ClassVar = {"sample_confounder": True}
    __metadata_request__score: ClassVar = {"sample_confounder": True}

    site_name: str | None = None
    n_rows_: int | None = None  # the number of rows in Dask partitions, of which `rows` is a sample; None without Dask
    mean_probability_: Tensor | None = None  # (K,) the mean prediction for all rows in partitions
    joint: JointEstimate | None = None
    confounder_columns: Any = None  # class-level default, for sites saved before this setting existed
    level_scale: float | None = None
    known_prevalence: Known | None = None
    _outcome: Outcome | None = None

    def __init__(
        self,
        model: "SiteModel",
        estimate: PrevalenceEstimate,
        rows: ScoredRows,
        policy: str = "auto",
        level_scale: float | None = None,
        confounder_columns: Any = None,
        known_prevalence: Known | None = None,
        joint: JointEstimate | None = None,
    ) -> None:
        self.model = model
        self.estimate = estimate
        self.rows = rows
        self.classes_ = model.classes_
        self.threshold_: float | None = None
        self.policy = policy
        self.level_scale = level_scale
        self.confounder_columns = confounder_columns
        self.known_prevalence = known_prevalence
        self.joint = joint
        self._diagnosis: Diagnosis | None = None  # the checks of the rows; `diagnose` adds the outcome

    # Predictions.

    def predict_proba(self, X: Any, sample_confounder: Any = None) -> Any:
        """Predict P(y|x,z) at this site. Each row is predicted independently of the other rows.

        Parameters
        ----------
        X : array-like of shape (n, d) or (n, C, H, W)
            Rows in the same format as for `fit`.
        sample_confounder : DataFrame or array-like of shape (n, V), optional
            The confounders z of the rows; missing values are allowed.

        Returns
        -------
        ndarray of shape (n, K)
            Probabilities, a column for each class; a tensor if X is a tensor, a Dask collection if X is one.
        """
        if is_dask(X):
            return map_rows(self.predict_proba, X, sample_confounder, columns=self.classes_.tolist())
        probability = self.probability_of(*self._scored(X, sample_confounder))
        return probability.to(X.device) if isinstance(X, Tensor) else probability.numpy()

    def _scored(self, X: Any, Z: Any) -> tuple[Tensor, Tensor]:
        """Return log f (n, K) and codes of z (n, V) of rows; if the joint model is used, it scores rows that lack z."""
        X, Z = split_confounders(X, Z, self.confounder_columns, self.model)
        inputs = self.model.inputs_of(X)
        codes = self.model.codes_of(Z, len(inputs))
        log_ratio = self.model.calibrated_log_ratio(inputs, codes)
        return with_joint(self.model, self.joint_in_use, inputs, codes, log_ratio), codes

    def probability_of(self, log_ratio: Tensor, codes: Tensor) -> Tensor:
        """Return P(y|x,z) of rows at this site, (n, K), from calibrated log f."""
        if self.predicts_as_trained:
            return combine(log_ratio, self.model.pooled_prevalence_.log_prob(codes)).exp()
        probability = in_stretches(self.estimate_in_use.average, log_ratio, codes)
        kept = in_regions(codes, self.model.unsupported_)
        joint = self.joint_in_use
        if joint is not None:
            own = lacking(self.model, codes)
            marginal = joint.weights.sum(0).cpu().clamp_min(1e-300).log()
            probability = torch.where(own[:, None], combine(log_ratio, marginal).exp(), probability)
            kept = kept & ~own
        if not kept.any():
            return probability
        return torch.where(
            kept[:, None], combine(log_ratio, self.model.pooled_prevalence_.log_prob(codes)).exp(), probability
        )

    def adjust(self, log_ratio: Any, sample_confounder: Any = None) -> Any:
        """Compute P(y|x,z) at this site from log f, without running the model again.

        The result is that of `predict_proba`, with one exception: if `missing` is "joint", rows that lack values of z
        get other probabilities, because the joint model needs the inputs X.

        Parameters
        ----------
        log_ratio : array-like of shape (n, K)
            The result of the model's `log_ratio` for the rows.
        sample_confounder : DataFrame or array-like of shape (n, V), optional
            The confounders z that were given to `log_ratio`.

        Returns
        -------
        ndarray of shape (n, K)
            Probabilities, a column for each class; a Dask collection if log_ratio is one.
        """
        if is_dask(log_ratio):
            return map_rows(self.adjust, log_ratio, sample_confounder, columns=self.classes_.tolist())
        ratios = view_tensor(log_ratio).double().cpu()
        codes = self.model.codes_of(sample_confounder, len(ratios))
        return self.probability_of(ratios, codes).numpy()

    def predict(self, X: Any, sample_confounder: Any = None) -> Any:
        """Predict the class of each row.

        Parameters
        ----------
        X : array-like of shape (n, d) or (n, C, H, W)
            Rows in the same format as for `fit`.
        sample_confounder : DataFrame or array-like of shape (n, V), optional
            The confounders z of the rows; missing values are allowed.

        Returns
        -------
        ndarray of shape (n,)
            The most probable class of each row. If `threshold_` is set: the second class where its probability is at or
            above the threshold, otherwise the first. A Dask collection if X is one.
        """
        if is_dask(X):
            return map_rows(self.predict, X, sample_confounder, columns=None, dtype=self.classes_.dtype)
        return self.classes_[decide(np.asarray(self.predict_proba(X, sample_confounder)), self.threshold_)]

    def score(self, X: Any, y: Any, sample_confounder: Any = None, sample_weight: Any = None) -> float:
        """Return the accuracy of `predict`, for scikit-learn's model selection.

        Parameters
        ----------
        X : array-like of shape (n, d) or (n, C, H, W)
            Rows in the same format as for `fit`.
        y : array-like of shape (n,)
            The labels of the rows.
        sample_confounder : DataFrame or array-like of shape (n, V), optional
            The confounders z of the rows.
        sample_weight : array-like of shape (n,), optional
            Weights of the rows.

        Returns
        -------
        float
            The share of correct predictions.
        """
        return float(accuracy_score(y, self.predict(X, sample_confounder), sample_weight=sample_weight))

    def fit(self, X: Any, y: Any = None) -> NoReturn:
        """Raise TypeError: an adapted classifier is made by `adapt`. scikit-learn requires that the method exists.

        Parameters
        ----------
        X : object
            Not used.
        y : object
            Not used.
        """
        raise TypeError(NOT_FITTED)

    @property
    def missing(self) -> str:
        """How rows that lack some or all values of z are predicted at this site.

        Returns
        -------
        str
            "joint": from the site's joint distribution P(z, y). "knockout": f is computed from x and the known values
            of z.
        """
        return "knockout" if self.joint_in_use is None else "joint"

    # The prevalence.

    def prevalence(self, Z: Any = None) -> Any:
        """Return the estimated prevalence of each class.

        Parameters
        ----------
        Z : DataFrame or array-like of shape (n, V), optional
            Values of the confounders, a row for each P(Y|Z) to be returned.

        Returns
        -------
        ndarray of shape (K,) or (n, K)
            P(Y) of the site: the mean prediction for the rows that were passed to `adapt`. With `Z`: P(Y|Z) for each
            row of `Z`.
        """
        if Z is None:
            return self._mean_probability.numpy()
        return self.log_prevalence_at(self._codes(Z)).exp().numpy()

    @property
    def _mean_probability(self) -> Tensor:
        """The weighted mean of the predictions for the rows that were passed to `adapt`, (K,).

        For rows in Dask partitions, `adapt_log_ratio` computed the mean over all rows. If a check fails afterwards, it
        is the mean over the sample of rows that the site keeps.
        """
        if self.mean_probability_ is not None and (self.policy == "as trained" or not self.ignores_rows):
            return self.mean_probability_
        return self.rows_in_use.weighted_mean(self.probability_of(self.rows_in_use.log_ratio, self.rows_in_use.codes))

    def prevalence_interval(self, Z: Any = None, level: float = 0.95) -> tuple[Any, Any]:
        """Return an interval for the prevalence of each class in the site's population.

        The interval of P(Y) always contains `prevalence()`. If the rows are not used (see `outcome`), the interval
        comes from the prior, which is based on the differences between training sites. Where f is not identified (at a
        category of z in which some class never occurred in training), the training prevalence is kept. The interval of
        P(Y|Z) then has width zero, but this does not mean that P(Y|Z) is certain.

        Parameters
        ----------
        Z : DataFrame or array-like of shape (n, V), optional
            Values of the confounders, a row for each interval of P(Y|Z).
        level : float
            The confidence level of the interval.

        Returns
        -------
        low, high : ndarray of shape (K,) or (n, K)
            The bounds for P(Y); with `Z`, the bounds for P(Y|Z).
        """
        if Z is None:
            joint = self.joint_in_use
            low, high = (np.asarray(bound) for bound in (joint or self.estimate_in_use).interval(level=level))
            low, high = (self._mix(b) if joint is None else self._stretched(b, level) for b in (low, high))
            reported = self.prevalence()
            return np.minimum(low, reported), np.maximum(high, reported)
        low, high = (np.array(bound) for bound in self.estimate_in_use.interval(Z, level=level))
        codes = self._codes(Z)
        kept = in_regions(codes, self.model.unsupported_).numpy()
        low[kept] = high[kept] = self.log_prevalence_at(codes).exp().numpy()[kept]
        return low, high

    def _mix(self, outside: Any) -> Any:
        """Return the average over all rows of `outside` where f is identified and the training prevalence elsewhere."""
        kept = self.rows.take(~self.rows.supported)
        if not len(kept):
            return outside
        share = float(kept.weights.sum() / self.rows.weights.sum())
        inside = kept.weighted_mean(self.model.pooled_prevalence_.log_prob(kept.codes).exp()).numpy()
        return (1 - share) * outside + share * inside

    def _stretched(self, bound: Any, level: float) -> Any:
        """Widen a bound of the joint model's P(Y) for the error of f, for errors in the rehearsal, and for groups."""
        rows, prior = self.rows, self.model.prior_of(self.policy)
        n_rows = float(len(rows) if rows.weight is None else rows.weight.sum())
        alike = 1.0
        if rows.groups is not None:
            sizes = torch.bincount(rows.groups, rows.weight).double()
            alike = float(sizes.square().sum() / sizes.sum())
        stretch = (max(alike, 1.0) / max(prior.tempering(n_rows), LEAST_TRUST)) ** 0.5
        error = NormalDist().inv_cdf(0.5 + level / 2) * prior.level_error
        middle = torch.as_tensor(np.asarray(self.joint.marginal))  # type: ignore[union-attr]
        return stretched(torch.as_tensor(bound), middle, stretch, error).numpy()

    def log_prevalence_at(self, codes: Tensor) -> Tensor:
        """Return log g(z) at this site, (n, K); the training g is kept where f is not identified (equation 12)."""
        if self.predicts_as_trained:
            return self.model.pooled_prevalence_.log_prob(codes)
        here = in_stretches(self.estimate_in_use.prevalence.log_prob, codes)
        kept = in_regions(codes, self.model.unsupported_)
        if not kept.any():
            return here
        return torch.where(kept[:, None], self.model.pooled_prevalence_.log_prob(codes), here)

    def _codes(self, Z: Any) -> Tensor:
        if self.model.confounders_ is None:
            raise ValueError("Z is given, but the model was trained without confounders")
        return self.model.confounders_.encode(Z)[0]

    # The outcome, the checks, and the estimate that all results come from.

    @property
    def outcome(self) -> Outcome:
        """The outcome: what was done at this site, and why.

        Returns
        -------
        Outcome
            A string ("adapted", "partly adapted" or "as trained") with the attributes `sentence`, `reason` and `risk`,
            which explain it.
        """
        if self._outcome is None:
            self._outcome = site_outcome(self, self._failed_check)
        return self._outcome

    def diagnose(self) -> Diagnosis:
        """Check whether adapting is safe at this site. The checks are computed once and kept.

        Returns
        -------
        Diagnosis
            The outcome, the findings of all checks with their numbers and advice, and the verdict that follows from
            both.
        """
        outcome, findings = self.outcome, self.checks.findings
        return Diagnosis(follows(outcome, outcome.reason, self._failed_check, findings), findings, outcome)

    @property
    def checks(self) -> Diagnosis:
        """The result of the checks of the rows, without the outcome; computed once."""
        if self._diagnosis is None:
            self._diagnosis = check_site(self)
        return self._diagnosis

    @property
    def _failed_check(self) -> str | None:
        """The name of the first check of the assumption that fails here; None if none fails.

        A check fails if its finding is "stop" and the violation is larger than at every rehearsed site. If the joint
        model is used and the checks use rows without z, no check fails: a difference may then come from the estimated z
        and not from P(x|y,z).
        """
        if self.joint is not None and checked_without_z(self):
            return None
        return failed_check(self.checks.findings, rehearsed_breaches(self.model))

    @property
    def ignores_rows(self) -> bool:
        """Whether the unlabeled rows are not used at all: policy "as trained", or a check of the assumption failed."""
        return self.policy == "as trained" or (self.policy == "auto" and self._failed_check is not None)

    @property
    def predicts_as_trained(self) -> bool:
        """Whether predictions are those of the model without adaptation.

        This is the case if the policy is "as trained". With policy "auto", it is the case if the rows are not trusted,
        no labels, no known prevalence and no `level_scale` were given, and predictions averaged over the prior were not
        better than those of the model as trained at rehearsed sites.
        """
        if self.policy != "auto":
            return self.policy == "as trained"
        if self.rows.y is not None or self.known_prevalence is not None or self.level_scale is not None:
            return False
        prior = self.site_prior
        return prior is not None and not prior.trusted_rows and not prior.averaged

    @property
    def joint_in_use(self) -> JointEstimate | None:
        """The joint P(z, y) that predicts rows that lack z; None if they are predicted by knockout or as trained."""
        return None if self.ignores_rows or self.predicts_as_trained else self.joint

    @property
    def estimate_in_use(self) -> PrevalenceEstimate:
        """The estimate of g that all results about the site come from."""
        joint_set_aside = self.rows_in_use is not self.rows
        return self.estimate_without_rows if self.ignores_rows or joint_set_aside else self.estimate

    @cached_property
    def estimate_without_rows(self) -> PrevalenceEstimate:
        """The posterior of g without this site's unlabeled rows.

        If there are no labels and no known prevalence, its mean prediction is that of the model as trained.
        """
        prior = replace(self.model.prior_of("auto", self.level_scale), trusted_rows=0.0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # `adapt` has already warned about these rows
            rows = self.rows.by_knockout()
            return self.model.estimate_rows(rows, prior=prior, known=self.known_prevalence)

    @property
    def site_prior(self) -> SitePrior | None:
        """The prior of this site, which includes how many of its rows are trusted; None for policy "rows"."""
        if self.policy == "rows":
            return None
        prior = self.model.prior_of(self.policy, self.level_scale)
        return replace(prior, trusted_rows=0.0) if self.ignores_rows else prior

    @property
    def rows_in_use(self) -> ScoredRows:
        """The site's rows with the log f of its predictions: by the joint model for rows that lack z, if it is used."""
        return self.rows.by_knockout() if self.joint_in_use is None else self.rows

    def unchecked(self) -> "AdaptedClassifier":
        """Return a copy of this site without its checks.

        Returns
        -------
        AdaptedClassifier
            A copy that trusts its rows as far as `policy` and rehearsal allow, whatever the checks of this site find.
        """
        return self.with_checks(())

    def with_checks(self, findings: Sequence[Finding]) -> "AdaptedClassifier":
        """Return a copy of the site with these findings in place of its checks; the outcome is decided again."""
        other = copy.copy(self)
        other._diagnosis, other._outcome = conclude(tuple(findings)), None
        return other

    def shift_by_column(self, columns: pd.DataFrame | None = None) -> pd.DataFrame:
        """Test for each column, without labels, whether the shift of P(y|z) from training varies along it.

        Parameters
        ----------
        columns : DataFrame, optional
            The columns to test, with a row for each row that was passed to `adapt`, in the same order. None: the
            confounders.

        Returns
        -------
        DataFrame
            The results of a score test for each tested column, a row each, the smallest p-value first: `statistic`,
            `freedom` (degrees of freedom) and `p_value`. The null hypothesis is that the log-odds of y given z differ
            from those of training by the same amount at all values of the tested column.
        """
        return shift_by_column(self, columns)

    # Performance.

    @cached_property
    def drawn_rows(self) -> DrawnRows:
        """The rows of `adapt`, each with the estimated distribution of its label, for expected performance."""
        return drawn_rows(self)

    def expected_performance(
        self, y_pred: Any = None, proba: Any = None, *, level: float = 0.95, threshold: float | None = None
    ) -> ExpectedPerformance:
        """Estimate the performance on the rows that were passed to `adapt`, without labels.

        By default, the performance of this model is estimated. If `y_pred` or `proba` is given, the performance of the
        model that gave them is estimated. With `y_pred` alone, metrics of probabilities are undefined (None). A site
        with more than 30,000 rows is represented by 30,000 of its rows, evenly spaced.

        Parameters
        ----------
        y_pred : array-like of shape (n,), optional
            Classes predicted by another model or rule, in the order of the rows that were passed to `adapt`.
        proba : array-like of shape (n, K) or (n,), optional
            Probabilities given by another model, in the same order. With shape (n,): the probability of the second of
            two classes.
        level : float
            The confidence level of the intervals.
        threshold : float, optional
            For two classes: rows whose probability of the second class is at or above the threshold are classified as
            that class. None: the `threshold_` of this model, if it has one and no other model is evaluated; otherwise
            each row is classified as its most probable class.

        Returns
        -------
        ExpectedPerformance
            The estimate of each metric with its interval: (estimate, low, high).

        Examples
        --------
        >>> here.expected_performance()["auroc"]
        """
        classes = tuple(self.classes_.tolist())
        ours = y_pred is None and proba is None
        rows = judged_instead(self.drawn_rows, classes, y_pred, proba)
        return summarize(rows, classes, self.threshold_ if ours and threshold is None else threshold, level)

    def clinical_performance(
        self,
        y_pred: Any = None,
        proba: Any = None,
        *,
        threshold: float | None = None,
        specificity: float = 0.9,
        level: float = 0.95,
    ) -> dict[str, Expected]:
        """Estimate clinical metrics on the rows that were passed to `adapt`, without labels; for two classes.

        The metrics are net benefit, calibration in the large, calibration slope, the ratio of observed to expected
        cases (O:E), the sensitivity at a given specificity, and the number needed to evaluate. See
        `sitewise.performance.clinical_performance`.

        Parameters
        ----------
        y_pred : array-like of shape (n,), optional
            Classes predicted by another model, as in `expected_performance`.
        proba : array-like of shape (n, K) or (n,), optional
            Probabilities given by another model, as in `expected_performance`.
        threshold : float, optional
            Rows whose probability of the second class is at or above the threshold are called positive. None: the
            `threshold_` of this model, if it has one and no other model is evaluated; otherwise 0.5.
        specificity : float
            The smallest allowed specificity. The estimated sensitivity is the highest one that is possible with it.
        level : float
            The confidence level of the intervals.

        Returns
        -------
        dict of str to Expected
            The estimate of each metric with its interval: (estimate, low, high).
        """
        rows = judged_instead(self.drawn_rows, tuple(self.classes_.tolist()), y_pred, proba)
        ours = y_pred is None and proba is None
        chosen = self.threshold_ if ours and threshold is None else threshold
        return clinical_performance(rows, threshold=chosen, specificity=specificity, level=level)

    def decision_curve(
        self, y_pred: Any = None, proba: Any = None, *, thresholds: Any = None, level: float = 0.95
    ) -> pd.DataFrame:
        """Estimate the net benefit at each threshold (decision curve analysis), without labels; for two classes.

        Parameters
        ----------
        y_pred : array-like of shape (n,), optional
            Classes predicted by another model, as in `expected_performance`.
        proba : array-like of shape (n, K) or (n,), optional
            Probabilities given by another model, as in `expected_performance`.
        thresholds : array-like, optional
            The thresholds. None: 0.01, 0.02, ..., 0.99.
        level : float
            The confidence level of the intervals.

        Returns
        -------
        DataFrame
            A row for each threshold: the net benefit if patients are treated by the predictions, if all are treated,
            and if none is treated. The columns are those of `sitewise.performance.decision_curve`.
        """
        rows = judged_instead(self.drawn_rows, tuple(self.classes_.tolist()), y_pred, proba)
        return decision_curve(rows, THRESHOLDS if thresholds is None else thresholds, level=level)

    def subgroups(
        self,
        by: Any,
        *,
        bands: Any = None,
        y_pred: Any = None,
        proba: Any = None,
        threshold: float | None = None,
        level: float = 0.95,
    ) -> list[Subgroup]:
        """Estimate prevalence, performance and calibration in subgroups of the rows that were passed to `adapt`.

        No labels are needed.

        Parameters
        ----------
        by : str, list of str, Series, DataFrame or array-like of shape (n,)
            The columns that define the subgroups: names of confounders, or the values of any columns, in the order of
            the rows that were passed to `adapt`. Each column defines subgroups of its own.
        bands : sequence of float, or dict of such sequences by column, optional
            The edges between the groups of a numeric column. None: its quartiles; if it has at most four distinct
            values, a group for each value.
        y_pred : array-like of shape (n,), optional
            Classes predicted by another model, as in `expected_performance`.
        proba : array-like of shape (n, K) or (n,), optional
            Probabilities given by another model, as in `expected_performance`.
        threshold : float, optional
            The threshold of the decisions, as in `expected_performance`.
        level : float
            The confidence level of the intervals.

        Returns
        -------
        list of Subgroup
            A `Subgroup` for each group of each column.
        """
        classes = tuple(self.classes_.tolist())
        rows = judged_instead(self.drawn_rows, classes, y_pred, proba)
        ours = y_pred is None and proba is None
        chosen = self.threshold_ if ours and threshold is None else threshold
        return subgroups(rows, classes, by, bands=bands, threshold=chosen, level=level)

    def choose_threshold(
        self, *, sensitivity: float | None = None, harm_to_benefit: float | None = None, level: float = 0.95
    ) -> ThresholdChoice:
        """Choose a threshold for two classes. `predict` uses it from now on; set `threshold_ = None` to undo this.

        Give `sensitivity` or `harm_to_benefit`, but not both. Without them, the threshold with the highest expected F1
        is chosen.

        Parameters
        ----------
        sensitivity : float, optional
            The required sensitivity. The highest threshold with at least this expected sensitivity is chosen.
        harm_to_benefit : float, optional
            The harm of one false positive, divided by the benefit of one true positive. The threshold with the highest
            expected net benefit is chosen. With 0.25, the harm of four false positives equals the benefit of one true
            positive; the threshold is then about 0.2.
        level : float
            The confidence level of the intervals.

        Returns
        -------
        ThresholdChoice
            The threshold, with the expected performance at this threshold.
        """
        classes = tuple(self.classes_.tolist())
        choice = choose_threshold(
            self.drawn_rows, classes, sensitivity=sensitivity, harm_to_benefit=harm_to_benefit, level=level
        )
        self.threshold_ = choice.threshold
        return choice

    @cached_property
    def weighted_rows(self) -> tuple[WeightedRows, WeightedRows]:
        """Held-out labeled rows weighted to this site, for prediction sets."""
        return weighted_rows(self)

    def predict_set(
        self, X: Any, sample_confounder: Any = None, *, coverage: float = 0.9, by_class: bool = False
    ) -> PredictionSets:
        """Predict for each row a set of classes, which contains its true class with probability `coverage`.

        This is weighted conformal prediction. Labeled rows that were held out in training are weighted to match this
        site's P(y, z). The weighted rows determine the lowest probability with which a class is included in a set. As
        for all predictions at a site, P(x|y,z) must be the same as in training; otherwise the coverage may be lower.

        Parameters
        ----------
        X : array-like of shape (n, d) or (n, C, H, W)
            Rows in the same format as for `fit`.
        sample_confounder : DataFrame or array-like of shape (n, V), optional
            The confounders z of the rows; missing values are allowed.
        coverage : float
            The required probability, between 0 and 1.
        by_class : bool
            Whether the coverage must hold for the rows of each true class, and not only on average over all rows.

        Returns
        -------
        PredictionSets
            The sets, with the effective number of held-out rows from which they were computed.
        """
        log_ratio, codes = self._scored(X, sample_confounder)
        return predict_sets(self, self.probability_of(log_ratio, codes), codes, coverage, by_class)

    def sample(self, n: int, *, random_state: int = 0) -> LabelSample:
        """Draw rows to be labeled from the rows that were passed to `adapt`, stratified by prediction and z.

        Parameters
        ----------
        n : int
            The number of rows to draw.
        random_state : int
            Seed.

        Returns
        -------
        LabelSample
            The indices of the drawn rows (`rows`), and their weights for `evaluate` (`weight`). A mean over the sample
            with these weights is an estimate of the mean over all rows.

        Examples
        --------
        >>> sample = here.sample(50)
        >>> here.evaluate(X[sample.rows], y, Z.iloc[sample.rows], sample_weight=sample.weight)
        """
        if self.n_rows_ is not None:
            raise ValueError(SAMPLE_ONLY.format(call="sample", total=self.n_rows_, kept=len(self.rows)))
        schema = self.model.confounders_
        z = pd.DataFrame(index=range(len(self.rows))) if schema is None else schema.decode(self.rows.codes)
        probability = self.probability_of(self.rows.log_ratio, self.rows.codes).numpy()
        return draw_sample(probability, z, n, seed=random_state)

    def evaluate(
        self,
        X: Any,
        y: Any,
        sample_confounder: Any = None,
        *,
        groups: Any = None,
        sample_weight: Any = None,
        level: float = 0.95,
        n_resamples: int = 200,
    ) -> Evaluation:
        """Evaluate this model on labeled rows of the site, and compare it with the model as trained.

        The model as trained is evaluated three times: unchanged; with its intercept recalibrated with these labels; and
        with its intercept and slope recalibrated. Recalibration is cross-fitted: each row is recalibrated by a fit to
        other rows.

        Parameters
        ----------
        X : array-like of shape (n, d) or (n, C, H, W)
            Rows of the site: those that were passed to `adapt`, or others.
        y : array-like of shape (n,)
            Labels; rows without a label (NaN, None) are left out.
        sample_confounder : DataFrame or array-like of shape (n, V), optional
            The confounders z of the rows.
        groups : array-like of shape (n,), optional
            The patient (or other group) of each row. Bootstrap intervals resample whole patients. The rows of a patient
            are recalibrated with labels of other patients only.
        sample_weight : array-like of shape (n,), optional
            Weights of the rows, for example those that `sample` returned.
        level : float
            The confidence level of the bootstrap intervals.
        n_resamples : int
            The number of bootstrap resamples.

        Returns
        -------
        Evaluation
            The metrics, with intervals, of the adapted model, the model as trained and its two recalibrations.
        """
        return evaluate_site(self, X, y, sample_confounder, groups, sample_weight, level, n_resamples)

    # More rows of the site.

    def update(
        self, X: Any, sample_confounder: Any = None, y: Any = None, groups: Any = None, sample_weight: Any = None
    ) -> "AdaptedClassifier":
        """Adapt again with more rows of the site. This object is unchanged.

        The prevalence and the checks are computed from earlier and new rows together, as if `adapt` were called with
        all of them. The threshold and the arguments of `adapt` are kept, such as the policy. The joint distribution
        P(z, y) is not estimated again, and the choice between the joint model and knockout stays the same: both would
        need the inputs X of the earlier rows, which are not stored. To compute them again, call `adapt` with all rows.

        Parameters
        ----------
        X : array-like of shape (n, d) or (n, C, H, W)
            The additional rows.
        sample_confounder : DataFrame or array-like of shape (n, V), optional
            The confounders z of the rows.
        y : array-like of shape (n,), optional
            Known labels; NaN or None for rows without a label.
        groups : array-like of shape (n,), optional
            The patient (or other group) of each additional row. A patient of these rows never counts as the same as a
            patient of earlier rows, even if the name is the same.
        sample_weight : array-like of shape (n,), optional
            Weights of the rows.

        Returns
        -------
        AdaptedClassifier
            The model adapted to all rows.
        """
        if self.n_rows_ is not None:
            raise ValueError(SAMPLE_ONLY.format(call="update", total=self.n_rows_, kept=len(self.rows)))
        X, sample_confounder = split_confounders(X, sample_confounder, self.confounder_columns, self.model)
        return update(self, X, sample_confounder, y, groups, sample_weight)

    def monitor(
        self,
        X: Any,
        time: Any,
        sample_confounder: Any = None,
        *,
        window: int | str,
        groups: Any = None,
        sample_weight: Any = None,
        level: float = 0.95,
        alarm_level: float = ALARM_LEVEL,
    ) -> pd.DataFrame:
        """Estimate the prevalence of new rows in time windows, with an alarm if the stability check finds a difference.

        Parameters
        ----------
        X : array-like of shape (n, d) or (n, C, H, W)
            New rows, in any order.
        time : array-like of shape (n,)
            The date of each row, or a number that increases with time.
        sample_confounder : DataFrame or array-like of shape (n, V), optional
            The confounders z of the rows.
        window : int or str
            The length of a window: a number of rows, or a length of time such as "30D" if `time` has dates.
        groups : array-like of shape (n,), optional
            The patient (or other group) of each row. The stability check does not use groups.
        sample_weight : array-like of shape (n,), optional
            Weights of the rows. The stability check does not use weights.
        level : float
            The confidence level of the intervals.
        alarm_level : float
            The probability of at least one alarm in all windows if nothing changed.

        Returns
        -------
        DataFrame
            A row for each window that has rows, in order of time, for the second of two classes; with more classes, a
            row for each window and class. The columns are `time` (the middle of the window), `start`, `end`, `n` (the
            number of rows), `class`, `estimate` (of the prevalence), `low`, `high`, `p_value` (of the stability check)
            and `alarm`. Rows at which f is not identified (section 12 of docs/maths.md) are left out. The function
            `sitewise.report.timeline.timeline_figure` draws this table.
        """
        X, sample_confounder = split_confounders(X, sample_confounder, self.confounder_columns, self.model)
        settings = {"level": level, "alarm_level": alarm_level}
        return watch(self, X, time, sample_confounder, groups, sample_weight, window, **settings)

    # The report and folders.

    def rename(self, names: dict[str, str]) -> None:
        """Set texts of this site's reports, such as the name of the predicted condition.

        Parameters
        ----------
        names : dict of str to str
            The texts by name: "outcome_name" (the predicted condition, for example "sepsis"), "positive" (a name of the
            second of two classes), "intended_use" and "contact". They replace the texts of the model (`about_`) at this
            site only.
        """
        if names:
            self.model = copy.copy(self.model)
            self.model.about_ = {**self.model.about_, **names}
            self._outcome = None

    def report(
        self,
        path: str | os.PathLike[str],
        *,
        site: str | None = None,
        level: float = 0.95,
        subgroups: Any = None,
        bands: Any = None,
    ) -> Path:
        """Write the site's report: one HTML page without external files, and the same content as JSON next to it.

        Parameters
        ----------
        path : path
            The path of the page, such as "report.html". The JSON file has the same name with the ending ".json".
        site : str, optional
            The name of the site on the page. None: `site_name`.
        level : float
            The confidence level of the intervals.
        subgroups : str, list of str, Series, DataFrame or array-like, optional
            The columns that define the subgroups of the page, as the argument `by` of the method `subgroups`. None: the
            first six confounders that are numbers or have at most 12 categories.
        bands : sequence of float, or dict of such sequences by column, optional
            The edges between the groups of a numeric column, as in the method `subgroups`.

        Returns
        -------
        Path
            The path of the page.
        """
        content = report_content(self, site or self.site_name or "New site", level, subgroups=subgroups, bands=bands)
        return write_report(content, path)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save this site as a folder, with its model inside. `sitewise.load` reads it.

        The folder contains the data of the site's rows (log f, z, known labels and others), but not their inputs X. It
        is written completely or not at all. An earlier saved model at the same path is replaced; any other existing
        file or folder raises an error.

        Parameters
        ----------
        path : path
            The folder.
        """
        from sitewise.estimator.files.saving import save

        save(self, path)

    def export_onnx(self, path: str | os.PathLike[str], *, dtype: str = "auto") -> Path:
        """Write `predict_proba` as an ONNX graph, and check it with onnxruntime. This needs `sitewise[onnx]`.

        The inputs of the graph are "x" and, if there are confounders, "z" of shape (n, V) in float64. In "z", a number
        is given unchanged, a category is given as its index in the list of categories, and NaN means missing. The
        output is "probability", (n, K). The metadata of the graph contain the categories, the classes and the
        threshold.

        Parameters
        ----------
        path : path
            The path of the file, such as "site.onnx".
        dtype : {"auto", "float32", "float64", "uint8"}
            The type of "x". "auto": bytes (uint8) for images, float32 otherwise.

        Returns
        -------
        Path
            The path of the file.
        """
        from sitewise.estimator.files.exporting import export_onnx

        export_onnx(self, path, dtype)
        return Path(path)

    def __repr__(self) -> str:
        return site_text(self)

    def _repr_html_(self) -> str:
        return site_html(self)

    # Methods that scikit-learn requires.

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_clone__(self) -> "AdaptedClassifier":
        return self

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags = get_tags(self.model).input_tags
        return tags
