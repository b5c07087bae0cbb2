"""Build networks of other libraries by name, without their classifier; a library is imported when it is needed."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

INSTALL = {"monai": '"sitewise[images]"', "timm": "timm", "torchvision": "torchvision"}
MONAI_NETWORKS = ("resnet18", "resnet50")


@dataclass(frozen=True)
class NamedNetwork:
    """A network that returns features, and the names of its removed layers, whose weights in files are ignored."""

    network: nn.Module
    classifier: tuple[str, ...]


def build_named(backbone: str, n_channels: int) -> NamedNetwork:
    """Build "monai:NAME", "timm:NAME" or "torchvision:NAME" for images of 1 or 3 channels, without a download."""
    library, name = backbone.split(":", 1)
    return LIBRARIES[library](name, n_channels)


def import_library(name: str, library: str) -> Any:
    """Import a module of a library that may be missing, or may not fit the installed torch."""
    try:
        return importlib.import_module(name)
    except (ImportError, RuntimeError, OSError) as error:
        raise ImportError(
            f"backbone '{library}:...' needs {library}, which does not import here ({error}): "
            f"pip install {INSTALL[library]}"
        ) from error


def _build_monai(name: str, n_channels: int) -> NamedNetwork:
    """Build MONAI's 2-d ResNet with the layers of ResNets for ImageNet (stride 2 at the start), whose weights fit."""
    build: Callable[..., nn.Module] = getattr(import_library("monai.networks.nets", "monai"), name)
    network = build(
        pretrained=False,
        spatial_dims=2,
        n_input_channels=n_channels,
        conv1_t_stride=2,
        bias_downsample=False,
        feed_forward=False,
    )
    return NamedNetwork(network, ("fc",))


def _build_timm(name: str, n_channels: int) -> NamedNetwork:
    timm = import_library("timm", "timm")
    try:
        network = timm.create_model(name, pretrained=False, num_classes=0, in_chans=n_channels)
    except RuntimeError as error:
        raise ValueError(f"backbone 'timm:{name}': {error}; timm.list_models() lists the names") from error
    classifier = network.default_cfg.get("classifier") or ()
    return NamedNetwork(network, (classifier,) if isinstance(classifier, str) else tuple(classifier))


def _build_torchvision(name: str, n_channels: int) -> NamedNetwork:
    models = import_library("torchvision.models", "torchvision")
    try:
        network: nn.Module = models.get_model(name, weights=None)
    except ValueError as error:
        message = f"backbone 'torchvision:{name}': {error}; torchvision.models.list_models() lists the names"
        raise ValueError(message) from error
    last = [path for path, layer in network.named_modules() if isinstance(layer, nn.Linear)][-1]
    _replace(network, last, nn.Identity())
    if n_channels != 3:
        first, conv = next((path, layer) for path, layer in network.named_modules() if isinstance(layer, nn.Conv2d))
        _replace(network, first, _with_channels(conv, n_channels))
    return NamedNetwork(network, (last,))


def _replace(network: nn.Module, path: str, layer: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(network.get_submodule(parent), name, layer)


def _with_channels(conv: nn.Conv2d, n_channels: int) -> nn.Conv2d:
    """Return a layer with the same settings for another number of input channels."""
    return nn.Conv2d(
        n_channels,
        conv.out_channels,
        conv.kernel_size,  # type: ignore[arg-type]
        conv.stride,  # type: ignore[arg-type]
        conv.padding,  # type: ignore[arg-type]
        conv.dilation,  # type: ignore[arg-type]
        bias=conv.bias is not None,
    )


LIBRARIES = {"monai": _build_monai, "timm": _build_timm, "torchvision": _build_torchvision}
