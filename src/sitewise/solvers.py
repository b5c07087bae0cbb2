"""Minimizers on functions, not on models: Newton with a certificate, LBFGS with a line search, and EM as it is written.

Each returns its trace, its gap and whether it converged; none calls reaching its iteration limit a success.
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
FEW_HALVINGS = 6  # where the Hessian is nearly right from the start
FLAT = 1e-10  # curvature below this share of the largest is rounding: no step is taken for its sake
ROUNDING = 1e-14  # a relative rise of the objective that is only rounding
TO_THE_BOUND = 0.99  # of the way to it at most
LONG_STEP = 0.7
SHRINK = 0.1  # of the barrier after a long step, down to what the pseudo-rows ask for
BARRIER = 0.01  # at first, of the weights
RIDGE = 1e-6  # relative, where rounding spoils a Hessian


@dataclass(frozen=True)
class EM:
    """The paper's EM (algorithms 1 and 2) by its settings.

    `iterations` is the paper's T. The M-step of a network is a full LBFGS run or one gradient step (`m_step`); where
    the M-step has a closed form that is used, and T is only a limit that `iterations=None` lifts.
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
    """Where a solver ended: the point, its gap, and the objective at every iteration, the point's last."""

    point: State
    gap: Tensor
    converged: bool
    n_iter: int
    trace: list[Tensor] = field(repr=False)


@dataclass(frozen=True)
class Box:
    """Where points (B, P) may be: between bounds, and on the set that `retract` pulls them back onto."""

    lower: Tensor | None
    upper: Tensor | None
    retract: Callable[[Tensor], Tensor] | None

    def held(self, point: Tensor, gradient: Tensor) -> Tensor:
        """Tell which coordinates are at a bound that they want to cross."""
        held = torch.zeros_like(point, dtype=torch.bool)
        if self.lower is not None:
            held |= (point <= self.lower) & (gradient > 0)
        if self.upper is not None:
            held |= (point >= self.upper) & (gradient < 0)
        return held

    def step(self, point: Tensor, gradient: Tensor, move: Tensor) -> tuple[Tensor, Tensor]:
        """The legal point that a move leads to, and the change of the objective it has to reach (Armijo's)."""
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
    """Minimize B independent problems at once by damped Newton steps; none of them ever gets worse.

    `value` maps points (B, P) to (B,); `derivatives` to gradients (B, P) and Hessians (B, P, P). Coordinates may be
    bounded; a coordinate at its bound that wants to cross it is held there (Bertsekas' two-metric rule).
    `retract` pulls a trial point back onto the feasible set (a simplex, say) without raising its value. `gap` maps
    points and gradients to (B,); by default it is the largest entry of the projected gradient. A relative rise of the
    objective below `rounding` is none. `damping` maps directions (B, P) to the share of each (B,) that is tried where
    all of it is too much: for an objective that is flat far from its optimum, where a step may be 10¹⁰⁰ times too long.
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
        if not moved:  # rounding leaves nothing to gain
            break
    return Solution(point, gaps, bool(done.all()), n_iter, trace)


def _descent_direction(gradient: Tensor, hessian: Tensor, held: Tensor) -> Tensor:
    """Newton's direction over the coordinates not held, by |eigenvalues| where the Hessian is not positive."""
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
    """Newton's direction within bounds: the bound that a problem's step crosses first is gone to and kept.

    The other coordinates then take the step that is best with it, and so on until none crosses. The quadratic model
    falls at each turn, so that the objective falls along the direction. Without this, a step that is cut at a bound
    which it crosses at once is hardly one, and a point beside a bound would stay there.
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
    """Halve each problem's step until its objective falls enough (Armijo along the projection arc)."""
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
            shorter = torch.where(safe < shorter, (step * safe).sqrt(), shorter)  # more orders of magnitude than one
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
    """Find the weights w (B, P) of B mixtures, each summing to one: primal-dual interior steps, certified by KKT gaps.

    With l the mean log-likelihood of a mixture's rows and c its pseudo-rows (B, P), both per row of either kind,
    minimize Σ w - l(w) - Σ c log w over w > 0 (equation 15a), whose optimum sums to one by itself. `look` maps weights
    to l (B,) and its slope (B, P); `bend` maps them and the number of steps taken to -l'' (B, P, P), or near enough: it
    steers and the gap decides. Every step lowers the objective with its barrier, so no mixture can stall, however few
    its rows or alike its parts. Where c is zero a barrier too weak to matter stands in for it, and a slack for c / w:
    with it steps stay long where weights are all but zero.
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
        taken, found = torch.zeros_like(step), (weights, value, slope)
        open_ = best_gaps > tolerance
        for _ in range(HALVINGS):
            trial = weights + step[:, None] * move
            at, rise = look(trial)
            reached = trial.sum(1) - at - (barrier * trial.log()).sum(1)
            accept = open_ & (reached <= before + step * promised + rounding * before.abs().clamp_min(1.0))
            new = (trial, at, rise)
            found = tuple(
                torch.where(accept.reshape(-1, *[1] * (a.ndim - 1)), a, b) for a, b in zip(new, found, strict=True)
            )  # type: ignore[assignment]
            taken, open_ = torch.where(accept, step, taken), open_ & ~accept
            if not open_.any():
                break
            step = step / 2
        if not (taken > 0).any():  # rounding leaves nothing to gain
            break
        weights, value, slope = found
        slack = torch.minimum(torch.maximum(slack, 1e-3 * barrier / weights), 1e3 * barrier / weights)
        gaps = _mixture_gap(weights, slope, pseudo)
        better = gaps < best_gaps
        best, best_gaps = torch.where(better[:, None], weights, best), torch.where(better, gaps, best_gaps)
        trace.append(_mixture_value(weights, value, pseudo))
        barrier = torch.where((taken > LONG_STEP)[:, None], torch.maximum(target, SHRINK * barrier), barrier)
    point = best / best.sum(1, keepdim=True)
    return Solution(point, best_gaps, bool((best_gaps <= tolerance).all()), n_iter, trace)


def _mixture_gap(weights: Tensor, slope: Tensor, pseudo: Tensor) -> Tensor:
    """The KKT gap (B,) once the weights are scaled to sum to one (equation 15a)."""
    return weights.sum(1) * (slope + pseudo / weights).amax(1) - 1.0


def _mixture_value(weights: Tensor, value: Tensor, pseudo: Tensor) -> Tensor:
    """Minus the penalized log-likelihood (B,), likewise scaled."""
    size = weights.sum(1)
    scaled = value - (1.0 - pseudo.sum(1)) * size.log()
    return -(scaled + torch.xlogy(pseudo, weights / size[:, None]).sum(1))


def _scaled_solve(hessian: Tensor, gradient: Tensor) -> Tensor:
    """Solve (B, P, P) for (B, P), scaled by the diagonal first: weights differ by many orders of magnitude."""
    scale = torch.diagonal(hessian, dim1=-2, dim2=-1).rsqrt()
    scaled = scale[:, :, None] * hessian * scale[:, None, :]
    factor, failed = torch.linalg.cholesky_ex(scaled)
    if bool(failed.any()):
        ridge = RIDGE * torch.eye(scale.shape[1], dtype=scale.dtype, device=scale.device)
        factor = torch.where(failed[:, None, None] > 0, torch.linalg.cholesky_ex(scaled + ridge)[0], factor)
    return scale * torch.cholesky_solve((scale * gradient)[..., None], factor)[..., 0]


def _reach(values: Tensor, move: Tensor) -> Tensor:
    """How much of a move keeps all values (B, P) above zero, at most all of it, (B,)."""
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
    """Minimize one function of P bounded coordinates from a good guess of its Hessian, mended by BFGS.

    For few coordinates and many rows: a pass for the gradient is cheap where one for the Hessian is dear, and the
    Hessian of a sample of the rows is nearly right already. Steps, bounds and `gap` are as in `newton`, with B = 1.
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
        else:  # rounding leaves nothing to gain
            break
        hessian = _bfgs_update(hessian, trial - point, slope - gradient)
        point, current, gradient = trial, reached, slope
        trace.append(current)
    return Solution(point, gaps, bool((gaps <= tolerance).all()), n_iter, trace)


