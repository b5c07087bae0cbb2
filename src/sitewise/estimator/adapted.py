"""A model adapted to one site: predictions row by row, and the site's prevalence with its interval."""

import copy
import os
import warnings
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
from sitewise.adaptation.known import Known
from sitewise.arrays import in_stretches
from sitewise.diagnosis import Diagnosis, Outcome, conclude, failed_check, follows
from sitewise.estimator.at_site.believing import believed_rows
from sitewise.estimator.at_site.diagnosing import diagnose
from sitewise.estimator.at_site.evaluating import evaluate_site
from sitewise.estimator.at_site.outcome import rehearsed_breaches, site_outcome
from sitewise.estimator.at_site.reporting import report_content
from sitewise.estimator.at_site.sets import WeightedRows, predict_sets, weighted_rows
from sitewise.estimator.at_site.shifting import shift_by_column
from sitewise.estimator.at_site.showing import site_html, site_text
from sitewise.estimator.at_site.updating import estimate_rows, update
from sitewise.estimator.at_site.watching import watch
from sitewise.estimator.source.columns import split_confounders
from sitewise.estimator.source.regions import in_regions
from sitewise.estimator.without_z.predicting import lacking, with_joint
from sitewise.monitoring import ALARM_LEVEL
from sitewise.partitions import is_dask, map_rows
from sitewise.performance import (
    THRESHOLDS,
    BelievedRows,
    Evaluation,
    Expected,
    ExpectedPerformance,
    LabelSample,
    PredictionSets,
    Subgroup,
    ThresholdChoice,
    choose_threshold,
    clinical_performance,
    decide,
    decision_curve,
    draw_sample,
    judged_instead,
    subgroups,
    summarize,
)
from sitewise.posterior import combine
from sitewise.prevalence import SitePrior
from sitewise.report.page import write_report
from sitewise.rows import ScoredRows
from sitewise.uncertainty import stretched

if TYPE_CHECKING:
    from sitewise.estimator.model import SiteModel


NOT_FITTED = (
    "fit: an adapted classifier is made by adapt() and not fitted to labels; where scikit-learn fits what it is given "
    "(cross-validation, voting), give it FrozenEstimator(here)"
)
SAMPLE_ONLY = (
    "{call} needs every row adapted on; of this site's {total} rows, which were in Dask partitions, {kept} are kept: "
    "adapt again with all of them"
)
LEAST_TRUST = 1e-4  # rows that are not believed at all leave an interval next to [0, 1]


class AdaptedClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """What `GPAClassifier.adapt` or `PrevalenceAdjuster.adapt` gives back; the model behind it serves other sites too.

    It is a scikit-learn classifier that is always fitted: displays, `permutation_importance` and `FrozenEstimator` take
    it as it is, and `clone` gives it back unchanged. Confounders come as `sample_confounder`, which metadata routing
    passes on, or stand among the columns of X, which `confounder_columns` names.

    Attributes
    ----------
    estimate : the `PrevalenceEstimate` of the site.
    rows : what is kept of the site's rows, `ScoredRows`: all of them, or a sample where they were in Dask partitions.
    classes_ : the classes, in order.
    policy : "auto", "as trained" or "rows": how far the site's rows are believed, see `adapt`.
    level_scale : how far the level of g may lie from the training sites', see `adapt`; None for what these show.
    threshold_ : P(y|x,z) of the second of two classes from which `predict` says it; None for the most probable class.
    site_name : what reports call the site; None for "New site".
    joint : the `JointEstimate` that predicts rows without all of z; None where knockout does (see `missing`).
    confounder_columns : the columns of X that are z where no `sample_confounder` is given: names of a frame's columns,
        numbers of an array's. The model gets the columns that it was fitted with. None: X holds no z.
    known_prevalence : the prevalence that `adapt` was told, None where it was not.

    Examples
    --------
    >>> here = model.adapt(frame, confounder_columns=["age", "sex"])
    >>> RocCurveDisplay.from_estimator(here, frame_test, y_test)
    """

    # What scikit-learn passes on to these methods where it is given.
    __metadata_request__predict: ClassVar = {"sample_confounder": True}
    __metadata_request__predict_proba: ClassVar = {"sample_confounder": True}
    __metadata_request__score: ClassVar = {"sample_confounder": True}

    site_name: str | None = None
    n_rows_: int | None = None  # of a site in partitions, which keeps a sample of them
    mean_probability_: Tensor | None = None  # (K,) of all its rows
    joint: JointEstimate | None = None
    confounder_columns: Any = None  # of sites that were saved before there were any
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
        self._diagnosis: Diagnosis | None = None  # of the rows alone: what `diagnose` says has the outcome too

    @property
    def missing(self) -> str:
        """How rows that lack z are predicted here: "joint", from the site's joint of z and y, or "knockout"."""
        return "knockout" if self.joint is None else "joint"

    @property
    def outcome(self) -> Outcome:
        """What was done here: "adapted", "partly adapted" or "as trained", with `sentence`, `reason` and `risk`."""
        if self._outcome is None:
            self._outcome = site_outcome(self, self._failed_check)
        return self._outcome

    def diagnose(self) -> Diagnosis:
        """The outcome, the verdict that follows from it, and every check with its number and advice (kept)."""
        outcome, findings = self.outcome, self.checks.findings
        return Diagnosis(follows(outcome, outcome.reason, self._failed_check, findings), findings, outcome)

    def rename(self, names: dict[str, str]) -> None:
        """Take other names for the outcome or the positive class, as `about_` of the model has them."""
        if names:
            self.model = copy.copy(self.model)
            self.model.about_ = {**self.model.about_, **names}
            self._outcome = None

    def unchecked(self) -> "AdaptedClassifier":
        """The same site without checks of the assumption: its rows are believed as far as the rehearsal allows."""
        other = copy.copy(self)
        other._diagnosis, other._outcome = conclude(()), None
        return other

    @property
    def checks(self) -> Diagnosis:
        """The checks of the rows, made once: what `diagnose` says without the outcome."""
        if self._diagnosis is None:
            self._diagnosis = diagnose(self)
        return self._diagnosis

    @property
    def _failed_check(self) -> str | None:
        """The check of the assumption that fails here beyond what rehearsed sites show, if any.

        It is about x given y and z: where z itself is estimated, by the joint, a difference may be z's.
        """
        if self.joint is not None:
            return None
        return failed_check(self.checks.findings, rehearsed_breaches(self.model))

    @property
    def stays_as_trained(self) -> bool:
        """Whether the rows are not believed at all: the policy says so, or a check of the assumption failed."""
        return self.policy == "as trained" or (self.policy == "auto" and self._failed_check is not None)

    @property
    def site_prior(self) -> SitePrior | None:
        """What is expected of rows here and how far they are believed; None where they alone are."""
        if self.policy == "rows":
            return None
        prior = self.model.prior_of(self.policy, self.level_scale)
        return replace(prior, trusted_rows=0.0) if self.stays_as_trained else prior

    @cached_property
    def estimate_without_rows(self) -> PrevalenceEstimate:
        """The posterior without this site's unlabeled rows, whose predictions have the mean of the model as trained."""
        prior = replace(self.model.prior_of("auto", self.level_scale), trusted_rows=0.0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what there is to say of the rows, `adapt` has said
            rows = self.rows.by_knockout()
            return estimate_rows(self.model, rows, prior=prior, known=self.known_prevalence)

    @property
    def estimate_in_use(self) -> PrevalenceEstimate:
        """The posterior that everything said of the site comes from."""
        return self.estimate_without_rows if self.stays_as_trained else self.estimate

    @property
    def rows_in_use(self) -> ScoredRows:
        """The rows as they are predicted: by the joint of z and y where that speaks for some of them."""
        return self.rows.by_knockout() if self.stays_as_trained else self.rows

    def __repr__(self) -> str:
        return site_text(self)

    def _repr_html_(self) -> str:
        return site_html(self)

    def predict_proba(self, X: Any, sample_confounder: Any = None) -> Any:
        """P(y|x,z) at this site, (n, K), each row by itself; z may be missing in part or whole.

        Dask collections are predicted partition by partition, when they are computed.
        """
        if is_dask(X):
            return map_rows(self.predict_proba, X, sample_confounder, columns=self.classes_.tolist())
        probability = self.probability_of(*self._scored(X, sample_confounder))
        return probability.to(X.device) if isinstance(X, Tensor) else probability.numpy()

    def _scored(self, X: Any, Z: Any) -> tuple[Tensor, Tensor]:
        """log f of rows to predict (with the joint's word where there is one), and their codes of z."""
        X, Z = split_confounders(X, Z, self.confounder_columns, self.model)
        inputs = self.model.inputs_of(X)
        codes = self.model.codes_of(Z, len(inputs))
        joint = None if self.stays_as_trained else self.joint
        return with_joint(self.model, joint, inputs, codes, self.model.calibrated_log_ratio(inputs, codes)), codes

    def probability_of(self, log_ratio: Tensor, codes: Tensor) -> Tensor:
        """P(y|x,z) of rows by what predicts here, (n, K), given log f (with the joint's word where there is one)."""
        if self.policy == "as trained":
            return combine(log_ratio, self.model.pooled_prevalence_.log_prob(codes)).exp()
        found = in_stretches(self.estimate_in_use.average, log_ratio, codes)
        kept = in_regions(codes, self.model.unsupported_)
        if self.joint is not None and not self.stays_as_trained:
            own = lacking(self.model, codes)
            marginal = self.joint.weights.sum(0).cpu().clamp_min(1e-300).log()
            found = torch.where(own[:, None], combine(log_ratio, marginal).exp(), found)
            kept = kept & ~own
        if not kept.any():
            return found
        return torch.where(
            kept[:, None], combine(log_ratio, self.model.pooled_prevalence_.log_prob(codes)).exp(), found
        )

    def adjust(self, log_ratio: Any, sample_confounder: Any = None) -> Any:
        """P(y|x,z) at this site, (n, K), given what the model's `log_ratio` said of the rows with this very z."""
        if is_dask(log_ratio):
            return map_rows(self.adjust, log_ratio, sample_confounder, columns=self.classes_.tolist())
        ratios = (
            torch.as_tensor(log_ratio.to_numpy() if isinstance(log_ratio, pd.DataFrame) else log_ratio).double().cpu()
        )
        codes = self.model.codes_of(sample_confounder, len(ratios))
        return self.probability_of(ratios, codes).numpy()

    def predict(self, X: Any, sample_confounder: Any = None) -> Any:
        """The most probable class of every row; with a threshold, the second class where P(y|x,z) of it reaches it."""
        if is_dask(X):
            return map_rows(self.predict, X, sample_confounder, columns=None, dtype=self.classes_.dtype)
        return self.classes_[decide(np.asarray(self.predict_proba(X, sample_confounder)), self.threshold_)]

    def fit(self, X: Any, y: Any = None) -> NoReturn:
        """Refuse: `adapt` made this, and scikit-learn asks every estimator for the method."""
        raise TypeError(NOT_FITTED)

    def score(self, X: Any, y: Any, sample_confounder: Any = None, sample_weight: Any = None) -> float:
        """The accuracy of `predict`, for scikit-learn's model selection."""
        return float(accuracy_score(y, self.predict(X, sample_confounder), sample_weight=sample_weight))

    def predict_set(
        self, X: Any, sample_confounder: Any = None, *, coverage: float = 0.9, by_class: bool = False
    ) -> PredictionSets:
        """Sets of classes that hold the class of a row of this site with probability `coverage`.

        Weighted conformal prediction: labeled rows held out in training, weighted to this site's P(y, z), say how
        improbable a class may be and still belong to a set. `by_class` asks for the coverage in every class by itself.
        Like all predictions here, it stands on P(x|y,z) being what it was in training.
        """
        log_ratio, codes = self._scored(X, sample_confounder)
        return predict_sets(self, self.probability_of(log_ratio, codes), codes, coverage, by_class)

    def expected_performance(
        self, y_pred: Any = None, proba: Any = None, *, level: float = 0.95, threshold: float | None = None
    ) -> ExpectedPerformance:
        """Performance to expect on the rows adapted on, without labels: metric -> (estimate, low, high).

        Of `predict`, or of another model where `y_pred` or `proba` is given; with `y_pred` alone, metrics of
        probabilities are undefined (None).

        Parameters
        ----------
        y_pred : array-like of shape (n,), optional
            Decisions of another model or rule, in the order of the rows adapted on.
        proba : array-like of shape (n, K) or (n,), optional
            Probabilities of another model; one column is P of the second of two classes.
        level : float
            Of the intervals. What they hold: see `ExpectedPerformance`.
        threshold : float, optional
            P of the second class from which a row is called so. For our own predictions None is the threshold chosen
            here, if any; otherwise the most probable class is decided.
        """
        classes = tuple(self.classes_.tolist())
        ours = y_pred is None and proba is None
        rows = judged_instead(self.believed_rows, classes, y_pred, proba)
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
        """Net benefit, calibration in the large, slope, O:E, sensitivity at a specificity, number needed to evaluate.

        Expected on the rows adapted on, without labels, of two classes; of our predictions or of others', as in
        `expected_performance`. See `sitewise.performance.clinical_performance`.
        """
        rows = judged_instead(self.believed_rows, tuple(self.classes_.tolist()), y_pred, proba)
        ours = y_pred is None and proba is None
        chosen = self.threshold_ if ours and threshold is None else threshold
        return clinical_performance(rows, threshold=chosen, specificity=specificity, level=level)

    def decision_curve(
        self, y_pred: Any = None, proba: Any = None, *, thresholds: Any = None, level: float = 0.95
    ) -> pd.DataFrame:
        """Expected net benefit at every threshold: of treating by the predictions (ours or others'), all, or nobody."""
        rows = judged_instead(self.believed_rows, tuple(self.classes_.tolist()), y_pred, proba)
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
        """Prevalence, performance and calibration to expect in each subgroup of the rows adapted on, without labels.

        Parameters
        ----------
        by : str, list of str, Series, DataFrame or array-like of shape (n,)
            Names of confounders, or values of any column in the order of the rows; a frame is taken column by column.
        bands : sequence of float, or dict of them by column, optional
            Edges between bands of a number; its quartiles otherwise.
        y_pred, proba, threshold, level
            As in `expected_performance`.
        """
        classes = tuple(self.classes_.tolist())
        rows = judged_instead(self.believed_rows, classes, y_pred, proba)
        ours = y_pred is None and proba is None
        chosen = self.threshold_ if ours and threshold is None else threshold
        return subgroups(rows, classes, by, bands=bands, threshold=chosen, level=level)

    def shift_by_column(self, columns: pd.DataFrame | None = None) -> pd.DataFrame:
        """Which columns the shift of P(y|z) from the training sites to this one is concentrated in, without labels.

        Parameters
        ----------
        columns : DataFrame, optional
            Values of columns in the order of the rows adapted on; the confounders otherwise.

        Returns
        -------
        DataFrame
            A row for each column, the clearest first: the score test that g has the training sites' shape along it
            (`statistic`, `freedom`, `p_value`). A shift of the level alone is none along any column.
        """
        return shift_by_column(self, columns)

    def sample(self, n: int, *, random_state: int = 0) -> LabelSample:
        """Draw n of the rows adapted on to be labeled: stratified by score and z, with weights that keep means right.

        Evaluate with `evaluate(X[sample.rows], y, Z.iloc[sample.rows], sample_weight=sample.weight)`.
        """
        if self.n_rows_ is not None:
            raise ValueError(SAMPLE_ONLY.format(call="sample", total=self.n_rows_, kept=len(self.rows)))
        schema = self.model.confounders_
        z = pd.DataFrame(index=range(len(self.rows))) if schema is None else schema.decode(self.rows.codes)
        probability = self.probability_of(self.rows.log_ratio, self.rows.codes).numpy()
        return draw_sample(probability, z, n, seed=random_state)

    def choose_threshold(
        self, *, sensitivity: float | None = None, harm_to_benefit: float | None = None, level: float = 0.95
    ) -> ThresholdChoice:
        """Choose a threshold for two classes: the highest expected F1, a wanted sensitivity, or the most net benefit.

        `harm_to_benefit` is how many true positives one false positive costs: 0.25 where treating four people in vain
        for each one treated rightly is just acceptable, which calls people from P = 0.2 on.
        It is kept as `threshold_`, and `predict` uses it from now on; set it to None to go back.
        """
        classes = tuple(self.classes_.tolist())
        choice = choose_threshold(
            self.believed_rows, classes, sensitivity=sensitivity, harm_to_benefit=harm_to_benefit, level=level
        )
        self.threshold_ = choice.threshold
        return choice

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
        """Judge this model by labeled rows of the site, beside the model as trained and recalibrations of that.

        Parameters
        ----------
        X, sample_confounder
            Rows of the site, those adapted on or others.
        y : array-like of shape (n,)
            Labels; rows without one (NaN, None) are left out.
        groups : array-like, optional
            Patients: intervals resample whole ones, and no patient recalibrates itself.
        sample_weight : array-like, optional
            Weights, such as those that `sitewise sample` gives.
        level, n_resamples
            Of the bootstrap intervals.
        """
        return evaluate_site(self, X, y, sample_confounder, groups, sample_weight, level, n_resamples)

    def prevalence(self, Z: Any = None) -> Any:
        """Estimate of P(Y) here, (K,), or of P(Y|Z), (n, K)."""
        if Z is None:
            return self._mean_probability.numpy()
        return self.log_prevalence_at(self._codes(Z)).exp().numpy()

    @property
    def _mean_probability(self) -> Tensor:
        """The weighted mean of what is predicted for the rows adapted on, (K,).

        Of a site in partitions all rows where they were predicted when it was adapted to, else its sample.
        """
        if self.mean_probability_ is not None and (self.policy == "as trained" or not self.stays_as_trained):
            return self.mean_probability_
        return self.rows_in_use.weighted_mean(self.probability_of(self.rows_in_use.log_ratio, self.rows_in_use.codes))

    def prevalence_interval(self, Z: Any = None, level: float = 0.95) -> tuple[Any, Any]:
        """Interval of the population's P(Y), two (K,), or of P(Y|Z), two (n, K); no width where the training g is kept.

        That of P(Y) is widened, where needed, to hold `prevalence()`.
        """
        if Z is None:
            joint = None if self.stays_as_trained else self.joint
            low, high = (np.asarray(bound) for bound in (joint or self.estimate_in_use).interval(level=level))
            low, high = (self._mix(b) if joint is None else self._stretched(b, level) for b in (low, high))
            reported = self.prevalence()
            return np.minimum(low, reported), np.maximum(high, reported)
        low, high = (np.array(bound) for bound in self.estimate_in_use.interval(Z, level=level))
        codes = self._codes(Z)
        kept = in_regions(codes, self.model.unsupported_).numpy()
        low[kept] = high[kept] = self.log_prevalence_at(codes).exp().numpy()[kept]
        return low, high

    def _stretched(self, bound: Any, level: float) -> Any:
        """A bound of the joint's P(Y), which takes r as given: stretched by r's error, rehearsed errors and groups."""
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

    def update(
        self, X: Any, sample_confounder: Any = None, y: Any = None, groups: Any = None, sample_weight: Any = None
    ) -> "AdaptedClassifier":
        """Refine the site with more of its rows: a new object, adapted to all rows as if they had come at once.

        Estimation starts where it stood. A chosen threshold and the policy stay; the diagnosis is made anew. Groups
        of these rows are taken to be others than those of earlier rows. A joint of (z, y) stays as it was, for its
        estimation needs inputs, which are not kept: `adapt` with all rows refines it.
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
        """Prevalence of new rows of this site in windows of time, with alarms where the stability check breaks.

        `window` is a number of rows or a length of time such as "30D"; see `sitewise.monitoring.monitor` for the rest
        and for the columns of the frame, and `sitewise.report.timeline` for its figure.
        """
        X, sample_confounder = split_confounders(X, sample_confounder, self.confounder_columns, self.model)
        settings = {"level": level, "alarm_level": alarm_level}
        return watch(self, X, time, sample_confounder, groups, sample_weight, window, **settings)

    def report(
        self,
        path: str | os.PathLike[str],
        *,
        site: str | None = None,
        level: float = 0.95,
        subgroups: Any = None,
        bands: Any = None,
    ) -> Path:
        """Write the site's report and return its path: one HTML page that needs nothing else, to read, print or send.

        The same content is written beside it as JSON, with every number unrounded.

        Parameters
        ----------
        path : path
            Of the page, .html.
        site : str, optional
            The name on the page; `site_name` where none is given.
        level : float
            Of the intervals.
        subgroups, bands
            What the page's subgroups are by, as `by` and `bands` of `subgroups`; the confounders otherwise.
        """
        content = report_content(self, site or self.site_name or "New site", level, subgroups=subgroups, bands=bands)
        return write_report(content, path)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save this site as a folder that `sitewise.load` reads, its model inside; scores of rows, but no inputs.

        The folder is written whole or not at all; another saved model at that place is replaced, nothing else is.
        """
        from sitewise.estimator.files.saving import save

        save(self, path)

    def export_onnx(self, path: str | os.PathLike[str], *, dtype: str = "auto") -> Path:
        """Write `predict_proba` as an ONNX graph, checked with onnxruntime; its path. Needs `sitewise[onnx]`.

        Inputs are "x" (bytes for images, float32 otherwise, or what `dtype` says: float32, float64, uint8) and, where
        there are confounders, "z" in float64: numbers as they are, the place of a category among its levels, NaN for
        missing. The output is "probability", (rows, K). Levels, classes and threshold are in the graph's metadata.
        """
        from sitewise.estimator.files.exporting import export_onnx

        export_onnx(self, path, dtype)
        return Path(path)

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_clone__(self) -> "AdaptedClassifier":
        return self

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags = get_tags(self.model).input_tags
        return tags

    def _codes(self, Z: Any) -> Tensor:
        if self.model.confounders_ is None:
            raise ValueError("Z is given, but the model was trained without confounders")
        return self.model.confounders_.encode(Z)[0]

    @cached_property
    def believed_rows(self) -> BelievedRows:
        """What is believed of the rows' labels."""
        return believed_rows(self)

    @cached_property
    def weighted_rows(self) -> tuple[WeightedRows, WeightedRows]:
        """Labeled rows that stand for those of this site, for prediction sets."""
        return weighted_rows(self)

    def log_prevalence_at(self, codes: Tensor) -> Tensor:
        """log g here; in regions where f is not identified, the training prevalence (equation 12)."""
        if self.policy == "as trained":
            return self.model.pooled_prevalence_.log_prob(codes)
        here = in_stretches(self.estimate_in_use.prevalence.log_prob, codes)
        kept = in_regions(codes, self.model.unsupported_)
        if not kept.any():
            return here
        return torch.where(kept[:, None], self.model.pooled_prevalence_.log_prob(codes), here)

    def _mix(self, outside: Any) -> Any:
        """Average over the whole site: estimated outside the kept regions, training prevalence inside."""
        kept = self.rows.take(~self.rows.supported)
        if not len(kept):
            return outside
        share = float(kept.weights.sum() / self.rows.weights.sum())
        inside = kept.weighted_mean(self.model.pooled_prevalence_.log_prob(kept.codes).exp()).numpy()
        return (1 - share) * outside + share * inside
