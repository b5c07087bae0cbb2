"""PrevalenceAdjuster around a classifier of pairs, P(y, z|x), against exact posteriors of sites of known densities."""

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.special import logsumexp
from sklearn.linear_model import LogisticRegression

import sitewise as sw
from sitewise.bench.datasets.known_densities import TARGETS, TRAINING, bank, log_density, training_joint
from sitewise.confounders import Confounders
from sitewise.critic import Bank
from sitewise.estimator.at_site.diagnosing import site_tilt

N_AGES = 20
AGES, SEXES = bank(N_AGES)
POINTS = pd.DataFrame({"age": AGES, "sex": np.where(SEXES == 1, "m", "f")})


def pairs_of(X):
    """P_s(y, z_m|x) of the training population, (n, M, 2): a perfect classifier."""
    log_both = log_density(X, N_AGES) + np.log(training_joint(N_AGES))
    return np.exp(log_both - logsumexp(log_both, axis=(1, 2), keepdims=True))


def nll(probability, y):
    return -np.log(probability[np.arange(len(y)), y]).mean()


def source(n=3000):
    parts = [site.draw(n, seed, str(seed)) for seed, site in enumerate(TRAINING)]
    return {
        "X": pairs_of(np.concatenate([part.X for part in parts])),
        "y": np.concatenate([part.y for part in parts]),
        "sample_domain": np.repeat(["0", "1"], n),
        "sample_confounder": pd.concat([part.Z for part in parts], ignore_index=True),
    }


@pytest.fixture(scope="module")
def fitted():
    return sw.PrevalenceAdjuster(joint=POINTS, missing="joint", rehearsal=None).fit(**source())


@pytest.mark.parametrize("name", list(TARGETS))
def test_without_z_it_is_as_good_as_the_densities_allow(fitted, name):
    target = TARGETS[name]
    new, fresh = target.draw(5000, 7), target.draw(5000, 8)
    here = fitted.adapt(pairs_of(new.X))
    assert here.missing == "joint"
    assert here.prevalence()[1] == pytest.approx(target.joint(400)[:, 1].sum(), abs=0.025)
    low, high = here.prevalence_interval()
    assert low[1] < here.prevalence()[1] < high[1]
    assert nll(here.predict_proba(pairs_of(fresh.X)), fresh.y) < nll(target.posterior(fresh.X), fresh.y) + 0.008


def test_knockout_loses_where_the_relation_of_y_and_z_flips_and_auto_sees_it(fitted):
    target = TARGETS["correlation flips"]
    new = target.draw(4000, 3)
    X = pairs_of(new.X)
    losses = {}
    for missing in ("knockout", "joint", "auto"):
        fitted.missing = missing
        here = fitted.adapt(X)
        losses[missing] = nll(here.predict_proba(X), new.y)
        assert here.missing == ("knockout" if missing == "knockout" else "joint")
    fitted.missing = "joint"
    assert losses["joint"] < losses["knockout"] - 0.05
    assert losses["auto"] == losses["joint"]


def test_rows_with_a_part_of_z_use_it_and_rows_with_all_of_it_go_by_g(fitted):
    target = TARGETS["correlation flips"]
    new = target.draw(4000, 4)
    X, Z = pairs_of(new.X), new.Z
    part = Z.assign(age=np.nan)
    with_part, without = fitted.adapt(X, part), fitted.adapt(X)
    same_sex = (SEXES == 1) == (Z["sex"] == "m").to_numpy()[:, None]
    weighted = np.exp(log_density(new.X, N_AGES)) * target.joint(N_AGES) * same_sex[..., None]
    best = weighted.sum(1) / weighted.sum((1, 2))[:, None]
    assert nll(with_part.predict_proba(X, part), new.y) < nll(best, new.y) + 0.01
    assert nll(with_part.predict_proba(X, part), new.y) < nll(without.predict_proba(X), new.y) - 0.004
    whole = fitted.adapt(X, Z)
    exact = np.stack(
        [1 - target.prevalence(Z["age"], Z["sex"] == "m"), target.prevalence(Z["age"], Z["sex"] == "m")], 1
    )
    nearest = (np.floor(Z["age"] * N_AGES).clip(0, N_AGES - 1) * 2 + (Z["sex"] == "m")).astype(int)
    log_ratio = log_density(new.X, N_AGES)[np.arange(len(X)), nearest]
    best = nll(sw.adjust(log_ratio, np.log(exact)), new.y)
    assert nll(whole.predict_proba(X, Z), new.y) < best + 0.02


def test_log_r_is_that_of_the_densities_and_has_mean_one_over_the_training_joint(fitted):
    X = TRAINING[0].draw(500, 9).X
    ((_, found),) = fitted.joint_.ratios(fitted, torch.tensor(np.log(pairs_of(X)).reshape(500, -1)))
    exact = torch.tensor(np.log(pairs_of(X)) - np.log(training_joint(N_AGES)))
    weight = torch.tensor(pairs_of(X))
    assert float((weight * (found - exact).abs()).sum((1, 2)).mean()) < 0.1
    mean = torch.logsumexp(found + fitted.joint_.prior.log(), dim=(1, 2))
    torch.testing.assert_close(mean, torch.zeros_like(mean), atol=1e-9, rtol=0)


