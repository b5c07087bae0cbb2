"""Rows laid out for sums: whatever the layout, the likelihood is the sum over the rows that were given."""

import numpy as np
import pandas as pd
import pytest
import torch

import sitewise as sw
from given import evidence_of
from sitewise.adaptation.evidence import count_groups

N = 40


def drawn(n_classes=3, seed=0):
    """log f and z of rows: some with equal z, some with part of it, some with none."""
    rng = np.random.default_rng(seed)
    Z = pd.DataFrame({"ward": rng.choice(["a", "b", None], N), "sex": rng.choice(["f", "m"], N)}, dtype=object)
    Z.iloc[30:] = None
    return torch.tensor(rng.normal(0, 1.5, (N, n_classes))), Z


def some_g(n_classes):
    """Any g of z, (n, K)."""
    slope = torch.linspace(-1, 1, n_classes, dtype=torch.float64)
    return lambda codes: torch.softmax((codes.nan_to_num(2.0).sum(1, keepdim=True) + 0.3) * slope, dim=1)


def by_hand(log_ratio, Z, schema, g, weight=None):
    """Equation 7 row by row; a row of which nothing is known has the mean of g over the others."""
    weight = np.ones(N) if weight is None else weight
    codes, _ = schema.encode(Z)
    f, at = torch.softmax(log_ratio, dim=1).numpy(), g(codes).numpy()
    blank = schema.missing(codes).all(dim=1).numpy()
    at[blank] = np.average(at[~blank], axis=0, weights=weight[~blank])
    return (weight * np.log((f * at).sum(1))).sum()


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_likelihood_is_the_sum_over_the_rows(n_classes, weighted):
    log_ratio, Z = drawn(n_classes)
    weight = np.random.default_rng(1).integers(0, 4, N).astype(float) if weighted else None
    evidence, g = evidence_of(log_ratio, Z, sample_weight=weight), some_g(n_classes)
    expected = by_hand(log_ratio, Z, evidence.schema, g, weight)
    assert evidence.log_likelihood(g) == pytest.approx(expected, rel=1e-9)


def test_rows_in_another_order_and_weight_two_for_two_rows_are_the_same_evidence():
    log_ratio, Z = drawn()
    schema, g = sw.Confounders.learn(Z), some_g(3)
    whole = evidence_of(log_ratio, Z, schema=schema).log_likelihood(g)
    order = np.random.default_rng(2).permutation(N)
    shuffled = evidence_of(log_ratio[torch.tensor(order)], Z.iloc[order], schema=schema).log_likelihood(g)
    assert shuffled == pytest.approx(whole, rel=1e-12)
    twice = evidence_of(log_ratio.repeat(2, 1), pd.concat([Z, Z]), schema=schema)
    doubled = evidence_of(log_ratio, Z, schema=schema, sample_weight=np.full(N, 2.0))
    assert twice.log_likelihood(g) == pytest.approx(2 * whole, rel=1e-12)
    assert doubled.log_likelihood(g) == pytest.approx(2 * whole, rel=1e-12)
    assert (twice.seen_weight, twice.blank_weight) == (doubled.seen_weight, doubled.blank_weight) == (60.0, 20.0)


def test_rows_without_weight_are_no_rows():
    log_ratio, Z = drawn()
    weight = (np.arange(N) % 3 > 0).astype(float)
    kept = weight > 0
    schema = sw.Confounders.learn(Z)
    some = evidence_of(log_ratio, Z, schema=schema, sample_weight=weight)
    assert some.n_rows == kept.sum()
    alone = evidence_of(log_ratio[torch.tensor(kept)], Z[kept], schema=schema)
    assert some.log_likelihood(some_g(3)) == pytest.approx(alone.log_likelihood(some_g(3)), rel=1e-12)


def test_a_constant_g_sees_all_rows_alike():
    log_ratio, Z = drawn()
    evidence = evidence_of(log_ratio, Z)
    levels = torch.tensor([[0.2, 0.3, 0.5], [0.6, 0.3, 0.1]], dtype=torch.float64)
    expected = [float((torch.softmax(log_ratio, dim=1) @ level).log().sum()) for level in levels]
    pooled = evidence.without_confounders()
    assert pooled.seen_weight == N
    assert evidence.log_likelihoods(levels).tolist() == pytest.approx(expected)
    for level, value in zip(levels, expected, strict=True):
        likelihood = pooled.log_likelihood(lambda codes, level=level: level.expand(len(codes), -1))
        assert likelihood == pytest.approx(value)


def test_mixtures_with_a_certain_class_are_mixtures():
    log_ratio, _ = drawn()
    evidence, level = evidence_of(log_ratio), torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    labels, keep, add = torch.tensor([0, 2]), torch.tensor([0.9, 0.4]).double(), torch.tensor([0.1, 0.6]).double()
    mixed = keep[:, None] * level + add[:, None] * torch.eye(3, dtype=torch.float64)[labels]
    torch.testing.assert_close(evidence.log_mixings(level, labels, keep, add), evidence.log_likelihoods(mixed))


def test_a_known_label_is_certainty():
    log_ratio, _ = drawn()
    y = np.full(N, np.nan)
    y[:5] = [0, 1, 2, 1, 0]
    known = evidence_of(log_ratio, y=y)
    certain = log_ratio.clone()
    certain[:5] = torch.eye(3, dtype=torch.float64)[torch.tensor([0, 1, 2, 1, 0])].log()
    level = torch.tensor([[0.2, 0.3, 0.5]], dtype=torch.float64)
    torch.testing.assert_close(known.log_likelihoods(level), evidence_of(certain).log_likelihoods(level))


def test_grams_of_rows_and_of_groups():
    log_ratio, Z = drawn()
    evidence = evidence_of(log_ratio, Z[["sex"]].fillna("f"), groups=np.arange(N) // 4)
    plain, grouped = evidence.gram(evidence.rows, lambda rows: (rows, rows.ratio))
    f = torch.softmax(log_ratio, dim=1)
    torch.testing.assert_close(plain, f.T @ f)
    sums = f.reshape(10, 4, 3).sum(1)
    torch.testing.assert_close(grouped, 10 / 9 * sums.T @ sums)  # ten sums around a mean of their own
    alone = evidence_of(log_ratio)
    assert alone.gram(alone.everything, lambda rows: (rows, rows.ratio))[1] is None


def test_the_mean_size_of_a_group_is_that_of_a_rows_group():
    groups = count_groups(torch.tensor([0, 0, 0, 1, 2, 2]), None)
    assert (groups.n_names, groups.count) == (3, 3)
    assert groups.mean_size == pytest.approx((9 + 1 + 4) / 6)
    assert count_groups(torch.zeros(5, dtype=torch.long), None).mean_size == 1.0  # one group shows no difference


@pytest.mark.parametrize("n_classes", [2, 3])
def test_rows_say_nothing_where_f_is_the_same_for_all_classes(n_classes):
    log_ratio = torch.full((5, n_classes), 7.0, dtype=torch.float64)
    assert evidence_of(log_ratio).says_nothing()
    log_ratio[3, 1] += 0.01
    assert not evidence_of(log_ratio).says_nothing()


def test_everything_wrong_with_rows_is_said_at_once():
    log_ratio, Z = drawn()
    with pytest.raises(ValueError, match=r"3 problems") as caught:
        evidence_of(log_ratio, Z[:30], sample_weight=-np.ones(N), groups=["a"])
    assert "sample_confounder has 30 row(s), log_ratio has 40" in str(caught.value)
