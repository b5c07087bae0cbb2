"""Pipelines that end in a model: adapted as a whole, with frames of pandas and polars, text and categories."""

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import sitewise as sw

NUMBERS, TEXT = list("abcde"), ["ward"]


def with_ward(X):
    """A frame of numbers and of text that tells no more than they do."""
    ward = np.where(X[:, 0] > 0, "5/6", "7/8")
    return pd.DataFrame(X, columns=NUMBERS).assign(ward=ward)


def prepare():
    return ColumnTransformer([("numbers", StandardScaler(), NUMBERS), ("text", OneHotEncoder(), TEXT)])


@pytest.fixture(scope="module", params=["network in a pipeline", "pipeline in an adjuster"])
def fitted(request, two):
    """A fitted model, the rows it was fitted to, and those of the new site."""
    rows, new = with_ward(two.X[::4]), with_ward(two.new.X[::2])
    Z, Z_new = (part.reset_index(drop=True) for part in (two.Z[::4], two.new.Z[::2]))
    beside = {"sample_domain": two.site[::4], "sample_confounder": Z}
    if request.param == "network in a pipeline":
        model = Pipeline(
            [
                ("prepare", prepare()),
                ("gpa", sw.GPAClassifier(epochs=3, device="cpu", rehearsal=None, prevalence="constant")),
            ]
        )
        model.fit(rows, two.y[::4], **{f"gpa__{name}": value for name, value in beside.items()})
    else:
        inside = make_pipeline(prepare(), LogisticRegression())
        model = sw.PrevalenceAdjuster(inside, rehearsal=None, prevalence="constant").fit(rows, two.y[::4], **beside)
    return model, new, Z_new, two.new.y[::2]


def parts_of(model, X):
    """The model at the end of a pipeline, and X as it reaches it."""
    return (model[-1], model[:-1].transform(X)) if isinstance(model, Pipeline) else (model, X)


def test_a_pipeline_adapts_as_its_last_step_does(fitted):
    model, new, Z, y = fitted
    here = sw.adapt(model, new, sample_confounder=Z, policy="rows")
    last, X = parts_of(model, new)
    expected = last.adapt(X, sample_confounder=Z, policy="rows")
    assert type(here) is type(model) or isinstance(here, sw.AdaptedClassifier)
    np.testing.assert_array_equal(
        here.predict_proba(new, sample_confounder=Z), expected.predict_proba(X, sample_confounder=Z)
    )
    assert here.classes_.tolist() == [0, 1]
    assert here.score(new, y, sample_confounder=Z) > 0.6
    adapted = here[-1] if isinstance(here, Pipeline) else here
    assert isinstance(adapted, sw.AdaptedClassifier)
    np.testing.assert_array_equal(adapted.prevalence(), expected.prevalence())
    assert adapted.policy == "rows"
    if isinstance(model, Pipeline):
        assert isinstance(model[-1], sw.GPAClassifier)  # as it was
        assert here.steps[:-1] == model.steps[:-1]
        assert [name for name, _ in here.steps] == ["prepare", "gpa"]


def test_confounders_are_routed_to_the_last_step_without_a_request(fitted):
    model, new, Z, y = fitted
    here = sw.adapt(model, new, sample_confounder=Z)
    expected = here.predict_proba(new, sample_confounder=Z), (here.predict(new, sample_confounder=Z) == y).mean()
    with sklearn.config_context(enable_metadata_routing=True):
        np.testing.assert_array_equal(here.predict_proba(new, sample_confounder=Z), expected[0])
        assert here.score(new, y, sample_confounder=Z) == expected[1]


def test_polars_frames_are_read_as_pandas_ones(fitted):
    polars = pytest.importorskip("polars")
    model, new, Z, _ = fitted
    expected = sw.adapt(model, new, sample_confounder=Z).predict_proba(new, sample_confounder=Z)
    theirs, their_z = polars.from_pandas(new), polars.from_pandas(Z)
    here = sw.adapt(model, theirs, sample_confounder=their_z)
    np.testing.assert_allclose(here.predict_proba(theirs, sample_confounder=their_z), expected, rtol=0, atol=1e-12)


def test_what_cannot_be_adapted(two):
    plain = make_pipeline(StandardScaler(), LogisticRegression())
    for wrong, message in (
        (LogisticRegression(), "got LogisticRegression: put the classifier into PrevalenceAdjuster"),
        (plain, "got Pipeline that ends in LogisticRegression"),
    ):
        with pytest.raises(TypeError, match=message):
            sw.adapt(wrong.fit(two.X, two.y), two.new.X)
    with pytest.raises(sklearn.exceptions.NotFittedError):
        sw.adapt(make_pipeline(StandardScaler(), sw.GPAClassifier()), two.new.X)


