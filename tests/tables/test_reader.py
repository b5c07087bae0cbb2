"""From a table to X, Z, y and sites: as scikit-learn would do it, the same whatever file it came from."""

import copy
import pickle

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from sitewise.artifacts.packing import pack, unpack
from sitewise.tables import Roles, TableReader
from sitewise.tables.files import open_table
from sitewise.tables.reader import RECORDS, ImageInput
from sitewise.tables.roles import read_roles, roles_as_toml
from sitewise.tables.values import Place

ROLES = Roles(
    target="y", site="hospital", confounders=("age", "sex"), features=("bp", "pain", "code"), categorical=("code",)
)


def make_frame(seed=0, n=60):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "hospital": rng.choice(["A", "B"], n),
            "y": rng.integers(0, 2, n),
            "age": rng.normal(60, 10, n).round(1),
            "sex": rng.choice(["f", "m"], n),
            "bp": rng.normal(120, 20, n),
            "pain": rng.choice(["none", "mild", "severe"], n),
            "code": rng.choice([1, 2, 7], n),
        }
    )
    frame.loc[::7, "bp"] = np.nan
    frame.loc[::11, "pain"] = None
    frame.loc[::13, "age"] = np.nan
    return frame


def test_features_are_what_scikit_learn_makes_of_them():
    frame, new = make_frame(), make_frame(1)
    new.loc[3, "pain"] = "never seen"
    new.loc[5, "code"] = 99
    theirs = ColumnTransformer(
        [
            ("bp", make_pipeline(SimpleImputer(strategy="median"), StandardScaler()), ["bp"]),
            ("gap", MissingIndicator(), ["bp"]),
            ("pain", OneHotEncoder(handle_unknown="ignore", sparse_output=False), ["pain"]),
            ("code", OneHotEncoder(handle_unknown="ignore", sparse_output=False), ["code"]),
        ]
    ).fit(frame)
    reader = TableReader.learn(frame, ROLES)
    for table in (frame, new):
        np.testing.assert_allclose(reader.read(table).X, theirs.transform(table), atol=1e-12)
    assert reader.feature_columns == (
        *("bp", "bp missing", "pain=mild", "pain=none", "pain=severe", "pain missing", "code=1", "code=2", "code=7"),
    )


def test_csv_parquet_and_a_frame_give_the_same(tmp_path):
    frame = make_frame()
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.to_parquet(tmp_path / "t.parquet")
    reader = TableReader.learn(frame, ROLES)
    expected = reader.read(frame)
    assert expected.Z["age"].isna().sum() == 5
    for name in ("t.csv", "t.parquet"):
        table = open_table(tmp_path / name).read()
        assert TableReader.learn(table, ROLES) == reader
        rows = reader.read(table)
        np.testing.assert_array_equal(rows.X, expected.X)
        np.testing.assert_array_equal(rows.y, frame["y"])
        assert rows.site.tolist() == frame["hospital"].tolist()
        pd.testing.assert_frame_equal(rows.Z, expected.Z)


def test_rows_do_not_depend_on_the_rows_beside_them():
    frame = make_frame()
    reader = TableReader.learn(frame, ROLES)
    whole = reader.read(frame, labels="none")
    parts = [reader.read(frame.iloc[i : i + 7], labels="none") for i in range(0, len(frame), 7)]
    np.testing.assert_array_equal(np.concatenate([part.X for part in parts]), whole.X)
    assert [v for part in parts for v in part.Z["sex"]] == list(whole.Z["sex"])


def test_a_reader_is_saved_as_json_and_comes_back_equal():
    reader = TableReader.learn(make_frame(), ROLES)
    tree, tensors = pack({"reader": reader}, RECORDS)
    assert not tensors
    assert unpack(tree, tensors, RECORDS)["reader"] == reader


def test_a_missing_confounder_is_missing_and_said_and_other_columns_are_ignored():
    frame = make_frame()
    reader = TableReader.learn(frame, ROLES)
    new = frame.drop(columns=["age", "y", "hospital"]).assign(note="x")
    rows = reader.read(new, labels="none")
    assert rows.Z["age"].isna().all()
    assert rows.Z["sex"].notna().all()
    said = reader.notes(list(new.columns))
    assert said[0].startswith("confounder 'age' is not among the columns")
    assert said[1] == "column(s) without a role are ignored: note"
    assert reader.read(new.drop(columns="sex"), labels="none").Z is None


