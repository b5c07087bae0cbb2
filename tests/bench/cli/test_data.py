"""`sitewise data pack`: what it makes and prints, and how it says what is wrong."""

import sys

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from sitewise.cli import app, main
from sitewise.datasets.packed import PackedImages
from sitewise.tables.images import read_image


@pytest.fixture
def table(tmp_path):
    """Four images below a folder of their own, and a table beside it."""
    rng = np.random.default_rng(0)
    (tmp_path / "images").mkdir()
    lines = ["path,site,y"]
    for row in range(4):
        Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8)).save(tmp_path / "images" / f"{row}.png")
        lines.append(f"{row}.png,{'ab'[row % 2]},{row // 2}")
    path = tmp_path / "table.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def run(*arguments):
    return CliRunner().invoke(app, ["data", "pack", *map(str, arguments)], catch_exceptions=False)


def failure(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["sitewise", "data", "pack", *map(str, arguments)])
    with pytest.raises(SystemExit) as exit:
        main()
    assert exit.value.code == 2
    return capsys.readouterr().err


def test_pack_makes_a_pack_and_says_so(table, tmp_path):
    root, out = tmp_path / "images", tmp_path / "packed"
    result = run(table, "--size", 8, "--out", out, "--root", root, "--jobs", 2)
    assert result.exit_code == 0
    assert result.stdout.startswith(f"packed 4 image(s) of 2 site(s) as 3x8x8 into {out}, 1 shard(s), 0.0 MB")
    images = PackedImages.open(out, verify=True)
    np.testing.assert_array_equal(images[2], read_image(root / "2.png", 8))
    assert run(table, "--size", 8, "--out", out, "--root", root).exit_code == 0  # again: nothing to do


def test_columns_by_name_gray_and_without_target(table, tmp_path):
    renamed = tmp_path / "images" / "other.csv"
    renamed.write_text(table.read_text().replace("path,site,y", "file,clinic,unknown"), encoding="utf-8")
    options = ("--image", "file", "--site", "clinic", "--unlabeled", "--id", "file", "--channels", 1)
    assert run(renamed, "--size", 8, "--out", tmp_path / "packed", *options).exit_code == 0
    assert PackedImages.open(tmp_path / "packed").shape == (4, 1, 8, 8)


def test_labels_by_name(table, tmp_path):
    table.write_text(table.read_text().replace(",0\n", ",NV\n").replace(",1\n", ",MEL\n"), encoding="utf-8")
    options = ("--size", 8, "--root", tmp_path / "images", "--label", "NV", "--label", "MEL")
    assert run(table, "--out", tmp_path / "packed", *options).exit_code == 0


def test_a_wrong_table_ends_with_two_and_every_problem(table, tmp_path, monkeypatch, capsys):
    table.write_text(table.read_text().replace("site", "hospital"), encoding="utf-8")
    said = failure(monkeypatch, capsys, table, "--out", tmp_path / "packed", "--image", "pathh")
    assert "2 problems" in said
    assert "no column 'pathh' (image); did you mean 'path'?" in said
    assert "no column 'site' (site)" in said
    assert not (tmp_path / "packed").exists()


def test_a_missing_manifest_images_elsewhere_and_another_size(table, tmp_path, monkeypatch, capsys):
    out = tmp_path / "packed"
    assert "there is no file" in failure(monkeypatch, capsys, tmp_path / "tabel.csv", "--out", out)
    assert "there is no file for 4 row(s): row 0 ('0.png')" in failure(monkeypatch, capsys, table, "--out", out)
    options = ("--out", tmp_path / "other", "--root", tmp_path / "images")
    assert run(table, "--size", 8, *options).exit_code == 0
    assert "it differs in size (8 there, 9 asked for)" in failure(monkeypatch, capsys, table, "--size", 9, *options)