@pytest.mark.parametrize("kind", ["string", "category", "polars"])
def test_text_in_a_frame_is_named_with_two_remedies(two, kind):
    frame = with_ward(two.X).assign(unit="icu")
    if kind == "category":
        frame = frame.astype({"ward": "category"})
    elif kind == "polars":
        frame = pytest.importorskip("polars").from_pandas(frame)
    with pytest.raises(ValueError, match=r"(?s)'ward' holds '\d/\d' \(row 0\).*ColumnTransformer.*TableReader.*'unit'"):
        sw.GPAClassifier(epochs=1, device="cpu").fit(frame, two.y)


def test_both_remedies_work(two):
    frame, new = with_ward(two.X[::4]), with_ward(two.new.X[::4])
    model = make_pipeline(prepare(), sw.GPAClassifier(epochs=1, device="cpu", rehearsal=None)).fit(frame, two.y[::4])
    assert sw.adapt(model, new).predict_proba(new).shape == (len(new), 2)
    roles = sw.Roles(target="y", features=(*NUMBERS, *TEXT))
    reader = sw.TableReader.learn(frame.assign(y=two.y[::4]), roles)
    rows = reader.read(frame.assign(y=two.y[::4]))
    network = sw.GPAClassifier(epochs=1, device="cpu", rehearsal=None).fit(rows.X, rows.y)
    assert network.adapt(reader.read(new, labels="none").X).prevalence().sum() == pytest.approx(1)


def test_polars_at_the_level_of_arrays(two):
    polars = pytest.importorskip("polars")
    proba, _ = two.probabilities(False)
    classes = ["well", "ill"]
    ours, theirs = pd.DataFrame(np.log(proba), columns=classes), polars.DataFrame(np.log(proba), schema=classes)
    Z, their_z = two.Z, polars.from_pandas(two.Z)
    site, their_site = two.site, polars.Series(two.site)
    expected = sw.estimate_prevalence(ours, Z, model="additive", strength=1.0, groups=site)
    estimate = sw.estimate_prevalence(theirs, their_z, model="additive", strength=1.0, groups=their_site)
    np.testing.assert_allclose(estimate.marginal, expected.marginal, rtol=0, atol=1e-12)
    log_g = estimate.log_prevalence(their_z)
    assert isinstance(log_g, polars.DataFrame)
    assert log_g.columns == classes
    adjusted = sw.adjust(theirs, log_g)
    assert isinstance(adjusted, polars.DataFrame)
    np.testing.assert_allclose(adjusted, sw.adjust(ours, expected.log_prevalence(Z)), rtol=0, atol=1e-12)
    shuffled = sw.adjust(theirs, log_g[classes[::-1]])
    np.testing.assert_array_equal(shuffled, adjusted)


def test_polars_probabilities_and_columns_of_everything(two):
    polars = pytest.importorskip("polars")
    proba, new = two.probabilities(False)
    labels = np.array(["well", "ill"])[two.y]
    frame, new_frame = (polars.DataFrame(values[:, ::-1], schema=["ill", "well"]) for values in (proba, new))
    model = sw.PrevalenceAdjuster(classes=["well", "ill"], rehearsal=None, prevalence="constant")
    model.fit(frame, polars.Series(labels), polars.Series(two.site), polars.from_pandas(two.Z))
    expected = sw.PrevalenceAdjuster(classes=["well", "ill"], rehearsal=None, prevalence="constant")
    expected.fit(proba, labels, two.site, two.Z)
    here = model.adapt(new_frame, polars.from_pandas(two.new.Z))
    np.testing.assert_allclose(here.prevalence(), expected.adapt(new, two.new.Z).prevalence(), rtol=0, atol=1e-12)
    both = polars.concat([new_frame, polars.from_pandas(two.new.Z)], how="horizontal")
    at_columns = model.adapt(both, confounder_columns=two.new.Z.columns)
    np.testing.assert_allclose(
        at_columns.predict_proba(both), here.predict_proba(new_frame, polars.from_pandas(two.new.Z)), atol=1e-12
    )
    out = model.set_output(transform="polars").transform(new_frame)
    assert isinstance(out, polars.DataFrame)
    assert out.columns == ["log_ratio_well", "log_ratio_ill"]
