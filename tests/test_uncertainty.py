import torch

from sitewise.uncertainty import Fall, at_least, gram, group_factor, likelihood_interval, mirror, mix_in, take_out


def rows(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_groups_count_by_their_sums_and_never_for_less():
    deviation, weight = rows([1.0], [-1.0], [2.0], [-2.0]), torch.ones(4, dtype=torch.float64)
    assert gram(deviation, weight, None).item() == 10
    assert gram(deviation, weight, torch.tensor([0, 0, 0, 0])).item() == 10
    assert gram(deviation, weight, torch.tensor([0, 0, 1, 1])).item() == 10
    assert gram(deviation, weight, torch.tensor([0, 1, 0, 1])).item() == 2 * 18
    assert group_factor(torch.tensor([3, 3])) == 0
    assert group_factor(torch.tensor([3, 4, 5])) == 1.5


def test_at_least_is_no_less_than_either_in_any_direction():
    one, other = rows([1.0, -1.0], [-1.0, 1.0]), rows([2.0, 0.5], [0.5, 0.5])
    raised = at_least(one, other)
    for below in (one, other):
        assert torch.linalg.eigvalsh(raised - below).min() > -1e-12
    torch.testing.assert_close(at_least(4 * one, one), 4 * one)
    torch.testing.assert_close(at_least(one, 4 * one), 4 * one)


def test_mixing_keeps_probabilities():
    g = rows([0.2, 0.3, 0.5])
    torch.testing.assert_close(mix_in(g, 0, 0.5), rows([0.6, 0.15, 0.25]))
    torch.testing.assert_close(take_out(g, 0, 0.5), rows([0.1, 0.3, 0.5]) / 0.9)
    torch.testing.assert_close(take_out(rows([1.0, 0.0, 0.0]), 0, 1.0), rows([1.0, 0.0, 0.0]))


def test_mirror_says_the_same_of_both_classes():
    low, high = mirror(rows(0.1, 0.7), rows(0.2, 0.95))
    torch.testing.assert_close(low, rows(0.05, 0.7))
    torch.testing.assert_close(high, rows(0.3, 0.95))


def test_a_direction_in_which_nothing_is_lost_is_followed_to_its_end():
    """Two classes that f does not tell apart: either may have all of their sum, 0.6."""
    f = rows([0.9, 0.9, 0.1], [0.1, 0.1, 0.9]).repeat(500, 1)
    share = rows(1.0)
    fall = Fall(lambda g: (f @ g[0]).log().sum(), rows([0.3, 0.3, 0.4]), 0.95, 1.0)
    mixed = likelihood_interval(fall, share, 0)
    swapped = likelihood_interval(fall, share, 0, rows([1.0, -1.0, 0.0]))
    assert mixed[1] < 0.5
    assert swapped[0] < 1e-6
    assert 0.6 - 1e-6 < swapped[1] < 0.7
