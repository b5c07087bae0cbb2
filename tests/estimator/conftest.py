"""What the tests of PrevalenceAdjuster share: simulated sites and classifiers trained on their rows."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict

import sitewise as sw


@dataclass(frozen=True)
class World:
    """Labeled rows of three sites and a new site with other class shares, and another relation of y and z."""

    X: np.ndarray
    y: np.ndarray
    Z: pd.DataFrame
    site: np.ndarray
    new: sw.Site

    def inputs(self, with_z):
        """What a classifier reads of the labeled rows and of the new ones."""
        if not with_z:
            return self.X, self.new.X
        both = pd.get_dummies(pd.concat([self.Z, self.new.Z], ignore_index=True)).to_numpy(float)
        return np.c_[self.X, both[: len(self.X)]], np.c_[self.new.X, both[len(self.X) :]]

    def probabilities(self, with_z):
        """A logistic regression's: out-of-sample on the labeled rows, and at the new site."""
        source, target = self.inputs(with_z)
        classifier = LogisticRegression(max_iter=1000)
        out_of_sample = cross_val_predict(classifier, source, self.y, method="predict_proba")
        return out_of_sample, classifier.fit(source, self.y).predict_proba(target)

    def fitted(self, proba, **settings):
        """An adjuster of these probabilities."""
        adjuster = sw.PrevalenceAdjuster(**{"rehearsal": None} | settings)
        return adjuster.fit(proba, self.y, sample_domain=self.site, sample_confounder=self.Z)

    def nll(self, proba):
        """Of the new site's labels."""
        return float(-np.log(proba[np.arange(len(proba)), self.new.y]).mean())


def world(n_classes=2, n_rows=700, seed=0, n_new=2000):
    """Draw it."""
    family = sw.SimulatedFamily(n_classes=n_classes, coupling=1.5, effect=1.5, seed=seed)
    rng = np.random.default_rng(seed)
    sites = [
        family.site(n_rows, prevalence=rng.dirichlet(np.full(n_classes, 8.0)), dependence=dependence, seed=number)
        for number, dependence in enumerate((1.5, 0.5, 1.0))
    ]
    prevalence = np.r_[0.75, np.full(n_classes - 1, 0.25 / (n_classes - 1))]
    new = family.site(n_new, prevalence=prevalence, dependence=-1.0, seed=9)
    return World(
        np.concatenate([site.X for site in sites]),
        np.concatenate([site.y for site in sites]),
        pd.concat([site.Z for site in sites], ignore_index=True),
        np.repeat(["north", "south", "west"], n_rows),
        new,
    )


@pytest.fixture(scope="session")
def two():
    """A world of two classes."""
    return world()


@pytest.fixture(scope="session")
def four():
    """A world of four classes."""
    return world(n_classes=4, seed=1)
