"""Heart disease and GUSTO-I from made-up files: names of columns, missing values, and everything wrong at once."""

import pandas as pd
import pytest

from sitewise.bench.datasets import real_tables as rt

PATIENT = "63.0,1.0,1.0,145.0,233.0,1.0,2.0,150.0,0.0,2.3,3.0,0.0,6.0"
CELLS = {"regl": "7", "day30": "0", "age": "61.5", "sex": "female", "Killip": "II", "miloc": "Anterior", "pmi": "yes"}
CELLS |= {"smk": "quit", "tx": "SK+tPA", **dict.fromkeys(rt.GUSTO_NUMBERS, "100"), **dict.fromkeys(rt.GUSTO_CODES, "1")}


@pytest.fixture
def heart_files(tmp_path):
    for number, name in enumerate(rt.HOSPITALS):
        rows = f"{PATIENT},0\n{PATIENT},{number + 1}\n54,0,4,0,0,?,?,-9,?,?,?,?,?,2\n"
        (tmp_path / f"processed.{name}.data").write_text(rows)
    return tmp_path


def write_gusto(folder, *rows):
    table = pd.DataFrame([CELLS | row for row in rows])
    table.to_csv(folder / "gusto.csv.gz", index=False)
    return folder


def test_heart_says_what_is_missing_and_what_is_disease(heart_files):
    heart = rt.load_heart(heart_files)
    assert heart.sites == rt.HOSPITALS
    assert heart.table["y"].tolist() == [0, 1, 1] * 4
    last = heart.table.iloc[2]
    assert last[["trestbps", "chol", "thalach", "fbs", "thal"]].isna().all()
    assert (last["age"], last["sex"], last["cp"]) == (54, "female", 4)
    assert heart.site_table()["prevalence"].tolist() == pytest.approx([2 / 3] * 4)


def test_the_folder_may_be_above_or_named_by_the_environment(heart_files, tmp_path, monkeypatch):
    below = tmp_path / "all" / "heart_disease"
    below.mkdir(parents=True)
    for name in rt.HOSPITALS:
        (heart_files / f"processed.{name}.data").rename(below / f"processed.{name}.data")
    monkeypatch.setenv("SITEWISE_DATA", str(below.parent))
    pd.testing.assert_frame_equal(rt.load_heart().table, rt.load_heart(below).table)


@pytest.mark.parametrize("load", [rt.load_heart, rt.load_gusto])
def test_what_is_not_there_is_said_with_where_it_comes_from(load, tmp_path, monkeypatch):
    monkeypatch.delenv("SITEWISE_DATA", raising=False)
    with pytest.raises(FileNotFoundError, match=r"set SITEWISE_DATA; it comes from .*(10.24432|predtools)"):
        load()
    with pytest.raises(FileNotFoundError, match=r"expected (processed.cleveland.data|gusto.csv)"):
        load(tmp_path)


def test_every_wrong_value_of_heart_is_named(heart_files):
    (heart_files / "processed.va.data").write_text(f"{PATIENT},7\n{PATIENT.replace('145.0', 'high')},0\n")
    (heart_files / "processed.hungarian.data").write_text("1,2,3\n")
    (heart_files / "processed.cleveland.data").write_text(f"{PATIENT},?\n")
    with pytest.raises(ValueError, match="4 problems") as error:
        rt.load_heart(heart_files)
    for said in (
        "column 'num': expected one of 0, 1, 2, 3, 4, got 7",
        "got 'high' in row 1",
        "expected 14 columns, got 3",
    ):
        assert said in str(error.value)


def test_gusto_by_either_names_in_the_order_of_regions(tmp_path):
    gusto = rt.load_gusto(write_gusto(tmp_path, {"regl": "10"}, {"regl": "9", "day30": "1"}, {"regl": "10"}))
    assert gusto.sites == ("9", "10")
    assert gusto.table["y"].tolist() == [1, 0, 0]
    plain = tmp_path / "plain"
    plain.mkdir()
    pd.read_csv(tmp_path / "gusto.csv.gz").rename(columns=rt.GUSTO_NAMES).to_csv(plain / "gusto.csv", index=False)
    pd.testing.assert_frame_equal(rt.load_gusto(plain).table, gusto.table)


def test_every_wrong_value_of_gusto_is_named(tmp_path):
    write_gusto(tmp_path, {"Killip": "V"}, {"day30": "2"}, {"smk": "nevr", "pulse": "fast"})
    with pytest.raises(ValueError, match="4 problems") as error:
        rt.load_gusto(tmp_path)
    for said in ("got 'V' in row 0", "got 2.0 in row 1", "got 'nevr' in row 2", "'fast'"):
        assert said in str(error.value)
    assert "did you mean 'never'?" in str(error.value)


def test_a_column_that_is_not_there_is_named(tmp_path):
    pd.DataFrame([CELLS]).drop(columns="Killip").assign(killip="I").to_csv(tmp_path / "gusto.csv", index=False)
    with pytest.raises(ValueError, match=r"no column 'Killip'; did you mean 'killip'\?"):
        rt.load_gusto(tmp_path)


def test_a_site_that_is_not_there_is_named(heart_files):
    with pytest.raises(KeyError, match="heart has no site 'bern'; the sites are cleveland"):
        rt.load_heart(heart_files).split("bern")
