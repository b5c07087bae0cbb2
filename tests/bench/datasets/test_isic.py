"""The ISIC builder on small files in the true formats: sites, targets, confounders, and what it refuses."""

import gzip

import numpy as np
import pandas as pd
import pytest

from sitewise.bench.datasets.isic import NEEDS, build_isic
from sitewise.bench.datasets.isic_tables import DIAGNOSES, SITES
from sitewise.bench.datasets.paper_sites import ISIC

METADATA = """image,age_approx,anatom_site_general,lesion_id,sex
ISIC_0000000,55.0,anterior torso,,female
ISIC_0000882,15.0,,,male
ISIC_0009868_downsampled,50.0,posterior torso,,female
ISIC_0010000,45.0,lateral torso,MSK4_0011169,male
ISIC_0024306,45.0,lower extremity,HAM_0000550,male
ISIC_0024307,50.0,,HAM_0003577,male
ISIC_0024308,,,HAM_0003577,
ISIC_0053454,80.0,head/neck,BCN_0000023,female
ISIC_0053455,80.0,palms/soles,BCN_0000023,female
ISIC_0053456,30.0,upper extremity,BCN_0000024,male
"""
TRUTH = {
    "ISIC_0000000": "NV",
    "ISIC_0000882": "NV",
    "ISIC_0009868_downsampled": "BKL",
    "ISIC_0010000": "MEL",
    "ISIC_0024306": "NV",
    "ISIC_0024307": "BCC",
    "ISIC_0024308": "MEL",
    "ISIC_0053454": "MEL",
    "ISIC_0053455": "NV",
    "ISIC_0053456": "BKL",
}
COLUMNS_2020 = "image_name,patient_id,lesion_id,sex,age_approx,anatom_site_general_challenge,diagnosis,benign_malignant"
CHALLENGE_2020 = f"""{COLUMNS_2020},target
ISIC_0015719,IP_3075186,IL_6086700,female,45.0,upper extremity,unknown,benign,0
ISIC_0052212,IP_2842074,,female,50.0,torso,nevus,benign,0
ISIC_0068279,IP_6890425,IL_2590424,female,45.0,oral/genital,melanoma,malignant,1
ISIC_0074268,IP_8723313,IL_9710000,female,55.0,head/neck,unknown,benign,0
ISIC_0149918,IP_8723314,IL_9710001,male,60.0,torso,unknown,benign,0
ISIC_0149919,IP_8723314,IL_9710001,male,60.0,,melanoma,malignant,1
"""
HOLDERS = {
    "ISIC_0015719": "The University of Queensland Diamantina Institute, Dermatology Research Centre",
    "ISIC_0052212": "ViDIR group, Department of Dermatology, Medical University of Vienna",
    "ISIC_0068279": "Department of Dermatology, Hospital Clínic de Barcelona",
    "ISIC_0074268": "MSKCC",
    "ISIC_0149918": "Pascale Guitera",
    "ISIC_0149919": "Sydney Melanoma Diagnostic Center / Pascale Guitera",
}
ARCHIVE = (
    "isic_id,attribution,copyright_license,age_approx,anatom_site_general,benign_malignant,diagnosis,sex,lesion_id\n"
)
ARCHIVE_ROWS = """ISIC_0000557,Anonymous,CC-0,10,,,,male,
ISIC_0001155,Anonymous,CC-0,40,,benign,nevus,male,
ISIC_0009876,Anonymous,CC-0,70,posterior torso,malignant,melanoma,male,IL_1
ISIC_0009878,Anonymous,CC-0,70,posterior torso,,,male,
ISIC_0024307,"ViDIR Group, Medical University of Vienna",CC-BY-NC,50,head/neck,malignant,bcc,male,
ISIC_5000000,Memorial Sloan Kettering Cancer Center,CC-BY,65,head/neck,malignant,basal cell carcinoma,female,
"""
HAM = """lesion_id,image_id,dx,dx_type,age,sex,localization,dataset
HAM_0000550,ISIC_0024306,nv,follow_up,45.0,male,foot,vidir_molemax
HAM_0003577,ISIC_0024307,bcc,histo,50.0,male,unknown,rosendahl
HAM_0003577,ISIC_0024308,mel,histo,55.0,unknown,trunk,rosendahl
"""


