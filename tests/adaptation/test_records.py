"""Estimates taken apart and put together again: the same g, certificate, intervals and draws, in the same container."""

import json

import numpy as np
import pandas as pd
import pytest
import torch

import sitewise as sw
from sitewise.adaptation import streaming
from sitewise.adaptation.records import all_records
from sitewise.artifacts.packing import pack, unpack

FAMILY = sw.SimulatedFamily(seed=3, signal=1.5)
NEW = FAMILY.site(300, dependence=1.0, seed=4)


def there_and_back(estimate):
    tree, tensors = pack({"estimate": estimate}, all_records())
    return unpack(json.loads(json.dumps(tree, allow_nan=False)), tensors, all_records())["estimate"]


def gaps(Z):
    """Some of z missing, some rows all of it."""
    Z = Z.copy()
    Z.iloc[::7, 0] = np.nan
    Z.iloc[::11] = None
    return Z


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"model": "constant", "strength": 5.0, "prior": [0.3, 0.7]},
        {"model": "additive", "strength": 3.0, "solver": "em"},
        {"model": "network", "solver": sw.EM(iterations=2), "random_state": 0},
        {"y": np.resize([0, 1, np.nan, np.nan], 300), "groups": np.arange(300) // 4},
        {"sample_weight": np.resize([0.0, 1.0, 2.5], 300)},
    ],
    ids=["auto", "constant", "additive", "network", "labels and groups", "weights"],
)
def test_an_estimate_comes_back_with_all_it_can_say(options, monkeypatch):
    monkeypatch.setattr("sitewise.adaptation.rows.STRETCH", 2**10)  # 64 rows at a time
    Z = gaps(NEW.Z)
    estimate = sw.estimate_prevalence(NEW.log_ratio, Z, **options)
    other = there_and_back(estimate)
    assert Z.isna().all(axis=1).any()
    assert repr(other) == repr(estimate)
    np.testing.assert_array_equal(other.marginal, estimate.marginal)
    np.testing.assert_array_equal(other.log_prevalence(Z), estimate.log_prevalence(Z))
    for arguments in ({}, {"Z": Z[:40]}):
        np.testing.assert_array_equal(other.interval(**arguments), estimate.interval(**arguments))
    if estimate.can_refit:
        draws = [e.bootstrap(2, random_state=0) for e in (estimate, other)]
        np.testing.assert_array_equal(draws[0].marginal, draws[1].marginal)


def test_a_prior_that_depends_on_z_comes_back_with_it():
    prior = sw.estimate_prevalence(NEW.log_ratio, NEW.Z, model="additive", strength=1.0)
    small = FAMILY.site(80, dependence=1.0, seed=5)
    estimate = sw.estimate_prevalence(small.log_ratio, small.Z, prior=prior)
    other = there_and_back(estimate)
    np.testing.assert_array_equal(other.interval(small.Z), estimate.interval(small.Z))
    np.testing.assert_array_equal(
        *(e.bootstrap(2, random_state=0).marginal for e in (estimate, other))  # centred on the prior
    )


def test_containers_come_back():
    frame = pd.DataFrame(NEW.log_ratio, columns=["well", "ill"])
    returned = there_and_back(sw.estimate_prevalence(frame, NEW.Z)).marginal
    assert list(returned.index) == ["well", "ill"]
    tensor = there_and_back(sw.estimate_prevalence(torch.tensor(NEW.log_ratio), NEW.Z)).marginal
    assert isinstance(tensor, torch.Tensor)


def test_rows_that_are_not_in_memory_cannot_be_saved(monkeypatch):
    monkeypatch.setattr(streaming, "KEPT_BYTES", 0)
    chunks = [(NEW.log_ratio[:150], NEW.Z[:150]), (NEW.log_ratio[150:], NEW.Z[150:])]
    with pytest.raises(ValueError, match="are streamed"):
        there_and_back(sw.estimate_prevalence(chunks, model="constant"))
