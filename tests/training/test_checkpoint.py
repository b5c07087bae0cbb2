"""A killed training goes on from its checkpoint to the same bits."""

import io
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import nn

import sitewise as sw
from sitewise.artifacts.places import sole_writer
from sitewise.bench.methods import METHODS
from sitewise.bench.methods.group_dro import GroupDRO
from sitewise.bench.methods.iwdann import IWDANN
from sitewise.ratio import RatioObjective
from sitewise.training import Recipe
from sitewise.training.checkpoint import digest, read_content, seal
from sitewise.training.loop import train

RECIPE = Recipe(epochs=6, batch_size=16, min_steps=0)


class KilledError(Exception):
    pass


class Line:
    """y = 2x, with a memory of its own; it can be killed in the middle of an epoch."""

    def __init__(self, kill_at=None, n_rows=100):
        self.x = torch.linspace(-1, 1, n_rows)[:, None]
        self.sites = torch.arange(n_rows) % 2
        self.memory = torch.zeros(())
        self.epoch, self.calls, self.kill_at = 0, 0, kill_at

    def to(self, device):
        pass

    def begin_epoch(self, generator, progress):
        self.noise = 0.1 * torch.randn(len(self.x), 1, generator=generator)
        self.epoch = round(progress * RECIPE.epochs) + 1
        self.calls = 0

    def reading(self, upcoming):
        return nullcontext()

    def loss(self, module, rows):
        self.calls += 1
        if self.epoch == self.kill_at and self.calls == 3:
            raise KilledError
        value = ((module(self.x[rows]) - 2 * self.x[rows] - self.noise[rows]) ** 2).mean()
        self.memory = 0.9 * self.memory + 0.1 * value.detach()
        return value / (1 + self.memory)

    def validation_loss(self, module):
        return float(((module(self.x) - 2 * self.x) ** 2).mean())

    def identity(self):
        return {"data": digest(self.x)}

    def state_dict(self):
        return {"memory": self.memory}

    def load_state_dict(self, state_dict):
        self.memory = state_dict["memory"]


def network(width=8):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(1, width), nn.BatchNorm1d(width), nn.Dropout(0.2), nn.Linear(width, 1))


def same(a, b):
    assert a.history == b.history
    assert a.best_epoch == b.best_epoch
    for name, value in a.module.state_dict().items():
        assert torch.equal(value, b.module.state_dict()[name]), name


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("changes", [{}, {"schedule": "constant"}, {"precision": "bf16-mixed"}, {"accumulate": 2}])
def test_a_killed_run_ends_where_it_would_have(tmp_path, every, changes):
    recipe = Recipe(**{"epochs": 6, "batch_size": 16, "min_steps": 0, **changes})
    straight = train(network(), Line(), recipe, device="cpu", seed=3)
    file = tmp_path / "there" / "run.pt"
    again = {"device": "cpu", "seed": 3, "checkpoint": file, "checkpoint_every": every}
    for epoch in (4, 5):
        torch.rand(epoch)  # whatever else the program draws
        with pytest.raises(KilledError):
            train(network(), Line(kill_at=epoch), recipe, **again)
        assert [path.name for path in file.parent.iterdir()] == ["run.pt"]
    resumed = Line()
    same(straight, train(network(), resumed, recipe, **again))
    assert not list(file.parent.iterdir())


def test_a_resumed_run_repeats_no_epoch_and_stops_as_early(tmp_path):
    class Worsening(Line):
        began = 0

        def begin_epoch(self, generator, progress):
            super().begin_epoch(generator, progress)
            self.began += 1

        def validation_loss(self, module):
            return float(self.epoch)

    recipe = Recipe(epochs=6, batch_size=16, min_steps=0, patience=4)
    with pytest.raises(KilledError):
        train(network(), Worsening(kill_at=4), recipe, device="cpu", checkpoint=tmp_path)
    line = Worsening()
    trained = train(network(), line, recipe, device="cpu", checkpoint=tmp_path)
    assert line.began == 2
    assert [record["epoch"] for record in trained.history] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"recipe": Recipe(epochs=7, batch_size=16, min_steps=0)}, "recipe.epochs is 6 in the file and 7 here"),
        ({"seed": 1}, "seed is 0 in the file and 1 here"),
        ({"module": network(9)}, "network.0.weight is \\(8, 1\\) in the file and \\(9, 1\\) here"),
        ({"module": network().apply(lambda layer: layer.reset_parameters() if isinstance(layer, nn.Linear) else 0)},
         "first weights"),
        ({"objective": Line(n_rows=90)}, "data is"),
        ({"label": "another"}, "training is training in the file and another here"),
    ],
)  # fmt: skip
def test_a_checkpoint_of_another_training_is_refused(tmp_path, changed, words):
    file = tmp_path / "run.pt"
    with pytest.raises(KilledError):
        train(network(), Line(kill_at=4), RECIPE, device="cpu", checkpoint=file)
    with pytest.raises(ValueError, match=words):
        train(**{"module": network(), "objective": Line(), "recipe": RECIPE, "seed": 0, **changed},
              device="cpu", checkpoint=file)  # fmt: skip
    assert file.exists()