def truth_table(truth):
    lines = [f"image,{','.join(DIAGNOSES)}"]
    lines += [f"{id},{','.join('1.0' if name == dx else '0.0' for name in DIAGNOSES)}" for id, dx in truth.items()]
    return "\n".join(lines) + "\n"


def write(folder, **files):
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text, encoding="utf-8")


@pytest.fixture
def challenge_2019(tmp_path):
    write(tmp_path, ISIC_2019_Training_Metadata__csv=METADATA, ISIC_2019_Training_GroundTruth__csv=truth_table(TRUTH))
    return tmp_path


@pytest.fixture
def everything(challenge_2019):
    holders = "".join(f'{id},"{holder}",CC-BY-NC,,,,,,\n' for id, holder in HOLDERS.items())
    write(
        challenge_2019,
        ISIC_2020_Training_GroundTruth_v2__csv=CHALLENGE_2020,
        metadata__csv=ARCHIVE + holders + ARCHIVE_ROWS,
        HAM10000_metadata__csv=HAM,
    )
    return challenge_2019


def by_id(manifest):
    return manifest.table.set_index("id")


def test_the_rule_finds_every_site_but_the_authors_own_choice(everything):
    rows = by_id(build_isic(everything))
    assert rows["site"].to_dict() == {
        "ISIC_0000557": "MA",
        "ISIC_0000882": "MA",
        "ISIC_0009868": "NY3",
        "ISIC_0009876": "NY3",
        "ISIC_0010000": "NY3",
        "ISIC_0015719": "QLD",  # inside New York's range of ids, and a row of challenge 2020
        "ISIC_0024306": "WIE1",
        "ISIC_0024308": "WIE1",
        "ISIC_0052212": "WIE2",
        "ISIC_0053454": "BCN1",
        "ISIC_0053455": "BCN1",
        "ISIC_0068279": "BCN2",
        "ISIC_0074268": "NY1",
        "ISIC_0149918": "SYD",
        "ISIC_0149919": "SYD",
    }


def test_the_target_is_what_the_papers_counts_imply(everything):
    rows = by_id(build_isic(everything))
    assert rows["y"].to_dict() == {
        "ISIC_0000557": 0,  # of Massachusetts, and no table labels it
        "ISIC_0000882": 0,
        "ISIC_0009868": 0,  # a benign keratosis counts in NY3
        "ISIC_0009876": 1,  # the archive's word, where no challenge has the row
        "ISIC_0010000": 1,
        "ISIC_0015719": 0,
        "ISIC_0024306": 0,
        "ISIC_0024308": 1,
        "ISIC_0052212": 0,
        "ISIC_0053454": 1,
        "ISIC_0053455": 0,
        "ISIC_0068279": 1,
        "ISIC_0074268": 0,
        "ISIC_0149918": 0,
        "ISIC_0149919": 1,
    }
    assert rows["y"].dtype == np.int64
    assert not {"ISIC_0024307", "ISIC_0053456", "ISIC_0009878"} & set(
        rows.index
    )  # malignant in the archive, a carcinoma


def test_every_kind_of_torso_is_one_level_and_ham_fills_what_2019_leaves_out(everything):
    rows = by_id(build_isic(everything))
    assert (rows.loc[["ISIC_0009868", "ISIC_0010000", "ISIC_0052212"], "anatomical_site"] == "torso").all()
    assert rows.loc["ISIC_0024308", ["anatomical_site", "age"]].tolist() == ["torso", 55.0]  # trunk
    assert rows.loc["ISIC_0024306", "anatomical_site"] == "lower extremity"
    assert pd.isna(rows.loc["ISIC_0024308", "sex"])  # unknown
    assert pd.isna(rows.loc["ISIC_0149919", "anatomical_site"])
    assert rows.loc["ISIC_0024308", "center"] == "rosendahl"
    assert rows["age"].dtype == np.float64
    manifest = build_isic(everything)
    assert manifest.confounders == ("age", "anatomical_site", "sex")


def test_a_group_is_a_lesion_else_a_patient_else_the_image(everything):
    rows = by_id(build_isic(everything))
    assert rows.loc["ISIC_0053454", "group"] == rows.loc["ISIC_0053455", "group"] == "BCN_0000023"
    assert rows.loc["ISIC_0052212", "group"] == "IP_2842074"
    assert rows.loc["ISIC_0000882", "group"] == "ISIC_0000882"
    assert rows.loc["ISIC_0149918", "group"] == "IL_9710001"
    assert by_id(build_isic(everything, group="patient")).loc["ISIC_0149918", "group"] == "IP_8723314"


