"""Weights of a network from a local file, its classifier left out; nothing is downloaded, nothing is unpickled."""

import importlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

SUFFIXES = (".safetensors", ".pt", ".pth")
PREFIXES = ("module.", "backbone.", "model.")
WRAPPERS = ("state_dict", "model_state_dict", "model")  # under which training scripts put the weights
SHOWN = 10


def read_weights(file: str | os.PathLike[str]) -> dict[str, Tensor]:
    """Read tensors by name from .safetensors, or from .pt and .pth that hold nothing but tensors."""
    path = Path(file)
    if path.suffix == ".safetensors":
        try:
            library = importlib.import_module("safetensors.torch")
        except ImportError as error:
            raise ImportError(f"{path} needs safetensors: pip install safetensors") from error
        try:
            return dict(library.load_file(path))
        except Exception as error:  # the library's own kind, which is not importable everywhere
            raise ValueError(f"{path} is no safetensors file: {error}") from error
    try:
        found: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a file of another kind fails in whatever way its bytes lead to
        raise ValueError(
            f"{path} does not hold tensors alone and is not read: save network.state_dict() with torch.save"
        ) from error
    for wrapper in WRAPPERS:
        if isinstance(found, Mapping) and isinstance(found.get(wrapper), Mapping):
            found = found[wrapper]
    if not isinstance(found, Mapping) or not all(isinstance(value, Tensor) for value in found.values()):
        raise ValueError(f"{path} must hold a mapping of names to tensors, as network.state_dict() gives")
    return dict(found)


def load_weights(network: nn.Module, file: str | os.PathLike[str], classifier: Iterable[str] = ()) -> None:
    """Put a file's weights into a network; whatever does not match is one error that lists it.

    A first layer for three channels is added up over them where the network has one channel, which is as if the gray
    image were shown in all three.
    """
    wanted = network.state_dict()
    left_out = tuple(f"{name}." for name in classifier)
    tensors = {_bare_name(name, wanted): value for name, value in read_weights(file).items()}
    tensors = {name: value for name, value in tensors.items() if not name.startswith(left_out)}
    for name, value in tensors.items():
        if name in wanted and value.ndim == 4 and value.shape[1] == 3 and wanted[name].shape[1] == 1:
            tensors[name] = value.sum(1, keepdim=True)
    for name, value in wanted.items():
        if name.endswith("num_batches_tracked"):  # old files have none
            tensors.setdefault(name, value)
    problems = list(_mismatches(wanted, tensors))
    if problems:
        raise ValueError(f"the weights in {file} do not fit the backbone:\n" + "\n".join(f"  - {p}" for p in problems))
    network.load_state_dict(tensors)


def _bare_name(name: str, wanted: Mapping[str, Tensor]) -> str:
    """A name without what training scripts put before it."""
    while name not in wanted and name.startswith(PREFIXES):
        name = name.split(".", 1)[1]
    return name


def _mismatches(wanted: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> Iterable[str]:
    missing = [name for name in wanted if name not in found]
    unknown = [name for name in found if name not in wanted]
    shapes = [
        f"{name} has shape {tuple(found[name].shape)} instead of {tuple(value.shape)}"
        for name, value in wanted.items()
        if name in found and found[name].shape != value.shape
    ]
    if missing:
        yield f"not in the file: {_some(missing)}"
    if unknown:
        yield f"not in the network: {_some(unknown)}"
    if shapes:
        yield _some(shapes)


def _some(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
