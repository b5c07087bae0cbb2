"""Reading and joining of the tables of the paper's ISIC sites, to a table with a row for each image id."""

from pathlib import Path

import pandas as pd

from sitewise.arrays import Problems, did_you_mean
from sitewise.bench.datasets import paper_sites
from sitewise.bench.datasets.tables import (
    SHRUNK,
    Folder,
    as_ages,
    as_levels,
    as_numbers,
    as_sexes,
    open_collection,
    read_table,
)

SITES = tuple(paper_sites.ISIC)
LONG_NAMES = {
    "Barcelona1": "BCN1",
    "Barcelona2": "BCN2",
    "Massachusetts": "MA",
    "New York1": "NY1",
    "New York2": "NY2",
    "New York3": "NY3",
    "Queensland": "QLD",
    "Sydney": "SYD",
    "Vienna1": "WIE1",
    "Vienna2": "WIE2",
}
DIAGNOSES = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC", "UNK")
HAM_DIAGNOSES = {
    "akiec": "AK",
    "bcc": "BCC",
    "bkl": "BKL",
    "df": "DF",
    "mel": "MEL",
    "nv": "NV",
    "vasc": "VASC",
}
PLACES: dict[str, str | None] = {
    "torso": "torso",
    "anterior torso": "torso",
    "posterior torso": "torso",
    "lateral torso": "torso",
    "head/neck": "head/neck",
    "upper extremity": "upper extremity",
    "lower extremity": "lower extremity",
    "palms/soles": "palms/soles",
    "oral/genital": "oral/genital",
    # names in HAM10000, translated as in challenge 2019, which leaves out trunk and genital
    "abdomen": "torso",
    "back": "torso",
    "chest": "torso",
    "trunk": "torso",
    "ear": "head/neck",
    "face": "head/neck",
    "neck": "head/neck",
    "scalp": "head/neck",
    "hand": "upper extremity",
    "foot": "lower extremity",
    "acral": "palms/soles",
    "genital": "oral/genital",
    "unknown": None,
}
FILES_2019 = ("ISIC_2019_Training_Metadata.csv", "ISIC_2019_Training_GroundTruth.csv")
FILES_2020 = ("ISIC_2020_Training_GroundTruth_v2.csv", "ISIC_2020_Training_GroundTruth.csv", "train.csv")
FILES_HAM = ("HAM10000_metadata.csv", "HAM10000_metadata.tab", "HAM10000_metadata")
FILES_ARCHIVE = ("metadata.csv", "*_metadata_*.csv", "*_metadata.csv")
FILES_SITES = ("sites.csv", "metadata_site.csv")
FILE_PREPARED = "isic_meta.csv"
FACTS = (
    *("dx", "target", "verdict", "diagnosis", "age", "anatomical_site", "sex", "lesion", "patient"),
    *("attribution", "center", "challenge"),
)

CHALLENGES = "https://challenge.isic-archive.com/data/"
ARCHIVE = "an archive export (https://gallery.isic-archive.com, or `isic metadata download`)"
SITE_LIST = "sites.csv, columns isic_id and site (the authors' list: https://github.com/mnhng/CoPA, data/ISIC)"


def gather(folder: Folder, listed: pd.Series | None, problems: Problems) -> pd.DataFrame:
    """Join all tables to one with a row for each image id; a value comes from the first table that has one."""
    tables = [
        *_read_2019(folder, problems),
        *_read_ham(folder, problems),
        *_read_2020(folder, problems),
        *_read_prepared(folder, problems),
        *_read_archive(folder, problems),
    ]
    if listed is not None:
        tables.append(pd.DataFrame(index=listed.index, columns=list(FACTS), dtype=object))
    if not tables:
        problems.add(
            f"no table found; the sites are made of {', '.join((*FILES_2019, FILES_2020[0]))} ({CHALLENGES}), "
            f"HAM10000_metadata (https://doi.org/10.7910/DVN/DBW86T), {ARCHIVE} and {SITE_LIST}"
        )
        problems.raise_if_any()
    rows = pd.concat(tables)
    return rows.groupby(level=0, sort=True).first()


