"""Manifests: what is wrong with a table is said at once, and no group is ever separated."""

import logging
import os
import re

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from sitewise.datasets.image_sites import to_site, to_sites
from sitewise.tables.manifest import Manifest, read_manifest
from sitewise.tables.manifest.checking import check, notes
from sitewise.tables.manifest.reading import write_manifest
from sitewise.tables.manifest.splitting import assign_sites, split_manifest

ROWS = """path,site,y,age,sex,patient
a/0.png,Oslo,0,40,F,p0
a/1.png,Oslo,1,,M,p0
b/2.png,Bern,0,61,F,p1
b/3.png,Bern,1,70,,p2
b/4.png,Bern,0,55,M,
"""
Z = ["age", "sex"]


@pytest.fixture
def folder(tmp_path):
    """A table and its five images."""
    for row in range(5):
        file = tmp_path / ("a" if row < 2 else "b") / f"{row}.png"
        file.parent.mkdir(exist_ok=True)
        Image.fromarray(np.full((6, 6), row, dtype=np.uint8)).save(file)
    (tmp_path / "table.csv").write_text(ROWS, encoding="utf-8")
    return tmp_path


def read(folder, text=None, **options):
    if text is not None:
        (folder / "table.csv").write_text(text, encoding="utf-8")
    return read_manifest(folder / "table.csv", **options)


def said(error):
    """An error's text, in which each problem is a line."""
    return str(error.value)


def sites_of_rows(n, n_groups=None, seed=0):
    rng = np.random.default_rng(seed)
    group = [f"p{g}" for g in rng.integers(0, n_groups or n, n)]
    table = pd.DataFrame(
        {
            "path": [f"{row}.png" for row in range(n)],
            "site": rng.choice(["Bern", "Oslo", "Rome"], n),
            "y": (rng.random(n) < 0.3).astype(int),
            "id": [f"image {row}" for row in range(n)],
        }
    )
    if n_groups:
        table["group"] = group
    return Manifest(table, root=os.curdir)


def test_reading_gives_the_manifests_columns_under_their_names(folder):
    manifest = read(folder, confounders=Z, group="patient")
    assert list(manifest.table) == ["path", "site", "y", "age", "sex", "group", "id"]
    assert manifest.table["y"].tolist() == [0, 1, 0, 1, 0]
    assert manifest.table["id"].tolist() == manifest.table["path"].tolist()
    assert manifest.root == folder
    assert manifest.sites == ("Bern", "Oslo")
    assert manifest.table["group"].isna().tolist() == [False] * 4 + [True]
    check(manifest)


def test_columns_may_have_other_names(folder):
    text = ROWS.replace("path,site,y", "image,hospital,malignant")
    manifest = read(folder, text, image="image", site="hospital", target="malignant", id="image")
    assert manifest.table["site"].tolist() == ["Oslo"] * 2 + ["Bern"] * 3
    assert manifest.table["id"].tolist() == manifest.table["path"].tolist()


def test_renamed_columns_are_named_at_once_with_the_spelling_meant(folder):
    with pytest.raises(ValueError, match="3 problems") as error:
        read(folder, ROWS.replace("site", "Site").replace("age", "age_approx"), confounders=("age",), group="patiant")
    assert "no column 'site' (site); did you mean 'Site'?; its columns are path, Site, y, age_approx" in said(error)
    assert "no column 'age' (confounders)" in said(error)
    assert "no column 'patiant' (group); did you mean 'patient'?" in said(error)


def test_every_problem_of_the_rows_is_listed_at_once(folder):
    text = (
        "path,site,y,id\n"
        "a/0.png,Oslo,0,i0\na/1.png,Oslo,2,i0\n../b.png,Bern,0,i2\n/etc/passwd,Bern,1,i3\n"
        ",Bern,1,i4\nb/4.png,,1,i5\nb/4.png,Bern,,i6\na/9.png,Bern,benign,\n"
    )
    with pytest.raises(ValueError, match="7 problems") as error:
        read(folder, text)
    assert f"manifest {folder / 'table.csv'} (rows count from 0)" in said(error)
    assert "path is empty in 1 row(s): row 4 ('')" in said(error)
    assert "site is empty in 1 row(s): row 5 ('b/4.png')" in said(error)
    assert "id is empty in 1 row(s): row 7 ('a/9.png')" in said(error)
    outside = re.search(r"path leads outside the root .* in 2 row\(s\): row 2 \('../b.png'\), row 3", said(error))
    assert outside, said(error)
    assert "duplicate id in 2 row(s): row 0 ('i0'), row 1 ('i0')" in said(error)
    assert "duplicate path in 2 row(s): row 5 ('b/4.png'), row 6 ('b/4.png')" in said(error)
    assert "y must be one of 0, 1; it is not in 3 row(s): row 1 ('2'), row 6 (nan), row 7 ('benign')" in said(error)


