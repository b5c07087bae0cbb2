"""Minimizers of plain functions: Newton, interior point, quasi-Newton, L-BFGS, EM and SQUAREM.

Each solver returns the point that it found, the objective at every iteration, the optimality gap, and whether the gap
is below the tolerance. A solver that stops at the iteration limit with a larger gap has not converged.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, Generic, Literal, TypeVar

import torch
from scipy.optimize import minimize
from torch import Tensor

State = TypeVar("State")

M_STEPS = ("lbfgs", "sgd")
ARMIJO = 1e-4
HALVINGS = 40
FEW_HALVINGS = 6  # for `quasi_newton`, whose first Hessian is nearly right
FLAT = 1e-10  # curvature below this share of the largest is treated as rounding error
ROUNDING = 1e-14  # a relative rise of the objective below this is treated as rounding error
TO_THE_BOUND = 0.99  # a step goes at most this share of the way to a bound
LONG_STEP = 0.7  # share of the full step above which the barrier is lowered
SHRINK = 0.1  # factor of the barrier after a long step; the pseudo-rows are its lower limit
BARRIER = 0.01  # largest barrier at the start, relative to the weights
RIDGE = 1e-6  # relative; added if a Hessian is not positive definite because of rounding


@dataclass(frozen=True)
class EM:
    """Settings of the paper's EM (algorithms 1 and 2), for `estimate_prevalence(solver=...)`.

    Parameters
    ----------
    iterations : int, optional
        The largest number of iterations, T in the paper. None: 5 for a network, as in the paper, and a much larger
        limit for the other models of g.
    m_step : {"lbfgs", "sgd"}
        How an additive g or a network is fitted in each M-step. "lbfgs": by L-BFGS. "sgd": by a single gradient step. A
        constant g or a table has an M-step in closed form and ignores this setting.
    learning_rate : float
        The size of the gradient step if `m_step` is "sgd".

    Examples
    --------
    >>> estimate_prevalence(log_ratio, Z, model="network", solver=EM(iterations=5))
    """

    iterations: int | None = None
    m_step: Literal["lbfgs", "sgd"] = "lbfgs"
    learning_rate: float = 0.1

    def __post_init__(self) -> None:
        whole = isinstance(self.iterations, Integral) and self.iterations >= 1
        if self.iterations is not None and not whole:
            raise ValueError(f"EM: iterations must be a whole number from 1 up, or None, got {self.iterations!r}")
        if self.m_step not in M_STEPS:
            raise ValueError(f"EM: m_step must be one of {', '.join(M_STEPS)}, got {self.m_step!r}")
        if not (isinstance(self.learning_rate, Real) and 0 < self.learning_rate < torch.inf):
            raise ValueError(f"EM: learning_rate must be a number above 0, got {self.learning_rate!r}")


@dataclass(frozen=True)
class Solution(Generic[State]):
    """The result of a solver: the point found, its optimality gap, and the objective at every iteration (`trace`)."""

    point: State
    gap: Tensor
    converged: bool
    n_iter: int
    trace: list[Tensor] = field(repr=False)


@dataclass(frozen=True)
class Box:
    """The feasible set of points (B, P). It is given by bounds, and by `retract`, which maps a point into the set."""

    lower: Tensor | None
    upper: Tensor | None
    retract: Callable[[Tensor], Tensor] | None

    def held(self, point: Tensor, gradient: Tensor) -> Tensor:
        """Return which coordinates, (B, P), are at a bound that a descent step would cross."""
        held = torch.zeros_like(point, dtype=torch.bool)
        if self.lower is not None:
            held |= (point <= self.lower) & (gradient > 0)
        if self.upper is not None:
            held |= (point >= self.upper) & (gradient < 0)
        return held

    def step(self, point: Tensor, gradient: Tensor, move: Tensor) -> tuple[Tensor, Tensor]:
        """Return the feasible point after a move, and the decrease of the objective required by Armijo's rule."""
        trial = point + move
        trial = trial if self.lower is None else torch.maximum(trial, self.lower)
        trial = trial if self.upper is None else torch.minimum(trial, self.upper)
        promised = ARMIJO * (gradient * (trial - point)).sum(-1).clamp_max(0.0)
        return (trial if self.retract is None else self.retract(trial)), promised


