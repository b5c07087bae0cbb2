import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from sitewise.solvers import EM, em, lbfgs, newton, quasi_newton, squarem


def rosenbrock(points):
    x, y = points[:, 0], points[:, 1]
    return (1 - x) ** 2 + 100 * (y - x**2) ** 2


def rosenbrock_derivatives(points):
    x, y = points[:, 0], points[:, 1]
    gradients = torch.stack([-2 * (1 - x) - 400 * x * (y - x**2), 200 * (y - x**2)], dim=1)
    corner = torch.stack([2 - 400 * y + 1200 * x**2, -400 * x], dim=1)
    other = torch.stack([-400 * x, torch.full_like(x, 200.0)], dim=1)
    return gradients, torch.stack([corner, other], dim=1)


def test_newton_descends_a_valley_that_is_not_convex_several_at_once():
    start = torch.tensor([[-1.2, 1.0], [0.0, 3.0], [2.0, -2.0]], dtype=torch.float64)
    solution = newton(rosenbrock, rosenbrock_derivatives, start)
    assert solution.converged
    torch.testing.assert_close(solution.point, torch.ones_like(start), atol=1e-6, rtol=0)
    assert (torch.stack(solution.trace).diff(dim=0) <= 1e-12).all()


def test_newton_stops_at_a_bound_it_wants_to_cross():
    def value(points):
        return ((points - torch.tensor([-1.0, 2.0], dtype=torch.float64)) ** 2).sum(1)

    def derivatives(points):
        return 2 * (points - torch.tensor([-1.0, 2.0], dtype=torch.float64)), 2 * torch.eye(2, dtype=torch.float64)[
            None
        ]

    start = torch.full((1, 2), 5.0, dtype=torch.float64)
    solution = newton(value, derivatives, start, lower=torch.zeros_like(start))
    assert solution.converged
    torch.testing.assert_close(solution.point, torch.tensor([[0.0, 2.0]], dtype=torch.float64))


def test_newton_says_when_it_ran_out_of_iterations():
    solution = newton(rosenbrock, rosenbrock_derivatives, torch.tensor([[-1.2, 1.0]], dtype=torch.float64), max_iter=2)
    assert not solution.converged
    assert solution.n_iter == 2


def kink(point):
    return torch.sqrt(1e-4 + point**2).sum()


def test_lbfgs_never_ends_above_where_it_was():
    """Trap: without a line search LBFGS runs away from a start as harmless as this one."""
    start = torch.tensor([3.0, -2.0], dtype=torch.float64)
    unguarded = torch.nn.Parameter(start.clone())
    optimizer = torch.optim.LBFGS([unguarded], max_iter=20)

    def closure():
        optimizer.zero_grad()
        value = kink(unguarded)
        value.backward()
        return value

    optimizer.step(closure)
    assert kink(unguarded.detach()) > 1e6

    def value_and_gradient(flat):
        return kink(flat), flat / torch.sqrt(1e-4 + flat**2)

    solution = lbfgs(value_and_gradient, start)
    assert solution.converged
    assert (np.diff([float(v) for v in solution.trace]) <= 0).all()
    torch.testing.assert_close(solution.point, torch.zeros(2, dtype=torch.float64), atol=1e-6, rtol=0)
    assert not lbfgs(value_and_gradient, start, max_iter=1).converged


def mixture(seed=0, n_rows=200):
    """EM's textbook case: the share of one of two known densities."""
    x = np.random.default_rng(seed).normal(size=n_rows) + (np.random.default_rng(seed + 1).random(n_rows) < 0.05) * 2
    return torch.tensor(np.stack([np.exp(-(x**2) / 2), np.exp(-((x - 2) ** 2) / 2)], axis=1))


def em_pieces(f):
    def step(g):
        return (f * g / (f @ g)[:, None]).mean(0)

    return step, lambda g: -(f @ g).log().sum(), lambda g: (f / (f @ g)[:, None]).mean(0).max() - 1


def test_em_is_stopped_by_its_gap_and_not_by_small_steps():
    f = mixture()
    step, objective, gap = em_pieces(f)
    start = torch.tensor([0.5, 0.5], dtype=torch.float64)
    solution = em(start, step, lambda r, _: r, objective, gap, tolerance=1e-9)
    best = minimize(lambda g: float(objective(torch.tensor([1 - g[0], g[0]]))), [0.1], bounds=[(1e-9, 1)], tol=1e-14)
    assert solution.converged
    assert float(solution.point[1]) == pytest.approx(best.x[0], abs=1e-5)
    limited = em(start, step, lambda r, _: r, objective, gap, tolerance=1e-9, max_iter=5)
    assert not limited.converged
    assert limited.n_iter == 5


def test_squarem_reaches_ems_answer_in_fewer_steps_and_never_gets_worse():
    f = mixture(3)
    step, objective, gap = em_pieces(f)
    start = torch.tensor([0.5, 0.5], dtype=torch.float64)
    plain = em(start, step, lambda r, _: r, objective, gap, tolerance=1e-8)
    fast = squarem(step, start, objective, lambda g: g.clamp_min(1e-12) / g.clamp_min(1e-12).sum(), gap, tolerance=1e-8)
    torch.testing.assert_close(fast.point, plain.point, atol=1e-5, rtol=0)
    assert 3 * fast.n_iter < plain.n_iter
    assert (torch.stack(fast.trace).diff() <= 1e-10).all()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"iterations": 0}, "iterations must be a whole number from 1 up, or None, got 0"),
        ({"iterations": 2.5}, "got 2.5"),
        ({"m_step": "adam"}, "m_step must be one of lbfgs, sgd, got 'adam'"),
        ({"learning_rate": -0.1}, "learning_rate must be a number above 0, got -0.1"),
    ],
)
def test_settings_of_em_that_make_no_sense_are_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        EM(**settings)


def test_quasi_newton_corrects_a_wrong_hessian_and_keeps_to_the_bounds():
    scale = torch.tensor([1.0, 10.0, 100.0, 1000.0], dtype=torch.float64)
    goal = torch.tensor([[1.0, 2.0, 3.0, -4.0]], dtype=torch.float64)

    def value_and_gradient(point):
        return 0.5 * (scale * (point - goal) ** 2).sum(1), scale * (point - goal)

    start = torch.full((1, 4), 5.0, dtype=torch.float64)
    solution = quasi_newton(
        value_and_gradient,
        start,
        8.0 * torch.diag(scale)[None],
        gap=lambda point, gradient: torch.where((point <= 0) & (gradient > 0), 0.0, gradient).abs().amax(1),
        lower=torch.zeros_like(start),
        retract=lambda point: point,
    )
    assert solution.converged
    assert solution.n_iter <= 12
    torch.testing.assert_close(solution.point, torch.tensor([[1.0, 2.0, 3.0, 0.0]], dtype=torch.float64))
    assert (torch.stack(solution.trace).diff(dim=0) <= 1e-12).all()
