"""ISIC: the paper's ten sites of dermoscopy images, from the tables of the challenges and of the archive.

These tables are read (from the folder or any subfolder, also as .gz):

- challenge 2019, `ISIC_2019_Training_Metadata.csv` and `ISIC_2019_Training_GroundTruth.csv`, and challenge 2020,
  `ISIC_2020_Training_GroundTruth_v2.csv` (or the first version, or Kaggle's `train.csv`), with their images:
  https://challenge.isic-archive.com/data/, CC BY-NC 4.0;
- HAM10000, `HAM10000_metadata` (.csv or .tab): https://doi.org/10.7910/DVN/DBW86T, CC BY-NC 4.0; this table is
  optional and adds the contributing centre and the anatomical sites that challenge 2019 leaves out;
- exports of the ISIC archive, `metadata.csv` or `*_metadata_*.csv` with `isic_id` and `attribution`:
  https://gallery.isic-archive.com or `isic metadata download`; each image has its own licence (CC-0, CC-BY, CC-BY-NC);
- a list of sites: `sites.csv` with `isic_id` and `site`, or the list of the paper's authors, `metadata_site.csv`:
  https://github.com/mnhng/CoPA, folder data/ISIC. If there is a list, it alone determines the sites.

**Site.** Without a list, BCN1 and WIE1 and part of NY3 are the rows of challenge 2019 whose lesion id begins with BCN,
HAM or MSK. MA and further rows of NY3 and WIE1 are ranges of image ids, because the old archive numbered whole
collections one after the other (MA is a study of nevi in children from Massachusetts). BCN2, NY1, QLD, SYD and WIE2 are
rows of challenge 2020. Their site follows from the `attribution` in the archive, which the table of the challenge does
not have. NY2 is a choice of the authors from the New York rows of the archive, so only their list contains it. All
other rows belong to no site.

**Target.** These rules follow from the paper's counts. In challenge 2019 (and HAM10000) melanoma is 1 and nevus is 0; a
benign keratosis is 0 at NY3 only; all other diagnoses are left out. In challenge 2020 the column `target` is used. For
other rows it is the archive's verdict, benign (0) or malignant (1). At MA, whose prevalence is 0.000 in the paper, rows
without a label are assumed to be 0.

**Confounders.** `age` in years (steps of five), `anatomical_site` and `sex`. Challenge 2019 distinguishes anterior,
posterior and lateral torso, and challenge 2020 does not. Here all three are `torso`, so that a level means the same at
every site. A value comes from the first table that has one, in the order 2019, HAM10000, 2020, archive.
"""

import logging
import os
from collections.abc import Sequence
from typing import Literal

import numpy as np
import pandas as pd

from sitewise.arrays import Problems, did_you_mean
from sitewise.bench.datasets.isic_tables import (
    ARCHIVE,
    CHALLENGES,
    FILES_2019,
    FILES_2020,
    SITE_LIST,
    SITES,
    gather,
    read_sites,
)
from sitewise.bench.datasets.tables import scan
from sitewise.tables.manifest import Manifest

logger = logging.getLogger(__name__)

CONFOUNDERS = ("age", "anatomical_site", "sex")
LESION_SITES = {"BCN": "BCN1", "HAM": "WIE1", "MSK": "NY3"}  # challenge 2019, by the beginning of the lesion id
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
MELANOMA_OR_NEVUS = ("BCN1", "WIE1")  # sites that have no rows with other diagnoses
ARCHIVE_VERDICTS = {"benign": 0.0, "malignant": 1.0}

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
    """Make the manifest of the paper's sites from the tables and images in a folder.

    `sites` are the names of the wanted sites, of which each must be found; None means all sites in the tables. The
    group of a row is its lesion; if the lesion is unknown, its patient; if both are unknown, its own id. With
    `group="patient"` the patient has precedence over the lesion. If an image is missing, its path is where the
    challenge puts it.
    """
    problems = Problems(f"ISIC in {root}")
    if group not in ("lesion", "patient"):
        problems.add(f"group must be lesion or patient, got {group!r}")
    for site in sites or ():
        if site not in SITES:
            problems.add(
                f"there is no site {site!r}{did_you_mean(site, SITES)}; the paper's sites are {', '.join(SITES)}"
            )
    folder = scan(root)
    listed = read_sites(folder, problems)
    rows = gather(folder, listed, problems)
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


def _sites(rows: pd.DataFrame, problems: Problems) -> pd.Series:
    """Return the site of each row by the rules in the docstring of this module; missing if it belongs to no site."""
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
    """Return the label of each row by the rules in the docstring of this module; missing if the row is left out."""
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


def _first(words: dict[str, str], text: str) -> str | None:
    return next((meaning for word, meaning in words.items() if word in text), None)


def _usual_place(id: str, challenge: str | None) -> str:
    folder = {"2019": "ISIC_2019_Training_Input/", "2020": "train/"}.get(str(challenge), "")
    return f"{folder}{id}.jpg"
