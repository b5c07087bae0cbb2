"""The predictions at a site as a torch module that can be traced: from x and z to probabilities (equation 3).

It uses the same functions as `predict_proba`. Functions that cannot be traced have another form here.
"""

import copy
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from sitewise.adaptation.answer import fit_of
from sitewise.adaptation.joint.answer import joint_posterior
from sitewise.confounders import Confounders
from sitewise.confounders.variables import Categorical
from sitewise.estimator.adapted import AdaptedClassifier
from sitewise.estimator.adjuster import PrevalenceAdjuster
from sitewise.estimator.gpa import GPAClassifier
from sitewise.estimator.scoring.ratios import AdditiveRatio, ScoreRatio, to_scores
from sitewise.estimator.without_z.joint import JointModel, Layers, at_points
from sitewise.estimator.without_z.pairs import PairModel
from sitewise.posterior import combine
from sitewise.prevalence.additive import features
from sitewise.prevalence.base import Prevalence
from sitewise.ratio import RatioNetwork, network_inputs

OWN_ESTIMATOR = (
    "export_onnx: the classifier around which this adjustment was made ({name}) cannot be exported here: export it "
    "with its own tool (for example skl2onnx), fit PrevalenceAdjuster() to its probabilities, and export that"
)


class AdaptedGraph(nn.Module):
    """A module that returns P(y|x,z) at a site, (n, K) in double precision, from x and z as `encode` reads it."""

    def __init__(self, here: AdaptedClassifier, dtype: torch.dtype) -> None:
        super().__init__()
        precision = torch.float64 if dtype == torch.float64 else torch.float32
        self.model = here.model
        self.schema = here.model.confounders_
        self.score = _score_part(here.model, precision)
        self.joint = None if here.joint_in_use is None else _joint_part(here, precision)
        self.pooled = traceable(here.model.pooled_prevalence_)
        self.as_trained = as_trained = here.predicts_as_trained
        self.posterior = None if as_trained else fit_of(here.estimate_in_use).posterior
        self.prevalence = traceable(here.model.pooled_prevalence_ if as_trained else here.estimate_in_use.prevalence)

    def forward(self, x: Tensor, z: Tensor | None = None) -> Tensor:
        """Return P(y|x,z), (n, K), from x and z; each row is predicted independently."""
        codes = x.new_zeros(x.shape[0], 0).double() if z is None or self.schema is None else encode(self.schema, z)
        return self.at(x, codes)

    def at(self, x: Tensor, codes: Tensor) -> Tensor:
        """Return P(y|x,z), (n, K), from x and the codes of z."""
        log_ratio = self.model.calibrated(self.score(x, codes).double(), codes)
        lacking = codes.new_zeros(codes.shape[0], dtype=torch.bool)
        if self.joint is not None and self.schema is not None:  # rows that lack z (equation 15c)
            lacking = self.schema.missing(codes).any(dim=1)
            log_posterior = self.joint(x, codes)
            log_ratio = torch.where(lacking[:, None], log_posterior - self.joint.log_marginal, log_ratio)
        if self.posterior is None:
            probability = combine(log_ratio, self.prevalence.log_prob(codes)).exp()
        else:
            probability = self.prevalence.average(log_ratio, codes, self.posterior.slope)
        if self.joint is not None and not self.as_trained:
            probability = torch.where(lacking[:, None], log_posterior.exp(), probability)
        for region in self.model.unsupported_:  # f is not identified there (equation 12)
            inside = (codes[:, region.variable] == region.code) & ~lacking
            probability = torch.where(
                inside[:, None], combine(log_ratio, self.pooled.log_prob(codes)).exp(), probability
            )
        return probability


class NetworkScore(nn.Module):
    """A module that returns raw log f by the network."""

    def __init__(self, network: RatioNetwork, schema: Confounders | None, dtype: torch.dtype) -> None:
        super().__init__()
        self.network = copy.deepcopy(network).to("cpu", dtype).eval()
        self.schema, self.dtype = schema, dtype

    def forward(self, x: Tensor, codes: Tensor) -> Tensor:
        """Return raw log f, (n, K)."""
        return self.network(x, network_inputs(self.schema, codes).to(self.dtype))  # type: ignore[no-any-return]


class JointNetwork(nn.Module):
    """A module that returns log P(y|x, known part of z) at a site, by network, critic and the site's P(z, y)."""

    def __init__(self, here: AdaptedClassifier, dtype: torch.dtype) -> None:
        super().__init__()
        model, joint, site = here.model, here.model.joint_, here.joint
        assert isinstance(joint, JointModel)
        assert site is not None
        self.bank, self.joint = joint.bank, replace(joint, source=AtPoints(joint.source.log_prob(joint.bank.codes)))
        self.layers = Layers(copy.deepcopy(model.scorer_.module).to("cpu", dtype).eval())
        self.critic = joint.critic.network(torch.zeros(0, dtype=dtype)).eval()
        self.points, self.log_mean = joint.bank.inputs.to(dtype), model.balanced(torch.zeros(1), joint.bank.codes)
        self.calibration, self.dtype = model.calibrations_[0], dtype
        self.log_weights = site.weights.cpu().log()
        self.log_marginal = site.weights.sum(0).cpu().clamp_min(1e-300).log()

    def forward(self, x: Tensor, codes: Tensor) -> Tensor:
        """Return log P(y|x, known part of z), (n, K)."""
        features = self.layers(x, codes)
        raw_log_f = at_points(self.layers.network, features, self.points).double() + self.log_mean
        log_f = self.calibration.apply(raw_log_f.flatten(0, 1)).unflatten(0, (-1, len(self.points)))
        log_ratio = self.joint.log_ratio(log_f, self.critic(features, self.points).double())
        return joint_posterior(log_ratio + self.bank.log_agreement(codes)[..., None], self.log_weights)


