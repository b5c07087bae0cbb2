"""`estimate_joint` estimates a site's P(z, y) over a bank of z-points, from unlabeled rows without z."""

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
SLACK = 1.0  # loss of left-out log-likelihood accepted for a weaker prior, because the site is expected to differ
FAR_WORSE = 5.0  # loss of left-out log-likelihood beyond which weaker priors are not tried
TOLERANCE = 1e-8
SINGLE_TOLERANCE = 1e-6  # if rows are kept in single precision
ROUGH_TOLERANCE = 1e-4  # while the strength is chosen

OPEN = (
    "the rows do not determine the prevalence: other mixtures over z explain them equally well, so the estimate is "
    "that of the prior. Check that log_joint_ratio comes from an informative model, or give z"
)
NOT_CONVERGED = "the joint estimate did not converge in {n_iter} iterations (gap {gap:.1e}, wanted {wanted:.0e})"
STEERING_ENTRIES = 2**22  # entries of r in the sample of rows whose curvature sets the direction of steps
STEERING_ROWS = 16  # the smallest number of rows in that sample for each cell
PATIENCE = 30  # iterations after which the sample is larger
SINGLE_ROUNDING = 1e-9  # relative rounding error of a likelihood summed in single precision
ROUGHLY = 1e-4  # the gap at which sums change from single to double precision
FAINT = 1e-6  # smallest pseudo-count of a cell
ROWS_FOR_ONE = 1e4  # if so many rows have less information than one labeled row, P(Y) is not identified


def estimate_joint(
    log_joint_ratio: Any, *, prior: Any = None, strength: str | float = "auto", sample_weight: Any = None
) -> JointEstimate:
    """Estimate a site's joint distribution of (z, y) from unlabeled rows that lack z (equation 15).

    Parameters
    ----------
    log_joint_ratio : array of shape (n, M, K)
        log r(x,y,z_m) of the n rows, at M values z_1, ..., z_M of z and for K classes. Here r(x,y,z) = P(x|y,z) /
        P_s(x), where P_s is the distribution of the training rows. Adding a constant to a row does not change the
        result. The entry -inf excludes a pair of a value of z and a class from a row, for example because the value
        contradicts the known part of the row's z.
    prior : array of shape (M, K), optional
        The joint distribution to which the estimate is shrunk, usually that of the training data; uniform by default.
    strength : float or "auto"
        Weight of the prior: the number of pseudo-rows for which it counts. With "auto", numbers from 1,000 down to 1
        are tried. The smallest one is chosen whose left-out log-likelihood is at most 1 below the best.
    sample_weight : array of shape (n,), optional
        Frequency weights: a row of weight two counts as two rows.

    Returns
    -------
    JointEstimate
        The estimate with its convergence diagnostics.

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
    solution, value, curvature = _fit(mixture, aim.reshape(-1), strength)
    cells, wanted = solution.point, _tolerance(mixture)
    if not solution.converged:
        message = NOT_CONVERGED.format(n_iter=solution.n_iter, gap=float(solution.gap), wanted=wanted)
        warnings.warn(message, stacklevel=2)
    marks = torch.eye(aim.shape[1], dtype=torch.float64, device=aim.device).repeat(len(aim), 1)
    identified = not bool(classes_left_open(mixture, cells, aim.reshape(-1), marks).all())
    if not identified:
        warnings.warn(OPEN, stacklevel=2)
    log_likelihood, weights = float(mixture.sums(cells)[0]), cells.reshape(aim.shape)
    return JointEstimate(
        strength=value,
        converged=solution.converged,
        gap=float(solution.gap),
        n_iter=solution.n_iter,
        log_likelihood=log_likelihood,
        left_out=log_likelihood - curvature.optimism,
        identified=identified,
        trace=[-float(step) for step in solution.trace],
        weights=weights,
        prior=aim,
        _row_weight=weight,
        _densities=mixture.densities(class_profiles(weights, aim)),
        _variance=curvature.variances_of(marks),
        _container=Container.of(log_joint_ratio),
    )


def _fit(mixture: Mixture, prior: Tensor, strength: str | float) -> tuple[Solution[Tensor], float, "JointCurvature"]:
    """Estimate the cells' weights at the given strength, or at a chosen one; return strength and curvature too."""
    value = _choose_strength(mixture.sample()[0], prior) if isinstance(strength, str) else float(strength)
    solution = climb(mixture, value * prior, prior, tolerance=_tolerance(mixture))
    return solution, value, curvature_at(mixture, solution.point, value * prior)


