"""What may be wrong with probabilities, classes and settings: one error that names all of it, and the row."""

from unittest.mock import patch

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.linear_model import LinearRegression, LogisticRegression
from torch import nn

import sitewise as sw

Y = np.array([0, 1] * 40)
SECOND = (0.3 + 0.4 * Y + np.random.default_rng(0).normal(0, 0.3, 80)).clip(0.05, 0.95)
PROBA = np.c_[1 - SECOND, SECOND]


def changed(row, values):
    found = PROBA.copy()
    found[row] = values
    return found


@pytest.mark.parametrize(
    ("proba", "message"),
    [
        (changed(7, [0.5, 0.6]), r"do not sum to one in 1 row\(s\), first at row 7 \(0.5, 0.6\)"),
        (changed(9, [np.nan, 1.0]), r"hold NaN in 1 row\(s\), first at row 9"),
        (changed(3, [-0.2, 1.2]), r"are negative in 1 row\(s\), first at row 3 .*softmax"),
        (changed(3, [np.inf, 0.0]), r"do not sum to one in 1 row\(s\), first at row 3"),
        (PROBA[:, 1], r"must have shape \(rows, 2\).*got \(80,\): .*column_stack"),
        (np.c_[PROBA, np.zeros(80)], r"a column for each class of \[0, 1\], got \(80, 3\)"),
        (PROBA[:0], r"are empty"),
        (np.full((80, 2), "half"), r"must be numbers"),
        (pd.DataFrame(PROBA, columns=["0", "p"]), r"name all columns after classes, or none"),
        (PROBA[:70], r"y has 80 row\(s\), X has 70"),
    ],
)
def test_probabilities_that_are_none(proba, message):
    with pytest.raises(ValueError, match=message):
        sw.PrevalenceAdjuster().fit(proba, Y)


def test_the_same_at_a_new_site():
    here = sw.PrevalenceAdjuster().fit(PROBA, Y).adapt(PROBA)
    for call in (here.predict_proba, here.model.adapt, here.model.predict_proba):
        with pytest.raises(ValueError, match=r"NaN in 1 row\(s\), first at row 9.*"):
            call(changed(9, [np.nan, 1.0]))
    broken = changed(9, [np.nan, 1.0])
    broken[10], broken[11] = [2.0, 1.0], [-1.0, 2.0]
    with pytest.raises(ValueError, match="3 problems"):
        here.predict_proba(broken)


def test_probabilities_rounded_to_three_digits_will_do():
    exact, rounded = (sw.PrevalenceAdjuster().fit(proba, Y).predict_proba(proba) for proba in (PROBA, PROBA.round(3)))
    np.testing.assert_allclose(rounded, exact, rtol=0, atol=0.005)


def test_every_wrong_setting_is_named_at_once():
    wrong = sw.PrevalenceAdjuster(
        LinearRegression(), calibration="vectr", prevalence="aditive", classifier_sees="z", classes=[0, 0]
    )
    with pytest.raises(ValueError, match="5 problems") as error:
        wrong.fit(PROBA, Y)
    for part in ("did you mean 'vector'", "did you mean 'additive'", "x, xz, auto", "each class once", "a classifier"):
        assert part in str(error.value)
    with pytest.raises(ValueError, match=r"call it, LogisticRegression\(...\)"):
        sw.PrevalenceAdjuster(LogisticRegression).fit(PROBA, Y)


def test_classes():
    with pytest.raises(ValueError, match=r"y holds \[1\].*not among the classes \['no', 'yes'\]|not among the classes"):
        sw.PrevalenceAdjuster(classes=["no", "yes"]).fit(PROBA, Y)
    words = np.array(["no", "yes"])[Y]
    with pytest.raises(ValueError, match="did you mean 'yes'"):
        sw.PrevalenceAdjuster(classes=["no", "yes"]).fit(PROBA, np.where(Y == 1, "Yes", "no"))
    fitted = LogisticRegression().fit(PROBA, words)
    with pytest.raises(ValueError, match=r"the estimator has the order \['no', 'yes'\]"):
        sw.PrevalenceAdjuster(fitted, classes=["yes", "no"]).fit(PROBA, words)
    with pytest.raises(ValueError, match="one class only"):
        sw.PrevalenceAdjuster().fit(PROBA, np.zeros(80, dtype=int))
    with pytest.raises(ValueError, match="y is missing in 1 row"):
        sw.PrevalenceAdjuster().fit(PROBA, pd.Series(words).mask(np.arange(80) == 4).to_numpy())


