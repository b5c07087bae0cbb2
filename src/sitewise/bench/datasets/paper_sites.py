"""The paper's tables of sites, and their comparison with other tables of sites."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

AGREES, DIFFERS, ABSENT = "agrees", "differs", "absent"


@dataclass(frozen=True)
class PaperSite:
    """A site of the paper: its number of samples, and its prevalence truncated (not rounded) to three decimals."""

    samples: int
    prevalence: float


ISIC = {
    "BCN1": PaperSite(7063, 0.404),
    "BCN2": PaperSite(7311, 0.024),
    "MA": PaperSite(9251, 0.000),
    "NY1": PaperSite(11108, 0.019),
    "NY2": PaperSite(1814, 0.146),
    "NY3": PaperSite(3186, 0.208),
    "QLD": PaperSite(8449, 0.001),
    "SYD": PaperSite(1884, 0.071),
    "WIE1": PaperSite(7818, 0.142),
    "WIE2": PaperSite(4374, 0.009),
}
CXR = {
    "CXR8": PaperSite(26202, 0.049),
    "CheXpert": PaperSite(5886, 0.635),
    "PadChest": PaperSite(4592, 0.082),
    "VinDr": PaperSite(13369, 0.053),
}


def compare(sites: pd.DataFrame, paper: Mapping[str, PaperSite]) -> pd.DataFrame:
    """Add the paper's numbers to a table of sites (`Manifest.site_table`); the column `verdict` compares them.

    The verdict is "agrees" if the number of samples and the prevalence truncated to three decimals are the same as in
    the paper, "absent" if the site has no samples, and otherwise "differs". It is empty for a site that is not in the
    paper.
    """
    rows = sites.reindex([*paper, *(name for name in sites.index if name not in paper)])
    rows["paper samples"] = pd.array([paper[s].samples if s in paper else None for s in rows.index], dtype="Int64")
    rows["paper prevalence"] = [paper[s].prevalence if s in paper else math.nan for s in rows.index]
    rows["samples"] = rows["samples"].fillna(0).astype(int)
    rows["verdict"] = [
        _verdict(samples, prevalence, paper.get(str(name)))
        for name, samples, prevalence in zip(rows.index, rows["samples"], rows["prevalence"], strict=True)
    ]
    return rows


def _verdict(samples: int, prevalence: float, paper: PaperSite | None) -> str:
    if paper is None:
        return ""
    if not samples:
        return ABSENT
    cut = math.floor(prevalence * 1000 + 1e-9) / 1000
    return AGREES if samples == paper.samples and cut == paper.prevalence else DIFFERS
