"""`sitewise data list` and `sitewise data check`: what they print, what they write, and how they end."""

import sys

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from sitewise.bench.datasets.catalogue import COLLECTIONS
from sitewise.bench.datasets.paper_sites import PaperSite, compare
from sitewise.cli import app, main
from sitewise.tables.manifest import read_manifest

NIH = """Image Index,Finding Labels,Follow-up #,Patient ID,Patient Age,Patient Gender,View Position,I[W,H],P[x,y]
00000001_000.png,No Finding,0,1,57,M,PA,2682,2749,0.143,0.143
00000002_000.png,Pneumonia,0,2,,F,AP,2682,2749,0.143,0.143
"""


@pytest.fixture
def nih(tmp_path):
    (tmp_path / "Data_Entry_2017_v2020.csv").write_text(NIH, encoding="utf-8")
    (tmp_path / "images").mkdir()
    for name in ("00000001_000.png", "00000002_000.png"):
        Image.fromarray(np.zeros((8, 8), dtype=np.uint8)).save(tmp_path / "images" / name)
    return tmp_path


def says(*arguments):
    result = CliRunner().invoke(app, ["data", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def refused(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["sitewise", "data", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert "Traceback" not in said
    return said


def test_list_names_every_collection_with_licence_and_source():
    said = says("list")
    for name, collection in COLLECTIONS.items():
        assert f"{name:10}{collection.title}" in said
        assert f"{collection.where}; {collection.licence}" in said


def test_check_prints_the_sites_beside_the_papers(nih):
    said = says("check", "nih", nih)
    assert ["CXR8", "2", "0.5000", "0.5000", "0.0000", "0.0000", "26202", "0.049", "differs"] in [
        line.split() for line in said.splitlines()
    ]
    assert "0 of 1 row(s) agree with the paper\n" in said
    assert f"images: 2 of 2 found below {nih}\n" in said


def test_check_says_which_image_is_missing_first(nih):
    (nih / "images" / "00000002_000.png").unlink()
    assert "images: 1 of 2 found" in says("check", "nih", nih)
    assert "the first that is missing: images/00000002_000.png" in says("check", "nih", nih)


def test_check_writes_a_manifest_that_can_be_read(nih):
    out = nih / "manifest.csv"
    assert f"wrote {out}; its paths start from {nih}" in says("check", "nih", nih, "--out", out)
    read = read_manifest(out, confounders=("age", "projection", "sex"))
    assert read.table["y"].tolist() == [0, 1]
    assert all(file.is_file() for file in read.files)


def test_check_opens_every_image_when_asked(nih, monkeypatch, capsys):
    assert "and all could be read" in says("check", "nih", nih, "--images")
    (nih / "images" / "00000002_000.png").write_bytes(b"not an image")
    assert "1 image(s) cannot be read" in refused(monkeypatch, capsys, "check", "nih", nih, "--images")


def test_wrong_input_ends_with_2_and_says_what_to_do(nih, monkeypatch, capsys):
    assert "did you mean 'isic'?" in refused(monkeypatch, capsys, "check", "isik", nih)
    assert "no table found" in refused(monkeypatch, capsys, "check", "isic", nih)
    assert "there is no folder" in refused(monkeypatch, capsys, "check", "nih", nih / "nowhere")
    assert "no MNIST in" in refused(monkeypatch, capsys, "check", "mnist", nih)
    assert "no image files" in refused(monkeypatch, capsys, "check", "cxr64", nih, "--images")


@pytest.mark.parametrize("arguments", [("check",), ("check", "nih"), ("chek", "nih", "x")])
def test_wrong_usage_ends_with_2(arguments):
    assert CliRunner().invoke(app, ["data", *arguments]).exit_code == 2


def test_a_row_agrees_in_samples_and_in_prevalence_cut_to_three_digits(nih):
    manifest = COLLECTIONS["nih"].build(nih)
    paper = {"CXR8": PaperSite(2, 0.5), "other": PaperSite(3, 0.1)}
    assert compare(manifest.site_table(), paper)["verdict"].to_dict() == {"CXR8": "agrees", "other": "absent"}
    sites = manifest.site_table()
    for prevalence, samples, verdict in ((0.0499, 2, "agrees"), (0.05, 2, "differs"), (0.0499, 3, "differs")):
        rows = compare(sites.assign(prevalence=prevalence), {"CXR8": PaperSite(samples, 0.049)})
        assert rows["verdict"].tolist() == [verdict]
    assert compare(sites, {})["verdict"].tolist() == [""]  # the paper has no such site
