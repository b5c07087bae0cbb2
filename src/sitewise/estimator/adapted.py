"""A model adapted to one site: predictions row by row, and the site's prevalence with its interval."""

import os
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from sitewise.adaptation import PrevalenceEstimate, estimate_prevalence
from sitewise.adaptation.joint import JointEstimate
from sitewise.adaptation.known import Known
from sitewise.arrays import did_you_mean, in_stretches
from sitewise.diagnosis import FALLBACKS, Diagnosis
from sitewise.estimator.at_site.believing import believed_rows
from sitewise.estimator.at_site.diagnosing import diagnose
from sitewise.estimator.at_site.kept import KeptRows
from sitewise.estimator.at_site.reporting import report_content
from sitewise.estimator.at_site.updating import update
from sitewise.estimator.at_site.watching import watch
from sitewise.estimator.source.regions import in_regions
from sitewise.estimator.without_z.predicting import lacking, with_joint
from sitewise.monitoring import ALARM_LEVEL
from sitewise.performance import (
    BelievedRows,
    ExpectedPerformance,
    ThresholdChoice,
    choose_threshold,
    decide,
    summarize,
)
from sitewise.posterior import combine
from sitewise.prevalence import Prevalence
from sitewise.report.page import write_report
from sitewise.uncertainty import stretched

if TYPE_CHECKING:
    from sitewise.estimator.model import SiteModel


LEAST_TRUST = 1e-4  # rows that are not believed at all leave an interval next to [0, 1]


