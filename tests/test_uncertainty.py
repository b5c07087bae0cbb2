import torch

from sitewise.adaptation.evidence import Groups, count_groups, put_together
from sitewise.adaptation.rows import Rows, Stream
from sitewise.uncertainty import Fall, allowed_drop, at_least, likelihood_ends, mirror, mix_in, stretched, take_out


def rows(*values):
    return torch.tensor(values, dtype=torch.float64)


def with_groups(*names):
    codes = torch.zeros(1, 0, dtype=torch.float64)
    stretch = Rows(torch.zeros(len(names), 1, dtype=torch.float64), None, codes, None, torch.tensor(names))
    groups = count_groups(stretch.groups, None)
    evidence = put_together(Stream(()), Stream([stretch]), groups, None, 2, torch.device("cpu"))
    return evidence, stretch


def test_groups_count_by_their_sums():
    deviation = rows([1.0], [-1.0], [2.0], [-2.0])
    for names, expected in (((0, 0, 0, 0), None), ((0, 0, 1, 1), 0.0), ((0, 1, 0, 1), 2 * 18)):
        evidence, stretch = with_groups(*names)
        plain, grouped = evidence.gram(Stream([stretch]), lambda rows: (rows, deviation))
        assert plain.item() == 10
        assert grouped is None if expected is None else grouped.item() == expected
    assert Groups(4, 1, 1.0).factor == 0
    assert count_groups(torch.tensor([3, 4, 5]), None).factor == 1.5


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
    site = torch.zeros(1, 0, dtype=torch.float64)
    fall = Fall(
        lambda at: float((f @ at(site)[0]).log().sum()), lambda _: rows([0.3, 0.3, 0.4]), allowed_drop(0.95, 1.0)
    )
    mixed = likelihood_ends(fall, lambda at: at(site)[0], 0)
    swapped = likelihood_ends(fall, lambda at: at(site)[0], 0, None, lambda _: rows([1.0, -1.0, 0.0]))
    assert mixed[:, 0].max() < 0.5
    assert swapped[:, 0].min() < 1e-6
    assert 0.6 - 1e-6 < swapped[:, 0].max() < 0.7


def test_a_bound_is_stretched_in_log_odds_and_an_error_of_its_own_adds_in_squares():
    middle, bound = torch.tensor([0.3, 0.9], dtype=torch.float64), torch.tensor([0.2, 0.95], dtype=torch.float64)
    away = torch.logit(bound) - torch.logit(middle)
    torch.testing.assert_close(stretched(bound, middle, 1.0, 0.0), bound)
    torch.testing.assert_close(torch.logit(stretched(bound, middle, 3.0, 0.0)) - torch.logit(middle), 3 * away)
    twice = torch.logit(stretched(bound, middle, 3.0, 0.5)) - torch.logit(middle)
    torch.testing.assert_close(twice.abs(), torch.hypot(3 * away, torch.full_like(away, 0.5)))
