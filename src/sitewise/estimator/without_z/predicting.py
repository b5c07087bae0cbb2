"""Predict rows that lack z: by the joint model with a site's joint distribution P(z, y), or by knockout."""

import warnings
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sitewise.adaptation import estimate_prevalence
from sitewise.adaptation.answer import fit_of
from sitewise.adaptation.joint import JointEstimate, estimate_joint
from sitewise.adaptation.joint.answer import joint_posterior
from sitewise.estimator.source.reading import evenly
from sitewise.estimator.source.regions import EXPECTED_ROWS
from sitewise.estimator.without_z.joint import ENOUGH_ROWS, JointModel
from sitewise.inputs import Inputs, take_inputs
from sitewise.posterior import combine
from sitewise.rows import LabeledRows, ScoredRows, SiteRows

if TYPE_CHECKING:
    from sitewise.estimator.gpa import GPAClassifier

MISSING = ("auto", "knockout", "joint")
JUDGED_ROWS = 1000  # the largest number of held-out rows on which the joint model is compared with knockout
WORSE = 1.2  # largest NLL of the joint model relative to knockout; it may be a little worse, because it assumes less
UNSEEN = 0.25  # largest share of training rows at z where some class is absent, because f is unknown there
MARGIN = 1.0  # the left-out log-likelihood of the joint model must be higher by this amount
NO_JOINT = "missing='joint' needs confounders in training, and some rows that have all of them: use missing='auto'"


def lacking(model: "GPAClassifier", codes: Tensor) -> Tensor:
    """Return which rows lack a part of z, (n,)."""
    if model.confounders_ is None:
        return torch.zeros(len(codes), dtype=torch.bool)
    return model.confounders_.missing(codes).any(dim=1)


def joint_log_ratio(model: "GPAClassifier", X: Inputs, codes: Tensor) -> Tensor:
    """Return log r(x,y,z_m) of rows over the bank, (n, M, K); -inf at points that contradict the known z of a row."""
    joint = model.joint_
    assert joint is not None
    log_ratio = torch.empty(len(X), *joint.prior.shape, dtype=torch.float32)
    for part, ratios in joint.ratios(model, X):
        log_ratio[part] = (ratios + joint.bank.log_agreement(codes[part])[..., None]).float()
    return log_ratio


def joint_log_posterior(model: "GPAClassifier", site: JointEstimate, X: Inputs, codes: Tensor) -> Tensor:
    """Return log P(y|x, known part of z) of rows at a site, (n, K); each row is predicted independently."""
    joint = model.joint_
    assert joint is not None
    log_weights = site.weights.cpu().log()
    parts = [
        joint_posterior(ratios + joint.bank.log_agreement(codes[part])[..., None], log_weights)
        for part, ratios in joint.ratios(model, X)
    ]
    return torch.cat(parts)


def with_joint(
    model: "GPAClassifier", site: JointEstimate | None, X: Inputs, codes: Tensor, log_ratio: Tensor
) -> Tensor:
    """Return log f (n, K), in which rows that lack z have values by the joint model.

    With these values and the site's P(Y) in place of g, equation 3 gives the prediction of the joint model.
    """
    if site is None:
        return log_ratio
    rows = lacking(model, codes).nonzero().flatten()
    if not len(rows):
        return log_ratio
    log_posterior = joint_log_posterior(model, site, take_inputs(X, rows), codes[rows])
    marginal = site.weights.sum(0).cpu().clamp_min(1e-300).log()
    return log_ratio.index_copy(0, rows, log_posterior - marginal)


def rows_with_joint(model: "GPAClassifier", site: JointEstimate | None, X: Inputs, rows: ScoredRows) -> ScoredRows:
    """Return a site's rows with the log f of `with_joint`; their original log f is kept as `without_z`."""
    if site is None:
        return rows
    return replace(rows, log_ratio=with_joint(model, site, X, rows.codes, rows.log_ratio), without_z=rows.log_ratio)


def with_joint_marginal(
    model: "GPAClassifier", site: JointEstimate | None, codes: Tensor, log_prevalence: Tensor
) -> Tensor:
    """Return log g (n, K) to be used with the log f of `with_joint`: the site's P(Y) for rows that lack z."""
    if site is None:
        return log_prevalence
    return torch.where(
        lacking(model, codes)[:, None], site.weights.sum(0).cpu().clamp_min(1e-300).log(), log_prevalence
    )