class AdaptedClassifier:
    """What `GPAClassifier.adapt` or `PrevalenceAdjuster.adapt` gives back; the model behind it serves other sites too.

    Attributes
    ----------
    estimate : the `PrevalenceEstimate` of the site.
    rows : what is kept of the site's rows, `KeptRows`.
    classes_ : the classes, in order.
    policy : "auto", "as trained" or "rows": how far the site's rows are believed, see `adapt`.
    threshold_ : P(y|x,z) of the second of two classes from which `predict` says it; None for the most probable class.
    site_name : what reports call the site; None for "New site".
    joint : the `JointEstimate` that predicts rows without all of z; None where knockout does (see `missing`).
    known_prevalence : the prevalence that `adapt` was told, None where it was not.
    """

    site_name: str | None = None
    joint: JointEstimate | None = None
    known_prevalence: Known | None = None

    def __init__(
        self,
        model: "SiteModel",
        estimate: PrevalenceEstimate,
        rows: KeptRows,
        fallback: str | None = None,
        policy: str = "auto",
    ) -> None:
        self.model = model
        self.estimate = estimate
        self.rows = rows
        self.classes_ = model.classes_
        self.threshold_: float | None = None
        self.policy = policy
        self.fallback = fallback
        self._diagnosis: Diagnosis | None = None

    @property
    def missing(self) -> str:
        """How rows that lack z are predicted here: "joint", from the site's joint of z and y, or "knockout"."""
        return "knockout" if self.joint is None else "joint"

    @property
    def fallback(self) -> str | None:
        """What predicts where the verdict is "do not adapt": "marginal", "pooled", or None for the adapted model."""
        return self._fallback

    @fallback.setter
    def fallback(self, name: str | None) -> None:
        if name not in FALLBACKS:
            known = [known for known in FALLBACKS if known]
            raise ValueError(
                f"fallback must be None or one of {', '.join(known)}, got {name!r}{did_you_mean(name, known)}"
            )
        self._fallback = name
        self._diagnosis = None

    @property
    def in_use(self) -> str:
        """What predicts here: "adapted", "pooled" (as trained), or the fallback where the verdict asks for it."""
        if self.policy == "as trained":
            return "pooled"
        return "adapted" if self.fallback is None else self.diagnose().in_use

    def diagnose(self) -> Diagnosis:
        """Check whether adapting is safe here: findings, each with its number and advice, and a verdict (kept)."""
        if self._diagnosis is None:
            self._diagnosis = diagnose(self)
        return self._diagnosis

    def predict_proba(self, X: Any, sample_confounder: Any = None) -> Any:
        """P(y|x,z) at this site, (n, K), each row by itself; z may be missing in part or whole."""
        inputs = self.model._read(X)
        codes = self.model._codes(sample_confounder, len(inputs))
        joint = self.joint if self.in_use == "adapted" else None
        log_ratio = with_joint(self.model, joint, inputs, codes, self.model._log_ratio(inputs, codes))
        probability = self._probability(log_ratio, codes)
        return probability.to(X.device) if isinstance(X, Tensor) else probability.numpy()

    def _probability(self, log_ratio: Tensor, codes: Tensor) -> Tensor:
        """P(y|x,z) of rows by what predicts here, (n, K), given log f (with the joint's word where there is one)."""
        if self.in_use != "adapted":
            return combine(log_ratio, self._prior(codes)).exp()
        found = in_stretches(self.estimate.average, log_ratio, codes)
        kept = in_regions(codes, self.model._unsupported)
        if self.joint is not None:
            own = lacking(self.model, codes)
            marginal = self.joint.weights.sum(0).cpu().clamp_min(1e-300).log()
            found = torch.where(own[:, None], combine(log_ratio, marginal).exp(), found)
            kept = kept & ~own
        if not kept.any():
            return found
        return torch.where(
            kept[:, None], combine(log_ratio, self.model._pooled_prevalence.log_prob(codes)).exp(), found
        )

    def adjust(self, log_ratio: Any, sample_confounder: Any = None) -> Any:
        """P(y|x,z) at this site, (n, K), given what the model's `log_ratio` said of the rows with this very z."""
        ratios = torch.as_tensor(log_ratio).double().cpu()
        codes = self.model._codes(sample_confounder, len(ratios))
        return self._probability(ratios, codes).numpy()

    def predict(self, X: Any, sample_confounder: Any = None) -> Any:
        """The most probable class of every row; with a threshold, the second class where P(y|x,z) of it reaches it."""
        return self.classes_[decide(np.asarray(self.predict_proba(X, sample_confounder)), self.threshold_)]

    def expected_performance(self, *, level: float = 0.95, threshold: float | None = None) -> ExpectedPerformance:
        """Performance to expect of `predict` on the rows adapted on, without labels: metric -> (estimate, low, high).

        With the threshold given, else the one chosen here, if any. What the intervals hold: see `ExpectedPerformance`.
        """
        chosen = self.threshold_ if threshold is None else threshold
        return summarize(self._believed_rows, tuple(self.classes_.tolist()), chosen, level)

    def choose_threshold(self, *, sensitivity: float | None = None, level: float = 0.95) -> ThresholdChoice:
        """Choose the threshold with the highest expected F1, or the highest with a wanted sensitivity; two classes.

        It is kept as `threshold_`, and `predict` uses it from now on; set it to None to go back.
        """
        classes = tuple(self.classes_.tolist())
        choice = choose_threshold(self._believed_rows, classes, sensitivity=sensitivity, level=level)
        self.threshold_ = choice.threshold
        return choice

    def prevalence(self, Z: Any = None) -> Any:
        """Estimate of P(Y) here, (K,), or of P(Y|Z), (n, K)."""
        if Z is None:
            return self._mean_probability.numpy()
        codes = self._codes(Z)
        return (self._prior(codes) if self.in_use == "pooled" else self._log_prevalence(codes)).exp().numpy()

    @property
    def _mean_probability(self) -> Tensor:
        """The weighted mean of what is predicted for the rows adapted on, (K,)."""
        weight = torch.ones(len(self.rows), dtype=torch.float64) if self.rows.weight is None else self.rows.weight
        return weight @ self._probability(self.rows.log_ratio, self.rows.codes) / weight.sum()

    def prevalence_interval(self, Z: Any = None, level: float = 0.95) -> tuple[Any, Any]:
        """Interval of the population's P(Y), two (K,), or of P(Y|Z), two (n, K); no width where the training g is kept.

        That of P(Y) is widened, where needed, to hold `prevalence()`.
        """
        if Z is None:
            low, high = (np.asarray(bound) for bound in (self.joint or self.estimate).interval(level=level))
            low, high = (self._mix(b) if self.joint is None else self._stretched(b, level) for b in (low, high))
            reported = self.prevalence()
            return np.minimum(low, reported), np.maximum(high, reported)
        low, high = (np.array(bound) for bound in self.estimate.interval(Z, level=level))
        codes = self._codes(Z)
        kept = in_regions(codes, self.model._unsupported).numpy()
        low[kept] = high[kept] = self._log_prevalence(codes).exp().numpy()[kept]
        return low, high

    def _stretched(self, bound: Any, level: float) -> Any:
        """A bound of the joint's P(Y), which takes r as given: stretched by r's error, rehearsed errors and groups."""
        rows, prior = self.rows, self.model._prior_of(self.policy)
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

        Estimation starts where it stood. A chosen threshold and the fallback stay; the diagnosis is made anew. Groups
        of these rows are taken to be others than those of earlier rows. A joint of (z, y) stays as it was, for its
        estimation needs inputs, which are not kept: `adapt` with all rows refines it.
        """
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
        settings = {"level": level, "alarm_level": alarm_level}
        return watch(self, X, time, sample_confounder, groups, sample_weight, window, **settings)

    def report(self, path: str | os.PathLike[str], *, site: str | None = None, level: float = 0.95) -> Path:
        """Write the site's report and return its path: one HTML page that needs nothing else, to read, print or send.

        The same content is written beside it as JSON, with every number unrounded. `site` is the name on the page,
        `site_name` where none is given.
        """
        return write_report(report_content(self, site or self.site_name or "New site", level), path)

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

    def take_joint(self, joint: JointEstimate | None, without_joint: Tensor) -> None:
        """Let a joint predict rows that lack z; `without_joint` is the log f (n, K) that it replaces."""
        self.joint = joint
        if joint is not None:
            self.rows = replace(self.rows, without_z=without_joint)

    def _codes(self, Z: Any) -> Tensor:
        if self.model.confounders_ is None:
            raise ValueError("Z is given, but the model was trained without confounders")
        return self.model.confounders_.encode(Z)[0]

    def _prior(self, codes: Tensor) -> Tensor:
        """log g as predictions use it: estimated here, or the fallback's."""
        if self.in_use == "pooled":
            return self.model._pooled_prevalence.log_prob(codes)
        return self._log_prevalence(codes, self._marginal if self.in_use == "marginal" else None)

    @property
    def _believed_rows(self) -> BelievedRows:
        """What is believed of the rows' labels, once for what predicts now."""
        if self.in_use not in self._believed:
            self._believed[self.in_use] = believed_rows(self)
        return self._believed[self.in_use]

    @cached_property
    def _believed(self) -> dict[str, BelievedRows]:
        return {}

    @cached_property
    def _marginal(self) -> Prevalence:
        """One g for all z, estimated from the same rows."""
        rows, use = self.rows, self.rows.supported
        weight, labels = (None if part is None else part[use] for part in (rows.weight, rows.labels))
        return estimate_prevalence(rows.log_ratio[use], model="constant", y=labels, sample_weight=weight).prevalence

    def _log_prevalence(self, codes: Tensor, prevalence: Prevalence | None = None) -> Tensor:
        """log g here; in regions where f is not identified, the training prevalence (equation 12)."""
        here = in_stretches((prevalence or self.estimate.prevalence).log_prob, codes)
        kept = in_regions(codes, self.model._unsupported)
        if not kept.any():
            return here
        return torch.where(kept[:, None], self.model._pooled_prevalence.log_prob(codes), here)

    def _mix(self, outside: Any) -> Any:
        """Average over the whole site: estimated outside the kept regions, training prevalence inside."""
        kept = self.rows.codes[~self.rows.supported]
        if not len(kept):
            return outside
        weight = torch.ones(len(self.rows), dtype=torch.float64) if self.rows.weight is None else self.rows.weight
        own = weight[~self.rows.supported]
        share = float(own.sum() / weight.sum())
        inside = (own @ self.model._pooled_prevalence.log_prob(kept).exp() / own.sum()).numpy()
        return (1 - share) * outside + share * inside
