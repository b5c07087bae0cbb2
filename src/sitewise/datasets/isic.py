"""ISIC: the paper's ten sites of dermoscopy images, from the challenges' and the archive's own tables.

Which tables, wherever they lie below the folder (.gz too), and where to get them:

- challenge 2019, `ISIC_2019_Training_Metadata.csv` and `ISIC_2019_Training_GroundTruth.csv`, and challenge 2020,
  `ISIC_2020_Training_GroundTruth_v2.csv` (or the first version, or Kaggle's `train.csv`), with their images:
  https://challenge.isic-archive.com/data/, CC BY-NC 4.0;
- HAM10000, `HAM10000_metadata` (.csv or .tab): https://doi.org/10.7910/DVN/DBW86T, CC BY-NC 4.0; optional, it adds the
  contributing centre and the places that challenge 2019 leaves out;
- exports of the ISIC archive, `metadata.csv` or `*_metadata_*.csv` with `isic_id` and `attribution`:
  https://gallery.isic-archive.com or `isic metadata download`; each image has its own licence (CC-0, CC-BY, CC-BY-NC);
- `sites.csv` with `isic_id` and `site`, or the paper's authors' own list, `metadata_site.csv`:
  https://github.com/mnhng/CoPA, folder data/ISIC. Where it is there it alone decides.

**Site.** Without a list: BCN1, WIE1 and part of NY3 are challenge 2019 rows by the beginning of their lesion (BCN, HAM,
MSK); the rest of NY3 and MA are ranges of ids, as the old archive numbered whole collections (the study of nevi in
children from Massachusetts, the New York collections); BCN2, NY1, QLD, SYD and WIE2 are challenge 2020 rows by the
archive's `attribution`, which the challenge's own table does not have. NY2 is a choice of the authors from New York's
rows in the archive: only their list has it. The ids below 1153 that are not in MA's range are in no site.

**Target**, as the paper's counts imply: in challenge 2019 (and HAM10000) melanoma is 1 and nevus 0, a benign keratosis
0 at NY3 only, and everything else is not counted; in challenge 2020 its `target`; elsewhere the archive's benign and
malignant. At MA, whose prevalence is 0.000, rows that no table labels are 0 by assumption.

**Confounders.** `age` in years (steps of five), `anatomical_site`, `sex`. Challenge 2019 tells anterior, posterior and
lateral torso apart and challenge 2020 does not: all of them are `torso` here, so that a level means the same at every
site. A value comes from the first table that has one: 2019, HAM10000, 2020, the archive.
"""

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd

from sitewise.arrays import Problems
from sitewise.datasets import paper_sites
from sitewise.datasets.manifest import Manifest
from sitewise.datasets.tables import SHRUNK, Folder, as_ages, as_levels, as_numbers, as_sexes, meant, read_table, scan

logger = logging.getLogger(__name__)

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
CONFOUNDERS = ("age", "anatomical_site", "sex")
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
    # HAM10000's own, as challenge 2019 translates them; it leaves trunk and genital out
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
LESION_SITES = {"BCN": "BCN1", "HAM": "WIE1", "MSK": "NY3"}  # challenge 2019, by the beginning of the lesion
ID_RANGES = ((557, 1099, "MA"), (1160, 9867, "MA"), (9868, 16072, "NY3"), (24306, 34320, "WIE1"))
HOLDERS = {  # challenge 2020, by a word in the archive's attribution
    "barcelona": "BCN2",
    "sloan kettering": "NY1",
    "mskcc": "NY1",
    "queensland": "QLD",
    "guitera": "SYD",
    "sydney": "SYD",
    "vienna": "WIE2",
    "vidir": "WIE2",
}
MELANOMA_OR_NEVUS = ("BCN1", "WIE1")  # the sites that count nothing else
ARCHIVE_VERDICTS = {"benign": 0.0, "malignant": 1.0}
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
NEEDS_2019 = f"{' and '.join(FILES_2019)} ({CHALLENGES})"
NEEDS_2020 = f"{FILES_2020[0]} ({CHALLENGES}) and, for the site, {ARCHIVE} or {SITE_LIST}"
NEEDS = {
    "BCN1": NEEDS_2019,
    "BCN2": NEEDS_2020,
    "MA": f"{ARCHIVE} or {SITE_LIST}",
    "NY1": NEEDS_2020,
    "NY2": f"{ARCHIVE} and {SITE_LIST}",
    "NY3": f"{NEEDS_2019} and {ARCHIVE}",
    "QLD": NEEDS_2020,
    "SYD": NEEDS_2020,
    "WIE1": NEEDS_2019,
    "WIE2": NEEDS_2020,
}


