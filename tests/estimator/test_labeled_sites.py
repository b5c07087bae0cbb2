"""Labels and a known prevalence through `adapt`: what is predicted, saved, updated, exported, diagnosed and planned."""

from functools import cache

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import sitewise as sw
from sitewise.cli import app

CLASSES = np.array(["healthy", "ill"])


@cache
def world():
    """A classifier's probabilities of labeled source rows and of a new site's, with age and sex."""
    rng = np.random.default_rng(0)

    def rows(n, share):
        y = (rng.random(n) < share).astype(int)
        score = rng.normal(size=n) + 1.5 * y
        odds = 1.5 * score - 1.1 + np.log(0.3 / 0.7)
        p = 1 / (1 + np.exp(-odds))
        Z = pd.DataFrame({"age": rng.uniform(20, 90, n) + 5 * y, "sex": rng.choice(["f", "m"], n)})
        return np.column_stack([1 - p, p]), CLASSES[y], Z

    return rows(600, 0.3), rows(200, 0.15)


@cache
def adjuster():
    proba, y, Z = world()[0]
    return sw.PrevalenceAdjuster(rehearsal=None).fit(proba, y, sample_confounder=Z)


def here(**known):
    proba, _, Z = world()[1]
    return adjuster().adapt(proba, sample_confounder=Z, **known)


def predicted(site):
    proba, _, Z = world()[1]
    return site.predict_proba(proba, Z)


@pytest.mark.parametrize("known", [0.12, {"ill": 0.12}, {"healthy": 0.88, "ill": 0.12}])
def test_predictions_have_the_known_mean(known):
    weight = np.random.default_rng(0).integers(1, 4, 200)
    site = here(known_prevalence=known, sample_weight=weight)
    assert weight @ predicted(site) / weight.sum() == pytest.approx([0.88, 0.12], abs=1e-9)
    assert site.prevalence() == pytest.approx([0.88, 0.12], abs=1e-9)
    low, high = site.prevalence_interval()
    assert [low[1], high[1]] == pytest.approx([0.12, 0.12], abs=1e-9)
    assert site.diagnose()["known prevalence"].severity == "good"


def test_a_contradicted_prevalence_is_warned_of_and_diagnosed():
    with pytest.warns(UserWarning, match="contradict each other"):
        site = here(known_prevalence=0.8)
    finding = site.diagnose()["known prevalence"]
    assert finding.severity == "care"
    assert finding.p_value < 0.01
    assert site.diagnose().verdict != "adapt"
    assert not [finding for finding in here().diagnose().findings if finding.name == "known prevalence"]


def test_a_table_by_age_and_sex_holds():
    table = pd.DataFrame({"age": ["<50", "50+", "<50", "50+"], "sex": ["f", "f", "m", "m"]})
    table["prevalence"] = [0.1, 0.2, 0.12, 0.15]
    site, Z = here(known_prevalence=table), world()[1][2]
    p = predicted(site)[:, 1]
    for old, sex, wanted in ((False, "f", 0.1), (True, "f", 0.2), (False, "m", 0.12), (True, "m", 0.15)):
        rows = ((Z["age"] >= 50) == old) & (Z["sex"] == sex)
        assert p[rows.to_numpy()].mean() == pytest.approx(wanted, abs=1e-9)


def test_a_site_with_known_labels_or_prevalence_is_saved_and_updated(tmp_path):
    proba, y, Z = world()[1]
    labels = pd.Series(y).where(np.arange(200) < 40)
    site = adjuster().adapt(proba[:150], sample_confounder=Z[:150], y=labels[:150], known_prevalence=0.12)
    site.save(tmp_path / "site")
    again = sw.load(tmp_path / "site")
    assert np.array_equal(again.predict_proba(proba, Z), site.predict_proba(proba, Z))
    assert again.known_prevalence is not None
    more = again.update(proba[150:], Z[150:], y=labels[150:])
    at_once = adjuster().adapt(proba, sample_confounder=Z, y=labels, known_prevalence=0.12)
    assert predicted(more).mean(0) == pytest.approx([0.88, 0.12], abs=1e-9)
    assert predicted(more) == pytest.approx(predicted(at_once), abs=1e-6)


