"""Build a backbone from its name or from a torch module: bytes to floats, normalization, network, features."""

import copy
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sitewise.arrays import did_you_mean
from sitewise.backbones.named import LIBRARIES, MONAI_NETWORKS, NamedNetwork, build_named
from sitewise.backbones.pixels import NORMALIZATIONS, Pixels, build_normalization
from sitewise.backbones.small import CNN_WIDTH, MLP_WIDTH, build_cnn, build_mlp
from sitewise.backbones.weights import SUFFIXES, load_weights
from sitewise.inputs import Inputs

SMALL = ("auto", "mlp", "cnn")
BACKBONES = (*SMALL, *(f"monai:{name}" for name in MONAI_NETWORKS), "timm:NAME", "torchvision:NAME")
FEATURES = 256  # features of a named network, as the paper has for its ResNet


def backbone_problems(backbone: Any, weights: Any = None, normalize: Any = None) -> list[str]:
    """Return the problems of these settings that can be found without data."""
    problems = []
    known = isinstance(backbone, nn.Module) or (isinstance(backbone, str) and _is_known(backbone))
    if not known:
        meant = did_you_mean(backbone, BACKBONES)
        names = ", ".join(BACKBONES)
        problems.append(f"backbone must be one of {names} or a torch module, got {backbone!r}{meant}")
    if normalize is not None and normalize not in NORMALIZATIONS:
        problems.append(f"normalize must be None, {' or '.join(map(repr, NORMALIZATIONS))}, got {normalize!r}")
    elif normalize is not None and isinstance(backbone, str) and backbone == "mlp":
        problems.append("backbone='mlp' standardizes its inputs itself: leave normalize out")
    if weights is not None:
        problems += _weights_problems(weights, isinstance(backbone, str) and backbone in SMALL, backbone)
    return problems


def build_backbone(
    backbone: str | nn.Module,
    X: Inputs,
    *,
    weights: str | os.PathLike[str] | None = None,
    normalize: str | None = None,
) -> tuple[nn.Module, int]:
    """Build a backbone for inputs like X (n, ...) and return it with its number of features.

    Parameters
    ----------
    backbone : str or nn.Module
        "mlp" has two layers of 128. "cnn" is the paper's network: Conv(32), ReLU, Pool(2), Conv(32), ReLU, Pool(2),
        Conv(64), ReLU, Pool(2), Flatten, Lin(256). "auto" is one of these two by the shape of X. "monai:resnet50",
        "timm:NAME" or "torchvision:NAME" is that network without its classifier, then Lin(256). A module of your own is
        copied and used unchanged.
    X : Tensor or StoredImages
        Inputs, for their shape and scale.
    weights : path, optional
        A local file with weights for the network.
    normalize : {"imagenet", "data"}, optional
        How images are normalized; None only divides bytes by 255.

    Returns
    -------
    network : nn.Module
        The backbone.
    width : int
        The number of its features.
    """
    problems = backbone_problems(backbone, weights, normalize)
    if problems:
        raise ValueError("; ".join(problems))
    if backbone == "auto":
        backbone = "mlp" if X.ndim == 2 else "cnn"
    normalization = build_normalization(normalize, X)
    if backbone == "mlp":
        return build_mlp(X), MLP_WIDTH
    if backbone == "cnn":
        return build_cnn(X, normalization), CNN_WIDTH
    if isinstance(backbone, nn.Module):
        named = NamedNetwork(copy.deepcopy(backbone), ())
    else:
        named = build_named(backbone, _channels(backbone, X))
    if weights is not None:
        load_weights(named.network, weights, named.classifier)
    layers = [Pixels(), *normalization, named.network]
    width = _measure(layers, X)
    if isinstance(backbone, nn.Module):
        return nn.Sequential(*layers), width
    return nn.Sequential(*layers, nn.Linear(width, FEATURES)), FEATURES


def _is_known(backbone: str) -> bool:
    library, _, name = backbone.partition(":")
    if library == "monai":
        return name in MONAI_NETWORKS
    return backbone in SMALL or (library in LIBRARIES and bool(name))


def _weights_problems(weights: Any, small: bool, backbone: Any) -> list[str]:
    if not isinstance(weights, str | os.PathLike):
        return [f"weights must be the path of a file, got {weights!r}"]
    if small:
        return [f"weights are for a network of another library or your own, not for backbone={backbone!r}"]
    if Path(weights).suffix not in SUFFIXES:
        return [f"weights must be a file that ends in {', '.join(SUFFIXES)}, got {os.fspath(weights)!r}"]
    if not Path(weights).is_file():
        return [f"weights: there is no file {os.fspath(weights)!r}; nothing is downloaded, give a local file"]
    return []


def _channels(backbone: str, X: Inputs) -> int:
    if X.ndim != 4 or X.shape[1] not in (1, 3):
        raise ValueError(
            f"backbone={backbone!r} needs images (n, channels, height, width) of 1 or 3 channels, got {tuple(X.shape)}"
        )
    return int(X.shape[1])


def _measure(layers: list[nn.Module], X: Inputs) -> int:
    """Return how many features the layers give for inputs like X."""
    network = layers[-1]
    training = {module: module.training for module in network.modules()}
    network.eval()
    with torch.no_grad():
        try:
            features: Any = nn.Sequential(*layers)(X[:1].float() if X.is_floating_point() else X[:1])
        except RuntimeError as error:
            raise ValueError(f"the backbone does not take inputs of shape {tuple(X.shape[1:])}: {error}") from error
    for module, mode in training.items():
        module.training = mode
    if not isinstance(features, Tensor) or features.ndim != 2:
        shape = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise ValueError(f"the backbone must return features (rows, width), got {shape}: end it with Flatten")
    return features.shape[1]