def _choose_strength(mixture: Mixture, prior: Tensor) -> float:
    """Return the weakest strength whose left-out log-likelihood is within `SLACK` of the best."""
    left_out: dict[float, float] = {}
    cells = prior
    for strength in STRENGTHS:
        pseudo = strength * prior
        cells = climb(mixture, pseudo, cells, tolerance=ROUGH_TOLERANCE).point
        left_out[strength] = float(mixture.sums(cells)[0]) - curvature_at(mixture, cells, pseudo).optimism
        if left_out[strength] < max(left_out.values()) - FAR_WORSE:
            break
    enough = max(left_out.values()) - SLACK
    return min(strength for strength, value in left_out.items() if value >= enough)


def _tolerance(mixture: Mixture) -> float:
    return TOLERANCE if mixture.ratio.dtype == torch.float64 else SINGLE_TOLERANCE


def _read_prior(value: Any, ratios: Tensor, problems: Problems) -> Tensor:
    """Read the distribution over points and classes, (M, K), to which the estimate is shrunk."""
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
    """Estimate the weights of the P cells (P,) with pseudo-rows (P,), from a start inside the simplex.

    Every trial point costs one pass over r. If there are very many rows, the curvature is computed from a sample. If r
    is stored in single precision, the first steps are in single precision, and the last ones and the gap in double.
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

        solution = interior(
            look,
            bend,
            begin[None],
            pseudo[None] / total,
            tolerance=tolerance,
            max_iter=max_iter,
            rounding=ROUNDING if precise else SINGLE_ROUNDING,
        )
        trace = [total * value[0] for value in solution.trace]
        return Solution(solution.point[0], solution.gap[0], solution.converged, solution.n_iter, trace)

    if mixture.ratio.dtype == torch.float64:
        return solve(start, precise=True, tolerance=tolerance)
    rough = solve(start, precise=False, tolerance=max(tolerance, ROUGHLY))
    exact = solve(rough.point, precise=True, tolerance=tolerance)
    return Solution(
        exact.point, exact.gap, exact.converged, rough.n_iter + exact.n_iter, [*rough.trace, *exact.trace[1:]]
    )


@dataclass(frozen=True)
class JointCurvature:
    """The information of the rows about the weights of P cells, and the covariance of the estimated weights.

    The covariance also accounts for the pseudo-rows.
    """

    information: Tensor  # (P, P)
    covariance: Tensor  # (P, P), of weights that sum to one

    @property
    def optimism(self) -> float:
        """The optimism of the log-likelihood on the rows to which the cells were fitted (equation 15b)."""
        return float((self.covariance * self.information).sum())

    def variances_of(self, marks: Tensor) -> Tensor:
        """Return the variances of sums of cells that the columns of `marks` (P, K) select."""
        return ((self.covariance @ marks) * marks).sum(0)


def curvature_at(mixture: Mixture, cells: Tensor, pseudo: Tensor) -> JointCurvature:
    """Return the curvature at an optimum, from a sample if there are many rows."""
    few, scale = mixture.sample(CURVED_ENTRIES)
    information = few.information(cells) * scale
    covariance = covariance_of(cells, information, pseudo.clamp_min(FAINT))
    return JointCurvature(information, covariance)


def covariance_of(cells: Tensor, information: Tensor, pseudo: Tensor) -> Tensor:
    """Invert information + diag(pseudo / cells²) along changes of the cells that sum to zero, (P, P).

    The matrix is scaled by the cells first, because cells close to zero would make it singular.
    """
    relative = cells[:, None] * information * cells + torch.diag(pseudo)
    inverse = torch.linalg.inv_ex(0.5 * (relative + relative.T))[0]
    lost = inverse @ cells
    inverse = inverse - lost[:, None] * lost / (cells @ lost)
    covariance: Tensor = cells[:, None] * inverse * cells
    return covariance


def classes_left_open(mixture: Mixture, cells: Tensor, prior: Tensor, marks: Tensor) -> Tensor:
    """Return which sums of cells, selected by the columns of `marks` (P, K), are not identified.

    A sum is not identified if ten thousand rows have less information about it than one labeled row. The information is
    evaluated half-way between the cells and the prior (P,), because a class may be absent in the cells themselves.
    """
    few, _ = mixture.sample()
    between = 0.5 * (cells + prior)
    information = few.information(between) * (ROWS_FOR_ONE / few.total_weight)
    one_row = prior.clamp_min(FAINT / len(prior))
    many, none = (covariance_of(between, known, one_row) for known in (information, torch.zeros_like(information)))
    return ((many @ marks) * marks).sum(0) > 0.5 * ((none @ marks) * marks).sum(0)