def test_an_overconfident_classifier_is_cooled(fitted):
    data = source()
    sharp = data["X"] ** 2
    data["X"] = sharp / sharp.sum((1, 2), keepdims=True)
    hot = sw.PrevalenceAdjuster(joint=POINTS, missing="joint", rehearsal=None).fit(**data)
    assert hot.joint_.calibration.slope[0] == pytest.approx(0.5, abs=0.1)
    assert fitted.joint_.calibration.slope[0] == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("name", list(TARGETS))
def test_a_shift_of_z_alone_is_no_alarm_and_a_change_of_x_is(fitted, name):
    new = TARGETS[name].draw(1500, 55)
    assert severity(fitted.adapt(pairs_of(new.X))) == "good"
    assert severity(fitted.adapt(pairs_of(new.X * [0.4, 1, 1]))) == "stop"  # what tells y from not-y is fainter here
    fitted.missing = "knockout"
    assert severity(fitted.adapt(pairs_of(new.X))) == "stop"
    fitted.missing = "joint"


def severity(here):
    return next(finding.severity for finding in here.diagnose().findings if finding.name == "stability")


def test_tilted_rows_have_the_joint_they_are_tilted_to():
    schema = Confounders.learn(pd.DataFrame({"sex": ["f", "m"]}))
    bank = Bank(schema, torch.tensor([[0.0], [1.0]]), torch.tensor([0.5, 0.5], dtype=torch.float64))
    rng = np.random.default_rng(0)
    codes, y, weight = (torch.tensor(rng.integers(0, 2, 300)) for _ in range(3))
    codes, weight = codes[:, None].double(), 1.0 + weight.double()
    joint = torch.tensor([[0.1, 0.4], [0.3, 0.2]], dtype=torch.float64)
    tilted = weight * site_tilt(bank, joint, codes, y, weight)
    found = torch.tensor([[float(tilted[(codes[:, 0] == m) & (y == k)].sum()) for k in (0, 1)] for m in (0, 1)])
    torch.testing.assert_close(found.double(), joint, atol=2e-3, rtol=0)


def test_performance_report_updates_and_folder_know_the_joint(fitted, tmp_path):
    new = TARGETS["correlation vanishes"].draw(1500, 5)
    X = pairs_of(new.X)
    here = fitted.adapt(X)
    performance = here.expected_performance()["accuracy"]
    accuracy = (here.predict(X) == new.y).mean()
    assert performance[1] - 0.03 < accuracy < performance[2] + 0.03
    page = here.report(tmp_path / "report.html").read_text(encoding="utf-8")
    assert "P(y, z|x) over 40 values of z" in page
    here.save(tmp_path / "site")
    again = sw.load(tmp_path / "site")
    np.testing.assert_array_equal(again.predict_proba(X), here.predict_proba(X))
    assert again.missing == "joint"
    pd.testing.assert_frame_equal(again.model.joint, POINTS)
    more = here.update(X[:200])
    assert len(more.rows) == 1700
    assert severity(more) == severity(again) == "good"


def test_columns_may_be_flat_and_an_estimator_may_give_them(fitted):
    new = TARGETS["prevalence shifts"].draw(400, 6)
    X = pairs_of(new.X)
    expected = fitted.adapt(X).predict_proba(X)
    flat = X.reshape(400, -1)
    np.testing.assert_array_equal(fitted.adapt(flat).predict_proba(torch.tensor(flat)), expected)
    parts = [site.draw(1500, seed) for seed, site in enumerate(TRAINING)]
    rows, y = np.concatenate([part.X for part in parts]), np.concatenate([part.y for part in parts])
    sex = pd.concat([part.Z[["sex"]] for part in parts], ignore_index=True)
    pairs = LogisticRegression().fit(rows, 2 * (sex["sex"] == "m") + y)
    post = sw.PrevalenceAdjuster(pairs, joint=pd.DataFrame({"sex": ["f", "m"]}), missing="joint", rehearsal=None)
    post.fit(rows, y, sample_confounder=sex, sample_domain=np.repeat(["0", "1"], 1500))
    here = post.adapt(new.X)
    assert here.predict_proba(new.X).shape == (400, 2)
    assert here.prevalence()[1] < 0.25


@pytest.mark.parametrize(
    ("settings", "changes", "message"),
    [
        ({"joint": None, "missing": "joint"}, {}, "needs a classifier that gives P"),
        ({"classifier_sees": "x"}, {}, "leave classifier_sees at 'auto'"),
        ({"missing": "knokout"}, {}, "did you mean 'knockout'"),
        ({"estimator": LogisticRegression()}, {}, "must already be fitted to pairs"),
        ({"joint": POINTS[["age"]]}, {}, "joint lacks sex"),
        ({"joint": POINTS.assign(sex="x")}, {}, "joint has sex = 'x', which no source row has"),
        ({"joint": POINTS.assign(age=np.nan)}, {}, r"lacks a value in 40 z-point\(s\), first at row 0"),
        ({"joint": POINTS.assign(age=0.5, sex="f")}, {}, "has a duplicate z-point"),
        ({"joint": POINTS.iloc[:39]}, {}, r"must have shape \(rows, 39, 2\), z-points of joint by classes, got"),
        ({}, {"sample_confounder": None}, "give fit sample_confounder"),
    ],
)
def test_what_is_wrong_is_said(settings, changes, message):
    data = {name: value[:200] for name, value in source(200).items()} | changes
    with pytest.raises(ValueError, match=message):
        sw.PrevalenceAdjuster(**{"joint": POINTS} | settings).fit(**data)
