"""Bad input to the estimator: decided, clear, and nothing half-fitted afterwards."""

import numpy as np
import pandas as pd
import pytest

import sitewise as sw

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 3))
Y = (X[:, 0] > 0).astype(int)
Z = pd.DataFrame({"age": RNG.uniform(20, 90, 60), "sex": list("mf") * 30})
DOMAIN = np.repeat(["a", "b"], 30)
FAST = {"epochs": 2, "batch_size": 32, "device": "cpu", "rehearsal": None}


def holed(value):
    bad = X.copy()
    bad[4, 1] = value
    return bad


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"y": np.zeros(60)}, "one class only"),
        ({"X": holed(np.nan)}, "NaN"),
        ({"X": holed(np.inf)}, "infinity"),
        ({"y": Y[:50]}, r"y has 50 row\(s\), X has 60"),
        ({"sample_confounder": Z[:50]}, r"sample_confounder has 50 row\(s\), X has 60"),
        ({"sample_domain": DOMAIN[:50]}, r"sample_domain must have one entry a row \(60\), got 50"),
        ({"sample_domain": [None, *DOMAIN[1:]]}, "sample_domain is missing in 1 row"),
        ({"sample_weight": -np.ones(60)}, "must not be negative"),
        ({"groups": ["p"] * 3}, "groups must have one entry a row"),
        ({"y": [None, *Y[1:]]}, "missing in 1 row|Unknown label type|unknown"),
        ({"y": [0.0, np.inf, *Y[2:]]}, "y must hold a class for each row, got inf at row 1"),
    ],
)
def test_fit_says_what_is_wrong_and_leaves_nothing_behind(arguments, words):
    model = sw.GPAClassifier(**FAST)
    before = dict(vars(model))
    with pytest.raises((ValueError, TypeError), match=words):
        model.fit(**{"X": X, "y": Y, "sample_confounder": Z, "sample_domain": DOMAIN, **arguments})
    assert vars(model) == before


def test_a_failed_refit_keeps_the_earlier_fit():
    model = sw.GPAClassifier(**FAST).fit(X, Y)
    before = model.predict_proba(X)
    with pytest.raises(ValueError, match="one class only"):
        model.fit(X[:, :2], np.zeros(60))
    np.testing.assert_array_equal(model.predict_proba(X), before)


def test_all_settings_at_once():
    with pytest.raises(ValueError, match="7 problems") as caught:
        sw.GPAClassifier(
            backbone="resnet",
            prevalence="tree",
            knockout=1.5,
            missing="impute",
            calibration="platt",
            recipe="x",
            epochs=-1,
        ).fit(X, Y)
    for words in (
        "backbone must be",
        "prevalence must be",
        "knockout must be",
        "calibration must be",
        "recipe must be",
    ):
        assert words in str(caught.value)
    with pytest.raises(ValueError, match="share between 0 and 1"):
        sw.GPAClassifier(validation=1.5).fit(X, Y)


def test_prediction_and_adaptation_refuse_what_does_not_fit():
    model = sw.GPAClassifier(**FAST).fit(X, Y, sample_domain=DOMAIN, sample_confounder=Z)
    with pytest.raises(ValueError, match="3 features"):
        model.predict(X[:, :2])
    with pytest.raises(ValueError, match=r"unknown sample_domain \['c'\]"):
        model.predict_proba(X, sample_domain=["c"] * 60)
    with pytest.raises(ValueError, match="0 sample"):
        model.adapt(X[:0], sample_confounder=Z[:0])
    with pytest.raises(ValueError, match="none of the confounders"):
        model.adapt(X, sample_confounder=pd.DataFrame({"weight": np.ones(60)}))
    with pytest.raises(ValueError, match="has 59 row"):
        model.adapt(X, sample_confounder=Z[:59])
    plain = sw.GPAClassifier(**FAST).fit(X, Y)
    with pytest.raises(ValueError, match="trained without confounders"):
        plain.adapt(X, sample_confounder=Z)
    with pytest.raises(ValueError, match="trained without confounders"):
        plain.adapt(X).prevalence(Z)


def test_a_site_of_one_row_and_a_site_with_one_class_are_legal():
    domain = np.array(["big"] * 40 + ["one class"] * 19 + ["one row"])
    y = Y.copy()
    y[40:59] = 0
    model = sw.GPAClassifier(**FAST).fit(X, y, sample_domain=domain, sample_confounder=Z)
    assert y[59] == 1
    big, one_class, one_row = (
        model.predict_proba(X[:5], sample_domain=[name] * 5, sample_confounder=Z[:5])[:, 0]
        for name in ("big", "one class", "one row")
    )
    assert (one_row < big).all()  # the one row is of class 1
    assert (big < one_class).all()
