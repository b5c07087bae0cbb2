"""The interface of a family of models of g.

A new family is a subclass of `Family` with an entry of `FAMILIES`. It must provide a fit to labels, and the records
with which its g is saved. By default, g is estimated from unlabeled rows by EM, with the fit to labels as M-step. A
family with a better method overrides `fit_rows`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sitewise.adaptation.draws import CellDraws, LinearDraws, draw_linear
from sitewise.adaptation.evidence import Evidence
from sitewise.adaptation.fit import Fit, no_curvature
from sitewise.adaptation.rows import Rows, moments
from sitewise.artifacts import Record
from sitewise.confounders import Confounders
from sitewise.prevalence.base import Prevalence
from sitewise.solvers import EM, em
from sitewise.uncertainty import Average, CellCurvature

KNOCKOUT = 0.5
EM_ITERATIONS = 500
EM_TOLERANCE = 1e-6  # of the largest change of g in one iteration


@dataclass(frozen=True)
class Request:
    """The arguments of an estimation of g from a site's rows."""

    evidence: Evidence
    strength: str | float  # how strongly g is shrunk; with "auto" it is chosen
    solver: str | EM
    aim: Tensor  # (K,) the shrinkage target of a constant g
    centre: Prevalence | None  # the shrinkage target of a g(z); None without a prior
    begin: Tensor  # (K,) the constant g at which the solver starts, unless `constant` is known
    start: Prevalence | None  # the g(z) at which the solver starts, if the caller gave one
    seed: int
    constant: Fit | None = None  # the constant g fitted to the same rows
    started: bool = False  # whether the caller gave a start

    @property
    def level(self) -> Tensor:
        """The constant g (K,) at which the fit of a g(z) starts."""
        return self.begin if self.started or self.constant is None else constant_level(self.constant)


class Family(ABC):
    """A family of models of g, which can be fitted to labeled and to unlabeled rows.

    Attributes
    ----------
    name : str
        The family's name for users, and the `name` of every g that it fits.
    needs_z : bool
        Whether the family requires confounders.
    solvers : tuple of str
        The supported solvers, among "auto", "newton", "lbfgs" and "em".
    concave : bool
        Whether the likelihood is concave. If it is, a small gap proves that the optimum was found.
    quick : bool
        Whether a fit is fast enough to be repeated many times (in planning, in rehearsals, from other starts).
    takes_prior : bool
        Whether the estimate becomes a posterior (section 18 of docs/maths.md) if a prior is given.
    takes_strength : bool
        Whether the user can choose the `strength` of the shrinkage.
    in_cells : bool
        Whether g is a free distribution in each cell (combination of values) of z. Intervals are then computed cell by
        cell.
    advice : str
        The advice in the warning that a fit did not converge.
    records : mapping from str to Record
        How objects of the family are saved: for each class of such objects (of g, and of functions that refit g), a
        `Record`, by the name that it has in saved folders.

    Examples
    --------
    >>> FAMILIES["step"] = Step()  # docs/extending.md has the whole family
    >>> estimate_prevalence(log_ratio, Z, model="step")
    """

    name: ClassVar[str]
    needs_z: ClassVar[bool] = True
    solvers: ClassVar[tuple[str, ...]] = ("auto", "em")
    concave: ClassVar[bool] = False
    quick: ClassVar[bool] = True
    takes_prior: ClassVar[bool] = True
    takes_strength: ClassVar[bool] = False
    in_cells: ClassVar[bool] = False
    advice: ClassVar[str] = "use model='constant'"
    records: ClassVar[Mapping[str, Record]]

    @abstractmethod
    def fit_labels(
        self, targets: Tensor, codes: Tensor, weight: Tensor, schema: Confounders, *, knockout: float, seed: int
    ) -> Prevalence:
        """Fit g to soft labels.

        Parameters
        ----------
        targets : Tensor of shape (n, K)
            The soft labels: probabilities of the classes for each row, which are one-hot if the labels are known, or
            predictions in the M-step of EM.
        codes : Tensor of shape (n, V)
            The confounders z of the rows, as `schema.encode` returns them.
        weight : Tensor of shape (n,)
            Weights of the rows.
        schema : Confounders
            The schema of z.
        knockout : float
            The probability with which each variable of z is made missing in a row while g is fitted. A family that
            computes g at missing z in another way may ignore it.
        seed : int
            The seed for random numbers.

        Returns
        -------
        Prevalence
            The fitted g, with the attributes `name` and `schema` and the method `log_prob(codes)`.
        """

    def with_dropout(self, dropout: float) -> "Family":
        """Return the family with the given dropout; by default unchanged, because only networks have dropout."""
        return self

    def fit_rows(self, request: Request) -> Fit:
        """Estimate g from unlabeled rows. By default, this is EM whose M-step is `fit_labels`.

        Parameters
        ----------
        request : Request
            The site's rows, and the arguments of `estimate_prevalence` that matter for the fit.

        Returns
        -------
        Fit
            The estimated g, its log-likelihood, how far it is from the optimum (`gap`), and the log-likelihood of each
            iteration (`trace`).
        """
        return fit_by_em(self, request)

    def candidates(self, request: Request) -> list[Fit]:
        """Return the fits of this family that take part in the choice of `model="auto"`.

        Parameters
        ----------
        request : Request
            The same request as for `fit_rows`.

        Returns
        -------
        list of Fit
            The candidate fits, for example one for each strength. Empty by default: the family is not a candidate.
        """
        return []

    def finish(self, fit: Fit, evidence: Evidence) -> Fit:
        """Return a fit with g at rows that lack values of z, if `fit_rows` did not fit it there.

        A family whose `fit_rows` does so need not override this method: it returns `fit` itself.
        """
        return fit

    def draw(self, evidence: Evidence, fit: Fit, n_draws: int, generator: torch.Generator) -> LinearDraws | CellDraws:
        """Draw g around a fit (equation 11c)."""
        return draw_linear(evidence, fit, n_draws, generator)

    def whole_site(self, site: Evidence, fit: Fit) -> Average:
        """Return the site's mean of g, in the form that intervals need."""
        curvature = fit.curvature
        assert not isinstance(curvature, CellCurvature)
        return Average(site.mean, None, curvature.easiest)

    def cells_of(self, fit: Fit, codes: Tensor) -> Average:
        """Return the g of one row of codes (1, V), in the form that intervals need; only for a family `in_cells`."""
        raise NotImplementedError(f"{self.name} g is not made of cells")


