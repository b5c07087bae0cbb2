"""Draws of g from the distribution of its estimation error, around all candidate fits (equation 11c).

The coefficients of linear logits are drawn from a normal distribution by their curvature. If P(Y) is near 0 or 1, these
draws are weighted by their likelihood. A free distribution over two classes is drawn from its likelihood. A free
distribution over more classes is drawn from a normal distribution by its curvature, and clipped at zero. A g without
curvature is drawn from its bootstrap refits.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sitewise.adaptation.cell_problem import CellProblem
from sitewise.adaptation.cells import one_cell
from sitewise.adaptation.evidence import Evidence
from sitewise.adaptation.fit import Candidate, Fit
from sitewise.adaptation.posterior.points import Points
from sitewise.arrays import Container, distinct_rows, index_of
from sitewise.confounders import Confounders
from sitewise.posterior import contrasts, normalize
from sitewise.prevalence.base import Prevalence, finite
from sitewise.uncertainty import CellCurvature, LinearCurvature, at_least, near_a_bound

ENOUGH = 2**13  # at most so many rows of z are used for the mean of a draw
LOGIT_REACH = 16.0  # largest log-odds of a share
GRID = 64  # points on which a likelihood is evaluated
NEGLIGIBLE = 12.0  # decrease of the log-likelihood beyond which the density is negligible
SMALLEST = 1e-9  # smallest share of a class in a draw

Encode = Callable[[Any], Tensor]


@dataclass(frozen=True)
class LinearDraws:
    """B draws around a g with linear logits in D features: the fitted g, and changes of its coefficients."""

    base: Prevalence
    features: Callable[[Tensor], Tensor]
    shift: Tensor  # (B, D, K) changes of the coefficients
    log_marginal: Tensor  # (B, K)
    schema: Confounders | None

    def log_prob(self, codes: Tensor) -> Iterator[Tensor]:
        """Yield log g of each draw, (n, K); for a row with all z missing, g is the draw's mean over the site."""
        at_base, design = self.base.log_prob(codes), self.features(codes)
        blank = torch.zeros(len(codes), 1, dtype=torch.bool, device=codes.device)
        if self.schema is not None:
            blank = self.schema.missing(codes).all(dim=1, keepdim=True)
        any_blank = bool(blank.any())
        for shift, log_marginal in zip(self.shift, self.log_marginal, strict=True):
            logits = torch.log_softmax(at_base + design @ shift, dim=1)
            yield torch.where(blank, log_marginal, logits) if any_blank else logits


@dataclass(frozen=True)
class CellDraws:
    """B draws of the free distributions of C cells."""

    cells: Tensor  # (B, C, K) probabilities
    log_marginal: Tensor  # (B, K)
    agreement: Callable[[Tensor], Tensor]  # codes (n, V) -> (n, C)

    def log_prob(self, codes: Tensor) -> Iterator[Tensor]:
        """Yield log g of each draw, (n, K)."""
        if self.cells.shape[1] == 1:
            for cells in self.cells:
                yield finite(cells.log()).expand(len(codes), -1)
            return
        distinct, index = distinct_rows(codes)
        share = self.agreement(distinct)
        for cells in self.cells:
            yield finite((share @ cells).log())[index]


@dataclass(frozen=True)
class PointDraws:
    """B points drawn from a posterior by their weights."""

    points: Points
    chosen: Tensor  # (B,) index of the drawn points
    slope: float = 1.0  # on log f in predictions, unless each point has its own slope

    @property
    def log_marginal(self) -> Tensor:
        """log P(Y) of every draw, (B, K)."""
        return self.points.log_marginal[self.chosen]

    def log_prob(self, codes: Tensor) -> Iterator[Tensor]:
        """Yield log g of each draw, (n, K)."""
        log_g = self.points.log_probs(codes)
        for number in self.chosen.tolist():
            yield log_g[:, number].expand(len(codes), -1)

    def added(self, log_ratio: Tensor, codes: Tensor, applied: float) -> Iterator[Tensor]:
        """Yield the term that each draw adds to `applied` times log f in predictions, (n, K).

        The term is log g, plus the draw's error of f if the site has labels or a known prevalence.
        """
        shift, slopes = self.points.shift, self.points.slope
        if shift is None:
            yield from self.log_prob(codes)
            return
        scores = normalize(log_ratio).clamp_min(-700.0)
        for number, log_g in zip(self.chosen.tolist(), self.log_prob(codes), strict=True):
            slope = self.slope if slopes is None else float(slopes[number])
            yield log_g + shift[number] + (slope - applied) * scores


