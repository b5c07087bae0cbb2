"""Where a class cannot occur, rows tell nothing about f: they must not calibrate it, nor f be relied on there."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from sitewise import Confounders, GPAClassifier
from sitewise.estimator.source.regions import find_unsupported
from sitewise.estimator.without_z.predicting import share_unseen
from sitewise.rows import LabeledRows


def site(n, share, seed):
    """The class 1 occurs at z = b alone; x tells the classes apart, and shows z."""
    rng = np.random.default_rng(seed)
    z = rng.random(n) < 0.5
    y = (rng.random(n) < share) & z
    x = np.stack([2 * y + rng.normal(size=n), z + 0.3 * rng.normal(size=n)], axis=1)
    return x, y.astype(int), pd.DataFrame({"z": np.where(z, "b", "a")})


@pytest.fixture(scope="module")
def model():
    parts = [site(400, 0.8, 0), site(400, 0.5, 1)]
    X, y = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
    Z = pd.concat([part[2] for part in parts], ignore_index=True)
    settings = {"epochs": 3, "device": "cpu", "verbose": False, "rehearsal": None}
    return GPAClassifier(**settings).fit(X, y, sample_domain=np.repeat(["one", "two"], 400), sample_confounder=Z)


def test_rows_where_a_class_cannot_occur_do_not_calibrate(model):
    held, hidden = model.held_out_
    at_a = held.codes[:, 0] == 0
    assert model.unsupported_
    assert 20 < int(at_a.sum()) < len(at_a)
    other = model.with_calibration(model.calibration)
    other.held_out_ = (replace(held, raw_log_ratio=torch.where(at_a[:, None], 9.0, 0.0) + held.raw_log_ratio), hidden)
    torch.testing.assert_close(
        other.with_calibration(model.calibration).calibrations_[0].bias, model.calibrations_[0].bias, rtol=0, atol=0
    )
    shifted = held.raw_log_ratio + torch.tensor([0.0, 1.0])
    other.held_out_ = (replace(held, raw_log_ratio=torch.where(at_a[:, None], held.raw_log_ratio, shifted)), hidden)
    assert not torch.equal(other.with_calibration(model.calibration).calibrations_[0].bias, model.calibrations_[0].bias)


def test_all_rows_calibrate_what_is_said_without_z(model):
    assert len(model.telling_rows()[1].y) == len(model.held_out_[1].y)


def test_a_prevalence_where_f_is_known_is_found(model):
    """P(y=1|b) falls from 0.65 in training to 0.1."""
    X, y, Z = site(4000, 0.1, 7)
    with pytest.warns(UserWarning, match="never occurs"):
        here = model.adapt(X, sample_confounder=Z)
    assert abs(here.prevalence()[1] - y.mean()) < 0.03


@pytest.mark.filterwarnings("ignore:.*never occurs")
@pytest.mark.parametrize("policy", ["auto", "as trained", "rows"])
def test_a_row_of_weight_w_is_w_rows_also_where_a_class_cannot_occur(model, policy):
    X, _, Z = site(300, 0.2, 9)
    times = np.where(Z["z"] == "a", 3, 1)  # more where the training prevalence is kept
    times[::7] = 2
    again = np.repeat(np.arange(300), times)
    weighted = model.adapt(X, sample_confounder=Z, sample_weight=times, policy=policy)
    repeated = model.adapt(X[again], sample_confounder=Z.iloc[again], policy=policy)
    plain = model.adapt(X, sample_confounder=Z, policy=policy)
    assert weighted.prevalence()[1] < plain.prevalence()[1] - 0.01
    np.testing.assert_allclose(weighted.prevalence(), repeated.prevalence(), atol=1e-6)
    np.testing.assert_allclose(weighted.prevalence_interval(), repeated.prevalence_interval(), atol=1e-5)
    np.testing.assert_allclose(weighted.predict_proba(X, Z), repeated.predict_proba(X, Z), atol=1e-5)


def test_auto_keeps_knockout_where_f_is_a_guess_at_much_of_z(model):
    X, _, _ = site(300, 0.3, 8)
    assert not model.joint_.trusted
    assert model.adapt(X).missing == "knockout"


def test_unseen_is_where_a_class_was_to_be_expected_and_is_absent():
    prior = torch.tensor([[0.3, 0.2], [0.3, 0.0], [0.1, 0.1]], dtype=torch.float64)
    everywhere = torch.ones(3, 2, dtype=torch.bool)
    assert share_unseen(prior, everywhere, 1000) == pytest.approx(0.3)
    assert share_unseen(prior, everywhere, 50) == 0.0  # 4.5 rows of the class were to be expected
    prior[1] = torch.tensor([0.298, 0.002])
    assert share_unseen(prior, everywhere, 1000) == 0.0
    everywhere[2, 1] = False
    assert share_unseen(prior, everywhere, 1000) == pytest.approx(0.2)


def test_a_level_too_small_to_tell_is_no_such_region():
    codes = torch.tensor([[0.0]] * 200 + [[1.0]] * 5)
    schema = Confounders.learn(pd.DataFrame({"z": ["a"] * 200 + ["b"] * 5}))
    y = torch.tensor([0, 1] * 100 + [0] * 5)
    site = torch.zeros(205).long()
    rows = LabeledRows(X=torch.zeros(205, 1), y=y, weight=torch.ones(205), site=site, codes=codes)
    assert find_unsupported(rows, 2, schema) == ()
    more = rows.take(torch.arange(205).repeat(10))
    assert [(r.code, r.label) for r in find_unsupported(more, 2, schema)] == [(1.0, 1)]
