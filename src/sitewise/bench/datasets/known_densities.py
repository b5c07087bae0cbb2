"""Sites with known densities, for tests of prediction without z (docs/maths.md, section 15).

Age a in [0, 1] has a Beta distribution, and sex s is 0 or 1 with equal probability.
P(y=1|a,s) = σ(c₀ + 4 c₁ (a - ½) + 2 c₂ (s - ½)), and with t = 2y - 1
x = (t + N(0,1), 3a + 0.4 t + N(0,½²), 1.2 (2s - 1) + N(0,1)).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import expit, logsumexp
from scipy.stats import beta, norm

from sitewise.sites import Site

Array = np.ndarray[Any, Any]
FINE = 200  # number of ages in the grid for the exact posterior


@dataclass(frozen=True)
class KnownSite:
    """A site: the coefficients (c₀, c₁, c₂) of P(y|a,s), and the parameters of the Beta distribution of age."""

    coefficients: tuple[float, float, float]
    ages: tuple[float, float]

    def draw(self, n: int, seed: int, name: str = "known") -> Site:
        """Draw a site of n rows."""
        rng = np.random.default_rng(seed)
        age, sex = rng.beta(*self.ages, n), rng.integers(0, 2, n)
        y = (rng.random(n) < self.prevalence(age, sex)).astype(np.int64)
        t = 2 * y - 1
        means = np.stack([t, 3 * age + 0.4 * t, 1.2 * (2 * sex - 1)], axis=1)
        X = means + rng.normal(size=(n, 3)) * np.array([1.0, 0.5, 1.0])
        return Site(name, X, y, pd.DataFrame({"age": age, "sex": np.where(sex == 1, "m", "f")}))

    def prevalence(self, age: Any, sex: Any) -> Array:
        """Return P(y=1|a,s)."""
        level, by_age, by_sex = self.coefficients
        return np.asarray(expit(level + 4 * by_age * (np.asarray(age) - 0.5) + 2 * by_sex * (np.asarray(sex) - 0.5)))

    def joint(self, n_ages: int) -> Array:
        """Return P(z_m, y) for the M = 2 n_ages values z_m of `bank`, (M, 2)."""
        age, sex = bank(n_ages)
        mass = np.repeat(np.diff(beta.cdf(np.linspace(0, 1, n_ages + 1), *self.ages)), 2) / 2
        positive = self.prevalence(age, sex)
        return np.stack([mass * (1 - positive), mass * positive], axis=1)

    def posterior(self, X: Array) -> Array:
        """Return the exact P(y|x), (n, 2), which is the optimal prediction without z."""
        log_joint = np.log(np.maximum(self.joint(FINE), 1e-300))
        parts = [
            logsumexp(log_density(part, FINE) + log_joint, axis=1) for part in np.array_split(X, len(X) // 500 + 1)
        ]
        log_both = np.concatenate(parts)
        return np.asarray(np.exp(log_both - logsumexp(log_both, axis=1, keepdims=True)))


TRAINING = (KnownSite((-0.2, 1.5, 0.8), (2, 2)), KnownSite((-0.5, 0.8, 0.5), (2, 3)))
TARGETS = {
    "prevalence shifts": KnownSite((-2.5, 1.5, 0.8), (2, 2)),
    "correlation vanishes": KnownSite((-2.0, 0.0, 0.0), (2, 2)),
    "correlation flips": KnownSite((-1.5, -1.5, -0.8), (3, 2)),
}


def bank(n_ages: int) -> tuple[Array, Array]:
    """Return a bank of M = 2 n_ages values of z: ages at the centres of equal intervals, and sexes, each (M,)."""
    age = (np.arange(n_ages) + 0.5) / n_ages
    return np.repeat(age, 2), np.tile([0, 1], n_ages)


def log_density(X: Array, n_ages: int) -> Array:
    """Return log P(x|y,z_m) over the bank, (n, M, 2).

    It differs from log r (section 15 of docs/maths.md) by a number for each row only.
    """
    age, sex = bank(n_ages)
    t = np.array([-1, 1])
    return np.asarray(
        norm.logpdf(X[:, None, None, 0] - t)
        + norm.logpdf(X[:, None, None, 1] - 3 * age[:, None] - 0.4 * t, scale=0.5)
        + norm.logpdf(X[:, None, None, 2] - 1.2 * (2 * sex[:, None] - 1))
    )


def training_joint(n_ages: int) -> Array:
    """Return P_s(z_m, y) of the training sites, with equal weights, (M, 2)."""
    total = np.sum([site.joint(n_ages) for site in TRAINING], axis=0)
    return np.asarray(total / total.sum())
