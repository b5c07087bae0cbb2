"""Training on one device, on several devices or machines, in processes started by torchrun or by this package.

Every process draws the same batches, computes its share of each step's rows, and gathers the network's outputs of all
rows. Therefore, the loss of a batch is the same as in a single process. DDP combines the gradients. Lightning Fabric is
not needed for one device: `OneDevice` has the part of its interface that the training loop uses, and gives bitwise the
same results.
"""

import builtins
import copy
import logging
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.spawn import ProcessRaisedException

from sitewise.arrays import did_you_mean
from sitewise.training.checkpoint import compare

STRATEGIES = ("auto", "ddp", "ddp_spawn")
TORCHRUN = "torchrun --nproc-per-node={devices}{nodes} script.py"
ALONE = (
    "torchrun started {n} processes, and with devices=1 each of them trains by itself: "
    "devices='auto' lets them train together"
)
INTERACTIVE = "devices={devices} starts new processes, which a notebook or a prompt can't do: run a script"
BATCH_NORM = (
    "the network has batch norm, whose statistics are shared between GPUs only: train on GPUs, or with devices=1"
)
NO_FABRIC = "several devices train together by Lightning Fabric: pip install 'sitewise[gpu]', or train with devices=1"
FAILED = "a training process failed: {error}"
HALF = {"16-mixed": torch.float16, "bf16-mixed": torch.bfloat16}
DEVICES = ("auto", "cpu", "cuda", "gpu", "mps")
UNKNOWN = "device must be one of {known}, got {device!r}{meant}"
ABSENT = "device={device!r}, but this machine has none that torch can use: take device='auto' or 'cpu'"
HALF_ON_CPU = "precision='16-mixed' needs a GPU: on the CPU 'bf16-mixed' is used"


def find_device(name: str) -> torch.device:
    """Return the device with this name; "auto" is a GPU if there is one, otherwise the CPU."""
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
        """Compute the gradients of the loss; with float16, of the scaled loss."""
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
    """An optimizer for mixed precision: it unscales the gradients of a scaled loss before a step."""

    def __init__(self, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler) -> None:
        self.optimizer, self.scaler = optimizer, scaler

    def zero_grad(self) -> None:
        """Reset the gradients."""
        self.optimizer.zero_grad()

    def step(self) -> None:
        """Take a step; if gradients overflowed, reduce the scale of the loss instead."""
        self.scaler.step(self.optimizer)
        self.scaler.update()


