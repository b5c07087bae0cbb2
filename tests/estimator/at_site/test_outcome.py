"""What was done at a site and why: one record, one sentence, on every surface."""

import json
from dataclasses import replace
from html import escape, unescape

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from typer.testing import CliRunner

import sitewise as sw
from sitewise.cli import app
from sitewise.diagnosis import Finding, Grounds, Outcome
from sitewise.diagnosis.outcome import ENOUGH_TRUSTED, UNCHANGED, decide, failed_check, follows
from sitewise.estimator.at_site.outcome import rehearsed_breaches
from sitewise.report.wording import OUTCOMES, RISKS, outcome_sentence, risk_sentence

CHANGED = Grounds("auto", (0.7, 0.3), (0.9, 0.1), (0.88, 0.12), applied_share=0.9, change=1.3)
GROUNDS = {
    ("adapted", "the rows"): CHANGED,
    ("adapted", "asked"): replace(CHANGED, policy="rows"),
    ("partly adapted", "few rows"): replace(CHANGED, applied_share=0.5, without_rehearsal=0.52),
    ("partly adapted", "rehearsal"): replace(CHANGED, applied_share=0.5, without_rehearsal=0.9),
    ("as trained", "asked"): replace(CHANGED, policy="as trained"),
    ("as trained", "check"): replace(CHANGED, failed="stability"),
    ("as trained", "rehearsal"): replace(CHANGED, applied_share=0.0, without_rehearsal=0.9),
    ("as trained", "nothing changed"): replace(CHANGED, change=0.3, applied_share=0.2, by_chance=True, half_width=0.05),
    ("as trained", "cannot tell"): replace(CHANGED, change=0.3, applied_share=0.2, by_chance=True, half_width=0.3),
}


def made(word, reason, gains=(0.02, -0.01), slope=1.0):
    grounds = replace(GROUNDS[word, reason], slope=slope)
    numbers = {name: getattr(grounds, name) for name in ("here", "as_trained", "rows_alone", "applied_share", "failed")}
    sentence = outcome_sentence(word, reason, names=["healthy", "<b>ill</b>"], slope=slope, **numbers)
    return Outcome(word, reason, sentence, risk_sentence(word, reason, gains), grounds)


@pytest.mark.parametrize(("expected", "grounds"), GROUNDS.items())
def test_every_outcome_is_reached(expected, grounds):
    assert decide(grounds) == expected


def test_there_is_a_sentence_for_each_outcome_and_none_that_never_shows():
    assert set(OUTCOMES) == set(GROUNDS)
    risks = {made(*key, gains=gains).risk for key in OUTCOMES for gains in ((), (0.02, 0.01, -0.01), (-0.02, 0.01))}
    assert len(risks) == len(RISKS)
    assert len({made(*key).sentence for key in OUTCOMES}) == len(OUTCOMES)


def test_a_change_of_sharpness_is_said():
    assert (
        "less extreme than as trained: at rehearsed sites the model was over-confident (log f times 0.70)"
        in made("adapted", "the rows", slope=0.7).sentence
    )
    assert "more extreme" in made("as trained", "rehearsal", slope=1.3).sentence
    assert "extreme" not in made("adapted", "the rows", slope=0.99).sentence
    assert "extreme" not in made("as trained", "asked", slope=0.7).sentence


def test_the_thresholds_are_those_of_the_docs():
    assert decide(replace(CHANGED, applied_share=ENOUGH_TRUSTED))[0] == "adapted"
    assert decide(replace(CHANGED, applied_share=ENOUGH_TRUSTED - 0.01))[0] == "partly adapted"
    assert decide(replace(CHANGED, applied_share=1.0, change=UNCHANGED - 0.01))[0] == "as trained"


@pytest.mark.parametrize(("word", "reason"), OUTCOMES)
@pytest.mark.parametrize("severity", ["good", "unknown", "care", "stop"])
def test_the_verdict_follows_from_the_outcome(word, reason, severity):
    found = follows(
        word, reason, GROUNDS[word, reason].failed, [Finding("identification", severity, None, None, "So.")]
    )
    if (word, reason) in (("as trained", "check"), ("as trained", "rehearsal")):
        assert found == "do not adapt"
    elif word == "partly adapted" or severity in ("care", "stop"):
        assert found == "care"
    else:
        assert found == "adapt"


def test_a_breach_that_rehearsed_sites_show_is_in_the_rehearsal_already():
    found = [Finding("stability", "stop", 0.001, 0.01, "Broken.", details={"gap": 0.1})]
    assert failed_check(found, {}) == "stability"
    assert failed_check(found, {"stability": 0.05}) == "stability"
    assert failed_check(found, {"stability": 0.2}) is None
    assert failed_check([replace(found[0], severity="care")], {}) is None
    assert failed_check([replace(found[0], name="identification")], {}) is None


def rows(n_rows, share, seed, distance=1.5):
    rng = np.random.default_rng(seed)
    y = (rng.random(n_rows) < share).astype(int)
    return rng.normal(size=(n_rows, 3)) + distance * y[:, None] * np.r_[1, 0, 0], y


@pytest.fixture(scope="module")
def model():
    sites = [rows(400, share, seed) for seed, share in enumerate((0.2, 0.35, 0.5))]
    X, y = (np.concatenate(part) for part in zip(*sites, strict=True))
    return sw.PrevalenceAdjuster(LogisticRegression()).fit(X, y, sample_domain=np.repeat(["a", "b", "c"], 400))


