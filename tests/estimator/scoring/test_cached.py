"""log f kept by content: rows scored before cost nothing, and nothing but the very same is taken from the folder."""

import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

import sitewise as sw
from sitewise.datasets.packed.writing import pack
from sitewise.estimator.scoring import cached
from sitewise.estimator.scoring.cached import ScoreFolder, score_key
from sitewise.ratio import RatioNetwork
from sitewise.tables.manifest import Manifest

N = 120


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    Z = pd.DataFrame({"age": rng.normal(50, 10, N), "sex": rng.choice(["f", "m"], N)})
    y = np.arange(N) % 2
    return rng.normal(size=(N, 3)) + y[:, None], y, Z


@pytest.fixture(scope="module")
def fitted(data):
    X, y, Z = data
    return sw.GPAClassifier(epochs=2, device="cpu").fit(X, y, sample_confounder=Z)


@pytest.fixture
def model(fitted, tmp_path):
    """A model that keeps log f, and leaves the shared one as it is."""
    other = fitted.with_calibration("vector")
    return other.set_params(cache=tmp_path / "scores")


@pytest.fixture
def rows_scored(monkeypatch):
    """How many rows went through the network, call by call."""
    counts, original = [], RatioNetwork.features

    def features(self, x, z):
        counts.append(len(x))
        return original(self, x, z)

    monkeypatch.setattr(RatioNetwork, "features", features)
    return counts


def files(model):
    return sorted(model.cache.iterdir())


def test_the_second_call_leaves_the_network_alone(model, fitted, data, rows_scored):
    X, _, Z = data
    first = model.log_ratio(X, Z)
    assert rows_scored == [N]
    rows_scored.clear()
    np.testing.assert_array_equal(model.log_ratio(X, Z), first)
    again = sw.GPAClassifier(cache=model.cache)
    vars(again).update({name: value for name, value in vars(fitted).items() if name != "cache"})
    np.testing.assert_array_equal(again.log_ratio(torch.tensor(X).numpy(), Z.copy()), first)
    assert not rows_scored
    np.testing.assert_array_equal(first, fitted.log_ratio(X, Z))


def test_adaptation_prediction_and_calibration_share_what_is_kept(model, fitted, data, rows_scored):
    X, _, Z = data
    here = model.adapt(X, Z)
    assert sum(rows_scored) == N
    rows_scored.clear()
    ours = [here.predict_proba(X, Z), model.predict_proba(X, sample_confounder=Z), model.log_ratio(X, Z)]
    again = model.adapt(X, Z)
    model.with_calibration("temperature").adapt(X, Z)
    assert not rows_scored
    there = fitted.adapt(X, Z)
    theirs = [there.predict_proba(X, Z), fitted.predict_proba(X, sample_confounder=Z), fitted.log_ratio(X, Z)]
    for found, expected in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(found, expected)
    for adapted in (here, again):
        np.testing.assert_array_equal(adapted.prevalence(), there.prevalence())
        assert torch.equal(adapted.rows.features, there.rows.features)
        assert torch.equal(adapted.rows.feature_rows, there.rows.feature_rows)


def test_features_are_added_to_what_is_kept(model, fitted, data, rows_scored, monkeypatch):
    """Only of the rows whose features are kept, fewer than all here."""
    X, _, Z = data
    monkeypatch.setattr(cached, "FEATURE_ROWS", 30)
    model.log_ratio(X, Z)
    rows_scored.clear()
    here = model.adapt(X, Z)
    assert rows_scored == [30]
    assert len(files(model)) == 1
    there = fitted.adapt(X, Z)
    assert torch.equal(here.rows.features, there.rows.features)
    assert torch.equal(here.rows.feature_rows, there.rows.feature_rows)


def test_anything_else_is_computed_anew(model, data, rows_scored):
    X, _, Z = data
    model.log_ratio(X, Z)
    one_value = X.copy()
    one_value[17, 1] = np.nextafter(one_value[17, 1], 9)
    older = Z.assign(age=Z["age"] + 1)
    others = {
        "row order": (X[::-1], Z[::-1]),
        "x": (one_value, Z),
        "z": (X, older),
        "no z": (X, None),
        "n": (X[1:], Z[1:]),
    }
    for count, (rows, z) in enumerate(others.values(), start=2):
        rows_scored.clear()
        model.log_ratio(rows, z)
        assert rows_scored == [len(rows)]
        assert len(files(model)) == count


