"""`here.report`: the page says what the adapted model says, for usual and for odd sites."""

import json
import warnings

import numpy as np
import pandas as pd
import pytest

from sitewise import GPAClassifier, PrevalenceAdjuster, SimulatedFamily
from sitewise.estimator.at_site.reporting import STEPS, report_content
from sitewise.report.page.content import MOST_LEVELS
from sitewise.report.page.render import render

NAMES = np.array(["healthy", "<b>ill</b>"])


def quietly(call):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return call()


def trained(n_classes=2, levels=(2,), n_continuous=1, confounders=True, **settings):
    family = SimulatedFamily(n_classes=n_classes, levels=levels, n_continuous=n_continuous)
    sites = [family.site(240, seed=i, name=f"hospital {i}") for i in range(2)]
    X, y = (np.concatenate([getattr(site, part) for site in sites]) for part in ("X", "y"))
    Z = pd.concat([site.Z for site in sites], ignore_index=True) if confounders else None
    domain = np.repeat([site.site.name for site in sites], 240)
    labels = NAMES[y] if n_classes == 2 else y
    model = GPAClassifier(epochs=1, device="cpu", verbose=False, rehearsal=None, **settings)
    return family, quietly(lambda: model.fit(X, labels, sample_domain=domain, sample_confounder=Z))


@pytest.fixture(scope="module")
def usual():
    family, model = trained(missing="knockout")
    new = family.site(300, prevalence=[0.8, 0.2], seed=7, missing=0.1)
    return model, new, quietly(lambda: model.adapt(new.X, sample_confounder=new.Z))


def test_the_page_says_what_the_model_says(usual, tmp_path):
    model, new, here = usual
    path = here.report(tmp_path / "report.html", site="Saint <i>Mary</i>", level=0.9)
    content = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert path.read_text(encoding="utf-8") == render(content)
    assert content["site"] == "Saint <i>Mary</i>"
    low, high = here.prevalence_interval(level=0.9)
    assert content["prevalence"]["estimate"] == here.prevalence().tolist()
    assert (content["prevalence"]["low"], content["prevalence"]["high"]) == (low.tolist(), high.tolist())
    expected = here.expected_performance(level=0.9)
    assert content["performance"]["metrics"]["accuracy"] == expected["accuracy"]._asdict()
    diagnosis = here.diagnose()
    assert content["verdict"] == diagnosis.verdict
    assert content["outcome"]["sentence"] == here.outcome.sentence
    assert [f["sentence"] for f in content["diagnosis"]["findings"]] == [f.sentence for f in diagnosis.findings]
    probability = quietly(lambda: here.predict_proba(new.X, sample_confounder=new.Z))
    np.testing.assert_allclose(content["probabilities"]["mean"]["after"], probability.mean(axis=0))
    before = quietly(lambda: model.predict_proba(new.X, sample_confounder=new.Z))
    np.testing.assert_allclose(content["probabilities"]["mean"]["before"], before.mean(axis=0))


def test_rows_without_z_are_reported_as_the_joint_model_predicts_them():
    family, model = trained(missing="joint")
    new = family.site(200, prevalence=[0.8, 0.2], seed=7, missing=0.3)
    here = quietly(lambda: model.adapt(new.X, sample_confounder=new.Z))
    assert here.missing == "joint"
    probability = quietly(lambda: here.predict_proba(new.X, sample_confounder=new.Z))
    after = report_content(here, "x", 0.95)["probabilities"]["mean"]["after"]
    np.testing.assert_allclose(after, probability.mean(axis=0), rtol=1e-5)


def test_training_sites_are_counted_from_labels(usual):
    model, _, here = usual
    sites = report_content(here, "x", 0.95)["prevalence"]["sites"]
    assert [site["name"] for site in sites] == list(model.sites_)
    assert [site["rows"] for site in sites] == [240, 240]
    for site, summary in zip(sites, model.training_summary_.sites, strict=True):
        np.testing.assert_allclose(site["prevalence"], np.array(summary.class_counts) / 240)


