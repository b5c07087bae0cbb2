"""Image files as an experiment's data: packed once, sites by name, everything wrong said before anything is packed."""

import fcntl
import os

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from sitewise.bench.experiments import read_experiment, run_experiment, sites
from sitewise.bench.experiments.images import ImageCollection, join_images, load_manifest
from sitewise.bench.experiments.plan import final_runs
from sitewise.bench.experiments.scoring import run_one
from sitewise.datasets.packed import PackedImages
from sitewise.datasets.packed import writing as packing
from sitewise.tables.images import read_image

YAML = """
data:
  {kind: manifest, manifest: table.csv, image: file, site: hospital, target: sick, confounders: [age, sex],
   group: patient, size: 8, classes: ['no', 'yes']}
recipe: {name: gpa2024, epochs: 1, batch_size: 16}
network: {backbone: cnn}
seeds: 1
training: {north: {}, south: {}}
validation: {site: west}
tests: {east: {}, a far place: {site: far}}
draws: {whole site: {score: all}}
methods: {ERM: erm, GPA: gpa}
reference: GPA
metric: positive_f1
"""
SITES = ("north", "south", "west", "east", "far", "unused")
N_ROWS = 12


@pytest.fixture
def folder(tmp_path):
    """Six sites of one's own: other names of columns, words for labels, no age at the site far away."""
    rng = np.random.default_rng(0)
    rows = []
    for site in SITES:
        for number in range(N_ROWS):
            file = f"{site}/{number}.png"
            (tmp_path / site).mkdir(exist_ok=True)
            pixels = rng.integers(0, 150, (10, 12, 3)) + 100 * (number % 3 == 0)
            Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / file)
            age = None if site == "far" else 40 + 3 * number
            rows.append((file, site, ("yes", "no", "no")[number % 3], age, "fm"[number % 2], f"{site} {number // 2}"))
    columns = ["file", "hospital", "sick", "age", "sex", "patient"]
    pd.DataFrame(rows, columns=columns).to_csv(tmp_path / "table.csv", index=False)
    return tmp_path


@pytest.fixture(autouse=True)
def forget(monkeypatch):
    """No test uses what another test has read, or a cache of the user who runs it."""
    monkeypatch.delenv("SITEWISE_CACHE", raising=False)
    yield
    sites.forget_data()


def plan(folder, *changes):
    text = YAML
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (folder / "own.yaml").write_text(text)
    return read_experiment(folder / "own.yaml")


def collection(folder, **changes):
    return load_manifest(plan(folder).data | changes, str(folder))


def change_table(folder, change):
    table = pd.read_csv(folder / "table.csv")
    change(table).to_csv(folder / "table.csv", index=False)


@pytest.mark.filterwarnings("ignore")  # what an epoch on few rows makes of f and g is not the subject here
def test_ones_own_manifest_runs(folder):
    records = run_experiment(plan(folder), folder / "out", jobs=1, device="cpu", data_dir=folder)
    results = {label: result for record in records for label, result in record["results"].items()}
    assert set(results) == {"ERM", "GPA"}
    assert set(results["GPA"]["sites"]) == {"east", "a far place"}
    assert results["GPA"]["sites"]["a far place"]["whole site"]["true_prevalence"] == pytest.approx([2 / 3, 1 / 3])