def constant_level(fit: Fit) -> Tensor:
    """Return the constant g (K,) of a fit."""
    nothing = torch.zeros(1, 0, dtype=torch.float64)
    return fit.prevalence.log_prob(nothing)[0].exp()


@dataclass(frozen=True)
class SiteLikelihood:
    """The observed log-likelihood and its gradient as functions of g at the U distinct z of all chunks, (U, K)."""

    evidence: Evidence
    stretches: list[Rows]

    @property
    def codes(self) -> Tensor:
        """The distinct z of all chunks, (U, V)."""
        return torch.cat([rows.codes for rows in self.stretches])

    def likelihood(self, prevalence: Tensor) -> tuple[Tensor, Tensor]:
        """Return L(g), equation 7, and its derivative in g, (U, K)."""
        parts = prevalence.split([len(rows.codes) for rows in self.stretches])
        by_stretch = [moments(rows, part, 1) for rows, part in zip(self.stretches, parts, strict=True)]
        total, slope = sum(m.log_likelihood.sum() for m in by_stretch), torch.cat([m.slope for m in by_stretch])
        if self.evidence.blank_weight:
            share = torch.cat([m.weight for m in by_stretch])[:, None] / self.evidence.seen_weight
            blank = self.evidence.blank_moments((share * prevalence).sum(0), 1)
            total, slope = total + blank.log_likelihood[0], slope + share * blank.slope
        return torch.as_tensor(total), slope

    def soft_labels(self, prevalence: Tensor) -> Tensor:
        """Return the result of the E-step: responsibilities summed over rows with equal z, (U, K)."""
        return prevalence * self.likelihood(prevalence)[1]


@dataclass(frozen=True)
class RefitByEM:
    """A function that refits g by EM after a change of the rows' weights or of f."""

    family: str
    seed: int

    def __call__(self, drawn: Evidence) -> Prevalence:
        """Return the refitted g."""
        from sitewise.adaptation.families import FAMILIES

        even = torch.full((drawn.n_classes,), 1.0 / drawn.n_classes, dtype=torch.float64, device=drawn.device)
        request = Request(drawn, "auto", "auto", even, None, even, None, self.seed)
        return fit_by_em(FAMILIES[self.family], request).prevalence


def fit_by_em(family: Family, request: Request) -> Fit:
    """Estimate g from unlabeled rows by the paper's algorithm 1, with the family's fit to labels as M-step."""
    evidence = request.evidence
    schema = evidence.schema
    assert schema is not None
    site = SiteLikelihood(evidence, list(evidence.rows))
    codes = site.codes
    changes: list[Tensor] = [codes.new_tensor(torch.inf)]

    def at(model: Prevalence) -> Tensor:
        return model.log_prob(codes).exp()

    def m_step(totals: Tensor, model: Prevalence | None) -> Prevalence:
        weight = totals.sum(1)
        targets = totals / weight.clamp_min(1e-300)[:, None]
        fitted = family.fit_labels(targets, codes, weight, schema, knockout=KNOCKOUT, seed=request.seed)
        if model is not None:
            changes.append((at(fitted) - at(model)).abs().max())
        return fitted

    solver = request.solver
    solution = em(
        m_step(site.soft_labels(request.level.expand(len(codes), -1)), None),
        lambda model: site.soft_labels(at(model)),
        m_step,
        objective=lambda model: -site.likelihood(at(model))[0],
        gap=lambda model: changes[-1],
        tolerance=EM_TOLERANCE,
        max_iter=(solver.iterations if isinstance(solver, EM) else None) or EM_ITERATIONS,
    )

    return Fit(
        solution.point,
        log_likelihood=-float(solution.trace[-1]),
        converged=solution.converged,
        gap=float(solution.gap),
        tolerance=EM_TOLERANCE,
        n_iter=solution.n_iter,
        trace=[-float(value) for value in solution.trace],
        strength=0.0,
        post_fit=no_curvature,
        refit=RefitByEM(family.name, request.seed),
    )
