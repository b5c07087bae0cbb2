"""Sites with known densities like `known_densities`; z has a scanner in addition to age and sex.

Age a in [0, 1] has a Beta distribution, sex s is 0 or 1 with equal probability, and scanner k is -1, 0 or 1.
P(y=1|a,s,k) = σ(c₀ + 4 c₁ (a - ½) + 2 c₂ (s - ½) + c₃ k), and with t = 2y - 1
x = (t + N(0,1), 3a + 0.4 t + N(0,(b/2)²), 1.2 (2s - 1) + N(0,b²), 1.5 k + N(0,b²)).
The larger the blur b, the less information about z is in x.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import expit, logsumexp
from scipy.stats import beta, norm

from sitewise.sites import Site

Array = np.ndarray[Any, Any]
SCANNERS = np.array(["A", "B", "C"])
FINE = 100  # number of ages in the grid for exact results
ROWS = 500  # rows whose densities are computed together


@dataclass(frozen=True)
class MixedSite:
    """A site: coefficients of P(y|z) (constant, age, sex, scanner), Beta parameters of age, scanner shares and blur.

    The log-odds of P(y=1|z) are a sum with these coefficients (see `prevalence`).
    """

    coefficients: tuple[float, float, float, float]
    ages: tuple[float, float] = (2.0, 2.0)
    scanners: tuple[float, float, float] = (1 / 3, 1 / 3, 1 / 3)
    blur: float = 1.0

    def draw(self, n: int, seed: int, name: str = "mixed") -> Site:
        """Draw a site of n rows."""
        rng = np.random.default_rng(seed)
        age, sex, scanner = rng.beta(*self.ages, n), rng.integers(0, 2, n), rng.choice(3, n, p=self.scanners)
        y = (rng.random(n) < self.prevalence(age, sex, scanner)).astype(np.int64)
        t = 2 * y - 1
        means = np.stack([t, 3 * age + 0.4 * t, 1.2 * (2 * sex - 1), 1.5 * (scanner - 1)], axis=1)
        X = means + rng.normal(size=(n, 4)) * self._noise
        return Site(
            name, X, y, pd.DataFrame({"age": age, "sex": np.where(sex, "m", "f"), "scanner": SCANNERS[scanner]})
        )

    def prevalence(self, age: Any, sex: Any, scanner: Any) -> Array:
        """Return P(y=1|age, sex, scanner); `scanner` is 0, 1 or 2, which is k + 1 in the formula of this module."""
        level, by_age, by_sex, by_scanner = self.coefficients
        of_z = 4 * by_age * (np.asarray(age) - 0.5) + 2 * by_sex * (np.asarray(sex) - 0.5)
        return np.asarray(expit(level + of_z + by_scanner * (np.asarray(scanner) - 1)))

    def given_z(self, Z: pd.DataFrame) -> Array:
        """Return P(y|z) of rows whose z is complete, (n, 2)."""
        scanner = Z["scanner"].map({name: number for number, name in enumerate(SCANNERS.tolist())})
        positive = self.prevalence(Z["age"], Z["sex"] == "m", scanner)
        return np.stack([1 - positive, positive], axis=1)

    @property
    def marginal(self) -> Array:
        """P(y), (2,)."""
        return np.asarray(self._joint().sum(axis=(0, 1, 2)))

    def posterior(self, X: Array) -> Array:
        """Return the exact P(y|x), (n, 2), which is the optimal prediction without z."""
        log_joint = np.log(np.maximum(self._joint(), 1e-300))
        age, t = (np.arange(FINE) + 0.5) / FINE, np.array([-1, 1])
        parts = []
        for x in np.array_split(X, len(X) // ROWS + 1):
            of_sex = norm.logpdf(x[:, 2:3] - 1.2 * np.array([-1, 1]), scale=self.blur)
            of_scanner = norm.logpdf(x[:, 3:4] - 1.5 * np.array([-1, 0, 1]), scale=self.blur)
            of_age = norm.logpdf(x[:, 1, None, None] - 3 * age[:, None] - 0.4 * t, scale=0.5 * self.blur)
            without_age = logsumexp(
                log_joint + of_sex[:, None, :, None, None] + of_scanner[:, None, None, :, None], axis=(2, 3)
            )
            parts.append(logsumexp(without_age + of_age, axis=1) + norm.logpdf(x[:, :1] - t))
        log_both = np.concatenate(parts)
        return np.asarray(np.exp(log_both - logsumexp(log_both, axis=1, keepdims=True)))

    @property
    def _noise(self) -> Array:
        return np.array([1.0, 0.5 * self.blur, self.blur, self.blur])

    def _joint(self) -> Array:
        """Return P(a, s, k, y) with ages at the centres of equal intervals, (FINE, 2, 3, 2)."""
        age, sex, scanner = np.meshgrid((np.arange(FINE) + 0.5) / FINE, [0, 1], [0, 1, 2], indexing="ij")
        of_age = np.diff(beta.cdf(np.linspace(0, 1, FINE + 1), *self.ages))
        mass = of_age[:, None, None] * 0.5 * np.asarray(self.scanners)
        positive = self.prevalence(age, sex, scanner)
        return np.stack([mass * (1 - positive), mass * positive], axis=-1)