def test_a_long_list_shows_the_first_ten_and_says_how_many(folder):
    rows = "".join(f"{row}.png,Oslo,7\n" for row in range(25))
    with pytest.raises(ValueError, match=r"25 row\(s\)") as error:
        read(folder, "path,site,y\n" + rows)
    assert "row 9 (" in said(error)
    assert "row 10 (" not in said(error)
    assert "and 15 more" in said(error)


@pytest.mark.parametrize("spelling", ["0,1", "0.0,1.0", "False,True", "  0 ,1"])
def test_zero_and_one_may_be_spelled_in_any_way(folder, spelling):
    zero, one = spelling.split(",")
    manifest = read(folder, f"path,site,y\na.png,s,{zero}\nb.png,s,{one}\n")
    assert manifest.table["y"].tolist() == [0, 1]
    assert manifest.table["y"].dtype == np.int64


def test_other_labels_are_read_where_they_are_named(folder):
    text = "path,site,y\na.png,s,MEL\nb.png,s,NV\nc.png,s,BKL\n"
    manifest = read(folder, text, classes=("NV", "MEL", "BKL"))
    assert manifest.table["y"].tolist() == ["MEL", "NV", "BKL"]
    assert manifest.site_table().columns.tolist() == ["samples", "prevalence NV", "prevalence MEL", "prevalence BKL"]
    with pytest.raises(ValueError, match=r"y must be one of NV, MEL; it is not in 1 row\(s\): row 2 \('BKL'\)"):
        read(folder, text, classes=("NV", "MEL"))
    with pytest.raises(ValueError, match="name other labels by classes="):
        read(folder, text)
    with pytest.raises(ValueError, match="at least two different labels"):
        read(folder, text, classes=("NV", "NV"))


def test_a_site_without_labels_is_read_where_no_target_is_asked_for(folder):
    manifest = read(folder, "path,site\na.png,s\n", target=None)
    assert not manifest.labeled
    assert to_site(manifest, np.zeros((1, 1))).y is None
    with pytest.raises(ValueError, match=r"no column 'y' \(target\)"):
        read(folder, "path,site\na.png,s\n")


def test_names_keep_their_text(folder):
    manifest = read(folder, "path,site,y,id,group\nnull,NA,0,007,01\nnone,NA,1,7,1\n")
    assert manifest.table["site"].tolist() == ["NA", "NA"]
    assert manifest.table["id"].tolist() == ["007", "7"]
    assert manifest.table["path"].tolist() == ["null", "none"]
    assert manifest.table["group"].tolist() == ["01", "1"]


def test_absolute_paths_inside_the_root_become_relative(folder):
    text = f"path,site,y\n{folder}/a/0.png,s,0\n./b/../a/1.png,s,1\n"
    assert read(folder, text).table["path"].tolist() == ["a/0.png", "a/1.png"]
    with pytest.raises(ValueError, match="path leads outside the root"):
        read(folder, text, root=folder / "b")


def test_a_link_out_of_the_root_is_refused_and_one_inside_is_not(folder, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "secret.png").write_bytes((folder / "a/0.png").read_bytes())
    (folder / "file.png").symlink_to(elsewhere / "secret.png")
    (folder / "linked").symlink_to(elsewhere)
    (folder / "fine.png").symlink_to(folder / "a/0.png")
    text = "path,site,y\nfine.png,s,0\nfile.png,s,1\nlinked/secret.png,s,1\n"
    with pytest.raises(ValueError, match=r"outside the root .* by a symbolic link in 2 row") as error:
        read(folder, text)
    assert "row 1 ('file.png'), row 2 ('linked/secret.png')" in said(error)
    assert len(read(folder, "path,site,y\nfine.png,s,0\n")) == 1


def test_a_link_that_appears_after_reading_is_noticed_by_check(folder, tmp_path_factory):
    manifest = read(folder)
    other = tmp_path_factory.mktemp("elsewhere") / "0.png"
    (folder / "a/0.png").rename(other)
    (folder / "a/0.png").symlink_to(other)
    with pytest.raises(ValueError, match=r"by a symbolic link in 1 row\(s\): row 0 \('a/0.png'\)"):
        check(manifest)


