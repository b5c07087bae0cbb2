"""The g of the labeled rows that f comes from, as a prior that knows how far f can be trusted (section 18)."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sitewise.confounders import Confounders
from sitewise.posterior import combine
from sitewise.prevalence.base import Prevalence

RANK = 1e-6  # of the largest eigenvalue, below which scores say nothing
USUAL_SPREAD = 1.5  # of a level between sites, in log-odds: odds 4.5 times higher or lower are nothing special
USUAL_SITES = 2.0  # that this is worth


@dataclass(frozen=True)
class SourcePrevalence:
    """log g(z) of the source rows, kept as it is where a new site's rows do not speak against it.

    `n_rows` source rows have balanced f, `missing` is the share of what a label tells that f leaves unsaid, and
    `between` how far f's balance differs between source sites: what rows of a new site tell is discounted by the error
    that f has from there. `spread` is how far the level of g differs between sites, in log-odds, as `n_sites` of them
    tell: an estimate much farther off is surprising, and must be the likelier for it.
    """

    prevalence: Prevalence
    n_rows: float
    missing: float  # from 0, f says it all, to 1, f says nothing
    between: float = 0.0  # its inverse is a number of rows, beyond which more of them tell nothing new
    spread: float = USUAL_SPREAD
    n_sites: int = 1
    name: str = "source"

    @property
    def schema(self) -> Confounders | None:
        """The schema of z, where g depends on it."""
        return getattr(self.prevalence, "schema", None)

    def log_prob(self, codes: Tensor) -> Tensor:
        """Evaluate rows of codes."""
        return self.prevalence.log_prob(codes)

    def discount(self, n_rows: float) -> float:
        """What each of a new site's unlabeled rows counts for, in (0, 1] (equation 18c)."""
        return discount(n_rows, self.n_rows, self.missing, self.between)

    def surprise(self, shift: Tensor) -> float:
        """By how much less log-likely than no shift a shift (K,) of the log level is (equation 18f)."""
        return surprise(shift, self.spread, self.n_sites)


def discount(n_rows: float, n_source: float, missing: float, between: float = 0.0) -> float:
    """1 / (1 + n (missing / n_source + between)): what a row counts for beside the source's own error (18c)."""
    return 1.0 / (1.0 + n_rows * (missing / n_source + between))


def level_shift(counts: Tensor, expected: Tensor) -> Tensor:
    """Log of counts (..., K) over expected ones, half a row added to each; a factor common to all classes is out."""
    logs = ((counts + 0.5) / (expected + 0.5)).log()
    return logs - logs.mean(dim=-1, keepdim=True)


def level_spread(counts: Tensor, expected: Tensor) -> float:
    """s of equation 18f: how far levels differ between sites, from their classes' counts (E, K) and those expected.

    What chance makes of a site's counts is taken out; a usual spread counts as two sites.
    """
    n_sites, n_classes = counts.shape
    chance = (1.0 / (expected + 0.5)).sum(dim=1) * (1.0 - 1.0 / n_classes)
    excess = (level_shift(counts, expected).square().sum(dim=1) - chance).clamp_min(0.0)
    usual = 0.5 * USUAL_SPREAD**2 * (n_classes - 1)  # two classes a log-odds apart are half of it from their mean each
    found = (USUAL_SITES * usual + excess.sum()) / (USUAL_SITES + n_sites - 1.0)
    return float((2.0 * found / (n_classes - 1)).sqrt())


def surprise(shift: Tensor, spread: float, n_sites: int) -> float:
    """log of Student's density at no shift over that at a shift (K,) of the log level, a factor common to all out."""
    freedom, dimension = USUAL_SITES + n_sites - 1.0, len(shift) - 1
    apart = 2.0 * float((shift - shift.mean()).square().sum()) / spread**2
    return 0.5 * (freedom + dimension) * math.log1p(apart / freedom)


def missing_information(log_ratio: Tensor, log_prevalence: Tensor, weight: Tensor) -> float:
    """The share of what labels tell that f leaves unsaid: E[1 - Σ r²] / E[1 - Σ g²], cut off at 1 (18b)."""
    doubt, whole = (
        weight @ (1.0 - at.exp().square().sum(dim=1)) for at in (combine(log_ratio, log_prevalence), log_prevalence)
    )
    return float((doubt / whole.clamp_min(torch.finfo(whole.dtype).tiny)).clamp(0.0, 1.0))


def excess_between_sites(scores: Tensor, site: Tensor, weight: Tensor, missing: float) -> float:
    """ψ of equation 18d: how much more the sums of scores (n, P) differ between sites than rows' noise explains.

    Zero for one site, and where the difference is within a standard error of chance.
    """
    numbers, index = torch.unique(site, return_inverse=True)
    if len(numbers) < 2:
        return 0.0
    weighted = weight[:, None] * scores
    sums = scores.new_zeros(len(numbers), scores.shape[1]).index_add_(0, index, weighted)
    sizes = weight.new_zeros(len(numbers)).index_add_(0, index, weight)
    values, vectors = torch.linalg.eigh(scores.T @ weighted / weight.sum())
    told = values > RANK * values.max().clamp_min(torch.finfo(values.dtype).tiny)
    if not told.any():
        return 0.0
    whitened = sums @ (vectors[:, told] / values[told].sqrt())
    count = float(told.sum())
    dealt = len(numbers) * count  # degrees of freedom, of which chance takes one standard error more
    by_chance = missing * (dealt + (2.0 * dealt) ** 0.5)
    excess = ((whitened.square().sum(dim=1) / sizes).sum() - by_chance) / (count * sizes.sum())
    return max(0.0, float(excess))
