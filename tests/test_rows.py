"""Laws of the record of rows: taking, joining and averaging, whatever columns there are."""

from dataclasses import fields, replace

import pytest
import torch

from sitewise.adaptation.posterior.labels import KnownLabels
from sitewise.diagnosis.samples import SourceSample, TargetSample
from sitewise.estimator.scoring.ratios import ProbabilityRows
from sitewise.rows import HeldOut, LabeledRows, ScoredRows, SiteRows

N = 12


def scored(seed=0, **given):
    draw = torch.Generator().manual_seed(seed)
    log_ratio = torch.randn(N, 2, generator=draw, dtype=torch.float64)
    codes = torch.rand(N, 3, generator=draw, dtype=torch.float64)
    return ScoredRows(log_ratio=log_ratio, codes=codes, supported=log_ratio[:, 0] > 0, **given)


def same(one, other):
    values = [(getattr(one, f.name), getattr(other, f.name)) for f in fields(one)]
    return all((a is None and b is None) or torch.equal(a, b) for a, b in values)


def weighted(seed=1):
    return torch.rand(N, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_a_mask_takes_what_its_numbers_take():
    rows = scored(weight=weighted(), groups=torch.arange(N) // 3)
    mask = rows.codes[:, 0] > 0.5
    assert same(rows.take(mask), rows.take(mask.nonzero().flatten()))


def test_taking_twice_is_taking_once():
    rows, first, second = scored(weight=weighted()), torch.tensor([3, 1, 7, 5]), torch.tensor([2, 0])
    assert same(rows.take(first).take(second), rows.take(first[second]))


def test_joining_gives_both_back():
    one, other = scored(0, weight=weighted(1)), scored(1, weight=weighted(2))
    both = one.join(other)
    assert len(both) == 2 * N
    assert same(both.take(torch.arange(N)), one)
    assert same(both.take(torch.arange(N, 2 * N)), other)


def test_what_only_one_has_is_one_unknown_or_a_group_of_its_own_in_the_other():
    known = scored(weight=weighted(), y=torch.zeros(N, dtype=torch.float64), groups=torch.arange(N) // 2)
    for both, own in ((known.join(scored(1)), slice(0, N)), (scored(1).join(known), slice(N, 2 * N))):
        mask = torch.zeros(2 * N, dtype=torch.bool)
        mask[own] = True
        assert torch.equal(both.weight[mask], known.weight)
        assert bool((both.weight[~mask] == 1).all())
        assert bool((both.y.isnan() == ~mask).all())
        assert len(torch.unique(both.groups[~mask])) == N
        assert len(torch.unique(both.groups[mask])) == N // 2
        assert not set(both.groups[mask].tolist()) & set(both.groups[~mask].tolist())


def test_features_keep_their_rows():
    places = torch.tensor([1, 4])
    one, other = (scored(s, features=torch.full((2, 3), float(s)), feature_rows=places) for s in (0, 1))
    both = one.join(other)
    assert both.feature_rows.tolist() == [1, 4, 1 + N, 4 + N]
    assert len(both.features) == 4
    assert one.join(scored(1)).features is None
    assert one.take(places).features is None


def test_a_row_of_weight_two_counts_as_two_in_a_mean():
    rows = scored(weight=torch.ones(N, dtype=torch.float64) + (torch.arange(N) % 2))
    again = scored().take(torch.arange(N).repeat_interleave(rows.weight.long()))
    torch.testing.assert_close(rows.weighted_mean(rows.log_ratio), again.weighted_mean(again.log_ratio))


def test_rows_are_shown_by_their_number():
    assert repr(scored()) == f"ScoredRows({N} rows)"


@pytest.mark.parametrize("kind", [LabeledRows, HeldOut, SourceSample, TargetSample, ProbabilityRows, KnownLabels])
def test_columns_that_a_stage_needs_are_required(kind):
    with pytest.raises(TypeError, match="weight"):
        kind(codes=torch.zeros(N, 0))


def test_rows_are_frozen():
    with pytest.raises(AttributeError, match="cannot assign"):
        scored().weight = None


def test_another_kind_has_the_same_columns():
    rows = scored(weight=weighted(), groups=torch.arange(N))
    held = rows.extended(HeldOut, raw_log_ratio=rows.log_ratio, log_prevalence=rows.log_ratio, y=torch.zeros(N).long())
    assert torch.equal(held.codes, rows.codes)
    assert torch.equal(held.groups, rows.groups)
    assert torch.equal(held.shifted(lambda codes: codes[:, :1]).raw_log_ratio, rows.log_ratio + rows.codes[:, :1])


def test_classes_count_alike_in_balanced_rows():
    y = (torch.arange(N) % 4 == 0).long()
    given = {"y": y, "weight": weighted() + 0.1, "site": torch.zeros(N).long(), "codes": torch.zeros(N, 0)}
    rows = LabeledRows(X=torch.zeros(N, 1), **given).balanced()
    mass = torch.zeros(2, dtype=torch.float64).index_add_(0, y, rows.weight)
    torch.testing.assert_close(mass[0], mass[1], rtol=1e-5, atol=0.0)


def test_weights_are_ones_where_none_were_given():
    rows = SiteRows(codes=torch.zeros(N, 0))
    assert rows.weights.tolist() == [1.0] * N
    assert replace(rows, weight=torch.full((N,), 2.0)).weights.dtype == torch.float64
