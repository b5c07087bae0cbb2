"""Load the weights of a network, without its classifier, from a local file that contains only tensors."""

import importlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

SUFFIXES = (".safetensors", ".pt", ".pth")
PREFIXES = ("module.", "backbone.", "model.")
WRAPPERS = ("state_dict", "model_state_dict", "model")  # keys under which training scripts store the weights
SHOWN = 10


def read_weights(file: str | os.PathLike[str]) -> dict[str, Tensor]:
    """Read tensors by name from a .safetensors file, or from a .pt or .pth file that contains only tensors."""
    path = Path(file)
    if path.suffix == ".safetensors":
        try:
            library = importlib.import_module("safetensors.torch")
        except ImportError as error:
            raise ImportError(f"{path} needs safetensors: pip install safetensors") from error
        try:
            return dict(library.load_file(path))
        except Exception as error:  # the library's own class, which cannot be imported everywhere
            raise ValueError(f"{path} is no safetensors file: {error}") from error
    try:
        saved: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a file of another format may raise any error
        raise ValueError(
            f"{path} does not hold tensors alone and is not read: save network.state_dict() with torch.save"
        ) from error
    for wrapper in WRAPPERS:
        if isinstance(saved, Mapping) and isinstance(saved.get(wrapper), Mapping):
            saved = saved[wrapper]
    if not isinstance(saved, Mapping) or not all(isinstance(value, Tensor) for value in saved.values()):
        raise ValueError(f"{path} must hold a mapping of names to tensors, as network.state_dict() gives")
    return dict(saved)


def load_weights(network: nn.Module, file: str | os.PathLike[str], classifier: Iterable[str] = ()) -> None:
    """Load a file's weights into a network; raise one ValueError that lists all mismatches.

    If a layer has three input channels in the file and one in the network, the channels are summed. The result is the
    same as for a gray image that is repeated in three channels. Weights of layers in `classifier` are ignored.
    """
    wanted = network.state_dict()
    left_out = tuple(f"{name}." for name in classifier)
    tensors = {_bare_name(name, wanted): value for name, value in read_weights(file).items()}
    tensors = {name: value for name, value in tensors.items() if not name.startswith(left_out)}
    for name, value in tensors.items():
        if name in wanted and value.ndim == 4 and value.shape[1] == 3 and wanted[name].shape[1] == 1:
            tensors[name] = value.sum(1, keepdim=True)
    for name, value in wanted.items():
        if name.endswith("num_batches_tracked"):  # absent in old files
            tensors.setdefault(name, value)
    problems = list(_mismatches(wanted, tensors))
    if problems:
        raise ValueError(f"the weights in {file} do not fit the backbone:\n" + "\n".join(f"  - {p}" for p in problems))
    network.load_state_dict(tensors)


def _bare_name(name: str, wanted: Mapping[str, Tensor]) -> str:
    """Remove the prefixes that training scripts add to a name."""
    while name not in wanted and name.startswith(PREFIXES):
        name = name.split(".", 1)[1]
    return name


def _mismatches(wanted: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> Iterable[str]:
    missing = [name for name in wanted if name not in tensors]
    unknown = [name for name in tensors if name not in wanted]
    shapes = [
        f"{name} has shape {tuple(tensors[name].shape)} instead of {tuple(value.shape)}"
        for name, value in wanted.items()
        if name in tensors and tensors[name].shape != value.shape
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
