import math

import pytest
import torch

from sitewise.posterior import combine, moments_of, normalize

INF = torch.inf


def rows(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_combine_is_bayes_rule():
    # P(x|y) in the odds 1:3, prevalence .2 against .8: odds 0.25 * 3.
    posterior = combine(rows([0.0, math.log(3)]), torch.log(rows(0.8, 0.2))).exp()
    assert posterior[0, 1].item() == pytest.approx(0.75 / 1.75)


def test_normalize_reads_infinities():
    given = rows([INF, 1.0, INF], [-INF, -INF, -INF], [-INF, 2.0, -INF])
    expected = rows([0.5, 0, 0.5], [1 / 3, 1 / 3, 1 / 3], [0, 1, 0])
    torch.testing.assert_close(normalize(given).exp(), expected)


def test_where_f_and_g_contradict_each_other_f_decides():
    posterior = combine(rows([0.0, -INF]), rows(-INF, 0.0)).exp()
    assert posterior.tolist() == [[1.0, 0.0]]


def contrast(f):
    """Rows of two classes as sums take them: f_1 - f_0."""
    return f[:, 1:] - f[:, :1]


def at(f, g, weight):
    return moments_of(contrast(f), weight[None], g[None])


def gap(f, g, weight):
    """The KKT gap of equation 8."""
    return float(at(f, g, weight).slope.max() / weight.sum()) - 1


def test_the_log_likelihood_by_hand():
    f, g, weight = rows([0.2, 0.8], [0.6, 0.4]), rows(0.5, 0.5), rows(1, 3)
    expected = math.log(0.5) + 3 * math.log(0.5)
    assert at(f, g, weight).log_likelihood.item() == pytest.approx(expected)


def test_gap_is_zero_at_the_optimum_and_bounds_what_is_left():
    f, weight = rows([0.9, 0.1], [0.9, 0.1], [0.1, 0.9]), torch.ones(3, dtype=torch.float64)
    # The optimum of 2 log(.1 + .8 g) + log(.9 - .8 g) is g = 3/4 - 1/24 = 17/24.
    best, other = rows(17 / 24, 7 / 24), rows(0.3, 0.7)
    assert gap(f, best, weight) == pytest.approx(0, abs=1e-12)
    gain = float(at(f, best, weight).log_likelihood - at(f, other, weight).log_likelihood)
    assert 0 < gain / 3 <= math.log1p(gap(f, other, weight))


def test_an_em_step_multiplies_g_by_the_slope_per_weight_and_stays_on_the_simplex():
    f, g, weight = rows([0.9, 0.1], [0.4, 0.6]), rows(0.3, 0.7), rows(1, 2)
    stepped = g * at(f, g, weight).slope[0] / 3
    by_hand = weight @ (f * g / (f * g).sum(1, keepdim=True)) / 3
    torch.testing.assert_close(stepped, by_hand)
    assert stepped.sum().item() == pytest.approx(1)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_moments_are_the_derivatives_of_the_log_likelihood(n_classes):
    """Of several g at once, with the same f for all or one for each."""
    generator = torch.Generator().manual_seed(0)
    f = torch.rand(2, 7, n_classes, generator=generator, dtype=torch.float64).softmax(2)
    g = torch.rand(2, n_classes, generator=generator, dtype=torch.float64).softmax(1)
    weight = torch.rand(2, 7, generator=generator, dtype=torch.float64)

    def log_likelihood(b, own, at):
        return weight[b] @ (own @ at).log()

    for shared in (False, True):
        versions = (f[0], f[0]) if shared else (f[0], f[1])
        ratio = torch.stack([contrast(v) if n_classes == 2 else v for v in versions])
        sums = moments_of(ratio[0] if shared else ratio, weight, g)
        for b, own in enumerate(versions):
            value = log_likelihood(b, own, g[b])
            slope = torch.autograd.functional.jacobian(lambda at, b=b, own=own: log_likelihood(b, own, at), g[b])
            bend = torch.autograd.functional.hessian(lambda at, b=b, own=own: log_likelihood(b, own, at), g[b])
            torch.testing.assert_close(sums.log_likelihood[b], value)
            torch.testing.assert_close(sums.slope[b], slope)
            torch.testing.assert_close(sums.curvature[b], -bend)
