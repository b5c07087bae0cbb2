"""The driver does experiments in order, goes on where it stopped, and leaves one archive."""

import gzip
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DRIVER = ROOT / "experiments" / "run_all.py"
LITTLE = """
title: Little
data: {kind: simulated, levels: [2], n_continuous: 0}
recipe: {name: default, epochs: 1, min_steps: 0}
seeds: 2
training: {a: {n: 200}, b: {n: 200, prevalence: [0.7, 0.3]}}
validation: {n: 100}
tests: {near: {}, far: {prevalence: [0.9, 0.1]}}
draws: {all: {score: 200}}
methods:
  ERM: erm
  ERM + EM: {method: label_shift_em, base: erm}
  IRM: {method: irm, grid: {penalty: [1, 10]}}
tuning: {metric: nll, seeds: 1}
reference: ERM
metric: nll
"""


def drive(*words):
    environment = os.environ | {"SITEWISE_COMMIT": "0123456789ab", "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, str(DRIVER), *map(str, words)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def archived(out):
    """Name -> records of the archive."""
    with tarfile.open(out / "records.tar.gz") as archive:
        return {
            name: [json.loads(line) for line in gzip.decompress(archive.extractfile(name).read()).splitlines()]
            for name in archive.getnames()
        }


@pytest.fixture(scope="module")
def little(tmp_path_factory):
    """An experiment of five runs, the fifth with a setting that the others choose, done with one seed left out."""
    folder = tmp_path_factory.mktemp("study")
    file, out = folder / "little.yaml", folder / "out"
    file.write_text(LITTLE, encoding="utf-8")
    return file, out, drive(file, "--out", out, "--jobs", 2, "--device", "cpu", "--minutes", 20)


def test_an_experiment_is_done_and_archived_where_it_belongs(little):
    file, out, result = little
    assert result.returncode == 0, result.stdout + result.stderr
    assert "little                0 done, 4 to do, then the settings chosen" in result.stdout
    assert "5 done, 0 to do" in result.stdout
    assert [path.name for path in out.iterdir()] == ["records.tar.gz"]
    (name, records), *others = archived(out).items()
    assert not others
    assert name == f"experiments/{file.parent.name}/records/little.jsonl.gz"
    assert len(records) == 5
    assert {record["commit"] for record in records} == {"0123456789ab"}


def test_what_is_done_is_taken_over_and_the_rest_done(little, tmp_path):
    file, out, _ = little
    (name, records), *_ = archived(out).items()
    kept = [records[0] | {"seconds": 0.5}, records[1] | {"fingerprint": "of other code"}]
    content = gzip.compress("".join(json.dumps(record) + "\n" for record in kept).encode())
    (tmp_path / "little.jsonl.gz").write_bytes(content)
    with tarfile.open(tmp_path / "records.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "little.jsonl.gz", "partial/little.jsonl.gz")
    (tmp_path / "little.jsonl.gz").unlink()
    result = drive(file, "--out", tmp_path, "--jobs", 1, "--device", "cpu", "--minutes", 20)
    assert "1 done, 2 to do, 1 to do again, then the settings chosen" in result.stdout, result.stdout + result.stderr
    again = archived(tmp_path)[name]
    assert {record["id"] for record in again} == {record["id"] for record in records}
    assert {record["fingerprint"] for record in again} == {record["fingerprint"] for record in records}
    assert [record["seconds"] for record in again if record["id"] == kept[0]["id"]] == [0.5]


def test_time_that_is_up_is_no_failure(little, tmp_path):
    result = drive(little[0], "--out", tmp_path, "--jobs", 1, "--device", "cpu", "--minutes", 0)
    assert result.returncode == 3, result.stdout + result.stderr
    assert archived(tmp_path) == {}


def test_the_list_has_every_experiment_that_needs_no_download():
    sys.path.insert(0, str(DRIVER.parent))
    try:
        import run_all
    finally:
        sys.path.remove(str(DRIVER.parent))
    files = {
        path.relative_to(ROOT / "experiments").with_suffix("").as_posix() for path in DRIVER.parent.glob("*/*.yaml")
    }
    assert files - set(run_all.ORDER) == {
        f"gpa2024/{name}" for name in ("isic_main", "isic_supp", "cxr_main", "cxr_supp")
    }
    assert set(run_all.ORDER) <= files
