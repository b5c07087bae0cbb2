"""The g of the labeled rows that f comes from, as a prior that knows how far f can be trusted (section 17)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from sitewise.confounders import Confounders
from sitewise.posterior import combine
from sitewise.prevalence.base import Prevalence


@dataclass(frozen=True)
class SourcePrevalence:
    """log g(z) of the source rows, kept as it is where a new site's rows do not speak against it.

    `n_rows` source rows have balanced f, and `missing` is the share of what a label tells that f leaves unsaid: what
    rows of a new site tell is discounted by the error that f has from there.
    """

    prevalence: Prevalence
    n_rows: float
    missing: float  # from 0, f says it all, to 1, f says nothing
    name: str = "source"

    @property
    def schema(self) -> Confounders | None:
        """The schema of z, where g depends on it."""
        return getattr(self.prevalence, "schema", None)

    def log_prob(self, codes: Tensor) -> Tensor:
        """Evaluate rows of codes."""
        return self.prevalence.log_prob(codes)

    def discount(self, n_rows: float) -> float:
        """What each of a new site's unlabeled rows counts for, in (0, 1] (equation 17c)."""
        return discount(n_rows, self.n_rows, self.missing)


def discount(n_rows: float, n_source: float, missing: float) -> float:
    """1 / (1 + missing · n / n_source): what a row counts for once the source's own error is allowed for (17c)."""
    return 1.0 / (1.0 + missing * n_rows / n_source)


def missing_information(log_ratio: Tensor, log_prevalence: Tensor, weight: Tensor) -> float:
    """The share of what labels tell that f leaves unsaid: E[1 - Σ r²] / E[1 - Σ g²], cut off at 1 (17b)."""
    doubt, whole = (
        weight @ (1.0 - at.exp().square().sum(dim=1)) for at in (combine(log_ratio, log_prevalence), log_prevalence)
    )
    return float((doubt / whole.clamp_min(torch.finfo(whole.dtype).tiny)).clamp(0.0, 1.0))