def test_another_model_is_computed_anew(model, data, rows_scored):
    X, _, Z = data
    before = model.log_ratio(X, Z)
    weight = model.scorer_.module.fusion[0].weight
    with torch.no_grad():
        kept = float(weight[0, 0])
        weight[0, 0] += 1.0
    rows_scored.clear()
    try:
        assert not np.array_equal(model.log_ratio(X, Z), before)
        assert rows_scored == [N]
    finally:
        with torch.no_grad():
            weight[0, 0] = kept


def test_layers_without_weights_count_too():
    X, z = torch.ones(3, 2), torch.ones(3, 0)
    one, other = (torch.nn.Sequential(torch.nn.Linear(2, 2), layer) for layer in (torch.nn.ReLU(), torch.nn.GELU()))
    other.load_state_dict(one.state_dict())
    assert score_key(one, X, z) != score_key(other, X, z)
    assert score_key(one, X, z) != score_key(one, X.double(), z)
    assert score_key(one, X, z) != score_key(one, X.reshape(2, 3), z)
    assert score_key(one, X, z) == score_key(one, X.clone(), z.clone())


@pytest.mark.parametrize("harm", ["cut", "altered", "emptied", "another's"])
def test_a_damaged_file_is_computed_anew_with_a_warning(model, data, rows_scored, harm):
    X, _, Z = data
    first = model.log_ratio(X, Z)
    (file,) = files(model)
    content = bytearray(file.read_bytes())
    if harm == "cut":
        file.write_bytes(content[:-8])
    elif harm == "altered":
        content[-3] ^= 1
        file.write_bytes(content)
    elif harm == "emptied":
        file.write_bytes(b"")
    else:
        model.log_ratio(X[::-1], Z[::-1])
        (other,) = set(files(model)) - {file}
        file.write_bytes(other.read_bytes())
    rows_scored.clear()
    with pytest.warns(UserWarning, match="is damaged .*: log f is computed again"):
        np.testing.assert_array_equal(model.log_ratio(X, Z), first)
    assert rows_scored == [N]
    np.testing.assert_array_equal(model.log_ratio(X, Z), first)
    assert rows_scored == [N]


def test_a_folder_that_cannot_be_written_loses_nothing(model, fitted, data, monkeypatch):
    X, _, Z = data

    def full(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(cached, "save_file", full)
    with pytest.warns(UserWarning, match="log f could not be saved in .*: no space left on device"):
        np.testing.assert_array_equal(model.log_ratio(X, Z), fitted.log_ratio(X, Z))
    assert not files(model)


def test_files_appear_whole(model, data, monkeypatch):
    """Killed while it writes, nothing bears the name of a key."""
    X, _, Z = data

    def killed(tensors, path, about):
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(cached, "save_file", killed)
    with pytest.raises(KeyboardInterrupt):
        model.log_ratio(X, Z)
    assert not files(model)


def test_a_pack_is_known_by_its_checksums(tmp_path, rows_scored):
    rng = np.random.default_rng(0)
    names = [f"{row}.png" for row in range(40)]
    for name in names:
        Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(tmp_path / name)
    table = pd.DataFrame({"path": names, "site": "s", "y": 0, "id": names})
    manifest = Manifest(table, tmp_path)
    images = pack(manifest, tmp_path / "packed", 8)
    model = sw.GPAClassifier(epochs=1, device="cpu", cache=tmp_path / "scores").fit(images, np.arange(40) % 2)
    first = model.log_ratio(images)
    rows_scored.clear()
    np.testing.assert_array_equal(model.log_ratio(images), first)
    assert not rows_scored
    model.log_ratio(images.take(np.arange(40)[::-1]))
    assert rows_scored == [40]
    Image.fromarray(np.zeros((8, 8, 3), dtype=np.uint8)).save(tmp_path / names[3])
    changed = pack(manifest, tmp_path / "packed", 8)
    rows_scored.clear()
    assert not np.array_equal(model.log_ratio(changed), first)
    assert rows_scored == [40]


def test_nothing_is_written_without_a_folder(fitted, data, monkeypatch):
    monkeypatch.setattr(ScoreFolder, "save", lambda *_: pytest.fail("written"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted.log_ratio(data[0], data[2])


def test_a_file_is_no_folder(tmp_path, data):
    (tmp_path / "scores").touch()
    for wrong in (tmp_path / "scores", 3):
        with pytest.raises(ValueError, match="cache must be the path of a folder"):
            sw.GPAClassifier(cache=wrong).fit(data[0], data[1])
