"""The benchmark of image training runs on a CPU, counts what it should and says the ratios of what it counted."""

import json

import pytest
import torch

from scripts import load_script

TINY = ["--backbone", "cnn", "--size", "16", "--images", "96", "--batch", "32", "--rounds", "2", "--epochs", "2"]


@pytest.fixture(scope="module")
def script():
    return load_script("benchmarks/image_training.py")


def test_it_runs_and_writes_its_record(script, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(script, "commit", lambda: "abc")
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    script.main([*TINY, "--out", str(tmp_path / "record.json")])
    record = json.loads((tmp_path / "record.json").read_text())
    assert "round 2: images/s bare" in capsys.readouterr().out
    assert (record["device"], record["precision"], record["commit"]) == ("cpu", "32-true", "abc")
    assert record["images_on"] == {"bare": "device", "gpa": "disk", "gpa ahead": "disk", "erm": "disk"}
    rates = record["rounds_images_per_second"]
    assert all(len(found) == 2 and min(found) > 0 for found in rates.values())
    assert record["ratios"] == script.summarize(rates)["ratios"]


def test_every_loop_is_timed_for_the_epochs_after_the_first(script, tmp_path, monkeypatch):
    """By a clock that counts: each loop takes one unit a training pass of its network."""
    settings, _ = script.read_settings(TINY)
    data = script.make_data(script.make_pack(tmp_path, settings))
    passes = []
    built = script.build

    def build(*arguments):
        module = built(*arguments)
        module.register_forward_hook(lambda module, x, out: passes.append(len(out)))
        return module

    monkeypatch.setattr(script, "build", build)
    monkeypatch.setattr(script.time, "perf_counter", lambda: float(sum(passes)))
    for loop in script.LOOPS.values():
        passes.clear()
        images, _ = loop(settings, data)
        assert images == 2 * 96
        assert passes == [32] * 9


def test_ratios_are_taken_round_by_round(script):
    rates = {"bare": [100.0, 200.0, 100.0], "gpa": [95.0, 160.0, 91.0], "gpa ahead": [80.0, 180.0, 85.0]}
    summary = script.summarize(rates | {"erm": [100.0, 168.0, 91.0]})
    assert summary["ratios"]["gpa over bare"] == {"median": 0.91, "low": 0.8, "high": 0.95}
    assert summary["reached"] == {"gpa over bare": True, "gpa ahead over bare": False, "gpa's step over erm's": True}
    assert summary["images_per_second"]["gpa"] == 95.0


def test_a_resnet_is_the_default_and_its_absence_is_said(script, monkeypatch, capsys):
    there = {"timm"}
    monkeypatch.setattr(script, "importable", lambda name: name in there)
    assert script.read_settings([])[0].backbone == "timm:resnet50"
    there.clear()
    with pytest.raises(SystemExit):
        script.read_settings([])
    assert "give --backbone cnn" in capsys.readouterr().err
