"""The small sets on packs made here: what is read, the roles, and that no group is in two of them."""

import io
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from sitewise.bench.datasets import small_images as si
from sitewise.sites import Sites


def write_pack(folder, name, table, mode="RGB", side=64):
    """A pack of flat images: row i has the value 2 i (JPEG keeps a flat image to a gray level or two)."""
    files = []
    for row in range(len(table)):
        file = io.BytesIO()
        Image.new(mode, (side, side), (2 * row,) * 3 if mode == "RGB" else 2 * row).save(file, "JPEG", quality=95)
        files.append(np.frombuffer(file.getvalue(), dtype=np.uint8))
    offsets = np.concatenate([[0], np.cumsum([len(file) for file in files])])
    np.savez(folder / f"{name}.npz", jpeg=np.concatenate(files), offsets=offsets)
    pd.DataFrame(table).to_csv(folder / f"{name}_meta.csv.gz", index=False)
    return folder


def isic_rows():
    environments = [*si.ISIC64_TRAINING, si.ISIC64_VALIDATION, *si.ISIC64_TESTS, "MA"]
    rows = []
    for environment in environments:
        for copy in range(4):
            rows.append(
                {
                    "isic_id": f"ISIC_{len(rows):07d}",
                    "env": environment,
                    "y": float(copy == 0),
                    "dx": ("MEL", "NV", "BKL", "NV")[copy],
                    "age_approx": None if copy == 3 else 40.0 + copy,
                    "sex": "male",
                    "anatom_site_general": ("anterior torso", "torso", "head/neck", None)[copy],
                    "lesion_id": f"{environment} {copy // 2}" if copy < 2 else None,
                    "patient_id": f"{environment} p" if copy == 2 else None,
                }
            )
    return rows


@pytest.fixture
def isic64(tmp_path):
    return write_pack(tmp_path, "isic64", isic_rows())


def test_images_belong_to_their_rows(isic64):
    data = si.load_isic64(isic64)
    site = data.site("BCN2")
    assert site.X.shape == (4, 3, 64, 64)
    assert site.X.dtype == np.uint8
    rows = data.table.loc[data.table["site"] == "BCN2", "row"].to_numpy()
    np.testing.assert_allclose(site.X[:, 0, 32, 32], 2 * rows, atol=2)
    np.testing.assert_array_equal(site.y, [1, 0, 0, 0])
    assert site.Z["anatomical_site"].tolist()[:3] == ["torso", "torso", "head/neck"]
    assert site.Z.isna().sum().to_dict() == {"age": 1, "anatomical_site": 1, "sex": 0}
    assert site.groups.tolist() == ["BCN2 0", "BCN2 0", "BCN2 p", data.table["id"].iloc[rows[3]]]
    site.X[:] = 0  # a caller's own copy
    assert data.site("BCN2").X.any()


def test_only_what_is_asked_for_is_decoded_and_once(isic64, monkeypatch):
    decoded, decode = [], si.decode_image

    def count(data, name, *options):
        decoded.append(name)
        return decode(data, name, *options)

    monkeypatch.setattr(si, "decode_image", count)
    data = si.load_isic64(isic64)
    assert decoded == []
    data.site("MA")
    assert len(decoded) == 4
    si.load_isic64(isic64).site("MA")
    assert len(decoded) == 4


def test_isic64_roles_are_the_experiments(isic64):
    roles = si.isic64_roles(si.load_isic64(isic64))
    assert roles.training.names == ("HAM_rosendahl", "HAM_vidir_modern", "HAM_vidir_molemax")
    assert roles.validation.name == "HAM_vienna_dias"
    assert roles.tests.names == ("NY3", "BCN2")
    assert len(roles.tests["NY3"]) == 3  # without the benign keratosis
    assert len(roles.tests["BCN2"]) == 4


def test_a_lesion_in_two_roles_is_refused(tmp_path):
    rows = isic_rows()
    rows[0]["lesion_id"] = rows[13]["lesion_id"]  # a training site's and the validation site's
    data = si.load_isic64(write_pack(tmp_path, "isic64", rows))
    with pytest.raises(ValueError, match="1 group\\(s\\) are in two roles, such as HAM_vienna_dias 0"):
        si.isic64_roles(data)


