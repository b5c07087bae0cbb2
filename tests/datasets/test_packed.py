"""Packed images: the same pixels as reading each file, and nothing damaged, half done or changed goes unnoticed."""

import errno
import json
import os
import pickle
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from patience import LONG
from sitewise.datasets.image_sites import to_site, to_sites
from sitewise.datasets.packed import PackedImages
from sitewise.datasets.packed.index import Change
from sitewise.datasets.packed.writing import pack
from sitewise.estimator.source.reading import read_inputs
from sitewise.tables.images import read_image
from sitewise.tables.manifest import Manifest

N, SIZE = 11, 8
THREE_ROWS = 3 * 3 * SIZE * SIZE  # bytes


@pytest.fixture
def manifest(tmp_path):
    """Eleven images of different kinds and shapes, two sites."""
    rng = np.random.default_rng(0)
    root = tmp_path / "images"
    root.mkdir()
    paths = []
    for row in range(N):
        pixels = rng.integers(0, 256, (20 + row, 30 - row, 3), dtype=np.uint8)
        paths.append(f"{row}.{'jpg' if row % 2 else 'png'}")
        Image.fromarray(pixels[:, :, 0] if row % 3 == 0 else pixels).save(root / paths[-1])
    table = pd.DataFrame(
        {"path": paths, "site": ["a", "b"] * 5 + ["a"], "y": [0, 1] * 5 + [1], "id": [f"i{row}" for row in range(N)]}
    )
    return Manifest(table, root)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "packed"


def pack_small(manifest, folder, **options):
    """Shards of three rows: four of them, the last with two."""
    return pack(manifest, folder, SIZE, **{"shard_bytes": THREE_ROWS, **options})


def read_all(manifest, channels=3):
    return np.stack([read_image(file, SIZE, channels) for file in manifest.files])


