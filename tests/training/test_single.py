"""One device without Lightning Fabric: the same bits as with it, and a clear error if several are requested."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from sitewise.training.devices import OneDevice, fabric_class, find_device

STEPS = 20


def weights_after(runner, seed=0):
    """Of a small network after some steps, forward and backward by a runner."""
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 3))
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    network, stepper = runner.setup(module, optimizer)
    x, y = torch.randn(STEPS, 64, 6), torch.randint(3, (STEPS, 64))
    for rows, labels in zip(x, y, strict=True):
        stepper.zero_grad()
        for part in (slice(0, 32), slice(32, None)):
            with runner.no_backward_sync(network, enabled=part.start == 0):
                outputs = network(rows[part])
                assert outputs.dtype == torch.float32
                runner.backward(nn.functional.cross_entropy(outputs, labels[part]))
        stepper.step()
    return torch.nn.utils.parameters_to_vector(module.parameters())


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_the_bits_are_those_of_fabric(precision):
    fabric = fabric_class()(accelerator="cpu", devices=1, precision=precision)
    fabric.launch()
    assert torch.equal(weights_after(OneDevice("cpu", precision)), weights_after(fabric))


def test_half_precision_on_the_cpu_is_that_of_bfloat():
    with pytest.warns(UserWarning, match="bf16-mixed"):
        runner = OneDevice("cpu", "16-mixed")
    assert torch.equal(weights_after(runner), weights_after(OneDevice("cpu", "bf16-mixed")))
    assert runner.state_dict() == {}


def test_devices_by_name():
    assert find_device("cpu").type == "cpu"
    with pytest.raises(ValueError, match="must be one of auto, cpu, cuda, gpu, mps, got 'cudda'; did you mean 'cuda'"):
        find_device("cudda")
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="device='cuda', but this machine has none"):
            find_device("cuda")


WITHOUT = """
import sys
sys.modules["lightning_fabric"] = sys.modules["lightning"] = None
import numpy as np, sitewise as sw
X = np.random.default_rng(0).normal(size=(80, 3))
y = (X[:, 0] > 0).astype(int)
site = np.repeat(["a", "b"], 40)
model = sw.GPAClassifier(epochs=1, device="cpu").fit(X, y, sample_domain=site)
print(model.adapt(X).prevalence().sum().round(6))
try:
    sw.GPAClassifier(epochs=1, device="cpu", devices=2).fit(X, y, sample_domain=site)
except ImportError as error:
    print(error)
"""


def test_training_without_fabric():
    run = subprocess.run([sys.executable, "-W", "error", "-c", WITHOUT], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    total, message = run.stdout.splitlines()
    assert float(total) == 1
    assert "pip install 'sitewise[gpu]', or train with devices=1" in message