def _to(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value


def fabric_class() -> Any:
    """Import Lightning's Fabric, which trains on several devices; the import takes seconds."""
    try:
        from lightning_fabric import Fabric
    except ImportError as error:
        raise ImportError(NO_FABRIC) from error
    return Fabric


def precision_of(fabric: Any) -> Any:
    """Return the object whose state, for a checkpoint, is that of mixed precision."""
    return fabric if isinstance(fabric, OneDevice) else fabric.strategy.precision


@dataclass(frozen=True)
class Share:
    """The rows of a step that one of `of` processes computes: every `of`-th row, starting at row `rank`."""

    rank: int = 0
    of: int = 1

    def __call__(self, rows: Tensor, before: int = 0) -> Tensor:
        """Return this process's share of some rows of a step, which follow `before` other rows of the step."""
        return rows[(self.rank - before) % self.of :: self.of]

    def within(self, place: slice, n_rows: int) -> slice:
        """Return this process's share of a slice of `n_rows` rows; if it is empty, return the slice's first row."""
        if self.of == 1:
            return place
        start, stop, _ = place.indices(n_rows)
        return slice(start + self.rank, stop, self.of) if start + self.rank < stop else slice(start, start + 1)

    def size(self, n_rows: int) -> int:
        """Return how many of n rows this process computes."""
        return len(range(self.rank, n_rows, self.of))


WHOLE = Share()


class DistributedNetwork(nn.Module):
    """A network whose rows are distributed over processes: each computes its share, and all get all outputs.

    The first input has all rows or only this process's share. The second input has all rows. Further inputs are passed
    on unchanged. If there are fewer rows than processes (in scoring), some processes compute a row that is not used.
    """

    def __init__(self, network: nn.Module, share: Share) -> None:
        super().__init__()
        self.network, self.share = network, share

    def forward(self, x: Tensor, z: Tensor, *more: Any) -> Any:
        """Return the outputs of all rows of z, in their order: one tensor or several."""
        n_rows = len(z)
        own_x, own_z = x if len(x) == self.share.size(n_rows) else self.share(x), self.share(z)
        if not len(own_z):
            own_x, own_z = x[:1], z[:1]
        outputs = self.network(own_x, own_z, *more)
        if isinstance(outputs, Tensor):
            return self._gather(outputs, n_rows)
        return tuple(self._gather(output, n_rows) for output in outputs)

    def _gather(self, own: Tensor, n_rows: int) -> Tensor:
        """Gather the rows of all processes in their order.

        All processes compute the same loss, and each computes the gradient of its own rows. These gradients have to be
        summed, but DDP averages them. Therefore, they are multiplied by the number of processes.
        """
        largest = -(-n_rows // self.share.of)
        padded = torch.cat([own, own.new_zeros(largest - len(own), *own.shape[1:])])
        if padded.requires_grad:
            padded.register_hook(partial(torch.mul, self.share.of))
        parts = [torch.empty_like(padded) for _ in range(self.share.of)]
        torch.distributed.all_gather(parts, padded.detach())
        parts[self.share.rank] = padded
        return torch.stack(parts, dim=1).flatten(0, 1)[:n_rows]


def device_problems(devices: Any, nodes: Any, strategy: Any) -> Iterator[str]:
    """Yield the problems of a choice of devices."""
    if devices != "auto" and not _is_count(devices):
        yield f"devices must be a whole number of at least 1 or 'auto', got {devices!r}"
    if not _is_count(nodes):
        yield f"nodes must be a whole number of at least 1, got {nodes!r}"
    if strategy not in STRATEGIES:
        yield f"strategy must be one of {', '.join(STRATEGIES)}, got {strategy!r}"


def launch(
    function: Callable[..., Any],
    *arguments: Any,
    device: str = "auto",
    devices: int | str = 1,
    nodes: int = 1,
    strategy: str = "auto",
    precision: Any = "32-true",
) -> Any:
    """Call function(fabric, *arguments) on every device.

    With one device, the function is called in this process. Under torchrun, all processes call `launch`, and each gets
    its own result. Otherwise, new processes are started on this machine, and the result of the first one is returned.
    In this case, the arguments must be picklable, and the result must consist of tensors and plain values.
    """
    started = torchrun_processes()
    if started is None:
        devices = count_devices(device, devices)
        _refuse_unlaunched(devices, nodes, strategy)
    elif devices == 1 and nodes == 1 and strategy == "auto":
        if started[0] * started[1] > 1:
            warnings.warn(ALONE.format(n=started[0] * started[1]), stacklevel=3)
    else:
        devices, nodes = _as_started(started, devices, nodes, strategy)
    if devices == 1 and nodes == 1:
        return function(OneDevice(device, precision), *arguments)
    with _quiet():
        if started is None:
            return _spawn(device, devices, precision, function, arguments)
        fabric = fabric_class()(
            accelerator=device, strategy="ddp", devices=devices, num_nodes=nodes, precision=precision
        )
        fabric.launch()
    return function(fabric, *arguments)


def join_processes(device: str = "auto") -> Any:
    """Return a launched Lightning Fabric of torchrun's processes, or a `OneDevice` if there is only one process."""
    here, nodes = torchrun_processes() or (1, 1)
    if here * nodes == 1:
        return OneDevice(device)
    with _quiet():
        fabric = fabric_class()(accelerator=device, strategy="ddp", devices=here, num_nodes=nodes)
        fabric.launch()
    return fabric


def torchrun_processes() -> tuple[int, int] | None:
    """Return the number of torchrun's processes on each machine, and the number of machines; None without torchrun."""
    if not torch.distributed.is_available() or not torch.distributed.is_torchelastic_launched():
        return None
    here = int(os.environ["LOCAL_WORLD_SIZE"])
    return here, int(os.environ["WORLD_SIZE"]) // here


def first_process() -> bool:
    """Return whether this process should write files and print, if several processes train a network together.

    Under torchrun, only the first process that it started should do so. Without torchrun, the result is always True.

    Returns
    -------
    bool
        True in exactly one of the processes that torchrun started, and without torchrun.

    Examples
    --------
    >>> if first_process():
    ...     model.save("model/")
    """
    return torchrun_processes() is None or os.environ["RANK"] == "0"


def share_of(module: nn.Module) -> Share:
    """Return this process's share of the rows of a step; a module that is not distributed gets all rows."""
    return module.share if isinstance(module, DistributedNetwork) else WHOLE


def shared_batch_norm(module: nn.Module, device: torch.device) -> nn.Module:
    """Replace each batch norm by one over the rows of all processes; weights keep their names.

    Raise ValueError on a CPU, where this is not possible.
    """
    if not any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in module.modules()):
        return module
    if device.type == "cpu":
        raise ValueError(BATCH_NORM)
    synced: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(module)
    return synced


def check_agreement(fabric: Any, identity: Mapping[str, str], hint: str) -> None:
    """Raise ValueError in every process if the processes do not run the same training.

    `identity` describes the training of this process: its settings and data.
    """
    everybody: list[Any] = [None] * fabric.world_size
    torch.distributed.all_gather_object(everybody, dict(identity))
    for rank, theirs in enumerate(everybody):
        differences = compare(theirs, everybody[0])
        if differences:
            shown = "; ".join(differences).replace(" in the file ", f" in process {rank} ").replace(" here", " in 0")
            raise ValueError(f"the processes differ: {shown}. {hint}")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def count_devices(device: str, devices: int | str) -> int:
    """Return the number of devices; "auto" means all GPUs, or one CPU."""
    on_gpu = device in ("auto", "cuda", "gpu") and torch.cuda.is_available()
    if devices == "auto":
        return torch.cuda.device_count() if on_gpu else 1
    if on_gpu and int(devices) > torch.cuda.device_count():
        raise ValueError(f"devices={devices}, but there are {torch.cuda.device_count()} GPU(s) on this machine")
    return int(devices)


def _refuse_unlaunched(devices: int, nodes: int, strategy: str) -> None:
    """Raise ValueError if the settings need processes that were not started and cannot be started here."""
    more = f" --nnodes={nodes} --rdzv-backend=c10d --rdzv-endpoint=HOST:PORT" if nodes > 1 else ""
    line = TORCHRUN.format(devices=devices, nodes=more)
    if nodes > 1:
        raise ValueError(f"nodes={nodes}: start the script on every machine by {line}")
    if devices > 1 and strategy == "ddp":
        raise ValueError(f"strategy='ddp' is for processes that torchrun starts: {line}; or take strategy='auto'")
    if devices > 1 and hasattr(sys, "ps1"):
        raise ValueError(INTERACTIVE.format(devices=devices))


def _as_started(started: tuple[int, int], devices: int | str, nodes: int, strategy: str) -> tuple[int, int]:
    """Return the numbers of processes and machines of torchrun; raise ValueError if the settings contradict them."""
    if strategy == "ddp_spawn":
        raise ValueError("strategy='ddp_spawn' starts processes, but torchrun has started some: take strategy='auto'")
    if (devices not in ("auto", 1, started[0])) or nodes not in (1, started[1]):
        asked = f"devices={devices}, nodes={nodes}"
        raise ValueError(f"torchrun started {started[0]} process(es) on each of {started[1]} machine(s), not {asked}")
    return started


def _spawn(device: str, devices: int | str, precision: Any, function: Callable[..., Any], arguments: Any) -> Any:
    """Call a function in new processes. An error in one of them ends all, and is raised here with its original type."""
    before = dict(os.environ)
    fabric = fabric_class()(accelerator=device, devices=devices, precision=precision, strategy="ddp_spawn")
    try:
        with tempfile.NamedTemporaryFile(
            suffix=".pt"
        ) as result:  # a pipe cannot return large tensors of an ended process
            fabric.launch(_HandBack(result.name, function, arguments))
            return torch.load(result.name, map_location="cpu", weights_only=True)
    except ProcessRaisedException as error:
        names = list(re.finditer(r"^(\w+): ", error.msg, re.MULTILINE))
        kind = getattr(builtins, names[-1][1], None) if names else None
        if isinstance(kind, type) and issubclass(kind, Exception):
            raise kind(error.msg[names[-1].end() :].strip()) from error
        raise RuntimeError(FAILED.format(error=error.msg.strip().rpartition("\n")[2])) from error
    finally:
        for name in set(os.environ) - set(before):  # the address at which the processes connected
            del os.environ[name]


@dataclass
class _HandBack:
    """A call in one of the new processes; the first one writes the result to a file."""

    path: str
    function: Callable[..., Any]
    arguments: Any

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Unpickle in the new process, and silence Fabric's log there too."""
        vars(self).update(state)
        _fabric_logger().setLevel(logging.WARNING)

    def __call__(self, fabric: Any) -> None:
        own = copy.deepcopy(
            self.arguments
        )  # the tensors are in shared memory, but other processes must not see changes
        result = self.function(fabric, *own)
        if fabric.global_rank == 0:
            torch.save(result, self.path)


def _fabric_logger() -> logging.Logger:
    return logging.getLogger(fabric_class().__module__.rpartition(".")[0])


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the informational log of Fabric."""
    its_logger = _fabric_logger()
    level = its_logger.level
    its_logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        its_logger.setLevel(level)