def test_profiles_average_the_predictions_of_the_rows_here(usual):
    model, new, here = usual
    number, level = report_content(here, "x", 0.95)["confounders"]
    assert (number["kind"], level["kind"]) == ("number", "levels")
    assert len(number["points"]) == STEPS + 1
    after = quietly(lambda: here.predict_proba(new.X, sample_confounder=new.Z))
    before = quietly(lambda: model.predict_proba(new.X, sample_confounder=new.Z))
    for point in level["points"]:
        own = (new.Z[level["name"]] == point["value"]).to_numpy()
        assert point["rows"] == own.sum()
        np.testing.assert_allclose(point["after"], after[own].mean(axis=0))
        np.testing.assert_allclose(point["before"], before[own].mean(axis=0))
    for confounder in (number, level):
        assert sum(p["rows"] for p in confounder["points"]) + confounder["rows_missing"] == 300
        assert confounder["rows_missing"] == new.Z[confounder["name"]].isna().sum()
        for point in confounder["points"]:
            assert np.all(np.array(point["low"]) <= point["after"])
            assert np.all(np.array(point["high"]) >= point["after"])


def test_a_curve_follows_the_predictions(usual):
    _, new, here = usual
    number = report_content(here, "x", 0.95)["confounders"][0]
    found, age = quietly(lambda: here.predict_proba(new.X, new.Z))[:, 1], new.Z["age0"].to_numpy()
    step = number["points"][1]["value"] - number["points"][0]["value"]
    for point in number["points"][4:-4]:
        near = np.abs(age - point["value"]) < 3 * step
        assert found[near].min() - 1e-9 <= point["after"][1] <= found[near].max() + 1e-9


def test_bands_are_as_wide_as_the_estimates_own_intervals():
    """With one confounder alone a level's band is the interval of P(Y|z) itself."""
    family, model = trained(n_continuous=0, levels=(3,), prevalence="additive")
    new = family.site(800, prevalence=[0.7, 0.3], seed=5)
    here = quietly(lambda: model.adapt_log_ratio(new.log_ratio, new.Z))
    (confounder,) = report_content(here, "x", 0.95)["confounders"]
    Z = pd.DataFrame({"group0": [point["value"] for point in confounder["points"]]})
    low, high = here.prevalence_interval(Z)
    width = np.array([p["high"] for p in confounder["points"]]) - [p["low"] for p in confounder["points"]]
    np.testing.assert_allclose(width, high - low, rtol=0.3)


def test_a_chosen_threshold_and_a_policy_are_reported(usual, tmp_path):
    model, new, _ = usual
    here = quietly(lambda: model.adapt(new.X, sample_confounder=new.Z, policy="as trained"))
    here.choose_threshold(sensitivity=0.9)
    content = report_content(here, "x", 0.95)
    assert content["threshold"] == here.threshold_
    done = {entry["name"]: entry["value"] for part in content["done"] for entry in part["entries"]}
    assert (done["policy"], done["threshold"]) == ("as trained", here.threshold_)
    assert done["rows"] == 480
    share = (here.adjust(here.rows.log_ratio, new.Z)[:, 1] >= here.threshold_).mean()
    assert content["probabilities"]["called"]["after"][1] == pytest.approx(share)


def test_unusual_values_of_z_are_reported(usual):
    model, new, _ = usual
    Z = new.Z.copy()
    Z.loc[:4, "age0"] = 200.0
    Z["group0"] = Z["group0"].astype(object)
    Z.loc[5:7, "group0"] = "never seen"
    here = quietly(lambda: model.adapt(new.X, sample_confounder=Z))
    age, group = report_content(here, "x", 0.95)["confounders"]
    assert age["notes"][0].startswith("5 value(s) lie outside the training range")
    assert group["notes"] == ["3 row(s) have a level not seen in training ('never seen') and count as missing."]


def test_one_row(usual, tmp_path):
    model, new, _ = usual
    here = quietly(lambda: model.adapt(new.X[:1], sample_confounder=new.Z[:1]))
    page = here.report(tmp_path / "one.html").read_text(encoding="utf-8")
    assert "1 unlabeled row," in page


