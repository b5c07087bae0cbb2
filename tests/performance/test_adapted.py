"""Expected performance, thresholds and plans of a model that was trained and adapted."""

import numpy as np
import pytest

import sitewise as sw
from sitewise.datasets.simulated import SimulatedFamily


@pytest.fixture(scope="module")
def family():
    return SimulatedFamily(signal=2.5, levels=(2,), n_continuous=1)


@pytest.fixture(scope="module")
def model(family):
    sites = [family.site(500, prevalence=[0.6, 0.4], dependence=d, name=str(d), seed=i) for i, d in enumerate((1, -1))]
    X, y = np.concatenate([s.X for s in sites]), np.concatenate([s.y for s in sites])
    Z = {name: np.concatenate([s.Z[name] for s in sites]) for name in sites[0].Z}
    domain = np.repeat([s.site.name for s in sites], 500)
    fitted = sw.GPAClassifier(epochs=5, random_state=0, verbose=False, rehearsal=None)
    return fitted.fit(X, y, sample_domain=domain, sample_confounder=Z)


@pytest.fixture(scope="module")
def site(family):
    return family.site(600, prevalence=[0.8, 0.2], missing=0.1, seed=9)


@pytest.fixture
def here(model, site):
    return model.adapt(site.X, sample_confounder=site.Z)


def test_what_is_expected_is_near_what_labels_show(here, site):
    expected = here.expected_performance()
    seen = (here.predict(site.X, site.Z) == site.y).mean()
    assert expected.n_rows == 600
    assert expected["accuracy"].estimate == pytest.approx(seen, abs=0.06)
    assert expected["accuracy"].low <= seen <= expected["accuracy"].high
    assert set(expected.by("group0")) == {"level 0", "level 1", "missing"}


def test_the_calibration_of_f_is_part_of_the_doubt(here, monkeypatch):
    whole = here.expected_performance()["brier"]
    del here.drawn_rows
    monkeypatch.setattr("sitewise.estimator.at_site.label_draws.resampled_calibrations", lambda model, codes, joint: [])
    given_f = here.expected_performance()["brier"]
    assert whole.high - whole.low > given_f.high - given_f.low


def test_predict_uses_the_threshold_chosen(here, site):
    before = here.predict(site.X, site.Z)
    choice = here.choose_threshold(sensitivity=0.95)
    assert here.threshold_ == choice.threshold
    probability = here.predict_proba(site.X, site.Z)[:, 1]
    after = here.predict(site.X, site.Z)
    np.testing.assert_array_equal(after, here.classes_[(probability >= choice.threshold).astype(int)])
    assert after.sum() == choice.n_called > before.sum()
    assert here.expected_performance()["recall"] == choice.performance["recall"]
    here.threshold_ = None
    np.testing.assert_array_equal(here.predict(site.X, site.Z), before)


def test_known_labels_are_trusted(model, site):
    labels = np.where(np.arange(600) < 300, site.y, np.nan)
    here = model.adapt(site.X, sample_confounder=site.Z, y=labels)
    rows = here.expected_performance().rows
    np.testing.assert_array_equal(rows.belief[:300].argmax(axis=1), site.y[:300])
    assert (rows.labels[:, :300] == site.y[:300]).all()
    assert not (rows.labels[:, 300:] == rows.labels[0, 300:]).all()


def test_a_saved_site_expects_the_same(here, tmp_path):
    here.choose_threshold()
    expected = here.expected_performance()
    here.save(tmp_path / "site")
    again = sw.load(tmp_path / "site")
    assert again.threshold_ == here.threshold_
    assert again.expected_performance().to_dict() == expected.to_dict()


def test_a_model_plans_from_its_held_out_rows(model):
    plan = model.plan(width=0.1, prevalence=0.2, n_simulations=0)
    assert plan.n_source == len(model.held_out_[0].y)
    assert plan.prevalence == pytest.approx((0.8, 0.2))
    assert 50 < plan.answer < 5000
    with pytest.raises(ValueError, match="give one of width, kl, f1_loss, got none of them"):
        model.plan()