def test_belief_grows_with_the_rows_and_a_broken_site_is_not_trusted(model):
    many = model.adapt(rows(2000, 0.05, 7)[0]).outcome
    few = [model.adapt(rows(20, 0.05, seed)[0]).outcome.grounds.applied_share for seed in range(8)]
    assert (many, many.reason) == ("adapted", "the rows")
    assert many.grounds.applied_share > np.mean(few)
    broken = model.adapt(rows(1000, 0.3, 8, distance=4.0)[0])
    assert (broken.outcome, broken.outcome.reason) == ("as trained", "check")
    as_trained = model.predict_proba(rows(1000, 0.3, 8, distance=4.0)[0]).mean(axis=0)
    np.testing.assert_allclose(broken.prevalence(), as_trained, atol=1e-6)
    same = model.adapt(rows(300, 0.35, 9)[0]).outcome
    assert same.grounds.applied_share * same.grounds.change < 0.6


@pytest.mark.parametrize("policy", ["auto", "as trained", "rows"])
@pytest.mark.parametrize("distance", [1.5, 4.0])
def test_prevalence_mean_probability_and_confusion_are_one_number(model, policy, distance):
    X, _ = rows(500, 0.2, 5, distance)
    here = model.adapt(X, policy=policy)
    share = here.prevalence()
    np.testing.assert_allclose(here.predict_proba(X).mean(axis=0), share, rtol=1e-9)
    np.testing.assert_allclose(here.expected_performance().confusion.estimate.sum(axis=1) / 500, share, rtol=1e-9)
    low, high = here.prevalence_interval()
    assert ((low <= share) & (share <= high)).all()


def test_monitoring_the_same_rows_says_what_adapting_said(model):
    for distance in (1.5, 4.0):
        X, _ = rows(500, 0.2, 5, distance)
        here = model.adapt(X)
        window = here.monitor(X, np.arange(500), window=500).iloc[0]
        low, high = here.prevalence_interval()
        expected = [here.prevalence()[1], low[1], high[1]]
        np.testing.assert_allclose(window[["estimate", "low", "high"]].to_numpy(float), expected, rtol=1e-6)


def test_the_rehearsal_has_what_the_checks_found(model):
    table = model.rehearsal_.table
    breaches = {name: table[f"breach_{name}"].max() for name in ("stability", "mixture")}
    assert rehearsed_breaches(model) == pytest.approx(breaches)


@pytest.fixture(scope="module")
def here(model):
    return model.adapt(rows(300, 0.1, 4)[0])


@pytest.mark.parametrize(("word", "reason"), OUTCOMES)
def test_every_surface_begins_with_the_same_sentence(here, word, reason, tmp_path, monkeypatch):
    outcome = made(word, reason)
    monkeypatch.setattr("sitewise.estimator.adapted.site_outcome", lambda *_: outcome)
    here = here.with_checks(here.checks.findings)
    assert repr(here).splitlines()[1].strip() == outcome.sentence
    assert here._repr_html_().startswith(f"<p><b>{escape(outcome.sentence)}</b></p>")
    diagnosis = here.diagnose()
    assert diagnosis.sentence == outcome.sentence
    assert str(diagnosis).startswith(f"{outcome.sentence}\n{outcome.risk}\nverdict: {diagnosis.verdict}\n")
    assert diagnosis._repr_html_().startswith(f"<p>{escape(outcome.sentence)}</p>")
    assert diagnosis.to_dict()["outcome"]["sentence"] == outcome.sentence

    here.save(tmp_path / "site")
    card = (tmp_path / "site" / "model.md").read_text(encoding="utf-8").replace("\\", "")
    assert card.split("\n\n")[1] == outcome.sentence
    back = sw.load(tmp_path / "site", estimator=here.model.estimator_)
    assert (back.outcome, vars(back.outcome)) == (outcome, vars(outcome))

    page = here.report(tmp_path / "site.html").read_text(encoding="utf-8")
    main = unescape(page[page.index("<main>") :])
    assert main.index(outcome.sentence) < main.index(outcome.risk) < main.index(f"Verdict: {diagnosis.verdict}")
    report = json.loads((tmp_path / "site.json").read_text(encoding="utf-8"))
    assert (report["outcome"]["sentence"], report["verdict"]) == (outcome.sentence, diagnosis.verdict)


@pytest.mark.parametrize(("word", "reason"), OUTCOMES)
def test_the_command_line_begins_with_it(word, reason, tmp_path, monkeypatch):
    known = [rows(300, share, seed) for seed, share in enumerate((0.2, 0.5))]
    proba = [np.stack([1 / (1 + np.exp(X[:, 0])), 1 / (1 + np.exp(-X[:, 0]))], axis=1) for X, _ in known]
    y = np.concatenate([y for _, y in known])
    adjuster = sw.PrevalenceAdjuster(rehearsal=None).fit(np.concatenate(proba), y, np.repeat(["a", "b"], 300))
    site = adjuster.adapt(proba[0])
    outcome = made(word, reason)
    monkeypatch.setattr("sitewise.estimator.adapted.site_outcome", lambda *_: outcome)
    site.save(tmp_path / "site")
    verdict = site.diagnose().verdict
    said = CliRunner().invoke(app, ["diagnose", str(tmp_path / "site")]).stdout
    assert said.startswith(f"{outcome.sentence}\n{outcome.risk}\nverdict: {verdict}\n")
    document = json.loads(CliRunner().invoke(app, ["diagnose", str(tmp_path / "site"), "--json"]).stdout)
    assert next(iter(document)) == "outcome"
    assert (document["outcome"]["sentence"], document["verdict"]) == (outcome.sentence, verdict)
    words = ["report", str(tmp_path / "site"), "--out", str(tmp_path / "site.html")]
    assert CliRunner().invoke(app, words).stdout.startswith(outcome.sentence)