def test_a_folder_holds_several_trainings(tmp_path):
    for seed in (0, 1):
        with pytest.raises(KilledError):
            train(network(), Line(kill_at=3), RECIPE, device="cpu", seed=seed, checkpoint=tmp_path / "runs")
    assert len(list((tmp_path / "runs").iterdir())) == 2
    for seed in (0, 1):
        resumed = train(network(), Line(), RECIPE, device="cpu", seed=seed, checkpoint=tmp_path / "runs")
        same(train(network(), Line(), RECIPE, device="cpu", seed=seed), resumed)


def test_a_file_that_is_no_checkpoint_is_left_alone(tmp_path):
    file = tmp_path / "notes.txt"
    file.write_text("hello")
    with pytest.raises(ValueError, match="is no checkpoint"):
        train(network(), Line(), RECIPE, device="cpu", checkpoint=file)
    assert file.read_text() == "hello"


def killed_training(file):
    with pytest.raises(KilledError):
        train(network(), Line(kill_at=4), RECIPE, device="cpu", checkpoint=file)
    return file.read_bytes()


def test_every_flipped_bit_of_a_checkpoint_is_noticed(tmp_path):
    """One in five flips went unnoticed before there was a checksum, and led to another model."""
    file = tmp_path / "run.pt"
    content = killed_training(file)
    places = np.random.default_rng(0).integers(0, len(content), 60).tolist()
    for place in [0, 20, 60, 100, len(content) - 1, *places]:
        damaged = bytearray(content)
        damaged[place] ^= 1 << place % 8
        file.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"is no checkpoint|is damaged"):
            train(network(), Line(), RECIPE, device="cpu", checkpoint=file)
        assert file.read_bytes() == damaged
    file.write_bytes(content)
    same(
        train(network(), Line(), RECIPE, device="cpu"), train(network(), Line(), RECIPE, device="cpu", checkpoint=file)
    )


@pytest.mark.parametrize("length", [0, 1, 50, 2000, -1])
def test_a_truncated_checkpoint_is_noticed(tmp_path, length):
    file = tmp_path / "run.pt"
    file.write_bytes(killed_training(file)[:length])
    with pytest.raises(ValueError, match=r"is no checkpoint|is damaged"):
        train(network(), Line(), RECIPE, device="cpu", checkpoint=file)


@pytest.mark.parametrize(
    "forge",
    [
        lambda content: [],
        lambda content: {"identity": content["identity"]},
        lambda content: content | {"parts": {}},
        lambda content: content | {"random": {}},
        lambda content: content | {"identity": 3},
        lambda content: content | {"parts": dict.fromkeys(content["parts"], 3)},
    ],
)
def test_a_forged_checkpoint_is_named(tmp_path, forge):
    file = tmp_path / "run.pt"
    killed_training(file)
    stream = io.BytesIO()
    torch.save(forge(read_content(file)), stream)
    file.write_bytes(seal(stream.getvalue()))
    with pytest.raises(ValueError, match=r"run\.pt .*delete it"):
        train(network(), Line(), RECIPE, device="cpu", checkpoint=file)


def test_a_checkpoint_that_another_training_writes_is_left_to_it(tmp_path):
    file = tmp_path / "run.pt"
    with sole_writer(file), pytest.raises(OSError, match="another program is writing there"):
        train(network(), Line(), RECIPE, device="cpu", checkpoint=file)


def test_what_a_killed_writer_left_is_removed(tmp_path):
    (tmp_path / ".run.pt.part-00000000").write_bytes(b"half")
    killed_training(tmp_path / "run.pt")
    assert [path.name for path in tmp_path.iterdir()] == ["run.pt"]