def test_levels_are_the_same_however_they_are_written():
    frame = make_frame()
    reader = TableReader.learn(frame, ROLES)
    other = frame.assign(code=frame["code"].map({1: "1.0", 2: " 2", 7: "7"}))
    np.testing.assert_array_equal(reader.read(other).X, reader.read(frame).X)


def test_labels_may_be_text_known_in_part_and_of_many_spellings():
    frame = make_frame().assign(y=lambda f: f["y"].map({0: "healthy", 1: "ill"}))
    reader = TableReader.learn(frame, ROLES)
    assert reader.classes == ("healthy", "ill")
    known = [None if i % 3 else label for i, label in enumerate(frame["y"])]
    frame["y"] = known
    assert reader.read(frame, labels="some").y.tolist() == known
    with pytest.raises(ValueError, match=r"'y'.*label is missing in row 1 .*and 39 more"):
        reader.read(frame)


def test_rows_in_errors_are_those_of_the_file():
    frame = make_frame()
    reader = TableReader.learn(frame, ROLES)
    bad = frame.astype({"bp": object})
    bad.loc[4, "bp"] = "high"
    with pytest.raises(ValueError, match=r"t\.csv, column 'bp'.*got 'high' in row 104 .*--categorical bp"):
        reader.read(bad, place=Place("t.csv", 100))
    kept = np.array([8, 9, 12, 40, 77, *range(100, 155)])
    with pytest.raises(ValueError, match="in row 77 "):
        reader.read(bad, place=Place("t.csv", kept=kept))


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("y", "l", r"column 'y': expected a number as in most rows, got 'l' in row 3"),
        ("bp", "12o", r"column 'bp': expected a number, got '12o' in row 3"),
        ("bp", np.inf, r"column 'bp' is infinite in row 3"),
        ("hospital", " ", r"column 'hospital' is empty in row 3"),
        ("age", "old", r"column 'age': expected a number, got 'old' in row 3"),
    ],
)
def test_cells_that_cannot_be_meant_are_named(column, value, said):
    frame = make_frame().astype({column: object})
    frame.loc[3, column] = value
    with pytest.raises(ValueError, match=said):
        TableReader.learn(frame, ROLES).read(frame)


def test_a_label_that_is_nearly_another_is_taken_for_a_slip():
    frame = make_frame(n=300).assign(y=lambda f: f["y"].map({0: "benign", 1: "malignant"}))
    frame.loc[7, "y"] = "malignent"
    with pytest.raises(
        ValueError, match=r"'malignent' in row 7 .*looks like a typing error; did you mean 'malignant'\?"
    ):
        TableReader.learn(frame, ROLES)
    named = Roles(target="y", features=("bp",), classes=("benign", "malignant", "malignent"))
    assert TableReader.learn(frame, named).classes == ("benign", "malignant", "malignent")
    with pytest.raises(ValueError, match="expected one of benign, malignant, got 'malignent' in row 7"):
        TableReader.learn(frame, Roles(target="y", features=("bp",), classes=("benign", "malignant")))


def test_all_that_is_wrong_with_roles_is_one_error():
    frame = make_frame()
    roles = Roles(target="yy", site="hospitl", confounders=("age", "age"), features=("bp",), categorical=("pian",))
    with pytest.raises(ValueError, match="4 problems") as error:
        TableReader.learn(frame, roles)
    for said in ("no column 'yy'", "did you mean 'hospital'", "'age' has two roles", "categorical names 'pian'"):
        assert said in str(error.value)
    with pytest.raises(ValueError, match="name the inputs"):
        TableReader.learn(frame, Roles(target="y"))
    with pytest.raises(ValueError, match="one kind of input"):
        TableReader.learn(frame, Roles(target="y", features=("bp",), proba=("age", "code")))
    with pytest.raises(ValueError, match="one class only"):
        TableReader.learn(frame.assign(y=1), ROLES)
    with pytest.raises(ValueError, match="too many for classes"):
        TableReader.learn(frame, Roles(target="bp", features=("age",)))
    with pytest.raises(ValueError, match="holds dates"):
        TableReader.learn(frame.assign(bp=pd.Timestamp("2020-01-01")), ROLES)
    with pytest.raises(ValueError, match="looks like names"):
        TableReader.learn(make_frame(n=300).assign(pain=lambda f: [f"note {i}" for i in range(len(f))]), ROLES)


PROBA = Roles(target="y", proba=("p0", "p1"))


def with_probabilities(n=20):
    p = np.linspace(0.05, 0.95, n)
    return pd.DataFrame({"y": np.arange(n) % 2, "p0": 1 - p, "p1": p})