def newton(
    value: Callable[[Tensor], Tensor],
    derivatives: Callable[[Tensor], tuple[Tensor, Tensor]],
    start: Tensor,
    *,
    gap: Callable[[Tensor, Tensor], Tensor] | None = None,
    lower: Tensor | None = None,
    upper: Tensor | None = None,
    retract: Callable[[Tensor], Tensor] | None = None,
    damping: Callable[[Tensor], Tensor] | None = None,
    tolerance: float = 1e-9,
    max_iter: int = 100,
    rounding: float = ROUNDING,
) -> Solution[Tensor]:
    """Minimize B independent problems at once by damped Newton steps; no accepted step raises an objective.

    `value` maps points (B, P) to objectives (B,), and `derivatives` maps them to gradients (B, P) and Hessians
    (B, P, P). Coordinates may be bounded. A coordinate at a bound that a descent step would cross is held at the bound
    (Bertsekas' two-metric rule). `retract` maps a trial point into the feasible set, for example a simplex, without
    raising its value. `gap` maps points and gradients to optimality gaps (B,); by default, the gap is the largest
    absolute entry of the projected gradient. A relative rise of the objective below `rounding` is ignored.

    `damping` is for objectives that are flat far from the optimum, where Newton's step may be 10¹⁰⁰ times too long. It
    maps directions (B, P) to shares (B,) of the full step. If the full step fails, the line search approaches these
    shares faster than by halving.
    """
    box = Box(lower, upper, retract)
    point, current = start, value(start)
    trace = [current]
    for n_iter in range(max_iter + 1):
        gradient, hessian = derivatives(point)
        held = box.held(point, gradient)
        gaps = gap(point, gradient) if gap else gradient.masked_fill(held, 0.0).abs().amax(-1)
        done = gaps <= tolerance
        if done.all() or n_iter == max_iter:
            break
        direction = _descent_direction(gradient, hessian, held)
        if retract is None:
            direction = _kept_inside(direction, point, gradient, hessian, held, box)
        point, current, moved = _line_search(value, point, current, gradient, direction, box, done, rounding, damping)
        trace.append(current)
        if not moved:  # no further decrease is possible in this precision
            break
    return Solution(point, gaps, bool(done.all()), n_iter, trace)


def _descent_direction(gradient: Tensor, hessian: Tensor, held: Tensor) -> Tensor:
    """Return Newton's direction over the free coordinates.

    If a Hessian is not clearly positive definite, its eigenvalues are replaced by their absolute values.
    """
    free = ~held
    hessian = hessian * (free[..., :, None] & free[..., None, :]) + torch.diag_embed(held.to(hessian.dtype))
    rhs = -(gradient * free)
    factor, failed = torch.linalg.cholesky_ex(hessian)
    direction = torch.cholesky_solve(rhs[..., None], factor)[..., 0]
    pivots = torch.diagonal(factor, dim1=-2, dim2=-1) ** 2
    weak = (failed > 0) | ~(pivots.amin(-1) > FLAT * pivots.amax(-1))
    if weak.any():
        eigenvalues, vectors = torch.linalg.eigh(hessian[weak])
        size = eigenvalues.abs()
        size = torch.maximum(size, FLAT * size.amax(-1, keepdim=True)).clamp_min(torch.finfo(size.dtype).tiny ** 0.5)
        along = torch.linalg.vecdot(vectors, rhs[weak][..., :, None], dim=-2) / size
        direction[weak] = (vectors @ along[..., None])[..., 0]
    return direction


def _kept_inside(direction: Tensor, point: Tensor, gradient: Tensor, hessian: Tensor, held: Tensor, box: Box) -> Tensor:
    """Return Newton's direction within bounds.

    The coordinate that reaches a bound first is moved to that bound and fixed there. Then the best step of the other
    coordinates is computed again. This is repeated until no coordinate crosses a bound. Each round lowers the quadratic
    model, so the objective falls along the result. A step that is only cut at the first bound would hardly move a point
    close to a bound.
    """
    infinite = torch.full_like(point, torch.inf)
    below = (-infinite if box.lower is None else box.lower) - point
    above = (infinite if box.upper is None else box.upper) - point
    kept, move = held.clone(), torch.zeros_like(point)
    while True:
        room = torch.where(direction < 0, below, above)
        share = torch.where(kept | (direction == 0), torch.inf, room / direction)
        first = share.argmin(-1, keepdim=True)
        crossing = share.gather(-1, first) < 1
        if not crossing.any():
            return torch.where(kept & ~held, move, direction)
        move.scatter_(-1, first, torch.where(crossing, room.gather(-1, first), move.gather(-1, first)))
        kept.scatter_(-1, first, kept.gather(-1, first) | crossing)
        bent = gradient + (hessian @ move[..., None])[..., 0]
        direction = _descent_direction(bent, hessian, kept)