@dataclass(frozen=True)
class RefitDraws:
    """Draws that are refits of g to resamples of the rows."""

    models: tuple[Prevalence, ...]
    log_marginal: Tensor  # (B, K)

    def log_prob(self, codes: Tensor) -> Iterator[Tensor]:
        """Yield log g of each draw, (n, K)."""
        for model in self.models:
            yield model.log_prob(codes)


@dataclass(frozen=True)
class PrevalenceDraws:
    """Draws of g, which can be evaluated at any z.

    Examples
    --------
    >>> draws = estimate.draws(200, random_state=0)
    >>> draws.marginal                                   # (200, K)
    >>> for log_g in draws.log_prevalence(Z): ...        # (n, K) each
    """

    parts: tuple[LinearDraws | CellDraws | PointDraws | RefitDraws, ...] = field(repr=False)
    _encode: Encode = field(repr=False)
    _container: Container = field(repr=False)

    def __len__(self) -> int:
        return sum(len(part.log_marginal) for part in self.parts)

    @property
    def marginal(self) -> Any:
        """P(Y) over the site's rows in every draw, (B, K)."""
        return torch.cat([part.log_marginal for part in self.parts]).exp().cpu().numpy()

    def log_prevalence(self, Z: Any) -> Iterator[Any]:
        """Yield log P(Y|Z) of each draw, (n, K), for confounders Z of n rows."""
        for log_g in self.log_prob(self._encode(Z)):
            yield self._container.rows(log_g, index_of(Z))

    def added(self, log_ratio: Tensor, codes: Tensor, applied: float = 1.0) -> Iterator[Tensor]:
        """Yield the term that each draw adds to `applied` times log f (n, K) in predictions, (n, K)."""
        for part in self.parts:
            yield from part.added(log_ratio, codes, applied) if isinstance(part, PointDraws) else part.log_prob(codes)

    def log_prob(self, codes: Tensor) -> Iterator[Tensor]:
        """Yield log g of each draw at rows of codes, (n, K)."""
        for part in self.parts:
            yield from part.log_prob(codes)


Drawn = LinearDraws | CellDraws
Draw = Callable[[Evidence, Fit, int, torch.Generator], Drawn]


def draw_fits(
    evidence: Evidence, fit: Fit, n_draws: int, generator: torch.Generator, draw: Draw
) -> tuple[LinearDraws | CellDraws | PointDraws, ...]:
    """Draw around the fit, or around its candidates in proportion to their weights (equation 11b).

    Posteriors are drawn by the weights of their points. If f is not informative, g is drawn uniformly.
    """
    if fit.posterior is not None:
        points = fit.posterior.points
        chosen = torch.multinomial(points.weight.cpu(), n_draws, replacement=True, generator=generator)
        return (PointDraws(points, chosen.to(points.weight.device), fit.posterior.slope),)
    if not fit.identified:
        return (_anything(evidence, n_draws, generator),)
    if not fit.candidates:
        return (draw(evidence, fit, n_draws, generator),)
    return tuple(
        draw(evidence, candidate, count, generator) for candidate, count in deal(fit.candidates, n_draws, generator)
    )


