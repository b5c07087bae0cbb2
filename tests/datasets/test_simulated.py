import numpy as np
import pytest

import sitewise as sw


def test_the_stated_marginal_is_the_sites():
    family = sw.SimulatedFamily(n_classes=3, seed=2)
    site = family.site(50_000, prevalence=[0.7, 0.2, 0.1], z_shift=0.8, seed=5)
    np.testing.assert_allclose(np.bincount(site.y) / 50_000, [0.7, 0.2, 0.1], atol=0.02)
    np.testing.assert_allclose(np.exp(site.log_prevalence).mean(0), [0.7, 0.2, 0.1], atol=0.02)


@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_the_stated_f_and_g_give_calibrated_probabilities(missing):
    """With f and g true, P(y|x,z) says how often y is."""
    family = sw.SimulatedFamily(seed=1, effect=0.0 if missing else 1.0)  # g needs z unless it does not depend on it
    site = family.site(60_000, prevalence=[0.8, 0.2], missing=missing, seed=3)
    probability = sw.adjust(site.log_ratio, site.log_prevalence)[:, 1]
    for low in np.arange(0, 1, 0.2):
        inside = (probability >= low) & (probability < low + 0.2)
        assert site.y[inside].mean() == pytest.approx(probability[inside].mean(), abs=0.025)


def test_each_argument_moves_what_it_says():
    family = sw.SimulatedFamily(seed=0)
    plain, flipped = family.site(20_000, seed=1), family.site(20_000, dependence=-1, seed=1)
    flat, moved = family.site(20_000, dependence=0, seed=1), family.site(20_000, z_shift=1.0, seed=1)
    assert np.corrcoef(plain.log_prevalence[:, 1], flipped.log_prevalence[:, 1])[0, 1] < -0.9
    assert flat.log_prevalence.std(axis=0).max() < 1e-9
    assert moved.Z["age0"].mean() > plain.Z["age0"].mean() + 5
    assert family.site(5000, missing=0.25, seed=1).Z.isna().to_numpy().mean() == pytest.approx(0.25, abs=0.02)
    strong = sw.SimulatedFamily(signal=4.0, seed=0).site(5000, seed=1)
    assert (strong.log_ratio.argmax(1) == strong.y).mean() > (plain.log_ratio.argmax(1) == plain.y).mean() + 0.05


@pytest.mark.parametrize("missing", [0.0, 0.4, 1.0])
def test_f_of_any_rows_is_that_of_the_site(missing):
    family = sw.SimulatedFamily(n_classes=3, n_continuous=2, levels=(2, 11), seed=4)
    site = family.site(300, missing=missing, seed=2)
    np.testing.assert_allclose(family.log_ratio(site.X, site.Z), site.log_ratio, rtol=1e-9)
    moved = site.X + np.eye(site.X.shape[1])[0]
    assert np.abs(family.log_ratio(moved, site.Z) - site.log_ratio).min(axis=1).max() > 0.1


def test_g_and_the_means_of_x_at_any_z_are_those_of_the_site():
    family = sw.SimulatedFamily(seed=3, levels=[2, 3])
    settings = {"prevalence": [0.7, 0.3], "dependence": -0.5, "z_shift": 0.4}
    site = family.site(60_000, **settings, seed=1)
    np.testing.assert_allclose(family.log_prevalence(site.Z, **settings), site.log_prevalence, atol=1e-9)
    assert np.abs(family.log_prevalence(site.Z) - site.log_prevalence).max() > 0.1
    away = site.X - family.means(site.Z)[np.arange(len(site.y)), site.y]
    np.testing.assert_allclose(away.mean(0), 0.0, atol=0.025)  # six standard errors
    np.testing.assert_allclose(np.cov(away.T), np.eye(away.shape[1]), atol=0.035)


def test_seeds_repeat_and_bad_arguments_are_refused():
    family = sw.SimulatedFamily(seed=7)
    np.testing.assert_array_equal(family.site(50, seed=1).X, sw.SimulatedFamily(seed=7).site(50, seed=1).X)
    with pytest.raises(ValueError, match="positive probabilities"):
        family.site(50, prevalence=[0.5, 0.6])
    with pytest.raises(ValueError, match="at least one confounder"):
        sw.SimulatedFamily(n_continuous=0, levels=())
