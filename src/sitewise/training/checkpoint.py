"""A file from which a killed training goes on to the same result; it is refused for any other training."""

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

LARGE = 2**26  # bytes; of more than these a share is read
SHOWN = 10


class Stateful(Protocol):
    """What can be saved and restored: modules, optimizers, schedules, objectives."""

    def state_dict(self) -> Mapping[str, Any]:
        """Everything that changes in training: tensors and plain numbers."""
        ...

    def load_state_dict(self, state_dict: Any) -> Any:
        """Take it back."""
        ...


@dataclass(frozen=True)
class Checkpoint:
    """Where a training is saved, and what says that it is the same one."""

    path: Path
    identity: dict[str, str]

    def save(self, parts: Mapping[str, Stateful], generator: torch.Generator) -> None:
        """Write everything, at once or not at all."""
        content = {
            "identity": self.identity,
            "parts": {name: part.state_dict() for name, part in parts.items()},
            "random": {"generator": generator.get_state(), "cpu": torch.get_rng_state(), "cuda": _cuda_states()},
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_name(self.path.name + ".part")
        with temporary.open("wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.path)

    def restore(self, parts: Mapping[str, Stateful], generator: torch.Generator) -> None:
        """Take everything back where there is a file; raise ValueError where it is of another training."""
        if not self.path.exists():
            return
        try:
            content = torch.load(self.path, map_location="cpu", weights_only=True)
            theirs = content["identity"]
        except Exception as error:  # a file of another kind fails in whatever way its bytes lead to
            raise ValueError(f"{self.path} is no checkpoint: delete it, or give another path") from error
        differences = compare(theirs, self.identity)
        if differences:
            raise ValueError(
                f"the checkpoint {self.path} is of another training: {'; '.join(differences)}. "
                "Delete it to start anew, or give another path"
            )
        for name, part in parts.items():
            part.load_state_dict(content["parts"][name])
        generator.set_state(content["random"]["generator"])
        torch.set_rng_state(content["random"]["cpu"])
        for device, state in enumerate(content["random"]["cuda"][: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(state, device)

    def remove(self) -> None:
        """Training has ended."""
        self.path.unlink(missing_ok=True)


def open_checkpoint(where: str | os.PathLike[str], label: str, identity: dict[str, str]) -> Checkpoint:
    """A checkpoint at a file, or in a folder (a path without suffix) under a name that no other training has."""
    path = Path(where)
    if path.is_dir() or not path.suffix:
        number = hashlib.sha256(repr(sorted(identity.items())).encode()).hexdigest()[:12]
        path = path / f"{re.sub(r'[^a-z0-9]+', '-', label.lower()).strip('-')}-{number}.pt"
    return Checkpoint(path, identity)


def identify(module: nn.Module, settings: Mapping[str, Any]) -> dict[str, str]:
    """What tells a training from another: settings, the network's shape, and the weights it starts from."""
    state = module.state_dict()
    shapes = {f"network.{name}": f"{tuple(value.shape)}" for name, value in state.items()}
    plain = {name: str(value) for name, value in settings.items()}
    return plain | shapes | {"first weights": digest(*state.values())}


def compare(theirs: Mapping[str, str], ours: Mapping[str, str]) -> list[str]:
    """What differs, in words."""
    found = [
        f"{name} is {theirs.get(name, 'not there')} in the file and {ours.get(name, 'not there')} here"
        for name in dict.fromkeys([*theirs, *ours])
        if theirs.get(name) != ours.get(name)
    ]
    return [*found[:SHOWN], f"and {len(found) - SHOWN} more"] if len(found) > SHOWN else found


def digest(*parts: Tensor | str) -> str:
    """A short hash of tensors and texts; of very large tensors, of rows spread evenly over them."""
    found = hashlib.sha256()
    for part in parts:
        if isinstance(part, str):
            found.update(part.encode())
            continue
        rows = torch.atleast_1d(part.detach())
        step = max(1, rows.numel() * rows.element_size() // LARGE)
        found.update(f"{tuple(part.shape)} {part.dtype}".encode())
        found.update(rows[::step].cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:12]


def _cuda_states() -> list[Tensor]:
    return torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