@pytest.fixture
def centres(tmp_path):
    """Every site with five melanomas of their own and ten other lesions."""
    rows = [
        row | {"isic_id": f"{row['isic_id']}_{copy}", "lesion_id": f"{row['isic_id']} {copy}"}
        for row in isic_rows()
        if row["dx"] != "BKL"
        for copy in range(5)
    ]
    return si.load_isic64(write_pack(tmp_path, "isic64", rows))


@pytest.mark.parametrize("left_out", [None, "HAM_vidir_modern"])
def test_a_centre_left_out_is_tested_at_and_lesions_of_the_others_validate(centres, left_out):
    roles = si.isic64_centre_roles(centres, left_out, seed=1)
    trained = [name for name in si.ISIC64_CENTRES if name != left_out]
    assert [site.name for site in roles.training] == trained
    assert [site.name for site in roles.tests] == ["NY3", "BCN2", *([left_out] if left_out else [])]
    assert [(len(site), site.y.sum()) for site in roles.training] == [(12, 4)] * len(trained)
    assert (len(roles.validation), roles.validation.y.sum()) == (3 * len(trained), len(trained))
    assert [len(site) for site in roles.tests] == [15] * len(roles.tests)
    again = si.isic64_centre_roles(centres, left_out, seed=1).validation.groups
    assert list(again) == list(roles.validation.groups)
    assert set(again) != set(si.isic64_centre_roles(centres, left_out, seed=2).validation.groups)


def test_a_lesion_of_the_centre_left_out_is_not_trained_on_elsewhere(centres):
    table = centres.table
    ours, theirs = ((table["site"] == name).idxmax() for name in ("HAM_vidir_modern", "HAM_rosendahl"))
    shared = replace(
        centres, table=table.assign(group=table["group"].mask(table.index == theirs, table["group"][ours]))
    )
    roles = si.isic64_centre_roles(shared, "HAM_vidir_modern")
    assert [len(site) for site in roles.tests] == [15] * 3
    assert sum(len(site) for site in (*roles.training, roles.validation)) == 3 * 15 - 1
    assert len(si.isic64_centre_roles(shared, "HAM_vienna_dias").tests["HAM_vienna_dias"]) == 15


def test_a_centre_that_is_none_is_refused(centres):
    with pytest.raises(ValueError, match="left_out must be one of HAM_rosendahl"):
        si.isic64_centre_roles(centres, "NY3")


def cxr_rows(n_patients=32):
    rows = []
    for patient in range(n_patients):
        for copy in range(1 + patient % 3):
            sick = patient % 4 == 0 and copy == 0
            other = patient % 4 == 1 and copy == 0
            rows.append(
                {"site": "NIH", "y": float(sick), "no_finding": int(not sick and not other), "patient": f"n{patient}"}
            )
    rows += [{"site": "NIH_sel", "y": float(k % 2), "no_finding": 1 - k % 2, "patient": f"s{k}"} for k in range(6)]
    rows += [{"site": "GUANGZHOU", "y": float(k % 2), "no_finding": 1 - k % 2, "patient": f"g{k}"} for k in range(6)]
    for row, values in enumerate(rows):
        abroad = values["site"] == "GUANGZHOU"
        values |= {"image": f"{row}.png", "age": None if abroad else 50, "sex": None if abroad else "M"}
        values["projection"] = "AP"
    return rows


@pytest.fixture
def cxr64(tmp_path):
    return write_pack(tmp_path, "cxr64", cxr_rows(), "L")


def test_negatives_are_alike_at_every_site(cxr64):
    rows = pd.DataFrame(cxr_rows())
    data = si.load_cxr64(cxr64)
    kept = rows[(rows["y"] == 1) | (rows["no_finding"] == 1)]
    assert len(data.table) == len(kept) < len(rows)
    np.testing.assert_array_equal(data.table["row"], kept.index)
    site = data.site("GUANGZHOU")
    assert site.X.shape == (6, 1, 64, 64)
    np.testing.assert_allclose(site.X[:, 0, 5, 5], 2 * kept.index[kept["site"] == "GUANGZHOU"], atol=2)
    assert site.Z["age"].isna().all()
    assert site.Z["sex"].isna().all()


