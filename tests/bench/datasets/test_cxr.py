"""The chest X-ray builders on small files in the true formats: the rules, the traps, and what they refuse."""

import numpy as np
import pandas as pd
import pytest

from sitewise.bench.datasets import cxr

NIH_HEADER = (
    "Image Index,Finding Labels,Follow-up #,Patient ID,Patient Age,Patient Gender,View Position,"
    "OriginalImage[Width,Height],OriginalImagePixelSpacing[x,y]"
)
NIH_ROWS = """
00000001_000.png,Cardiomegaly,0,1,057Y,M,PA,2682,2749,0.143,0.143
00000002_000.png,No Finding,0,2,080Y,M,PA,2500,2048,0.171,0.171
00000002_001.png,No Finding,1,2,081Y,M,AP,2500,2048,0.171,0.171
00000003_000.png,Pneumonia,0,3,011M,F,AP,2500,2048,0.171,0.171
00000003_001.png,Infiltration|Pneumonia,1,3,001Y,F,AP,2500,2048,0.171,0.171
00000003_002.png,Pneumonia,2,3,002Y,F,AP,2500,2048,0.171,0.171
00000003_003.png,No Finding,3,3,003Y,F,PA,2500,2048,0.171,0.171
00000004_000.png,No Finding,0,4,414Y,F,PA,2500,2048,0.171,0.171
"""


def nih(folder, header=NIH_HEADER, rows=NIH_ROWS, name="Data_Entry_2017.csv"):
    (folder / name).write_text(header + rows, encoding="utf-8")
    return folder


def by_id(manifest):
    return manifest.table.set_index("id")


# NIH


def test_nih_keeps_pneumonia_and_no_finding_once_for_each_patient_and_findings(tmp_path):
    rows = by_id(cxr.build_nih(nih(tmp_path)))
    assert rows["y"].to_dict() == {
        "00000002_000.png": 0,  # 00000002_001 says the same of the same patient
        "00000003_000.png": 1,
        "00000003_001.png": 1,
        "00000003_003.png": 0,
        "00000004_000.png": 0,
    }
    assert (rows["site"] == "CXR8").all()
    assert rows.loc["00000003_000.png", "group"] == rows.loc["00000003_003.png", "group"] == "CXR8 3"


def test_nih_reads_eleven_fields_and_ages_with_a_unit(tmp_path):
    rows = by_id(cxr.build_nih(nih(tmp_path)))
    assert rows.loc["00000002_000.png", ["age", "projection", "sex"]].tolist() == [80.0, "PA", "male"]
    assert rows.loc["00000003_000.png", "age"] == pytest.approx(11 / 12)
    assert np.isnan(rows.loc["00000004_000.png", "age"])  # nobody is 414


@pytest.mark.parametrize(
    "header",
    [
        NIH_HEADER + ",",  # the first release ends its header with a comma
        NIH_HEADER.replace("OriginalImage[Width,Height]", '"OriginalImage[Width,Height]"'),  # corrected by hand
        "\ufeff" + NIH_HEADER,
    ],
)
def test_nih_headers_of_every_release_are_read_alike(tmp_path, header):
    expected = cxr.build_nih(nih(tmp_path)).table
    (tmp_path / "Data_Entry_2017.csv").unlink()
    pd.testing.assert_frame_equal(cxr.build_nih(nih(tmp_path, header)).table, expected)


def test_nih_prefers_the_later_release_and_finds_images_in_the_folders_of_the_archives(tmp_path):
    nih(tmp_path)
    nih(tmp_path, rows=NIH_ROWS.replace("057Y", "57").replace("080Y", "79"), name="Data_Entry_2017_v2020.csv")
    images = tmp_path / "images_001" / "images"
    images.mkdir(parents=True)
    (images / "00000002_000.png").write_bytes(b"")
    rows = by_id(cxr.build_nih(tmp_path))
    assert rows.loc["00000002_000.png", "age"] == 79
    assert rows.loc["00000002_000.png", "path"] == "images_001/images/00000002_000.png"
    assert rows.loc["00000003_000.png", "path"] == "images/00000003_000.png"


