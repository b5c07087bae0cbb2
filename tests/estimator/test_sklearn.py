"""GPAClassifier as a scikit-learn citizen."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import cross_val_score
from sklearn.utils.estimator_checks import parametrize_with_checks

import sitewise as sw
from sitewise.estimator import EXPECTED_FAILED_CHECKS

ESTIMATORS = [
    sw.GPAClassifier(epochs=40, batch_size=16, learning_rate=1e-2, device="cpu"),
    sw.GPAClassifier(device="cpu"),
]


@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks(ESTIMATORS, expected_failed_checks=lambda estimator: EXPECTED_FAILED_CHECKS)
def test_scikit_learns_checks(estimator, check):
    quick = "transformer" in check.func.__name__  # they fit many times, and ask the same of any fit
    check(clone(estimator).set_params(epochs=1) if quick else estimator)


def test_every_expected_failure_has_a_reason():
    assert all(len(reason) > 20 for reason in EXPECTED_FAILED_CHECKS.values())


def test_clone_and_cross_validation():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 2))
    y = np.where(X[:, 0] > 0, "yes", "no")
    model = sw.GPAClassifier(epochs=30, batch_size=16, device="cpu")
    assert clone(model).get_params() == model.get_params()
    assert cross_val_score(model, X, y, cv=3).mean() > 0.85