def fit_site_joint(model: "GPAClassifier", X: Inputs, given: SiteRows) -> JointEstimate | None:
    """Estimate the site's joint P(z, y) from all its rows; known labels and known parts of z are used.

    Return None if rows that lack z are predicted by knockout. This is the case if `missing` is "knockout". With "auto",
    it is the case if there is no joint model, if some rows have all of z (they determine g(z) better), if the joint
    model is not trusted (see `judged`), or if its left-out likelihood of x is not higher than that of knockout.
    """
    if model.missing == "joint" and model.joint_ is None:
        raise ValueError(NO_JOINT)
    short = lacking(model, given.codes)
    if model.joint_ is None or model.missing == "knockout":
        return None
    if model.missing == "auto" and not (model.joint_.trusted and short.all()):
        return None
    log_ratio = joint_log_ratio(model, X, given.codes)
    if given.y is not None:
        other = torch.arange(len(model.classes_)) != given.y[:, None]
        log_ratio = log_ratio.masked_fill((other & ~given.y.isnan()[:, None])[:, None], -torch.inf)
    estimate = estimate_joint(log_ratio, prior=model.joint_.prior, sample_weight=given.weight)
    if model.missing == "joint":
        return estimate
    rows = short.nonzero().flatten()
    row_weight = None if given.weight is None else given.weight[rows]
    blank = model.confounders_.missing_codes().expand(len(rows), -1)  # type: ignore[union-attr]
    hidden = estimate
    if given.y is not None or not torch.equal(blank, given.codes):
        hidden_ratio = joint_log_ratio(model, take_inputs(X, rows), blank)
        hidden = estimate_joint(hidden_ratio, prior=model.joint_.prior, sample_weight=row_weight)
    return (
        estimate if hidden.left_out > _left_out_by_knockout(model, take_inputs(X, rows), row_weight) + MARGIN else None
    )


def judged(model: "GPAClassifier", held: LabeledRows) -> JointModel | None:
    """Return the joint model, marked as not trusted if it predicts held-out labels much worse than knockout.

    Both predict held-out rows whose z is hidden, and both estimate the prevalence from the x of these rows, as at a new
    site. The left-out likelihood of x cannot replace this comparison: it is always higher for models in which z shifts,
    even if f is wrong. The joint model is also not trusted if some class is absent at a large part of z. f is unknown
    there, and held-out rows of the same sites do not show its errors.
    """
    joint = model.joint_
    if joint is None:
        return joint
    if share_unseen(joint.prior, joint.possible, model.training_summary_.n_rows) > UNSEEN:
        return replace(joint, trusted=False)
    if len(held) < ENOUGH_ROWS:
        return joint
    few = held.take(evenly(len(held), JUDGED_ROWS))
    blank = joint.bank.schema.missing_codes().expand(len(few), -1)
    weight = few.weight.double()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is irrelevant here whether held-out rows identify the estimate
        ratios = joint_log_ratio(model, few.X, blank)
        site = estimate_joint(ratios, prior=joint.prior, sample_weight=weight)
        log_f = model.calibrated_log_ratio(few.X, blank)
        constant = estimate_prevalence(log_f.numpy(), model="constant", sample_weight=weight).marginal
    by_joint = -torch.as_tensor(site.posterior(ratios)).double().clamp_min(1e-12).log()
    by_knockout = -combine(log_f, torch.tensor(constant).clamp_min(1e-12).log())
    mine, theirs = (losses.gather(1, few.y[:, None])[:, 0] for losses in (by_joint, by_knockout))
    worse = mine - WORSE * theirs
    share = weight / weight.sum()
    mean = share @ worse
    error = ((share**2) @ (worse - mean) ** 2).sqrt()
    return replace(joint, trusted=bool(mean <= 2 * error))


def share_unseen(prior: Tensor, possible: Tensor, n_rows: int) -> float:
    """Return the share of the training population at points where some class is absent although it was expected.

    `prior` (M, K) is P_s(z_m, y). `possible` (M, K) is False where the class never occurred in training. `n_rows` is
    the number of training rows.
    """
    rows = n_rows * prior
    expected = rows.sum(1, keepdim=True) * prior.sum(0)
    absent = ((rows < 1.0) & (expected >= EXPECTED_ROWS)) | ~possible
    return float(prior.sum(1)[absent.any(1)].sum())


def _left_out_by_knockout(model: "GPAClassifier", X: Inputs, weight: Tensor | None) -> float:
    """Return the left-out log-likelihood of x by knockout: with f(x, missing) and one P(Y) for all rows.

    For each x, f is scaled so that its mean over the training g is one. The same holds for r, so that the likelihoods
    can be compared.
    """
    assert model.confounders_ is not None
    blank = model.confounders_.missing_codes().expand(len(X), -1)
    log_f = model.calibrated_log_ratio(X, blank)
    scaled = log_f - torch.logsumexp(log_f + model.pooled_prevalence_.log_prob(blank), dim=1, keepdim=True)
    estimate = estimate_prevalence(log_f.numpy(), model="constant", sample_weight=weight)
    marginal = torch.tensor(estimate.marginal).clamp_min(1e-300).log()
    weights = torch.ones(len(X), dtype=torch.float64) if weight is None else weight.double()
    return float(weights @ torch.logsumexp(scaled + marginal, dim=1)) - fit_of(estimate).optimism