class JointProbabilities(nn.Module):
    """A module that returns log P(y|x, known part of z) at a site, from given P(y, z|x) and the site's P(z, y)."""

    def __init__(self, here: AdaptedClassifier) -> None:
        super().__init__()
        site = here.joint
        assert site is not None
        self.pairs, self.floor = here.model.joint_, here.model.classifier_.floor
        assert isinstance(self.pairs, PairModel)
        self.log_weights = site.weights.cpu().log()
        self.log_marginal = site.weights.sum(0).cpu().clamp_min(1e-300).log()

    def forward(self, x: Tensor, codes: Tensor) -> Tensor:
        """Return log P(y|x, known part of z), (n, K)."""
        log_ratio = self.pairs.log_ratio(x.double().clamp_min(self.floor).log())
        return joint_posterior(log_ratio + self.pairs.bank.log_agreement(codes)[..., None], self.log_weights)


@dataclass(frozen=True)
class AtPoints:
    """A g that is only known at the M points of a bank."""

    values: Tensor
    name: str = "at points"

    def log_prob(self, codes: Tensor) -> Tensor:
        """Return log g at the points, (M, K); `codes` are not used."""
        return self.values


class ProbabilityScore(nn.Module):
    """A module that returns raw log f from a classifier's probabilities."""

    def __init__(self, ratio: ScoreRatio, floor: float) -> None:
        super().__init__()
        self.ratio, self.floor = ratio, floor

    def forward(self, x: Tensor, codes: Tensor) -> Tensor:
        """Return raw log f, (n, K)."""
        return self.ratio.log_ratio(x.double().clamp_min(self.floor).log(), codes)


def encode(schema: Confounders, z: Tensor) -> Tensor:
    """Return codes (n, V) of z, in which a number is given unchanged, a category as its level's index, NaN if missing.

    Any other category counts as missing, and numbers are clipped to the training range, as in `Confounders.encode`.
    """
    columns = []
    for j, variable in enumerate(schema.variables):
        value = z[:, j]
        if isinstance(variable, Categorical):
            known = (value[:, None] == torch.arange(len(variable.levels), dtype=z.dtype)).any(dim=1)
            columns.append(torch.where(known, value, variable.missing_code))
            continue
        half = variable.high / 2 - variable.low / 2
        share = (
            (value.clamp(variable.low, variable.high) / 2 - variable.low / 2) / half if half > 0 else 0.5 + 0 * value
        )
        columns.append(torch.where(value.isnan(), variable.missing_code, 1.0 + share))
    return torch.stack(columns, dim=1)


@dataclass(frozen=True)
class TraceableRatio:
    """An `AdditiveRatio` in a form whose trace is valid for any number of rows."""

    ratio: AdditiveRatio

    def log_ratio(self, log_proba: Tensor, codes: Tensor) -> Tensor:
        """Return log f, (n, K)."""
        coefficients = self.ratio.coefficients
        at_z = features(codes, self.ratio.schema) @ coefficients.transpose(0, 1).flatten(1)
        parts = at_z.unflatten(1, coefficients.shape[::2])
        log_ratio: Tensor = parts[:, 0] + (parts[:, 1:] * to_scores(log_proba)[:, :, None]).sum(dim=1)
        return log_ratio


def traceable(part: Any) -> Any:
    """Return the same g or ratio, with all its parts in a form that can be traced."""
    if isinstance(part, AdditiveRatio):
        return TraceableRatio(part)
    own = getattr(part, "traceable", None)
    if own is not None:
        return own()
    if not is_dataclass(part) or isinstance(part, type):
        return part
    inside = {field.name: getattr(part, field.name) for field in fields(part)}
    return replace(part, **{name: traceable(value) for name, value in inside.items() if isinstance(value, Prevalence)})


def _score_part(model: Any, dtype: torch.dtype) -> nn.Module:
    if isinstance(model, GPAClassifier):
        assert isinstance(model.scorer_.module, RatioNetwork)
        return NetworkScore(model.scorer_.module, model.confounders_, dtype)
    assert isinstance(model, PrevalenceAdjuster)
    if model.estimator_ is not None:
        raise ValueError(OWN_ESTIMATOR.format(name=type(model.estimator_).__name__))
    return ProbabilityScore(traceable(model.ratio_), model.classifier_.floor)


def _joint_part(here: AdaptedClassifier, dtype: torch.dtype) -> nn.Module:
    return JointNetwork(here, dtype) if isinstance(here.model, GPAClassifier) else JointProbabilities(here)
