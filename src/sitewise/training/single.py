"""One device, with the part of Lightning Fabric's interface that the training loop uses, and the same bits."""

import warnings
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from sitewise.arrays import did_you_mean

HALF = {"16-mixed": torch.float16, "bf16-mixed": torch.bfloat16}
DEVICES = ("auto", "cpu", "cuda", "gpu", "mps")
UNKNOWN = "device must be one of {known}, got {device!r}{meant}"
ABSENT = "device={device!r}, but this machine has none that torch can use: take device='auto' or 'cpu'"
HALF_ON_CPU = "precision='16-mixed' needs a GPU: on the CPU 'bf16-mixed' is used"


def find_device(name: str) -> torch.device:
    """Return the device of a name; "auto" is a GPU if there is one."""
    if name not in DEVICES:
        raise ValueError(UNKNOWN.format(known=", ".join(DEVICES), device=name, meant=did_you_mean(name, DEVICES)))
    if name == "cpu":
        return torch.device("cpu")
    if name != "mps" and torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    if name != "cuda" and torch.backends.mps.is_available():
        return torch.device("mps")
    if name == "auto":
        return torch.device("cpu")
    raise ValueError(ABSENT.format(device=name))


class OneDevice:
    """Trains on one device in this process, in single or in mixed precision."""

    global_rank, world_size = 0, 1

    def __init__(self, device: str = "auto", precision: str = "32-true") -> None:
        self.device = find_device(device)
        if precision == "16-mixed" and self.device.type == "cpu":
            warnings.warn(HALF_ON_CPU, stacklevel=2)
            precision = "bf16-mixed"
        self.half = HALF.get(precision)
        self.scaler = torch.amp.GradScaler(self.device.type) if self.half == torch.float16 else None

    def setup(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[nn.Module, Any]:
        """Return the network and the optimizer that a step uses."""
        network = module if self.half is None else MixedPrecision(module, self.device.type, self.half)
        return network, optimizer if self.scaler is None else ScaledOptimizer(optimizer, self.scaler)

    def backward(self, loss: Tensor) -> None:
        """Compute gradients, in half precision those of the scaled loss."""
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()

    def no_backward_sync(self, network: nn.Module, enabled: bool = True) -> AbstractContextManager[None]:
        """Do nothing: there is one process."""
        return nullcontext()

    def broadcast(self, value: Any) -> Any:
        """Return the value: there is one process."""
        return value

    def state_dict(self) -> dict[str, Any]:
        """Return the scale of the loss, for a checkpoint."""
        return {} if self.scaler is None else self.scaler.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the scale of the loss."""
        if self.scaler is not None:
            self.scaler.load_state_dict(state_dict)


class MixedPrecision(nn.Module):
    """A network that computes in half precision where that is safe, and returns single precision."""

    def __init__(self, network: nn.Module, device: str, dtype: torch.dtype) -> None:
        super().__init__()
        self.network, self.device, self.dtype = network, device, dtype

    def forward(self, *inputs: Any) -> Any:
        """Return the outputs, one tensor or several."""
        with torch.autocast(self.device, dtype=self.dtype):
            outputs = self.network(*(_to(value, self.dtype) for value in inputs))
        if isinstance(outputs, Tensor):
            return _to(outputs, torch.float32)
        return tuple(_to(value, torch.float32) for value in outputs)


class ScaledOptimizer:
    """An optimizer whose gradients belong to a scaled loss."""

    def __init__(self, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler) -> None:
        self.optimizer, self.scaler = optimizer, scaler

    def zero_grad(self) -> None:
        """Reset the gradients."""
        self.optimizer.zero_grad()

    def step(self) -> None:
        """Take a step; if gradients overflowed, reduce the scale instead."""
        self.scaler.step(self.optimizer)
        self.scaler.update()


def _to(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value