def test_images_are_found_by_their_id_wherever_they_lie(everything):
    inputs, train = everything / "ISIC_2019_Training_Input", everything / "2020" / "train"
    inputs.mkdir()
    train.mkdir(parents=True)
    for file in (inputs / "ISIC_0009868_downsampled.jpg", train / "ISIC_0015719.JPG", everything / "ISIC_0068279.dcm"):
        file.write_bytes(b"")
    rows = by_id(build_isic(everything))
    assert rows.loc["ISIC_0009868", "path"] == "ISIC_2019_Training_Input/ISIC_0009868_downsampled.jpg"
    assert rows.loc["ISIC_0015719", "path"] == "2020/train/ISIC_0015719.JPG"
    assert rows.loc["ISIC_0010000", "path"] == "ISIC_2019_Training_Input/ISIC_0010000.jpg"  # where it would be
    assert rows.loc["ISIC_0074268", "path"] == "train/ISIC_0074268.jpg"
    (everything / "ISIC_0068279.png").write_bytes(b"")
    assert by_id(build_isic(everything)).loc["ISIC_0068279", "path"] == "ISIC_0068279.png"  # readable before DICOM


@pytest.mark.parametrize("name", ["sites.csv", "metadata_site.csv"])
def test_a_list_of_sites_decides_alone(everything, name):
    listed = (
        "isic_id,site\nISIC_5000000,New York2\nISIC_0053454,Vienna1\nISIC_0000600,Massachusetts\nISIC_0009868,NY3\n"
    )
    write(everything, **{name: listed})
    rows = by_id(build_isic(everything))
    assert rows["site"].to_dict() == {
        "ISIC_5000000": "NY2",
        "ISIC_0053454": "WIE1",
        "ISIC_0000600": "MA",
        "ISIC_0009868": "NY3",
    }
    assert rows["y"].to_dict() == {"ISIC_5000000": 1, "ISIC_0053454": 1, "ISIC_0000600": 0, "ISIC_0009868": 0}
    assert rows.loc["ISIC_0000600", ["age", "anatomical_site", "sex"]].isna().all()  # in no table but the list


def test_the_archive_alone_counts_melanoma_and_nevus_at_two_sites(tmp_path):
    """Later exports call benign_malignant diagnosis_1, and a carcinoma is malignant there."""
    write(
        tmp_path,
        metadata__csv="isic_id,attribution,diagnosis_1,diagnosis_2,diagnosis_3\n"
        "ISIC_0024306,x,Benign,Benign melanocytic proliferations,Nevus\n"
        "ISIC_0024307,x,Malignant,Malignant epidermal proliferations,Basal cell carcinoma\n"
        "ISIC_0024308,x,Malignant,Malignant melanocytic proliferations (Melanoma),Melanoma Invasive\n"
        "ISIC_0009868,x,Malignant,Malignant epidermal proliferations,Basal cell carcinoma\n"
        "ISIC_0009869,x,Indeterminate,,\n",
    )
    rows = by_id(build_isic(tmp_path))
    assert rows["y"].to_dict() == {"ISIC_0024306": 0, "ISIC_0024308": 1, "ISIC_0009868": 1}


def test_part_of_the_tables_makes_part_of_the_sites(challenge_2019):
    assert build_isic(challenge_2019).sites == ("BCN1", "MA", "NY3", "WIE1")
    assert build_isic(challenge_2019, sites=["BCN1"]).sites == ("BCN1",)
    with pytest.raises(ValueError, match="2 problems") as error:
        build_isic(challenge_2019, sites=["BCN1", "NY2", "SYD"])
    assert NEEDS["NY2"] in str(error.value)
    assert NEEDS["SYD"] in str(error.value)


def test_packed_and_first_version_tables_are_read_too(tmp_path):
    first = "\n".join(",".join(np.delete(line.split(","), 2)) for line in CHALLENGE_2020.splitlines())
    with gzip.open(tmp_path / "train.csv.gz", "wt", encoding="utf-8") as file:
        file.write(first)
    write(tmp_path, sites__csv="isic_id,site\n" + "".join(f"{id},SYD\n" for id in HOLDERS))
    rows = by_id(build_isic(tmp_path))
    assert len(rows) == 6
    assert rows.loc["ISIC_0149918", "group"] == "IP_8723314"  # no lesions in that version