def read_sites(folder: Folder, problems: Problems) -> pd.Series | None:
    """Read the list of sites: for each image id, the short name of its site in the paper. None if there is no list."""
    files = folder.find(*FILES_SITES, FILE_PREPARED)
    if not files:
        return None
    rows = _by_id(read_table(files[0], ("isic_id", "site"), problems), "isic_id", files[0], problems)
    short = rows["site"].replace(LONG_NAMES)
    for name in sorted(set(short.dropna()) - set(SITES)):
        problems.add(f"{files[0]}, column 'site': {name!r} is not a site of the paper{did_you_mean(name, SITES)}")
    return short


def _read_2019(folder: Folder, problems: Problems) -> list[pd.DataFrame]:
    found = [folder.find(name) for name in FILES_2019]
    if not any(found):
        return []
    for name, files in zip(FILES_2019, found, strict=True):
        if not files:
            problems.add(f"{name} is missing: challenge 2019 needs both files ({CHALLENGES})")
    if not all(found):
        return []
    (metadata, truth) = (files[0] for files in found)
    described = read_table(metadata, ("image", "age_approx", "anatom_site_general", "lesion_id", "sex"), problems)
    labeled = read_table(truth, ("image", *DIAGNOSES[:-1]), problems, optional=DIAGNOSES[-1:])
    hot = labeled[list(DIAGNOSES)].apply(lambda column: as_numbers(column, truth, problems)).fillna(0)
    unclear = hot.eq(1).sum(axis=1) != 1
    if unclear.any() and labeled["MEL"].notna().any():
        problems.add(
            f"{truth}: {int(unclear.sum())} row(s) without exactly one diagnosis, first row {unclear.idxmax()}"
        )
    described, labeled = _by_id(described, "image", metadata, problems), _by_id(labeled, "image", truth, problems)
    lone = described.index.symmetric_difference(labeled.index)
    if len(lone):
        problems.add(
            f"{metadata} and {truth} do not have the same images: {len(lone)} are in one only, as {lone[0]}; "
            "fetch both again"
        )
    diagnosis = hot.eq(1).idxmax(axis=1).set_axis(labeled.index)
    facts = _facts(
        described,
        dx=diagnosis[~diagnosis.index.duplicated()].reindex(described.index),
        age=as_ages(described["age_approx"], metadata, problems),
        anatomical_site=as_levels(described["anatom_site_general"], PLACES, metadata, problems),
        sex=as_sexes(described["sex"], metadata, problems),
        lesion=described["lesion_id"],
    )
    return [facts.assign(challenge="2019")]


def _read_2020(folder: Folder, problems: Problems) -> list[pd.DataFrame]:
    files = [file for file in folder.find(*FILES_2020) if file.name != "train.csv" or _has(file, "image_name")]
    if not files:
        return []
    columns = ("image_name", "patient_id", "sex", "age_approx", "anatom_site_general_challenge", "target")
    rows = read_table(files[0], columns, problems, optional=("lesion_id", "diagnosis"))
    rows = _by_id(rows, "image_name", files[0], problems)
    target = as_numbers(rows["target"], files[0], problems)
    strange = ~target.isin([0, 1])
    if strange.any() and target.notna().any():
        problems.add(f"{files[0]}, column 'target': expected 0 or 1 in every row, and {int(strange.sum())} differ")
    facts = _facts(
        rows,
        target=target,
        diagnosis=rows["diagnosis"],
        age=as_ages(rows["age_approx"], files[0], problems),
        anatomical_site=as_levels(rows["anatom_site_general_challenge"], PLACES, files[0], problems),
        sex=as_sexes(rows["sex"], files[0], problems),
        lesion=rows["lesion_id"],
        patient=rows["patient_id"],
    )
    return [facts.assign(challenge="2020")]


def _read_ham(folder: Folder, problems: Problems) -> list[pd.DataFrame]:
    files = folder.find(*FILES_HAM)
    if not files:
        return []
    columns = ("lesion_id", "image_id", "dx", "age", "sex", "localization")
    rows = _by_id(read_table(files[0], columns, problems, optional=("dataset",)), "image_id", files[0], problems)
    return [
        _facts(
            rows,
            dx=as_levels(rows["dx"], HAM_DIAGNOSES, files[0], problems),
            age=as_ages(rows["age"], files[0], problems),
            anatomical_site=as_levels(rows["localization"], PLACES, files[0], problems),
            sex=as_sexes(rows["sex"], files[0], problems),
            lesion=rows["lesion_id"],
            center=rows["dataset"],
        )
    ]