def draw_refits(models: Sequence[Prevalence], marginal: Any, n_draws: int, generator: torch.Generator) -> RefitDraws:
    """Draw among R refits of g, whose P(Y) is `marginal` (R, K); the refits are drawn equally often, up to one draw."""
    rounds = [torch.randperm(len(models), generator=generator) for _ in range(-(-n_draws // len(models)))]
    chosen = torch.cat(rounds)[:n_draws]
    log_marginal = finite(torch.as_tensor(marginal)[chosen].log())
    return RefitDraws(tuple(models[number] for number in chosen.tolist()), log_marginal)


def deal(candidates: tuple[Candidate, ...], n_draws: int, generator: torch.Generator) -> Iterator[tuple[Fit, int]]:
    """Divide draws among the candidate fits at random, by their weights; yield the fits with their numbers of draws."""
    shares = torch.tensor([candidate.weight for candidate in candidates], dtype=torch.float64)
    drawn = torch.multinomial(shares, n_draws, replacement=True, generator=generator)
    counts = torch.bincount(drawn, minlength=len(shares)).tolist()
    return ((candidate.finish(), count) for candidate, count in zip(candidates, counts, strict=True) if count)


def _anything(evidence: Evidence, n_draws: int, generator: torch.Generator) -> CellDraws:
    """Draw constant g uniformly from the simplex, for an f that is not informative."""
    uniform = torch.rand(n_draws, 1, evidence.n_classes, generator=generator, dtype=torch.float64)
    weight = -uniform.clamp_min(1e-300).log()
    cells = (weight / weight.sum(2, keepdim=True)).to(evidence.device)
    return CellDraws(cells, finite(cells[:, 0].log()), one_cell)


def draw_linear(
    evidence: Evidence,
    fit: Fit,
    n_draws: int,
    generator: torch.Generator,
    missing_columns: Sequence[int] | None = None,
    log_likelihood: Callable[[Tensor], Tensor] | None = None,
) -> LinearDraws:
    """Draw the coefficients of linear logits from a normal distribution by their curvature.

    `missing_columns` are the positions of the features for missing values. If a variable is never missing, the
    coefficient of its feature is not drawn, because it follows from the others (see `fit_missing_columns`).
    `log_likelihood` maps changes of the P coefficients in B draws, (B, P), to changes of the log-likelihood, (B,). It
    is used to weight the draws if the site's mean of g is near 0 or 1.
    """
    curvature, model = fit.curvature, fit.prevalence
    assert isinstance(curvature, LinearCurvature)
    covariance = curvature.coefficient_covariance
    if curvature.grouped_covariance is not None:
        covariance = at_least(curvature.grouped_covariance, covariance)
    codes, weight = _some_rows(evidence)
    basis = contrasts(evidence.n_classes, evidence.device)
    schema = evidence.schema
    if missing_columns is not None:
        assert schema is not None
        covariance = _without_silent(covariance, schema, missing_columns, codes, basis.shape[1])
    moved = _normal(covariance[None], n_draws, generator)[:, 0]
    shift = moved.reshape(n_draws, -1, basis.shape[1]) @ basis.T
    draws = LinearDraws(model, curvature.features, shift, shift.new_zeros(n_draws, evidence.n_classes), schema)
    log_means = finite(torch.stack([(weight @ at.exp() / weight.sum()).log() for at in draws.log_prob(codes)]))
    if log_likelihood is not None and _may_mislead(curvature, codes, weight):
        taken_for = ((moved @ torch.linalg.pinv(covariance, rtol=1e-9, hermitian=True)) * moved).sum(1) / 2
        gain = log_likelihood(moved) / (evidence.groups.mean_size if evidence.groups else 1.0)
        likelier = taken_for + gain + log_means.sum(1)
        share = torch.softmax(likelier, dim=0).clamp_max(n_draws**-0.5).cpu()  # truncated importance weights
        again = torch.multinomial(share, n_draws, replacement=True, generator=generator).to(shift.device)
        shift, log_means = shift[again], log_means[again]
    return LinearDraws(model, curvature.features, shift, log_means, schema)


def _without_silent(
    covariance: Tensor, schema: Confounders, columns: Sequence[int], codes: Tensor, width: int
) -> Tensor:
    """Return the covariance (P, P) of P coefficients, set to zero for missing columns of variables never missing."""
    never = ~schema.missing(codes).any(dim=0)
    speaks = covariance.new_ones(len(covariance) // width)
    speaks[[c for c, unseen in zip(columns, never.tolist(), strict=True) if unseen]] = 0.0
    kept = speaks.repeat_interleave(width)
    return kept[:, None] * covariance * kept


def _may_mislead(curvature: LinearCurvature, codes: Tensor, weight: Tensor) -> bool:
    """Return whether the site's mean of g is so near 0 or 1 that curvature alone is misleading."""
    mean = weight @ curvature.log_prob(codes).exp() / weight.sum()
    return bool(near_a_bound(mean, torch.diagonal(curvature.of_mean())).any())


def draw_cells(
    evidence: Evidence,
    fit: Fit,
    problem: CellProblem,
    centre: Tensor,
    share: Tensor,
    n_draws: int,
    generator: torch.Generator,
) -> CellDraws:
    """Draw the free distribution of each of C cells around `centre` (C, K).

    With two classes, it is drawn from its likelihood; with more classes, from a normal distribution by its curvature.
    `share` (C,) is the share of the site's rows in each cell.
    """
    curvature = fit.curvature
    assert isinstance(curvature, CellCurvature)
    level = _normal(curvature.level_covariance[None], n_draws, generator)[:, 0]
    pulled = torch.einsum("ckl,bl->bck", curvature.pull, level)
    if evidence.n_classes == 2:
        inflation = evidence.groups.mean_size if evidence.groups else 1.0
        cells = _from_likelihood(problem, centre, inflation, n_draws, generator)
    else:
        cells = centre + _normal(curvature.covariance, n_draws, generator)
    cells = (cells + pulled).clamp_min(SMALLEST)
    cells = cells / cells.sum(2, keepdim=True)
    return CellDraws(cells, finite(torch.einsum("c,bck->bk", share, cells).log()), curvature.agreement)


def _from_likelihood(
    problem: CellProblem, like: Tensor, inflation: float, n_draws: int, generator: torch.Generator
) -> Tensor:
    """Draw each cell's two shares from its likelihood, with a uniform prior, on a grid of log-odds, (B, C, 2)."""
    n_cells = len(like)

    def density(logits: Tensor) -> Tensor:
        """Return the log-density, (G, C), at G log-odds of each cell, (G, C)."""
        shares = torch.stack([torch.sigmoid(-logits), torch.sigmoid(logits)], dim=2)
        log_density = torch.stack([problem.log_likelihood(at, order=0) for at in shares]) / inflation
        return log_density + torch.log(shares).sum(2)

    steps = torch.linspace(0, 1, GRID, dtype=torch.float64, device=like.device)[:, None]
    low = like.new_full((n_cells,), -LOGIT_REACH)
    high = -low
    for _ in range(2):  # narrow the grid to the range in which the density is not negligible
        logits = low + (high - low) * steps
        height = density(logits)
        alive = height > height.amax(0) - NEGLIGIBLE
        width = (high - low) / (GRID - 1)
        low = torch.where(alive, logits, torch.inf).amin(0) - width
        high = torch.where(alive, logits, -torch.inf).amax(0) + width
    logits = low + (high - low) * steps
    height = density(logits)
    mass = (height - height.amax(0)).exp()
    between = torch.cumsum((mass[1:] + mass[:-1]) / 2, dim=0)
    cumulative = torch.cat([torch.zeros_like(between[:1]), between]) / between[-1]
    uniform = torch.rand(n_draws, n_cells, generator=generator, dtype=torch.float64).numpy()
    columns = zip(uniform.T, cumulative.T.cpu().numpy(), logits.T.cpu().numpy(), strict=True)
    drawn = np.stack([np.interp(u, c, x) for u, c, x in columns], axis=1)
    odds = torch.tensor(drawn, device=like.device)
    return torch.stack([torch.sigmoid(-odds), torch.sigmoid(odds)], dim=2)


def _normal(covariance: Tensor, n_draws: int, generator: torch.Generator) -> Tensor:
    """Return B normal draws, (B, C, P), of C vectors of P numbers with mean zero and covariances (C, P, P)."""
    values, vectors = torch.linalg.eigh(covariance)
    noise = torch.randn(n_draws, *values.shape, generator=generator, dtype=torch.float64).to(covariance.device)
    return torch.einsum("cpq,bcq->bcp", vectors, values.clamp_min(0).sqrt() * noise)


def _some_rows(evidence: Evidence) -> tuple[Tensor, Tensor]:
    """Return codes and weights of the distinct z, or of every n-th of them if there are very many rows."""
    step = 1 + evidence.n_rows // ENOUGH
    samples = evidence.rows.collect(lambda rows: (rows.codes[::step], rows.cell_weight[::step]))
    codes, weight = (torch.cat(parts) for parts in zip(*samples, strict=True))
    return codes, weight
