"""The deviation of a new site's g from the source's shape: coefficients that are normal given level and factor."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sitewise.adaptation.evidence import Evidence
from sitewise.adaptation.linear import LinearProblem, linear_problem, solve_linear
from sitewise.adaptation.posterior.labels import LabelLikelihood
from sitewise.adaptation.posterior.levels import candidates
from sitewise.adaptation.posterior.points import Points
from sitewise.adaptation.rows import Rows, Stream
from sitewise.posterior import contrasts
from sitewise.prevalence.additive import features
from sitewise.prevalence.linear import NEWTON_LIMIT
from sitewise.prevalence.prior import USUAL_DEVIATION

HELD = 1e6  # penalty on the intercept, times the weight of all rows; it keeps the intercept at zero
STEP = 1e-3  # step of the factor for the numerical derivative of a gradient
SIZES = (0.0, 0.25, 0.5, 1.0)  # sizes γ of a deviation, in standard deviations between sites; equally likely a priori


@dataclass(frozen=True)
class Deviation:
    """Laplace's approximation of the coefficients, whose mean is linear in level and factor (equation 18e).

    Shapes: K classes, D additive features of z, P = D (K-1) coefficients, M points.
    """

    factor: Tensor  # () the factor at which the coefficients were fitted
    level: Tensor  # (K,) the level at which they were fitted
    mean: Tensor  # (P,) mean coefficients at this factor and level, in contrasts
    response: Tensor  # (P, K) derivatives of the mean in the level's K-1 contrasts and in the factor
    covariance: Tensor  # (P, P) of the coefficients given level and factor
    variance: Tensor  # (P,) prior variances
    middle: Tensor  # (D,) means of the features over the site's rows
    converged: bool
    gap: float
    n_iter: int

    def flat(self, factor: Tensor, level: Tensor) -> Tensor:
        """Return the mean of the coefficients, (M, P), at factors (M,) and levels (M, K)."""
        away = (level - self.level) @ contrasts(level.shape[1], level.device)
        return self.mean + torch.cat([away, (factor - self.factor)[:, None]], dim=1) @ self.response.T

    def log_prior(self, factor: Tensor, level: Tensor) -> Tensor:
        """Return the log prior density of the mean coefficients at factors (M,) and levels (M, K), up to a constant."""
        return -0.5 * (self.flat(factor, level) ** 2 / self.variance.clamp_min(1e-300)).sum(1)

    def coefficients(self, flat: Tensor, n_classes: int) -> Tensor:
        """Convert flat coefficients (M, P) to (M, D, K)."""
        return flat.reshape(len(flat), -1, n_classes - 1) @ contrasts(n_classes, flat.device).T

    def without_level(self, level: Tensor, coefficients: Tensor) -> Tensor:
        """Return levels (M, K) minus the site's mean of features @ coefficients, for coefficients (M, D, K)."""
        return level - torch.einsum("d,mdk->mk", self.middle, coefficients)

    def put_on(self, points: Points) -> Points:
        """Return the points with their mean coefficients as `deviation`."""
        away = (points.level - self.level) @ contrasts(points.level.shape[1], points.level.device)
        along = torch.cat([torch.ones_like(away[:, :1]), away, (points.factor - self.factor)[:, None]], dim=1)
        directions = torch.cat([self.mean[None], self.response.T])
        directions = self.coefficients(directions, points.level.shape[1])
        level = self.without_level(points.level, torch.einsum("mr,rdk->mdk", along, directions))
        return replace(points, level=level, deviation=directions, along=along)


@dataclass(frozen=True)
class Sized:
    """Moments of the coefficients (P,), averaged over the sizes of the deviation."""

    mean: Tensor  # (P,)
    conditional: Tensor  # (P, P) covariance given the size, averaged over sizes
    covariance: Tensor  # (P, P) total covariance
    variance: Tensor  # (P,) prior variance, averaged over sizes


