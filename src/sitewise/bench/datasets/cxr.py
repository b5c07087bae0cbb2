"""Chest X-rays: sites from the published tables of four collections, with the target pneumonia.

- NIH ChestX-ray (CXR8): `Data_Entry_2017_v2020.csv` or `Data_Entry_2017.csv`, and the images;
  https://nihcc.app.box.com/v/ChestXray-NIHCC, free with that link, the citation and thanks to the NIH Clinical Center;
- CheXpert: `train.csv` and the images; https://aimi.stanford.edu/datasets/chexpert-chest-x-rays, Stanford's research
  use agreement (not for commercial use);
- PadChest: `PADCHEST_chest_x_ray_images_labels_160K_01.02.19.csv` and the images;
  https://bimcv.cipf.es/bimcv-projects/padchest/, PadChest's research use agreement;
- VinDr-CXR: `image_labels_train.csv`, `image_labels_test.csv` and the images;
  https://physionet.org/content/vindr-cxr/, PhysioNet's licence for credentialed health data.

The paper gives the size and prevalence of its subsets, but not the rules by which images were chosen. The rules here
were found by trying rules on the original tables. For NIH and PadChest they reproduce the paper's numbers exactly. For
CheXpert no such rule was found, and all images with a definite label are used. VinDr's tables need an account, so its
rule was not tested. The docstring of each builder describes its rule.

`build_cxr` reads all four collections, each in a folder with its name. The confounders are `age` in years, `projection`
(AP, PA, or LL for lateral) and `sex`. A group is a patient; at VinDr, whose patients are unknown, it is an image.
"""

import ast
import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from sitewise.arrays import Problems, did_you_mean
from sitewise.bench.datasets.tables import Folder, as_ages, as_levels, as_numbers, as_sexes, read_table, scan
from sitewise.tables.manifest import Manifest

logger = logging.getLogger(__name__)

Root = str | os.PathLike[str]
CONFOUNDERS = ("age", "projection", "sex")
PNEUMONIA = "Pneumonia"
PROJECTIONS: dict[str, str | None] = {"ap": "AP", "pa": "PA", "ll": "LL", "rl": "LL"}
NIH_FILES = ("Data_Entry_2017_v2020.csv", "Data_Entry_2017*.csv")
NIH_COLUMNS = ("Image Index", "Finding Labels", "Follow-up #", "Patient ID", "Patient Age", "Patient Gender")
NIH_FIELDS = (*NIH_COLUMNS, "View Position")  # the seven columns before the unquoted commas of the header
CHEXPERT_FILES = ("train.csv", "chexpert_train.csv")
PADCHEST_FILES = ("PADCHEST_chest_x_ray_images_labels_160K*.csv",)
PADCHEST_VIEWS = ("AP", "PA", "LL")
VINDR_FILES = ("image_labels_train.csv", "image_labels_test.csv")
VINDR_BOXES = ("train.csv", "vinbigdata-train.csv", "annotations_train.csv")
VINDR_TAGS = ("*dicom*.csv", "*meta*.csv")
MAJORITY = 0.5
WHERE = {
    "NIH": "https://nihcc.app.box.com/v/ChestXray-NIHCC",
    "CheXpert": "https://aimi.stanford.edu/datasets/chexpert-chest-x-rays",
    "PadChest": "https://bimcv.cipf.es/bimcv-projects/padchest/",
    "VinDr": "https://physionet.org/content/vindr-cxr/",
}


def build_nih(root: Root) -> Manifest:
    """Make the manifest of NIH ChestX-ray (CXR8, also called ChestX-ray14), the site CXR8.

    The rule: y = 1 if Pneumonia is among the findings, and y = 0 for No Finding; other images are left out. If a
    patient has several images with the same findings, the first is kept. This gives the paper's 26,202 images with
    prevalence 0.049.

    Two of the nine names in the header contain unquoted commas, so that it has eleven fields. Only the first seven
    columns are read, by position. An age may be written as 057Y; an age above 120 (in the first release) counts as
    missing.
    """
    problems = Problems(f"NIH ChestX-ray in {root}")
    folder = scan(root)
    file = _find(folder, NIH_FILES, "NIH")
    rows = _read_nih(file, problems)
    findings = rows["Finding Labels"].fillna("").str.split("|")
    pneumonia = findings.map(lambda names: PNEUMONIA in names)
    kept = (pneumonia | (rows["Finding Labels"] == "No Finding")) & ~rows.duplicated(["Patient ID", "Finding Labels"])
    table = _table(
        rows,
        site="CXR8",
        y=pneumonia,
        age=as_ages(rows["Patient Age"], file, problems),
        projection=as_levels(rows["View Position"], PROJECTIONS, file, problems),
        sex=as_sexes(rows["Patient Gender"], file, problems),
        group=rows["Patient ID"],
        id=rows["Image Index"],
    )
    problems.raise_if_any()
    return _manifest(table.assign(usual="images/" + rows["Image Index"])[kept], folder)


