"""Images on the disk train and score to the same bits as an array of them, and are never all in memory."""

import copy
import pickle
import threading
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

import sitewise as sw
from sitewise import inputs
from sitewise.bench.methods import METHODS
from sitewise.datasets.packed import PackedImages
from sitewise.datasets.packed.writing import pack
from sitewise.inputs import BATCHES_AHEAD, READERS, ReadAhead, StoredImages, is_stored, read_ahead
from sitewise.ratio import RatioObjective
from sitewise.sites import Site
from sitewise.tables.manifest import Manifest

N, SIZE = 60, 8
CPU = torch.device("cpu")
SETTINGS = {"backbone": "cnn", "epochs": 2, "batch_size": 16, "device": "cpu", "random_state": 3, "rehearsal": None}


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """Sixty images of noise in shards of seven, darker where y is 1."""
    folder = tmp_path_factory.mktemp("pack")
    rng = np.random.default_rng(0)
    names = [f"{row}.png" for row in range(N)]
    for row, name in enumerate(names):
        pixels = rng.integers(0, 256 - 90 * (row % 2), (SIZE, SIZE, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / name)
    table = pd.DataFrame({"path": names, "site": "s", "y": 0, "id": names})
    return pack(Manifest(table, folder), folder / "packed", SIZE, shard_bytes=7 * 3 * SIZE**2)


@pytest.fixture(scope="module")
def labels():
    rng = np.random.default_rng(1)
    Z = pd.DataFrame({"age": rng.normal(50, 10, N), "sex": rng.choice(["f", "m"], N)})
    return {"y": np.arange(N) % 2, "sample_domain": np.repeat(["a", "b"], N // 2), "sample_confounder": Z}


@pytest.fixture
def never_whole(monkeypatch):
    """Packs that refuse to be read whole."""

    def refuse(self, *_, **__):
        raise AssertionError("all images were read into memory")

    monkeypatch.setattr(PackedImages, "__array__", refuse)


class Watched:
    """Images with the few attributes that are needed, which count the rows of each reading."""

    ndim, dtype = 4, np.dtype(np.uint8)

    def __init__(self, images, log):
        self.images, self.log, self.shape = images, log, images.shape

    def __getitem__(self, rows):
        found = self.images[rows]
        self.log.append(len(found))
        return found

    def take(self, rows):
        return Watched(self.images.take(rows), self.log)


@pytest.fixture
def watched(packed):
    return Watched(packed, [])


def weights(model):
    return model.scorer_.module.state_dict()


def same(first, second):
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_stored_images_are_indexed_as_their_tensor(packed):
    stored, tensor = StoredImages(packed), torch.tensor(packed[:])
    assert (stored.shape, stored.ndim, stored.dtype) == (tensor.shape, tensor.ndim, tensor.dtype)
    assert (len(stored), stored.numel()) == (len(tensor), tensor.numel())
    assert stored.is_floating_point() == tensor.is_floating_point()
    rows = torch.tensor([40, 2, 2, 59])
    for key in (rows, slice(3, 20), rows.numpy(), torch.arange(N) % 3 == 0):
        assert torch.equal(stored[key], tensor[key])
    assert isinstance(stored.take(rows).images, PackedImages)
    assert torch.equal(stored.take(rows)[:], tensor[rows])
    assert stored.to(CPU) is stored


def test_arrays_may_run_backwards(packed, labels):
    Z = labels["sample_confounder"]
    model = sw.GPAClassifier(**SETTINGS).fit(packed, **labels)
    backwards = model.log_ratio(packed[:][::-1], Z[::-1])
    np.testing.assert_array_equal(backwards, model.log_ratio(packed[::-1], Z[::-1]))


def test_another_process_gets_the_place_and_not_the_pixels(packed):
    """As training in several processes hands its data over."""
    stored = StoredImages(packed, share=0.2)
    stored[:1]  # maps a shard
    sent = pickle.dumps(stored)
    assert len(sent) < 20_000
    for other in (pickle.loads(sent), copy.deepcopy(stored)):
        assert other.share == 0.2
        assert torch.equal(other[:], stored[:])
        assert other.digest() == stored.digest()


def test_what_counts_as_stored(packed):
    assert is_stored(packed)
    assert not any(map(is_stored, (packed[:], torch.tensor(packed[:]), [[1]], pd.DataFrame({"a": [1]}))))


@pytest.mark.parametrize("recipe", [sw.training.Recipe(augment="flips", min_steps=0), "gpa2024_resnet"])
@pytest.mark.parametrize("normalize", [None, "data"])
def test_gpa_is_the_same_to_the_bit(packed, labels, never_whole, recipe, normalize):
    settings = {**SETTINGS, "recipe": recipe, "normalize": normalize}
    ours, theirs = (sw.GPAClassifier(**settings).fit(X, **labels) for X in (packed, packed[:]))
    same(weights(ours), weights(theirs))
    assert ours.training_history_ == theirs.training_history_
    Z = labels["sample_confounder"]
    for X in (packed, packed[:]):
        np.testing.assert_array_equal(ours.log_ratio(X, Z), theirs.log_ratio(packed[:], Z))
        np.testing.assert_array_equal(
            ours.predict_proba(X, sample_confounder=Z), theirs.predict_proba(packed[:], sample_confounder=Z)
        )
    here, there = ours.adapt(packed, Z), theirs.adapt(packed[:], Z)
    np.testing.assert_array_equal(here.prevalence(), there.prevalence())
    np.testing.assert_allclose(here.predict_proba(packed, Z), there.predict_proba(packed[:], Z), rtol=0, atol=1e-12)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        calibrated = [
            m.calibrate(X, labels["y"], sample_confounder=Z) for m, X in ((ours, packed), (theirs, packed[:]))
        ]
    np.testing.assert_array_equal(*(m.log_ratio(packed, Z) for m in calibrated))


@pytest.mark.parametrize("name", ["erm", "coral", "dann", "gpa"])
def test_methods_are_the_same_to_the_bit(packed, labels, never_whole, name):
    """DANN takes unlabeled images of another site along."""
    found = []
    for X in (packed, packed[:]):
        unlabeled = {"c": X.take(np.arange(20)) if X is packed else X[:20]}
        method = METHODS[name](**{k: v for k, v in SETTINGS.items() if k != "rehearsal"}).fit(
            X, **labels, unlabeled=unlabeled
        )
        found.append(method.adapt(X, labels["sample_confounder"]).own_proba())
    np.testing.assert_array_equal(*found)


def test_accumulated_batches_are_the_same_to_the_bit(packed, labels):
    settings = {**SETTINGS, "recipe": sw.training.Recipe(accumulate=3, batch_size=5, epochs=2, min_steps=0)}
    del settings["epochs"], settings["batch_size"]
    same(*(weights(sw.GPAClassifier(**settings).fit(X, **labels)) for X in (packed, packed[:])))


def test_no_reading_takes_more_than_a_batch(watched, labels, monkeypatch):
    monkeypatch.setattr("sitewise.ratio.SCORING_BATCH", 16)
    monkeypatch.setattr(inputs, "STRETCH_BYTES", 16 * 3 * SIZE**2)
    model = sw.GPAClassifier(**SETTINGS).fit(watched, **labels)
    model.adapt(watched, labels["sample_confounder"]).predict_proba(watched, labels["sample_confounder"])
    assert len(watched.log) > 10
    assert max(watched.log) <= 16


def test_large_images_are_scored_fewer_at_a_time(packed, labels, monkeypatch):
    monkeypatch.setattr("sitewise.ratio.SCORED_VALUES", 10 * 3 * SIZE**2)
    model = sw.GPAClassifier(**SETTINGS).fit(packed, **labels)
    sizes = []
    handle = model.scorer_.module.register_forward_hook(lambda module, x, out: sizes.append(len(out)))
    model.log_ratio(packed[:], labels["sample_confounder"])
    handle.remove()
    assert sizes == [10] * 6


def test_a_site_keeps_its_images_on_the_disk(packed, never_whole):
    part = Site("a", packed, y=np.arange(N)).take(np.array([5, 1]))
    assert isinstance(part.X, PackedImages)
    np.testing.assert_array_equal(part.X[:], packed[[5, 1]])


def test_wrong_images_on_the_disk_are_refused(packed, labels, watched):
    model = sw.GPAClassifier(**SETTINGS).fit(packed, **labels)
    with pytest.raises(ValueError, match="X is empty"):
        model.log_ratio(packed.take([]), labels["sample_confounder"][:0])
    watched.dtype = np.dtype(np.float32)
    with pytest.raises(ValueError, match=r"bytes \(uint8\) to stay on disk, got float32"):
        model.log_ratio(watched, labels["sample_confounder"])
    watched.dtype = np.dtype(np.uint8)
    other = sw.GPAClassifier(**SETTINGS).fit(np.zeros((N, 1, 9, 9), dtype=np.uint8), **labels)
    with pytest.raises(ValueError, match=r"shape \(1, 9, 9\) as at fit, got \(3, 8, 8\)"):
        other.log_ratio(packed, labels["sample_confounder"])


# Reading ahead.


def announced(n_batches=20):
    return list(torch.randperm(N, generator=torch.Generator().manual_seed(0)).repeat(4)[: 10 * n_batches].split(10))


def reading_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("sitewise read ahead")]


def test_batches_come_in_their_order(packed):
    with read_ahead(StoredImages(packed), announced(), CPU) as read:
        for rows in announced():
            assert torch.equal(read(rows), torch.tensor(packed[rows]))
    assert not reading_threads()


def test_few_batches_wait(watched):
    with ReadAhead(StoredImages(watched), announced(), CPU) as reader:
        for taken, rows in enumerate(announced(), start=1):
            reader(rows)
            assert len(watched.log) <= taken + BATCHES_AHEAD
    assert len(watched.log) == len(announced())


def test_another_order_than_announced_is_noticed(packed):
    rows = announced()
    with pytest.raises(AssertionError, match="order"), read_ahead(StoredImages(packed), rows, CPU) as read:
        read(rows[1])


class Failing:
    """Images of which some row cannot be read."""

    shape, ndim, dtype = (N, 3, SIZE, SIZE), 4, np.dtype(np.uint8)

    def __init__(self, bad, rows=None):
        self.bad, self.rows = bad, np.arange(N) if rows is None else rows
        self.shape = (len(self.rows), *self.shape[1:])

    def __getitem__(self, key):
        rows = self.rows[key]
        if self.bad in rows:
            raise OSError("the disk is gone")
        return np.zeros((len(rows), *self.shape[1:]), dtype=np.uint8)

    def take(self, rows):
        return Failing(self.bad, self.rows[rows])


def test_what_a_reader_raises_is_raised_to_the_training(labels):
    images = Failing(bad=33)
    with pytest.raises(OSError, match="the disk is gone"):
        sw.GPAClassifier(**SETTINGS, validation=None).fit(images, **labels)
    assert not reading_threads()


def test_a_training_that_fails_stops_its_readers(packed, labels, monkeypatch):
    original, calls = RatioObjective.loss, []

    def loss(self, module, rows):
        calls.append(len(reading_threads()))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return original(self, module, rows)

    monkeypatch.setattr(RatioObjective, "loss", loss)
    with pytest.raises(KeyboardInterrupt):
        sw.GPAClassifier(**SETTINGS).fit(packed, **labels)
    assert 0 < calls[0] <= READERS
    assert not reading_threads()


# Content.


def test_the_digest_of_a_pack_follows_its_content_and_reads_none_of_it(packed, tmp_path, monkeypatch):
    monkeypatch.setattr(PackedImages, "_copy", lambda *_: pytest.fail("pixels were read"))
    digest = packed.digest()
    assert digest == PackedImages.open(packed.folder).digest() == packed.take(np.arange(N)).digest()
    assert digest != packed.take(np.arange(N)[::-1]).digest()
    assert digest != packed.take(np.arange(N - 1)).digest()
    shard = packed.records[0]
    other = replace(packed, records=(replace(shard, sha256="0" * 64), *packed.records[1:]))
    assert digest != other.digest()
    assert packed.take([20, 30]).digest() == other.take([20, 30]).digest()


def test_other_images_are_told_apart_by_every_byte(watched):
    stored = StoredImages(watched)
    assert stored.digest() == StoredImages(watched.take(np.arange(N))).digest()
    assert stored.digest() != StoredImages(watched.take(np.arange(N)[::-1])).digest()


def test_a_killed_training_on_a_pack_goes_on_to_the_same_bits(packed, labels, tmp_path, monkeypatch):
    settings = {**SETTINGS, "epochs": 4}
    whole = sw.GPAClassifier(**settings).fit(packed[:], **labels)
    original, calls = RatioObjective.loss, []

    def loss(self, module, rows):
        calls.append(rows)
        if len(calls) == 8:
            raise KeyboardInterrupt
        return original(self, module, rows)

    monkeypatch.setattr(RatioObjective, "loss", loss)
    with pytest.raises(KeyboardInterrupt):
        sw.GPAClassifier(**settings, checkpoint=tmp_path / "f.pt").fit(packed, **labels)
    monkeypatch.undo()
    with pytest.raises(ValueError, match="training rows"):
        sw.GPAClassifier(**settings, checkpoint=tmp_path / "f.pt").fit(packed.take(np.arange(N)[::-1]), **labels)
    resumed = sw.GPAClassifier(**settings, checkpoint=tmp_path / "f.pt").fit(packed, **labels)
    same(weights(resumed), weights(whole))


# A GPU, as far as this can be tested without one.


def test_images_go_to_the_gpu_where_they_fit_their_share(packed, monkeypatch):
    """The device is a stand-in: what is decided and that every row arrives is tested, not the copying."""
    stored, cuda = StoredImages(packed, share=0.5), torch.device("cuda")
    made = []
    monkeypatch.setattr(inputs, "STRETCH_BYTES", 7 * 3 * SIZE**2)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2 * stored.numel(), 10 * stored.numel()))
    for name in ("memory_reserved", "memory_allocated"):
        monkeypatch.setattr(torch.cuda, name, lambda device: 0)
    monkeypatch.setattr(StoredImages, "read", lambda self, rows, device: self[rows])
    monkeypatch.setattr(Tensor := torch.Tensor, "to", lambda self, *_, **__: self)
    empty = torch.empty
    monkeypatch.setattr(
        torch, "empty", lambda *shape, device=None, **more: made.append(device) or empty(*shape, **more)
    )
    assert torch.equal(stored.to(cuda), torch.tensor(packed[:]))
    assert made == [cuda]
    assert isinstance(stored.to(cuda), Tensor)
    assert replace(stored, share=0.49).to(cuda).images is packed


def test_the_bar_is_shown_where_it_is_asked_for(capsys):
    places = [slice(0, 1), slice(1, 2)]
    assert list(inputs.with_bar(places, "images to cuda", False)) == places
    assert capsys.readouterr().err == ""
    assert list(inputs.with_bar(places, "images to cuda", True)) == places
    assert "images to cuda" in capsys.readouterr().err