def test_rows_of_all_sites_are_one_pack_that_stays_on_the_disk(folder):
    experiment = plan(folder)
    sites.prepare_data(experiment, folder)
    run = final_runs(experiment, {}, "x")[0]
    world = sites.world_of(run, folder)
    rows = world.training_rows(run)
    assert isinstance(rows.X, PackedImages)
    order = [f"{site}/{number}.png" for site in ("north", "south", "west") for number in range(N_ROWS)]
    np.testing.assert_array_equal(np.asarray(rows.X), [read_image(folder / file, 8) for file in order])
    assert rows.sample_domain.tolist() == ["north"] * N_ROWS + ["south"] * N_ROWS + ["validation"] * N_ROWS
    assert rows.y.tolist() == [1, 0, 0] * (N_ROWS // 3) * 3
    assert list(rows.groups[:3]) == ["north 0", "north 0", "north 1"]


def test_z_may_be_absent_as_a_whole_at_a_site(folder):
    far = collection(folder).site("far", "far")
    assert far.Z["age"].isna().all()
    assert far.Z["sex"].notna().all()


def test_parts_that_are_no_packs_or_of_two_packs_become_one_array(folder):
    one, other = collection(folder).site("north", "a"), collection(folder, size=8, at_most=4).site("south", "b")
    assert one.X.folder != other.X.folder
    for parts in ([one.X, other.X], [np.asarray(one.X), other.X]):
        joined = join_images(parts)
        assert isinstance(joined, np.ndarray)
        np.testing.assert_array_equal(joined, np.concatenate([np.asarray(part) for part in parts]))


def test_images_are_packed_once_beside_the_data_and_again_where_a_file_has_changed(folder, monkeypatch):
    before = np.asarray(collection(folder).images)
    assert [path.name for path in (folder / "packed").glob("*/index.json")] == ["index.json"]
    decoded = []
    real = packing.decode_image
    monkeypatch.setattr(packing, "decode_image", lambda *a: decoded.append(a[1]) or real(*a))
    np.testing.assert_array_equal(np.asarray(collection(folder).images), before)
    assert decoded == []
    Image.fromarray(np.zeros((10, 10, 3), dtype=np.uint8)).save(folder / "east" / "0.png")
    assert (np.asarray(collection(folder).images)[3 * N_ROWS] == 0).all()
    assert "east/0.png" in decoded


def test_packs_of_other_sizes_and_rows_are_kept_beside_each_other(folder):
    for changes in ({}, {"size": 4}, {"channels": 1}, {"at_most": 3}):
        assert len(collection(folder, **changes).images) == len(SITES) * changes.get("at_most", N_ROWS)
    assert len(list((folder / "packed").glob("*/index.json"))) == 4


def test_another_folder_for_packs_can_be_named(folder, tmp_path_factory, monkeypatch):
    elsewhere = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("SITEWISE_CACHE", str(elsewhere / "new"))
    assert collection(folder).images.folder.parent == elsewhere / "new"
    assert not (folder / "packed").exists()
    monkeypatch.setenv("SITEWISE_CACHE", str(folder / "table.csv"))
    with pytest.raises(
        ValueError, match=r"cannot be written to .*table.csv .*: name another folder by .*SITEWISE_CACHE"
    ):
        assert collection(folder).images


def test_two_processes_never_pack_the_same_images_at_once(folder, monkeypatch):
    held = []
    real = packing.pack

    def pack(manifest, target, *args, **kwargs):
        descriptor = os.open(target.with_name(f".{target.name}.lock"), os.O_RDWR)
        with pytest.raises(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(descriptor)
        held.append(target)
        return real(manifest, target, *args, **kwargs)

    monkeypatch.setattr("sitewise.bench.experiments.images.pack", pack)
    assert collection(folder).images.folder == held[0]


def test_some_rows_of_each_site_are_the_same_ones_whatever_the_order(folder):
    chosen = collection(folder, at_most=5).manifest.table
    assert chosen["site"].value_counts().to_dict() == dict.fromkeys(SITES, 5)
    assert chosen["path"].tolist() == [p for p in collection(folder).manifest.table["path"] if p in set(chosen["path"])]
    change_table(folder, lambda table: table.sample(frac=1, random_state=1))
    assert set(collection(folder, at_most=5).manifest.table["path"]) == set(chosen["path"])
    assert len(collection(folder, at_most=100).manifest) == len(SITES) * N_ROWS


def test_another_table_is_another_source(folder):
    names = {collection(folder).name, collection(folder).name}
    assert len(names) == 1
    change_table(folder, lambda table: table.assign(age=table["age"].fillna(50)))
    names.add(collection(folder).name)
    assert len(names) == 2


def test_absent_sites_are_named_together_before_anything_is_packed(folder):
    wrong = plan(folder, ("north: {}", "nort: {}"), ("site: west", "site: weast"))
    with pytest.raises(ValueError, match=r"2 problems(.|\n)*'nort'; did you mean 'north'(.|\n)*'weast'; did you mean"):
        run_experiment(wrong, folder / "out", jobs=1, data_dir=folder)
    with pytest.raises(ValueError, match=r"validation: name its site, as in {site: NY2}"):
        run_experiment(plan(folder, ("{site: west}", "{}")), folder / "out", jobs=1, data_dir=folder)
    assert not (folder / "packed").exists()


def test_a_site_or_a_patient_in_two_roles_is_refused(folder):
    with pytest.raises(ValueError, match=r"'north' has more than one role \(training, validation\)"):
        run_experiment(plan(folder, ("site: west", "site: north")), folder / "out", jobs=1, data_dir=folder)
    sites.forget_data()
    change_table(folder, lambda table: table.replace({"patient": {"east 0": "north 0"}}))
    with pytest.raises(ValueError, match=r"1 group\(s\) are in more than one role: 'north 0' \(tests and training\)"):
        run_experiment(plan(folder), folder / "out", jobs=1, data_dir=folder)
    assert not (folder / "packed").exists()


def test_broken_and_missing_images_stop_an_experiment_before_its_first_run(folder):
    (folder / "north" / "1.png").write_bytes((folder / "north" / "1.png").read_bytes()[:60])
    dicom = bytes(128) + b"DICM" + bytes(64)
    (folder / "south" / "2.png").write_bytes(dicom)
    with pytest.raises(ValueError, match=r"2 image\(s\) cannot be read(.|\n)*truncated or damaged(.|\n)*DICOM"):
        run_experiment(plan(folder), folder / "out", jobs=1, data_dir=folder)
    (folder / "west" / "3.png").unlink()
    sites.forget_data()
    with pytest.raises(ValueError, match=r"there is no file for 1 row\(s\): row 27 \('west/3.png'\)"):
        run_experiment(plan(folder), folder / "out", jobs=1, data_dir=folder)
    assert not (folder / "out").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: table.rename(columns={"age": "agee"}), r"no column 'age' \(confounders\); did you mean 'agee'"),
        (lambda table: table.replace({"sick": {"yes": "maybe"}}), "y must be one of no, yes; it is not in"),
        (lambda table: table.replace({"file": {"far/0.png": "../0.png"}}), "path leads outside the root"),
    ],
)
def test_a_wrong_table_is_refused(folder, change, message):
    change_table(folder, change)
    with pytest.raises(ValueError, match=message):
        run_experiment(plan(folder), folder / "out", jobs=1, data_dir=folder)