def build_chexpert(root: Root) -> Manifest:
    """Make the manifest of the site CheXpert.

    The rule: y is the label Pneumonia if it is 1 or 0. Images with -1 (uncertain) or an empty label (not mentioned) are
    left out, because neither means that there is no pneumonia. All views are used; a lateral view without AP or PA is
    LL. This gives 8,838 images with prevalence 0.683. The paper has 5,886 images with prevalence 0.635; its rule is
    unknown.

    A path in the column Path begins with the name of the release; the rest of it is relative to the folder of the
    table. An age of 0 means unknown, because all patients are adults.
    """
    problems = Problems(f"CheXpert in {root}")
    folder = scan(root, images=False)
    file = _find(folder, CHEXPERT_FILES, "CheXpert")
    columns = ("Path", "Sex", "Age", "Frontal/Lateral", "AP/PA", PNEUMONIA)
    rows = read_table(file, columns, problems)
    label = as_numbers(rows[PNEUMONIA], file, problems)
    strange = label.notna() & ~label.isin([-1, 0, 1])
    if strange.any():
        problems.add(f"{file}, column {PNEUMONIA!r}: expected 1, 0, -1 or empty, got {label[strange].iloc[0]:g}")
    lateral = rows["Frontal/Lateral"].str.lower() == "lateral"
    patient = rows["Path"].str.extract(r"(patient\d+)", expand=False)
    if patient.isna().any():
        row = int(np.flatnonzero(patient.isna())[0])
        came = rows["Path"].iloc[row]
        problems.add(f"{file}, column 'Path': expected .../patient00001/..., got {came!r} in row {row}")
    beside = os.path.relpath(file.parent, folder.root)
    path = rows["Path"].str.split("/", n=1).str[-1].map(lambda tail: os.path.normpath(os.path.join(beside, str(tail))))
    age = as_ages(rows["Age"], file, problems)
    table = _table(
        rows,
        site="CheXpert",
        y=label == 1,
        age=age.where(age > 0),
        projection=as_levels(rows["AP/PA"], PROJECTIONS, file, problems).where(rows["AP/PA"].notna() | ~lateral, "LL"),
        sex=as_sexes(rows["Sex"], file, problems),
        group=patient,
        id=rows["Path"],
    ).assign(path=path)
    problems.raise_if_any()
    return _finish(table[label.isin([0, 1])], folder)