def build_isic(
    root: str | os.PathLike[str],
    *,
    sites: Sequence[str] | None = None,
    group: Literal["lesion", "patient"] = "lesion",
) -> Manifest:
    """Make the manifest of the paper's sites from the tables and images below a folder.

    `sites` are the ones wanted, and each of them must come out; None takes those that the tables give. A row's group
    is its lesion, else its patient, else itself; `group="patient"` asks for the patient first, which is coarser and
    known in challenge 2020 only. An image that is not there gets the path where the challenge puts it.
    """
    problems = Problems(f"ISIC in {root}")
    if group not in ("lesion", "patient"):
        problems.add(f"group must be lesion or patient, got {group!r}")
    for site in sites or ():
        if site not in SITES:
            problems.add(f"there is no site {site!r}{meant(site, SITES)}; the paper's sites are {', '.join(SITES)}")
    folder = scan(root)
    listed = _read_sites(folder, problems)
    rows = _gather(folder, listed, problems)
    problems.raise_if_any()
    rows["site"] = _sites(rows, problems) if listed is None else listed.reindex(rows.index)
    problems.raise_if_any()
    rows = rows[rows["site"].notna() if sites is None else rows["site"].isin(sites)].copy()
    rows["y"] = _labels(rows)
    unlabeled = rows["y"].isna()
    logger.info("%d row(s) without a label that the paper counts are left out", int(unlabeled.sum()))
    rows = rows[~unlabeled].sort_index()
    wanted = SITES if sites is None else tuple(sites)
    absent = [site for site in wanted if not (rows["site"] == site).any()]
    if sites is not None or not len(rows):
        for site in absent:
            problems.add(f"nothing of {site}: it needs {NEEDS[site]}")
    problems.raise_if_any()
    order = ("lesion", "patient") if group == "lesion" else ("patient", "lesion")
    ids = pd.Series(rows.index, index=rows.index, dtype=object)
    table = pd.DataFrame(
        {
            "path": [
                folder.images.get(id, _usual_place(id, challenge))
                for id, challenge in zip(ids, rows["challenge"], strict=True)
            ],
            "site": rows["site"],
            "y": rows["y"].astype(np.int64),
            "age": rows["age"].astype(float),
            "anatomical_site": rows["anatomical_site"],
            "sex": rows["sex"],
            "group": rows[order[0]].fillna(rows[order[1]]).fillna(ids),
            "id": ids,
            "dx": rows["dx"],
            "center": rows["center"],
        }
    )
    return Manifest(table.reset_index(drop=True), folder.root, CONFOUNDERS)


def _gather(folder: Folder, listed: pd.Series | None, problems: Problems) -> pd.DataFrame:
    """Everything the tables say, a row for each id: a value is that of the first table that has one."""
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


def _read_2019(folder: Folder, problems: Problems) -> list[pd.DataFrame]:
    found = [folder.find(name) for name in FILES_2019]
    if not any(found):
        return []
    for name, files in zip(FILES_2019, found, strict=True):
        if not files:
            problems.add(f"{name} is missing beside its fellow: challenge 2019 needs both ({CHALLENGES})")
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
    """Exports of the archive, any number of them; the later ones call benign_malignant diagnosis_1."""
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
    """A table that somebody joined before: the challenges' columns, a `challenge` and, for 2020, `y` as the target."""
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