def written_at(folder):
    return {path.name: path.stat().st_mtime_ns for path in sorted(folder.glob("shard-*.npy"))}


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("jobs", [1, 3])
def test_a_pack_has_the_pixels_of_every_file_in_order(manifest, folder, channels, jobs):
    images = pack_small(manifest, folder, channels=channels, jobs=jobs)
    assert (len(images), images.shape, images.ndim, images.dtype) == (N, (N, channels, SIZE, SIZE), 4, np.uint8)
    np.testing.assert_array_equal(images[:], read_all(manifest, channels))
    assert images.ids.tolist() == manifest.table["id"].tolist()
    rows = THREE_ROWS // (channels * SIZE**2)
    assert len(list(folder.glob("shard-*.npy"))) == -(-N // rows)
    assert not list(folder.glob(".*"))


def test_indexing_is_numpys(manifest, folder):
    images, expected = pack_small(manifest, folder), read_all(manifest)
    mask = np.arange(N) % 4 == 1
    for key in (slice(2, 9), slice(None, None, -2), [7, 0, 7, -1], mask, mask.tolist(), torch.tensor([4, 2]), 5, -1):
        got = images[key]
        assert type(got) is np.ndarray
        assert got.flags.writeable
        np.testing.assert_array_equal(got, expected[key])
    assert images[[]].shape == (0, 3, SIZE, SIZE)
    np.testing.assert_array_equal(np.asarray(images), expected)
    for wrong in (N, [0, N], mask[:-1]):
        with pytest.raises(IndexError):
            images[wrong]
    with pytest.raises(TypeError):
        images[[0.5]]


def test_writing_to_what_was_read_does_not_reach_the_pack(manifest, folder):
    images = pack_small(manifest, folder)
    images[:][:] = 0
    np.testing.assert_array_equal(PackedImages.open(folder, verify=True)[:], read_all(manifest))


def test_views_stay_on_the_disk_and_are_indexed_among_themselves(manifest, folder):
    images, expected = pack_small(manifest, folder), read_all(manifest)
    view = images.take([9, 4, 1]).take([2, 0])
    assert isinstance(view, PackedImages)
    assert view.shape == (2, 3, SIZE, SIZE)
    assert view.ids.tolist() == ["i1", "i9"]
    np.testing.assert_array_equal(view[:], expected[[1, 9]])
    np.testing.assert_array_equal(images.by_id(["i3", "i0"])[:], expected[[3, 0]])
    with pytest.raises(ValueError, match=r"1 image\(s\) are not among those packed in .*: 'i4'"):
        view.by_id(["i1", "i4"])


def test_another_process_maps_the_shards_itself(manifest, folder):
    images = pack_small(manifest, folder).take([8, 2])
    unused = pickle.dumps(images)
    _ = images[:]
    sent = pickle.dumps(images)
    assert len(sent) == len(unused)  # no pixels in it
    np.testing.assert_array_equal(pickle.loads(sent)[:], read_all(manifest)[[8, 2]])


def test_sites_take_their_images_by_id(manifest, folder):
    images, expected = pack_small(manifest, folder), read_all(manifest)
    some = manifest.take([10, 3, 2, 0])
    sites = to_sites(some, images)
    assert isinstance(sites["a"].X, PackedImages)
    np.testing.assert_array_equal(sites["a"].X[:], expected[[10, 2, 0]])
    np.testing.assert_array_equal(sites["b"].X[:], expected[[3]])
    assert to_site(some, torch.tensor(expected[:4]), "b").X.shape == (1, 3, SIZE, SIZE)


def test_an_estimator_leaves_packed_images_on_the_disk(manifest, folder):
    class Estimator:
        pass

    inputs = read_inputs(Estimator(), pack_small(manifest, folder), reset=True)
    assert isinstance(inputs.images, PackedImages)
    np.testing.assert_array_equal(inputs[:].numpy(), read_all(manifest))


def test_packing_again_writes_nothing(manifest, folder):
    pack_small(manifest, folder)
    before = written_at(folder)
    pack_small(manifest, folder)
    assert written_at(folder) == before


def test_only_shards_of_changed_files_are_packed_anew(manifest, folder):
    pack_small(manifest, folder)
    before = written_at(folder)
    Image.fromarray(np.zeros((9, 9), dtype=np.uint8)).save(manifest.files[4])
    images = pack_small(manifest, folder)
    after = written_at(folder)
    assert [name for name in before if after[name] != before[name]] == ["shard-00001.npy"]
    np.testing.assert_array_equal(images[:], read_all(manifest))
    assert not images.changed(manifest)


def test_a_failed_packing_goes_on_at_the_next_shard(manifest, folder, monkeypatch):
    """The disk is full at the third shard."""
    save, calls = np.save, []

    def failing(file, pixels):
        calls.append(1)
        if len(calls) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        save(file, pixels)

    monkeypatch.setattr(np, "save", failing)
    with pytest.raises(OSError, match="No space left"):
        pack_small(manifest, folder, jobs=1)
    monkeypatch.setattr(np, "save", save)
    before = written_at(folder)
    assert list(before) == ["shard-00000.npy", "shard-00001.npy"]
    with pytest.raises(ValueError, match=r"packing was not finished, 2 of 4 shard\(s\) are there: run it again"):
        PackedImages.open(folder)
    images = pack_small(manifest, folder)
    assert {name: at for name, at in written_at(folder).items() if name in before} == before
    np.testing.assert_array_equal(images[:], read_all(manifest))
    assert not list(folder.glob(".*"))


def test_a_killed_packing_resumes(manifest, folder):
    """A process is killed while it writes, as `kill -9` does, after its second shard."""
    code = f"""
import os, signal
import numpy as np, pandas as pd
from pathlib import Path
from sitewise.tables.manifest import Manifest
from sitewise.datasets.packed.writing import pack
save, calls = np.save, []
def stalling(file, pixels):
    calls.append(1)
    if len(calls) == 3:
        file.write(b"half")
        file.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    save(file, pixels)
np.save = stalling
table = pd.read_json({str(folder.parent / "table.json")!r})
pack(Manifest(table, Path({str(manifest.root)!r})), {str(folder)!r}, {SIZE}, shard_bytes={THREE_ROWS}, jobs=1)
"""
    manifest.table.to_json(folder.parent / "table.json")
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=LONG)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    before = written_at(folder)
    assert list(before) == ["shard-00000.npy", "shard-00001.npy"]
    assert [path.name for path in folder.glob(".*")] == [".part.shard-00002.npy"]
    images = pack_small(manifest, folder)
    assert {name: at for name, at in written_at(folder).items() if name in before} == before
    np.testing.assert_array_equal(images[:], read_all(manifest))
    assert not list(folder.glob(".*"))