def test_another_collections_train_csv_is_not_taken_for_challenge_2020(challenge_2019):
    write(challenge_2019, train__csv="Path,Sex,Age\nCheXpert-v1.0/train/patient1/study1/view1_frontal.jpg,Male,40\n")
    assert "SYD" not in build_isic(challenge_2019).sites


def test_nothing_to_read_says_what_is_needed_and_where_it_is(tmp_path):
    with pytest.raises(ValueError, match=r"no table found(.|\n)*challenge\.isic-archive\.com(.|\n)*metadata download"):
        build_isic(tmp_path)
    (tmp_path / "data").mkdir()
    with pytest.raises(FileNotFoundError, match=r"did you mean .*data"):
        build_isic(tmp_path / "daat")


def test_half_of_challenge_2019_is_refused(challenge_2019):
    (challenge_2019 / "ISIC_2019_Training_GroundTruth.csv").unlink()
    with pytest.raises(ValueError, match=r"GroundTruth\.csv is missing: .* needs both"):
        build_isic(challenge_2019)


def test_a_table_that_ends_after_its_header_is_refused(challenge_2019):
    write(challenge_2019, ISIC_2020_Training_GroundTruth__csv=CHALLENGE_2020.splitlines()[0] + "\n")
    with pytest.raises(ValueError, match=r"GroundTruth\.csv has a header .* and no rows"):
        build_isic(challenge_2019)
    (challenge_2019 / "ISIC_2020_Training_GroundTruth.csv").write_bytes(b"")
    with pytest.raises(ValueError, match=r"GroundTruth\.csv is empty"):
        build_isic(challenge_2019)


def test_challenge_2020_without_a_source_of_sites_is_refused(tmp_path):
    write(tmp_path, ISIC_2020_Training_GroundTruth__csv=CHALLENGE_2020)
    with pytest.raises(ValueError, match=r"6 rows whose site is not known(.|\n)*sites\.csv"):
        build_isic(tmp_path)


def test_every_mistake_in_the_tables_is_named_at_once(challenge_2019):
    truth = truth_table(TRUTH | {"ISIC_0000001": "NV"}).replace("ISIC_0010000,1.0,0.0", "ISIC_0010000,1.0,1.0")
    metadata = (
        METADATA.replace("age_approx", "age_aprox").replace("lateral torso", "lateral tors") + "ISIC_0010000,,,,\n"
    )
    write(challenge_2019, ISIC_2019_Training_Metadata__csv=metadata, ISIC_2019_Training_GroundTruth__csv=truth)
    write(challenge_2019, sites__csv="isic_id,site\nISIC_0010000,New York 3\n")
    with pytest.raises(ValueError, match="6 problems") as error:
        build_isic(challenge_2019)
    for said in (
        "no column 'age_approx'; did you mean 'age_aprox'?",
        "got 'lateral tors' in row ISIC_0010000; did you mean 'lateral torso'?",
        "1 row(s) without exactly one diagnosis, first row 3",
        "1 duplicate id(s), such as ISIC_0010000",
        "1 are in one only, as ISIC_0000001",
        "'New York 3' is not a site of the paper",
    ):
        assert said in str(error.value)


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("target", "2", "'target': expected 0 or 1"),
        ("age_approx", "old", "expected an age like 57 or 057Y, got 'old' in row ISIC_0015719"),
        ("sex", "fem", "got 'fem'"),
    ],
)
def test_a_strange_value_is_named_with_its_row(tmp_path, column, value, said):
    table = pd.DataFrame([line.split(",") for line in CHALLENGE_2020.splitlines()[1:]])
    table.columns = CHALLENGE_2020.splitlines()[0].split(",")
    table.loc[0, column] = value
    table.to_csv(tmp_path / "ISIC_2020_Training_GroundTruth.csv", index=False)
    with pytest.raises(ValueError, match=said):
        build_isic(tmp_path)


def test_unknown_choices_are_refused(challenge_2019):
    with pytest.raises(ValueError, match=r"2 problems(.|\n)*lesion or patient(.|\n)*did you mean 'BCN1'"):
        build_isic(challenge_2019, sites=["BCN11"], group="image")
    assert tuple(ISIC) == SITES
