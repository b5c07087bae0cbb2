"""Folders that somebody changed and signed again: they choose nothing for their reader and are named where odd."""

import resource
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import sitewise as sw
from sitewise.artifacts.folders import Folder, read_folder, write_folder

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # tiny models converge badly, and that is not asked here
OLD = Path(__file__).parent / "saved_by_0.1.0"


def data(n=120):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, n)
    X = rng.normal(size=(n, 4)) + 1.5 * y[:, None]
    Z = pd.DataFrame({"age": rng.normal(60, 10, n), "level": rng.choice(["a", "b", "c"], n).astype(object)})
    return X, y, rng.choice(["north", "south"], n), Z


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A saved model, one of images, and a site of an adjuster with groups."""
    root = tmp_path_factory.mktemp("saved")
    X, y, site, Z = data()
    settings = {"epochs": 1, "batch_size": 32, "device": "cpu", "rehearsal": None}
    model = sw.GPAClassifier(**settings, missing="joint").fit(X, y, sample_domain=site, sample_confounder=Z)
    model.save(root / "model")
    images = (np.arange(120 * 8 * 8) % 251).reshape(120, 1, 8, 8).astype(np.uint8)
    sw.GPAClassifier(**settings).fit(images, y).save(root / "images")
    p = 1 / (1 + np.exp(3 - X.sum(axis=1)))
    proba = np.stack([1 - p, p], axis=1)
    adjuster = sw.PrevalenceAdjuster(rehearsal=None).fit(proba, y, sample_domain=site, sample_confounder=Z)
    adjuster.adapt(proba[:60], sample_confounder=Z[:60], groups=np.arange(60) // 2).save(root / "site")
    return root


@contextmanager
def little_memory(extra=2**31):
    """A block that may take so many bytes more than there are."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + extra, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def forged(source, place, change):
    """A copy of a folder with its content changed, signed as if nothing had happened."""
    folder = read_folder(source)
    change(folder.content, folder.tensors)
    write_folder(folder, place)
    return place


@pytest.mark.parametrize("name", ["cache", "checkpoint"])
def test_a_file_does_not_choose_where_its_reader_writes(folders, tmp_path, name):
    """The folder's author would have the scores of the reader's patients written to a place of his choice."""
    there = tmp_path / "chosen"
    path = forged(folders / "model", tmp_path / "model", lambda c, t: c["settings"].update({name: str(there)}))
    model = sw.load(path)
    X, _, _, Z = data()
    model.adapt(X, sample_confounder=Z)
    assert getattr(model, name) is None
    assert not there.exists()


@pytest.mark.parametrize(
    ("folder", "change"),
    [
        ("model", lambda c, t: c["fitted"].update(n_features_in_=10**9)),
        ("model", lambda c, t: c["fitted"].update(n_features_in_=10**18)),
        ("model", lambda c, t: c["fitted"].update(n_features_in_=-4)),
        ("model", lambda c, t: c["fitted"].update(n_features_in_="4")),
        ("model", lambda c, t: c["fitted"].update(n_features_in_=True)),
        ("model", lambda c, t: c["fitted"].update(input_shape_={"$": "tuple", "items": [1, 50_000, 50_000]})),
        ("images", lambda c, t: c["fitted"].update(input_shape_={"$": "tuple", "items": [1, 50_000, 50_000]})),
        ("images", lambda c, t: c["fitted"].update(input_shape_={"$": "tuple", "items": [1, 8]})),
        ("images", lambda c, t: c["fitted"].update(input_shape_=[8, "8"])),
        ("model", lambda c, t: c["fitted"]["_joint"]["fields"]["critic"]["fields"].update(n_features=10**8)),
        ("site", lambda c, t: c["site"]["estimate"]["fields"]["_evidence"]["fields"]["groups"]["fields"].update(
            n_names=10**11)),
    ],
)  # fmt: skip
def test_sizes_that_no_tensor_has_are_refused_before_memory_is_taken(folders, tmp_path, folder, change):
    path = forged(folders / folder, tmp_path / "forged", change)
    with (
        little_memory(),
        pytest.raises(ValueError, match=r"made by another program or is damaged|do not fit") as caught,
    ):
        sw.load(path)
    assert "allocate" not in str(caught.value)


def put(*keys_and_value):
    *keys, last, value = keys_and_value

    def change(content, tensors):
        for key in keys:
            content = content[key]
        content[last] = value

    return change


