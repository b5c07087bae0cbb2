"""`sitewise expect` and `sitewise evaluate`, on a small site."""

import json
import sys

import numpy as np
import pandas as pd
import pytest

import sitewise as sw
from sitewise.cli import main


def frame(n, prevalence, site, seed):
    rng = np.random.default_rng(seed)
    y = (rng.random(n) < prevalence).astype(int)
    p = 1 / (1 + np.exp(1 - 2 * y - rng.normal(size=n)))
    columns = {"hospital": site, "ill": np.where(y, "yes", "no"), "age": rng.integers(40, 80, n), "p0": 1 - p, "p1": p}
    return pd.DataFrame(columns | {"old": np.round(rng.random(n), 3), "rule": np.where(p > 0.7, "yes", "no")})


def run(capsys, *words):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["sitewise", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            main()
    said = capsys.readouterr()
    return end.value.code or 0, said.out, said.err


def write_site(folder, as_class=str):
    """Write the rows of a site, and the site of a model whose labels are written by `as_class`."""
    source = pd.concat([frame(150, p, name, i) for i, (name, p) in enumerate({"a": 0.3, "b": 0.5}.items())])
    source["ill"] = source["ill"].map(as_class)
    model = sw.PrevalenceAdjuster(rehearsal=None)
    reader = sw.TableReader.learn(
        source, sw.Roles(target="ill", site="hospital", confounders=("age",), proba=("p0", "p1"))
    )
    read = reader.read(source)
    model.fit(read.X, read.y, sample_domain=read.site, sample_confounder=read.Z)
    model.table_reader_ = reader
    new = frame(120, 0.2, "c", 7)
    new.to_csv(folder / "new.csv", index=False)
    rows = reader.read(new, labels="none")
    model.adapt(rows.X, sample_confounder=rows.Z).save(folder / "site")
    return folder


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return write_site(tmp_path_factory.mktemp("questions"))


def test_expect_judges_our_model_and_another(place, capsys):
    code, out, _ = run(capsys, "expect", place / "site", "--json")
    ours = json.loads(out)
    assert code == 0
    here = sw.load(place / "site")
    assert ours["metrics"]["accuracy"]["estimate"] == here.expected_performance()["accuracy"].estimate
    words = ("--proba", "old", "--threshold", "0.3", "--json")
    code, out, _ = run(capsys, "expect", place / "site", place / "new.csv", *words)
    old = pd.read_csv(place / "new.csv")["old"]
    wanted = here.expected_performance(proba=old, threshold=0.3)
    assert json.loads(out)["metrics"]["auroc"]["estimate"] == pytest.approx(wanted["auroc"].estimate)
    code, out, _ = run(capsys, "expect", place / "site", place / "new.csv", "--decision", "rule")
    assert code == 0
    assert "decisions as given" in " ".join(out.split())


def test_expect_refuses_what_it_cannot_judge(place, capsys):
    code, _, err = run(capsys, "expect", place / "site", place / "new.csv")
    assert code == 2
    assert "--proba p0,p1" in err
    pd.read_csv(place / "new.csv")[:50].to_csv(place / "few.csv", index=False)
    code, _, err = run(capsys, "expect", place / "site", place / "few.csv", "--proba", "old")
    assert code == 2
    assert "has 50 row(s), the site was adapted on 120" in " ".join(err.split())
    code, _, err = run(capsys, "expect", place / "site", place / "new.csv", "--decision", "hospital")
    assert code == 2
    assert "column 'hospital': expected one of no, yes, got 'c' in row 0" in " ".join(err.split())


def after_another_site(place, path, column, value):
    """Write the 120 rows of another site, and then those of ours, with a value in row 8 of ours."""
    ours = pd.read_csv(place / "new.csv", dtype=object).assign(weight="1")
    both = pd.concat([ours.assign(hospital="d"), ours], ignore_index=True)
    both.loc[128, column] = value
    both.to_csv(path, index=False)
    return path


@pytest.mark.parametrize(
    ("option", "column", "value", "message"),
    [
        ("--proba", "old", "high", "column 'old': expected a number, got 'high' in row 128"),
        ("--proba", "old", "", "column 'old': expected a probability, got nothing in row 128"),
        ("--proba", "old", "1.5", "column 'old': probabilities must lie in [0, 1], got 1.5 in row 128"),
        ("--decision", "rule", "maybe", "column 'rule': expected one of no, yes, got 'maybe' in row 128"),
        ("--decision", "rule", "", "column 'rule': expected a predicted class, got nothing in row 128"),
    ],
)
def test_expect_names_the_cell_that_it_cannot_read(place, tmp_path, capsys, option, column, value, message):
    data = after_another_site(place, tmp_path / "two.csv", column, value)
    code, _, err = run(capsys, "expect", place / "site", data, "--site", "c", option, column)
    assert code == 2
    assert f"{data}, {message} (counted from 0" in " ".join(err.split())


def test_expect_reads_every_spelling_of_a_class(tmp_path, capsys):
    write_site(tmp_path, {"yes": "1", "no": "0"}.get)
    new = pd.read_csv(tmp_path / "new.csv")
    said = []
    for spelled in ({"yes": "1", "no": "0"}, {"yes": "1.0", "no": "0.0"}, {"yes": "True", "no": "False"}):
        new.assign(rule=new["rule"].map(spelled)).to_csv(tmp_path / "new.csv", index=False)
        code, out, err = run(capsys, "expect", tmp_path / "site", tmp_path / "new.csv", "--decision", "rule", "--json")
        assert code == 0, err
        said.append(out)
    assert said == said[:1] * 3


def test_expect_ignores_columns_that_it_does_not_need(place, tmp_path, capsys):
    new = pd.read_csv(place / "new.csv").assign(arr=[[1.0, 2.0]] * 120)
    new.to_parquet(tmp_path / "new.parquet", index=False)
    words = ("--proba", "old", "--json")
    code, out, err = run(capsys, "expect", place / "site", tmp_path / "new.parquet", *words)
    assert code == 0, err
    assert out == run(capsys, "expect", place / "site", place / "new.csv", *words)[1]


@pytest.mark.parametrize(("value", "got"), [("", "nothing"), ("heavy", "'heavy'"), ("-1", "'-1'"), ("inf", "'inf'")])
def test_evaluate_names_the_weight_that_it_cannot_use(place, tmp_path, capsys, value, got):
    data = after_another_site(place, tmp_path / "two.csv", "weight", value)
    code, _, err = run(capsys, "evaluate", place / "site", data, "--site", "c", "--weight", "weight")
    assert code == 2
    wanted = f"{data}, column 'weight': expected a weight, which is a number from 0 up, got {got} in row 128"
    assert wanted in " ".join(err.split())


def test_evaluate_prints_numbers_and_writes_a_page(place, capsys):
    out = place / "page.html"
    code, said, err = run(
        capsys, "evaluate", place / "site", place / "new.csv", "--out", out, "--resamples", 5, "--json"
    )
    assert code == 0, err
    record = json.loads(said)
    assert record["rows"] == 120
    assert record["models"][:2] == ["adapted", "as trained"]
    assert "Decision curve" in out.read_text()
    code, said, _ = run(capsys, "evaluate", place / "site", place / "new.csv", "--resamples", 5)
    assert code == 0
    assert "contain the value from the labels" in said


def test_evaluate_needs_labels(place, capsys):
    pd.read_csv(place / "new.csv").drop(columns="ill").to_csv(place / "unlabeled.csv", index=False)
    code, _, err = run(capsys, "evaluate", place / "site", place / "unlabeled.csv")
    assert code == 2
    assert "ill" in err


def test_evaluate_refuses_labels_of_other_rows(place, capsys):
    new = pd.read_csv(place / "new.csv")
    new.assign(ill=np.where(new["ill"] == "yes", "sick", "well")).to_csv(place / "renamed.csv", index=False)
    code, _, err = run(capsys, "evaluate", place / "site", place / "renamed.csv")
    assert code == 2
    assert "expected one of no, yes" in " ".join(err.split())
    new.drop(columns=["p0", "p1"]).to_csv(place / "unscored.csv", index=False)
    code, _, err = run(capsys, "evaluate", place / "site", place / "unscored.csv")
    assert code == 2
    assert "p0" in err
    new.head(0).to_csv(place / "empty.csv", index=False)
    code, _, err = run(capsys, "evaluate", place / "site", place / "empty.csv")
    assert code == 2
    both = pd.concat([new, new.assign(hospital="d")])
    both.to_csv(place / "two.csv", index=False)
    code, _, err = run(capsys, "evaluate", place / "site", place / "two.csv")
    assert code == 2
    assert "--site" in err


def test_a_sample_is_drawn_labeled_and_judged_with_its_weights(place, capsys):
    out = place / "to_label.csv"
    code, said, err = run(capsys, "sample", place / "site", place / "new.csv", "--rows", 40, "--out", out, "--json")
    assert code == 0, err
    drawn = pd.read_csv(out)
    assert len(drawn) == json.loads(said)["rows"] == 40
    assert drawn["sample_weight"].sum() == pytest.approx(120)
    whole = pd.read_csv(place / "new.csv")
    assert drawn["old"].tolist() == whole["old"].iloc[drawn["sample_row"]].tolist()
    words = ("--weight", "sample_weight", "--resamples", 5, "--json")
    code, said, err = run(capsys, "evaluate", place / "site", out, *words)
    assert code == 0, err
    assert json.loads(said)["rows"] == 40


def test_init_suggests_what_differs_between_sites(tmp_path, capsys):
    rng = np.random.default_rng(0)
    hospital, age, pressure = np.repeat(["a", "b", "c"], 400), rng.normal(size=1200), rng.normal(size=1200)
    slope = pd.Series(hospital).map({"a": -1.5, "b": 0.0, "c": 1.5}).to_numpy()
    ill = rng.random(1200) < 1 / (1 + np.exp(-pressure - slope * age))
    columns = {"hospital": hospital, "ill": ill.astype(int), "height": age, "pressure": pressure}
    pd.DataFrame(columns).to_csv(tmp_path / "rows.csv", index=False)
    words = ("init", tmp_path / "rows.csv", "--target", "ill", "--site", "hospital", "--suggest", "--json")
    code, said, err = run(capsys, *words)
    assert code == 0, err
    record = json.loads(said)
    assert record["suggestion"]["confounders"] == ["height"]
    assert record["roles"]["confounders"] == ["height"]
    assert "pressure" in record["roles"]["features"]


def test_the_card_and_the_checklist_are_written(place, capsys):
    (place / "author.toml").write_text('developer = "Us"\n')
    words = ("--out", place / "card.xml", "--checklist", place / "tripod.md", "--author", place / "author.toml")
    code, said, err = run(capsys, "card", place / "site", *words, "--json")
    assert code == 0, err
    assert len(json.loads(said)["checklist"]) == 27
    assert "<mc:ModelDeveloper>Us<" in (place / "card.xml").read_text()
    assert "TRIPOD+AI" in (place / "tripod.md").read_text()
    (place / "author.toml").write_text("no toml")
    code, _, err = run(capsys, "card", place / "site", "--out", place / "other.xml", "--author", place / "author.toml")
    assert code == 2
    assert "is not TOML" in err


def test_report_has_the_subgroups_that_are_named(place, capsys):
    words = ("report", place / "site", "--out", place / "report.html", "--force", "--json")
    named = ("--subgroups", "age,rule", "--bands", "age=50,65", "--data", place / "new.csv")
    code, out, _ = run(capsys, *words, *named)
    assert code == 0
    groups = [(group["column"], group["name"]) for group in json.loads(out)["subgroups"]]
    assert groups == [("age", n) for n in ("below 50", "50 to below 65", "65 and above")] + [
        ("rule", "no"),
        ("rule", "yes"),
    ]
    code, out, _ = run(capsys, *words, "--subgroups", "age", "--bands", "age=60")
    assert [group["name"] for group in json.loads(out)["subgroups"]] == ["below 60", "60 and above"]
    assert "below 60" in (place / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--bands", "age=50"], "name the columns with --subgroups"),
        (["--subgroups", "age", "--bands", "age:50"], "--bands must be a column and numbers, such as age=50,65"),
        (["--subgroups", "rule"], "there is no confounder 'rule'; there are ['age']; pass the values"),
        (["--subgroups", "age", "--bands", "ages=50"], "bands of 'ages'; did you mean 'age'"),
    ],
)
def test_report_refuses_subgroups_it_does_not_know(place, capsys, words, message):
    code, _, err = run(capsys, "report", place / "site", "--out", place / "none.html", *words)
    assert code == 2
    assert message in " ".join(err.split())
    assert not (place / "none.html").exists()