def build_padchest(root: Root) -> Manifest:
    """Make the manifest of the site PadChest.

    The rule: images with the DICOM view AP, PA or LL (which were labeled by physicians) that are not marked as
    pediatric. y = 1 if a label contains "pneumonia" (also atypical pneumonia), and otherwise y = 0 if a label is
    "normal"; other images are left out. This gives the paper's 4,592 images with prevalence 0.082.

    The labels of an image are written as a Python list. The age is the year of the study minus the year of birth. The
    sex O counts as missing.
    """
    problems = Problems(f"PadChest in {root}")
    folder = scan(root)
    file = _find(folder, PADCHEST_FILES, "PadChest")
    columns = ("ImageID", "StudyDate_DICOM", "PatientID", "PatientBirth", "PatientSex_DICOM", "ViewPosition_DICOM")
    rows = read_table(file, (*columns, "Pediatric", "Labels"), problems, optional=("ImageDir",))
    problems.raise_if_any()
    labels = rows["Labels"].map(_labels_of, na_action="ignore")
    unread = labels.isna() & rows["Labels"].notna() & (rows["Labels"].str.startswith("["))
    if unread.any():
        row = int(np.flatnonzero(unread)[0])
        came = rows["Labels"].iloc[row]
        problems.add(f"{file}, column 'Labels': expected a list of names, got {came!r} in row {row}")
    named = labels.map(lambda names: names if isinstance(names, tuple) else ())
    pneumonia = named.map(lambda names: any(PNEUMONIA.lower() in name for name in names))
    normal = named.map(lambda names: "normal" in names)
    year = as_numbers(rows["StudyDate_DICOM"].str[:4].rename("StudyDate_DICOM"), file, problems)
    age = year - as_numbers(rows["PatientBirth"], file, problems)
    kept = rows["ViewPosition_DICOM"].isin(PADCHEST_VIEWS) & (rows["Pediatric"] == "No") & (pneumonia | normal)
    table = _table(
        rows,
        site="PadChest",
        y=pneumonia,
        age=age.where(age.between(0, 120)),
        projection=rows["ViewPosition_DICOM"],
        sex=as_sexes(rows["PatientSex_DICOM"], file, problems),
        group=rows["PatientID"],
        id=rows["ImageID"],
    )
    problems.raise_if_any()
    usual = rows["ImageDir"].fillna("").map(lambda name: f"{name}/" if name else "") + rows["ImageID"]
    return _manifest(table.assign(usual=usual)[kept], folder)


def build_vindr(root: Root) -> Manifest:
    """Make the manifest of VinDr-CXR, the site VinDr.

    The rule: training and test images are used together. y = 1 if more than half of the readers label the whole image
    Pneumonia (three readers for a training image, one consensus for a test image). Otherwise y = 0 if more than half
    label it No finding; other images are left out.

    The tables have no age and no patient: age is missing, and each image is a group. Sex and view are in the DICOM
    files only. If the folder has a table of them with `image_id` and PatientSex or ViewPosition (`*dicom*.csv` or
    `*meta*.csv`), it is read. A missing view counts as PA, which is the view of all images according to the publishers.
    The table of boxes (Kaggle's train.csv, with `class_name`) does not have Pneumonia; a folder with only this table is
    an error. The images are DICOM files: convert them to PNG files with the same names.
    """
    problems = Problems(f"VinDr-CXR in {root}")
    folder = scan(root)
    files = folder.find(*VINDR_FILES)
    boxes = folder.find(*VINDR_BOXES)
    if not files and boxes:
        raise FileNotFoundError(
            f"{boxes[0]} has boxes around local findings and no label Pneumonia; needed are "
            f"{' and '.join(VINDR_FILES)} from PhysioNet ({WHERE['VinDr']})"
        )
    _find(folder, VINDR_FILES, "VinDr")
    votes = []
    for file in files:
        rows = read_table(file, ("image_id", PNEUMONIA, "No finding"), problems)
        for name in (PNEUMONIA, "No finding"):
            rows[name] = as_numbers(rows[name], file, problems)
        votes.append(rows.assign(part="test" if "test" in file.name.lower() else "train"))
    problems.raise_if_any()
    both = pd.concat(votes)
    by_image = both.groupby("image_id", sort=True)
    share = by_image[[PNEUMONIA, "No finding"]].mean()
    rows = share.assign(part=by_image["part"].first()).reset_index()
    sex, view = _vindr_tags(folder, rows["image_id"], problems)
    pneumonia = rows[PNEUMONIA] > MAJORITY
    table = _table(
        rows,
        site="VinDr",
        y=pneumonia,
        age=pd.Series(np.nan, index=rows.index),
        projection=view,
        sex=sex,
        group=rows["image_id"],
        id=rows["image_id"],
    ).assign(usual=rows["part"] + "/" + rows["image_id"] + ".dicom")
    problems.raise_if_any()
    return _manifest(table[pneumonia | (rows["No finding"] > MAJORITY)], folder)


BUILDERS = {"nih": build_nih, "chexpert": build_chexpert, "padchest": build_padchest, "vindr": build_vindr}