def test_a_diverged_run_leaves_no_checkpoint_behind(tmp_path):
    class Nan(Line):
        def validation_loss(self, module):
            return float("nan")

    with pytest.raises(FloatingPointError):
        train(network(), Nan(), RECIPE, device="cpu", checkpoint=tmp_path)
    assert not list(tmp_path.iterdir())


def data():
    rng = np.random.default_rng(0)
    y = rng.integers(2, size=300)
    z = np.where(rng.random(300) < 0.7, y, 1 - y)
    X = rng.normal(size=(300, 3)) + y[:, None] + 0.5 * z[:, None]
    return {"X": X, "y": y, "sample_domain": np.repeat(["a", "b"], 150), "sample_confounder": {"sex": z}}


def kill_after(monkeypatch, kind, n_calls):
    """Let a loss work so many times and then kill the run."""
    original, calls = kind.loss, []

    def loss(self, *arguments):
        calls.append(1)
        if len(calls) > n_calls:
            raise KilledError
        return original(self, *arguments)

    monkeypatch.setattr(kind, "loss", loss)


@pytest.mark.parametrize(("name", "kind"), [("group_dro", GroupDRO), ("iwdann", IWDANN)])
def test_methods_with_a_memory_resume(tmp_path, monkeypatch, name, kind):
    rows = data() | {"unlabeled": {"new": data()["X"][:80] + 0.3}}
    settings = {"epochs": 6, "batch_size": 32, "device": "cpu"}
    straight = METHODS[name](**settings).fit(**rows)
    steps = len(data()["y"]) * 0.8 // 32
    with monkeypatch.context() as patch:
        kill_after(patch, kind, 3.5 * steps)
        with pytest.raises(KilledError):
            METHODS[name](**settings, checkpoint=tmp_path).fit(**rows)
    assert len(list(tmp_path.iterdir())) == 1
    resumed = METHODS[name](**settings, checkpoint=tmp_path).fit(**rows)
    assert resumed.trained_.history == straight.trained_.history
    np.testing.assert_array_equal(resumed.predict_proba(rows["X"]), straight.predict_proba(rows["X"]))
    for part, value in vars(straight.trained_.memory).items():
        assert torch.equal(value, vars(resumed.trained_.memory)[part]), part
    assert not list(tmp_path.iterdir())


def test_a_killed_fit_goes_on(tmp_path, monkeypatch):
    settings = {"epochs": 6, "batch_size": 32, "device": "cpu"}
    file = tmp_path / "f.pt"
    straight = sw.GPAClassifier(**settings).fit(**data())
    with monkeypatch.context() as patch:
        kill_after(patch, RatioObjective, 25)
        with pytest.raises(KilledError):
            sw.GPAClassifier(**settings, checkpoint=file).fit(**data())
    with pytest.raises(ValueError, match=r"knockout is 0\.5 in the file and 0\.2 here"):
        sw.GPAClassifier(**settings, knockout=0.2, checkpoint=file).fit(**data())
    other = data()
    other["X"][7] += 1e-6
    with pytest.raises(ValueError, match=r"(training|validation) rows"):
        sw.GPAClassifier(**settings, checkpoint=file).fit(**other)
    resumed = sw.GPAClassifier(**settings, checkpoint=file).fit(**data())
    assert resumed.training_history_ == straight.training_history_
    X, Z = data()["X"], data()["sample_confounder"]
    probability = straight.predict_proba(X, sample_confounder=Z)
    np.testing.assert_array_equal(resumed.predict_proba(X, sample_confounder=Z), probability)
    assert not file.exists()


def test_the_path_is_checked_with_the_other_settings():
    with pytest.raises(ValueError, match="2 problems") as caught:
        sw.GPAClassifier("resnet", checkpoint=3).fit(**data())
    assert "checkpoint must be the path" in str(caught.value)
    with pytest.raises(ValueError, match="ERM: 2 problems"):
        METHODS["erm"](backbone="resnet", checkpoint=3).fit(**data())


def test_hashes_see_every_bit_and_the_shape():
    tensors = [torch.zeros(4), torch.zeros(2, 2), torch.zeros(4, dtype=torch.int32), torch.tensor([0, 0, 0, 1e-30])]
    assert len({digest(tensor) for tensor in tensors}) == 4
    assert digest(torch.zeros(()), torch.zeros(0, 3)) == digest(torch.zeros(()), torch.zeros(0, 3))
