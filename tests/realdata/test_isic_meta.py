"""The paper's ISIC sites from a table of 69,947 true rows, as it is and cut back into the files it was made of."""

import csv

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from sitewise.bench.datasets.isic import build_isic
from sitewise.bench.datasets.isic_tables import DIAGNOSES
from sitewise.bench.datasets.paper_sites import AGREES, ISIC, compare
from sitewise.cli import app
from sitewise.tables.manifest.splitting import assign_sites

# MA's rows are 0 by assumption where no table labels them, so its prevalence agrees by itself.
REPRODUCED = ("BCN1", "BCN2", "NY1", "QLD", "SYD", "WIE1", "WIE2")
HOLDERS = {
    "BCN2": "Department of Dermatology, Hospital Clínic de Barcelona",
    "NY1": "MSKCC",
    "QLD": "The University of Queensland Diamantina Institute, The University of Queensland",
    "SYD": "Pascale Guitera",
    "WIE2": "ViDIR group, Department of Dermatology, Medical University of Vienna",
}


@pytest.fixture(scope="module")
def meta(real_data):
    return pd.read_csv(real_data("isic_meta") / "isic_meta.csv.gz", dtype=str)


@pytest.fixture(scope="module")
def manifest(real_data):
    return build_isic(real_data("isic_meta"))


def test_the_papers_rows_that_can_be_reproduced_are(manifest, real_data):
    rows = compare(manifest.site_table(), ISIC)
    assert rows.index[rows["verdict"] == AGREES].tolist() == sorted([*REPRODUCED, "MA"])
    with open(real_data("isic_meta") / "site_table_check.csv", encoding="utf-8") as file:
        for expected in csv.DictReader(file):
            row = rows.loc[expected["site"]]
            assert row["samples"] == int(expected["labelled"])
            assert row["paper samples"] == int(expected["paper_n"])
            assert row["paper prevalence"] == float(expected["paper_prev"])
            if expected["prev"]:
                assert row["prevalence"] == pytest.approx(float(expected["prev"]), abs=5e-5)


def test_the_target_by_the_rule_is_the_tables(manifest, meta):
    """The builder works y out from the diagnosis and the challenge; the table has it from elsewhere."""
    stated = meta.set_index("isic_id")["y"].astype(float)
    stated = stated[meta.set_index("isic_id")["site"].notna() & stated.notna()]
    built = manifest.table.set_index("id")["y"]
    assert set(stated.index) == set(built.index)
    np.testing.assert_array_equal(stated, built.reindex(stated.index))


def test_no_group_is_at_two_sites(manifest):
    assert manifest.table.groupby("group")["site"].nunique().max() == 1


def test_the_true_files_make_the_same_sites(meta, manifest, tmp_path):
    """Cut into the challenges' own tables and an archive export, without a list of sites: the rule finds them."""
    old, new = meta[meta["challenge"] == "2019"], meta[meta["challenge"] == "2020"]
    columns = {"isic_id": "image"}
    old[["isic_id", "age_approx", "anatom_site_general", "lesion_id", "sex"]].rename(columns=columns).to_csv(
        tmp_path / "ISIC_2019_Training_Metadata.csv", index=False
    )
    truth = pd.DataFrame({dx: (old["dx"] == dx).astype(float) for dx in DIAGNOSES})
    truth.insert(0, "image", old["isic_id"])
    truth.to_csv(tmp_path / "ISIC_2019_Training_GroundTruth.csv", index=False)
    names = {"isic_id": "image_name", "anatom_site_general": "anatom_site_general_challenge", "y": "target"}
    new.rename(columns=names | {"dx": "diagnosis"}).drop(columns=["site", "ham_center", "challenge"]).to_csv(
        tmp_path / "ISIC_2020_Training_GroundTruth_v2.csv", index=False
    )
    export = meta[meta["site"].isin([*HOLDERS, "MA", "NY3"])]
    pd.DataFrame({"isic_id": export["isic_id"], "attribution": export["site"].map(HOLDERS).fillna("Anonymous")}).to_csv(
        tmp_path / "metadata.csv", index=False
    )
    built = build_isic(tmp_path)
    shown = ["id", "site", "y", "age", "anatomical_site", "sex", "group"]
    pd.testing.assert_frame_equal(built.table[shown], manifest.table[shown])


def test_data_check_prints_the_rows_beside_the_papers(real_data):
    result = CliRunner().invoke(app, ["data", "check", "isic", str(real_data("isic_meta"))], catch_exceptions=False)
    assert result.exit_code == 0
    lines = {line.split()[0]: line.split() for line in result.output.splitlines() if line.strip()}
    assert lines["BCN1"] == ["BCN1", "7063", "0.4045", "0.0076", "0.0098", "0.0076", "7063", "0.404", "agrees"]
    assert lines["WIE2"][-3:] == ["4374", "0.009", "agrees"]
    assert "8 of 10 row(s) agree with the paper: BCN1, BCN2, MA, NY1, QLD, SYD, WIE1, WIE2" in result.output
    assert "NY2 is absent: it needs an archive export" in result.output
    assert "MA agrees: rows that no table labels count as 0" in result.output


def test_no_lesion_is_in_two_roles_of_the_papers_experiment(manifest):
    """NY2, which validates, is in the archive's export only."""
    training = ("BCN1", "BCN2", "MA", "NY1", "QLD", "WIE1", "WIE2")
    roles = assign_sites(manifest, training=training, tests=("NY3", "SYD"))
    assert len(roles.training) == sum(ISIC[site].samples for site in training)
    assert roles.unused == ()
