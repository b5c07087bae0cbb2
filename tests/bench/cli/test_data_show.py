"""`sitewise data show`: which images of which sites, how they are drawn, and what is refused."""

import sys

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex
from PIL import Image
from typer.testing import CliRunner

from sitewise.bench.datasets.examples import Examples, choose_rows, load_examples
from sitewise.bench.report.examples import POSITIVE, caption_of, example_figure
from sitewise.cli import app, main
from sitewise.datasets.packed.writing import pack
from sitewise.tables.images import read_image
from sitewise.tables.manifest import read_manifest


@pytest.fixture
def table(tmp_path):
    """Two sites of five images; at north two are sick, at south nobody is and nothing is known of age."""
    rng = np.random.default_rng(0)
    lines = ["path,site,y,age,sex"]
    for site in ("north", "south"):
        for row in range(5):
            name = f"{site}{row}.png"
            Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8)).save(tmp_path / name)
            lines.append(f"{name},{site},{int(site == 'north' and row < 2)},{40 + row if site == 'north' else ''},f")
    path = tmp_path / "table.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


COLUMNS = {"confounders": ("age", "sex")}


def show(*arguments):
    return CliRunner().invoke(app, ["data", "show", *map(str, arguments)], catch_exceptions=False)


def failure(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["sitewise", "data", "show", *map(str, arguments)])
    with pytest.raises(SystemExit) as exit:
        main()
    assert exit.value.code == 2
    return capsys.readouterr().err


def borders(figure):
    """Each image's caption -> colour and weight of its border."""
    spine = {axes.get_xlabel(): axes.spines["left"] for axes in figure.axes}
    return {text: (to_hex(line.get_edgecolor()), line.get_linewidth()) for text, line in spine.items()}


def words(figure):
    return "\n".join(text.get_text() for text in figure.texts)


@pytest.mark.parametrize("n_positive", [0, 1, 2, 5, 8])
@pytest.mark.parametrize("n", [1, 2, 5, 6, 8])
def test_half_of_a_row_is_positive_where_there_are_so_many(n_positive, n):
    is_positive = np.zeros(8, dtype=bool)
    is_positive[np.random.default_rng(n).permutation(8)[:n_positive]] = True
    rows = choose_rows(is_positive, 8, n, seed=3)
    assert len(rows) == len(set(rows)) == n
    expected = min(n_positive, max(n // 2, n - (8 - n_positive)))
    assert is_positive[rows].tolist() == [True] * expected + [False] * (n - expected)
    assert choose_rows(is_positive, 8, n, seed=3).tolist() == rows.tolist()


def test_a_manifests_examples_are_its_rows(table):
    north, south = load_examples(str(table), n=4, columns=COLUMNS)
    assert (north.site, north.n_rows, north.prevalence, south.prevalence) == ("north", 5, 0.4, 0.0)
    assert north.labels == (1, 1, 0, 0)
    for image, age, y in zip(north.images, north.Z["age"], north.labels, strict=True):
        row = int(age) - 40
        np.testing.assert_array_equal(image, read_image(table.parent / f"north{row}.png", 224))
        assert y == int(row < 2)
    assert south.Z["age"].isna().all()


def test_only_the_images_shown_are_read(table):
    rows = {int(age) - 40 for age in load_examples(str(table), n=2, columns=COLUMNS)[0].Z["age"]}
    for row in set(range(5)) - rows:
        (table.parent / f"north{row}.png").write_bytes(b"no image")
    assert len(load_examples(str(table), n=2, columns=COLUMNS)[0].images) == 2


def test_images_may_come_from_a_pack_and_a_pack_may_come_alone(table, tmp_path):
    pack(read_manifest(table), tmp_path / "packed", 8)
    north, _ = load_examples(str(table), n=4, columns=COLUMNS, packed=tmp_path / "packed")
    row = int(north.Z["age"][0]) - 40
    np.testing.assert_array_equal(north.images[0], read_image(table.parent / f"north{row}.png", 8))
    (alone,) = load_examples(str(tmp_path / "packed"), n=4)
    assert (len(alone.images), alone.n_rows, alone.labels, alone.Z, alone.prevalence) == (4, 10, None, None, None)
    assert {to_hex(axes.spines["left"].get_edgecolor()) for axes in example_figure([alone]).axes} != {POSITIVE}


def test_the_border_says_y_by_colour_and_by_weight_and_the_caption_in_words(table):
    figure = example_figure(load_examples(str(table), n=4, columns=COLUMNS), title="mine")
    drawn = borders(figure)
    assert {text.splitlines()[0] for text in drawn} == {"y = 0", "y = 1"}
    for text, (colour, weight) in drawn.items():
        assert (colour == POSITIVE) == text.startswith("y = 1")
        assert (weight > 2) == text.startswith("y = 1")
    assert any(text.replace("\u00a0", " ") == "y = 0\n? / f" for text in drawn)
    assert "north" in words(figure)
    assert "P(y = 1) = 0.400" in words(figure)
    assert "Captions: age / sex; ? is missing." in words(figure)


def test_three_classes_have_no_positive_one():
    site = Examples("one", (np.zeros((1, 4, 4), dtype=np.uint8),) * 2, ("a", "b"), None, 2)
    figure = example_figure([site])
    assert set(borders(figure)) == {"y = a", "y = b"}
    assert "red" not in words(figure)


def test_captions_write_numbers_short_and_what_is_missing_as_such():
    z = pd.DataFrame({"age": [55.0, np.nan], "place": ["torso", None], "dose": [0.12345, 3]})
    assert [caption_of(z, row) for row in (0, 1)] == ["55 / torso / 0.123", "? / ? / 3"]


def test_digits_are_shown_by_site():
    examples = load_examples("colored_digits", n=2)
    assert [one.site for one in examples] == ["β = 0.9", "β = 0.7", "β = 0.5", "β = 0.3"]
    assert examples[0].images[0].shape == (3, 28, 28)


def test_show_writes_a_picture(table, tmp_path):
    out = tmp_path / "new" / "grid.png"
    result = show(table, "--out", out, "--columns", 3, "--confounder", "age", "--confounder", "sex")
    assert result.exit_code == 0
    assert result.stdout == f"wrote {out}: 2 site(s)\n"
    with Image.open(out) as picture:
        assert min(picture.size) > 300
    renamed = table.with_name("other.csv")
    renamed.write_text(table.read_text().replace("path,site,y", "file,clinic,unknown"), encoding="utf-8")
    options = ("--image", "file", "--site", "clinic", "--unlabeled", "--out", tmp_path / "grid.pdf")
    assert show(renamed, *options).exit_code == 0


def test_what_cannot_be_shown_is_said(table, tmp_path, monkeypatch, capsys):
    assert "did you mean 'isic64'" in failure(monkeypatch, capsys, "isic46")
    assert "isic64 is not part of the package" in failure(monkeypatch, capsys, "isic64")
    assert "there is no file" in failure(monkeypatch, capsys, tmp_path / "tabel.csv")
    assert "must end in .png or .pdf" in failure(monkeypatch, capsys, table, "--out", tmp_path / "grid.jpg")
    assert "no column 'agee'" in failure(monkeypatch, capsys, table, "--confounder", "agee")
    (table.parent / "north0.png").write_bytes(b"")
    assert "north0.png is empty" in failure(monkeypatch, capsys, table, "--columns", 5, "--out", tmp_path / "a.png")
