"""Read the caller's prior of g, to which estimates are shrunk, or a starting point of the estimation."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sitewise.adaptation.evidence import Evidence
from sitewise.arrays import Problems, align_classes, read_probability_vector, shortened
from sitewise.confounders import Confounders
from sitewise.prevalence import SitePrior
from sitewise.prevalence.base import ConstantPrevalence, Prevalence, finite, is_constant, on_device

OTHER_SCHEMA = (
    "{name} was estimated with other confounders (kinds, levels or ranges) than those given: "
    "leave confounders out, or estimate {name} with confounders= the same"
)


@dataclass(frozen=True)
class Belief:
    """A level (K,), the g(z) behind it with its schema if it depends on z, and the training sites' prior."""

    level: Tensor
    model: Prevalence | None = None
    schema: Confounders | None = None
    site_prior: SitePrior | None = None

    def prior(self) -> SitePrior:
        """Return the prior of a new site's g; K numbers or the estimate of another site get the usual scales."""
        source = ConstantPrevalence(finite(self.level.log())) if self.model is None else self.model
        return SitePrior(source) if self.site_prior is None else replace(self.site_prior, prevalence=source)

    def level_at(self, evidence: Evidence) -> Tensor:
        """Return the mean of g over the site's rows; without z, the level."""
        if self.model is None or not evidence.seen_weight:
            return self.level
        model = self.model
        return evidence.mean(lambda codes: model.log_prob(codes).exp())

    def centre_at(self, evidence: Evidence) -> Prevalence:
        """Return the g to which a g(z) at this site is shrunk."""
        if self.model is None or not evidence.seen_weight:
            return ConstantPrevalence(finite(self.level.log()))
        return self.model


def read_belief(
    value: Any, name: str, n_classes: int, columns: Any, device: torch.device, problems: Problems
) -> Belief | None:
    """Read K probabilities (a Series by its labels, if these are the classes in `columns`) or another estimate."""
    if value is None:
        return None
    if isinstance(value, SitePrior):
        belief = read_belief(value.prevalence, name, n_classes, columns, device, problems)
        return None if belief is None else replace(belief, site_prior=value)
    model = getattr(value, "prevalence", value)
    if isinstance(model, Prevalence):
        schema = getattr(model, "schema", getattr(value, "confounders", None))
        return _read_model(on_device(model, device), schema, name, n_classes, device, problems)
    try:
        return Belief(read_probability_vector(align_classes(value, columns), n_classes, device))
    except (TypeError, ValueError) as error:
        problems.add(f"{name} must be {n_classes} probabilities or an estimate, got {shortened(value)} ({error})")
        return None


def _read_model(
    model: Prevalence,
    schema: Confounders | None,
    name: str,
    n_classes: int,
    device: torch.device,
    problems: Problems,
) -> Belief | None:
    nothing = torch.zeros(0, dtype=torch.float64, device=device) if schema is None else schema.missing_codes(device)
    level = model.log_prob(nothing[None])[0].exp()
    if len(level) != n_classes:
        problems.add(f"{name} is an estimate for {len(level)} classes, log_ratio has {n_classes}")
        return None
    if is_constant(model) or schema is None:
        return Belief(level)
    return Belief(level, model, schema)


def shared_schema(
    confounders: Confounders | None, prior: Belief | None, start: Belief | None, problems: Problems
) -> Confounders | None:
    """Return the schema of Z: the given one, else that of a prior or start that depends on z."""
    for name, belief in (("prior", prior), ("start", start)):
        if belief is None or belief.schema is None:
            continue
        if confounders is not None and confounders != belief.schema:
            problems.add(OTHER_SCHEMA.format(name=name))
        confounders = confounders or belief.schema
    return confounders