def average_sizes(information: Tensor, mode: Tensor, variance: Tensor) -> Sized:
    """Average over the size of the deviation, weighted by the marginal likelihood of each size (equation 18h).

    `information` (P, P) is the penalized information at the mode (P,), for prior variances (P,). The likelihood is
    approximated by a normal one, so that posterior and marginal likelihood have a closed form for every size.
    """
    root = variance.sqrt()
    of_rows, directions = torch.linalg.eigh(root[:, None] * information * root)
    of_rows = (of_rows - 1.0).clamp_min(0.0)  # information of the rows about each direction, in units of the prior
    pull = directions.T @ (root * (information @ mode))
    squares = torch.tensor(SIZES, dtype=mode.dtype, device=mode.device)[:, None] ** 2
    own = squares / (1.0 + squares * of_rows)  # (sizes, P) variances given the size
    share = torch.softmax(0.5 * (own * pull**2 - torch.log1p(squares * of_rows)).sum(1), dim=0)
    means = own * pull
    mean, back = share @ means, root[:, None] * directions
    between = ((means - mean) * share[:, None]).T @ (means - mean)
    conditional = torch.diag(share @ own)
    return Sized(
        back @ mean,
        back @ conditional @ back.T,
        back @ (conditional + between) @ back.T,
        variance * (share @ squares[:, 0]),
    )


def tempered(evidence: Evidence, power: float, labels: LabelLikelihood | None) -> Evidence:
    """Return the evidence with all weights multiplied by `power`, and with the labeled rows that have some of z added.

    Multiplied weights raise the likelihood to this power. The log-likelihood of a label, at the best slope of log f, is
    added as a difference of two terms (see `LabelLikelihood.as_evidence`).
    """

    def apply(rows: Rows) -> Rows:
        weight = rows.codes.new_ones(len(rows)) if rows.weight is None else rows.weight
        return replace(rows, weight=weight * power)

    seen, blank = evidence.rows.map(apply), evidence.blank.map(apply)
    sums = [stream.total(lambda rows: (rows.cell_weight.sum(),)) for stream in (seen, blank)]
    seen_weight, blank_weight = (float(total[0]) if total else 0.0 for total in sums)
    label_weight = 0.0
    if labels is not None:
        assert evidence.schema is not None
        with_z = (~evidence.schema.missing(labels.rows.codes).all(dim=1)).nonzero().flatten()
        if len(with_z):
            seen = seen.followed_by(Stream(labels.as_evidence(with_z)))
            label_weight = float(labels.rows.weight[with_z].sum())
    own = replace(evidence, rows=seen, blank=blank)
    return replace(own, seen_weight=seen_weight, blank_weight=blank_weight, label_weight=label_weight)


def fit_deviation(
    template: Points,
    evidence: Evidence,
    power: float,
    factor: Tensor,
    level: Tensor,
    variance: Tensor | None,
    labels: LabelLikelihood | None = None,
) -> Deviation | None:
    """Fit the coefficients of the deviation, given the factor on the shape (a scalar) and the level (K,) of g.

    Return them with their covariance and their derivatives in factor and level; None if there are too many.
    """
    schema, n_classes = template.schema, len(level)
    assert schema is not None
    n_features = features(schema.missing_codes(level.device)[None], schema).shape[1]
    if n_features * (n_classes - 1) > NEWTON_LIMIT:
        return None
    rows = tempered(evidence, power, labels)
    sizes = level.new_full((n_features,), USUAL_DEVIATION**2) if variance is None else variance.to(level)
    penalty = 1.0 / sizes.clamp_min(1e-12)
    penalty[0] = HELD * max(rows.total_weight, 1.0)

    middle = evidence.mean(lambda codes: features(codes, schema))
    middle[0] = 0.0

    def problem_at(factor: Tensor) -> LinearProblem:
        centre = candidates(template, factor[None], level[None])
        return linear_problem(rows, lambda codes: features(codes, schema) - middle, centre, penalty)

    problem = problem_at(factor)
    start = level.new_zeros(n_features * (n_classes - 1))
    solution = solve_linear(problem, start, "auto")
    information = problem.penalized_information(solution.point)
    width = n_classes - 1
    ahead = problem_at(factor + STEP)
    turn = (ahead.gradient(solution.point) - problem.gradient(solution.point)) * rows.total_weight / STEP
    along = torch.cat([information[:, :width] - torch.diag(problem.flat_penalty)[:, :width], turn[:, None]], dim=1)
    along[:width] = 0.0  # the intercept does not respond to the level
    sized = average_sizes(information, solution.point, 1.0 / problem.flat_penalty)
    return Deviation(
        factor,
        level,
        sized.mean,
        -sized.conditional @ along,
        sized.covariance,
        sized.variance,
        middle,
        solution.converged,
        float(solution.gap),
        solution.n_iter,
    )