def build_cxr(root: Root, collections: Sequence[str] = tuple(BUILDERS)) -> Manifest:
    """Make one manifest of several collections, each in a folder with its name: nih, chexpert, padchest or vindr."""
    problems = Problems(f"chest X-rays in {root}")
    base = Path(root)
    for name in collections:
        if name not in BUILDERS:
            problems.add(
                f"there is no collection {name!r}{did_you_mean(name, BUILDERS)}; there are {', '.join(BUILDERS)}"
            )
        elif not (base / name).is_dir():
            problems.add(f"there is no folder {base / name}: put that collection there, or leave its name out")
    problems.raise_if_any()
    parts = []
    for name in collections:
        built = BUILDERS[name](base / name)
        parts.append(built.table.assign(path=f"{name}/" + built.table["path"], id=f"{name}/" + built.table["id"]))
    return replace(built, table=pd.concat(parts, ignore_index=True), root=base)


def _find(folder: Folder, names: tuple[str, ...], collection: str) -> Path:
    files = folder.find(*names)
    if not files:
        near = did_you_mean(names[0], (os.path.basename(name) for name in folder.others))
        raise FileNotFoundError(
            f"{collection}: there is no {names[0]} below {folder.root}{near}; it comes with the images from "
            f"{WHERE[collection]}"
        )
    if len(files) > 1:
        logger.info("%s: %s is read, not %s", collection, files[0], ", ".join(map(str, files[1:])))
    return files[0]


def _read_nih(file: Path, problems: Problems) -> pd.DataFrame:
    """Read the first seven columns, which come before the commas inside names; other column names are a problem."""
    header = pd.read_csv(file, header=None, nrows=1, dtype=str, encoding="utf-8-sig").iloc[0].fillna("").tolist()
    for wanted, name in zip(NIH_FIELDS, header, strict=False):
        if wanted != name:
            problems.add(f"{file}: expected the column {wanted!r} in its place, got {name!r}")
    if len(header) < len(NIH_FIELDS):
        problems.add(f"{file}: expected at least {len(NIH_FIELDS)} columns, got {len(header)}")
    problems.raise_if_any()
    return pd.read_csv(
        file,
        skiprows=1,
        header=None,
        names=list(NIH_FIELDS),
        usecols=range(len(NIH_FIELDS)),
        dtype=str,
        encoding="utf-8-sig",
    )


def _vindr_tags(folder: Folder, ids: pd.Series, problems: Problems) -> tuple[pd.Series, pd.Series]:
    """Return sex and view from tables of DICOM tags, if there are any. Unknown views are PA, unknown sexes missing."""
    tags = pd.DataFrame(index=pd.Index([], dtype=object), columns=["PatientSex", "ViewPosition"], dtype=object)
    source = folder.root
    for file in folder.find(*VINDR_TAGS):
        header = pd.read_csv(file, nrows=0, encoding="utf-8-sig").columns
        if "image_id" in header and {"PatientSex", "ViewPosition"} & set(header):
            read = read_table(file, ("image_id",), problems, optional=("PatientSex", "ViewPosition"))
            tags, source = pd.concat([tags, read.drop_duplicates("image_id").set_index("image_id")]), file
    tags = tags[~tags.index.duplicated()].reindex(ids)
    tags.index = ids.index
    sex = as_sexes(tags["PatientSex"], source, problems)
    return sex, as_levels(tags["ViewPosition"], PROJECTIONS, source, problems).fillna("PA")


def _labels_of(cell: str) -> tuple[str, ...] | None:
    try:
        return tuple(str(name).strip().lower() for name in ast.literal_eval(cell))
    except (ValueError, SyntaxError, TypeError):
        return None


def _table(rows: pd.DataFrame, site: str, y: pd.Series, group: pd.Series, **columns: pd.Series) -> pd.DataFrame:
    groups = f"{site} " + group  # equal ids in two collections are different patients
    return pd.DataFrame({"site": site, "y": y.astype(np.int64), "group": groups, **columns}, index=rows.index)


def _manifest(table: pd.DataFrame, folder: Folder) -> Manifest:
    """Find each row's image by its id; if it is missing, its path is where the collection puts it."""
    stems = (os.path.splitext(name)[0] for name in table["id"])
    paths = [folder.images.get(stem, place) for stem, place in zip(stems, table["usual"], strict=True)]
    return _finish(table.assign(path=paths), folder)


def _finish(table: pd.DataFrame, folder: Folder) -> Manifest:
    order = ["path", "site", "y", *CONFOUNDERS, "group", "id"]
    return Manifest(table[order].reset_index(drop=True), folder.root, CONFOUNDERS)
