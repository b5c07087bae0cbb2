"""Build a backbone from its name or from a torch module.

Its layers convert bytes to floats, normalize, and compute features. Two small networks are defined here: a perceptron
for tables, and the paper's CNN for small images.
"""

import copy
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sitewise.arrays import did_you_mean
from sitewise.backbones.named import LIBRARIES, MONAI_NETWORKS, NamedNetwork, build_named
from sitewise.backbones.weights import SUFFIXES, load_weights
from sitewise.inputs import Inputs

SMALL = ("auto", "mlp", "cnn")
BACKBONES = (*SMALL, *(f"monai:{name}" for name in MONAI_NETWORKS), "timm:NAME", "torchvision:NAME")
FEATURES = 256  # number of features of a named network, as for the ResNet of the paper
MLP_WIDTH = 128
CNN_WIDTH = 256  # as in the paper
STANDARDIZED_ROWS = 1000  # enough for a mean and a standard deviation
NORMALIZATIONS = ("imagenet", "data")
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_DEVIATION = (0.229, 0.224, 0.225)
CHUNK = 256  # images at a time


def backbone_problems(backbone: Any, weights: Any = None, normalize: Any = None) -> list[str]:
    """Return the problems of these settings, as far as they can be found without data."""
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
        "mlp" has two hidden layers of 128 units. "cnn" is the paper's network: Conv(32), ReLU, Pool(2), Conv(32), ReLU,
        Pool(2), Conv(64), ReLU, Pool(2), Flatten, Lin(256). "auto" is "mlp" if X has two axes, otherwise "cnn".
        "monai:resnet50", "timm:NAME" or "torchvision:NAME" is that network without its classifier, then Lin(256). A
        module of your own is copied and used unchanged.
    X : Tensor or StoredImages
        Inputs that show the shape and, for normalization, the scale.
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
    """Return the number of features that the layers compute for inputs like X."""
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


class Standardize(nn.Module):
    """Standardizes the features of a table by their mean and standard deviation in the rows X."""

    mean: Tensor
    scale: Tensor

    def __init__(self, X: Tensor) -> None:
        super().__init__()
        deviation = X.double().std(dim=0, unbiased=False)
        self.register_buffer("mean", X.double().mean(dim=0).float())
        self.register_buffer("scale", torch.where(deviation > 0, deviation, 1.0).float())

    def forward(self, x: Tensor) -> Tensor:
        """Standardize rows."""
        return (x - self.mean) / self.scale


class Pixels(nn.Module):
    """Converts inputs to floats (bytes 0..255 become 0..1), and images to torch's channels-last layout."""

    def forward(self, x: Tensor) -> Tensor:
        """Convert a batch."""
        if not x.is_floating_point():
            x = x.float() / 255 if x.dtype == torch.uint8 else x.float()
        return x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x


class Normalize(nn.Module):
    """Standardizes each channel by a mean and a standard deviation, which are saved with the network."""

    mean: Tensor
    scale: Tensor

    def __init__(self, mean: Tensor, deviation: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean.float()[:, None, None])
        self.register_buffer("scale", torch.where(deviation > 0, deviation, 1.0).float()[:, None, None])

    def forward(self, x: Tensor) -> Tensor:
        """Standardize images (n, channels, height, width)."""
        return (x - self.mean) / self.scale


def build_normalization(normalize: str | None, X: Inputs) -> list[nn.Module]:
    """Return the layers that normalize images like X: none or one.

    "imagenet" uses ImageNet's mean and standard deviation; for images of one channel, they are averaged over the
    channels. "data" uses the mean and standard deviation of each channel over all of X.
    """
    if normalize is None:
        return []
    if X.ndim != 4:
        raise ValueError(f"normalize={normalize!r} is for images (n, channels, height, width), got {tuple(X.shape)}")
    if normalize == "data":
        return [Normalize(*channel_moments(X))]
    n_channels = X.shape[1]
    mean, deviation = (torch.tensor(numbers, dtype=torch.float64) for numbers in (IMAGENET_MEAN, IMAGENET_DEVIATION))
    if n_channels == 1:
        return [Normalize(mean.mean(dim=0, keepdim=True), deviation.mean(dim=0, keepdim=True))]
    if n_channels != 3:
        raise ValueError(f"normalize='imagenet' is for images of 1 or 3 channels, got {n_channels}: use 'data'")
    return [Normalize(mean, deviation)]


def channel_moments(X: Inputs) -> tuple[Tensor, Tensor]:
    """Return the mean and standard deviation of every channel after `Pixels`, computed in chunks."""
    total = torch.zeros(X.shape[1], dtype=torch.float64)
    squares = torch.zeros_like(total)
    pixels = Pixels()
    for start in range(0, len(X), CHUNK):
        channels = pixels(X[start : start + CHUNK]).transpose(0, 1).flatten(1).double()
        total += channels.sum(1)
        squares += (channels**2).sum(1)
    n_values = X.numel() / X.shape[1]
    mean = total / n_values
    return mean, (squares / n_values - mean**2).clamp_min(0).sqrt()


def build_mlp(X: Inputs) -> nn.Sequential:
    """Build a perceptron on flattened inputs, which are standardized by the first `STANDARDIZED_ROWS` rows of X."""
    flat = Pixels()(X[:STANDARDIZED_ROWS].flatten(1))
    hidden = [nn.Linear(flat.shape[1], MLP_WIDTH), nn.ReLU(), nn.Linear(MLP_WIDTH, MLP_WIDTH), nn.ReLU()]
    return nn.Sequential(Pixels(), nn.Flatten(), Standardize(flat), *hidden)


def build_cnn(X: Inputs, normalization: Sequence[nn.Module] = ()) -> nn.Sequential:
    """Build the paper's network for Color MNIST; the kernels are 3 × 3, which the paper does not specify."""
    if X.ndim != 4 or min(X.shape[2:]) < 8:
        raise ValueError(
            f"backbone='cnn' needs images (n, channels, height, width) of 8 pixels or more, got {tuple(X.shape)}"
        )
    layers: list[nn.Module] = [Pixels(), *normalization]
    channels = X.shape[1]
    for n_filters in (32, 32, 64):
        layers += [
            nn.Conv2d(channels, n_filters, 3, padding=1),
            nn.MaxPool2d(2),
            nn.ReLU(),
        ]  # ReLU after pooling: same result, a quarter of the work
        channels = n_filters
    height, width = (size // 8 for size in X.shape[2:])
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * height * width, CNN_WIDTH))
