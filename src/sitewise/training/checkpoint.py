"""Checkpoints: files from which an interrupted training continues. Other trainings reject the file."""

import hashlib
import io
import os
import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from sitewise.artifacts.hints import fits
from sitewise.artifacts.packing import ODD
from sitewise.artifacts.places import put_in_place, sole_writer

MARK = b"sitewise checkpoint 1 "
SEAL = 65  # bytes of the checksum and the end of its line
OTHER = "{path} is no checkpoint of this version: delete it, or give another path"
DAMAGED = "the checkpoint {path} is damaged (its checksum differs): delete it to start again, or give another path"
NOT_WRITTEN = "the checkpoint {path} could not be written ({reason})"
LARGE = 2**26  # bytes; only some rows of larger tensors are hashed
SHOWN = 10


class Stateful(Protocol):
    """An object whose state can be saved and restored: a module, optimizer, schedule or objective."""

    def state_dict(self) -> Mapping[str, Any]:
        """Return the state that changes in training, as tensors and plain values."""
        ...

    def load_state_dict(self, state_dict: Any) -> Any:
        """Restore the state."""
        ...


@dataclass(frozen=True)
class Checkpoint:
    """The checkpoint file of a training, and the settings and shapes that identify the training (see `identify`)."""

    path: Path
    identity: dict[str, str]

    def save(self, parts: Mapping[str, Stateful], generator: torch.Generator) -> None:
        """Write the identity, the states of the parts and all random states to the file, atomically."""
        content = {
            "identity": self.identity,
            "parts": {name: part.state_dict() for name, part in parts.items()},
            "random": {"generator": generator.get_state(), "cpu": torch.get_rng_state(), "cuda": _cuda_states()},
        }
        stream = io.BytesIO()
        torch.save(content, stream)
        try:
            with sole_writer(self.path) as temporary:
                with temporary.open("wb") as file:
                    file.write(seal(stream.getvalue()))
                    file.flush()
                    os.fsync(file.fileno())
                put_in_place(temporary, self.path)
        except OSError as error:
            raise OSError(error.errno, NOT_WRITTEN.format(path=self.path, reason=error.strerror or error)) from error

    def restore(self, parts: Mapping[str, Stateful], generator: torch.Generator) -> None:
        """Restore the state if the file exists; raise ValueError if it is damaged or of another training."""
        if not self.path.exists():
            return
        content = read_content(self.path)
        differences = compare(content["identity"], self.identity)
        if differences:
            raise ValueError(
                f"the checkpoint {self.path} is of another training: {'; '.join(differences)}. "
                "Delete it to start again, or give another path"
            )
        try:
            for name, part in parts.items():
                part.load_state_dict(content["parts"][name])
            generator.set_state(content["random"]["generator"])
            torch.set_rng_state(content["random"]["cpu"])
            for device, state in enumerate(content["random"]["cuda"][: torch.cuda.device_count()]):
                torch.cuda.set_rng_state(state, device)
        except ODD as error:
            raise ValueError(OTHER.format(path=self.path)) from error

    def remove(self) -> None:
        """Delete the file."""
        self.path.unlink(missing_ok=True)


def seal(content: bytes) -> bytes:
    """Return the content with its checksum in front."""
    return MARK + hashlib.sha256(content).hexdigest().encode() + b"\n" + content


def read_content(path: Path) -> dict[str, Any]:
    """Read a checkpoint and verify its checksum; no code in the file is executed."""
    sealed = path.read_bytes()
    if not sealed.startswith(MARK):
        raise ValueError(OTHER.format(path=path))
    bare = sealed[len(MARK) + SEAL :]
    if seal(bare) != sealed:
        raise ValueError(DAMAGED.format(path=path))
    try:
        content = torch.load(io.BytesIO(bare), map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, *ODD) as error:
        raise ValueError(OTHER.format(path=path)) from error
    if not fits(content, dict[str, Any]) or not fits(content.get("identity"), dict[str, str]):
        raise ValueError(OTHER.format(path=path))
    return dict(content)


def open_checkpoint(where: str | os.PathLike[str], label: str, identity: dict[str, str]) -> Checkpoint:
    """Return the checkpoint of a training.

    If the path is a folder or has no suffix, the file lies in that folder, with a name derived from the training.
    """
    path = Path(where)
    if path.is_dir() or not path.suffix:
        number = hashlib.sha256(repr(sorted(identity.items())).encode()).hexdigest()[:12]
        path = path / f"{re.sub(r'[^a-z0-9]+', '-', label.lower()).strip('-')}-{number}.pt"
    return Checkpoint(path, identity)


def identify(module: nn.Module, settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the identity of a training: its settings, the network's shapes, and a hash of the initial weights."""
    state = module.state_dict()
    shapes = {f"network.{name}": f"{tuple(value.shape)}" for name, value in state.items()}
    plain = {name: str(value) for name, value in settings.items()}
    return plain | shapes | {"first weights": digest(*state.values())}


def compare(theirs: Mapping[str, str], ours: Mapping[str, str]) -> list[str]:
    """Describe the entries that differ."""
    differences = [
        f"{name} is {theirs.get(name, 'not there')} in the file and {ours.get(name, 'not there')} here"
        for name in dict.fromkeys([*theirs, *ours])
        if theirs.get(name) != ours.get(name)
    ]
    if len(differences) <= SHOWN:
        return differences
    return [*differences[:SHOWN], f"and {len(differences) - SHOWN} more"]


def digest(*parts: Tensor | str) -> str:
    """Return a short hash of tensors and texts; for very large tensors, only evenly spaced rows are hashed."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, str):
            digest.update(part.encode())
            continue
        rows = torch.atleast_1d(part.detach())
        step = max(1, rows.numel() * rows.element_size() // LARGE)
        digest.update(f"{tuple(part.shape)} {part.dtype}".encode())
        digest.update(rows[::step].cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:12]


def _cuda_states() -> list[Tensor]:
    return torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