def test_probabilities_in_the_order_of_the_classes():
    frame = with_probabilities()
    np.testing.assert_array_equal(TableReader.learn(frame, PROBA).read(frame).X, frame[["p0", "p1"]])
    turned = Roles(target="y", proba=("p0", "p1"), classes=("1", "0"))
    np.testing.assert_array_equal(TableReader.learn(frame, turned).read(frame).X, frame[["p1", "p0"]])
    single = Roles(target="y", proba=("p1",))
    np.testing.assert_allclose(TableReader.learn(frame, single).read(frame).X, frame[["p0", "p1"]])
    with pytest.raises(ValueError, match=r"3 column.*2 classes"):
        TableReader.learn(frame.assign(p2=0.0), Roles(target="y", proba=("p0", "p1", "p2")))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (np.nan, "column 'p1': expected a probability, got nothing in row 3"),
        (0.9, "'p0', 'p1': probabilities of a row must sum to one, they sum to 1.7"),
        (1.2, r"column 'p1': probabilities must lie in \[0, 1\], got 1.2 in row 3"),
        ("much", "column 'p1': expected a number, got 'much' in row 3"),
    ],
)
def test_probabilities_that_are_none_are_refused(value, said):
    frame = with_probabilities()
    reader = TableReader.learn(frame, PROBA)
    bad = frame.astype({"p1": object})
    bad.loc[3, "p1"] = value
    with pytest.raises(ValueError, match=said):
        reader.read(bad, labels="none")


def test_probabilities_named_after_the_classes_must_be_in_their_order():
    frame = with_probabilities()
    with pytest.raises(ValueError, match="p1, p0, seem to be in another order than the classes, 0, 1"):
        TableReader.learn(frame, Roles(target="y", proba=("p1", "p0")))
    meant = Roles(target="y", proba=("p1", "p0"), classes=("1", "0"))
    np.testing.assert_array_equal(TableReader.learn(frame, meant).read(frame).X, frame[["p0", "p1"]])


@pytest.mark.parametrize("column", ["bp", "age"])
def test_decimal_commas_are_no_categories(column):
    frame = make_frame()
    frame[column] = [None if np.isnan(v) else f"{v:.1f}".replace(".", ",") for v in frame[column]]
    with pytest.raises(ValueError, match=rf"column '{column}' holds numbers with decimal commas, such as '\d+,\d'"):
        TableReader.learn(frame, ROLES)


def test_images_are_read_from_their_paths(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for number in range(3):
        pixels = np.full((12, 10, 3), 40 * number, dtype=np.uint8)
        image.fromarray(pixels).save(tmp_path / f"{number}.png")
    frame = pd.DataFrame({"file": ["0.png", "1.png", "2.png"], "y": [0, 1, 0]})
    reader = TableReader.learn(frame, Roles(target="y", image="file"), image=ImageInput(8, 1))
    rows = reader.read(frame, root=tmp_path)
    assert rows.X.shape == (3, 1, 8, 8)
    assert rows.X[:, 0, 0, 0].tolist() == [0, 40, 80]
    with pytest.raises(ValueError, match=r"1 image\(s\) cannot be read.*\n.*row 1: there is no image"):
        reader.read(frame.assign(file=["0.png", "no.png", "2.png"]), root=tmp_path)


def test_roles_as_toml_come_back_equal(tmp_path):
    odd = Roles(target='a "b"', site="x\ny", confounders=("ä", "="), features=("c#d",), classes=("0", "1"))
    path = tmp_path / "roles.toml"
    path.write_text(roles_as_toml(odd, {"target": "why\nsite = 'evil'"}, ["two\nlines"]), encoding="utf-8")
    assert read_roles(path) == odd


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('targt = "y"', "'targt' is not a role; did you mean 'target'"),
        ("target = 3", "target must be the name of a column, got 3"),
        ('confounders = "age"', r"confounders must be a list of names, such as \[\"age\", \"sex\"\], got 'age'"),
        ("target = ", "is not TOML"),
    ],
)
def test_a_file_of_roles_that_is_wrong_is_refused(tmp_path, content, said):
    path = tmp_path / "roles.toml"
    path.write_text(content)
    with pytest.raises(ValueError, match=said):
        read_roles(path)


