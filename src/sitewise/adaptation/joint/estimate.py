"""The public door: a site's P(z, y) over a bank of z-points from unlabeled rows without z."""

import warnings
from dataclasses import dataclass
from functools import cache
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from sitewise.adaptation.joint.answer import JointEstimate, class_profiles, read_ratios
from sitewise.adaptation.joint.mixture import CURVED_ENTRIES, Mixture, make_mixture
from sitewise.arrays import Container, Problems, read_weight, to_tensor
from sitewise.solvers import ROUNDING, Solution, interior

STRENGTHS = (1000.0, 300.0, 100.0, 30.0, 10.0, 3.0, 1.0)
SLACK = 1.0  # of left-out log-likelihood: so much less may a weaker prior predict, for the site is thought to differ
FAR_WORSE = 5.0
TOLERANCE = 1e-8
SINGLE_TOLERANCE = 1e-6  # where rows are kept in single precision
ROUGH_TOLERANCE = 1e-4  # on the way to the strength chosen

OPEN = (
    "the rows do not tell how common the classes are: other mixtures over z explain them as well, "
    "and the prior decides. Check that log_joint_ratio comes from an informative model, or give z"
)
NOT_CONVERGED = "the joint estimate did not converge in {n_iter} iterations (gap {gap:.1e}, wanted {wanted:.0e})"
STEERING_ENTRIES = 2**22  # of rows whose curvature steers the steps of all: the gap, over all rows, decides
STEERING_ROWS = 16  # for each cell at least
PATIENCE = 30  # iterations before more rows steer
SINGLE_ROUNDING = 1e-9  # of a likelihood that is summed in single precision
ROUGHLY = 1e-4  # the gap to which sums in single precision lead for certain; from there on they are in double
FAINT = 1e-6  # rows' worth: cells at nothing stay there
ROWS_FOR_ONE = 1e4  # where so many rows say less than one labeled row would, they say nothing


def estimate_joint(
    log_joint_ratio: Any, *, prior: Any = None, strength: str | float = "auto", sample_weight: Any = None
) -> JointEstimate:
    """Estimate a site's joint distribution of (z, y) from unlabeled rows that lack z (equation 15).

    Parameters
    ----------
    log_joint_ratio : (n, M, K) log r(x,y,z_m) over a bank of M z-points, each row free up to a constant; -inf excludes
        a point for a row (one whose z is known in part, say).
    prior : (M, K) joint distribution that shrinkage aims at, the training data's; None: even.
    strength : rows' worth of the prior; "auto" takes the weakest that predicts left-out rows about as well as the best.
    sample_weight : (n,) frequency weights: a row of weight two counts as two rows.

    Examples
    --------
    >>> estimate = estimate_joint(log_joint_ratio, prior=training_joint)
    >>> estimate.marginal, estimate.interval()
    >>> probabilities = estimate.posterior(log_joint_ratio)
    """
    problems = Problems("estimate_joint")
    ratios = read_ratios(log_joint_ratio, problems)
    if strength != "auto" and not (isinstance(strength, Real) and 0 <= strength < float("inf")):
        problems.add(f"strength must be 'auto' or a number from 0 up, got {strength!r}")
    if ratios is None:
        problems.raise_if_any()
    assert ratios is not None
    aim = _read_prior(prior, ratios, problems)
    weight = read_weight(sample_weight, len(ratios), problems, ratios.device)
    problems.raise_if_any()
    mixture = make_mixture(ratios, weight)
    found, value, curvature = _fit(mixture, aim.reshape(-1), strength)
    cells, wanted = found.point, _tolerance(mixture)
    if not found.converged:
        warnings.warn(NOT_CONVERGED.format(n_iter=found.n_iter, gap=float(found.gap), wanted=wanted), stacklevel=2)
    marks = torch.eye(aim.shape[1], dtype=torch.float64, device=aim.device).repeat(len(aim), 1)
    identified = not bool(classes_left_open(mixture, cells, aim.reshape(-1), marks).all())
    if not identified:
        warnings.warn(OPEN, stacklevel=2)
    log_likelihood, weights = float(mixture.sums(cells)[0]), cells.reshape(aim.shape)
    return JointEstimate(
        strength=value,
        converged=found.converged,
        gap=float(found.gap),
        n_iter=found.n_iter,
        log_likelihood=log_likelihood,
        left_out=log_likelihood - curvature.optimism,
        identified=identified,
        trace=[-float(step) for step in found.trace],
        weights=weights,
        prior=aim,
        _row_weight=weight,
        _densities=mixture.densities(class_profiles(weights, aim)),
        _variance=curvature.variances_of(marks),
        _container=Container.of(log_joint_ratio),
    )


def _fit(mixture: Mixture, prior: Tensor, strength: str | float) -> tuple[Solution[Tensor], float, "JointCurvature"]:
    """The cells at the strength asked for, or at the one that left-out rows speak for."""
    value = _choose_strength(mixture.sample()[0], prior) if isinstance(strength, str) else float(strength)
    found = climb(mixture, value * prior, prior, tolerance=_tolerance(mixture))
    return found, value, look_back(mixture, found.point, value * prior)


def _choose_strength(mixture: Mixture, prior: Tensor) -> float:
    """The weakest strength whose left-out likelihood is within a unit of the best."""
    left_out: dict[float, float] = {}
    cells = prior
    for strength in STRENGTHS:
        pseudo = strength * prior
        cells = climb(mixture, pseudo, cells, tolerance=ROUGH_TOLERANCE).point
        left_out[strength] = float(mixture.sums(cells)[0]) - look_back(mixture, cells, pseudo).optimism
        if left_out[strength] < max(left_out.values()) - FAR_WORSE:
            break
    enough = max(left_out.values()) - SLACK
    return min(strength for strength, value in left_out.items() if value >= enough)


