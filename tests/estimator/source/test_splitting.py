"""Which rows are held out, which are left out of a fit, and which stand for many."""

import numpy as np
import pytest
import torch

from sitewise.estimator.source.reading import TrainingData, evenly, folds, split_validation
from sitewise.rows import LabeledRows, SiteRows


def data_with_groups():
    n_rows = 200
    y = torch.arange(n_rows) % 5 == 0
    rows = LabeledRows(
        X=torch.zeros(n_rows, 1),
        y=y.long(),
        weight=torch.ones(n_rows),
        site=(torch.arange(n_rows) >= 120).long(),
        codes=torch.zeros(n_rows, 0),
        groups=torch.arange(n_rows) // 4,
    )
    return TrainingData(rows, ["a", "b"], np.array([0, 1]), None)


def test_validation_keeps_groups_whole_and_takes_its_share_of_each_site():
    data = data_with_groups()
    kept, held = split_validation(data, 0.25, seed=0)
    assert not set(data.rows.groups[kept].tolist()) & set(data.rows.groups[held].tolist())
    assert sorted(torch.cat([kept, held]).tolist()) == list(range(200))
    assert torch.bincount(data.rows.site[held]).tolist() == [28, 20]
    alone = TrainingData(data.rows, data.site_names, data.classes, None, None)
    kept, held = split_validation(alone, 0.25, seed=0)
    assert int(data.rows.y[held].sum()) == 10


def test_folds_cover_every_row_once_and_keep_groups_whole():
    groups = torch.arange(40) // 4
    parts = folds(SiteRows(codes=torch.zeros(40, 0), groups=groups), seed=0)
    assert sorted(torch.cat(parts).tolist()) == list(range(40))
    for part in parts:
        others = torch.ones(40, dtype=torch.bool)
        others[part] = False
        assert not set(groups[part].tolist()) & set(groups[others].tolist())


@pytest.mark.parametrize(("n_rows", "at_most"), [(0, 5), (5, 5), (6, 5), (1000, 7), (99, 98)])
def test_a_few_rows_are_spread_over_all_of_them(n_rows, at_most):
    rows = evenly(n_rows, at_most)
    assert len(torch.unique(rows)) == len(rows) == min(n_rows, at_most)
    assert bool(((rows >= 0) & (rows < n_rows)).all())
    steps = rows.diff()
    assert not len(steps) or int(steps.max() - steps.min()) <= 1