def test_check_lists_missing_broken_truncated_and_dicom_files_with_row_and_path(folder):
    manifest = read(folder)
    (folder / "a/0.png").unlink()
    data = (folder / "a/1.png").read_bytes()
    (folder / "a/1.png").write_bytes(data[: len(data) // 2])
    (folder / "b/2.png").write_bytes(b"not an image")
    (folder / "b/3.png").write_bytes(bytes(128) + b"DICM")
    with pytest.raises(ValueError, match="2 problems") as error:
        check(manifest)
    assert "there is no file for 1 row(s): row 0 ('a/0.png')" in said(error)
    assert "3 image(s) cannot be read" in said(error)
    assert f"row 1: {folder / 'a/1.png'} is truncated or damaged" in said(error)
    assert f"row 2: {folder / 'b/2.png'} is not a JPEG, PNG or TIFF image" in said(error)
    assert f"row 3: {folder / 'b/3.png'} is a DICOM file" in said(error)
    with pytest.raises(ValueError, match="there is no file") as error:
        check(manifest, images=False)
    assert "cannot be read" not in said(error)


def test_check_shows_ten_unreadable_images_and_counts_the_rest(folder):
    for row in range(13):
        (folder / f"{row}.png").write_bytes(b"x")
    manifest = read(folder, "path,site,y\n" + "".join(f"{row}.png,s,{row % 2}\n" for row in range(13)))
    with pytest.raises(ValueError, match=r"13 image\(s\) cannot be read") as error:
        check(manifest)
    assert said(error).count("is not a JPEG") == 10
    assert "and 3 more" in said(error)


def test_a_site_with_one_class_is_read_refused_by_check_and_a_note_where_allowed(folder, caplog):
    manifest = read(folder, ROWS.replace("Oslo,0", "Oslo,1"))
    assert len(notes(manifest)) == 1
    with pytest.raises(ValueError, match=r"site 'Oslo' has rows of the class 1 only \(2\): correct the table"):
        check(manifest)
    with caplog.at_level(logging.WARNING):
        check(manifest, allow_one_class=True)
    assert "site 'Oslo' has rows of the class 1 only" in caplog.text
    assert not notes(read(folder, ROWS))


@pytest.mark.parametrize("name", ["again.csv", "again.csv.gz", "again.tsv", "again.parquet"])
def test_what_is_written_is_read_again(folder, name):
    manifest = read(folder, confounders=Z, group="patient")
    again = read_manifest(write_manifest(manifest, folder / "made" / name), root=folder, confounders=Z)
    pd.testing.assert_frame_equal(again.table, manifest.table, check_dtype=False)
    assert os.listdir(folder / "made") == [name]


def test_files_that_are_no_table(folder):
    with pytest.raises(FileNotFoundError, match=r"there is no file .*tabel.csv; did you mean 'table.csv'\?"):
        read_manifest(folder / "tabel.csv")
    (folder / "table.xlsx").write_bytes(b"PK")
    with pytest.raises(ValueError, match="save the sheet as CSV first"):
        read_manifest(folder / "table.xlsx")
    (folder / "table.parquet").write_bytes(b"path,site,y\n")
    with pytest.raises(ValueError, match=r"table\.parquet cannot be read as Parquet"):
        read_manifest(folder / "table.parquet")
    (folder / "table.csv").write_bytes(b"path,site,y\na\xff.png,s,1\n")
    with pytest.raises(ValueError, match=r"table\.csv is not UTF-8 text \(first in line 2\)"):
        read_manifest(folder / "table.csv")
    with pytest.raises(ValueError, match=r"has a header \(path, site, y\) and no rows"):
        read(folder, "path,site,y\n")
    with pytest.raises(ValueError, match="is not a folder"):
        read(folder, ROWS, root=folder / "nowhere")


def test_confounders_are_numbers_or_levels_as_in_any_table(folder):
    text = "path,site,y,ward,age\na.png,s,0,1,40\nb.png,s,1,2,NA\nc.png,s,1,2,x\n"
    with pytest.raises(ValueError, match="column 'age': expected a number, got 'x' in row 2"):
        read(folder, text.replace("NA", "50"), confounders=("ward", "age"))
    read_back = read(folder, text.replace("x", " 61 "), confounders=("ward", "age"), categorical=("ward",)).table
    assert read_back["ward"].tolist() == ["1", "2", "2"]
    assert read_back["age"].tolist()[::2] == [40.0, 61.0]
    assert read_back["age"].isna().tolist() == [False, True, False]


def test_a_column_in_two_roles_is_refused_and_a_path_may_be_an_id(folder):
    with pytest.raises(ValueError, match=r"column 'age' has two roles \(confounders, group\)"):
        read(folder, confounders=("age",), group="age")
    assert read(folder, id="path").table["id"].tolist() == read(folder).table["path"].tolist()


def test_integers_with_a_gap_in_parquet_are_no_fractions(folder):
    frame = pd.DataFrame({"path": ["a.png", "b.png"], "site": [1, 2], "y": [0.0, 1.0], "patient": [12, None]})
    frame.to_parquet(folder / "table.parquet")
    manifest = read_manifest(folder / "table.parquet", group="patient")
    assert manifest.table["site"].tolist() == ["1", "2"]
    assert manifest.table["group"].tolist()[0] == "12"
    assert pd.isna(manifest.table["group"].tolist()[1])


def test_a_manifest_made_in_code_is_held_to_the_same():
    table = pd.DataFrame({"path": ["../a.png"], "site": ["s"], "y": [3], "id": ["i"], "age": [1.0]})
    with pytest.raises(ValueError, match="2 problems"):
        Manifest(table, os.curdir)
    with pytest.raises(ValueError, match="no column for the confounder 'agge'; did you mean 'age'"):
        Manifest(table, os.curdir, ("agge",))
    with pytest.raises(ValueError, match="a confounder must not be called 'site'"):
        Manifest(table, os.curdir, ("site",))


def test_site_table_counts_prevalence_groups_and_missing_z(folder):
    table = read(folder, confounders=Z, group="patient").site_table()
    assert table.columns.tolist() == ["samples", "groups", "prevalence", "missing age", "missing sex"]
    assert table.loc["Oslo"].tolist() == [2, 1, 0.5, 0.5, 0]
    np.testing.assert_allclose(table.loc["Bern"].to_numpy(), [3, 3, 1 / 3, 0, 1 / 3])


def test_take_by_mask_and_by_rows(folder):
    manifest = read(folder)
    assert manifest.take([3, 0]).table["path"].tolist() == ["b/3.png", "a/0.png"]
    assert manifest.take(manifest.table["y"] == 1).table["path"].tolist() == ["a/1.png", "b/3.png"]
    assert manifest.take([3, 0]).table.index.tolist() == [0, 1]
    with pytest.raises(ValueError, match=r"one entry for each of 5 row\(s\), got 2"):
        manifest.take([True, False])


@given(n=st.integers(30, 200), n_groups=st.integers(10, 60), seed=st.integers(0, 1000))
def test_a_split_is_a_partition_and_never_separates_a_group(n, n_groups, seed):
    manifest = sites_of_rows(n, n_groups, seed)
    parts = split_manifest(manifest, {"one": 0.5, "two": 0.5}, seed)
    ids = [set(part.table["id"]) for part in parts.values()]
    assert ids[0] | ids[1] == set(manifest.table["id"])
    assert not ids[0] & ids[1]
    assert not set(parts["one"].table["group"]) & set(parts["two"].table["group"])


def test_a_group_at_two_sites_is_not_separated_either():
    table = sites_of_rows(400, 50).table
    table["site"] = np.resize(["Bern", "Oslo"], 400)
    parts = split_manifest(Manifest(table, os.curdir), {"train": 0.7, "test": 0.3})
    assert not set(parts["train"].table["group"]) & set(parts["test"].table["group"])


@given(seed=st.integers(0, 1000))
def test_shares_hold_at_every_site_and_for_both_labels(seed):
    manifest = sites_of_rows(600, seed=seed)
    parts = split_manifest(manifest, {"train": 0.7, "validation": 0.1, "test": 0.2}, seed)
    whole = manifest.table.groupby(["site", "y"]).size()
    for name, share in (("train", 0.7), ("validation", 0.1), ("test", 0.2)):
        counts = parts[name].table.groupby(["site", "y"]).size().reindex(whole.index, fill_value=0)
        assert (counts - share * whole).abs().max() <= 1


def test_a_stratum_of_one_group_goes_to_a_part_by_its_share():
    """With one group only a fixed rule would send it to the same part for every seed."""
    table = pd.DataFrame({"path": ["a", "b"], "site": ["s", "t"], "y": [0, 0], "id": ["a", "b"]})
    sent = []
    for seed in range(300):
        try:
            parts = split_manifest(Manifest(table, os.curdir), {"train": 0.7, "test": 0.3}, seed)
        except ValueError:
            continue  # both in one part
        sent.append("a" in parts["train"].table["id"].tolist())
    assert 0.35 < np.mean(sent) < 0.65


def test_a_split_does_not_depend_on_the_order_of_the_rows_but_on_the_seed():
    manifest = sites_of_rows(200, 60)
    shuffled = manifest.take(np.random.default_rng(5).permutation(200))
    shares = {"train": 0.8, "test": 0.2}
    one, other = (set(split_manifest(m, shares, 3)["test"].table["id"]) for m in (manifest, shuffled))
    assert one == other
    assert one != set(split_manifest(manifest, shares, 4)["test"].table["id"])


def test_rows_without_a_group_are_split_one_by_one():
    table = sites_of_rows(200, 5).table
    table["group"] = None
    parts = split_manifest(Manifest(table, os.curdir), {"train": 0.5, "test": 0.5})
    assert abs(len(parts["train"]) - 100) <= 6


def test_shares_that_cannot_be_met():
    with pytest.raises(ValueError, match="shares must be positive and sum to one"):
        split_manifest(sites_of_rows(10), {"train": 0.7, "test": 0.2})
    with pytest.raises(ValueError, match=r"the part 'b' \(0.5\) got no rows: 1 group\(s\)|the part 'a'"):
        split_manifest(sites_of_rows(10, 1), {"a": 0.5, "b": 0.5})


def test_roles_are_whole_sites(folder):
    manifest = read(folder, ROWS.replace("Oslo,1", "Rome,1"))
    roles = assign_sites(manifest, training=["Bern"], tests=["Oslo"])
    assert roles.training.sites == ("Bern",)
    assert roles.validation is None
    assert {name: part.sites for name, part in roles.tests.items()} == {"Oslo": ("Oslo",)}
    assert roles.unused == ("Rome",)
    assert assign_sites(manifest, training=["Bern"], validation="Rome").validation.sites == ("Rome",)


def test_absent_sites_sites_in_two_roles_and_groups_across_roles_are_one_error(folder):
    text = ROWS.replace("F,p1", "F,p0").replace("Bern,0,55", "Rome,0,55")
    manifest = read(folder, text, group="patient")
    with pytest.raises(ValueError, match="3 problems") as error:
        assign_sites(manifest, training=["Bern", "Osloo"], validation="Oslo", tests=["Rome", "Bern"])
    assert "there is no site 'Osloo' in the table; did you mean 'Oslo'?; the sites are Bern, Oslo, Rome" in said(error)
    assert "the site 'Bern' has more than one role (training, tests)" in said(error)
    assert "1 group(s) are in more than one role: 'p0' (" in said(error)
    with pytest.raises(ValueError, match=r"1 group\(s\) .*'p0' \(tests and training\); leave their rows out"):
        assign_sites(manifest, training=["Bern"], tests=["Oslo"])
    with pytest.raises(ValueError, match="training names no site"):
        assign_sites(manifest, training=[])


def test_two_test_sites_may_share_a_group_and_a_missing_group_is_none(folder):
    text = ROWS.replace("F,p1", "F,p0").replace("Bern,0,55", "Rome,0,55").replace("M,p0", "M,")
    roles = assign_sites(read(folder, text, group="patient"), training=["Rome"], tests=["Oslo", "Bern"])
    assert list(roles.tests) == ["Oslo", "Bern"]


def test_sites_have_the_rows_images_labels_confounders_and_groups(folder):
    manifest = read(folder, confounders=Z, group="patient")
    images = np.arange(5)[:, None] * np.ones((1, 4))
    sites = to_sites(manifest, images)
    assert sites.names == ("Bern", "Oslo")
    assert sites["Bern"].X[:, 0].tolist() == [2, 3, 4]
    assert sites["Bern"].y.tolist() == [0, 1, 0]
    assert sites["Bern"].y.dtype == np.int64
    assert sites["Bern"].Z["age"].tolist() == [61, 70, 55]
    assert sites["Oslo"].groups.tolist() == ["p0", "p0"]
    assert to_site(manifest, images, "Oslo").X[:, 0].tolist() == [0, 1]
    assert to_sites(read(folder), images)["Oslo"].Z is None
    with pytest.raises(ValueError, match="name one of the 2 sites: Bern, Oslo"):
        to_site(manifest, images)
    with pytest.raises(ValueError, match=r"images must be one for each of 5 row\(s\), got 4"):
        to_sites(manifest, images[:4])
    with pytest.raises(ValueError, match="there is no site 'bern' in the table; did you mean 'Bern'"):
        to_site(manifest, images, "bern")