def _read_archive(folder: Folder, problems: Problems) -> list[pd.DataFrame]:
    """Read the exports of the archive; in later exports the column benign_malignant is called diagnosis_1."""
    tables = []
    for file in folder.find(*FILES_ARCHIVE):
        if not _has(file, "isic_id") or not _has(file, "attribution"):
            continue
        spoken = ("benign_malignant", "diagnosis_1", "diagnosis", "diagnosis_2", "diagnosis_3")
        facts = ("age_approx", "anatom_site_general", "sex", "lesion_id", "patient_id")
        rows = read_table(file, ("isic_id", "attribution"), problems, optional=(*spoken, *facts))
        rows = rows.drop_duplicates("isic_id")
        rows = _by_id(rows, "isic_id", file, problems)
        words = rows[list(spoken[2:])].fillna("").agg(" ".join, axis=1)
        facts_read = _facts(
            rows,
            verdict=rows["benign_malignant"].fillna(rows["diagnosis_1"]),
            diagnosis=words.where(words.str.strip() != ""),
            age=as_ages(rows["age_approx"], file, problems),
            anatomical_site=as_levels(rows["anatom_site_general"], PLACES, file, problems),
            sex=as_sexes(rows["sex"], file, problems),
            lesion=rows["lesion_id"],
            patient=rows["patient_id"],
            attribution=rows["attribution"],
        )
        tables.append(facts_read.assign(challenge="2020" if "2020-training" in file.name.lower() else None))
    return tables


def _read_prepared(folder: Folder, problems: Problems) -> list[pd.DataFrame]:
    """Read a table in which the challenges are already joined; its column `y` is the target of challenge 2020."""
    files = folder.find(FILE_PREPARED)
    if not files:
        return []
    columns = ("isic_id", "site", "y", "dx", "age_approx", "sex", "anatom_site_general", "lesion_id", "patient_id")
    rows = read_table(files[0], (*columns, "challenge"), problems, optional=("ham_center",))
    rows = _by_id(rows, "isic_id", files[0], problems)
    challenge = as_numbers(rows["challenge"], files[0], problems)
    return [
        _facts(
            rows,
            dx=rows["dx"].where(challenge == 2019),
            target=as_numbers(rows["y"], files[0], problems).where(challenge == 2020),
            age=as_ages(rows["age_approx"], files[0], problems),
            anatomical_site=as_levels(rows["anatom_site_general"], PLACES, files[0], problems),
            sex=as_sexes(rows["sex"], files[0], problems),
            lesion=rows["lesion_id"],
            patient=rows["patient_id"],
            center=rows["ham_center"],
        ).assign(challenge=challenge.map({2019: "2019", 2020: "2020"}))
    ]


def _by_id(rows: pd.DataFrame, column: str, file: Path, problems: Problems) -> pd.DataFrame:
    """Return the rows with their image ids as index, without `SHRUNK`; empty and duplicate ids are problems."""
    ids = rows[column].astype(object).map(lambda id: str(id).strip().removesuffix(SHRUNK), na_action="ignore")
    if ids.isna().any() and ids.notna().any():
        problems.add(
            f"{file}, column {column!r}: empty in {int(ids.isna().sum())} row(s), first row {ids.isna().idxmax()}"
        )
    twice = ids[ids.duplicated() & ids.notna()]
    if len(twice):
        problems.add(f"{file}, column {column!r}: {len(twice)} duplicate id(s), such as {twice.iloc[0]}")
    return rows.set_axis(pd.Index(ids, name="id"))


def _facts(rows: pd.DataFrame, **columns: pd.Series) -> pd.DataFrame:
    return pd.DataFrame(columns, index=rows.index).reindex(columns=list(FACTS)).astype(object)


def _has(file: Path, column: str) -> bool:
    return column in open_collection(file).columns