def test_nih_refuses_renamed_columns_and_strange_values(tmp_path):
    with pytest.raises(ValueError, match=r"expected the column 'Patient Age' in its place, got 'Age'"):
        cxr.build_nih(nih(tmp_path, NIH_HEADER.replace("Patient Age", "Age")))
    with pytest.raises(ValueError, match="at least 7 columns, got 2"):
        cxr.build_nih(nih(tmp_path, "Image Index,Finding Labels"))
    rows = NIH_ROWS.replace("057Y", "old").replace(",M,PA,2682", ",X,PAA,2682")
    with pytest.raises(ValueError, match=r"3 problems(.|\n)*'old' in row 0(.|\n)*'PAA'(.|\n)*'X'"):
        cxr.build_nih(nih(tmp_path, rows=rows))


# CheXpert

CHEXPERT_LABELS = (
    "No Finding,Enlarged Cardiomediastinum,Cardiomegaly,Lung Opacity,Lung Lesion,Edema,Consolidation,Pneumonia,"
    "Atelectasis,Pneumothorax,Pleural Effusion,Pleural Other,Fracture,Support Devices"
)


def chexpert(folder, *rows, columns="Path,Sex,Age,Frontal/Lateral,AP/PA"):
    lines = [f"{columns},{CHEXPERT_LABELS}"]
    lines += [f"CheXpert-v1.0-small/train/{start},,,,,,,,{label},,,,,," for start, label in rows]
    folder.mkdir(exist_ok=True)
    (folder / "train.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def test_chexpert_leaves_out_what_is_uncertain_or_not_mentioned(tmp_path):
    release = tmp_path / "CheXpert-v1.0-small"
    chexpert(
        release,
        ("patient00001/study1/view1_frontal.jpg,Female,68,Frontal,AP", "1.0"),
        ("patient00001/study1/view2_lateral.jpg,Female,68,Lateral,", "0.0"),
        ("patient00002/study2/view1_frontal.jpg,Male,87,Frontal,PA", "-1.0"),
        ("patient00003/study1/view1_frontal.jpg,Male,87,Frontal,PA", ""),
        ("patient00004/study1/view1_frontal.jpg,Unknown,0,Frontal,", "1.0"),
        ("patient00005/study1/view1_frontal.jpg,Male,40,Frontal,LL", "0.0"),
    )
    table = cxr.build_chexpert(tmp_path).table
    assert table["y"].tolist() == [1, 0, 1, 0]
    assert table["group"].tolist()[:3] == ["CheXpert patient00001", "CheXpert patient00001", "CheXpert patient00004"]
    assert table["projection"].fillna("none").tolist() == ["AP", "LL", "none", "LL"]
    assert table["sex"].fillna("none").tolist() == ["female", "female", "none", "male"]
    assert table["age"].fillna(-1).tolist() == [68, 68, -1, 40]
    assert table["path"][0] == "CheXpert-v1.0-small/train/patient00001/study1/view1_frontal.jpg"
    assert cxr.build_chexpert(release).table["path"][0] == "train/patient00001/study1/view1_frontal.jpg"


def test_chexpert_refuses_other_labels_and_paths(tmp_path):
    chexpert(tmp_path / "a", ("x/study1/view1_frontal.jpg,Female,68,Frontal,AP", "2.0"))
    with pytest.raises(ValueError, match=r"2 problems(.|\n)*1, 0, -1 or empty, got 2(.|\n)*patient00001"):
        cxr.build_chexpert(tmp_path / "a")
    chexpert(tmp_path / "b", ("patient1/x,Female,68,Frontal,AP", "1"), columns="Path,Gender,Age,Frontal/Lateral,AP/PA")
    with pytest.raises(ValueError, match="no column 'Sex'"):
        cxr.build_chexpert(tmp_path / "b")


# PadChest

PADCHEST = "PADCHEST_chest_x_ray_images_labels_160K_01.02.19.csv"
PADCHEST_COLUMNS = [
    *("", "ImageID", "ImageDir", "StudyDate_DICOM", "StudyID", "PatientID", "PatientBirth", "PatientSex_DICOM"),
    *("ViewPosition_DICOM", "Projection", "MethodProjection", "Pediatric", "Modality_DICOM", "Manufacturer_DICOM"),
    *("PhotometricInterpretation_DICOM", "PixelRepresentation_DICOM", "PixelAspectRatio_DICOM"),
    *("SpatialResolution_DICOM", "BitsStored_DICOM", "WindowCenter_DICOM", "WindowWidth_DICOM", "Rows_DICOM"),
    *("Columns_DICOM", "XRayTubeCurrent_DICOM", "Exposure_DICOM", "ExposureInuAs_DICOM", "ExposureTime"),
    *("RelativeXRayExposure_DICOM", "ReportID", "Report", "MethodLabel", "Labels", "Localizations"),
    *("LabelsLocalizationsBySentence", "labelCUIS", "LocalizationsCUIS"),
]


def padchest(folder, *rows):
    """Rows of (id, patient, birth, sex, DICOM view, pediatric, labels) in the 36 columns."""
    table = pd.DataFrame(index=range(len(rows)), columns=PADCHEST_COLUMNS, dtype=object)
    names = ["ImageID", "PatientID", "PatientBirth", "PatientSex_DICOM", "ViewPosition_DICOM", "Pediatric", "Labels"]
    table[names] = [list(row) for row in rows]
    table["StudyDate_DICOM"], table["ImageDir"] = "20140915", "0"
    table["Report"] = "dos lineas,\ny una coma"
    table.to_csv(folder / PADCHEST, index=False)
    return folder


def test_padchest_keeps_dicom_views_of_adults_with_pneumonia_or_nothing(tmp_path):
    assert len(PADCHEST_COLUMNS) == 36
    padchest(
        tmp_path,
        ("a.png", "1", "1930.0", "F", "PA", "No", "['normal']"),
        ("b.png", "1", "1930.0", "F", "LL", "No", "['pneumonia', 'kyphosis']"),
        ("c.png", "2", "1950.0", "M", "AP", "No", "['interstitial pattern', 'atypical pneumonia']"),
        ("d.png", "3", "1950.0", "M", "PA", "No", "['kyphosis']"),
        ("e.png", "4", "2010.0", "M", "PA", "PED", "['pneumonia']"),
        ("f.png", "5", "1950.0", "M", "POSTEROANTERIOR", "No", "['pneumonia']"),
        ("g.png", "6", "", "O", "PA", "No", "[' normal ']"),
        ("h.png", "7", "1950.0", "M", "PA", "No", ""),
    )
    rows = by_id(cxr.build_padchest(tmp_path))
    assert rows["y"].to_dict() == {"a.png": 0, "b.png": 1, "c.png": 1, "g.png": 0}
    assert rows["projection"].tolist() == ["PA", "LL", "AP", "PA"]
    assert rows["age"].fillna(-1).tolist() == [84, 84, 64, -1]
    assert rows["sex"].fillna("none").tolist() == ["female", "female", "male", "none"]
    assert rows.loc["a.png", "group"] == rows.loc["b.png", "group"] == "PadChest 1"
    assert rows.loc["a.png", "path"] == "0/a.png"
    (tmp_path / "a.jpg").write_bytes(b"")  # shrunk and kept as another format
    assert by_id(cxr.build_padchest(tmp_path)).loc["a.png", "path"] == "a.jpg"


def test_padchest_names_a_cell_that_is_no_list(tmp_path):
    padchest(tmp_path, ("a.png", "1", "1930.0", "F", "PA", "No", "['normal'"))
    with pytest.raises(ValueError, match=r"expected a list of names, got .* in row 0"):
        cxr.build_padchest(tmp_path)


# VinDr-CXR

VINDR_TRAIN = """image_id,rad_id,Aortic enlargement,Pneumonia,Tuberculosis,Other disease,No finding
a,R1,0,1,0,0,0
a,R2,0,1,0,0,0
a,R3,1,0,0,0,0
b,R1,0,0,0,0,1
b,R2,0,0,0,0,1
b,R3,0,0,0,0,1
c,R1,0,1,0,0,0
c,R2,0,0,0,0,1
c,R3,0,0,0,1,0
"""
VINDR_TEST = "image_id,Aortic enlargement,Pneumonia,Tuberculosis,Other disease,No finding\nd,0,1,0,0,0\ne,1,0,0,0,0\n"


def vindr(folder):
    (folder / "annotations").mkdir()
    (folder / "annotations" / "image_labels_train.csv").write_text(VINDR_TRAIN, encoding="utf-8")
    (folder / "annotations" / "image_labels_test.csv").write_text(VINDR_TEST, encoding="utf-8")
    return folder


def test_vindr_goes_by_the_majority_and_has_no_age(tmp_path):
    rows = by_id(cxr.build_vindr(vindr(tmp_path)))
    assert rows["y"].to_dict() == {"a": 1, "b": 0, "d": 1}  # readers disagree on c; e has another finding
    assert rows["age"].isna().all()
    assert rows["sex"].isna().all()
    assert (rows["projection"] == "PA").all()
    assert rows["path"].tolist() == ["train/a.dicom", "train/b.dicom", "test/d.dicom"]
    assert rows["group"].nunique() == 3


def test_vindr_takes_sex_and_view_from_a_table_of_tags_and_converted_images(tmp_path):
    vindr(tmp_path)
    (tmp_path / "dicom_tags.csv").write_text(
        "image_id,PatientSex,ViewPosition\na,M,AP\nb,O,\nz,F,PA\n", encoding="utf-8"
    )
    (tmp_path / "train").mkdir()
    for name in ("a.dicom", "a.png"):
        (tmp_path / "train" / name).write_bytes(b"")
    rows = by_id(cxr.build_vindr(tmp_path))
    assert rows["sex"].fillna("none").tolist() == ["male", "none", "none"]
    assert rows["projection"].tolist() == ["AP", "PA", "PA"]
    assert rows.loc["a", "path"] == "train/a.png"


def test_vindrs_table_of_boxes_is_refused(tmp_path):
    (tmp_path / "train.csv").write_text(
        "image_id,class_name,class_id,rad_id,x_min,y_min,x_max,y_max\n", encoding="utf-8"
    )
    with pytest.raises(FileNotFoundError, match="boxes around local findings and no label Pneumonia"):
        cxr.build_vindr(tmp_path)


# All of them


@pytest.mark.parametrize("name", cxr.BUILDERS)
def test_a_missing_table_is_named_with_where_to_get_it(tmp_path, name):
    with pytest.raises(FileNotFoundError, match=r"there is no \S+\.csv below .* https://"):
        cxr.BUILDERS[name](tmp_path)


def test_all_collections_in_one_manifest(tmp_path):
    for name in ("nih", "vindr"):
        (tmp_path / name).mkdir()
    nih(tmp_path / "nih")
    vindr(tmp_path / "vindr")
    both = cxr.build_cxr(tmp_path, ("nih", "vindr"))
    assert both.sites == ("CXR8", "VinDr")
    assert both.root == tmp_path
    assert both.table["path"].iloc[0] == "nih/images/00000002_000.png"
    assert both.table["path"].iloc[-1] == "vindr/test/d.dicom"
    with pytest.raises(ValueError, match=r"2 problems(.|\n)*no folder .*chexpert(.|\n)*did you mean 'padchest'"):
        cxr.build_cxr(tmp_path, ("nih", "chexpert", "pad_chest"))
