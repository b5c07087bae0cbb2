"""The list of data collections: name, licence, source, and the function that reads a collection's folder."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from sitewise.bench.datasets import paper_sites
from sitewise.bench.datasets.cxr import WHERE, build_chexpert, build_cxr, build_nih, build_padchest, build_vindr
from sitewise.bench.datasets.isic import NEEDS, build_isic
from sitewise.bench.datasets.isic_tables import CHALLENGES
from sitewise.bench.datasets.mnist import load_digits
from sitewise.bench.datasets.paper_sites import PaperSite
from sitewise.bench.datasets.real_tables import GUSTO_WHERE, HEART_WHERE, load_gusto, load_heart
from sitewise.bench.datasets.small_images import load_cxr64, load_isic64
from sitewise.tables.manifest import Manifest

NOT_FOUND = "the paper's rule for choosing images is unknown; the rule used is in docs/data.md"
UNTRIED = "the rule used could not be tested on the original tables; it is in docs/data.md"


@dataclass(frozen=True)
class Collection:
    """A collection: its title, its licence, its source, and the function that reads its sites from a folder.

    A collection with image files has `build`, which makes a manifest; other collections have `table`, which makes the
    table of sites. `paper` has the rows of the paper's table of sites, by site. `reasons` says why a site differs from
    its row or is absent, and `caveats` has notes on sites that agree.
    """

    title: str
    licence: str
    where: str
    build: Callable[[Path], Manifest] | None = None
    table: Callable[[Path], pd.DataFrame] | None = None
    paper: Mapping[str, PaperSite] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)
    caveats: Mapping[str, str] = field(default_factory=dict)


def _digits_table(folder: Path) -> pd.DataFrame:
    digits = load_digits(folder)
    return pd.DataFrame({"samples": [len(digits)], "prevalence": [(digits.labels >= 5).mean()]}, index=["mnist"])


def _cxr(site: str, reason: str = "") -> tuple[dict[str, PaperSite], dict[str, str]]:
    return {site: paper_sites.CXR[site]}, {site: reason} if reason else {}


RESEARCH_USE = "research use agreement"
CHEXPERT, VINDR = _cxr("CheXpert", NOT_FOUND), _cxr("VinDr", UNTRIED)
COLLECTIONS: dict[str, Collection] = {
    "isic": Collection(
        "ISIC, skin lesions, the paper's ten sites",
        "CC BY-NC 4.0; the archive by image",
        CHALLENGES,
        build=build_isic,
        paper=paper_sites.ISIC,
        reasons={site: f"it needs {needed}" for site, needed in NEEDS.items()},
        caveats={"MA": "rows that no table labels count as 0, so its prevalence agrees by definition"},
    ),
    "nih": Collection(
        "NIH ChestX-ray (CXR8, ChestX-ray14)", "free with attribution", WHERE["NIH"], build_nih, None, *_cxr("CXR8")
    ),
    "chexpert": Collection(
        "CheXpert, chest X-rays",
        f"{RESEARCH_USE}, not for commerce",
        WHERE["CheXpert"],
        build_chexpert,
        None,
        *CHEXPERT,
    ),
    "padchest": Collection(
        "PadChest, chest X-rays", RESEARCH_USE, WHERE["PadChest"], build_padchest, None, *_cxr("PadChest")
    ),
    "vindr": Collection(
        "VinDr-CXR, chest X-rays without age", "PhysioNet, credentialed", WHERE["VinDr"], build_vindr, None, *VINDR
    ),
    "cxr": Collection(
        "the four chest X-ray collections, in folders nih, chexpert, padchest, vindr",
        "each its own",
        "see each",
        build=build_cxr,
        paper=paper_sites.CXR,
        reasons=CHEXPERT[1] | VINDR[1],
    ),
    "isic64": Collection(
        "12,811 skin lesions, 64 x 64",
        "CC BY-NC 4.0 / CC0",
        "see docs/data.md",
        table=lambda folder: load_isic64(folder).site_table(),
    ),
    "cxr64": Collection(
        "7,927 chest X-rays, 64 x 64",
        "NIH: with attribution; Kermany: CC BY 4.0",
        "see docs/data.md",
        table=lambda folder: load_cxr64(folder).site_table(),
    ),
    "heart": Collection(
        "heart disease at four hospitals, 920 patients in tables, UCI 45",
        "CC BY 4.0",
        HEART_WHERE,
        table=lambda folder: load_heart(folder).site_table(),
    ),
    "gusto": Collection(
        "GUSTO-I, 40,830 heart attacks in 16 regions, a table",
        "GPL",
        GUSTO_WHERE,
        table=lambda folder: load_gusto(folder).site_table(),
    ),
    "mnist": Collection(
        "MNIST, 70,000 digits, four idx.gz files",
        "CC BY-SA 3.0",
        "https://yann.lecun.com/exdb/mnist/",
        table=_digits_table,
    ),
}
