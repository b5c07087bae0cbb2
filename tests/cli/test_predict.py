"""From a table to an adapted site, its predictions and its page, by commands; the models are small."""

import json
import sys
import warnings
from functools import partial
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import sitewise as sw
from sitewise.cli import main
from sitewise.tables import Roles, TableReader
from sitewise.tables.roles import read_roles

FEATURES = Roles(
    target="y", site="hospital", confounders=("age", "sex"), features=("bp", "pain"), group="patient", id="id"
)
PROBA = Roles(target="y", site="hospital", confounders=("age", "sex"), proba=("p0", "p1"))


def make_frame(n, prevalence, site, seed):
    rng = np.random.default_rng(seed)
    y = (rng.random(n) < prevalence).astype(int)
    bp = rng.normal(0, 1, n) + 1.5 * y
    p = 1 / (1 + np.exp(1.1 - 1.5 * bp))  # of one classifier, trained where half are ill
    frame = pd.DataFrame(
        {
            "id": [f"={site}+{i}" for i in range(n)],
            "patient": rng.integers(0, n, n),
            "hospital": site,
            "y": y,
            "age": rng.normal(60, 10, n).round(1),
            "sex": rng.choice(["f", "m"], n),
            "bp": bp.round(3),
            "pain": rng.choice(["none", "mild"], n),
            "p0": 1 - p,
            "p1": p,
        }
    )
    frame.loc[::9, "bp"] = np.nan
    return frame


@pytest.fixture(scope="session")
def labeled():
    sites = (("A", 0.2), ("B", 0.5), ("C", 0.7))
    return pd.concat([make_frame(200, p, name, i) for i, (name, p) in enumerate(sites)], ignore_index=True)


@pytest.fixture(scope="session")
def new_site():
    return make_frame(300, 0.15, "D", 9).drop(columns=["y", "hospital"])