def _read_sites(folder: Folder, problems: Problems) -> pd.Series | None:
    """The list of ids and sites, by the paper's short names; None where there is no list."""
    files = folder.find(*FILES_SITES, FILE_PREPARED)
    if not files:
        return None
    rows = _by_id(read_table(files[0], ("isic_id", "site"), problems), "isic_id", files[0], problems)
    short = rows["site"].replace(LONG_NAMES)
    for name in sorted(set(short.dropna()) - set(SITES)):
        problems.add(f"{files[0]}, column 'site': {name!r} is no site of the paper{meant(name, SITES)}")
    return short


def _sites(rows: pd.DataFrame, problems: Problems) -> pd.Series:
    """The site of each row by the rule above, missing where it is in none."""
    from_2020 = rows["challenge"] == "2020"
    holder = rows["attribution"].map(lambda text: _first(HOLDERS, str(text).lower()), na_action="ignore")
    if from_2020.any() and not holder[from_2020].notna().any():
        problems.add(
            f"challenge 2020 has {int(from_2020.sum())} rows whose site is not known: its table does not say who took "
            f"an image. Put {ARCHIVE} or {SITE_LIST} beside it"
        )
    lesion = rows["lesion"].where(rows["challenge"] != "2020").str[:3].map(LESION_SITES)
    number = pd.to_numeric(pd.Series(rows.index, index=rows.index).str.removeprefix("ISIC_"), errors="coerce")
    ranged = pd.Series(None, index=rows.index, dtype=object)
    for first, last, site in ID_RANGES:
        ranged[number.between(first, last)] = site
    return holder.where(from_2020, lesion.fillna(ranged)).astype(object)


def _labels(rows: pd.DataFrame) -> pd.Series:
    """Melanoma or not as the paper counts it, missing where it does not count the row."""
    y = rows["dx"].map({"MEL": 1.0, "NV": 0.0}).astype(float)
    y[(rows["dx"] == "BKL") & (rows["site"] == "NY3")] = 0.0
    y = y.fillna(rows["target"].astype(float).where(rows["dx"].isna()))
    unsaid = rows["dx"].isna() & rows["target"].isna()
    verdict = (
        rows["verdict"].astype(object).map(lambda word: ARCHIVE_VERDICTS.get(str(word).lower()), na_action="ignore")
    )
    named = rows["diagnosis"].astype(object).fillna("").str.lower().str.contains("melanoma|nevus|naevus")
    counted = unsaid & (named | ~rows["site"].isin(MELANOMA_OR_NEVUS))
    y = y.fillna(verdict.astype(float).where(counted))
    return y.mask((rows["site"] == "MA") & unsaid & y.isna(), 0.0)


def _by_id(rows: pd.DataFrame, column: str, file: Path, problems: Problems) -> pd.DataFrame:
    """Rows by their id, without what the challenge appends to it; an id that is empty or there twice is noted."""
    ids = rows[column].astype(object).map(lambda id: str(id).strip().removesuffix(SHRUNK), na_action="ignore")
    if ids.isna().any() and ids.notna().any():
        problems.add(
            f"{file}, column {column!r}: empty in {int(ids.isna().sum())} row(s), first row {ids.isna().idxmax()}"
        )
    twice = ids[ids.duplicated() & ids.notna()]
    if len(twice):
        problems.add(f"{file}, column {column!r}: {len(twice)} id(s) more than once, as {twice.iloc[0]}")
    return rows.set_axis(pd.Index(ids, name="id"))


def _facts(rows: pd.DataFrame, **columns: pd.Series) -> pd.DataFrame:
    return pd.DataFrame(columns, index=rows.index).reindex(columns=list(FACTS)).astype(object)


def _has(file: Path, column: str) -> bool:
    return column in pd.read_csv(file, nrows=0, encoding="utf-8-sig").columns


def _first(words: dict[str, str], text: str) -> str | None:
    return next((meaning for word, meaning in words.items() if word in text), None)


def _usual_place(id: str, challenge: str | None) -> str:
    folder = {"2019": "ISIC_2019_Training_Input/", "2020": "train/"}.get(str(challenge), "")
    return f"{folder}{id}.jpg"
