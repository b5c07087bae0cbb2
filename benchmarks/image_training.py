"""Images per second of training on a GPU, divided by those of a bare loop on synthetic tensors.

python benchmarks/image_training.py --out benchmarks/image_training.json

bare        the same network and optimizer in a loop written by hand; its batches are on the device before it begins
gpa         GPA's objective with `train`; the pack is copied to the device once
gpa ahead   the same, but the pack stays on disk, and images are read before they are needed
erm         ERM with `train`; the pack is on the device

The loops are run in turn, in several rounds. The first epoch of every run is not counted. The pack was written shortly
before, so it is in the page cache of the operating system.
"""

import argparse
import json
import os
import tempfile
import time
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from PIL import Image
from records import commit
from torch import nn

from sitewise.artifacts.folders import versions
from sitewise.bench.methods.erm import ERM
from sitewise.bench.methods.objective import MethodObjective, Prepared
from sitewise.confounders import Confounders
from sitewise.datasets.packed import PackedImages
from sitewise.datasets.packed.writing import pack
from sitewise.estimator.source.prevalences import fit_prevalence
from sitewise.inputs import DEVICE_SHARE, StoredImages
from sitewise.ratio import RatioObjective, build_ratio
from sitewise.rows import LabeledRows
from sitewise.tables.manifest import Manifest
from sitewise.training import Recipe
from sitewise.training.loop import train

N_SITES, DISTINCT, SYNTHETIC, SEED = 4, 512, 4, 0
RESNETS = {"torchvision": "torchvision:resnet50", "timm": "timm:resnet50", "monai": "monai:resnet50"}
TARGETS = {"gpa over bare": 0.9, "gpa ahead over bare": 0.9}
STEP_TARGET = 1.1