@pytest.mark.parametrize("seed", range(5))
def test_patients_are_held_out_whole_and_by_their_label(cxr64, seed):
    data = si.load_cxr64(cxr64)
    roles = si.cxr64_roles(data, seed)
    assert roles.training.names == ("NIH", "NIH_sel")
    assert roles.tests.names == ("NIH test", "GUANGZHOU")
    parts = [roles.training["NIH"], roles.validation, roles.tests["NIH test"]]
    groups = [set(part.groups) for part in parts]
    assert sum(map(len, groups)) == len(set.union(*groups)) == data.table.query("site == 'NIH'")["group"].nunique()
    assert sum(map(len, parts)) == (data.table["site"] == "NIH").sum()
    n_sick = [len(set(part.groups[part.y == 1])) for part in parts]
    assert n_sick == [4, 2, 2]  # 8 patients; the shares are 0.5, 0.25, 0.25
    assert len(roles.training["NIH_sel"]) == 6


def test_seeds_repeat_and_differ(cxr64):
    data = si.load_cxr64(cxr64)
    first, again, other = (set(si.cxr64_roles(data, seed).validation.groups) for seed in (0, 0, 1))
    assert first == again != other


def test_a_patient_held_out_at_nih_is_not_trained_on_in_the_selection(tmp_path):
    rows = cxr_rows()
    for row in rows:
        if row["site"] == "NIH_sel":
            row["patient"] = f"n{row['patient'][1:]}"
    data = si.load_cxr64(write_pack(tmp_path, "cxr64", rows, "L"))
    left_out = 0
    for seed in range(5):
        roles = si.cxr64_roles(data, seed)
        held = {*roles.validation.groups, *roles.tests["NIH test"].groups}
        assert not held & set(roles.training["NIH_sel"].groups)
        left_out += 6 - len(roles.training["NIH_sel"])
    assert left_out > 0


def test_impossible_shares_are_refused(cxr64):
    for shares in ((0.0, 0.5), (0.5, 0.5)):
        with pytest.raises(ValueError, match="leave something to train on"):
            si.cxr64_roles(si.load_cxr64(cxr64), held_out=shares)


def test_the_folder_may_be_the_one_above(tmp_path):
    (tmp_path / "isic64").mkdir()
    write_pack(tmp_path / "isic64", "isic64", isic_rows())
    assert isinstance(si.isic64_roles(si.load_isic64(tmp_path)).training, Sites)


def test_what_is_missing_or_does_not_fit_is_named(tmp_path, isic64):
    with pytest.raises(FileNotFoundError, match=r"no cxr64 in .*cxr64\.npz and cxr64_meta\.csv\.gz"):
        si.load_cxr64(tmp_path)
    table = pd.read_csv(isic64 / "isic64_meta.csv.gz")
    table.iloc[:-1].assign(y=2).to_csv(isic64 / "isic64_meta.csv.gz", index=False)
    with pytest.raises(ValueError, match=r"2 problems(.|\n)*expected 0 or 1(.|\n)*27 row\(s\) and the pack 28 image"):
        si.load_isic64(isic64)
    table.rename(columns={"env": "environment"}).to_csv(isic64 / "isic64_meta.csv.gz", index=False)
    with pytest.raises(ValueError, match="no column 'env'"):
        si.load_isic64(isic64)
    (isic64 / "isic64.npz").unlink()
    with pytest.raises(FileNotFoundError, match=r"there is no .*isic64\.npz"):
        si.load_isic64(isic64)


def test_an_unknown_site_is_named_with_those_there_are(isic64):
    with pytest.raises(KeyError, match="no site 'NY4'; the sites are BCN2"):
        si.load_isic64(isic64).site("NY4")


def test_images_of_another_size_are_refused(tmp_path):
    data = si.load_isic64(write_pack(tmp_path, "isic64", isic_rows(), side=32))
    with pytest.raises(ValueError, match="image 24 of isic64 has 32 x 32 pixels, expected 64 x 64"):
        data.site("MA")