def test_a_table_of_any_kind_is_read_the_same():
    """Arrow's tables and batches, frames of pandas and polars, columns in any order."""
    polars = pytest.importorskip("polars")
    frame = make_frame()
    reader = TableReader.learn(frame, ROLES)
    expected = reader.read(frame)
    arrow = pa.Table.from_pandas(frame[list(reversed(frame.columns))])
    for table in (
        arrow,
        arrow.combine_chunks().to_batches()[0],
        polars.from_arrow(arrow),
        frame.set_index("hospital", drop=False),
    ):
        rows = reader.read(table)
        np.testing.assert_array_equal(rows.X, expected.X)
        np.testing.assert_array_equal(rows.y, expected.y)
        assert rows.site.tolist() == expected.site.tolist()
        pd.testing.assert_frame_equal(rows.Z, expected.Z)


def test_rows_without_a_group_stay_by_themselves():
    frame = make_frame(n=6).assign(patient=[1, 1, None, 2, None, 2])
    roles = Roles(target="y", site="hospital", features=("code",), group="patient")
    reader = TableReader.learn(frame, roles)
    assert reader.read(frame).groups.tolist() == ["1", "1", None, "2", None, "2"]
    assert reader.read(frame.drop(columns="patient")).groups is None


def test_only_the_columns_that_are_needed_are_asked_for():
    reader = TableReader.learn(make_frame(), ROLES)
    there = ["bp", "pain", "code", "age", "note", "y", "hospital"]
    assert reader.columns(there, labels=False) == ["hospital", "age", "bp", "pain", "code"]
    assert set(reader.columns(there, labels=True)) == {"y", "hospital", "age", "bp", "pain", "code"}
    assert set(reader.columns([], labels=False)) == {"bp", "pain", "code"}


def test_labels_are_not_read_if_they_are_not_requested():
    frame = make_frame().assign(y="?", hospital=None)
    reader = TableReader.learn(make_frame(), ROLES)
    rows = reader.read(frame, labels="none")
    assert (rows.y, rows.site) == (None, None)
    with pytest.raises(ValueError, match=r"2 problems(.|\n)*column 'y'(.|\n)*column 'hospital' is empty"):
        reader.read(frame)


def test_all_that_is_wrong_with_the_rows_is_one_error():
    reader = TableReader.learn(make_frame(), ROLES)
    bad = make_frame().astype({"bp": object, "age": object, "y": object})
    bad.loc[2, "bp"], bad.loc[3, "age"], bad.loc[4, "y"] = "high", np.inf, 7
    with pytest.raises(ValueError, match="3 problems") as error:
        reader.read(bad)
    for said in ("'bp': expected a number, got 'high' in row 2", "'age' is infinite in row 3", "got '7' in row 4"):
        assert said in str(error.value)
    with pytest.raises(ValueError, match=r"2 problems(.|\n)*no column 'bp' \(features\)(.|\n)*no column 'code'"):
        reader.read(make_frame().drop(columns=["bp", "code"]), labels="none")


def test_a_slip_in_the_name_of_a_confounder_is_said():
    reader = TableReader.learn(make_frame(), ROLES)
    said = reader.notes(["bp", "pain", "code", "Age", "sex"])
    assert said[0].endswith("did you mean 'Age'?")


def test_a_reader_can_be_copied_and_sent():
    """To processes that predict side by side, also once it was used."""
    frame = make_frame()
    reader = TableReader.learn(frame, ROLES)
    expected = reader.read(frame).X
    for other in (pickle.loads(pickle.dumps(reader)), copy.deepcopy(reader)):
        assert other == reader
        np.testing.assert_array_equal(other.read(frame).X, expected)


@pytest.mark.parametrize("written", ["%Y-%m-%d", "%d.%m.%Y", "%m/%d/%Y", "%Y-%m-%d %H:%M"])
@pytest.mark.parametrize("name", ["sex", "pain"])
def test_dates_written_as_text_are_refused_as_dates_are(written, name):
    dates = pd.date_range("2026-01-01", periods=60)
    frame = make_frame().assign(**{name: dates.strftime(written)})
    said = rf"column '{name}' holds dates: turn them into a number"
    with pytest.raises(ValueError, match=said):
        TableReader.learn(frame, ROLES)
    with pytest.raises(ValueError, match=said):
        TableReader.learn(frame.assign(**{name: dates}), ROLES)
    assert TableReader.learn(frame, ROLES.updated(categorical=("code", name))).read(frame).X.shape[0] == 60


def test_a_confounder_of_names_is_refused_unless_it_is_said_to_be_of_categories():
    frame = make_frame(n=120).assign(sex=[f"patient {i}" for i in range(120)])
    with pytest.raises(ValueError, match=r"'sex' has 120 different values of text.* add --categorical sex"):
        TableReader.learn(frame, ROLES)
    assert len(TableReader.learn(frame, ROLES.updated(categorical=("code", "sex"))).read(frame)) == 120
