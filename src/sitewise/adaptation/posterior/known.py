"""A known prevalence of the site or of strata of z, used as a likelihood of the mean prediction of the rows."""

from dataclasses import dataclass

import torch
from torch import Tensor

from sitewise.adaptation.evidence import Evidence
from sitewise.adaptation.posterior.likelihood import evaluate_points, subset
from sitewise.adaptation.posterior.points import ENTRIES, Points, Strata
from sitewise.adaptation.rows import Rows
from sitewise.prevalence.prior import USUAL_DEVIATION

RESOLVED = 0.1  # resolution of the points of a posterior, in log-odds; `pulled` applies more precise knowledge later
SOME_ROWS = 2**11  # largest number of rows for mean predictions while points are weighted


@dataclass(frozen=True)
class Known:
    """The known P(y) of the site, or of S strata of z, with its uncertainty (zero if it is known exactly).

    M is the number of points of a posterior.
    """

    share: Tensor  # (S, K) P(y)
    error: Tensor  # (S, K) standard deviation of its log-odds
    strata: Strata | None = None  # None: S = 1, the whole site
    names: tuple[str, ...] = ("the site",)

    @property
    def freedom(self) -> float:
        """The standard deviation σ_grid, in log-odds, of P(y) around the mean prediction of a point (section 20)."""
        return RESOLVED if self.strata is None else USUAL_DEVIATION

    def log_likelihood(self, predicted: Tensor) -> Tensor:
        """Return the log-likelihood of each point, (M,), from its mean predictions in the strata, (S, M, K)."""
        n_classes = self.share.shape[1]
        away = torch.logit(predicted.clamp(1e-12, 1 - 1e-12)) - torch.logit(self.share)[:, None]
        variance = self.error.square()[:, None] + self.freedom**2
        return -0.5 * (n_classes - 1) / n_classes * (away.square() / variance).sum((0, 2))

    def weigh(self, evidence: Evidence, points: Points, slope: float) -> Tensor:
        """Return the log-likelihood of points, (M,); mean predictions are computed from some of the rows."""
        some = subset(evidence, SOME_ROWS)
        if self.strata is None:
            return self.log_likelihood(evaluate_points(some, points, slope=slope).predicted[None])
        return self.log_likelihood(stratum_means(some, points, slope, self.strata)[0])

    def pulled(self, predicted: Tensor, noise: Tensor) -> Tensor:
        """Return mean predictions (S, M, K) after conditioning on the known prevalence.

        The result is a draw from the conditional distribution, made with standard normal numbers `noise` (S, M, K).
        """
        known, free = self.error.square()[:, None], self.freedom**2
        at = torch.logit(predicted.clamp(1e-12, 1 - 1e-12))
        middle = (known * at + free * torch.logit(self.share)[:, None]) / (known + free)
        shares = torch.sigmoid(middle + (known * free / (known + free)).sqrt() * noise)
        return shares / shares.sum(2, keepdim=True)


def stratum_means(evidence: Evidence, points: Points, slope: float, strata: Strata | None) -> tuple[Tensor, ...]:
    """Return mean predictions (S, M, K), means of diag(p) - p pᵀ (S, M, K, K), and the rows' weights in strata (S,).

    Without strata, the whole site is one stratum.
    """
    seen = evidence.rows.map(lambda rows: (rows, False))
    if strata is None:
        if points.depends_on_z:
            seen = seen.followed_by(evidence.blank.map(lambda rows: (rows, True)))
        else:
            seen = evidence.everything.map(lambda rows: (rows, True))
    mean, square, weight = seen.total(lambda pair: _stratum_sums(pair[0], points, slope, strata, pair[1]))
    size = weight.clamp_min(1e-300)[:, None, None]
    mean, square = mean / size, square / size[..., None]
    return mean, torch.diag_embed(mean) - square, weight


def _stratum_sums(
    rows: Rows, points: Points, slope: float, strata: Strata | None, is_blank: bool
) -> tuple[Tensor, Tensor, Tensor]:
    n_points, n_classes = points.level.shape
    size = max(1, ENTRIES // (n_points * n_classes))
    total: tuple[Tensor, ...] = ()
    for start in range(0, len(rows), size):
        place = torch.arange(start, min(start + size, len(rows)), device=rows.ratio.device)
        codes = None if is_blank else rows.at_rows(rows.codes)[place]
        weight = (points.weight.new_ones(len(place)) if rows.weight is None else rows.weight[place])[:, None]
        if strata is not None and codes is not None:
            weight = weight * strata.holds(codes)
        p = _predictions(rows.ratio[place], codes, points, slope)
        square = torch.einsum("ns,nmk,nml->smkl", weight, p, p)
        sums = (torch.einsum("ns,nmk->smk", weight, p), square, weight.sum(0))
        total = tuple(a + b for a, b in zip(total, sums, strict=True)) if total else sums
    return total[0], total[1], total[2]


def log_ratio_of(ratio: Tensor) -> Tensor:
    """Return log f (n, K), up to a constant in each row, from f as it is stored in `Rows`."""
    ratio = ratio.double()
    if ratio.shape[1] > 1:
        return ratio.clamp_min(1e-300).log()
    odds = (torch.log1p(ratio) - torch.log1p(-ratio)).clamp(-700.0, 700.0)
    return torch.cat([torch.zeros_like(odds), odds], dim=1)


def _predictions(ratio: Tensor, codes: Tensor | None, points: Points, slope: float) -> Tensor:
    """Return P(y|x,z) of rows at every point, (n, M, K); `codes` is None for rows without z."""
    log_g = points.log_marginal[None] if codes is None else points.log_probs(codes)
    if points.shift is not None:
        log_g = log_g + points.shift
    own = log_ratio_of(ratio)[:, None, :]
    return torch.softmax((slope * own if points.slope is None else points.slope[:, None] * own) + log_g, dim=2)
