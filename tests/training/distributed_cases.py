"""What two processes and one are both asked to do; run by torchrun, this file leaves the answers of each process."""

import os
import sys
import warnings
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import nn

import sitewise as sw
from sitewise.bench.methods import METHODS
from sitewise.ratio import score
from sitewise.training.checkpoint import Checkpoint
from sitewise.training.devices import DistributedNetwork, Share, join_processes

METHODS_TRIED = ("erm", "irm", "group_dro", "coral", "dann", "sfb", "ttlsa")
CASES = ("gradient", "gpa", "adapted", "images", *METHODS_TRIED)


def rows(n, seed):
    """Rows of three sites with weights, patients and a mixed z, in a table of four features."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, n)
    Z = pd.DataFrame({"age": rng.normal(50, 10, n) + 5 * y, "sex": rng.choice(["f", "m"], n)})
    Z.loc[rng.random(n) < 0.1, "age"] = np.nan
    X = rng.normal(size=(n, 4)) + 0.8 * y[:, None] * [1, 1, 0, 0]
    site = np.array(["a", "b", "c"])[rng.choice(3, n, p=[0.6, 0.3, 0.1])]
    return {"X": X, "y": y, "site": site, "Z": Z, "weight": rng.uniform(0.1, 4.0, n), "patient": np.arange(n) // 2}


def fit_gpa(devices, **settings):
    """GPA on weighted rows, 37 in a batch, the best of three snapshots."""
    data = rows(211, 0)
    model = sw.GPAClassifier(epochs=3, batch_size=37, device="cpu", devices=devices, verbose=False, **settings)
    return model.fit(data["X"], data["y"], data["site"], data["Z"], data["patient"], data["weight"])


def fit_images(devices):
    """A small convolutional network on bytes, each step in two passes of nine rows and ten."""
    rng = np.random.default_rng(3)
    y = rng.integers(0, 2, 76)
    X = rng.integers(0, 120, (76, 1, 12, 12)).astype(np.uint8) + (60 * y).astype(np.uint8)[:, None, None, None]
    torch.manual_seed(int(os.environ.get("RANK", 0)))  # processes begin with the weights of the first
    backbone = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
    recipe = sw.Recipe(epochs=2, batch_size=10, min_steps=0, accumulate=2)
    method = METHODS["erm"](backbone=Bytes(backbone), recipe=recipe, device="cpu", devices=devices, verbose=False)
    fitted = method.fit(X, y)
    return {"history": fitted.trained_.history, "outputs": fitted.outputs(X)}


class Sum(nn.Module):
    """A linear layer that reads x and z."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x, z, both=False):
        outputs = self.layer(x + z)
        return (outputs, outputs.tanh()) if both else outputs


def gradient(spread):
    """The gradient of a loss that compares all rows of a batch of seven (Adam would not notice a factor)."""
    torch.manual_seed(5)
    module, x, z = Sum(), torch.randn(7, 4), torch.randn(7, 4)
    network = module
    if spread:
        fabric = join_processes("cpu")
        network = DistributedNetwork(fabric.setup_module(module), Share(fabric.global_rank, fabric.world_size))
    few = {n: score(network, x[:n], z[:n]) for n in (1, 3)}  # in evaluation, of fewer rows than processes too
    outputs, bent = network(x, z, True)
    (outputs.std(dim=0).sum() + (bent[0] - bent[6]).square().sum() + outputs[3].sum()).backward()
    return {name: parameter.grad for name, parameter in module.named_parameters()} | {f"few {n}": few[n] for n in few}


class Bytes(nn.Module):
    """A network that reads bytes."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, x):
        return self.network(x.float() / 255)


def fit_method(name, devices, **data):
    """Any method of the comparison, its loss of whole batches."""
    data = rows(211, 0) | data
    Z = data["Z"][["sex"]] if name == "ttlsa" else data["Z"]
    method = METHODS[name](epochs=2, batch_size=50, device="cpu", devices=devices, verbose=False)
    weight, unlabeled = data["weight"], data.get("unlabeled")
    fitted = method.fit(data["X"], data["y"], data["site"], Z, sample_weight=weight, unlabeled=unlabeled)
    return {"history": fitted.trained_.history, "outputs": fitted.outputs(data["X"])}


def describe(model):
    """What a fitted model says of itself and of training rows."""
    data = rows(211, 0)
    return {
        "history": model.training_history_,
        "best": model.best_epoch_,
        "log_ratio": torch.as_tensor(model.log_ratio(data["X"], data["Z"])),
    }


def adapt(model):
    """A new site, which every process adapts to by itself."""
    new = rows(180, 1)
    y = np.where(np.arange(180) % 9 == 0, new["y"], np.nan)
    here = model.adapt(new["X"], new["Z"], y=y, groups=new["patient"], sample_weight=new["weight"])
    low, high = here.prevalence_interval()
    return {
        "marginal": torch.tensor(here.prevalence()),
        "interval": torch.tensor(np.stack([low, high])),
        "proba": torch.tensor(here.predict_proba(new["X"], new["Z"])),
        "kept": len(here.rows),
    }


def answers(devices):
    """Everything."""
    model = fit_gpa(devices)
    return {
        "gradient": gradient(devices != 1),
        "gpa": describe(model),
        "adapted": adapt(model),
        "images": fit_images(devices),
        **{name: fit_method(name, devices) for name in METHODS_TRIED},
    }


def refused(function, *arguments, **settings):
    """The settings of a process."""
    try:
        function(*arguments, **settings)
    except ValueError as error:
        return str(error)
    return "nothing"


class Killed(BaseException):
    """The end of a process."""


def resume(path, rank):
    """The first process trains alone until it is killed; then both go on from its checkpoint."""
    if rank == 0:
        save = Checkpoint.save

        def save_and_die(checkpoint, parts, generator):
            save(checkpoint, parts, generator)
            raise Killed

        Checkpoint.save = save_and_die
        try:
            fit_gpa(1, checkpoint=path)
        except Killed:
            assert path.exists()
        finally:
            Checkpoint.save = save
    torch.distributed.barrier()
    model = fit_gpa("auto", checkpoint=path)
    torch.distributed.barrier()
    epochs = [record["epoch"] for record in model.training_history_]
    return {"epochs": epochs, "log_ratio": describe(model)["log_ratio"], "left": path.exists()}


class Line:
    """A toy objective: y = 2x."""

    def __init__(self, n_rows):
        self.x = torch.linspace(-1, 1, n_rows)[:, None]
        self.sites = torch.zeros(n_rows, dtype=torch.int64)

    def to(self, device):
        """All is on the CPU."""

    def begin_epoch(self, generator, progress):
        """Nothing changes."""

    def reading(self, upcoming):
        return nullcontext()

    def loss(self, module, rows):
        return ((module(self.x[rows]) - 2 * self.x[rows]) ** 2).mean()

    def validation_loss(self, module):
        return None


def main(folder):
    """The answers of a process, and its error if processes get different data."""
    rank = int(os.environ["RANK"])
    answer = answers("auto")
    new = rows(180, 1)
    answer["different"] = refused(fit_gpa, "auto", random_state=rank)
    answer["drawn"] = fit_method("iwdann", "auto", unlabeled={"d": new["X"][:31], "e": new["X"][31:]})
    answer["resumed"] = resume(Path(folder) / "run.pt", rank)
    torch.save(answer, Path(folder) / f"{rank}.pt")


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    main(sys.argv[1])