def _line_search(
    value: Callable[[Tensor], Tensor],
    point: Tensor,
    current: Tensor,
    gradient: Tensor,
    direction: Tensor,
    box: "Box",
    done: Tensor,
    rounding: float,
    damping: Callable[[Tensor], Tensor] | None,
) -> tuple[Tensor, Tensor, bool]:
    """Shorten each problem's step until its objective falls enough (Armijo's rule along the projection arc).

    Return the points, their objectives, and whether any point moved.
    """
    open_ = ~done
    step = torch.ones_like(current)
    best_point, best = point.clone(), current.clone()
    safe = None
    for _ in range(HALVINGS):
        trial, promised = box.step(point, gradient, step[:, None] * direction)
        reached = value(trial)
        accept = open_ & (reached <= current + promised + rounding * current.abs().clamp_min(1.0))
        best_point = torch.where(accept[:, None], trial, best_point)
        best = torch.where(accept, reached, best)
        open_ = open_ & ~accept
        if not open_.any():
            break
        shorter = step / 2
        if damping is not None:
            safe = damping(direction) if safe is None else safe
            shorter = torch.where(safe < shorter, (step * safe).sqrt(), shorter)  # shrinks faster than halving
        step = torch.where(open_, shorter, step)
    return best_point, best, bool((best_point != point).any())


def interior(
    look: Callable[[Tensor], tuple[Tensor, Tensor]],
    bend: Callable[[Tensor, int], Tensor],
    start: Tensor,
    pseudo: Tensor,
    *,
    tolerance: float,
    max_iter: int = 200,
    rounding: float = ROUNDING,
) -> Solution[Tensor]:
    """Estimate the weights w (B, P) of B mixtures by a primal-dual interior-point method, stopped by the KKT gap.

    It minimizes Σ w - l(w) - Σ c log w over w > 0 (equation 15a). l is the log-likelihood of a mixture's rows, and c
    (B, P) is the number of its pseudo-rows (`pseudo`); both are divided by the number of rows and pseudo-rows. The
    weights of the optimum sum to one. `look` maps weights to l (B,) and its gradient (B, P). `bend` maps weights and
    the number of the iteration to -l'' (B, P, P). An approximation of -l'' suffices: it only sets the direction, and
    the gap decides when to stop. Each step lowers the objective including its barrier. Where c is zero, a very weak
    barrier takes its place. A slack variable replaces c / w, so that steps stay long where weights are close to zero.
    """
    target = pseudo.clamp_min(1e-3 * tolerance / start.shape[1])
    weights = start.clamp_min(1e-3 / start.shape[1])
    weights = weights / weights.sum(1, keepdim=True)
    value, slope = look(weights)
    gaps = _mixture_gap(weights, slope, pseudo)
    barrier = torch.maximum(target, gaps.clamp(0.0, BARRIER)[:, None] * weights)
    slack = barrier / weights
    best, best_gaps, trace = weights, gaps, [_mixture_value(weights, value, pseudo)]
    n_iter = 0
    while bool((best_gaps > tolerance).any()) and n_iter < max_iter:
        n_iter += 1
        gradient = 1.0 - slope - barrier / weights
        move = -_scaled_solve(bend(weights, n_iter) + torch.diag_embed(slack / weights), gradient)
        slack_move = barrier / weights - slack - slack / weights * move
        slack = slack + _reach(slack, slack_move)[:, None] * slack_move
        before = weights.sum(1) - value - (barrier * weights.log()).sum(1)
        promised, step = ARMIJO * (gradient * move).sum(1), _reach(weights, move)
        taken, accepted = torch.zeros_like(step), (weights, value, slope)
        open_ = best_gaps > tolerance
        for _ in range(HALVINGS):
            trial = weights + step[:, None] * move
            at, rise = look(trial)
            reached = trial.sum(1) - at - (barrier * trial.log()).sum(1)
            accept = open_ & (reached <= before + step * promised + rounding * before.abs().clamp_min(1.0))
            new = (trial, at, rise)
            accepted = tuple(
                torch.where(accept.reshape(-1, *[1] * (a.ndim - 1)), a, b) for a, b in zip(new, accepted, strict=True)
            )  # type: ignore[assignment]
            taken, open_ = torch.where(accept, step, taken), open_ & ~accept
            if not open_.any():
                break
            step = step / 2
        if not (taken > 0).any():  # no further decrease is possible in this precision
            break
        weights, value, slope = accepted
        slack = torch.minimum(torch.maximum(slack, 1e-3 * barrier / weights), 1e3 * barrier / weights)
        gaps = _mixture_gap(weights, slope, pseudo)
        better = gaps < best_gaps
        best, best_gaps = torch.where(better[:, None], weights, best), torch.where(better, gaps, best_gaps)
        trace.append(_mixture_value(weights, value, pseudo))
        barrier = torch.where((taken > LONG_STEP)[:, None], torch.maximum(target, SHRINK * barrier), barrier)
    point = best / best.sum(1, keepdim=True)
    return Solution(point, best_gaps, bool((best_gaps <= tolerance).all()), n_iter, trace)


