"""Predictions for rows that lack z, from the joint model and a site's joint P(z, y)."""

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sitewise.adaptation.joint import JointEstimate
from sitewise.adaptation.joint.answer import joint_posterior
from sitewise.inputs import Inputs, take_inputs
from sitewise.rows import ScoredRows

if TYPE_CHECKING:
    from sitewise.estimator.gpa import GPAClassifier


def lacking(model: "GPAClassifier", codes: Tensor) -> Tensor:
    """Which rows lack a part of z, (n,)."""
    if model.confounders_ is None:
        return torch.zeros(len(codes), dtype=torch.bool)
    return model.confounders_.missing(codes).any(dim=1)


def joint_log_ratio(model: "GPAClassifier", X: Inputs, codes: Tensor) -> Tensor:
    """log r(x,y,z_m) of rows over the bank (n, M, K), -inf at points that contradict the known part of a row's z."""
    joint = model.joint_
    assert joint is not None
    found = torch.empty(len(X), *joint.prior.shape, dtype=torch.float32)
    for part, ratios in joint.ratios(model, X):
        found[part] = (ratios + joint.bank.log_agreement(codes[part])[..., None]).float()
    return found


def joint_log_posterior(model: "GPAClassifier", site: JointEstimate, X: Inputs, codes: Tensor) -> Tensor:
    """log P(y|x, known part of z) of rows at a site, (n, K), each row independently."""
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
    """log f (n, K); for rows that lack z, values that give the joint model's prediction with the site's P(Y)."""
    if site is None:
        return log_ratio
    rows = lacking(model, codes).nonzero().flatten()
    if not len(rows):
        return log_ratio
    log_posterior = joint_log_posterior(model, site, take_inputs(X, rows), codes[rows])
    marginal = site.weights.sum(0).cpu().clamp_min(1e-300).log()
    return log_ratio.index_copy(0, rows, log_posterior - marginal)


def rows_with_joint(model: "GPAClassifier", site: JointEstimate | None, X: Inputs, rows: ScoredRows) -> ScoredRows:
    """The same for a site's rows, which also keep the replaced log f."""
    if site is None:
        return rows
    return replace(rows, log_ratio=with_joint(model, site, X, rows.codes, rows.log_ratio), without_z=rows.log_ratio)


def with_joint_marginal(
    model: "GPAClassifier", site: JointEstimate | None, codes: Tensor, log_prevalence: Tensor
) -> Tensor:
    """log g (n, K) for use with `with_joint`: the site's P(Y) for rows that lack z."""
    if site is None:
        return log_prevalence
    return torch.where(
        lacking(model, codes)[:, None], site.weights.sum(0).cpu().clamp_min(1e-300).log(), log_prevalence
    )
