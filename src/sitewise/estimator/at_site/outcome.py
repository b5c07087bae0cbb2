"""The outcome at a site: what was done and why, computed from its posterior, the rehearsal and the checks."""

import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from sitewise.adaptation import PrevalenceEstimate
from sitewise.adaptation.answer import fit_of
from sitewise.arrays import in_stretches
from sitewise.diagnosis import Grounds, Outcome
from sitewise.diagnosis.outcome import ENOUGH_TRUSTED, UNCHANGED, decide
from sitewise.estimator.at_site.showing import class_names
from sitewise.posterior import combine
from sitewise.prevalence import SitePrior
from sitewise.report.wording import outcome_sentence, risk_sentence
from sitewise.rows import ScoredRows

if TYPE_CHECKING:
    from sitewise.estimator.adapted import AdaptedClassifier
    from sitewise.estimator.model import SiteModel

Array = np.ndarray[Any, Any]


def site_outcome(here: "AdaptedClassifier", failed: str | None) -> Outcome:
    """Return the outcome at a site; `failed` is the name of the check of the assumption that failed, or None."""
    grounds = site_grounds(here, failed)
    word, reason = decide(grounds)
    sentence = outcome_sentence(
        word,
        reason,
        names=class_names(here.model),
        here=grounds.here,
        as_trained=grounds.as_trained,
        rows_alone=grounds.rows_alone,
        applied_share=grounds.applied_share,
        slope=grounds.slope,
        failed=grounds.failed,
    )
    return Outcome(word, reason, sentence, risk_sentence(word, reason, rehearsed_gains(here.model)), grounds)


def site_grounds(here: "AdaptedClassifier", failed: str | None) -> Grounds:
    """Compare the predictions at a site with the model as trained, and with the estimate from the rows alone.

    The share of the change is the change of P(Y) that was made, projected on the change of P(Y) by maximum likelihood
    from the rows alone, and divided by it. If maximum likelihood hardly changes P(Y), the change of the predictions of
    all rows from prior to posterior, without the slope of log f, is used instead of the change of P(Y).
    """
    rows, use = here.rows_in_use, here.rows.supported
    share = (rows.weights * use)[:, None] / (rows.weights * use).sum()
    alone = here.estimate if here.policy == "rows" else _estimated_again(here, rows, None)
    trained = combine(rows.by_knockout().log_ratio, here.model.pooled_prevalence_.log_prob(rows.codes)).exp()
    asked = in_stretches(alone.average, rows.log_ratio, rows.codes) - trained
    p_trained = (share * trained).sum(0)
    low, high = (np.asarray(bound, dtype=np.float64) for bound in alone.interval())
    p_asked = (share * asked).sum(0)
    by_level = float((logit(p_trained + p_asked) - logit(p_trained)).abs().max()) >= UNCHANGED

    def trusted_share(estimate: PrevalenceEstimate) -> float:
        if by_level:
            made = (share * in_stretches(estimate.average, rows.log_ratio, rows.codes)).sum(0) - p_trained
            return along(made, p_asked)
        before = in_stretches(_unscaled(here.estimate_without_rows), rows.log_ratio, rows.codes)
        made = in_stretches(_unscaled(estimate), rows.log_ratio, rows.codes) - before
        return along(share.sqrt() * made, share.sqrt() * asked)

    prior = here.model.prior_of(here.policy, here.level_scale)
    # The joint model is used as a whole or not at all.
    as_estimated = trusted_share(here.estimate) if here.joint is None else float(here.joint_in_use is not None)
    undiscounted = replace(prior, level_error=0.0, trusted_rows=float("inf"))
    variance = (share * (trained * (1.0 - trained))).sum(0)
    held = p_trained.numpy()
    return Grounds(
        policy=here.policy,
        as_trained=tuple(p_trained.tolist()),
        rows_alone=tuple((share * (asked + trained)).sum(0).tolist()),
        here=tuple(np.asarray(here.prevalence(), dtype=np.float64).tolist()),
        applied_share=as_estimated if failed is None or here.policy != "auto" else 0.0,
        change=float(((share * asked.abs()).sum(0) / variance.clamp_min(1e-12)).max()),
        half_width=float((high - low).max() / 2.0),
        by_chance=bool(((low <= held) & (held <= high)).all()),
        without_rehearsal=as_estimated
        if as_estimated >= ENOUGH_TRUSTED or here.policy != "auto"
        else trusted_share(_estimated_again(here, rows, undiscounted)),
        slope=1.0 if here.predicts_as_trained else float(prior.slope),
        failed=failed,
    )


def _estimated_again(here: "AdaptedClassifier", rows: ScoredRows, prior: SitePrior | None) -> PrevalenceEstimate:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # `adapt` has already warned about these rows
        return here.model.estimate_rows(rows, prior=prior, known=here.known_prevalence)


def along(made: Tensor, asked: Tensor) -> float:
    """Return the projection of the change `made` on the change `asked`, as a share of `asked`, clipped to 0 to 1."""
    size = float(asked.square().sum())
    return min(max(float((made * asked).sum()) / size, 0.0), 1.0) if size > 0 else 0.0


def logit(share: Tensor) -> Tensor:
    """Return log-odds of shares, kept finite for shares of 0 and 1."""
    inside = share.clamp(1e-12, 1.0 - 1e-12)
    return inside.log() - (1.0 - inside).log()


def _unscaled(estimate: PrevalenceEstimate) -> Any:
    """Return a function that predicts as the estimate does, but without the slope of log f.

    The slope is left out because it does not come from the rows of this site.
    """
    posterior = fit_of(estimate).posterior

    def average(log_ratio: Tensor, codes: Tensor) -> Tensor:
        if posterior is None:
            return estimate.average(log_ratio, codes)
        return posterior.points.average(log_ratio, codes)

    return average


def rehearsed_gains(model: "SiteModel") -> list[float]:
    """Return the decrease of the log loss by adaptation at each rehearsed site; empty if sites were not rehearsed."""
    rehearsal = getattr(model, "rehearsal_", None)
    if rehearsal is None or rehearsal.kind != "sites" or not len(rehearsal.table):
        return []
    gains = rehearsal.table["nll_as_trained"] - rehearsal.table["nll_adapted"]
    return [float(gain) for gain in gains]


def rehearsed_breaches(model: "SiteModel") -> dict[str, float]:
    """Return the strongest violation at rehearsed sites for each check of the assumption."""
    rehearsal = getattr(model, "rehearsal_", None)
    return {} if rehearsal is None else rehearsal.breaches