@dataclass(frozen=True)
class Settings:
    """The settings of the measurement."""

    backbone: str
    images: int
    size: int
    batch: int
    rounds: int
    epochs: int
    device: str
    precision: str

    @property
    def steps_per_epoch(self):
        return max(1, self.images // self.batch)

    def recipe(self):
        return Recipe(epochs=1 + self.epochs, batch_size=self.batch, min_steps=0, precision=self.precision)


@dataclass(frozen=True)
class Data:
    """Rows of several sites, whose images are in a pack."""

    images: PackedImages
    rows: LabeledRows
    schema: Confounders
    prevalences: list

    def labeled(self, share):
        """Return the rows; images may use the share `share` of the device's memory."""
        return replace(self.rows, X=StoredImages(self.images, share))


@dataclass
class Clock:
    """The times at which epochs begin and the last epoch ends."""

    starts: list = field(default_factory=list)
    end: float = 0.0

    def timed(self, kind):
        """Return a subclass of an objective that stores these times; the loop waits for the device after each epoch."""
        clock = self

        class Timed(kind):
            def begin_epoch(self, generator, progress):
                clock.starts.append(time.perf_counter())
                super().begin_epoch(generator, progress)

            def validation_loss(self, module):
                clock.end = time.perf_counter()

        return Timed

    def seconds(self):
        """Return the seconds of all epochs except the first."""
        return self.end - self.starts[1]


def make_pack(folder, settings):
    """Write images of noise to files, and pack them."""
    rng = np.random.default_rng(SEED)
    (folder / "images").mkdir()
    paths = [f"{row}.png" for row in range(settings.images)]
    for row, path in enumerate(paths):
        if row < DISTINCT:
            pixels = rng.integers(0, 256, (settings.size, settings.size, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "images" / path, compress_level=0)
        else:
            os.link(folder / "images" / paths[row % DISTINCT], folder / "images" / path)
    table = pd.DataFrame({"path": paths, "site": "s", "y": 0, "id": [str(row) for row in range(settings.images)]})
    return pack(Manifest(table, folder / "images"), folder / "packed", settings.size, progress=False)


def make_data(images):
    """Draw classes, sites and three confounders for the images of a pack, and fit the g of every site."""
    rng = np.random.default_rng(SEED)
    n = len(images)
    y = torch.tensor(rng.integers(0, 2, n))
    site = torch.tensor(rng.integers(0, N_SITES, n))
    Z = pd.DataFrame(
        {
            "age": rng.normal(55, 15, n),
            "sex": rng.choice(["f", "m"], n),
            "place": rng.choice(["head", "trunk", "arm", "leg"], n),
        }
    )
    schema = Confounders.learn(Z)
    codes = schema.encode(Z)[0]
    rows = LabeledRows(X=StoredImages(images), y=y, weight=torch.ones(n), site=site, codes=codes)
    parts = [rows.take(site == s) for s in range(N_SITES)]
    return Data(images, rows, schema, [fit_prevalence("additive", part, 2, schema, 0.5, SEED) for part in parts])


def build(settings, data, schema):
    return build_ratio(settings.backbone, data.rows.X, schema, 2, SEED)


def wait(device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def bare(settings, data):
    """Return the seconds of a loop written by hand, and the place of its images."""
    device = torch.device(settings.device)
    module = build(settings, data, data.schema).to(device, memory_format=torch.channels_last)
    fused = device.type == "cuda" or None
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4, weight_decay=0.01, fused=fused)
    generator = torch.Generator(device).manual_seed(SEED)
    batches = []
    for _ in range(SYNTHETIC):
        x = torch.rand(settings.batch, 3, settings.size, settings.size, device=device, generator=generator)
        z = torch.rand(settings.batch, data.schema.inputs(data.rows.codes[:1]).shape[1], device=device)
        y = torch.randint(2, (settings.batch,), device=device, generator=generator)
        batches.append((x.contiguous(memory_format=torch.channels_last), z, y))
    module.train()
    for step in range((1 + settings.epochs) * settings.steps_per_epoch):
        if step == settings.steps_per_epoch:
            wait(device)
            start = time.perf_counter()
        x, z, y = batches[step % SYNTHETIC]
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, enabled=settings.precision == "bf16-mixed"):
            loss = nn.functional.cross_entropy(module(x, z), y)
        loss.backward()
        optimizer.step()
    wait(device)
    return time.perf_counter() - start, "device"


def trained(settings, module, objective, clock):
    train(module, objective, settings.recipe(), device=settings.device, seed=SEED, verbose=False)
    return clock.seconds(), "device" if isinstance(objective.training.X, torch.Tensor) else "disk"


def gpa(settings, data, share=DEVICE_SHARE):
    clock = Clock()
    kind = clock.timed(RatioObjective)
    objective = kind(data.labeled(share), None, data.schema, data.prevalences, None, knockout=0.5)
    return trained(settings, build(settings, data, data.schema), objective, clock)


def gpa_ahead(settings, data):
    return gpa(settings, data, share=0.0)


def erm(settings, data):
    clock = Clock()
    nobody = data.rows.take(torch.zeros(0, dtype=torch.int64))
    objective = clock.timed(MethodObjective)(ERM(), data.labeled(DEVICE_SHARE), nobody, None, Prepared(), [])
    return trained(settings, build(settings, data, None), objective, clock)


LOOPS = {"bare": bare, "gpa": gpa, "gpa ahead": gpa_ahead, "erm": erm}


def measure(settings, data):
    """Return the images per second of every loop in every round, and the place of the images (device or disk)."""
    counted = settings.epochs * settings.steps_per_epoch * (settings.images // settings.steps_per_epoch)
    bare_counted = settings.epochs * settings.steps_per_epoch * settings.batch
    rates, places = {name: [] for name in LOOPS}, {}
    for number in range(settings.rounds):
        for name, loop in LOOPS.items():
            seconds, places[name] = loop(settings, data)
            rates[name].append((bare_counted if name == "bare" else counted) / seconds)
        shown = ", ".join(f"{name} {ratios[-1]:.0f}" for name, ratios in rates.items())
        print(f"round {number + 1}: images/s {shown}", flush=True)
    return rates, places


def ratio(numerators, denominators):
    """Return the median and the range of the ratios in the rounds."""
    ratios = np.array(numerators) / np.array(denominators)
    return {"median": float(np.median(ratios)), "low": float(ratios.min()), "high": float(ratios.max())}


def summarize(rates):
    """Return images per second, ratios, their targets, and whether these are reached."""
    over_bare = {f"{name} over bare": ratio(rates[name], rates["bare"]) for name in LOOPS if name != "bare"}
    step = ratio(rates["erm"], rates["gpa"])
    reached = {name: over_bare[name]["median"] >= target for name, target in TARGETS.items()}
    return {
        "images_per_second": {name: float(np.median(ratios)) for name, ratios in rates.items()},
        "ratios": over_bare | {"gpa's step over erm's": step},
        "targets": TARGETS | {"gpa's step over erm's": STEP_TARGET},
        "reached": reached | {"gpa's step over erm's": step["median"] <= STEP_TARGET},
    }


def importable(name):
    """Whether a library is installed and works with the installed torch."""
    try:
        import_module(name)
    except (ImportError, RuntimeError, OSError):
        return False
    return True


def read_settings(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", help="resnet50 of torchvision, timm or monai by default, the first that is there")
    parser.add_argument("--images", type=int, default=4096)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=3, help="counted in each run, after one that is not")
    parser.add_argument("--out", type=Path)
    given = vars(parser.parse_args(arguments))
    out = given.pop("out")
    cuda = torch.cuda.is_available()
    given["backbone"] = given["backbone"] or next((RESNETS[name] for name in RESNETS if importable(name)), None)
    if given["backbone"] is None:
        parser.error("none of torchvision, timm and monai is installed: give --backbone cnn")
    return Settings(**given, device="cuda" if cuda else "cpu", precision="bf16-mixed" if cuda else "32-true"), out


def main(arguments=None):
    settings, out = read_settings(arguments)
    made_by = {**versions(), "cudnn": torch.backends.cudnn.version(), "commit": commit()}
    torch.backends.cudnn.benchmark = True  # for all loops
    with tempfile.TemporaryDirectory() as folder:
        data = make_data(make_pack(Path(folder), settings))
        rates, places = measure(settings, data)
    record = {
        "work": "training images per second over a bare loop",
        **asdict(settings),
        "device": torch.cuda.get_device_name() if settings.device == "cuda" else "cpu",
        **summarize(rates),
        "rounds_images_per_second": rates,
        "images_on": places,
        **made_by,
    }
    text = json.dumps(record, indent=1)
    if out is not None:
        out.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