def _bfgs_update(hessian: Tensor, step: Tensor, change: Tensor) -> Tensor:
    """Make a Hessian (1, P, P) map the last step (1, P) to the change of the gradient that it brought."""
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
    """Minimize one function of a vector by scipy's L-BFGS-B (a line search at every step), keeping the best point.

    Only the vector travels to scipy; the function runs where its tensors are.
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
    found = minimize(
        evaluate,
        start.cpu().numpy(),
        jac=True,
        method="L-BFGS-B",
        callback=lambda _: trace.append(best_value),
        options={"maxiter": max_iter, "maxfun": 5 * max_iter, "maxcor": memory, "gtol": tolerance, "ftol": 0.0},
    )
    values = [torch.tensor(value, dtype=torch.float64) for value in trace]
    return Solution(best_point, best_gap, bool(best_gap <= tolerance), int(found.nit), values)


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
    """Expectation-maximization as it is written: responsibilities, then the state that fits them best.

    `objective` (to be minimized) only fills the trace; `gap` decides. The step's size never does: it is small long
    before a rare class has found its level.
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
    """Speed a monotone multiplicative map (an EM step) up by squared extrapolation (Varadhan and Roland's SqS3).

    Two steps show where the map is heading; the extrapolated point is taken only where it is no worse than theirs. No
    coordinate falls below a hundredth of what the two steps leave of it: from nothing it could not come back.
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
