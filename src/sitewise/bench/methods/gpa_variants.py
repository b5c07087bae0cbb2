"""Two comparisons for GPA: one g for all training sites, and no adaptation at all."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from sitewise.bench.methods.base import Method, Rule
from sitewise.bench.methods.gpa import GPA, GPAStar

POOLED = "all training sites"


@dataclass(kw_only=True, eq=False, repr=False)
class GPAPooled(GPA):
    """GPA with one g for all training sites: f is fitted with the g(z) of all their rows together.

    The paper does not describe this case. One g is estimated from more rows than the g of a single site. But if P(y|z)
    differs between the sites, f absorbs the difference. Only rows can be rehearsed, because all rows count as one site.
    """

    card: ClassVar = replace(GPA.card, name="GPA, one g")

    def trainer(self) -> Method:
        """The same f with and without z at the new site."""
        return self.with_network_of(GPAPooled)

    def train(self, X: Any, y: Any, domain: Any, Z: Any, groups: Any, weight: Any, unlabeled: Any) -> Any:
        """Fit a `GPAClassifier` with all rows as one training site."""
        if domain is not None:
            held = np.asarray(domain, dtype=object) == self.validation
            domain = np.where(held, domain, POOLED)
        return super().train(X, y, domain, Z, groups, weight, unlabeled)


@dataclass(kw_only=True, eq=False, repr=False)
class GPAPooledStar(GPAPooled, GPAStar):
    """GPA* with one g for all training sites: as GPA with one g, z hidden at the new site."""

    card: ClassVar = replace(GPAStar.card, name="GPA*, one g")


@dataclass(kw_only=True, eq=False, repr=False)
class GPAAsTrained(GPA):
    """GPA, as trained: P(y|x,z) = Norm(f(x,z) g(z)), g that of all training rows together; without adaptation."""

    card: ClassVar = replace(GPA.card, name="GPA, as trained", estimates_g="no")

    def rule_at(self, X: Any, Z: Any, y: Any, prevalence: Any) -> tuple[Rule, Any]:
        """Predict as trained, without an estimate of P(Y)."""
        return self.log_proba, None