def test_nothing_known_of_z(usual, tmp_path):
    model, new, _ = usual
    here = quietly(lambda: model.adapt(new.X))
    page = here.report(tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.count("No row here has a known value.") == 2


def test_a_model_without_confounders(tmp_path):
    family, model = trained(confounders=False)
    here = quietly(lambda: model.adapt(family.site(100, seed=3).X))
    assert "0 confounders" in here.report(tmp_path / "page.html").read_text(encoding="utf-8")


def test_ten_classes(tmp_path):
    family, model = trained(n_classes=10, n_continuous=0, prevalence="constant")
    new = family.site(400, seed=4)
    here = quietly(lambda: model.adapt(new.X, sample_confounder=new.Z))
    content = report_content(here, "x", 0.95)
    assert len(content["classes"]) == 10
    assert len(content["focus"]) == 4
    assert "10 classes" in render(content)


def test_a_thousand_levels():
    rng = np.random.default_rng(0)
    n = 3000
    clinic = np.array([f"clinic {i}" for i in range(1000)])[np.arange(n) % 1000]
    y = rng.integers(0, 2, n)
    X = rng.normal(y[:, None], 1, (n, 2))
    model = GPAClassifier(epochs=1, device="cpu", verbose=False, prevalence="constant", rehearsal=None)
    quietly(lambda: model.fit(X, y, sample_confounder=pd.DataFrame({"clinic": clinic})))
    here = quietly(lambda: model.adapt(X[:1500], sample_confounder=pd.DataFrame({"clinic": clinic[:1500]})))
    content = report_content(here, "x", 0.95)
    (confounder,) = content["confounders"]
    assert len(confounder["points"]) == MOST_LEVELS
    assert confounder["more"]["levels"] == 1000 - MOST_LEVELS
    assert confounder["more"]["rows"] + sum(p["rows"] for p in confounder["points"]) == 1500
    assert len(render(content)) < 200_000


def test_a_wrong_level_is_refused_before_anything_is_written(usual, tmp_path):
    with pytest.raises(ValueError, match="level must lie between 0 and 1"):
        usual[2].report(tmp_path / "report.html", level=95)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "names",
    [
        (0, 1),
        (0.5, 1.5),
        (True, False),
        ("a", "b"),
        (("x", 1), ("y", 2)),
        (np.datetime64("2024"), np.datetime64("2025")),
        (None, "b"),
        (float("nan"), 1.0),
        (b"raw", b"bytes"),
        (frozenset({1}), frozenset({2})),
    ],
    ids=str,
)
def test_sites_of_any_name_have_their_page(tmp_path, names):
    """The page calls a training site what Python calls it."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 200)
    p = np.clip(0.5 * rng.random(200) + 0.5 * y, 0.01, 0.99)
    domain = np.empty(200, dtype=object)
    domain[:] = [names[i % 2] for i in range(200)]
    Z = pd.DataFrame({3: rng.normal(size=200), ("a", 1): rng.integers(0, 2, 200).astype(bool)})
    adjuster = PrevalenceAdjuster(rehearsal=None)
    proba = np.stack([1 - p, p], axis=1)
    try:
        quietly(lambda: adjuster.fit(proba, y, sample_domain=domain, sample_confounder=Z))
    except ValueError as error:
        assert "sample_domain" in str(error)  # noqa: PT017
        return
    here = quietly(lambda: adjuster.adapt(proba, sample_confounder=Z))
    page = here.report(tmp_path / "page.html", site=7)
    assert "7" in page.read_text(encoding="utf-8")
    content = json.loads((tmp_path / "page.json").read_text(encoding="utf-8"))
    assert content["site"] == "7"
    assert [site["name"] for site in content["prevalence"]["sites"]] == [str(name) for name in adjuster.sites_]


def test_the_numbers_replace_a_report_s_and_nothing_else(usual, tmp_path):
    _, _, here = usual
    study = tmp_path / "cohort.json"
    study.write_text('{"patients": [1, 2, 3]}')
    with pytest.raises(FileExistsError, match=r"cohort\.json, which exists and is not a report"):
        here.report(tmp_path / "cohort.html")
    assert [path.name for path in tmp_path.iterdir()] == ["cohort.json"]
    assert study.read_text() == '{"patients": [1, 2, 3]}'
    here.report(tmp_path / "site.html")
    here.report(tmp_path / "site.html", site="again")
    assert json.loads((tmp_path / "site.json").read_text(encoding="utf-8"))["site"] == "again"


def test_subgroups_are_those_of_the_model(usual, tmp_path):
    here = usual[2]
    assert {group["column"] for group in report_content(here, "x", 0.95)["subgroups"]} == {"age0", "group0"}
    ward = pd.Series(np.where(np.arange(300) < 290, "north", "south"), name="ward")
    here.report(tmp_path / "page.html", subgroups=ward)
    north, south = json.loads((tmp_path / "page.json").read_text(encoding="utf-8"))["subgroups"]
    own, _ = here.subgroups(ward)
    assert north["prevalence"][1] == own.prevalence[here.classes_[1]]._asdict()
    assert north["metrics"]["recall"] == own.performance["recall"]._asdict()
    assert north["calibration"]["oe_ratio"] == own.calibration["oe_ratio"]._asdict()
    assert "10 row(s) are too few" in south["note"]
    assert not south["metrics"]
    assert south["note"] in (tmp_path / "page.html").read_text(encoding="utf-8")