def test_unreadable_images_are_listed_together_and_the_other_shards_are_kept(manifest, folder):
    manifest.files[1].write_bytes(b"x")
    data = manifest.files[10].read_bytes()
    manifest.files[10].write_bytes(data[: len(data) // 2])
    with pytest.raises(ValueError, match=r"2 image\(s\) cannot be read") as error:
        pack_small(manifest, folder)
    assert "row 1: 1.jpg is not a JPEG, PNG or TIFF image" in str(error.value)
    assert "row 10: 10.png is truncated or damaged" in str(error.value)
    assert "fix these files or drop their rows, and pack again" in str(error.value)
    assert list(written_at(folder)) == ["shard-00001.npy", "shard-00002.npy"]


def test_missing_files_are_listed_before_anything_is_decoded(manifest, folder):
    for row in (2, 7):
        manifest.files[row].unlink()
    with pytest.raises(ValueError, match=r"there is no file for 2 row\(s\): row 2 \('2.png'\), row 7 \('7.jpg'\)"):
        pack_small(manifest, folder)
    assert not folder.exists()


def test_a_link_out_of_the_root_is_not_packed(manifest, folder, tmp_path):
    (tmp_path / "secret.png").write_bytes(manifest.files[0].read_bytes())
    manifest.files[0].unlink()
    manifest.files[0].symlink_to(tmp_path / "secret.png")
    with pytest.raises(ValueError, match="outside the root"):
        pack_small(manifest, folder)


def test_changed_files_are_named_with_what_changed(manifest, folder):
    images = pack_small(manifest, folder)
    assert images.changed(manifest) == []
    later = time.time() + 10
    os.utime(manifest.files[2], (later, later))
    content = manifest.files[3].read_bytes()
    status = manifest.files[3].stat()
    manifest.files[3].write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    os.utime(manifest.files[3], ns=(status.st_atime_ns, status.st_mtime_ns))
    manifest.files[4].write_bytes(b"shorter")
    manifest.files[5].unlink()
    table = manifest.table.replace({"id": {"i6": "new"}})
    now = Manifest(table, manifest.root)
    expected = [Change("i4", "4.png", "size"), Change("i5", "5.jpg", "missing"), Change("new", "6.png", "not packed")]
    assert images.changed(now) == [Change("i2", "2.png", "time"), *expected]
    assert images.changed(now, by_hash=True) == [Change("i3", "3.jpg", "content"), *expected]


def test_the_index_says_what_is_packed_and_from_which_files(manifest, folder):
    images = pack_small(manifest, folder)
    index = json.loads((folder / "index.json").read_text())
    assert (index["size"], index["channels"], index["rows"], index["rows_per_shard"]) == (SIZE, 3, N, 3)
    assert index["sitewise"]
    assert index["pillow"]
    first = images.records[0].sources[0]
    assert (first.id, first.path) == ("i0", "0.png")
    assert first.bytes == manifest.files[0].stat().st_size
    assert first.mtime_ns == manifest.files[0].stat().st_mtime_ns


@pytest.mark.parametrize("shard", range(4))
def test_one_wrong_byte_is_found_by_verifying(manifest, folder, shard):
    pack_small(manifest, folder)
    path = folder / f"shard-{shard:05d}.npy"
    data = bytearray(path.read_bytes())
    data[-7] ^= 1
    path.write_bytes(data)
    PackedImages.open(folder)
    with pytest.raises(ValueError, match=rf"shard-{shard:05d}.npy is damaged: its SHA-256 is not .*; remove it and"):
        PackedImages.open(folder, verify=True)


def test_damaged_and_missing_shards_are_listed_at_once_and_packed_again(manifest, folder):
    pack_small(manifest, folder)
    (folder / "shard-00000.npy").unlink()
    data = (folder / "shard-00002.npy").read_bytes()
    (folder / "shard-00002.npy").write_bytes(data[:-10])
    np.save(folder / "shard-00003.npy", np.zeros((2, 3, 4, 4), dtype=np.uint8))
    with pytest.raises(ValueError, match="3 problems") as error:
        PackedImages.open(folder)
    assert "shard-00000.npy is missing" in str(error.value)
    assert "shard-00002.npy is damaged" in str(error.value)
    assert "shard-00003.npy is damaged: expected uint8 (2, 3, 8, 8), got uint8 (2, 3, 4, 4)" in str(error.value)
    np.testing.assert_array_equal(pack_small(manifest, folder)[:], read_all(manifest))


def test_a_shard_is_never_unpickled(manifest, folder):
    pack_small(manifest, folder)
    np.save(folder / "shard-00001.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match=r"shard-00001.npy is damaged"):
        PackedImages.open(folder)


def test_a_folder_that_is_no_pack(manifest, folder):
    with pytest.raises(FileNotFoundError, match=r"is no folder of packed images: it has no index.json; make one with"):
        PackedImages.open(folder)
    folder.mkdir()
    (folder / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match=r"holds other files and no index.json: pack into a new or empty folder"):
        pack_small(manifest, folder)
    for text, said in (("{", "damaged"), ("[]", "damaged"), ('{"a": 1}', "is no index of packed images")):
        (folder / "index.json").write_text(text)
        with pytest.raises(ValueError, match=rf"index\.json .*{said}"):
            PackedImages.open(folder)


def test_another_pack_is_never_overwritten(manifest, folder):
    pack_small(manifest, folder)
    before = written_at(folder)
    with pytest.raises(ValueError, match=r"holds another pack: it differs in size \(8 there, 16 asked for\)"):
        pack(manifest, folder, 16, shard_bytes=4 * THREE_ROWS)
    with pytest.raises(ValueError, match="it differs in the images or their order: choose another folder"):
        pack_small(manifest.take(np.arange(N)[::-1]), folder)
    with pytest.raises(ValueError, match=r"rows \(11 there, 5 asked for\)"):
        pack_small(manifest.take(np.arange(5)), folder)
    assert written_at(folder) == before


def test_a_pack_of_another_reading_or_format_is_refused(manifest, folder, monkeypatch):
    pack_small(manifest, folder)
    index = json.loads((folder / "index.json").read_text())
    (folder / "index.json").write_text(json.dumps({**index, "reading": 0}))
    with pytest.raises(ValueError, match=r"reading \(0 there, 1 asked for\)"):
        pack_small(manifest, folder)
    (folder / "index.json").write_text(json.dumps({**index, "format": "sitewise packed images 7"}))
    with pytest.raises(ValueError, match="the folder has 'sitewise packed images 7': pack the images anew"):
        PackedImages.open(folder)


def test_wrong_arguments_are_named_together(manifest, folder):
    with pytest.raises(ValueError, match="4 problems"):
        pack(manifest, folder, 0, channels=2, jobs=0, shard_bytes=0)
    assert not folder.exists()


def test_a_bar_is_shown_where_it_is_asked_for(manifest, folder, capsys):
    pack_small(manifest, folder, progress=True)
    assert "11/11" in capsys.readouterr().err
    pack_small(manifest, folder)
    assert not capsys.readouterr().err