@pytest.fixture(scope="session")
def saved(labeled, new_site, tmp_path_factory):
    """Folders of a model on features and of one on probabilities, each with a site that was adapted."""
    folder = tmp_path_factory.mktemp("saved")
    labeled.to_csv(folder / "labeled.csv", index=False)
    new_site.to_csv(folder / "new.csv", index=False)
    new_site.to_parquet(folder / "new.parquet")
    for name, roles in (("features", FEATURES), ("proba", PROBA)):
        reader = TableReader.learn(labeled, roles)
        rows = reader.read(labeled)
        kind = partial(sw.GPAClassifier, epochs=2) if name == "features" else sw.PrevalenceAdjuster
        model = kind(rehearsal=None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(rows.X, rows.y, sample_domain=rows.site, sample_confounder=rows.Z)
            model.table_reader_ = reader
            model.save(folder / name)
            new = reader.read(new_site, labels="none")
            here = model.adapt(new.X, sample_confounder=new.Z)
            here.choose_threshold(sensitivity=0.9)
            here.diagnose()
            here.save(folder / f"{name} site")
    return folder


@pytest.fixture
def run(monkeypatch, capsys):
    """Run the command line: its exit code, what it printed, and what it said on stderr."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["sitewise", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return end.value.code or 0, said.out, said.err

    return call


def files_below(folder):
    return {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}


def test_from_a_csv_to_a_report(run, saved, tmp_path, monkeypatch):
    before = files_below(saved)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    roles, model, site = tmp_path / "roles.toml", tmp_path / "model", tmp_path / "site"
    code, out, _ = run("init", saved / "labeled.csv", "--out", roles, "--json")
    assert code == 0
    assert json.loads(out)["roles"]["target"] == "y"
    code, out, _ = run(
        *("fit", saved / "labeled.csv", "--roles", roles, "--features", "bp,pain", "--leave-out", "C"),
        *("--epochs", 1, "--seed", 3, "--device", "cpu", "--out", model),
    )
    assert code == 0
    assert "400 labeled rows of 2 site(s)" in out
    assert "ignored: p0, p1" in out
    code, out, _ = run(
        "adapt", model, saved / "labeled.csv", "--site", "C", "--out", site, "--maximize", "f1", "--json"
    )
    assert code == 0
    record = json.loads(out)
    assert record["rows"] == 200
    assert sum(line["estimate"] for line in record["prevalence"]) == pytest.approx(1)
    assert next(iter(record)) == "outcome"
    assert record["verdict"] in ("adapt", "care", "do not adapt")
    assert 0 < record["threshold"]["threshold"] < 1
    assert any("holds labels, which are not used" in note for note in record["notes"])
    code, out, _ = run(
        "predict", site, saved / "labeled.csv", "--site", "C", "--as-trained", "--out", tmp_path / "p.csv"
    )
    assert code == 0
    assert out.startswith(record["outcome"]["sentence"])
    predictions = pd.read_csv(tmp_path / "p.csv")
    assert predictions.columns.tolist() == ["id", "p_0", "p_1", "p_0_as_trained", "p_1_as_trained", "decision"]
    means = predictions[["p_1", "p_1_as_trained"]].mean()
    assert means.tolist() == pytest.approx([record["outcome"][name][1] for name in ("here", "as_trained")])
    assert predictions["id"].tolist() == [f"'=C+{i}" for i in range(200)]  # as text, for a spreadsheet
    code, out, _ = run("report", site, "--out", tmp_path / "r.html", "--site-name", "Mercy <b>")
    assert code == 0
    assert "Mercy &lt;b&gt;" in (tmp_path / "r.html").read_text(encoding="utf-8")
    elsewhere.rmdir()  # it is empty: nothing is written outside --out
    assert {entry.name for entry in tmp_path.iterdir()} == {"roles.toml", "model", "site", "p.csv", "r.html"}
    assert files_below(saved) == before


def test_a_model_from_the_commands_is_a_model_in_python(run, saved, new_site, tmp_path):
    assert run("adapt", saved / "features", saved / "new.csv", "--out", tmp_path / "site", "--quiet")[:2] == (0, "")
    here = sw.load(tmp_path / "site")
    assert here.site_name == "site"
    rows = here.model.table_reader_.read(new_site, labels="none")
    expected = here.predict_proba(rows.X, sample_confounder=rows.Z)
    assert run("predict", tmp_path / "site", saved / "new.parquet", "--out", tmp_path / "p.parquet", "--quiet")[0] == 0
    read_table = pd.read_parquet(tmp_path / "p.parquet")
    np.testing.assert_array_equal(read_table[["p_0", "p_1"]], expected)
    assert read_table["id"].tolist() == new_site["id"].tolist()


@pytest.mark.parametrize("kind", ["features", "proba"])
@pytest.mark.parametrize("data", ["new.csv", "new.parquet"])
def test_predictions_are_those_of_the_model_whatever_the_chunks(
    run, saved, new_site, tmp_path, monkeypatch, kind, data
):
    here = sw.load(saved / f"{kind} site")
    rows = here.model.table_reader_.read(new_site, labels="none")
    expected = here.predict_proba(rows.X, sample_confounder=rows.Z)
    monkeypatch.setattr("sitewise.tables.files.BLOCK_BYTES", 3000)
    chunks = "sitewise.tables.files.TableFile.chunks"
    monkeypatch.setattr(f"{chunks}.__kwdefaults__", {"rows": 37})
    out = tmp_path / "p.parquet"
    assert run("predict", saved / f"{kind} site", saved / data, "--out", out, "--id", "id", "--quiet")[0] == 0
    read_table = pd.read_parquet(out)
    np.testing.assert_allclose(read_table[["p_0", "p_1"]], expected, rtol=0, atol=1e-12)
    assert read_table["id"].tolist() == new_site["id"].tolist()
    assert read_table["decision"].tolist() == (expected[:, 1] >= here.threshold_).astype(int).tolist()


def test_rows_without_a_name_get_their_number(run, saved, tmp_path):
    assert run("predict", saved / "proba site", saved / "new.csv", "--out", tmp_path / "p.csv", "--quiet")[0] == 0
    assert pd.read_csv(tmp_path / "p.csv")["row"].tolist() == list(range(300))


def test_probabilities_by_command(run, saved, tmp_path):
    code, out, _ = run(
        *("fit", saved / "labeled.csv", "--target", "y", "--site", "hospital", "--confounder", "age"),
        *("--confounder", "sex", "--proba", "p0,p1", "--out", tmp_path / "post", "--json"),
    )
    assert code == 0
    record = json.loads(out)
    assert (record["kind"], record["inputs"], record["rows"]) == ("PrevalenceAdjuster", ["p0", "p1"], 600)
    code, out, _ = run("adapt", tmp_path / "post", saved / "new.csv", "--out", tmp_path / "site", "--json")
    document = json.loads(out)["prevalence"][1]
    assert document["low"] < document["estimate"] < 0.3  # 0.15 here, 0.47 at the training sites
    said = run(
        "fit", saved / "labeled.csv", "--target", "y", "--proba", "p0,p1", "--epochs", 3, "--out", tmp_path / "x"
    )
    assert said[0] == 2
    assert "--epochs is for features and images" in said[2]


def test_a_confounder_that_is_not_there_is_missing_and_said(run, saved, new_site, tmp_path):
    new_site.drop(columns="age").assign(extra=1).to_csv(tmp_path / "new.csv", index=False)
    code, out, _ = run("adapt", saved / "proba", tmp_path / "new.csv", "--out", tmp_path / "site")
    assert code == 0
    assert "confounder 'age' is not among the columns and counts as missing in every row" in out
    assert "without a role are ignored" in out
    assert "extra" in out
    code, out, _ = run("predict", tmp_path / "site", tmp_path / "new.csv", "--out", tmp_path / "p.csv")
    assert code == 0
    assert "confounder 'age'" in out


def test_known_labels_are_used_when_asked_for(run, saved, labeled, tmp_path):
    some = labeled[labeled["hospital"] == "B"].drop(columns="hospital").reset_index(drop=True)
    some.loc[50:, "y"] = np.nan
    some.to_csv(tmp_path / "b.csv", index=False)
    assert run("adapt", saved / "proba", tmp_path / "b.csv", "--out", tmp_path / "s", "--use-labels", "--quiet")[0] == 0
    labels = sw.load(tmp_path / "s").rows.y
    assert int((~labels.isnan()).sum()) == 50
    some["y"] = some["y"].astype(object)
    some.loc[2, "y"] = "yes"
    some.to_csv(tmp_path / "b.csv", index=False)
    code, _, said = run("adapt", saved / "proba", tmp_path / "b.csv", "--out", tmp_path / "t", "--use-labels")
    assert code == 2
    assert "column 'y': expected one of 0, 1, got 'yes' in row 2" in said


def test_labels_that_were_used_are_said_on_every_surface(run, saved, labeled, tmp_path):
    table = labeled[labeled["hospital"] == "A"].drop(columns="hospital").reset_index(drop=True)
    table.loc[40:, "y"] = np.nan
    table.to_csv(tmp_path / "few.csv", index=False)
    few = ("adapt", saved / "proba", tmp_path / "few.csv", "--out", tmp_path / "s", "--force")
    with_labels, without = (run(*few, *more)[1] for more in (["--use-labels"], []))
    assert "200 rows, 40 with a label" in with_labels
    assert "expected here, with 40 known labels" in with_labels
    assert "200 unlabeled rows" in without
    assert "expected here, without labels" in without
    run(*few, "--use-labels", "--quiet")
    run("report", tmp_path / "s", "--out", tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text()
    assert "200 rows, 40 with a label" in page
    assert "Estimated here with 40 known labels" in page
    assert "unlabeled row" not in page.split("Glossary")[0]


@pytest.mark.parametrize(
    ("name", "text", "options"),
    [
        ("comma.csv", "sex,prevalence\nf,0.1\nm,0.2\n", ()),
        ("tab.tsv", "sex\tprevalence\nf\t0.1\nm\t0.2\n", ()),
        ("bom.csv", "\ufeffsex,prevalence\nf,0.1\nm,0.2\n", ()),
        ("latin.csv", "sex,prevalence\nf,0.1\nm,0.2\n", ("--encoding", "latin-1")),
    ],
)
def test_a_table_of_known_prevalences_is_read_as_other_tables(run, saved, tmp_path, name, text, options):
    (tmp_path / name).write_text(text, encoding="utf-8")
    adapt = ("adapt", saved / "proba", saved / "new.csv", *options, "--json")
    code, out, said = run(*adapt, "--prevalence-table", tmp_path / name, "--out", tmp_path / "s")
    assert code == 0, said
    assert json.loads(out)["prevalence"][1]["estimate"] == pytest.approx(0.15, abs=0.03)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"sex;prevalence\nf;0.1\n", "seem to be separated by"),
        (b"sex,prevalence\nf,0.1\nm,a lot\n", "column 'prevalence'"),
        (b"sex,prevalence\nf\xe4,0.1\n", "--encoding"),
        (b"", "is empty"),
    ],
)
def test_a_wrong_table_of_known_prevalences_is_named(run, saved, tmp_path, content, said):
    (tmp_path / "known.csv").write_bytes(content)
    adapt = ("adapt", saved / "proba", saved / "new.csv", "--out", tmp_path / "s")
    code, _, error = run(*adapt, "--prevalence-table", tmp_path / "known.csv")
    assert code == 2
    assert "known.csv" in error
    assert said in error


@pytest.mark.parametrize("separator", ["\\t", "tab", "\t"])
@pytest.mark.parametrize("encoding", ["UTF-8", "utf8"])
def test_a_tab_and_an_encoding_may_be_spelled_as_people_do(run, saved, new_site, tmp_path, separator, encoding):
    new_site.to_csv(tmp_path / "new.csv", index=False, sep="\t", encoding="utf-8-sig")
    how = ("--separator", separator, "--encoding", encoding, "--id", "id")
    code, _, said = run("predict", saved / "proba site", tmp_path / "new.csv", *how, "--out", tmp_path / "p.csv")
    assert code == 0, said


def test_boolean_classes_are_predicted(run, saved, labeled, new_site, tmp_path):
    reader = TableReader.learn(labeled, PROBA)
    rows = reader.read(labeled)
    model = sw.PrevalenceAdjuster(rehearsal=None).fit(rows.X, rows.y == 1, rows.site, rows.Z)
    model.table_reader_ = reader
    new = reader.read(new_site, labels="none")
    model.adapt(new.X, sample_confounder=new.Z).save(tmp_path / "site")
    code, _, said = run("predict", tmp_path / "site", saved / "new.csv", "--out", tmp_path / "p.parquet")
    assert code == 0, said
    assert pd.read_parquet(tmp_path / "p.parquet")["decision"].dtype == bool


def test_one_site_is_taken_at_a_time(run, saved, tmp_path):
    code, _, said = run("adapt", saved / "proba", saved / "labeled.csv", "--out", tmp_path / "s")
    assert code == 2
    assert "holds 3 sites in column 'hospital' (A, B, C)" in said
    assert "--site NAME" in said
    code, _, said = run("adapt", saved / "proba", saved / "labeled.csv", "--site", "a", "--out", tmp_path / "s")
    assert code == 2
    assert "no rows of the site 'a'; did you mean 'A'?" in said
    for chosen, words in (([], "holds 3 sites"), (["--site", "X"], "no rows of the site 'X'")):
        out = tmp_path / "p.csv"
        code, _, said = run("predict", saved / "proba site", saved / "labeled.csv", *chosen, "--out", out)
        assert code == 2
        assert words in said
        assert not out.exists()


def test_a_table_without_roles_for_inputs_takes_what_may_be_a_feature(run, saved, labeled, tmp_path):
    table = labeled.drop(columns=["p0", "p1"]).assign(outcome=lambda f: f["y"].map({0: "fine", 1: "ill"}))
    table.to_csv(tmp_path / "t.csv", index=False)
    code, out, _ = run(
        *("fit", tmp_path / "t.csv", "--target", "y", "--site", "hospital", "--confounder", "age"),
        *("--epochs", 1, "--out", tmp_path / "m", "--json"),
    )
    assert code == 0
    record = json.loads(out)
    assert record["inputs"] == ["sex", "bp", "pain"]
    assert any("'outcome' is not used as a feature: it determines y exactly" in note for note in record["notes"])


def test_images_by_command(run, tmp_path):
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    lines = []
    for number in range(48):
        y = number % 2
        pixels = rng.integers(0, 120, (14, 16), dtype=np.uint8) + 100 * y
        image.fromarray(pixels.astype(np.uint8)).save(tmp_path / f"{number}.png")
        lines.append({"scan": f"{number}.png", "clinic": "ABC"[number % 3], "y": y, "age": 40 + number})
    data = tmp_path / "scans.csv"
    pd.DataFrame(lines).to_csv(data, index=False)
    roles = ("--target", "y", "--site", "clinic", "--confounder", "age", "--image", "scan", "--leave-out", "C")
    small = ("--size", 12, "--channels", 1, "--epochs", 1, "--backbone", "cnn", "--quiet")
    assert run("fit", data, *roles, *small, "--out", tmp_path / "model")[0] == 0
    pack = ("--out", tmp_path / "pack", "--size", 12, "--channels", 1, "--image", "scan", "--site", "clinic")
    assert run("data", "pack", data, *pack)[0] == 0
    assert run("adapt", tmp_path / "model", data, "--site", "C", "--out", tmp_path / "site", "--quiet")[0] == 0
    predictions = {}
    for name, source in (("a.csv", ()), ("b.csv", ("--packed", tmp_path / "pack"))):
        options = ("--site", "C", "--out", tmp_path / name, "--quiet")
        assert run("predict", tmp_path / "site", data, *options, *source)[0] == 0
        predictions[name] = pd.read_csv(tmp_path / name)
    pd.testing.assert_frame_equal(predictions["a.csv"], predictions["b.csv"])
    assert predictions["a.csv"]["row"].tolist() == list(range(2, 48, 3))
    (tmp_path / "5.png").unlink()
    code, _, said = run("predict", tmp_path / "site", data, "--site", "C", "--out", tmp_path / "c.csv")
    assert code == 2
    assert "row 5: there is no image" in said


def test_a_model_that_knows_no_table_says_how_to_tell_it(run, saved, tmp_path):
    model = sw.load(saved / "proba")
    del model.table_reader_
    model.save(tmp_path / "bare")
    code, _, said = run("adapt", tmp_path / "bare", saved / "new.csv", "--out", tmp_path / "site")
    assert code == 2
    assert "TableReader.learn" in said


def test_report_prints_its_numbers_for_machines(run, saved, tmp_path):
    code, out, _ = run("report", saved / "proba site", "--out", tmp_path / "r.html", "--json")
    assert code == 0
    assert json.loads(out)["site"] == "proba site"
    assert {entry.name for entry in tmp_path.iterdir()} == {"r.html"}


def test_init_prints_roles_that_fit_reads(run, saved, tmp_path):
    code, out, _ = run("init", saved / "labeled.csv")
    assert code == 0
    assert 'site = "hospital"' in out
    assert 'confounders = ["age", "sex"]' in out
    assert 'proba = ["p0", "p1"]' in out
    assert 'group = "patient"' in out


def test_init_asks_on_a_terminal(run, saved, tmp_path, monkeypatch):
    terminal = SimpleNamespace(isatty=lambda: True)
    monkeypatch.setattr("sitewise.cli.init.sys", SimpleNamespace(stdin=terminal, stdout=terminal))
    answers = iter(["sexx", "sex", ""])
    monkeypatch.setattr("typer.prompt", lambda *_, **__: next(answers))
    code, _, said = run("init", saved / "labeled.csv", "--out", tmp_path / "roles.toml")
    assert code == 0
    assert "there is no column 'sexx'; did you mean 'sex'?" in said
    assert read_roles(tmp_path / "roles.toml").target == "sex"


def test_an_interrupted_prediction_leaves_nothing(run, saved, tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("sitewise.estimator.adapted.AdaptedClassifier.predict_proba", interrupt)
    code, _, _ = run("predict", saved / "proba site", saved / "new.csv", "--out", tmp_path / "p.csv")
    assert code in (1, 130)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["features", "proba"])
def test_a_graph_predicts_as_the_command_does(run, saved, new_site, tmp_path, name):
    runtime = pytest.importorskip("onnxruntime", reason="the extra `onnx` is not installed")
    site, out = saved / f"{name} site", tmp_path / "site.onnx"
    code, said, _ = run("export", site, "--out", out, "--json")
    assert code == 0
    metadata = json.loads(said)
    assert metadata["difference"] <= 1e-5
    assert [feature["name"] for feature in metadata["x"]["from"]] == (["bp", "pain"] if name == "features" else [])
    assert run("predict", site, saved / "new.csv", "--out", tmp_path / "p.csv")[0] == 0
    rows = sw.load(site).model.table_reader_.read(new_site, labels="none")
    z = np.stack([new_site["age"], new_site["sex"].map(metadata["z"][1]["levels"].index)], axis=1)
    (exported,) = runtime.InferenceSession(out).run(None, {"x": rows.X.astype(np.float32), "z": z.astype(float)})
    predicted = pd.read_csv(tmp_path / "p.csv")[[f"p_{label}" for label in metadata["classes"]]]
    assert np.abs(exported - predicted.to_numpy()).max() <= 1e-5


def test_the_terminal_says_first_what_was_done(run, saved, tmp_path):
    code, out, _ = run("adapt", saved / "proba", saved / "new.csv", "--out", tmp_path / "site")
    assert code == 0
    here = sw.load(tmp_path / "site")
    said = [here.outcome.sentence, here.outcome.risk, f"verdict: {here.diagnose().verdict}"]
    assert out.splitlines()[:3] == said
    code, out, _ = run("diagnose", tmp_path / "site")
    assert (code, out.splitlines()[:3]) == (0, said)
    assert all(finding.sentence in out for finding in here.diagnose().findings)


@pytest.mark.parametrize(("policy", "word"), [("as-trained", "as trained"), ("rows", "adapted")])
def test_policies_of_the_command_line(run, saved, tmp_path, policy, word):
    code, out, _ = run(
        "adapt", saved / "proba", saved / "new.csv", "--policy", policy, "--out", tmp_path / "site", "--json"
    )
    assert (code, json.loads(out)["outcome"]["word"], json.loads(out)["outcome"]["reason"]) == (0, word, "asked")


def test_the_old_name_of_the_policy_is_noted(run, saved, tmp_path):
    call = ("adapt", saved / "proba", saved / "new.csv", "--out", tmp_path / "site")
    code, out, _ = run(*call, "--fallback", "pooled")
    assert code == 0
    assert "--fallback is the old name of --policy" in out
    code, _, err = run(*call, "--force", "--fallback", "marginal")
    assert code == 2
    assert "was removed" in err


def test_a_rehearsal_is_shown(run, saved):
    code, out, _ = run("rehearse", saved / "proba")
    model = sw.load(saved / "proba")
    assert code == 0
    assert out.startswith(model.rehearsal_.sentence)
    code, out, _ = run("rehearse", saved / "proba", "--json")
    document = json.loads(out)
    assert document["sentence"] == model.rehearsal_.sentence
    assert [site["site"] for site in document["sites"]] == model.rehearsal_.table.index.tolist()


def test_sites_that_are_not_named_are_reported(run, saved, tmp_path):
    code, out, _ = run("fit", saved / "labeled.csv", "--target", "y", "--proba", "p0,p1", "--out", tmp_path / "model")
    assert code == 0
    assert "no sample_domain is given" in out


def test_names_people_read(run, saved, tmp_path):
    roles = ("--target", "y", "--site", "hospital", "--proba", "p0,p1")
    names = ("--outcome-name", "death", "--intended-use", "Triage.", "--contact", "someone@example.org")
    assert run("fit", saved / "labeled.csv", *roles, *names, "--out", tmp_path / "model", "--quiet")[0] == 0
    card = (tmp_path / "model" / "model.md").read_text()
    assert "Intended use: Triage." in card
    _, out, _ = run("adapt", tmp_path / "model", saved / "new.csv", "--out", tmp_path / "site")
    assert "“death = 1”" in out.splitlines()[0]
    _, out, _ = run("report", tmp_path / "site", "--positive", "died", "--out", tmp_path / "r.html")
    assert "“died”" in out.splitlines()[0]
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    for words in ("death", "died", "Triage.", "someone@example.org"):
        assert words in page
