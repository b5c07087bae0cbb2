"""Sites of known densities with mixed z: what is called exact, against integrals and draws."""

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import beta, norm

from sitewise.bench.datasets.mixed_densities import MixedSite
from sitewise.bench.experiments.kinds import KINDS

SITE = MixedSite((-1.5, -1.5, -0.8, 0.6), (3, 2), (0.2, 0.3, 0.5), blur=1.3)


def by_integration(x):
    """P(y=1|x), the density of x integrated over age and summed over sex and scanner."""

    def density(y):
        t, b = 2 * y - 1, SITE.blur
        total = 0.0
        for sex in (0, 1):
            for scanner in (0, 1, 2):
                here = norm.pdf(x[2], 1.2 * (2 * sex - 1), b) * norm.pdf(x[3], 1.5 * (scanner - 1), b)

                def at(age, sex=sex, scanner=scanner):
                    positive = float(SITE.prevalence(age, sex, scanner))
                    return beta.pdf(age, *SITE.ages) * norm.pdf(x[1], 3 * age + 0.4 * t, b / 2) * abs(1 - y - positive)

                total += 0.5 * SITE.scanners[scanner] * here * quad(at, 0, 1)[0]
        return total * norm.pdf(x[0], t)

    return density(1) / (density(0) + density(1))


def test_the_posterior_is_that_of_integration():
    X = SITE.draw(12, 3).X
    np.testing.assert_allclose(SITE.posterior(X)[:, 1], [by_integration(x) for x in X], atol=2e-4)


def test_draws_have_the_marginal_and_the_prevalence_they_should():
    rows = SITE.draw(200_000, 0)
    np.testing.assert_allclose(SITE.marginal, np.bincount(rows.y) / len(rows.y), atol=0.004)
    given_z = SITE.given_z(rows.Z)
    np.testing.assert_allclose(given_z.sum(1), 1)
    np.testing.assert_allclose(given_z.mean(0), SITE.marginal, atol=0.004)
    for part in (rows.Z["sex"] == "m", rows.Z["scanner"] == "C", rows.Z["age"] > 0.7):
        assert given_z[part, 1].mean() == pytest.approx(rows.y[part].mean(), abs=0.01)
    np.testing.assert_allclose(
        rows.Z["scanner"].value_counts(normalize=True)[["A", "B", "C"]], SITE.scanners, atol=0.01
    )


def test_blur_hides_z_and_leaves_what_tells_y():
    sharp, blurred = (MixedSite((-1, 1, 1, 1), blur=b).draw(20_000, 1) for b in (1.0, 3.0))
    np.testing.assert_array_equal(sharp.X[:, 0], blurred.X[:, 0])
    for column in (1, 2, 3):
        assert blurred.X[:, column].std() > 1.5 * sharp.X[:, column].std()


def test_what_is_wrong_with_a_site_is_said():
    faults = KINDS["mixed_densities"].faults
    assert faults({"kind": "mixed_densities"}, {"coefficients": [0, 1, 1, 1]}) == []
    problems = faults({"blur": 0}, {"coefficients": [1, 2], "ages": [2, -1], "scanners": "A"})
    assert problems == [
        "data.blur must be above zero, got 0",
        "coefficients must be 4 numbers, got [1, 2]",
        "ages must be above zero, got [2, -1]",
        "scanners must be 3 numbers, got 'A'",
    ]