def test_a_class_that_no_labeled_row_has_keeps_a_finite_probability():
    three = np.c_[PROBA * 0.9, np.full(80, 0.1)]
    adjuster = sw.PrevalenceAdjuster(classes=[0, 1, 2]).fit(
        three, Y, sample_confounder=np.tile([[0.0], [1.0]], (40, 1))
    )
    predicted = adjuster.predict_proba(three)
    assert np.isfinite(predicted).all()
    assert (predicted[:, 2] < 0.1).all()


def test_confounders_that_were_not_there():
    adjuster = sw.PrevalenceAdjuster().fit(PROBA, Y)
    with pytest.raises(ValueError, match="without confounders"):
        adjuster.adapt(PROBA, sample_confounder=np.ones((80, 1)))


def test_separated_rows_are_suspected():
    certain = np.c_[1.0 - Y, Y].clip(0.01, 0.99)
    with pytest.warns(UserWarning, match="cross_val_predict"):
        sw.PrevalenceAdjuster().fit(certain, Y)
    certain[0] = [0.005, 0.995]
    sw.PrevalenceAdjuster().fit(certain, Y)  # one mistake is enough


def test_a_module_that_gives_too_little_or_nonsense():
    class Gives(nn.Module):
        def __init__(self, *values):
            super().__init__()
            self.values = torch.tensor(values)

        def forward(self, x):
            return self.values.expand(len(x), -1)

    with pytest.raises(ValueError, match=r"scores of shape \(80, 3\)"):
        sw.PrevalenceAdjuster(Gives(1.0, 2.0, 3.0)).fit(PROBA, Y)
    with pytest.raises(ValueError, match=r"NaN or infinite scores in 80 row\(s\), first at row 0"):
        sw.PrevalenceAdjuster(Gives(1.0, np.nan)).fit(PROBA, Y)


def test_nothing_is_left_half_fitted():
    adjuster = sw.PrevalenceAdjuster().fit(PROBA, Y)
    before = adjuster.predict_proba(PROBA)
    with pytest.raises(ValueError, match="sample_domain"):
        adjuster.fit(PROBA[:, ::-1], Y, sample_domain=["a"])
    np.testing.assert_array_equal(adjuster.predict_proba(PROBA), before)
    with (
        patch("sitewise.estimator.adjuster.fit_ratio", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        adjuster.fit(PROBA[:70], Y[:70])  # g has been fitted by then
    np.testing.assert_array_equal(adjuster.predict_proba(PROBA), before)


def test_columns_of_a_new_site_are_matched_by_the_names_of_the_fit(tmp_path):
    frame = pd.DataFrame(PROBA, columns=["no", "yes"])
    model = sw.PrevalenceAdjuster(rehearsal=None).fit(frame, Y)
    turned = frame[["yes", "no"]]
    model.save(tmp_path / "model")
    for known in (model, sw.load(tmp_path / "model")):
        expected = known.adapt(frame)
        here = known.adapt(turned)
        np.testing.assert_array_equal(here.predict_proba(turned), expected.predict_proba(frame))
        np.testing.assert_array_equal(here.predict_proba(PROBA), expected.predict_proba(frame))
        with pytest.raises(ValueError, match=r"columns \['p0', 'p1'\], at fit they had \['no', 'yes'\]"):
            known.adapt(frame.set_axis(["p0", "p1"], axis=1))
    by_class = frame.set_axis(["0", "1"], axis=1)[["1", "0"]]
    np.testing.assert_array_equal(
        model.adapt(by_class).predict_proba(by_class), model.adapt(frame).predict_proba(frame)
    )


def test_columns_without_known_names_go_by_their_place():
    model = sw.PrevalenceAdjuster(rehearsal=None).fit(PROBA, Y)
    frame = pd.DataFrame(PROBA, columns=["no", "yes"])
    np.testing.assert_array_equal(model.adapt(frame).predict_proba(frame), model.adapt(PROBA).predict_proba(PROBA))