def drop(*keys):
    def change(content, tensors):
        for key in keys[:-1]:
            content = content[key]
        del content[keys[-1]]

    return change


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (drop("settings"), "settings"),
        (drop("fitted"), "fitted"),
        (drop("network"), "network"),
        (put("settings", 7), "settings"),
        (put("fitted", []), "fitted"),
        (put("network", "weights"), "network"),
        (drop("settings", "backbone"), "backbone"),
        (put("settings", "backbone", 3), "backbone"),
        (put("settings", "backbone", "timm:../x"), "backbone"),
        (drop("fitted", "classes_"), "classes_"),
        (drop("fitted", "_pooled_prevalence"), "_pooled_prevalence"),
        (drop("fitted", "_calibrations"), "_calibrations"),
        (put("fitted", "classes_", "ab"), "classes_"),
        (put("fitted", "sites_", {"a": 1}), "sites_"),
        (put("fitted", "_calibrations", {"$": "tuple", "items": []}), "_calibrations"),
        (put("fitted", "_site_prevalences", {"north": 3}), "_site_prevalences"),
        (put("fitted", "_pooled_prevalence", None), "_pooled_prevalence"),
        (put("fitted", "confounders_", "fields", "variables", [1, 2]), "confounders_"),
        (put("fitted", "_pooled_prevalence", "fields", "log_marginal", 4), "log_marginal"),
        (put("fitted", "predict_proba", "shadowed"), "predict_proba"),
        (put("fitted", "get_params", 1), "get_params"),
        (put("fitted", "__class__", 1), "__class__"),
    ],
)  # fmt: skip
def test_whatever_is_odd_is_named(folders, tmp_path, change, part):
    def and_no_tensor_too_many(content, tensors):
        change(content, tensors)
        for name in [name for name in tensors if not reachable(content, name)]:
            del tensors[name]

    path = forged(folders / "model", tmp_path / "forged", and_no_tensor_too_many)
    with pytest.raises(ValueError, match=r"made by another program or is damaged") as caught:
        sw.load(path)
    assert part in str(caught.value)
    assert len(str(caught.value)) < 2000


def reachable(content, name):
    for part in name.split("/"):
        content = content.get("fields", content) if isinstance(content, dict) else content
        content = content.get("items", content) if isinstance(content, dict) else content
        part = part.replace("~1", "/").replace("~0", "~")
        if isinstance(content, list):
            if not part.isdigit() or int(part) >= len(content):
                return False
            content = content[int(part)]
        elif isinstance(content, dict) and part in content:
            content = content[part]
        else:
            return False
    return isinstance(content, dict) and content.get("$") == "tensor"


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (drop("site", "rows"), "rows"),
        (put("site", "estimate", "none"), "estimate"),
        (put("site", "rows", []), "rows"),
        (put("site", "threshold_", "high"), "threshold_"),
        (put("site", "predict", "shadowed"), "predict"),
        (put("site", "estimate", "fields", "n_iter", "many"), "n_iter"),
        (put("site", "estimate", "fields", "trace", [[1]]), "trace"),
    ],
)
def test_whatever_is_odd_about_a_site_is_named(folders, tmp_path, change, part):
    def and_no_tensor_too_many(content, tensors):
        change(content, tensors)
        for name in [name for name in tensors if not reachable(content, name)]:
            del tensors[name]

    path = forged(folders / "site", tmp_path / "forged", and_no_tensor_too_many)
    with pytest.raises(ValueError, match=r"made by another program or is damaged") as caught:
        sw.load(path)
    assert part in str(caught.value)


def test_a_site_without_its_model_is_refused(folders, tmp_path):
    folder = read_folder(folders / "site")
    write_folder(Folder(folder.kind, folder.content, folder.tensors, "", {}), tmp_path / "site")
    with pytest.raises(ValueError, match=r"made by another program or is damaged"):
        sw.load(tmp_path / "site")
    inner = Folder(folder.kind, folder.content, folder.tensors, "", {}, folder.inside)
    write_folder(Folder(folder.kind, folder.content, folder.tensors, "", {}, {"model": inner}), tmp_path / "site")
    with pytest.raises(ValueError, match=r"made by another program or is damaged"):
        sw.load(tmp_path / "site")


@pytest.mark.parametrize("name", ["network", "adjusted"])
def test_a_folder_of_an_earlier_version_loads_to_the_same_predictions(name):
    rows = np.load(OLD / "rows.npz")
    Z = pd.DataFrame({"age": rows["age"], "level": rows["level"]})
    here = sw.load(OLD / name)
    np.testing.assert_allclose(here.predict_proba(rows[f"{name}_X"], Z), rows[f"{name}_proba"], rtol=1e-9)
    assert here.diagnose().verdict
    low, high = here.prevalence_interval()
    assert (low < high).all()
    assert torch.isfinite(here.rows.log_ratio).all()
