"""Saved adjustments: the same predictions to the bit, and the classifier attached again."""

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

import sitewise as sw

SOME = slice(None, None, 5)


def same(one, other, X, Z):
    """Predict the same, before and after another adaptation."""
    assert type(one) is type(other)
    assert one.classes_.tolist() == other.classes_.tolist()
    np.testing.assert_array_equal(
        one.predict_proba(X, sample_confounder=Z), other.predict_proba(X, sample_confounder=Z)
    )


def rows(two):
    return two.X[SOME], two.y[SOME], two.site[SOME], two.Z[SOME].reset_index(drop=True)


@pytest.mark.parametrize("sees", ["x", "xz"])
@pytest.mark.parametrize("with_z", [True, False])
def test_stored_probabilities(two, tmp_path, sees, with_z):
    proba, proba_new = two.probabilities(False)
    Z, Z_new = (two.Z, two.new.Z) if with_z else (None, None)
    labels = np.array(["no", "yes"])[two.y]
    rehearsal = None if with_z else "auto"
    model = sw.PrevalenceAdjuster(classifier_sees=sees, classes=["no", "yes"], random_state=2, rehearsal=rehearsal)
    model.fit(proba, labels, sample_domain=two.site, sample_confounder=Z)
    model.save(tmp_path / "model")
    again = sw.load(tmp_path / "model")
    same(model, again, proba_new, Z_new)
    assert again.get_params() == model.get_params()
    assert again.classifier_sees_ == model.classifier_sees_
    assert again.rehearsal_.numbers == model.rehearsal_.numbers
    assert again.rehearsal_.sentence == model.rehearsal_.sentence
    pd.testing.assert_frame_equal(again.rehearsal_.table, model.rehearsal_.table, check_column_type=False)
    here = model.adapt(proba_new, sample_confounder=Z_new)
    here.save(tmp_path / "site")
    there = sw.load(tmp_path / "site")
    same(here, there, proba_new, Z_new)
    np.testing.assert_array_equal(again.adapt(proba_new, Z_new).prevalence(), here.prevalence())
    assert there.diagnose().verdict == here.diagnose().verdict
    assert "An adjustment of a classifier" in (tmp_path / "model" / "model.md").read_text()


def test_the_estimator_is_in_the_folder_or_attached_again(two, tmp_path):
    X, y, site, Z = rows(two)
    pipeline = make_pipeline(StandardScaler(), LogisticRegression()).fit(two.X[1::2], two.y[1::2])
    model = sw.PrevalenceAdjuster(pipeline, rehearsal=None).fit(X, y, site, Z)
    here = model.adapt(two.new.X, sample_confounder=two.new.Z)
    here.save(tmp_path / "site")
    same(here, sw.load(tmp_path / "site"), two.new.X, two.new.Z)
    there = sw.load(tmp_path / "site", estimator=pipeline)
    same(here, there, two.new.X, two.new.Z)
    assert there.model.estimator_ is pipeline
    assert "by skops" in (tmp_path / "site" / "model" / "model.md").read_text()
    for wrong, message in (
        (LogisticRegression(), "not fitted"),
        (LogisticRegression().fit(X[:, :3], y), r"n_features_in_ = 3, the saved adjustment 5"),
        (LogisticRegression().fit(X, np.where(y == 1, "ill", "well")), r"classes_ = \['ill', 'well'\]"),
    ):
        with pytest.raises(ValueError, match=message):
            sw.load(tmp_path / "site", estimator=wrong)


def test_a_torch_module_is_attached_again(two, tmp_path):
    X, y, site, Z = rows(two)
    torch.manual_seed(0)
    module = nn.Linear(X.shape[1], 2)
    model = sw.PrevalenceAdjuster(module, rehearsal=None).fit(X, y, site, Z)
    model.save(tmp_path / "model")
    assert "estimator=YOUR" in (tmp_path / "model" / "model.md").read_text()
    with pytest.raises(ValueError, match=r"classifier of your own \(Linear\).*estimator=\.\.\."):
        sw.load(tmp_path / "model")
    same(model, sw.load(tmp_path / "model", estimator=module), two.new.X, two.new.Z)


def test_what_has_no_estimator_takes_none(two, tmp_path):
    X, y, _, _ = rows(two)
    proba = LogisticRegression().fit(X, y).predict_proba(X)
    sw.PrevalenceAdjuster().fit(proba, y).save(tmp_path / "model")
    with pytest.raises(ValueError, match="leave estimator out"):
        sw.load(tmp_path / "model", estimator=LogisticRegression())
    with pytest.raises(ValueError, match="leave backbone out"):
        sw.load(tmp_path / "model", backbone=nn.Linear(2, 2))
    gpa = sw.GPAClassifier(epochs=1, device="cpu").fit(X, y)
    gpa.save(tmp_path / "gpa")
    with pytest.raises(ValueError, match="leave estimator out"):
        sw.load(tmp_path / "gpa", estimator=LogisticRegression())
