"""Several processes give what one gives, to rounding; what cannot be shared is refused; none waits for an ended one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import distributed_cases as cases
import pytest
import torch
import yaml
from failing import wait_for_the_second
from torch import nn
from typer.testing import CliRunner

from patience import LONG
from sitewise.bench.methods import METHODS
from sitewise.cli import app
from sitewise.training import Recipe, devices, loop
from sitewise.training.devices import DistributedNetwork, Share, launch, share_of
from sitewise.training.loop import train

HERE = Path(__file__).parent


def flat(answers, path=""):
    """Every number of nested answers with its place."""
    if isinstance(answers, dict):
        for name, value in answers.items():
            yield from flat(value, f"{path}/{name}")
    elif isinstance(answers, list):
        for place, value in enumerate(answers):
            yield from flat(value, f"{path}/{place}")
    else:
        yield path, torch.as_tensor(answers, dtype=torch.float64)


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """The answers of two processes of torchrun."""
    folder = tmp_path_factory.mktemp("two")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*command, HERE / "distributed_cases.py", folder],
        capture_output=True,
        text=True,
        timeout=LONG,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@pytest.fixture(scope="module")
def one():
    """Those of this process alone."""
    return dict(flat(cases.answers(1)))


@pytest.mark.filterwarnings("ignore")
def test_two_processes_give_the_result_of_one(one, two):
    """Weighted rows, batches of 37 and of 19 in two passes, every loss that compares rows of a batch, a new site.

    History, outputs, prevalence, intervals and predictions; and the snapshot chosen.
    """
    for answers in two:
        by_name = dict(flat({name: answers[name] for name in answers if name in cases.CASES}))
        assert by_name.keys() == one.keys()
        for place, value in one.items():
            torch.testing.assert_close(by_name[place], value, atol=1e-6, rtol=1e-5, msg=f"{place}: {by_name[place]}")


def test_all_processes_end_with_the_same_bits(two):
    first, second = (dict(flat({name: answers[name] for name in cases.CASES})) for answers in two)
    assert all(torch.equal(first[place], second[place]) for place in first)


def test_methods_that_draw_unlabeled_rows_agree_among_processes(two):
    drawn = [dict(flat(answers["drawn"])) for answers in two]
    assert drawn[0]
    assert all(torch.equal(drawn[0][place], drawn[1][place]) for place in drawn[0])


def test_processes_with_different_data_are_refused(two):
    for answers in two:
        assert "in process 1 and" in answers["different"]
        assert "random_state" in answers["different"]


def test_a_checkpoint_is_finished_by_another_number_of_processes(two):
    for answers in two:
        assert answers["resumed"]["epochs"] == [1, 2, 3]
        torch.testing.assert_close(answers["resumed"]["log_ratio"], answers["gpa"]["log_ratio"], atol=1e-6, rtol=1e-5)
        assert not answers["resumed"]["left"]


# The free port that Lightning finds for its processes may be taken by another program before they listen on it.
@pytest.mark.flaky(reruns=2)
def test_training_experiments_with_two_devices_gives_the_numbers_of_one(tmp_path):
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(TINY))
    numbers = []
    for name, options in (("one", ["--jobs", "1"]), ("two", ["--devices", "2"])):
        run = ["bench", "run", str(tmp_path / "tiny.yaml"), "--out", str(tmp_path / name), "--device", "cpu", *options]
        said = CliRunner().invoke(app, run)
        assert said.exit_code == 0, said.output
        (record,) = (json.loads(line) for line in (tmp_path / name / "tiny.jsonl").read_text().splitlines())
        numbers.append(record["results"]["ERM"]["sites"]["far"]["small"]["nll"])
    assert record["device"] == "cpu x 2"
    assert numbers[1] == pytest.approx(numbers[0], rel=1e-6)


TINY = {
    "data": {"kind": "simulated", "n_continuous": 1, "levels": [2], "seed": 1},
    "recipe": {"name": "default", "epochs": 1, "min_steps": 0, "batch_size": 33},
    "seeds": 1,
    "training": {"a": {"n": 90}, "b": {"n": 70}},
    "validation": {"n": 60},
    "tests": {"far": {"prevalence": [0.8, 0.2]}},
    "draws": {"small": {"score": 80}},
    "methods": {"ERM": "erm"},
    "metric": "nll",
}


@pytest.mark.flaky(reruns=2)  # as above
def test_a_process_that_fails_ends_the_others_and_says_why():
    """The first one waits for the second, which raises."""
    before = dict(os.environ)
    with pytest.raises(ValueError, match="the second gives up") as caught:
        launch(wait_for_the_second, "gives up", device="cpu", devices=2)
    assert "Traceback" in str(caught.value.__cause__)
    assert dict(os.environ) == before


@pytest.mark.parametrize("n_rows", [1, 2, 5, 8, 9])
@pytest.mark.parametrize("of", [1, 2, 3])
def test_shares_hold_every_row_once_also_behind_others(n_rows, of):
    rows = torch.arange(n_rows)
    shares = [Share(rank, of) for rank in range(of)]
    assert sorted(torch.cat([share(rows) for share in shares]).tolist()) == rows.tolist()
    assert [len(share(rows)) for share in shares] == [share.size(n_rows) for share in shares]
    for before in range(4):
        joined = torch.arange(before + n_rows)
        for share in shares:
            own = torch.cat([share(joined[:before]), share(joined[before:], before)])
            assert own.tolist() == share(joined).tolist()


def test_a_module_in_one_process_gets_all_rows():
    assert share_of(nn.Identity()) == Share(0, 1)
    assert share_of(DistributedNetwork(nn.Identity(), Share(1, 2))) == Share(1, 2)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"devices": 2, "nodes": 2}, "torchrun --nproc-per-node=2 --nnodes=2"),
        ({"devices": 2, "strategy": "ddp"}, "torchrun --nproc-per-node=2 script.py; or take strategy='auto'"),
    ],
)
def test_processes_that_were_not_started_are_refused_with_the_command_that_starts_them(settings, said):
    with pytest.raises(ValueError, match=said):
        launch(print, device="cpu", **settings)


def test_an_interactive_prompt_is_refused_with_the_advice_to_run_a_script(monkeypatch):
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    with pytest.raises(ValueError, match="run a script"):
        launch(print, device="cpu", devices=2)


def torchrun(monkeypatch, here, everywhere):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "test")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(here))
    monkeypatch.setenv("WORLD_SIZE", str(everywhere))
    monkeypatch.setenv("RANK", "1")


def test_torchrun_knows_how_many_there_are(monkeypatch):
    assert devices.first_process()
    torchrun(monkeypatch, 2, 6)
    assert devices.torchrun_processes() == (2, 3)
    assert not devices.first_process()
    with pytest.raises(ValueError, match=r"2 process\(es\) on each of 3 machine\(s\), not devices=4, nodes=3"):
        launch(print, device="cpu", devices=4, nodes=3)
    with pytest.raises(ValueError, match="not devices=2, nodes=2"):
        launch(print, device="cpu", devices=2, nodes=2)
    with pytest.raises(ValueError, match="torchrun has started some"):
        launch(print, device="cpu", devices=2, strategy="ddp_spawn")


def test_one_device_under_torchrun_trains_alone_and_says_so(monkeypatch):
    torchrun(monkeypatch, 2, 2)
    with pytest.warns(UserWarning, match="devices='auto' lets them train together"):
        assert launch(lambda fabric: fabric.world_size, device="cpu") == 1


def test_auto_is_every_gpu_or_one_cpu(monkeypatch):
    assert devices.count_devices("cpu", "auto") == 1
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert devices.count_devices("auto", "auto") == 4
    with pytest.raises(ValueError, match=r"devices=8, but there are 4 GPU\(s\)"):
        devices.count_devices("cuda", 8)


def test_all_that_is_wrong_with_a_choice_of_devices_is_said_at_once():
    with pytest.raises(ValueError, match="3 problems") as caught:
        METHODS["erm"](devices=0, nodes=1.5, strategy="dpp").resolved_recipe()
    assert all(name in str(caught.value) for name in ("devices must", "nodes must", "strategy must"))


def test_batch_norm_is_shared_on_gpus_and_refused_on_cpus():
    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    names = list(module.state_dict())
    with pytest.raises(ValueError, match="batch norm"):
        devices.shared_batch_norm(module, torch.device("cpu"))
    synced = devices.shared_batch_norm(module, torch.device("cuda"))
    assert isinstance(synced[1], nn.SyncBatchNorm)
    assert list(synced.state_dict()) == names


def test_more_processes_than_rows_of_a_batch_are_refused(monkeypatch):
    monkeypatch.setattr(loop, "share_of", lambda module: Share(0, 3))
    with pytest.raises(ValueError, match="2 row"):
        train(nn.Linear(1, 1), cases.Line(8), Recipe(batch_size=2, epochs=1, min_steps=0), device="cpu")


def test_every_process_and_epoch_has_random_numbers_of_its_own():
    seeds = {loop.own_seed(7, epoch, Share(rank, 4)) for epoch in range(1, 50) for rank in range(4)}
    assert len(seeds) == 49 * 4