def _mixture_gap(weights: Tensor, slope: Tensor, pseudo: Tensor) -> Tensor:
    """Return the KKT gap (B,) of the weights scaled to sum to one (equation 15a)."""
    return weights.sum(1) * (slope + pseudo / weights).amax(1) - 1.0


def _mixture_value(weights: Tensor, value: Tensor, pseudo: Tensor) -> Tensor:
    """Return minus the penalized log-likelihood (B,) of the weights scaled to sum to one."""
    size = weights.sum(1)
    scaled = value - (1.0 - pseudo.sum(1)) * size.log()
    return -(scaled + torch.xlogy(pseudo, weights / size[:, None]).sum(1))


def _scaled_solve(hessian: Tensor, gradient: Tensor) -> Tensor:
    """Solve hessian x = gradient, scaled by the diagonal, because weights differ by many orders of magnitude."""
    scale = torch.diagonal(hessian, dim1=-2, dim2=-1).rsqrt()
    scaled = scale[:, :, None] * hessian * scale[:, None, :]
    factor, failed = torch.linalg.cholesky_ex(scaled)
    if bool(failed.any()):
        ridge = RIDGE * torch.eye(scale.shape[1], dtype=scale.dtype, device=scale.device)
        factor = torch.where(failed[:, None, None] > 0, torch.linalg.cholesky_ex(scaled + ridge)[0], factor)
    return scale * torch.cholesky_solve((scale * gradient)[..., None], factor)[..., 0]


def _reach(values: Tensor, move: Tensor) -> Tensor:
    """Return the largest share (B,) of a move, at most 1, that keeps all values (B, P) clearly positive."""
    ratios = torch.where(move < 0, -values / move, torch.inf)
    return (TO_THE_BOUND * ratios.amin(1)).clamp_max(1.0)


def quasi_newton(
    value_and_gradient: Callable[[Tensor], tuple[Tensor, Tensor]],
    start: Tensor,
    hessian: Tensor,
    *,
    gap: Callable[[Tensor, Tensor], Tensor],
    lower: Tensor,
    retract: Callable[[Tensor], Tensor],
    tolerance: float = 1e-9,
    max_iter: int = 30,
) -> Solution[Tensor]:
    """Minimize one function of P bounded coordinates, starting from an approximate Hessian that BFGS improves.

    Use it for few coordinates and many rows, where computing the Hessian from all rows is expensive and the Hessian of
    a sample of the rows is nearly right. Steps, bounds and `gap` are as in `newton`, with B = 1.
    """
    box = Box(lower, None, retract)
    point = start
    current, gradient = value_and_gradient(point)
    trace = [current]
    for n_iter in range(max_iter + 1):
        gaps = gap(point, gradient)
        if bool((gaps <= tolerance).all()) or n_iter == max_iter:
            break
        direction = _descent_direction(gradient, hessian, box.held(point, gradient))
        for halving in range(FEW_HALVINGS):
            trial, promised = box.step(point, gradient, direction / 2**halving)
            reached, slope = value_and_gradient(trial)
            if bool(reached <= current + promised + ROUNDING * current.abs().clamp_min(1.0)):
                break
        else:  # no further decrease is possible in this precision
            break
        hessian = _bfgs_update(hessian, trial - point, slope - gradient)
        point, current, gradient = trial, reached, slope
        trace.append(current)
    return Solution(point, gaps, bool((gaps <= tolerance).all()), n_iter, trace)