def _tolerance(mixture: Mixture) -> float:
    return TOLERANCE if mixture.ratio.dtype == torch.float64 else SINGLE_TOLERANCE


def _read_prior(value: Any, ratios: Tensor, problems: Problems) -> Tensor:
    """The (M, K) distribution that shrinkage aims at."""
    shape = ratios.shape[1:]
    even = torch.full(shape, 1.0 / shape.numel(), dtype=torch.float64, device=ratios.device)
    if value is None:
        return even
    try:
        prior = to_tensor(value, ratios.device)
    except (TypeError, ValueError) as error:
        problems.add(f"prior must be numbers ({error})")
        return even
    if prior.shape != shape:
        problems.add(f"prior must have shape {tuple(shape)}, points of the bank by classes, got {tuple(prior.shape)}")
        return even
    if not bool((prior >= 0).all()) or not abs(float(prior.sum()) - 1.0) < 1e-6:
        problems.add(f"prior must hold probabilities that sum to one, got a sum of {float(prior.sum()):g}")
        return even
    return prior / prior.sum()


def climb(
    mixture: Mixture, pseudo: Tensor, start: Tensor, *, tolerance: float, max_iter: int = 200
) -> Solution[Tensor]:
    """Find the weights of the cells (P,) with `pseudo` rows (P,) added to them, from a start inside the simplex.

    Every trial point costs one pass over r; where rows are very many, the curvature is that of a sample. Where r is
    kept in single precision, so are the sums of the first steps, but never those that certify the last one.
    """
    total = mixture.total_weight + float(pseudo.sum())
    few_entries = max(STEERING_ENTRIES, STEERING_ROWS * len(start) ** 2)
    sample = cache(mixture.sample)

    def bend(cells: Tensor, n_iter: int) -> Tensor:
        few, scale = sample(few_entries if n_iter < PATIENCE else CURVED_ENTRIES)
        return (few.information(cells[0]) * (scale / total))[None]

    def solve(begin: Tensor, *, precise: bool, tolerance: float) -> Solution[Tensor]:
        def look(cells: Tensor) -> tuple[Tensor, Tensor]:
            log_likelihood, slope = mixture.sums(cells[0], precise=precise)
            return (log_likelihood / total)[None], (slope / total)[None]

        found = interior(
            look,
            bend,
            begin[None],
            pseudo[None] / total,
            tolerance=tolerance,
            max_iter=max_iter,
            rounding=ROUNDING if precise else SINGLE_ROUNDING,
        )
        trace = [total * value[0] for value in found.trace]
        return Solution(found.point[0], found.gap[0], found.converged, found.n_iter, trace)

    if mixture.ratio.dtype == torch.float64:
        return solve(start, precise=True, tolerance=tolerance)
    rough = solve(start, precise=False, tolerance=max(tolerance, ROUGHLY))
    exact = solve(rough.point, precise=True, tolerance=tolerance)
    return Solution(
        exact.point, exact.gap, exact.converged, rough.n_iter + exact.n_iter, [*rough.trace, *exact.trace[1:]]
    )


@dataclass(frozen=True)
class JointCurvature:
    """The information of the rows about the cells, and their covariance with the pseudo-rows counted in."""

    information: Tensor  # (P, P)
    covariance: Tensor  # (P, P), of weights that sum to one

    @property
    def optimism(self) -> float:
        """By how much the log-likelihood flatters its own rows (equation 10 for cells)."""
        return float((self.covariance * self.information).sum())

    def variances_of(self, marks: Tensor) -> Tensor:
        """The variances of sums of cells, marked by the columns of (P, K)."""
        return ((self.covariance @ marks) * marks).sum(0)


def look_back(mixture: Mixture, cells: Tensor, pseudo: Tensor) -> JointCurvature:
    """The curvature at an optimum, from a sample where rows are many."""
    few, scale = mixture.sample(CURVED_ENTRIES)
    information = few.information(cells) * scale
    covariance = covariance_of(cells, information, pseudo.clamp_min(FAINT))
    return JointCurvature(information, covariance)


def covariance_of(cells: Tensor, information: Tensor, pseudo: Tensor) -> Tensor:
    """Invert information + diag(c / w²) along the directions that keep the sum of the cells, (P, P).

    In units of the cells themselves: those all but zero would make the matrix singular otherwise.
    """
    relative = cells[:, None] * information * cells + torch.diag(pseudo)
    inverse = torch.linalg.inv_ex(0.5 * (relative + relative.T))[0]
    lost = inverse @ cells
    inverse = inverse - lost[:, None] * lost / (cells @ lost)
    covariance: Tensor = cells[:, None] * inverse * cells
    return covariance


def classes_left_open(mixture: Mixture, cells: Tensor, prior: Tensor, marks: Tensor) -> Tensor:
    """Tell for which sums of cells, marked by the columns of (P, K), many rows say less than one labeled row would.

    Asked half-way to the prior, (P,): at the estimate itself a class may be absent, which says nothing about the rows.
    """
    few, _ = mixture.sample()
    between = 0.5 * (cells + prior)
    information = few.information(between) * (ROWS_FOR_ONE / few.total_weight)
    one_row = prior.clamp_min(FAINT / len(prior))
    many, none = (covariance_of(between, known, one_row) for known in (information, torch.zeros_like(information)))
    return ((many @ marks) * marks).sum(0) > 0.5 * ((none @ marks) * marks).sum(0)