@pytest.mark.parametrize("known", ["labels", "prevalence", "table"])
def test_a_site_with_known_labels_or_prevalence_is_exported(tmp_path, known):
    pytest.importorskip("onnxruntime")
    labels = pd.Series(world()[1][1]).where(np.arange(200) < 40)
    table = pd.DataFrame({"age": ["<50", "50+"], "prevalence": [0.1, 0.2]})
    options = {"labels": {"y": labels}, "prevalence": {"known_prevalence": 0.12}, "table": {"known_prevalence": table}}
    path = here(**options[known]).export_onnx(tmp_path / "site.onnx", dtype="float64")  # tried out before it is kept
    assert path.exists()


def test_as_trained_takes_no_known_prevalence():
    with pytest.raises(ValueError, match="as trained"):
        here(known_prevalence=0.12, policy="as trained")


def test_labels_are_planned():
    plan = adjuster().plan_labels(log_loss=0.02, rows=200, labels=(50, 150), n_simulations=3)
    widths = plan.table["width"]
    assert plan.table["n"].tolist() == [0, 50, 150]
    assert widths.iloc[-1] < widths.iloc[0]
    assert (plan.table["log_loss"] > 0).all()
    assert plan.to_dict()["points"][0]["n"] == 0
    easy = adjuster().plan_labels(width=0.999, rows=200, labels=(50,), n_simulations=2)
    assert easy.answer == 0
    assert str(easy) == "0 labels among 200 rows are enough for width 0.999"
    hard = adjuster().plan_labels(width=1e-4, rows=200, labels=(50,), n_simulations=2)
    assert hard.answer is None
    assert "out of reach" in str(hard)
    with pytest.raises(ValueError, match="give one of width, log_loss"):
        adjuster().plan_labels(rows=200)


def test_the_command_line_takes_a_known_prevalence(tmp_path):
    proba, y, Z = world()[0]
    table = Z.assign(p=proba[:, 1], y=y)
    table.to_csv(tmp_path / "source.csv", index=False)
    new = world()[1]
    new[2].assign(p=new[0][:, 1]).to_csv(tmp_path / "new.csv", index=False)
    strata = pd.DataFrame({"sex": ["f", "m"], "prevalence": [0.1, 0.2]})
    strata.to_csv(tmp_path / "strata.csv", index=False)
    run = CliRunner().invoke
    roles = ["--target", "y", "--proba", "p", "--confounder", "age", "--confounder", "sex", "--classes", "healthy,ill"]
    fitted = run(app, ["fit", str(tmp_path / "source.csv"), *roles, "--out", str(tmp_path / "model"), "--quiet"])
    assert fitted.exit_code == 0, fitted.output
    common = ["adapt", str(tmp_path / "model"), str(tmp_path / "new.csv"), "--quiet"]
    for number, options in enumerate((["--prevalence", "0.12"], ["--prevalence-table", str(tmp_path / "strata.csv")])):
        out = tmp_path / f"site{number}"
        done = run(app, [*common, *options, "--out", str(out)])
        assert done.exit_code == 0, done.output
        assert sw.load(out).known_prevalence is not None
    assert sw.load(tmp_path / "site0").prevalence()[1] == pytest.approx(0.12, abs=1e-9)
    twice = run(app, [*common, "--prevalence", "0.1", "--prevalence-table", "x.csv", "--out", str(tmp_path / "s")])
    assert twice.exit_code != 0
    planned = run(app, ["plan", str(tmp_path / "model"), "--labels", "--width", "0.2", "--simulations", "2", "--json"])
    assert planned.exit_code == 0, planned.output
    assert '"target": "width"' in planned.output


def test_expected_performance_is_that_of_the_known_prevalence():
    site = here(known_prevalence=0.12)
    expected = site.expected_performance()
    truth = site.drawn_rows.labels.mean()
    assert truth == pytest.approx(0.12, abs=0.01)  # drawn labels have the mean of the predictions
    assert 0 < expected["nll"][0] < 0.6