def _bfgs_update(hessian: Tensor, step: Tensor, change: Tensor) -> Tensor:
    """Update a Hessian (1, P, P) so that it maps the last step (1, P) to the change of the gradient."""
    bent = (hessian @ step[..., None])[..., 0]
    along, before = (step * change).sum(), (step * bent).sum()
    if not (along > 1e-12 * step.norm() * change.norm() and before > 0):
        return hessian
    gained, lost = (v[..., :, None] * v[..., None, :] for v in (change, bent))
    return hessian + gained / along - lost / before


def lbfgs(
    value_and_gradient: Callable[[Tensor], tuple[Tensor, Tensor]],
    start: Tensor,
    *,
    tolerance: float = 1e-6,
    max_iter: int = 500,
    memory: int = 20,
) -> Solution[Tensor]:
    """Minimize one function of a vector by scipy's L-BFGS-B, and return the best point that was evaluated.

    Only the vector and its gradient are copied to and from scipy. The function is evaluated on the device of `start`.
    """
    best_value, best_point, best_gap = torch.inf, start, torch.tensor(torch.inf)

    def evaluate(flat: Any) -> tuple[float, Any]:
        nonlocal best_value, best_point, best_gap
        point = torch.as_tensor(flat.copy(), device=start.device)
        value, gradient = value_and_gradient(point)
        if float(value) < best_value:
            best_value, best_point, best_gap = float(value), point, gradient.abs().max()
        return float(value), gradient.cpu().numpy()

    trace = [evaluate(start.cpu().numpy())[0]]
    result = minimize(
        evaluate,
        start.cpu().numpy(),
        jac=True,
        method="L-BFGS-B",
        callback=lambda _: trace.append(best_value),
        options={"maxiter": max_iter, "maxfun": 5 * max_iter, "maxcor": memory, "gtol": tolerance, "ftol": 0.0},
    )
    values = [torch.tensor(value, dtype=torch.float64) for value in trace]
    return Solution(best_point, best_gap, bool(best_gap <= tolerance), int(result.nit), values)


def em(
    start: State,
    e_step: Callable[[State], Tensor],
    m_step: Callable[[Tensor, State], State],
    objective: Callable[[State], Tensor],
    gap: Callable[[State], Tensor],
    *,
    tolerance: float = 1e-9,
    max_iter: int = 10_000,
    check_every: int = 1,
) -> Solution[State]:
    """Expectation-maximization: alternate between `e_step`, which computes responsibilities, and `m_step`.

    The M-step computes a new state from the responsibilities. The iteration stops when `gap` is below the tolerance;
    `objective` only fills the trace. A `gap` should not be the size of a step: for a rare class, steps become small
    long before the optimum.
    """
    state = start
    trace = [objective(state)]
    gaps = gap(state)
    n_iter = 0
    while bool((gaps > tolerance).any()) and n_iter < max_iter:
        state = m_step(e_step(state), state)
        n_iter += 1
        trace.append(objective(state))
        if n_iter % check_every == 0 or n_iter == max_iter:
            gaps = gap(state)
    return Solution(state, gaps, bool((gaps <= tolerance).all()), n_iter, trace)


def squarem(
    step: Callable[[Tensor], Tensor],
    start: Tensor,
    objective: Callable[[Tensor], Tensor],
    retract: Callable[[Tensor], Tensor],
    gap: Callable[[Tensor], Tensor],
    *,
    tolerance: float,
    max_iter: int = 5000,
) -> Solution[Tensor]:
    """Accelerate a monotone multiplicative map, such as an EM step, by SQUAREM (Varadhan and Roland's SqS3).

    Two steps of the map give an extrapolated point. It is accepted only if its objective is not higher than after the
    two steps. Extrapolation lowers no coordinate below a hundredth of its value after the two steps, because a
    multiplicative map could not raise a coordinate from zero again.
    """
    point = start
    trace = [objective(point)]
    gaps = gap(point)
    while bool((gaps > tolerance).any()) and len(trace) <= max_iter:
        once = step(point)
        twice = step(once)
        change = once - point
        bend = twice - once - change
        length = change.norm() / bend.norm().clamp_min(torch.finfo(point.dtype).tiny)
        far = point + 2 * length * change + length**2 * bend
        leap = step(retract(torch.maximum(far, 0.01 * twice)))
        point = leap if bool(objective(leap) <= objective(twice)) else twice
        trace.append(objective(point))
        gaps = gap(point)
    return Solution(point, gaps, bool((gaps <= tolerance).all()), len(trace) - 1, trace)