def test_labels_other_than_zero_and_one_are_refused_where_none_are_named(folder):
    with pytest.raises(ValueError, match="y must be one of 0, 1; it is not in"):
        run_experiment(plan(folder, (", classes: ['no', 'yes']", "")), folder / "out", jobs=1, data_dir=folder)


def test_without_a_folder_the_table_lies_where_it_says(folder, monkeypatch, tmp_path_factory):
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    found = load_manifest(plan(folder).data | {"manifest": str(folder / "table.csv")}, None)
    assert found.manifest.root == folder
    assert found.packs == folder / "packed"
    with pytest.raises(FileNotFoundError, match=r"there is no file table.csv"):
        load_manifest(plan(folder).data, None)


def test_every_fault_of_the_data_is_named_once(folder):
    with pytest.raises(
        ValueError, match=r"6 problems(.|\n)*data.size must be(.|\n)*data.channels(.|\n)*data.manifest"
    ) as e:
        plan(
            folder,
            ("size: 8", "size: 0, channels: 2, at_most: few, sise: 3"),
            ("manifest: table.csv", "manifest: 3"),
            ("confounders: [age, sex]", "confounders: age"),
        )
    assert str(e.value).count("data.size") == 1
    assert "data.sise is not a key here; did you mean 'size'" in str(e.value)
    with pytest.raises(ValueError, match=r"data.classes has true or false, as YAML reads yes and no"):
        plan(folder, ("['no', 'yes']", "[no, yes]"))


def test_a_missing_collection_is_an_error_with_its_command(monkeypatch):
    monkeypatch.delenv("SITEWISE_DATA", raising=False)
    for kind in ("isic", "cxr"):
        with pytest.raises(ValueError, match=f"{kind} is not part of the package: give its folder"):
            sites.source_name({"kind": kind})


@pytest.mark.filterwarnings("ignore")
def test_gray_images_among_colour_palettes_and_sixteen_bits_are_read_alike(folder):
    """A site whose files are gray, of a palette, or of sixteen bits is trained on as its pixels mean."""
    gray = np.arange(0, 200, 2, dtype=np.uint8).reshape(10, 10)
    Image.fromarray(gray).save(folder / "north" / "0.png")
    Image.fromarray(gray).convert("P").save(folder / "north" / "1.png")
    Image.fromarray(gray.astype(np.uint16) * 257).save(folder / "north" / "2.png")
    first, palette, deep = collection(folder, size=10).site("north", "north").X[:3]
    np.testing.assert_array_equal(first, np.repeat(gray[None], 3, axis=0))
    np.testing.assert_array_equal(palette, first)
    np.testing.assert_array_equal(deep, first)
    (run, *_) = final_runs(plan(folder), {}, "x")
    assert set(run_one(run, folder, "cpu")["results"]["ERM"]["sites"]) == {"east", "a far place"}


def test_collections_say_what_an_absent_site_needs(folder):
    from sitewise.bench.experiments.images import prepare_images

    manifest = collection(folder).manifest
    isic = ImageCollection("isic", manifest, folder / "packed", 8, 3)
    experiment = plan(folder, ("site: west", "site: NY2"))
    with pytest.raises(ValueError, match=r"there is no site 'NY2'; it needs an archive export"):
        prepare_images(isic, experiment)
